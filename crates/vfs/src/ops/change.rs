//! REMOVE, RMDIR, RENAME and LINK.

use std::sync::Arc;

use forebay_common::lock::RwLockWriteGuard;
use forebay_oplog::Bindings;
use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;
use smallvec::{SmallVec, smallvec};

use crate::attr::{Attr, Wcc};
use crate::caches::access_cache::want;
use crate::caches::change::Change;
use crate::caches::stamp::Stamp;
use crate::cred::Cred;
use crate::durability::journal::SyncRequest;
use crate::durability::request_journal::{self, LoggedReply};
use crate::error::{Error, Result};
use crate::export::Target;
use crate::export::filesystem::{Scheme, require_dir};
use crate::export::vfs::Vfs;
use crate::name::{c_name, check_name};
use crate::oplog::commit::CommitRequest;
use crate::oplog::removal::Removal;
use crate::oplog::{self, Access, Announced, Did, Pending, binding};
use crate::ops::rename_locks::{self, DirEntry, Moving, Place, Seen};
use crate::sys::{KernelHandle, proc_path};
use crate::wait::Wait;

/// The outcome of a change: the result, the attributes around it, and the commit request.
pub struct Changed<T> {
    /// The result of the operation.
    pub result: Result<T>,
    /// Attributes of the changed inode or directory around the change.
    pub wcc: Wcc,
    /// The commit request, to be durable before the reply; `None` if nothing changed.
    pub intent: Option<CommitRequest>,
}

/// The outcome of RENAME: two directories.
pub struct Renamed {
    /// The result of the operation.
    pub result: Result<()>,
    /// Around the source directory.
    pub from: Wcc,
    /// Around the target directory.
    pub to: Wcc,
    /// The commit request, to be durable before the reply.
    pub intent: Option<CommitRequest>,
}

/// The caller of a change.
struct Caller<'a> {
    cred: &'a Cred,
    /// The request, if it may not be carried out twice.
    asked: Option<&'a LoggedReply>,
}

/// A name to remove.
struct Unlinked<'a> {
    name: &'a [u8],
    /// The inode that the name leads to, if it leads to one.
    victim: Option<KernelHandle>,
    /// The flags of unlinkat(2).
    flags: AtFlags,
}

/// A directory locked for a change of its names.
pub(crate) struct Renaming<'a> {
    pub(crate) dir: &'a Target,
    _alone: Option<RwLockWriteGuard<'a, ()>>,
    stamp: Option<Stamp>,
    /// [`Filesystem::notices`](crate::export::filesystem::Filesystem::notices) from before it.
    notices: u64,
    change: Change<'a>,
}

impl<'a> Renaming<'a> {
    pub(crate) fn begin(dir: &'a Target) -> Self {
        let alone = dir.object.changing.write();
        Renaming { _alone: Some(alone), ..Self::locked(dir) }
    }

    /// Begins a change of a directory that the caller has locked, together with other directories.
    fn locked(dir: &'a Target) -> Self {
        let object = &dir.object;
        let notices = dir.export.fs.notices();
        let quiet = object.quiet();
        let change = object.begin_change();
        let stamp = change.before.ok().zip(quiet).map(|(attr, changes)| Stamp { ctime: attr.ctime, changes });
        Renaming { dir, _alone: None, stamp, notices, change }
    }

    /// Returns the directory's attributes before the change.
    pub(crate) fn before(&self) -> Result<Attr> {
        self.change.before.or_else(|_| self.dir.attr())
    }

    /// Returns the log's description of the directory after the change.
    pub(crate) fn logged(&self) -> Option<oplog::LoggedObject> {
        oplog::object(&self.dir.object, &self.change.after()?, None, Access::Kept)
    }

    /// Ends the change; if it was `done`, the names in `changed` now lead elsewhere.
    pub(crate) fn end(self, done: bool, changed: &[(&[u8], Option<KernelHandle>)]) -> Wcc {
        let changed = if done { changed } else { &[] };
        let wcc = self.change.end();
        let after = wcc.after.as_ref().and_then(|attr| self.dir.object.stamp(attr));
        // Under a coarse ctime a later external change could go unnoticed. Then no name is carried over.
        if let (Some(from), Some(to), Some(names)) = (self.stamp, after, &self.dir.object.names)
            && self.dir.export.fs.fine_times
        {
            let fs = &self.dir.export.fs;
            let child =
                |kernel: &Option<KernelHandle>| kernel.map(|kernel| fs.child_since(kernel, self.notices));
            let changed: SmallVec<[_; 2]> =
                changed.iter().map(|(name, kernel)| (*name, child(kernel))).collect();
            names.lock().carry(from, to, &changed);
        }
        wcc
    }
}

