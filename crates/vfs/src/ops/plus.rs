//! READDIRPLUS: from memory as far as the directory's listing is kept there, the rest from the file system.

use std::ffi::CStr;
use std::sync::atomic::Ordering;

use rustix::fs::{AtFlags, FileType};
use smallvec::SmallVec;

use crate::attr::Attr;
use crate::caches::access_cache::{is_past_tick, want};
use crate::caches::dir_cache::{CHANGE, Run, Seen, State};
use crate::caches::overlay::Overlay;
use crate::caches::stamp::Stamp;
use crate::cred::Cred;
use crate::error::{Error, Result};
use crate::export::Target;
use crate::export::filesystem::require_dir;
use crate::export::vfs::Vfs;
use crate::handle::Handle;
use crate::ops::list::{Entry, EntryPlus, ListEnd};
use crate::sys::KernelHandle;
use crate::sys::coarse_millis;
use crate::wait::Wait;

/// The time in milliseconds for which a listing believes attributes that it saw before. It counts for an inode that was
/// not changed through this server since, if the kernel does not report external changes. Those show in listings after
/// at most this time.
const FRESH: u64 = 1000;

/// An entry as it was seen: attributes and handle.
#[derive(Clone, Copy, Debug, Default)]
struct Sight {
    found: Option<(Attr, Handle)>,
    /// The attributes and the handle, if they may be remembered.
    lasting: Option<Seen>,
}

impl Sight {
    fn passing(found: Option<(Attr, Handle)>) -> Self {
        Sight { found, lasting: None }
    }

    /// Returns an entry of READDIRPLUS.
    fn entry<'a>(&self, entry: &Entry<'a>) -> EntryPlus<'a> {
        // The name may lead elsewhere since it was listed: all that is told of it is of one inode.
        let ino = self.found.as_ref().map_or(entry.ino, |(attr, _)| attr.ino);
        EntryPlus { entry: Entry { ino, ..*entry }, found: self.found }
    }
}

/// The progress of a listing from memory.
struct Went {
    /// The cookie behind which the directory has to be asked; `None`: no more was wanted, or there is no more.
    goes_on: Option<u64>,
    /// True if the last entry was listed.
    ended: bool,
}

