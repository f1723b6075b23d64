//! The permission to wait for a disk.

/// The permission of an operation to wait for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Fail with [`Error::WouldBlock`](crate::Error::WouldBlock) instead.
    No,
    /// Take as long as it takes.
    Yes,
}

impl Wait {
    pub(crate) fn allowed(self) -> bool {
        self == Wait::Yes
    }
}
