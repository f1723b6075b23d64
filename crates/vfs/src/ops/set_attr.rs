//! SETATTR.

use rustix::fs::{AtFlags, FileType, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;

use crate::attr::{Attr, SetAttr, SetTime, Time};
use crate::caches::access_cache::want;
use crate::caches::inode::Inode;
use crate::cred::Cred;
use crate::error::{Error, Result};
use crate::export::Target;
use crate::export::inherited;
use crate::export::vfs::Vfs;
use crate::oplog::{self, Access, ChangeEffects};
use crate::ops::change::{Changed, metadata};
use crate::sys;
use crate::wait::Wait;

impl Vfs {
    /// Sets attributes. With `guard`, only if the ctime is still that one.
    pub fn setattr(&self, target: &Target, cred: &Cred, set: &SetAttr, guard: Option<Time>) -> Changed<()> {
        if let Err(error) = target.export.fs.can_change() {
            return Changed { result: Err(error), wcc: self.wcc_of(target), intent: None };
        }
        // Only files that the cache knows can be outdated in it.
        let cached = target.object.link.get().is_some();
        let seen = cached.then(|| target.attr()).transpose();
        let refreshed =
            seen.and_then(|attr| attr.map_or(Ok(()), |attr| self.refresh(target, &attr, Wait::Yes)));
        let _alone = target.object.changing.write();
        let change = target.object.begin_change();
        // Even a failure may have changed something, since several attributes take several system calls. A request
        // refused before the first call needs no record, and no commit of the journal.
        let mut changed = false;
        let result = refreshed.and(change.before).and_then(|attr| match guard {
            Some(ctime) if ctime != attr.ctime => Err(Error::NotSync),
            _ => self.apply(target, &attr, cred, set, &mut changed),
        });
        target.object.rest();
        if changed {
            change.made();
        }
        let access = self.access_after(target, set, changed);
        let logged = change.after().and_then(|attr| {
            oplog::object(&target.object, &attr, None, access.clone().unwrap_or(Access::Kept))
        });
        let wcc = change.end();
        let mut made = Ok(());
        let intent = changed.then(|| {
            let fs = &target.export.fs;
            let way;
            (way, made) = fs.way_with_size(&target.object, set.size);
            let did = ChangeEffects { objects: logged.into_iter().collect(), ..ChangeEffects::default() };
            metadata(&[target], fs.changed(way, did))
        });
        Changed { result: result.and(access.map(drop)).and(made), wcc, intent }
    }

    /// Returns the mode and the owner after `set`, for the log.
    fn access_after(&self, target: &Target, set: &SetAttr, changed: bool) -> Result<Access> {
        let fs = &target.export.fs;
        // The kernel takes set-id bits away when the size changes.
        let sets = set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || set.size.is_some();
        if !changed || !sets || !fs.is_recorded_whole() {
            return Ok(Access::Kept);
        }
        let given = inherited::of_old(&target.object)?;
        if given.len() > oplog::TEXT_MAX {
            fs.made_durable()?;
            return Ok(Access::Kept);
        }
        Ok(Access::Given(Box::new(given)))
    }

    /// Applies `set` as the caller; the kernel decides. Sets `changed` once the inode may be another one than before,
    /// also if the result is an error.
    pub(crate) fn apply(
        &self,
        target: &Target,
        attr: &Attr,
        cred: &Cred,
        set: &SetAttr,
        changed: &mut bool,
    ) -> Result<()> {
        let (object, fs) = (&target.object, &target.export.fs);
        if let Some(size) = set.size {
            match attr.kind {
                FileType::RegularFile if size > fs.largest_file => return Err(Error::Os(Errno::FBIG)),
                FileType::RegularFile => {}
                FileType::Directory => return Err(Error::Os(Errno::ISDIR)),
                _ => return Err(Error::INVALID),
            }
        }
        // Who may write may also set times to now, one or both (a Linux client does so for O_TRUNC of an empty file).
        // utimensat(2) lets only owners set one of them: it is called as the server.
        let touch = ![set.atime, set.mtime].iter().any(|time| matches!(time, SetTime::To(_)));
        let now = [set.atime, set.mtime].contains(&SetTime::Now) && touch;
        if (set.size.is_some() || now) && !self.owns(cred, attr) {
            self.require(target, cred, attr, want::WRITE, Wait::Yes)?;
        }
        let writer =
            set.size.map(|size| Ok::<_, Error>((object.writer(&self.budget, true)?, size))).transpose()?;
        let mtime = match set.mtime {
            SetTime::To(mtime) => Some(mtime),
            _ => None,
        };
        if let Some(linked) = fs.linked().filter(|_| writer.is_some()) {
            // Known before the change begins, so that it is known for the server's own.
            linked.object(object)?;
        }
        let others = set.uid.is_some_and(|uid| uid != attr.uid) || set.gid.is_some_and(|gid| gid != attr.gid);
        // The kernel refuses all other callers, so nothing is destaged for them.
        let may_give = self.privileged && cred.uid() == 0 || self.owns(cred, attr);
        if let Some(linked) = fs.linked().filter(|_| others && may_give) {
            linked.admission.destage_before_chown(object, attr);
        }
        let _own = fs.own_change(object);
        let mut acting = self.act_as(cred)?;
        change_owner_and_mode(object, set, changed)?;
        if let Some((fd, size)) = writer {
            // The cache works on the backing file as the server.
            drop(acting);
            *changed = true;
            self.resize_cached(fs, object, size, mtime)?;
            acting = self.act_as(cred)?;
            // Of the caller's own: the kernel takes set-id bits away.
            rustix::fs::ftruncate(fd, size)?;
        }
        if touch {
            drop(acting.take());
        }
        if set.atime != SetTime::Keep || set.mtime != SetTime::Keep {
            let times =
                Timestamps { last_access: timespec(set.atime), last_modification: timespec(set.mtime) };
            rustix::fs::utimensat(object.path(), c"", &times, AtFlags::EMPTY_PATH)?;
            *changed = true;
        }
        drop(acting);
        if set.mtime != SetTime::Keep {
            self.touch_cached(fs, object, mtime)?;
        }
        Ok(())
    }
}

/// Changes owner and mode as the user as whom the thread acts. Sets `changed` once one of them was changed.
fn change_owner_and_mode(object: &Inode, set: &SetAttr, changed: &mut bool) -> Result<()> {
    if set.uid.is_some() || set.gid.is_some() {
        let (uid, gid) = (set.uid.map(rustix::fs::Uid::from_raw), set.gid.map(rustix::fs::Gid::from_raw));
        rustix::fs::chownat(object.path(), c"", uid, gid, AtFlags::EMPTY_PATH)?;
        *changed = true;
    }
    if let Some(mode) = set.mode {
        sys::chmod(object.path(), mode & 0o7777)?;
        *changed = true;
    }
    Ok(())
}

/// Returns the argument of utimensat(2) for a time.
pub(crate) fn timespec(set: SetTime) -> Timespec {
    match set {
        SetTime::Keep => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        SetTime::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        SetTime::To(time) => Timespec { tv_sec: time.sec, tv_nsec: i64::from(time.nsec) },
    }
}
