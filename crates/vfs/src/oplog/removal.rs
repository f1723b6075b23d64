//! A removal of a name. The cache forgets a file only after its last name is removed, while no other removal of its
//! names is in progress.

use std::sync::Arc;

use forebay_engine::CachedObject as Cached;

use crate::export::filesystem::Filesystem;
use crate::sys::KernelHandle;

/// The removal of a name. It ends when this is dropped: well, if it was not carried out or [`Removal::durable`].
pub(crate) struct Removal {
    fs: Arc<Filesystem>,
    victim: KernelHandle,
    sure: bool,
}

impl Removal {
    /// Begins the removal of a name of `victim`. Returns `None` if there is no cache.
    pub(crate) fn begin(fs: &Arc<Filesystem>, victim: KernelHandle) -> Option<Self> {
        fs.linked()?;
        fs.removals.lock().begin(victim);
        Some(Removal { fs: fs.clone(), victim, sure: true })
    }

    /// Notes that the name was removed. `gone` is the cache's object of the file, if the file has no name any more.
    pub(crate) fn carried_out(mut self, gone: Option<Arc<Cached>>) -> Self {
        self.sure = false;
        if let Some(gone) = gone {
            if let Some(linked) = self.fs.linked() {
                linked.cache.leaves(gone.key());
            }
            self.fs.removals.lock().gone(self.victim, gone);
        }
        self
    }

    /// Notes that the removal survives a crash.
    pub(crate) fn durable(mut self) {
        self.sure = true;
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        let gone = self.fs.removals.lock().end(self.victim, self.sure);
        if let Some((gone, linked)) = gone.zip(self.fs.linked()) {
            linked.cache.forget(gone);
        }
    }
}
