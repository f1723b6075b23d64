//! The contents of a block in memory.

use std::ops::Deref;
use std::sync::Arc;

/// A block's contents in memory; never changes.
///
/// The contents have an allocation of their own. With the counters of an [`Arc`] in front of them a block takes 4,112
/// bytes. An allocator with size classes gives 5,120 for these, and 4,096 and 32 for the two parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page(Arc<Box<[u8]>>);

// An `Arc` of the contents themselves has the size of two pointers.
const _: () = assert!(size_of::<Page>() == size_of::<usize>());
// The counters, and the pointer to the contents with their length.
const _: () = assert!(2 * size_of::<usize>() + size_of::<Box<[u8]>>() == 32);

impl From<&[u8]> for Page {
    fn from(contents: &[u8]) -> Self {
        Page(Arc::new(contents.into()))
    }
}

impl From<Vec<u8>> for Page {
    fn from(contents: Vec<u8>) -> Self {
        Page(Arc::new(contents.into()))
    }
}

impl Deref for Page {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
