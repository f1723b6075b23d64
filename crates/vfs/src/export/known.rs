//! The cached facts about the inodes of a file system: kept when an inode leaves the inode cache, and dropped after an
//! external change.

use std::sync::atomic::Ordering;

use forebay_metalog::Makers;
use rustix::fs::FileType;

use crate::attr::Attr;
use crate::caches::access_cache::Classes;
use crate::caches::attr_cache::record::CachedAttr;
use crate::caches::dentry_cache::Child;
use crate::caches::inode::Inode;
use crate::caches::overlay::Overlay;
use crate::caches::versions::Version;
use crate::coherence::watch::Notice;
use crate::export::filesystem::Filesystem;
use crate::sys::KernelHandle;
use crate::wait::Wait;

impl Filesystem {
    /// Keeps the cached facts about an inode that has left the inode cache.
    pub(super) fn remember(&self, object: &Inode) {
        if self.watch.is_none() || object.is_dir() {
            return;
        }
        let kernel = &object.kernel;
        let version = self.versions.of(kernel);
        // The link of the inode is not used here. The inode may have entered the inode cache again, and the cache,
        // since it left.
        let overlay = self.overlay(kernel);
        let recorded = self.making.have_ended(object.made_by.get());
        let destaged = overlay.as_ref().is_none_or(Overlay::is_destaged);
        let look = object.look();
        match (version.filter(|_| recorded && destaged), object.raw_attr()) {
            (Some(version), Ok(attr)) => {
                let verdicts = object.verdicts(&attr);
                let attr = overlay.map_or(attr, |overlay| overlay.over(attr));
                let attr = object.show(look, attr);
                self.versions.learn(kernel, CachedAttr { attr, verdicts }, version);
            }
            // Facts kept from before the inode entered the inode cache are older.
            _ => self.versions.forget(kernel),
        }
    }

    /// Caches attributes that were just read, under `version`, of an inode that is not in the inode cache. The backing
    /// store knew all its changes.
    pub(crate) fn cache_attr(&self, kernel: &KernelHandle, attr: &Attr, version: Version) {
        // Nobody may see an inode before the record that made it is in the log.
        let recorded = self.linked.get().is_none() || self.making.makers() == Makers::Earlier;
        if self.watch.is_some() && recorded && attr.kind != FileType::Directory {
            self.versions.learn(kernel, CachedAttr { attr: *attr, verdicts: Classes::default() }, version);
        }
    }

    /// Answers about an inode that is not in the inode cache, without asking the file system. Returns `None` if not
    /// enough is known.
    /// A request that may not wait comes again if this fails: it counts then.
    pub(crate) fn known<T>(
        &self,
        kernel: &KernelHandle,
        wait: Wait,
        answer: impl FnOnce(&CachedAttr) -> Option<T>,
    ) -> Option<T> {
        let known = if self.catch_up() { self.versions.known(kernel) } else { None };
        let answered = known.and_then(|known| answer(&known));
        let counters = self.budget.known();
        if answered.is_some() {
            counters.hits.fetch_add(1, Ordering::Relaxed);
        } else if !wait.allowed() {
            counters.misses.fetch_add(1, Ordering::Relaxed);
        }
        answered
    }

    /// Acts on all external changes up to now. Returns false if the kernel does not report them, or if there are too
    /// many.
    pub(crate) fn catch_up(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.catch_up(|notice| self.take_notice(notice)))
    }

    /// Returns the number of external changes that the server has noticed.
    pub(crate) fn notices(&self) -> u64 {
        self.watch.as_ref().map_or(0, |watch| watch.notices())
    }

    /// Returns the child that a name leads to, with its version. The name was looked up after `notices` had been the
    /// value of [`Filesystem::notices`]. The version counts only if no external change was noticed since: it is older
    /// than every such change of the child.
    pub(crate) fn child_since(&self, kernel: KernelHandle, notices: u64) -> Child {
        let version = self.watch.as_ref().and_then(|_| self.versions.of(&kernel));
        Child { kernel, version: version.filter(|_| self.notices() == notices) }
    }

    /// Drops the cached facts that the kernel's report makes outdated.
    fn take_notice(&self, notice: Notice) {
        match notice {
            Notice::Own => {}
            Notice::Changed { kernel, contents, own } => self.changed_behind(&kernel, contents, own),
            Notice::Anything => {
                self.anything_changed();
                self.tell(None);
            }
        }
    }

    /// Tells the server of an external change of a file, or of any file.
    fn tell(&self, kernel: Option<&KernelHandle>) {
        if let Some(listener) = self.listener.get() {
            listener(kernel);
        }
    }

    /// Drops the cached facts about an inode after an external change.
    fn changed_behind(&self, inner: &KernelHandle, contents: bool, own: bool) {
        if let Some(kernel) = self.aliases.outer_if_met(inner) {
            drop(self.versions.change(&kernel));
            if contents {
                self.contents_changed(&kernel);
            }
            if !own {
                self.tell(Some(&kernel));
            }
        }
    }

    /// Marks the contents of a file as changed externally, after the kernel's report.
    pub(crate) fn contents_changed(&self, kernel: &KernelHandle) {
        if let Some(linked) = self.linked()
            && let Some(cached) = linked.cache.engine.known(&linked.key(kernel))
        {
            cached.changed_by_others();
        }
    }

    /// Forgets the cached facts about an inode, so that they are read again.
    pub(crate) fn forget_known(&self, kernel: &KernelHandle) {
        drop(self.versions.change(kernel));
        if let Some(object) = self.inodes.get(kernel) {
            object.forget_known();
        }
    }

    /// Drops all cached facts, since any of them may be outdated by an external change.
    pub(crate) fn anything_changed(&self) {
        self.versions.change_all();
    }
}
