//! Errors that callers of the engine receive.

use crate::io::BackingError;

/// The reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The backing store returned an error.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// The backing store has not answered for long, and the log takes no more data for it until it answers.
    #[error("the backing store does not answer")]
    Late,
    /// Every copy of a block that only the cache had is bad.
    #[error("every copy of a cached block is damaged")]
    Damaged,
    /// No cache device is left to write to.
    #[error("no cache device is left")]
    NoDevice,
    /// The engine is closing.
    #[error("the cache is closing")]
    Closing,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;
