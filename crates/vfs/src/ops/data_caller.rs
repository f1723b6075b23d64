//! The caller of a READ, WRITE or COMMIT, and the check of its access.

use crate::cred::Cred;

/// The check that a READ, WRITE or COMMIT needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataCheck {
    /// The mode decides, except for the owner: NFSv3 has no open, and a file that was made read-only is still written
    /// by its creator (RFC 1813 section 4.4).
    ModeUnlessOwner,
    /// The mode decides, also for the owner, as for open(2).
    Mode,
    /// Nothing is left to check: the access was granted when the file was opened.
    Granted,
}

/// The caller of a READ, WRITE or COMMIT.
#[derive(Clone, Copy)]
pub struct DataCaller<'a> {
    pub(crate) cred: &'a Cred,
    pub(crate) check: DataCheck,
    /// The arrival of a READ for which recent attributes will do.
    pub(crate) recent: Option<u64>,
}

impl<'a> DataCaller<'a> {
    /// Returns a caller whose access gets this check.
    pub fn new(cred: &'a Cred, check: DataCheck) -> Self {
        DataCaller { cred, check, recent: None }
    }

    /// Returns a caller without an open file: [`DataCheck::ModeUnlessOwner`].
    pub fn without_open(cred: &'a Cred) -> Self {
        DataCaller { cred, check: DataCheck::ModeUnlessOwner, recent: None }
    }

    /// Allows a READ that arrived at `arrived` to miss an external change of the last millisecond, if the access was
    /// granted when the file was opened. `arrived` is in nanoseconds since any moment that all requests count from.
    pub fn with_recent(self, arrived: u64) -> Self {
        let recent = (self.check == DataCheck::Granted).then_some(arrived);
        DataCaller { recent, ..self }
    }
}
