//! The owner of a pool, as its superblocks carry it (docs/on-disk-format.md): the secret of file handles, and a record
//! for each export.

use crate::identity::export_identity::ExportIdentity;

const VERSION: u8 = 2;
/// The version without the secret and the salts.
const OLD: u8 = 1;
/// The longest text, in bytes.
const TEXT_MAX: usize = 96;

/// The facts that a pool has about an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The export's id, as in file handles.
    pub export: u32,
    /// The number of its file system in the keys of the cache.
    pub number: u32,
    /// The count of starts ([`Stamp::start`](crate::identity::stamp::Stamp)); 0: the directory can have none.
    pub start: u64,
    /// The salt of its file handles; 0: none.
    pub salt: u64,
    /// The directory.
    pub identity: ExportIdentity,
}

/// The facts that a pool has about its directories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The secret of file handles, of NFSv4's server owner and of its scope. `None`: an older version wrote the record.
    pub secret: Option<[u8; 16]>,
    /// The exports.
    pub records: Vec<Recorded>,
}

/// Returns the owner as bytes, at most `most`. Where there is no room, texts for people are left out, and then whole
/// records. Exports without a record are compared with the state directory's copy only.
pub fn encode_owner(secret: &[u8; 16], records: &[Recorded], most: usize) -> Vec<u8> {
    let all = |texts: bool| {
        let mut out = vec![VERSION];
        out.extend_from_slice(secret);
        for record in records {
            let before = out.len();
            encode(record, texts, &mut out);
            if out.len() > most {
                out.truncate(before);
                return (out, false);
            }
        }
        (out, true)
    };
    match all(true) {
        (out, true) => out,
        _ => all(false).0,
    }
}

/// Returns the owner in these bytes, or `None` if they are not of a version known here. No bytes are an empty owner.
pub fn decode_owner(bytes: &[u8]) -> Option<Owner> {
    let Some((version, mut rest)) = bytes.split_first() else { return Some(Owner::default()) };
    let secret = match *version {
        VERSION => Some(take::<16>(&mut rest)?),
        OLD => None,
        _ => return None,
    };
    let mut records = Vec::new();
    while !rest.is_empty() {
        records.push(decode(&mut rest, secret.is_some())?);
    }
    Some(Owner { secret, records })
}

/// Appends a record. Without `texts`, the texts for people are empty.
fn encode(record: &Recorded, texts: bool, out: &mut Vec<u8>) {
    let ExportIdentity { magic, uuid, part, root, mount_root, ref source, ref mounted_at } = record.identity;
    [record.export, record.number, magic].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    out.extend_from_slice(&uuid);
    [part, root, record.start, record.salt]
        .iter()
        .for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    out.push(u8::from(mount_root));
    for text in [source, mounted_at] {
        let text = if texts && text.len() <= TEXT_MAX { text.as_bytes() } else { &[] };
        out.push(text.len() as u8);
        out.extend_from_slice(text);
    }
}

/// Takes a record; `None` if the bytes are none. A record of the old version is not `salted`.
fn decode(rest: &mut &[u8], is_salted: bool) -> Option<Recorded> {
    let mut word = || take::<4>(rest).map(u32::from_le_bytes);
    let (export, number, magic) = (word()?, word()?, word()?);
    let uuid = take::<16>(rest)?;
    let mut long = || take::<8>(rest).map(u64::from_le_bytes);
    let (part, root, start) = (long()?, long()?, long()?);
    let salt = if is_salted { long()? } else { 0 };
    let [mount_root] = take::<1>(rest)?;
    let mut text = || {
        let [len] = take::<1>(rest)?;
        let (text, after) = rest.split_at_checked(usize::from(len))?;
        *rest = after;
        String::from_utf8(text.to_vec()).ok()
    };
    let (source, mounted_at) = (text()?, text()?);
    let mount_root = mount_root == 1;
    let identity = ExportIdentity { magic, uuid, part, root, mount_root, source, mounted_at };
    Some(Recorded { export, number, start, salt, identity })
}

/// Takes `N` bytes; `None` if fewer are left.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(export: u32) -> Recorded {
        let identity = ExportIdentity {
            magic: 0xef53,
            uuid: [0xab; 16],
            part: 256,
            root: 0x0102_0304_0506_0708,
            mount_root: true,
            source: "/dev/sdb1".into(),
            mounted_at: "/srv/data".into(),
        };
        Recorded { export, number: 3, start: 9, salt: 5, identity }
    }

    #[test]
    fn golden() {
        let mut expected = vec![2];
        expected.extend([0xcd; 16]);
        expected.extend([7, 0, 0, 0, 3, 0, 0, 0, 0x53, 0xef, 0, 0]);
        expected.extend([0xab; 16]);
        expected.extend([0, 1, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 9, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend([5, 0, 0, 0, 0, 0, 0, 0, 1, 9]);
        expected.extend(b"/dev/sdb1\x09/srv/data");
        let owner = Owner { secret: Some([0xcd; 16]), records: vec![record(7)] };
        assert_eq!(encode_owner(&[0xcd; 16], &owner.records, 4000), expected);
        assert_eq!(decode_owner(&expected), Some(owner.clone()));
        for len in 1..expected.len() {
            assert_ne!(decode_owner(&expected[..len]), Some(owner.clone()));
        }
        assert_eq!(decode_owner(&[]), Some(Owner::default()));
        assert_eq!(decode_owner(&[3]), None, "of a later version");
    }

    #[test]
    fn the_version_without_a_secret_is_read() {
        let mut old = vec![1];
        old.extend([7, 0, 0, 0, 3, 0, 0, 0, 0x53, 0xef, 0, 0]);
        old.extend([0xab; 16]);
        old.extend([0, 1, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 9, 0, 0, 0, 0, 0, 0, 0, 1, 9]);
        old.extend(b"/dev/sdb1\x09/srv/data");
        let records = vec![Recorded { salt: 0, ..record(7) }];
        assert_eq!(decode_owner(&old), Some(Owner { secret: None, records }));
    }

    #[test]
    fn what_does_not_fit_loses_its_texts_first() {
        let records: Vec<_> = (0..20).map(record).collect();
        let short = encode_owner(&[0; 16], &records, 17 + 20 * 63);
        let found = decode_owner(&short).unwrap().records;
        assert_eq!(found.len(), 20);
        assert!(found.iter().all(|found| found.identity.is(&record(0).identity)));
        assert_eq!(decode_owner(&encode_owner(&[0; 16], &records, 350)).unwrap().records.len(), 5);
    }
}
