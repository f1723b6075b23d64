//! Errors of the array's verbs.

use std::io;
use std::path::PathBuf;

/// The reason why a command on an array failed. Each text names the failure, the thing concerned, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ArrayError {
    /// The model cannot be used.
    #[error(transparent)]
    Model(#[from] crate::model::ModelError),
    /// The caller is not root.
    #[error("`{0}` needs root: it mounts FUSE and sets up a loop device; run it as root")]
    NotRoot(&'static str),
    /// The machine lacks a program or a device.
    #[error("{what} is missing; {remedy}")]
    Missing {
        /// The program or device.
        what: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// There is no array of that name.
    #[error("there is no array named {0}; `list` shows the arrays there are, `up` makes one")]
    Unknown(String),
    /// The array is up, but with other settings.
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
    /// The daemon refused a request.
    #[error("array {0} refused: {1}")]
    Refused(String, String),
    /// An argument is out of its range.
    #[error("{0}")]
    Argument(String),
    /// A helper program failed.
    #[error("`{command}` failed: {output}")]
    Program {
        /// The command line.
        command: String,
        /// The standard error of the program, or its exit status.
        output: String,
    },
    /// A system call failed.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The operation and its object.
        doing: String,
        /// The error of the system.
        source: io::Error,
    },
}

/// Adds the operation in progress to an I/O error.
pub(crate) trait Doing<T> {
    /// Converts the error to an [`ArrayError`]. The text of `doing` completes the sentence "cannot ...".
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, ArrayError>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, ArrayError> {
        self.map_err(|e| ArrayError::Io { doing: doing(), source: e.into() })
    }
}
