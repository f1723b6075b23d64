//! External changes while a server runs, told from the server's own changes by change times.
//!
//! Invariant: every action of this server that moves the change time of a file known to the engine happens while an
//! [`Own`] of the file lives.
//!
//! An `Own` reads the change time before and after the server's change. An external change between the two reads does
//! not show in the change time. If the kernel reports changes ([`crate::coherence::watch`]), its report makes the file
//! suspect.

use std::sync::Arc;

use forebay_engine::{CachedObject as Cached, Version};
use forebay_runtime::block_on;

use crate::attr::Attr;
use crate::caches::inode::Inode;
use crate::caches::overlay::{Undestaged, number};
use crate::caches::versions::Changing;
use crate::error::{Result, from_cache};
use crate::export::cache::Linked;
use crate::export::filesystem::Filesystem;
use crate::sys::KernelHandle;

/// A change of a file by this server, in progress.
pub(crate) struct Own<'a> {
    linked: &'a Linked,
    object: Arc<Inode>,
    cached: Arc<Cached>,
    /// The file's change time before the change, and the change time that clients saw. `None` if clients are not to see
    /// the change.
    before: Option<(u64, u64)>,
    /// The file system whose queue is to be read when the change ends, if the kernel reports external changes. A thread
    /// reads the queue soon anyway.
    told: Option<&'a Filesystem>,
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        let version = || self.linked.version(&self.object);
        match self.before {
            Some((from, shown)) => self.cached.end_own(version, from, shown),
            None => self.cached.end_hidden(version),
        }
        if let Some(fs) = self.told {
            fs.catch_up();
        }
    }
}

impl Linked {
    /// Returns the state of the backing file. Every change gives it another number, unless the change comes within one
    /// tick of a coarse clock.
    pub(super) fn version(&self, object: &Inode) -> Option<Version> {
        let attr = object.raw_attr().ok()?;
        let unwatched = self.cache.downtime.covers(self.number(), attr.backing_ctime);
        let since_start = attr.backing_ctime > self.cache.began;
        Some(Version { number: number(attr.backing_ctime), unwatched, since_start })
    }

    /// Checks for an external change of the file, whose attributes were just read.
    pub(crate) fn look(&self, object: &Inode, attr: &Attr) {
        if let Some(cached) = object.link.get().filter(|cached| !cached.is_seen(number(attr.backing_ctime))) {
            // Again, since a change of this server's own may have ended in between.
            cached.look(|| self.version(object));
        }
    }

    /// Drops the cached blocks of a file if the backing store has all its contents. Returns false if it has not. No
    /// thread may change the file through this server meanwhile.
    pub(crate) fn forget(&self, object: &Inode, cached: &Arc<Cached>) -> Result<bool> {
        let attr = object.raw_attr()?;
        let changed = self.cache.engine.changed_outside(cached, attr.size, number(attr.backing_ctime));
        block_on(changed).map_err(from_cache)
    }
}

impl Filesystem {
    /// Announces a change of the file, or of its change time, by the server. The change lasts until the result is
    /// dropped.
    pub(crate) fn own_change(&self, object: &Arc<Inode>) -> Option<Own<'_>> {
        let linked = self.linked()?;
        let cached = object.link.get()?.clone();
        let attr = object.attr().ok()?;
        let before = Some((number(attr.backing_ctime), number(attr.ctime)));
        cached.begin_own(|| linked.version(object));
        Some(Own { linked, object: object.clone(), cached, before, told: Some(self) })
    }

    /// Announces a client's write to the file, like [`Filesystem::own_change`] but without its system call at the end.
    /// An external change at that moment is noticed within 50 ms.
    pub(crate) fn own_write(&self, object: &Arc<Inode>) -> Option<Own<'_>> {
        let mut own = self.own_change(object)?;
        own.told = None;
        Some(own)
    }

    /// Announces a change by the engine, which clients saw already when they made it.
    pub(crate) fn hidden_change(&self, object: &Arc<Inode>) -> Option<Own<'_>> {
        let linked = self.linked()?;
        let cached = object.link.get()?.clone();
        let shown = number(object.attr().ok()?.ctime);
        cached.begin_hidden(|| linked.version(object), shown);
        Some(Own { linked, object: object.clone(), cached, before: None, told: Some(self) })
    }

    /// Announces a change of a file that need not be in the inode cache.
    pub(crate) fn own_change_of(&self, kernel: &KernelHandle) -> Option<Own<'_>> {
        let linked = self.linked()?;
        match self.inodes.get(kernel) {
            Some(object) => self.own_change(&object),
            None => {
                // The attributes are read again at the next request for them.
                linked.cache.engine.known(&linked.key(kernel))?.changed_unseen();
                None
            }
        }
    }
}

/// A change of an inode by one of its names, in progress: the number of its links or the name itself changes.
pub(crate) struct NamedChange<'a> {
    /// The inode and its attributes before the change, if it is in the inode cache.
    object: Option<(Arc<Inode>, Option<Attr>)>,
    done: bool,
    own: Option<Own<'a>>,
    _version: Changing<'a>,
}

impl NamedChange<'_> {
    /// Ends a change that was carried out. The change time that clients see of the inode grows.
    pub(crate) fn made(mut self) {
        self.done = true;
    }
}

impl Drop for NamedChange<'_> {
    fn drop(&mut self) {
        self.own = None;
        if let Some((object, before)) = &self.object {
            object.end_named(*before, self.done);
        }
    }
}

impl Filesystem {
    /// Begins a change of an inode by one of its names. It ends when the result is dropped.
    pub(crate) fn named_change(&self, kernel: &KernelHandle) -> NamedChange<'_> {
        let _version = self.versions.change(kernel);
        let object = self.inodes.get(kernel).map(|object| {
            let before = object.begin_named();
            (object, before)
        });
        NamedChange { object, done: false, own: self.own_change_of(kernel), _version }
    }
}

/// Drops the engine's data of a file that an external change modified, if one did.
pub(crate) fn refresh(linked: &Linked, object: &Inode, cached: &Arc<Cached>) -> Result<()> {
    let _alone = object.changing.write();
    let grown = Undestaged::of(cached).is_none() && cached.size() != object.raw_attr()?.size;
    if grown || cached.is_suspect() {
        linked.forget(object, cached)?;
    }
    Ok(())
}
