//! A mounted file system, which is asked for its free space and its quotas. It may not answer.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::admission::reserve::{self, FreeSpace, PATIENCE};
use crate::question::Question;

/// The mount of a file system.
#[derive(Debug)]
pub(crate) struct Mount {
    /// A directory of the file system.
    dir: OwnedFd,
    /// The free space, for the reserve of the cache.
    space: Arc<Question<Option<FreeSpace>>>,
}

impl Mount {
    pub(crate) fn new(dir: OwnedFd) -> Self {
        Mount { dir, space: Arc::default() }
    }

    /// Asks for the free space for users without privilege; `None` if there is no answer soon.
    pub(crate) fn free_space(self: &Arc<Self>) -> Option<FreeSpace> {
        let mount = self.clone();
        self.space.anew(PATIENCE, move || reserve::space(&*mount)).flatten()
    }
}

impl AsFd for Mount {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}
