//! READDIR and READDIRPLUS.
//!
//! A cookie is the backing file system's own position (d_off): ext4 hashes names, XFS and btrfs number entries,
//! tmpfs likewise, so a cookie stays right while others create and remove.

use std::mem::MaybeUninit;

use rustix::fs::{AtFlags, OFlags, RawDir, SeekFrom};

use crate::attr::Attr;
use crate::cred::Cred;
use crate::error::{Error, Result};
use crate::export::{Target, Vfs, Wait};
use crate::fs::require_dir;
use crate::handle::Handle;
use crate::lookup::stamp;
use crate::names::{Child, Seen, Stamp};
use crate::table::CountedFd;
use crate::verdicts::{settled, want};

/// One name of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The inode number.
    pub ino: u64,
    /// The name.
    pub name: &'a [u8],
    /// Where the listing goes on after this entry.
    pub cookie: u64,
}

/// One name with what it leads to, where that can be told.
#[derive(Clone, Copy, Debug)]
pub struct EntryPlus<'a> {
    /// The name.
    pub entry: Entry<'a>,
    /// The attributes and handle of what it leads to.
    pub found: Option<(Attr, Handle)>,
}

/// How a listing ended.
#[derive(Clone, Copy, Debug)]
pub struct ListEnd {
    /// Whether the last entry was reached.
    pub eof: bool,
    /// The directory's attributes.
    pub attr: Attr,
}

/// Bytes of directory entries taken from the kernel at once. A reply ends inside such a chunk and the rest of
/// it is read again next time, so larger is not better.
const CHUNK: usize = 32 * 1024;

/// How long a listing believes attributes that it saw before, if the object was not changed through this server
/// since: changes made on the host itself show in listings this late. GETATTR and LOOKUP always ask.
const FRESH_SECONDS: f64 = 1.0;

impl Vfs {
    /// The verifier of a directory's cookies (RFC 1813 cookieverf3): cookies of another server or
    /// directory are refused.
    pub fn cookie_verifier(&self, target: &Target) -> [u8; 8] {
        // One that recovery made again has other cookies.
        let inner = target.export.fs.aliases.inner(&target.object.kernel);
        let handle = self.seal(&target.export, &inner);
        self.derive(handle.as_slice()).to_be_bytes()
    }

