//! Records: what the log says happened, in order.

use smallvec::SmallVec;

use crate::io::{Key, Time};

/// An object as it is after the records that refer to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Which object.
    pub key: Key,
    /// Its size in bytes.
    pub size: u64,
    /// Its modification time, if the backing store does not have it yet.
    pub mtime: Option<Time>,
}

/// One thing that happened to an object. `object` is an index into [`Body::objects`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Blocks `block..` of the object are in slots `slot..` of this segment, one for each checksum.
    Data {
        /// Which object.
        object: u16,
        /// The first block's number within the object: offset / 4 KiB.
        block: u64,
        /// The first block's place within the segment: offset / 4 KiB.
        slot: u16,
        /// [`bind`](super::bind) of each block. 1 to 65,535.
        checksums: SmallVec<[u32; 2]>,
    },
    /// The object is being cut or grown to `size` bytes: nothing older counts at or beyond it.
    Truncate {
        /// Which object.
        object: u16,
        /// The new size in bytes.
        size: u64,
    },
    /// The backing store has carried out, durably, the object's latest [`Record::Truncate`].
    Truncated {
        /// Which object.
        object: u16,
    },
    /// The backing store holds newer contents of `count` blocks from `block` on: nothing older counts.
    Invalidate {
        /// Which object.
        object: u16,
        /// The first block's number.
        block: u64,
        /// How many blocks; `u64::MAX` for all to the end.
        count: u64,
    },
    /// The backing store has durably what the log has of `count` blocks from `block` on: none of them is dirty.
    Destaged {
        /// Which object.
        object: u16,
        /// The first block's number.
        block: u64,
        /// How many blocks; `u64::MAX` for all to the end.
        count: u64,
    },
    /// The object was removed: nothing older counts.
    Forget {
        /// Which object.
        object: u16,
    },
    /// What the engine's user wants to find again. It is about no object.
    UserRecord {
        /// 1 to [`USER_RECORD_MAX`](crate::USER_RECORD_MAX) bytes.
        bytes: Box<[u8]>,
    },
}

impl Record {
    /// The index of the object it is about, if it is about one.
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
    /// The objects the records refer to; at most 65,535.
    pub objects: Vec<Facts>,
    /// In the order they happened.
    pub records: Vec<Record>,
}
