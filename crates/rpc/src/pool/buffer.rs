//! The memory of one buffer, and the buffer while it is on loan.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::Account;

/// An anonymous mapping. Its pages become resident only when touched. So a buffer for a length that a peer merely
/// claims costs address space, not memory.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned by this value alone and not bound to a thread.
unsafe impl Send for Mapping {}
// SAFETY: shared access only reads the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of zeros. Returns `None` if the system has no memory for the mapping.
    pub(super) fn new(len: usize) -> Option<Self> {
        // SAFETY: a private anonymous mapping at an address the kernel picks aliases nothing.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        Some(Self { start: NonNull::new(start.ok()?.cast())?, len })
    }

    /// Returns the size in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and len are those of the mapping this value owns; no reference outlives it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// A buffer on loan from a [`Pool`]. Its contents are left over from its last use.
pub(crate) struct PooledBuf {
    /// Present until drop.
    pub(super) map: Option<Mapping>,
    /// The place of the buffer's size among the sizes of the pool.
    pub(super) class: usize,
    /// True for the one buffer on loan beyond the limit.
    pub(super) extra: bool,
    pub(super) account: Arc<Account>,
}

impl Deref for PooledBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.map {
            // SAFETY: the mapping is len bytes, readable, zero-filled by the kernel at first, owned by self.
            Some(map) => unsafe { std::slice::from_raw_parts(map.start.as_ptr(), map.len) },
            None => &[],
        }
    }
}

impl DerefMut for PooledBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.map {
            // SAFETY: as in deref; &mut self makes the access exclusive.
            Some(map) => unsafe { std::slice::from_raw_parts_mut(map.start.as_ptr(), map.len) },
            None => &mut [],
        }
    }
}

impl Drop for PooledBuf {
    fn drop(&mut self) {
        if let Some(map) = self.map.take() {
            let pool = &self.account.pool;
            if self.extra {
                pool.extra.store(false, Relaxed);
            }
            self.account.held.fetch_sub(map.len(), Relaxed);
            pool.give_back(map, self.class);
        }
    }
}
