//! The keys of volumes in the engine.
//!
//! A volume's key has 64 bytes: the text `forebay block volume`, zeros up to byte 48, and the volume's UUID. A file's
//! key has at most 46 bytes: 6 bytes, then a kernel handle of at most 40 bytes. So no file has the key of a volume. A
//! server that knows no volumes takes such a key for that of a file system that is not served, and does not start
//! while the log has changes of it.

use forebay_engine::io::{KEY_MAX, Key};

use crate::planted_bugs;

const TEXT: &[u8] = b"forebay block volume";
/// The offset of the UUID, in bytes.
const UUID: usize = 48;

/// Returns the key of the volume with this UUID.
pub fn key(uuid: u128) -> Key {
    let mut bytes = [0; KEY_MAX];
    bytes[..TEXT.len()].copy_from_slice(TEXT);
    bytes[UUID..].copy_from_slice(&uuid.to_le_bytes());
    Key::new(&bytes).unwrap_or_else(|| unreachable!("64 bytes"))
}

/// Returns the UUID of the volume with this key; `None` if the key is not a volume's.
pub fn uuid_of(key: &Key) -> Option<u128> {
    if planted_bugs::active("the key of a volume is taken for a file's") {
        return None;
    }
    let bytes: &[u8; KEY_MAX] = key.as_bytes().try_into().ok()?;
    let (front, uuid) = bytes.split_at(UUID);
    let (text, zeros) = front.split_at(TEXT.len());
    let is_volume = text == TEXT && zeros.iter().all(|byte| *byte == 0);
    let uuid = uuid.try_into().map(u128::from_le_bytes).ok()?;
    is_volume.then_some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_holds_its_uuid_and_no_other_key_is_a_volume_s() {
        let uuid = 0x0123_4567_89ab_cdef_0011_2233_4455_6677;
        let own = key(uuid);
        assert_eq!(uuid_of(&own), Some(uuid));
        assert!(own.as_bytes().len() > 46, "longer than any file's");
        let mut bytes = own.as_bytes().to_vec();
        for at in [0, TEXT.len() - 1, TEXT.len(), UUID - 1] {
            bytes[at] ^= 1;
            assert_eq!(uuid_of(&Key::new(&bytes).unwrap()), None, "{at}");
            bytes[at] ^= 1;
        }
        for len in [1, 6, 46, 63] {
            assert_eq!(uuid_of(&Key::new(&bytes[..len]).unwrap()), None, "{len}");
        }
    }

    #[test]
    fn the_bytes_of_a_key_are_fixed() {
        let mut expected = b"forebay block volume".to_vec();
        expected.resize(48, 0);
        expected.extend((1..=16).rev());
        let uuid = 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10;
        assert_eq!(key(uuid).as_bytes(), expected);
    }
}
