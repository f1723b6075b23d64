//! Memory for direct I/O: whole, aligned blocks.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of a block, the unit of caching and of device I/O.
pub const BLOCK: usize = 4096;

/// Zeroed memory of a whole number of blocks, aligned to one.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is owned by the buffer alone, as a Vec's is.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Returns a buffer of `blocks` zeroed blocks. With 0 blocks the buffer is empty.
    pub fn zeroed(blocks: usize) -> Self {
        let len = blocks * BLOCK;
        if len == 0 {
            return Buffer { start: NonNull::dangling(), len: 0 };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout has a size above zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Buffer { start, len }
    }

    /// Returns a copy of `bytes`, filled up with zeros to whole blocks.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len().div_ceil(BLOCK));
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    /// Returns the memory layout of a buffer of `len` bytes, aligned to a block.
    fn layout(len: usize) -> Layout {
        // The length was allocated once, or is a slice's: it cannot overflow.
        Layout::from_size_align(len, BLOCK).unwrap_or(Layout::new::<[u8; BLOCK]>())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: allocated by `zeroed` with the same layout.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes start there.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: `len` initialised bytes start there and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// Part of a shared buffer. A write to two legs sends one copy of the data.
#[derive(Clone, Debug)]
pub struct Slice {
    buffer: Arc<Buffer>,
    range: Range<usize>,
}

impl Slice {
    /// Returns the bytes `range` of `buffer`. For a device both ends must be multiples of [`BLOCK`].
    pub fn new(buffer: Arc<Buffer>, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= buffer.len(), "a slice lies within its buffer");
        Slice { buffer, range }
    }
}

impl From<Buffer> for Slice {
    fn from(buffer: Buffer) -> Self {
        let range = 0..buffer.len();
        Slice { buffer: Arc::new(buffer), range }
    }
}

impl Deref for Slice {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[self.range.clone()]
    }
}
