//! The name of an object in handles and in the log. It does not depend on the object's names in directories.

use std::fmt::{Debug, Formatter, Write as _};

/// The longest identity in bytes. ext4 and XFS use 8 to 12, btrfs 20 to 40.
pub const IDENTITY_MAX: usize = 40;

/// The kind of an identity that the server made up: a number of 8 bytes.
const MADE_UP: i32 = -2;
/// The first file id of made-up identities. No file system has that many inodes.
const MADE_UP_NUMBER: u64 = 1 << 62;
/// Handles of ext4 and XFS: inode number and generation of 32 bits each. With the other bit the number has 64 bits.
const NUMBER_GENERATION: i32 = 1;
const LARGE_NUMBER: i32 = 0x80;

/// An object of a backing file system: a kernel file handle in the form that `name_to_handle_at(2)` gives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The kernel's type of handle, which fits 16 bits. Negative for a handle that the server itself made.
    pub kind: i32,
    /// The length of the handle in `bytes`.
    pub len: u8,
    /// The handle, followed by zeros.
    pub bytes: [u8; IDENTITY_MAX],
}

impl Identity {
    /// Returns the identity with these bytes, or `None` if they are too many.
    pub fn new(kind: i32, handle: &[u8]) -> Option<Self> {
        let mut bytes = [0; IDENTITY_MAX];
        bytes.get_mut(..handle.len())?.copy_from_slice(handle);
        Some(Identity { kind, len: handle.len() as u8, bytes })
    }

    /// Returns the handle's own bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Makes an identity up from a number, of which the low 62 bits count. No kernel handle equals it.
    pub fn made_up(number: u64) -> Self {
        let mut bytes = [0; IDENTITY_MAX];
        bytes[..8].copy_from_slice(&(number % MADE_UP_NUMBER).to_le_bytes());
        Identity { kind: MADE_UP, len: 8, bytes }
    }

    /// Returns true if the identity is made up.
    pub fn is_made_up(&self) -> bool {
        self.kind == MADE_UP
    }

    /// Returns the inode number that the identity shows. `None`: the format of the handle is unknown.
    pub fn number(&self) -> Option<u64> {
        let bytes = self.as_slice();
        match self.kind {
            MADE_UP => Some(MADE_UP_NUMBER | u64::from_le_bytes(*bytes.first_chunk()?)),
            NUMBER_GENERATION => Some(u32::from_ne_bytes(*bytes.first_chunk()?).into()),
            kind if kind == NUMBER_GENERATION | LARGE_NUMBER => {
                Some(u64::from_ne_bytes(*bytes.first_chunk()?))
            }
            _ => None,
        }
    }

    /// Returns the generation of the inode number. `None`: the handle has none, or its format is unknown.
    pub fn generation(&self) -> Option<u32> {
        let at = match self.kind {
            NUMBER_GENERATION => 4,
            kind if kind == NUMBER_GENERATION | LARGE_NUMBER => 8,
            _ => return None,
        };
        self.as_slice().get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
    }

    /// Returns true if the handle begins with this inode number, as the handles of ext4, XFS and btrfs do. False proves
    /// nothing.
    pub fn may_be_of(&self, ino: u64) -> bool {
        self.len >= 8 && self.bytes[..4] == (ino as u32).to_ne_bytes()
    }

    /// Returns a file name for the identity: kind and bytes in hexadecimal digits, at most 85 bytes.
    pub fn to_name(&self) -> String {
        let mut name = format!("{:04x}-", self.kind as i16);
        for byte in self.as_slice() {
            // Writing to a string cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        name
    }

    /// Returns the identity from which [`Identity::to_name`] made this name; `None` for any other name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        let text = str::from_utf8(name).ok()?;
        let (kind, hex) = text.split_once('-')?;
        let mut identity = Identity {
            kind: (u16::from_str_radix(kind, 16).ok()? as i16).into(),
            len: u8::try_from(hex.len() / 2).ok()?,
            bytes: [0; IDENTITY_MAX],
        };
        let bytes = identity.bytes.get_mut(..hex.len() / 2)?;
        for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
        }
        (identity.to_name() == text).then_some(identity)
    }
}

impl Debug for Identity {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_identities() {
        for (kind, len) in [(1, 8), (-2, 8), (0x81, 12), (i32::from(i16::MAX), IDENTITY_MAX as u8), (-1, 0)] {
            let mut identity = Identity { kind, len, bytes: [0; IDENTITY_MAX] };
            identity.bytes[..usize::from(len)].fill(0xa7);
            assert_eq!(Identity::from_name(identity.to_name().as_bytes()), Some(identity));
        }
    }

    #[test]
    fn numbers_and_generations_are_those_of_ext4_and_xfs() {
        let mut identity = Identity { kind: NUMBER_GENERATION, len: 8, bytes: [0; IDENTITY_MAX] };
        identity.bytes[..4].copy_from_slice(&7u32.to_ne_bytes());
        identity.bytes[4..8].copy_from_slice(&9u32.to_ne_bytes());
        assert_eq!((identity.number(), identity.generation()), (Some(7), Some(9)));
        (identity.kind, identity.len) = (NUMBER_GENERATION | LARGE_NUMBER, 12);
        identity.bytes[..8].copy_from_slice(&(1u64 << 40).to_ne_bytes());
        identity.bytes[8..12].copy_from_slice(&5u32.to_ne_bytes());
        assert_eq!((identity.number(), identity.generation()), (Some(1 << 40), Some(5)));
        let made_up = Identity::made_up(u64::MAX);
        assert!(made_up.is_made_up() && made_up.number() == Some((1 << 63) - 1));
        assert_eq!((made_up.generation(), Identity { kind: 2, ..identity }.number()), (None, None));
    }

    #[test]
    fn other_names_are_of_no_identity() {
        let long = format!("0001-{}", "00".repeat(IDENTITY_MAX + 1));
        for name in
            ["", "-", "a file", "0001", "0001-0", "0001-0G", "1-00", "0001-0A", "+001-00", "0001-+1", &long]
        {
            assert_eq!(Identity::from_name(name.as_bytes()), None, "{name}");
        }
        assert_eq!(Identity::from_name(b"0001-\xff\xff"), None);
    }
}
