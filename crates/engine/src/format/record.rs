//! Records: the changes in the log, in order.

use smallvec::SmallVec;

use crate::io::{Key, Time};

/// The longest user record, in bytes. It fits any empty frame.
pub const USER_RECORD_MAX: usize = 4000;

/// The state of an object after the records that refer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The object's key.
    pub key: Key,
    /// The object's size in bytes.
    pub size: u64,
    /// The object's modification time, if the backing store does not have it yet.
    pub mtime: Option<Time>,
}

/// A change of an object. `object` is an index into [`Body::objects`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Blocks `block..` of the object are in slots `slot..` of this segment, one for each checksum.
    Data {
        /// The object.
        object: u16,
        /// The first block's number within the object: offset / 4 KiB.
        block: u64,
        /// The first block's place within the segment: offset / 4 KiB.
        slot: u16,
        /// [`bind`](super::bind) of each block. 1 to 65,535.
        checksums: SmallVec<[u32; 2]>,
    },
    /// The object is being truncated or grown to `size` bytes: nothing older counts at or beyond that size.
    Truncate {
        /// The object.
        object: u16,
        /// The new size in bytes.
        size: u64,
    },
    /// The backing store has carried out, durably, the object's latest [`Record::Truncate`].
    Truncated {
        /// The object.
        object: u16,
    },
    /// The backing store holds newer contents of `count` blocks from `block` on: nothing older counts.
    Invalidate {
        /// The object.
        object: u16,
        /// The first block's number.
        block: u64,
        /// Number of blocks; `u64::MAX` for all blocks to the end.
        count: u64,
    },
    /// The backing store durably has the log's contents of `count` blocks from `block` on: none of them is dirty.
    Destaged {
        /// The object.
        object: u16,
        /// The first block's number.
        block: u64,
        /// Number of blocks; `u64::MAX` for all blocks to the end.
        count: u64,
    },
    /// The object was removed: nothing older counts.
    Forget {
        /// The object.
        object: u16,
    },
    /// Bytes that the engine's user wants to find again. The record is about no object.
    UserRecord {
        /// 1 to [`USER_RECORD_MAX`] bytes.
        bytes: Box<[u8]>,
    },
}

impl Record {
    /// Returns the index of the object that the record is about, if it is about one.
    pub fn object_mut(&mut self) -> Option<&mut u16> {
        match self {
            Record::Data { object, .. }
            | Record::Truncate { object, .. }
            | Record::Truncated { object }
            | Record::Invalidate { object, .. }
            | Record::Destaged { object, .. }
            | Record::Forget { object } => Some(object),
            Record::UserRecord { .. } => None,
        }
    }
}

/// The records of a frame or of a whole segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    /// The objects that the records refer to; at most 65,535.
    pub objects: Vec<Facts>,
    /// The records, in the order of the changes.
    pub records: Vec<Record>,
}
