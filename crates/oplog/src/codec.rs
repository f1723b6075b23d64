//! Integers, names and identities in records: little-endian, one encoding for each value.

use crate::identity::{IDENTITY_MAX, Identity};
use crate::{Name, Time};

/// Appends an identity: kind, length, bytes.
pub(crate) fn put_identity(identity: &Identity, out: &mut Vec<u8>) {
    out.extend_from_slice(&(identity.kind as i16).to_le_bytes());
    out.push(identity.len);
    out.extend_from_slice(identity.as_slice());
}

/// Appends a name with its length in front.
pub(crate) fn put_name(name: &[u8], out: &mut Vec<u8>) {
    // At most 255 bytes long.
    out.push(name.len() as u8);
    out.extend_from_slice(name);
}

/// Appends a time: seconds in 8 bytes, nanoseconds in 4.
pub(crate) fn put_time(time: Time, out: &mut Vec<u8>) {
    out.extend_from_slice(&time.sec.to_le_bytes());
    out.extend_from_slice(&time.nsec.to_le_bytes());
}

/// Bytes not read yet.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    /// Takes `len` bytes; `None` if fewer are left.
    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Takes `N` bytes; `None` if fewer are left.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Takes a name with its length in front; `None` if the bytes are too few.
    pub(crate) fn name(&mut self) -> Option<Name> {
        let len = self.u8()?;
        Some(self.bytes(len.into())?.into())
    }

    /// Takes a time; `None` if the bytes are too few, or have a second or more of nanoseconds.
    pub(crate) fn time(&mut self) -> Option<Time> {
        let time = Time { sec: self.array().map(i64::from_le_bytes)?, nsec: self.u32()? };
        (time.nsec < 1_000_000_000).then_some(time)
    }

    /// Takes an identity; `None` if the bytes are none.
    pub(crate) fn identity(&mut self) -> Option<Identity> {
        let kind = i16::from_le_bytes(self.array()?).into();
        let len = self.u8()?;
        let mut bytes = [0; IDENTITY_MAX];
        bytes.get_mut(..usize::from(len))?.copy_from_slice(self.bytes(len.into())?);
        Some(Identity { kind, len, bytes })
    }
}