impl Vfs {
    /// Removes the name of anything but a directory.
    pub fn remove(&self, dir: &Target, name: &[u8], cred: &Cred, asked: Option<&LoggedReply>) -> Changed<()> {
        if let Err(error) = changeable(dir, name) {
            return Changed { result: Err(error), wcc: self.wcc_of(dir), intent: None };
        }
        let renaming = Renaming::begin(dir);
        let victim = dir.export.fs.handle_at(&dir.object, &c_name(name)).ok();
        self.unlink(renaming, Unlinked { name, victim, flags: AtFlags::empty() }, Caller { cred, asked })
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: &Target, name: &[u8], cred: &Cred, asked: Option<&LoggedReply>) -> Changed<()> {
        let failed = |error| Changed { result: Err(error), wcc: self.wcc_of(dir), intent: None };
        match name {
            b"." => return failed(Error::INVALID),
            b".." => return failed(Error::Os(Errno::EXIST)),
            _ => {}
        }
        if let Err(error) = changeable(dir, name) {
            return failed(error);
        }
        loop {
            let seen = match Place::look(dir, name) {
                Ok(seen) => seen,
                Err(error) => return failed(error),
            };
            match rename_locks::lock_removal(dir, name, &seen) {
                Ok(Some((_locked, victim))) => {
                    let unlinked = Unlinked { name, victim, flags: AtFlags::REMOVEDIR };
                    return self.unlink(Renaming::locked(dir), unlinked, Caller { cred, asked });
                }
                Ok(None) => {}
                Err(error) => return failed(error),
            }
        }
    }

    /// Removes a name of a directory.
    fn unlink(&self, renaming: Renaming<'_>, unlinked: Unlinked<'_>, caller: Caller<'_>) -> Changed<()> {
        let Unlinked { name, victim, flags } = unlinked;
        let Caller { cred, asked } = caller;
        let dir = renaming.dir;
        let bindings: Bindings = [binding(&dir.object, name, victim, None)].into_iter().collect();
        // The link count changes, so attributes seen under its other names are outdated.
        let fs = &dir.export.fs;
        let mut removal = victim.and_then(|victim| Removal::begin(fs, victim));
        let changing = victim.as_ref().map(|victim| (fs.versions.change(victim), fs.own_change_of(victim)));
        let request = fs.under_way(bindings.clone(), asked.filter(|_| victim.is_some()));
        // Until its descriptor is closed, if that is the last thing that keeps it.
        let inside = fs.removing.enter();
        let result = renaming.before().and_then(|_| {
            let _acting = self.act_as(cred)?;
            Ok(rustix::fs::unlinkat(dir.object.path(), name, flags)?)
        });
        let request = request.and_then(|request| request.carried_out(result.is_ok()));
        drop(changing);
        let intent = result.is_ok().then(|| {
            let objects = renaming.logged().into_iter().collect();
            let did = Did { bindings, objects, request, ..Did::default() };
            metadata(&[dir], fs.changed(fs.way(), did))
        });
        let wcc = renaming.end(result.is_ok(), &[(name, None)]);
        let gone = self.forget_if_gone(dir, victim);
        drop(inside);
        let intent = intent.map(|intent| {
            let removal = removal.take().map(|removal| removal.carried_out(gone));
            CommitRequest { removal, ..intent }
        });
        Changed { result, wcc, intent }
    }

