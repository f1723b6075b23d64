//! An operation as the profile counts it: who, on what, and how much.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::kind::Kind;

/// The number of the export of an operation outside of every export.
pub const NO_EXPORT: u32 = u32::MAX;
/// The number of the user of an operation without a user.
pub const NO_USER: u32 = u32::MAX;

/// The one who causes an operation: a user of a client, in an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    client: u128,
    export: u32,
    user: u32,
    tag: u64,
}

impl Subject {
    /// Returns the subject of a client's address, an export's number and a user's number.
    pub fn new(client: IpAddr, export: u32, user: u32) -> Self {
        let client = match client {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let client = client.to_bits();
        let parts = (client as u64) ^ ((client >> 64) as u64).rotate_left(32);
        let tag = mixed(mixed(parts) ^ (u64::from(export) << 32 | u64::from(user)));
        Subject { client, export, user, tag }
    }

    /// Returns the address of the client.
    pub fn client(&self) -> IpAddr {
        IpAddr::V6(Ipv6Addr::from_bits(self.client)).to_canonical()
    }

    /// Returns the number of the export.
    pub fn export(&self) -> u32 {
        self.export
    }

    /// Returns the number of the user.
    pub fn user(&self) -> u32 {
        self.user
    }

    /// Returns a number that tells subjects apart. Two subjects may share one.
    pub(crate) fn tag(&self) -> u64 {
        self.tag
    }
}

impl Default for Subject {
    fn default() -> Self {
        Self::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), NO_EXPORT, NO_USER)
    }
}

/// The range of a READ or WRITE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// The first byte.
    pub offset: u64,
    /// Bytes returned or taken.
    pub len: u32,
    /// True for a WRITE with FILE_SYNC or DATA_SYNC.
    pub stable: bool,
}

/// An operation that was carried out.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// The cause.
    pub subject: Subject,
    /// Its kind.
    pub kind: Kind,
    /// True if it failed.
    pub failed: bool,
    /// The file or directory, as [`file_key`] returns it; 0 if there is none.
    pub file: u64,
    /// The range, for READ and WRITE.
    pub moved: Option<Moved>,
}

/// A file handle as clients hold it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    len: u8,
    bytes: [u8; FileId::MAX],
}

impl FileId {
    /// The longest handle in bytes: that of NFSv3.
    pub const MAX: usize = 64;

    /// Returns the handle with these bytes. Bytes after the 64th are left out: no such handle was issued.
    pub fn new(handle: &[u8]) -> Self {
        let len = handle.len().min(Self::MAX);
        let mut bytes = [0; Self::MAX];
        bytes[..len].copy_from_slice(&handle[..len]);
        FileId { len: len as u8, bytes }
    }

    /// Returns the bytes of the handle.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for FileId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Returns the key of the file with this handle: the keyed hash at its end, which differs for each file and export. The
/// handle must have been checked, or a client could choose the key. Returns 0 for fewer than 8 bytes.
pub fn file_key(handle: &[u8]) -> u64 {
    handle.last_chunk().map_or(0, |hash| u64::from_le_bytes(*hash))
}

/// Returns a number in which every bit depends on every bit of `number` (the finalizer of MurmurHash3).
pub(crate) fn mixed(number: u64) -> u64 {
    let mut mixed = number;
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_returns_what_it_was_made_of() {
        for text in ["127.0.0.1", "10.1.2.3", "2001:db8::7"] {
            let address: IpAddr = text.parse().unwrap();
            let subject = Subject::new(address, 3, 1000);
            assert_eq!((subject.client(), subject.export(), subject.user()), (address, 3, 1000));
        }
        let mapped = Subject::new("::ffff:10.1.2.3".parse().unwrap(), 3, 1000);
        assert_eq!(mapped, Subject::new("10.1.2.3".parse().unwrap(), 3, 1000));
    }

    #[test]
    fn the_key_of_a_file_is_the_end_of_its_handle() {
        assert_eq!(file_key(&[9, 1, 0, 0, 0, 0, 0, 0, 0]), 1);
        assert_eq!(file_key(&[1; 7]), 0);
        assert_eq!(FileId::new(&[7; 30]).as_bytes(), [7; 30]);
        assert_eq!(FileId::new(&[7; 99]).as_bytes().len(), FileId::MAX);
    }
}
