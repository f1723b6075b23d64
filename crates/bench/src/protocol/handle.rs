//! File handles of both versions.

use forebay_wire::nfs3::FileHandle;
use forebay_wire::nfs4::MAX_HANDLE;

/// An opaque file handle of at most 128 bytes, as NFSv4 allows. NFSv3 has at most 64 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle {
    len: u8,
    // Bytes from `len` on are zero, so that the derived equality is right.
    bytes: [u8; MAX_HANDLE],
}

impl Handle {
    /// The empty handle, which every server refuses.
    pub(crate) const EMPTY: Self = Self { len: 0, bytes: [0; MAX_HANDLE] };

    /// Returns a handle with a copy of the first 128 of `bytes`. The codecs refuse longer handles.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let bytes = &bytes[..bytes.len().min(MAX_HANDLE)];
        let mut handle = Self { len: bytes.len() as u8, ..Self::EMPTY };
        handle.bytes[..bytes.len()].copy_from_slice(bytes);
        handle
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the handle for NFSv3. The handle comes from a server of that version, so it fits.
    pub(super) fn nfs3(&self) -> FileHandle {
        let bytes = &self.as_bytes()[..usize::from(self.len).min(FileHandle::MAX_SIZE)];
        FileHandle::new(bytes).unwrap_or_else(|| unreachable!("64 bytes fit"))
    }
}

impl From<FileHandle> for Handle {
    fn from(handle: FileHandle) -> Self {
        Self::new(handle.as_bytes())
    }
}
