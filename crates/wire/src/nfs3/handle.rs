//! File handles (RFC 1813, section 2.5).

use crate::xdr::{Decode, DecodeError, Encode, Reader, opaque_size};

/// `nfs_fh3`: an opaque file handle of at most 64 bytes, stored inline.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileHandle {
    len: u8,
    // Bytes from `len` on are zero, so that the derived equality and hash are right.
    bytes: [u8; FileHandle::MAX_SIZE],
}

impl FileHandle {
    /// NFS3_FHSIZE: most bytes in a handle.
    pub const MAX_SIZE: usize = 64;

    /// Returns a handle with a copy of `bytes`; `None` for more than 64 bytes.
    #[inline]
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut handle = Self { len: u8::try_from(bytes.len()).ok()?, bytes: [0; Self::MAX_SIZE] };
        handle.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(handle)
    }

    /// Returns the handle's bytes, 0 to 64.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the size of the XDR representation in bytes.
    #[inline]
    #[must_use]
    pub const fn encoded_size(&self) -> usize {
        opaque_size(self.len as usize)
    }
}

impl std::fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FileHandle(")?;
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str(")")
    }
}

impl Encode for FileHandle {
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode(out);
    }
}

impl<'a> Decode<'a> for FileHandle {
    #[inline]
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let bytes = input.opaque_var(Self::MAX_SIZE)?;
        let mut handle = Self { len: bytes.len() as u8, bytes: [0; Self::MAX_SIZE] };
        handle.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(handle)
    }
}

/// `post_op_fh3`: the handle of a new object, if the server could get it.
pub type PostOpFh = Option<FileHandle>;
