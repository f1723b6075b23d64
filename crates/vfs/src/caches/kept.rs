//! The identities of kept files: removed files that clients have open. Each has one name left, which clients do not
//! see.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_common::lock::RwLock;

use crate::sys::KernelHandle;

/// The kept files of one file system.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// True once there was one, so that most servers look no further.
    any: AtomicBool,
    files: RwLock<HashSet<KernelHandle, foldhash::fast::RandomState>>,
}

impl Kept {
    /// Returns true if the file with this identity has a name that clients do not see.
    pub(crate) fn has(&self, file: &KernelHandle) -> bool {
        self.any.load(Ordering::Acquire) && self.files.read().contains(file)
    }

    /// Adds a kept file.
    pub(crate) fn insert(&self, file: KernelHandle) {
        self.files.write().insert(file);
        self.any.store(true, Ordering::Release);
    }

    pub(crate) fn remove(&self, file: &KernelHandle) {
        self.files.write().remove(file);
    }
}
