//! File handles as clients hold them (RFC 1813 nfs_fh3, at most 64 bytes).
//!
//! ```text
//!  0        1        2            4              8                  8+len      16+len
//!  | format | len    | kind (i16) | export (u32) | kernel handle    | SipHash  |
//! ```
//!
//! The kernel handle holds inode and generation, so a handle survives renames and restarts and dies
//! with its file. The keyed hash covers everything before it: only handles issued here, for this
//! export, are ever opened, so nobody can walk out of an export by guessing inode numbers.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::error::{Error, Result};
use crate::sys::{KERNEL_HANDLE_MAX, KernelHandle};

const FORMAT: u8 = 1;
const HEAD: usize = 8;
const MAC: usize = 8;

/// The largest handle this server issues, in bytes; within NFSv3's 64.
pub const HANDLE_MAX: usize = HEAD + KERNEL_HANDLE_MAX + MAC;

/// A file handle in the form clients hold it.
#[derive(Clone, Copy)]
pub struct Handle {
    len: u8,
    bytes: [u8; HANDLE_MAX],
}

impl Handle {
    /// Returns the handle with these bytes on the wire, at most [`HANDLE_MAX`].
    pub(crate) fn of(wire: &[u8]) -> Self {
        let mut bytes = [0; HANDLE_MAX];
        bytes[..wire.len()].copy_from_slice(wire);
        Handle { len: wire.len() as u8, bytes }
    }

    /// Returns the bytes on the wire.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_slice().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// The secret that makes handles unforgeable, 16 random bytes kept in the state directory.
#[derive(Clone)]
pub struct HandleKey {
    hasher: SipHasher24,
    /// Values that go into the handles of some exports as well, by export id.
    salts: Vec<(u32, u64)>,
}

impl HandleKey {
    /// Uses the 16 secret bytes.
    pub fn new(secret: &[u8; 16]) -> Self {
        HandleKey { hasher: SipHasher24::new_with_key(secret), salts: Vec::new() }
    }

    /// Adds values to the handles of some exports, by their ids. Another value than before invalidates all earlier
    /// handles of the export. An export that is not listed has handles without a value.
    pub fn salted(self, salts: Vec<(u32, u64)>) -> Self {
        HandleKey { salts, ..self }
    }

    /// Returns the keyed hash of a handle's bytes, with the salt of its export.
    fn mac(&self, export: u32, bytes: &[u8]) -> [u8; MAC] {
        let mut hasher = self.hasher;
        hasher.write(bytes);
        if let Some((_, salt)) = self.salts.iter().find(|(id, _)| *id == export) {
            hasher.write(&salt.to_le_bytes());
        }
        hasher.finish().to_le_bytes()
    }

    /// Returns a number derived from a name and the secret: export and file system identities, equal after
    /// every restart.
    pub fn derive(&self, name: &[u8]) -> u64 {
        let mut hasher = self.hasher;
        hasher.write(name);
        hasher.finish()
    }

    /// Returns the handle of an inode in an export.
    pub(crate) fn seal(&self, export: u32, kernel: &KernelHandle) -> Handle {
        let mut bytes = [0; HANDLE_MAX];
        let end = HEAD + kernel.as_slice().len();
        bytes[0] = FORMAT;
        bytes[1] = kernel.len;
        bytes[2..4].copy_from_slice(&(kernel.kind as i16).to_le_bytes());
        bytes[4..8].copy_from_slice(&export.to_le_bytes());
        bytes[HEAD..end].copy_from_slice(kernel.as_slice());
        let mac = self.mac(export, &bytes[..end]);
        bytes[end..end + MAC].copy_from_slice(&mac);
        Handle { len: (end + MAC) as u8, bytes }
    }

