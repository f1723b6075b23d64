//! Errors of file system operations, below the protocol, and their conversions to and from errors of the engine.

use forebay_engine::Error as CacheError;
use forebay_engine::io::BackingError;
use rustix::io::Errno;

/// The result of a file system operation.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why an operation did not happen. The protocol layer turns each into its own status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The backing file system refused; `Errno` is its answer.
    #[error("{0}")]
    Os(Errno),
    /// The handle is well formed and was issued here, but its inode no longer exists.
    #[error("the file is gone")]
    Stale,
    /// The handle was not issued by this server for this export.
    #[error("the file handle was not issued by this server")]
    BadHandle,
    /// The guard of a SETATTR (RFC 1813 section 3.3.2) did not match the file's ctime.
    #[error("the file changed since the guard time was read")]
    NotSync,
    /// A directory cookie or its verifier is not one of ours.
    #[error("the directory cookie is not valid")]
    BadCookie,
    /// The answer needs a disk and the caller asked not to wait.
    #[error("the answer needs a disk")]
    WouldBlock,
    /// The export is served read-only.
    #[error("the export is read-only")]
    ReadOnly,
    /// Too many operations are in progress. The client should ask again later.
    #[error("too many requests are under way")]
    Busy,
}

impl Error {
    /// The backing file system refused for want of permission to the inode's contents.
    pub const ACCESS: Error = Error::Os(Errno::ACCESS);
    /// The operation is not permitted to this caller at all.
    pub const PERM: Error = Error::Os(Errno::PERM);
    /// An argument makes no sense.
    pub const INVALID: Error = Error::Os(Errno::INVAL);
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::STALE => Error::Stale,
            Errno::AGAIN => Error::WouldBlock,
            other => Error::Os(other),
        }
    }
}

/// Returns an error of the engine in the form in which clients get it.
pub(crate) fn from_cache(error: CacheError) -> Error {
    match error {
        CacheError::Backing(BackingError::Gone) => Error::Stale,
        CacheError::Backing(BackingError::NoSpace) => Error::Os(Errno::NOSPC),
        CacheError::Backing(BackingError::Quota) => Error::Os(Errno::DQUOT),
        CacheError::Backing(BackingError::Io(errno)) => Error::Os(Errno::from_raw_os_error(errno)),
        CacheError::Damaged => Error::Os(Errno::IO),
        // Sent again, it takes another way.
        CacheError::NoDevice | CacheError::Closing => Error::Busy,
        // It may have answered by then.
        CacheError::Late => Error::Busy,
    }
}

/// Returns an error of a backing file system in the form in which the engine gets it.
pub(crate) fn io_error(error: Error) -> BackingError {
    match error {
        Error::Os(Errno::NOSPC) => BackingError::NoSpace,
        Error::Os(Errno::DQUOT) => BackingError::Quota,
        Error::Os(errno) => BackingError::Io(errno.raw_os_error()),
        _ => BackingError::Io(Errno::IO.raw_os_error()),
    }
}
