//! The findings of recovery, and the errors that end it.

use crate::io::BackingError;
use crate::log::user_records::UserRecord;
use crate::pool::PoolError;
use crate::{Error, Seq};

/// The reason why a pool cannot be put into service.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The pool's devices cannot be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Acknowledged data is lost.
    #[error(
        "the cache's log is damaged: frame {frame} is missing on all devices, and it is not the last one; restore the \
         missing device, or give the cache up and lose what was not destaged"
    )]
    Hole {
        /// The number of the first frame that is missing.
        frame: Seq,
    },
    /// The backing store does not return the size of an object.
    #[error("the cache holds data for a file that cannot be looked at: {0}")]
    Backing(BackingError),
    /// The engine failed at its start.
    #[error("the cache cannot be put into service: {0}")]
    Engine(Error),
}

/// The findings of recovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Number of dirty blocks that will be destaged.
    pub dirty_blocks: u64,
    /// Number of frames read one by one.
    pub frames: u64,
    /// True if the last frame was on one device only, or torn.
    pub torn: bool,
    /// User records found in the log, in order: all that are durable and were not released. Some that were released
    /// may come before them.
    pub notes: Vec<UserRecord>,
}