    /// Renames within one export (RFC 1813 section 3.3.14).
    pub fn rename(
        &self,
        from: &Target,
        from_name: &[u8],
        to: &Target,
        to_name: &[u8],
        cred: &Cred,
        asked: Option<&LoggedReply>,
    ) -> Renamed {
        let refused = require_dir(&to.object)
            .and_then(|()| changeable(from, from_name))
            .and_then(|()| changeable(to, to_name))
            .and_then(|()| match [from_name, to_name].iter().any(|name| matches!(*name, b"." | b"..")) {
                true => Err(Error::INVALID),
                false => Ok(()),
            })
            .and_then(|()| match from.export.id == to.export.id {
                true => Ok(()),
                false => Err(Error::Os(Errno::XDEV)),
            });
        let failed = |error| {
            let (from, to) = (self.wcc_of(from), self.wcc_of(to));
            Renamed { result: Err(error), from, to, intent: None }
        };
        if let Err(error) = refused {
            return failed(error);
        }
        let (from, to) = (DirEntry { dir: from, name: from_name }, DirEntry { dir: to, name: to_name });
        let mut seen = Seen::default();
        loop {
            let now = match seen.lock(&from.dir.export.fs, from, to) {
                Ok(Ok(moving)) => return self.rename_locked(from, to, Caller { cred, asked }, moving),
                Ok(Err(now)) => now,
                Err(error) => return failed(error),
            };
            seen = now;
        }
    }

    fn rename_locked(
        &self,
        DirEntry { dir: from, name: from_name }: DirEntry<'_>,
        DirEntry { dir: to, name: to_name }: DirEntry<'_>,
        Caller { cred, asked }: Caller<'_>,
        locked: Moving<'_>,
    ) -> Renamed {
        let fs = &from.export.fs;
        let (victim, moved) = (locked.victim, locked.moved);
        let first = Renaming::locked(from);
        let second = (from.object.kernel != to.object.kernel).then(|| Renaming::locked(to));
        let changing = [&victim, &moved].map(|kernel| {
            let kernel = kernel.as_ref()?;
            Some((fs.versions.change(kernel), fs.own_change_of(kernel)))
        });
        let mut removal = victim.and_then(|victim| Removal::begin(fs, victim));
        let way = fs.way();
        // Else rename(2) will refuse, or has nothing to do.
        let moves = moved.is_some() && victim != moved;
        let mut bindings = Bindings::new();
        if moves {
            bindings.push(binding(&from.object, from_name, moved, None));
            bindings.push(binding(&to.object, to_name, victim, moved));
        }
        let request = fs.under_way(bindings.clone(), asked.filter(|_| moves));
        let mut announced = None;
        let both = first.before().and(second.as_ref().map_or(Ok(()), |second| second.before().map(drop)));
        let result = both.and_then(|()| {
            if moves {
                announced = fs.announce(way, [from.object.kernel, to.object.kernel])?;
            }
            announced.as_ref().map_or(Ok(()), Announced::say)?;
            let _acting = self.act_as(cred)?;
            Ok(rustix::fs::renameat(from.object.path(), from_name, to.object.path(), to_name)?)
        });
        drop(changing);
        let done = result.is_ok();
        let request = request.and_then(|request| request.carried_out(done));
        if let (true, Some(moved), Scheme::DentryCache(locator)) = (done, &moved, &from.export.fs.scheme) {
            locator.learn(moved, &to.object.kernel, to_name);
        }
        let intent = done.then(|| {
            let objects =
                first.logged().into_iter().chain(second.as_ref().and_then(Renaming::logged)).collect();
            let did = Did { bindings, objects, request, ..Did::default() };
            let pending = match announced.take() {
                Some(announced) => fs.carried_out(announced, did),
                None => fs.changed(way, did),
            };
            metadata(&[from, to], pending)
        });
        let (from_wcc, to_wcc) = match second {
            Some(second) => {
                let to_wcc = second.end(done, &[(to_name, moved)]);
                (first.end(done, &[(from_name, None)]), to_wcc)
            }
            None => {
                let wcc = first.end(done, &[(from_name, None), (to_name, moved)]);
                (wcc, wcc)
            }
        };
        drop(locked);
        // The announcement of a rename that failed. In the closure it would be dropped before the locks are.
        drop(announced);
        let gone = self.forget_if_gone(to, victim);
        let intent = intent.map(|intent| {
            let removal = removal.take().map(|removal| removal.carried_out(gone));
            CommitRequest { removal, ..intent }
        });
        Renamed { result, from: from_wcc, to: to_wcc, intent }
    }

