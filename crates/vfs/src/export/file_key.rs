//! Keys of files: one for all handles that clients have of a file.
//!
//! A handle names its export. A file that two exports reach, one below the other, has a handle for each. The locks of
//! its clients conflict all the same.

use crate::export::vfs::Vfs;
use crate::handle::{HANDLE_MAX, parts};

/// The key of a file in this run of the server: no two files have equal ones.
#[derive(Clone, Copy)]
pub struct FileKey {
    len: u8,
    bytes: [u8; HANDLE_MAX],
}

impl FileKey {
    /// Joins parts of at most [`HANDLE_MAX`] bytes together.
    fn of<const N: usize>(parts: [&[u8]; N]) -> Self {
        let (mut bytes, mut len) = ([0; HANDLE_MAX], 0);
        for part in parts {
            bytes[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        FileKey { len: len as u8, bytes }
    }

    /// Returns the bytes, at most [`HANDLE_MAX`].
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl Vfs {
    /// Returns the key of the file that a handle of this server names, also for an export that was removed. Bytes of
    /// another form are their own key. The keyed hash of the handle is not checked.
    pub fn file_key(&self, handle: &[u8]) -> FileKey {
        let Some((export, kind, kernel)) = parts(handle) else {
            return FileKey::of([handle.get(..HANDLE_MAX).unwrap_or(handle)]);
        };
        // An export that nobody knows counts as a file system of its own.
        let (place, is_known) = self.device_of(export).map_or((export.into(), 0), |device| (device, 1));
        FileKey::of([&place.to_le_bytes()[..], &[is_known], &kind, kernel])
    }

    /// Returns the device of the served file system that an export is on. The export may be out of service.
    pub(crate) fn device_of(&self, export: u32) -> Option<u64> {
        let unserved =
            || self.unserved.get()?.iter().find(|(id, _)| *id == export).map(|(_, device)| *device);
        self.exports().find_removed(export).map(|found| found.fs.device).or_else(unserved)
    }
}
