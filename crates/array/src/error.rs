//! What can go wrong for a person at the command line.

use std::io;
use std::path::PathBuf;

/// Why a command on an array failed; every text says what happened, to which thing, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ArrayError {
    /// The model cannot be used.
    #[error(transparent)]
    Model(#[from] crate::model::ModelError),
    /// Not root.
    #[error("`{0}` needs root: it mounts FUSE and sets up a loop device; run it as root")]
    NotRoot(&'static str),
    /// The machine lacks something.
    #[error("{what} is missing; {remedy}")]
    Missing {
        /// A program or a device.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// No array of that name.
    #[error("there is no array named {0}; `list` shows the arrays there are, `up` makes one")]
    Unknown(String),
    /// The array is up with other settings.
    #[error("array {0} exists with other settings ({1}); take it down first, or use another --name")]
    Differs(String, String),
    /// The array's daemon does not run.
    #[error(
        "the daemon of array {0} does not answer ({1}); `up` powers the array on again, `down` removes it"
    )]
    Dead(String, io::Error),
    /// The mount point is busy.
    #[error("{0} is in use; stop what uses it, or use `down --force`")]
    Busy(PathBuf),
    /// The daemon would not do it.
    #[error("array {0} refused: {1}")]
    Refused(String, String),
    /// An argument out of its range.
    #[error("{0}")]
    Argument(String),
    /// A helper program failed.
    #[error("`{command}` failed: {output}")]
    Program {
        /// The command line.
        command: String,
        /// Its standard error, or how it ended.
        output: String,
    },
    /// A system call failed.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was being done, to what.
        doing: String,
        /// The system's answer.
        source: io::Error,
    },
}

/// Says what was being done when an I/O error came.
pub(crate) trait Doing<T> {
    /// `doing` completes "cannot ...".
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, ArrayError>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, ArrayError> {
        self.map_err(|e| ArrayError::Io { doing: doing(), source: e.into() })
    }
}
