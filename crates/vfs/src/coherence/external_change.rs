//! Changes made in a served directory by others while a server runs, told from the server's own by change times.
//!
//! Invariant: whatever this server does that moves the change time of a file that the engine knows is done while an
//! [`Own`] of it lives.
//!
//! The change time does not show a change by others between the two looks of an `Own`, before and after. The kernel tells of
//! it, where it tells of changes ([`crate::coherence::watch`]): then the file is suspect.

use std::sync::Arc;

use forebay_disk::block_on;
use forebay_engine::{Object as Cached, Version};

use crate::attr::Attr;
use crate::backing::cache::{Link, Linked, from_cache};
use crate::caches::inode::Inode;
use crate::error::Result;
use crate::export::Target;
use crate::export::filesystem::Filesystem;
use crate::ops::overlay::{Unsettled, number};
use crate::sys::KernelHandle;

/// A change of a file by this server, under way.
pub(crate) struct Own<'a> {
    linked: &'a Linked,
    object: Arc<Inode>,
    cached: Arc<Cached>,
    /// The file's change time before it, and the one that clients saw; `None` if they are not to see the change.
    before: Option<(u64, u64)>,
    /// Where the kernel tells of changes by others, if the queue is to be read when this one ends. A thread reads it soon anyway.
    told: Option<&'a Filesystem>,
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        let version = || self.linked.version(&self.object);
        match self.before {
            Some((from, shown)) => self.cached.end_own(version, from, shown),
            None => self.cached.end_hidden(version),
        }
        if let Some(fs) = self.told
            && let Some(watch) = &fs.watch
        {
            watch.catch_up(fs);
        }
    }
}

impl Linked {
    /// The state of the backing file. Every change gives it another number, unless it comes within the same tick of a
    /// coarse clock.
    fn version(&self, object: &Inode) -> Option<Version> {
        let attr = object.raw_attr().ok()?;
        let unwatched = self.cache.downtime.covers(self.number(), attr.backing_ctime);
        Some(Version { number: number(attr.backing_ctime), unwatched })
    }

    /// Looks whether others have changed the file, whose attributes were just read.
    pub(crate) fn look(&self, object: &Inode, attr: &Attr) {
        if let Some(cached) = object.link.get().filter(|cached| !cached.is_seen(number(attr.backing_ctime))) {
            // Again, since a change of this server's own may have ended in between.
            cached.look(|| self.version(object));
        }
    }

    /// Drops what is cached of a file, whose contents the backing store has; false if it has not. Nobody may change it
    /// through this server meanwhile.
    pub(crate) fn forget(&self, object: &Inode, cached: &Arc<Cached>) -> Result<bool> {
        let attr = object.raw_attr()?;
        let changed = self.cache.engine.changed_outside(cached, attr.size, number(attr.backing_ctime));
        block_on(changed).map_err(from_cache)
    }
}

impl Link {
    /// Whether [`refresh`] has to be called before contents are read or written: others have changed the file. Not while
    /// it has contents that only the cache has; those win.
    pub(crate) fn is_suspect(&self) -> bool {
        self.get().is_some_and(|cached| cached.is_suspect() && Unsettled::of(cached).is_none())
    }
}

impl Filesystem {
    /// The server begins to change the file, or its change time; until the result is dropped.
    pub(crate) fn own_change(&self, object: &Arc<Inode>) -> Option<Own<'_>> {
        let linked = self.linked()?;
        let cached = object.link.get()?.clone();
        let attr = object.attr().ok()?;
        let before = Some((number(attr.backing_ctime), number(attr.ctime)));
        cached.begin_own(|| linked.version(object));
        Some(Own { linked, object: object.clone(), cached, before, told: Some(self) })
    }

    /// The server begins to write to the file for a client. The same as [`Filesystem::own_change`] without its system call at
    /// the end: a change by others at that moment is noticed within 50 ms.
    pub(crate) fn own_write(&self, object: &Arc<Inode>) -> Option<Own<'_>> {
        let mut own = self.own_change(object)?;
        own.told = None;
        Some(own)
    }

    /// Others have changed the contents of a file: so the kernel tells.
    pub(crate) fn contents_changed(&self, kernel: &KernelHandle) {
        if let Some(linked) = self.linked()
            && let Some(cached) = linked.cache.engine.known(&linked.key(kernel))
        {
            cached.changed_by_others();
        }
    }

    /// The same for what the engine does to the file: clients saw that when they did it.
    pub(crate) fn hidden_change(&self, object: &Arc<Inode>) -> Option<Own<'_>> {
        let linked = self.linked()?;
        let cached = object.link.get()?.clone();
        let shown = number(object.attr().ok()?.ctime);
        cached.begin_hidden(|| linked.version(object), shown);
        Some(Own { linked, object: object.clone(), cached, before: None, told: Some(self) })
    }

    /// The same for a file that need not be in the table.
    pub(crate) fn own_change_of(&self, kernel: &KernelHandle) -> Option<Own<'_>> {
        let linked = self.linked()?;
        match self.inodes.get(kernel) {
            Some(object) => self.own_change(&object),
            None => {
                // Learnt anew when it is asked for next.
                linked.cache.engine.known(&linked.key(kernel))?.changed_unseen();
                None
            }
        }
    }
}

/// Drops what the engine knows of a file that was changed behind its back, if it was.
pub(crate) fn refresh(linked: &Linked, target: &Target, cached: &Arc<Cached>) -> Result<()> {
    let _alone = target.object.changing.write();
    let grown = Unsettled::of(cached).is_none() && cached.size() != target.object.raw_attr()?.size;
    if grown || cached.is_suspect() {
        linked.forget(&target.object, cached)?;
    }
    Ok(())
}