/// Returns true for the names of the directory itself and its parent.
fn is_dot(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

impl Vfs {
    /// Lists names with attributes and handles. With [`Wait::No`] it succeeds only if everything it needs is cached; if
    /// it fails, `visit` may have been called already.
    pub fn readdirplus(
        &self,
        target: &Target,
        cred: &Cred,
        cookie: u64,
        wait: Wait,
        mut visit: impl FnMut(EntryPlus<'_>) -> bool,
    ) -> Result<ListEnd> {
        let attr = target.attr()?;
        require_dir(&target.object)?;
        self.require(target, cred, &attr, want::READ, wait)?;
        // A caller who may not search the directory sees its names, but not the inodes that they lead to.
        let search = self.granted(target, cred, &attr, want::EXECUTE, wait)? != 0;
        let export = target.export.id;
        let stamp = target.object.stamp(&attr).filter(|_| search && is_past_tick(attr.ctime));
        let state = stamp.map(|stamp| State { stamp, export });
        let listings = self.budget.listings();
        let went = self.list_kept(target, state, cookie, wait, &mut visit)?;
        let Some(from) = went.goes_on else {
            listings.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(ListEnd { eof: went.ended, attr: target.attr()? });
        };
        if !wait.allowed() {
            return Err(Error::WouldBlock);
        }
        listings.misses.fetch_add(1, Ordering::Relaxed);
        let mut run = Run::default();
        let eof = self.each_entry(target, from, &mut |entry| {
            let seen = if search { self.see(target, entry.name, None, stamp) } else { Sight::default() };
            let fits = visit(seen.entry(&entry));
            if fits && state.is_some() {
                run.push(entry.cookie, entry.ino, entry.name, seen.lasting);
            }
            fits
        })?;
        let attr = target.attr()?;
        if let Some(state) = state.filter(|state| target.object.stamp(&attr) == Some(state.stamp))
            && let Some(kept) = &target.object.kept
        {
            kept.lock().extend(kept, state, from, &run, eof);
        }
        Ok(ListEnd { eof, attr })
    }

    /// Lists the cached entries of a directory in this state from `cookie` on.
    fn list_kept(
        &self,
        target: &Target,
        state: Option<State>,
        cookie: u64,
        wait: Wait,
        visit: &mut dyn FnMut(EntryPlus<'_>) -> bool,
    ) -> Result<Went> {
        let unknown = Ok(Went { goes_on: Some(cookie), ended: false });
        let Some((state, cache)) = state.zip(target.object.kept.as_ref()) else { return unknown };
        let kept = match wait {
            Wait::Yes => Some(cache.lock()),
            Wait::No => cache.try_lock(),
        };
        let mut kept = kept.ok_or(Error::WouldBlock)?;
        let Some(mut at) = kept.find(state, cookie) else { return unknown };
        let (mut from, now) = (cookie, coarse_millis());
        let told = target.export.fs.catch_up();
        while let Some(known) = kept.get(at) {
            let (ino, reached) = (known.ino, known.cookie);
            let entry = Entry { ino, name: known.name, cookie: reached };
            let versions = &target.export.fs.versions;
            let young = |seen: &Seen| if seen.until == CHANGE { told } else { now < seen.until };
            let fresh = |seen: &Seen| young(seen) && versions.holds(seen.version);
            let fits = match known.seen {
                Some(seen) if fresh(&seen) => {
                    visit(Sight::passing(Some((seen.attr, seen.handle))).entry(&entry))
                }
                seen if wait.allowed() || is_dot(known.name) => {
                    // The disk may have to be waited for, so the lock is not held meanwhile.
                    let name = SmallVec::<[u8; 256]>::from_slice(known.name);
                    drop(kept);
                    let entry = Entry { ino, name: &name, cookie: reached };
                    let kernel = seen.and_then(|seen| self.key.open(seen.handle.as_slice()).ok());
                    let sight = self.see(target, &name, kernel.map(|(_, kernel)| kernel), Some(state.stamp));
                    let fits = visit(sight.entry(&entry));
                    kept = cache.lock();
                    kept.look_again(state, at, sight.lasting);
                    fits
                }
                _ => return Err(Error::WouldBlock),
            };
            if !fits {
                return Ok(Went { goes_on: None, ended: false });
            }
            from = reached;
            at += 1;
            if !kept.is_of(state) {
                return Ok(Went { goes_on: Some(from), ended: false });
            }
        }
        let ended = kept.ends();
        Ok(Went { goes_on: (!ended).then_some(from), ended })
    }

    /// Returns attributes and handle of an entry. Returns none if the entry vanished meanwhile, lies on another mount,
    /// or is the parent (which may lie outside the export). `known` is the inode that the name led to when the
    /// directory was in the state of `stamp`.
    fn see(&self, dir: &Target, name: &[u8], known: Option<KernelHandle>, stamp: Option<Stamp>) -> Sight {
        let fs = &dir.export.fs;
        if name == b"." || name == b".." && dir.object.kernel == dir.export.root.kernel {
            return Sight::passing(dir.object.attr().ok().map(|attr| (attr, self.handle(dir))));
        }
        let mut buffer = [0u8; 256];
        if name == b".." || name.len() >= buffer.len() {
            return Sight::default();
        }
        buffer[..name.len()].copy_from_slice(name);
        let Ok(c_name) = CStr::from_bytes_until_nul(&buffer) else { return Sight::default() };
        let notices = fs.notices();
        let Ok(kernel) = known.map_or_else(|| fs.handle_at(&dir.object, c_name), Ok) else {
            return Sight::default();
        };
        let (version, overlay) = (fs.versions.of(&kernel), fs.overlay(&kernel));
        let glance = fs.glance(&kernel);
        let stat = rustix::fs::statat(dir.object.path(), c_name, AtFlags::SYMLINK_NOFOLLOW);
        let Some(stat) = stat.ok().filter(|stat| stat.st_dev == fs.device) else { return Sight::default() };
        // The names hold if nothing has changed the directory between the read of its attributes and now.
        let holds = known.is_none() || stamp.is_some_and(|stamp| dir.object.quiet() == Some(stamp.changes));
        if !holds || !kernel.may_be_of(stat.st_ino) {
            return Sight::passing(self.see_by_descriptor(dir, name));
        }
        let attr = fs.attr_of(&stat);
        let destaged = overlay.as_ref().is_none_or(Overlay::is_destaged);
        let attr = overlay.map_or(attr, |overlay| overlay.over(attr));
        // Only announced changes move the backing file's own attributes. Of directories only the names are watched.
        let own = destaged && attr.ctime == attr.backing_ctime && attr.kind != FileType::Directory;
        let attr = glance.show(attr);
        let handle = self.seal(&dir.export, &kernel);
        let version = version.filter(|version| fs.versions.holds(*version));
        let until = if own && fs.watch.is_some() { CHANGE } else { coarse_millis() + FRESH };
        let lasting = version.map(|version| Seen { attr, handle, version, until });
        if let (Some(version), Some(stamp)) = (version, stamp)
            && fs.inodes.get(&kernel).is_none()
        {
            if destaged {
                fs.cache_attr(&kernel, &attr, version);
            }
            dir.object.learn_name(stamp, name, Some(fs.child_since(kernel, notices)));
        }
        Sight { found: Some((attr, handle)), lasting }
    }

    /// Reads attributes and handle through one descriptor. It is for entries whose name may have gone to another file
    /// in between, and for handles that do not begin with the inode number.
    fn see_by_descriptor(&self, dir: &Target, name: &[u8]) -> Option<(Attr, Handle)> {
        let fs = &dir.export.fs;
        let fd = fs.open_child(&dir.object, name, false).ok()?;
        let kernel = fs.identify(&fd).ok()?.0;
        // The attributes read here are not cached, so older ones must not be served after them.
        fs.versions.forget(&kernel);
        let (overlay, glance) = (fs.overlay(&kernel), fs.glance(&kernel));
        let attr = fs.attr_of(&rustix::fs::fstat(&fd).ok()?);
        let attr = overlay.map_or(attr, |overlay| overlay.over(attr));
        Some((glance.show(attr), self.seal(&dir.export, &kernel)))
    }
}
