//! REMOVE and RMDIR.

use std::sync::Arc;

use forebay_oplog::Bindings;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::cred::Cred;
use crate::durability::request_journal::LoggedReply;
use crate::error::Error;
use crate::export::Target;
use crate::export::filesystem::Scheme;
use crate::export::vfs::Vfs;
use crate::name::c_name;
use crate::oplog::commit::CommitRequest;
use crate::oplog::removal::Removal;
use crate::oplog::{ChangeEffects, binding};
use crate::ops::change::{Caller, Changed, Renaming, changeable, metadata};
use crate::ops::keep::{Keep, Keeping, KeptDir, logged_dir, with_dir};
use crate::ops::rename_locks::{self, Place};
use crate::sys::KernelHandle;

/// A name to remove.
struct Unlinked<'a> {
    name: &'a [u8],
    /// The inode that the name leads to, if it leads to one.
    victim: Option<KernelHandle>,
    /// The flags of unlinkat(2).
    flags: AtFlags,
    keep: Option<Keep<'a>>,
}

impl Vfs {
    /// Removes the name of anything but a directory.
    pub fn remove(&self, dir: &Target, name: &[u8], cred: &Cred, asked: Option<&LoggedReply>) -> Changed<()> {
        if let Err(error) = changeable(dir, name) {
            return Changed { result: Err(error), wcc: self.wcc_of(dir), intent: None };
        }
        let (fs, place) = (&dir.export.fs, c_name(name));
        let mut kept_dir = KeptDir::default();
        loop {
            let locked = rename_locks::lock_two(&dir.object, kept_dir.there());
            let victim = fs.handle_at(&dir.object, &place).ok();
            let losing = self.losing(fs, victim);
            if losing.is_open() && kept_dir.is_unasked() {
                drop((locked, losing));
                kept_dir = KeptDir::ask(fs);
                continue;
            }
            let keep = Keep::of(&kept_dir, &losing)
                .filter(|_| victim.is_some_and(|file| self.may_unlink(dir, &file, cred)));
            let unlinked = Unlinked { name, victim, flags: AtFlags::empty(), keep };
            return self.unlink(Renaming::locked(dir), unlinked, Caller { cred, asked });
        }
    }

    /// Removes the name of a file that no client has open.
    pub(crate) fn unlink_file(
        &self,
        renaming: Renaming<'_>,
        name: &[u8],
        victim: Option<KernelHandle>,
        caller: Caller<'_>,
    ) -> Changed<()> {
        self.unlink(renaming, Unlinked { name, victim, flags: AtFlags::empty(), keep: None }, caller)
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
                    let unlinked = Unlinked { name, victim, flags: AtFlags::REMOVEDIR, keep: None };
                    return self.unlink(Renaming::locked(dir), unlinked, Caller { cred, asked });
                }
                Ok(None) => {}
                Err(error) => return failed(error),
            }
        }
    }

    /// Removes a name of a directory.
    fn unlink(&self, renaming: Renaming<'_>, unlinked: Unlinked<'_>, caller: Caller<'_>) -> Changed<()> {
        let Unlinked { name, victim, flags, keep } = unlinked;
        let Caller { cred, asked } = caller;
        let dir = renaming.dir;
        let mut bindings: Bindings = [binding(&dir.object, name, victim, None)].into_iter().collect();
        // The link count changes, so attributes seen under its other names are outdated.
        let fs = &dir.export.fs;
        let mut removal = victim.and_then(|victim| Removal::begin(fs, victim));
        let changing = victim.as_ref().map(|victim| fs.named_change(victim));
        let request = fs.under_way(bindings.clone(), asked.filter(|_| victim.is_some()));
        // Until its descriptor is closed, if that is the last thing that keeps it.
        let inside = fs.removing.enter();
        let mut kept = Keeping::default();
        let result = renaming.before().and_then(|_| {
            kept = Keeping::begin(fs, keep, victim);
            let _acting = self.act_as(cred)?;
            Ok(rustix::fs::unlinkat(dir.object.path(), name, flags)?)
        });
        let request = request.and_then(|request| request.carried_out(result.is_ok()));
        let kept_dir = kept.end(fs, result.is_ok(), &mut bindings);
        if let (Some(changing), true) = (changing, result.is_ok()) {
            changing.made();
        }
        let intent = result.is_ok().then(|| {
            let objects = renaming.logged().into_iter().chain(kept_dir.and_then(logged_dir)).collect();
            let did = ChangeEffects { bindings, objects, kept: request, ..ChangeEffects::default() };
            with_dir(metadata(&[dir], fs.changed(fs.way(), did)), kept_dir)
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
        fs.policies.forget(&kernel);
        fs.inodes.forget(&object);
        object.link.get().cloned()
    }
}
