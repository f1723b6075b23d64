//! The key of a file, with the handle by which one client knows it.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

/// A file, as one client knows it: the key of the file, and the client's handle of it.
///
/// A file that two exports reach has a handle for each export, and one key. Values are equal if their keys are, so
/// state of clients that use different exports conflicts. Call-backs and records have the handle. The key is not in
/// any record: [`Record::decode`](crate::Record::decode) asks for it.
#[derive(Clone)]
pub struct FileKey {
    /// The key, then the handle.
    bytes: Arc<[u8]>,
    key_len: u8,
}

/// A borrowed [`FileKey`]: a look at the state costs no allocation.
#[derive(Clone, Copy, Debug)]
pub struct FileRef<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The handle of the client.
    pub handle: &'a [u8],
}

impl FileKey {
    /// The longest key, and the longest handle, in bytes.
    pub const MAX: usize = 64;

    /// Returns `None` for a key or a handle that is too long.
    pub fn new(key: &[u8], handle: &[u8]) -> Option<Self> {
        let fits = key.len() <= Self::MAX && handle.len() <= Self::MAX;
        let bytes = || key.iter().chain(handle).copied().collect();
        fits.then(|| FileKey { bytes: bytes(), key_len: key.len() as u8 })
    }

    /// Returns a file whose only handle is its key as well, or `None` if the handle is too long.
    pub fn of_handle(handle: &[u8]) -> Option<Self> {
        Self::new(handle, handle)
    }

    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        &self.bytes[..self.key_len.into()]
    }

    /// Returns the handle of the client.
    pub fn handle(&self) -> &[u8] {
        &self.bytes[self.key_len.into()..]
    }

    /// Returns the key and the handle.
    pub fn borrowed(&self) -> FileRef<'_> {
        FileRef { key: self.key(), handle: self.handle() }
    }
}

impl PartialEq for FileKey {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for FileKey {}

impl PartialOrd for FileKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FileKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(other.key())
    }
}

impl Hash for FileKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

impl fmt::Debug for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileKey({:?}, {:?})", self.key(), self.handle())
    }
}

impl Deref for FileKey {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.key()
    }
}

// A table is searched for a key without a value of this type, which would be an allocation.
impl Borrow<[u8]> for FileKey {
    fn borrow(&self) -> &[u8] {
        self.key()
    }
}
