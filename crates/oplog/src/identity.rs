//! The name of an object in handles and in the log. It does not depend on the object's names in directories.

use std::fmt::{Debug, Formatter, Write as _};

/// The longest identity in bytes. ext4 and XFS use 8 to 12, btrfs 20 to 40.
pub const IDENTITY_MAX: usize = 40;

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