    /// Checks a handle from a client. Returns its export and the kernel handle in it.
    pub(crate) fn open(&self, wire: &[u8]) -> Result<(u32, KernelHandle)> {
        let body = wire.len().checked_sub(MAC).filter(|end| *end >= HEAD).ok_or(Error::BadHandle)?;
        let (signed, mac) = wire.split_at(body);
        let kernel = &signed[HEAD..];
        if signed[0] != FORMAT || usize::from(signed[1]) != kernel.len() {
            return Err(Error::BadHandle);
        }
        let export = u32::from_le_bytes([signed[4], signed[5], signed[6], signed[7]]);
        if self.mac(export, signed) != mac {
            // Of the file system that the export was before, perhaps.
            let salted = self.salts.iter().any(|(id, _)| *id == export);
            return Err(if salted { Error::Stale } else { Error::BadHandle });
        }
        let kind = i16::from_le_bytes([signed[2], signed[3]]).into();
        Ok((export, KernelHandle::new(kind, kernel).ok_or(Error::BadHandle)?))
    }
}

/// Returns the export of a handle and its kernel handle, with the kind in front. Returns `None` for bytes of another
/// form. Does not check the keyed hash.
pub(crate) fn parts(wire: &[u8]) -> Option<(u32, [u8; 2], &[u8])> {
    let (head, rest) = wire.split_first_chunk::<HEAD>()?;
    let [format, len, kind @ .., e0, e1, e2, e3] = *head;
    let kernel = rest.get(..rest.len().checked_sub(MAC)?)?;
    let is_handle = format == FORMAT && usize::from(len) == kernel.len() && kernel.len() <= KERNEL_HANDLE_MAX;
    is_handle.then_some((u32::from_le_bytes([e0, e1, e2, e3]), kind, kernel))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(bytes: &[u8]) -> KernelHandle {
        let mut handle = KernelHandle { kind: 1, len: bytes.len() as u8, bytes: [0; KERNEL_HANDLE_MAX] };
        handle.bytes[..bytes.len()].copy_from_slice(bytes);
        handle
    }

    #[test]
    fn opens_what_it_sealed() {
        let key = HandleKey::new(b"0123456789abcdef");
        for len in 0..=KERNEL_HANDLE_MAX {
            let inner = kernel(&vec![7; len]);
            let sealed = key.seal(9, &inner);
            assert!(sealed.as_slice().len() <= 64);
            assert_eq!(key.open(sealed.as_slice()), Ok((9, inner)));
        }
    }

    #[test]
    fn refuses_every_single_bit_flip_and_every_truncation() {
        let key = HandleKey::new(b"0123456789abcdef");
        let sealed = key.seal(9, &kernel(b"inode+gen"));
        let wire = sealed.as_slice();
        for bit in 0..wire.len() * 8 {
            let mut forged = wire.to_vec();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.open(&forged), Err(Error::BadHandle), "bit {bit}");
        }
        for len in 0..wire.len() {
            assert_eq!(key.open(&wire[..len]), Err(Error::BadHandle));
        }
    }

    #[test]
    fn what_an_export_was_before_has_no_handles() {
        let plain = HandleKey::new(b"0123456789abcdef");
        let salted = plain.clone().salted(vec![(9, 1 << 60)]);
        let [before, other] = [9, 8].map(|export| plain.seal(export, &kernel(b"root")));
        assert_eq!(salted.open(before.as_slice()), Err(Error::Stale));
        assert_eq!(salted.open(other.as_slice()), Ok((8, kernel(b"root"))));
        let after = salted.seal(9, &kernel(b"root"));
        assert_eq!(salted.open(after.as_slice()), Ok((9, kernel(b"root"))));
        assert_eq!(plain.open(after.as_slice()), Err(Error::BadHandle));
    }

    #[test]
    fn another_secret_opens_nothing() {
        let sealed = HandleKey::new(b"0123456789abcdef").seal(1, &kernel(b"x"));
        assert_eq!(HandleKey::new(b"0123456789abcdeF").open(sealed.as_slice()), Err(Error::BadHandle));
    }
}