    /// Lists names after `cookie` (0 = from the start) until `visit` returns false or all were seen.
    pub fn readdir(
        &self,
        target: &Target,
        cred: &Cred,
        cookie: u64,
        mut visit: impl FnMut(Entry<'_>) -> bool,
    ) -> Result<ListEnd> {
        let attr = self.attr_of(target)?;
        require_dir(&target.object)?;
        self.require(&target.object, cred, &attr, want::READ, Wait::Yes)?;
        let eof = self.each_entry(target, cookie, &mut visit)?;
        Ok(ListEnd { eof, attr: self.attr_of(target)? })
    }

    /// Lists names with attributes and handles.
    pub fn readdirplus(
        &self,
        target: &Target,
        cred: &Cred,
        cookie: u64,
        mut visit: impl FnMut(EntryPlus<'_>) -> bool,
    ) -> Result<ListEnd> {
        let attr = self.attr_of(target)?;
        require_dir(&target.object)?;
        self.require(&target.object, cred, &attr, want::READ, Wait::Yes)?;
        // Who may not search the directory sees its names but nothing of what they lead to.
        let search = self.granted(&target.object, cred, &attr, want::EXECUTE, Wait::Yes)? != 0;
        let stamp = stamp(&target.object, &attr).filter(|_| settled(attr.ctime));
        let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        let now = now.tv_sec as f64 + now.tv_nsec as f64 / 1e9;
        let mut name = [0u8; 256];
        let eof = self.each_entry(target, cookie, &mut |entry| {
            let found = if search { self.found(target, &entry, stamp, now, &mut name) } else { None };
            // The name may lead elsewhere since it was listed: all that is told of it is of one object.
            let ino = found.as_ref().map_or(entry.ino, |(attr, _)| attr.ino);
            visit(EntryPlus { entry: Entry { ino, ..entry }, found })
        })?;
        Ok(ListEnd { eof, attr: self.attr_of(target)? })
    }

    /// Attributes and handle of an entry; none if it vanished meanwhile, lies on another mount, or is the
    /// parent (which may lie outside the export).
    fn found(
        &self,
        dir: &Target,
        entry: &Entry<'_>,
        stamp: Option<Stamp>,
        now: f64,
        name: &mut [u8; 256],
    ) -> Option<(Attr, Handle)> {
        let fs = &dir.export.fs;
        if entry.name == b"." || entry.name == b".." && dir.object.kernel == dir.export.root.kernel {
            return Some((dir.object.attr().ok()?, self.handle(dir)));
        }
        if entry.name == b".." || entry.name.len() >= name.len() {
            return None;
        }
        name[..entry.name.len()].copy_from_slice(entry.name);
        name[entry.name.len()] = 0;
        let name = std::ffi::CStr::from_bytes_until_nul(&name[..]).ok()?;
        let names = dir.object.names.as_deref().zip(stamp);
        let known = names.and_then(|(names, stamp)| names.lock().get(stamp, entry.name));
        if let Some(Child { kernel, seen: Some(seen) }) = known
            && now - seen.at < FRESH_SECONDS
            && fs.versions.of(&kernel) == Some(seen.version)
        {
            return Some((seen.attr, self.seal(&dir.export, &kernel)));
        }
        let kernel = known.map_or_else(|| fs.handle_at(&dir.object, name), |known| Ok(known.kernel)).ok()?;
        let version = fs.versions.of(&kernel);
        let overlay = fs.overlay(&kernel);
        let stat = rustix::fs::statat(dir.object.path(), name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        if stat.st_dev != fs.device {
            return None;
        }
        // What was learnt holds if nothing has changed the directory up to now, after the attributes were taken.
        let holds = known.is_none() || stamp.is_some_and(|stamp| dir.object.quiet() == Some(stamp.changes));
        if holds && kernel.may_be_of(stat.st_ino) {
            let attr = fs.attr_of(&stat);
            let attr = overlay.map_or(attr, |overlay| overlay.over(attr));
            if let Some((names, stamp)) = names {
                let seen = version.filter(|version| fs.versions.of(&kernel) == Some(*version));
                let seen = seen.map(|version| Seen { attr, version, at: now });
                names.lock().learn(stamp, entry.name, kernel, seen);
            }
            return Some((attr, self.seal(&dir.export, &kernel)));
        }
        // Another file may have got the name in between (or the handle does not begin with the inode number): one
        // descriptor settles it.
        let fd = fs.open_child(&dir.object, name.to_bytes(), false).ok()?;
        let kernel = fs.identify(&fd).ok()?.0;
        let overlay = fs.overlay(&kernel);
        let attr = fs.attr_of(&rustix::fs::fstat(&fd).ok()?);
        let attr = overlay.map_or(attr, |overlay| overlay.over(attr));
        Some((attr, self.seal(&dir.export, &kernel)))
    }

    /// Calls `visit` for each entry after `cookie`; returns whether the end was reached.
    fn each_entry(
        &self,
        target: &Target,
        cookie: u64,
        visit: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<bool> {
        if i64::try_from(cookie).is_err() {
            return Err(Error::BadCookie);
        }
        let fs = &target.export.fs;
        let (fd, mut position) = self.listing_at(target, cookie)?;
        let at_root = target.object.kernel == target.export.root.kernel;
        let root_ino = target.object.attr()?.ino;
        let mut buffer = [MaybeUninit::<u8>::uninit(); CHUNK];
        let mut entries = RawDir::new(&fd, &mut buffer);
        let mut stopped = false;
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let next = entry.next_entry_cookie();
            if fs.is_private(&target.object.kernel, name) {
                position = next;
                continue;
            }
            // The parent of the exported directory is none of the client's business.
            let ino = if at_root && name == b".." { root_ino } else { fs.aliases.fileid(entry.ino()) };
            if !visit(Entry { ino, name, cookie: next }) {
                stopped = true;
                break;
            }
            position = next;
        }
        // Stopped inside a chunk, the kernel's own position is somewhere behind: it must be set again.
        *target.object.listing.lock() = Some((fd, if stopped { u64::MAX } else { position }));
        Ok(!stopped)
    }

    /// The directory opened and placed at `cookie`; the last listing's descriptor if nobody else has it.
    fn listing_at(&self, target: &Target, cookie: u64) -> Result<(CountedFd, u64)> {
        let kept = target.object.listing.lock().take();
        let (fd, position) = match kept {
            Some(kept) => kept,
            None => {
                let fd = target.object.reopen(OFlags::RDONLY | OFlags::DIRECTORY)?;
                (self.budget.count(fd), 0)
            }
        };
        if position != cookie || cookie == 0 {
            rustix::fs::seek(&fd, SeekFrom::Start(cookie)).map_err(|_| Error::BadCookie)?;
        }
        Ok((fd, cookie))
    }
}