    /// Gives the target another name; returns its attributes after that, if it still has any.
    pub fn link(
        &self,
        target: &Target,
        dir: &Target,
        name: &[u8],
        cred: &Cred,
        asked: Option<&LoggedReply>,
    ) -> Changed<Option<Attr>> {
        let refused = changeable(dir, name).and_then(|()| {
            match (target.export.id == dir.export.id, target.object.is_dir()) {
                (false, _) => Err(Error::Os(Errno::XDEV)),
                (_, true) => Err(Error::PERM),
                _ => Ok(()),
            }
        });
        if let Err(error) = refused {
            return Changed { result: Err(error), wcc: self.wcc_of(dir), intent: None };
        }
        // A directory before its files, as everywhere.
        let renaming = Renaming::begin(dir);
        let _alone = target.object.changing.write();
        let linked = target.object.begin_change();
        let fs = &target.export.fs;
        let own = fs.own_change(&target.object);
        let kernel = Some(target.object.kernel);
        let bindings: Bindings = [binding(&dir.object, name, None, kernel)].into_iter().collect();
        let request =
            fs.under_way(bindings.clone(), asked.filter(|_| request_journal::is_free(&dir.object, name)));
        // The server itself makes the link: a caller who may change the directory may link a file of another user, as
        // over any NFS server.
        let result = renaming
            .before()
            .and_then(|attr| self.require(dir, cred, &attr, want::WRITE | want::EXECUTE, Wait::Yes))
            .and_then(|()| {
                let mut path = [0; 32];
                let path = proc_path(&mut path, target.object.path());
                Ok(rustix::fs::linkat(CWD, path, dir.object.path(), name, AtFlags::SYMLINK_FOLLOW)?)
            });
        drop(own);
        let request = request.and_then(|request| request.carried_out(result.is_ok()));
        let intent = result.is_ok().then(|| {
            let objects = renaming.logged().into_iter().chain(oplog::objects(&[&target.object])).collect();
            let did = Did { bindings, objects, request, ..Did::default() };
            metadata(&[dir, target], fs.changed(fs.way(), did))
        });
        let wcc = renaming.end(result.is_ok(), &[(name, kernel)]);
        let after = linked.end().after;
        Changed { result: result.map(|()| after), wcc, intent }
    }

    /// Attributes around an operation that did not happen.
    pub(crate) fn wcc_of(&self, target: &Target) -> Wcc {
        let attr = target.object.attr().ok();
        Wcc { before: attr, after: attr }
    }

    /// Forgets an inode whose last link was removed, so that its space is freed and its handle is stale. Returns the
    /// cache's entry for the inode, to be forgotten when the removal is durable.
    pub(crate) fn forget_if_gone(
        &self,
        dir: &Target,
        victim: Option<KernelHandle>,
    ) -> Option<Arc<forebay_engine::CachedObject>> {
        let (kernel, fs) = (victim?, &dir.export.fs);
        if fs.aliases.has(&kernel) && fs.is_gone(&kernel) {
            // Left behind, it is removed at the next start.
            let _ = fs.aliases.remove(&kernel);
        }
        let known = match fs.inodes.get(&kernel) {
            Some(object) => Some(object),
            // The file is not open, but the cache may hold some of it. Without kernel handles the whole tree would have
            // to be searched for it, so its cached blocks are left to age.
            None if matches!(fs.scheme, Scheme::DentryCache(_)) => {
                let linked = fs.linked()?;
                linked
                    .cache
                    .engine
                    .known(&linked.key(&kernel))
                    .inspect(|known| linked.cache.leaves(known.key()));
                return None;
            }
            None => {
                let linked = fs.linked()?;
                let cached = linked.cache.engine.known(&linked.key(&kernel))?;
                match fs.resolve(&kernel, true) {
                    Err(Error::Stale) => return Some(cached),
                    found => found.ok(),
                }
            }
        };
        let object = known.filter(|object| object.raw_attr() == Err(Error::Stale))?;
        fs.inodes.forget(&object);
        object.link.get().cloned()
    }
}

/// Fails unless this server lets clients change the inode that a name leads to.
pub(crate) fn changeable(dir: &Target, name: &[u8]) -> Result<()> {
    require_dir(&dir.object)?;
    check_name(name)?;
    dir.export.fs.can_change()?;
    if dir.export.fs.is_private(&dir.object.kernel, name) { Err(Error::ACCESS) } else { Ok(()) }
}

/// Returns the commit request of a change to names or attributes of these inodes.
pub(crate) fn metadata(targets: &[&Target], pending: Option<Box<Pending>>) -> CommitRequest {
    let mut metadata: SmallVec<[_; 3]> = smallvec![];
    metadata.extend(targets.iter().map(|target| target.object.clone()));
    let sync = SyncRequest { metadata, ..SyncRequest::default() };
    CommitRequest { sync, pending, ..CommitRequest::default() }
}
