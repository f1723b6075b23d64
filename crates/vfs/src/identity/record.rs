//! The owner of a pool, as its superblocks carry it (docs/on-disk-format.md): one record for each export.

use crate::identity::export_identity::ExportIdentity;

const VERSION: u8 = 1;
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
    /// The directory.
    pub identity: ExportIdentity,
}

/// Returns the records as bytes, at most `most`. Where there is no room, texts for people are left out, and then whole
/// records. Exports without a record are compared with the state directory's copy only.
pub fn encode_owner(records: &[Recorded], most: usize) -> Vec<u8> {
    let all = |texts: bool| {
        let mut out = vec![VERSION];
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

/// Returns the records in these bytes, or `None` if they are not of this version.
pub fn decode_owner(bytes: &[u8]) -> Option<Vec<Recorded>> {
    let Some((version, mut rest)) = bytes.split_first() else { return Some(Vec::new()) };
    let mut records = Vec::new();
    if *version != VERSION {
        return None;
    }
    while !rest.is_empty() {
        records.push(decode(&mut rest)?);
    }
    Some(records)
}

/// Appends a record. Without `texts`, the texts for people are empty.
fn encode(record: &Recorded, texts: bool, out: &mut Vec<u8>) {
    let ExportIdentity { magic, uuid, part, root, mount_root, ref source, ref mounted_at } = record.identity;
    [record.export, record.number, magic].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    out.extend_from_slice(&uuid);
    [part, root, record.start].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    out.push(u8::from(mount_root));
    for text in [source, mounted_at] {
        let text = if texts && text.len() <= TEXT_MAX { text.as_bytes() } else { &[] };
        out.push(text.len() as u8);
        out.extend_from_slice(text);
    }
}

/// Takes a record; `None` if the bytes are none.
fn decode(rest: &mut &[u8]) -> Option<Recorded> {
    let mut word = || take::<4>(rest).map(u32::from_le_bytes);
    let (export, number, magic) = (word()?, word()?, word()?);
    let uuid = take::<16>(rest)?;
    let mut long = || take::<8>(rest).map(u64::from_le_bytes);
    let (part, root, start) = (long()?, long()?, long()?);
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
    Some(Recorded { export, number, start, identity })
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
        Recorded { export, number: 3, start: 9, identity }
    }

    #[test]
    fn golden() {
        let mut expected = vec![1];
        expected.extend([7, 0, 0, 0, 3, 0, 0, 0, 0x53, 0xef, 0, 0]);
        expected.extend([0xab; 16]);
        expected.extend([0, 1, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 9, 0, 0, 0, 0, 0, 0, 0, 1, 9]);
        expected.extend(b"/dev/sdb1\x09/srv/data");
        assert_eq!(encode_owner(&[record(7)], 4000), expected);
        assert_eq!(decode_owner(&expected), Some(vec![record(7)]));
        for len in 1..expected.len() {
            assert_ne!(decode_owner(&expected[..len]), Some(vec![record(7)]));
        }
        assert_eq!(decode_owner(&[]), Some(Vec::new()));
        assert_eq!(decode_owner(&[2]), None, "another version's");
    }

    #[test]
    fn what_does_not_fit_loses_its_texts_first() {
        let records: Vec<_> = (0..20).map(record).collect();
        let short = encode_owner(&records, 1 + 20 * 55);
        let found = decode_owner(&short).unwrap();
        assert_eq!(found.len(), 20);
        assert!(found.iter().all(|found| found.identity.is(&record(0).identity)));
        assert_eq!(decode_owner(&encode_owner(&records, 300)).unwrap().len(), 5);
    }
}
