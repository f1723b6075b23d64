//! READDIR, and the parts that READDIRPLUS shares with it.
//!
//! A cookie is the backing file system's own position (d_off). ext4 hashes names; XFS, btrfs and tmpfs number entries.
//! So a cookie stays right while other requests create and remove entries.

use std::mem::MaybeUninit;

use rustix::fs::{OFlags, RawDir, SeekFrom};

use crate::attr::Attr;
use crate::caches::access_cache::want;
use crate::caches::budget::CountedFd;
use crate::cred::Cred;
use crate::error::{Error, Result};
use crate::export::Target;
use crate::export::filesystem::require_dir;
use crate::export::vfs::Vfs;
use crate::handle::Handle;
use crate::wait::Wait;

/// One name of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The inode number.
    pub ino: u64,
    /// The name.
    pub name: &'a [u8],
    /// The position behind this entry.
    pub cookie: u64,
}

/// One name with the inode that it leads to, if that can be found out.
#[derive(Clone, Copy, Debug)]
pub struct EntryPlus<'a> {
    /// The name.
    pub entry: Entry<'a>,
    /// The attributes and the handle of the inode.
    pub found: Option<(Attr, Handle)>,
}

/// The end of a listing.
#[derive(Clone, Copy, Debug)]
pub struct ListEnd {
    /// True if the last entry was reached.
    pub eof: bool,
    /// The directory's attributes.
    pub attr: Attr,
}

/// Bytes of directory entries taken from the kernel at once. A reply ends inside such a chunk and the rest of
/// it is read again next time, so larger is not better.
const CHUNK: usize = 32 * 1024;

impl Vfs {
    /// Returns the verifier of a directory's cookies (RFC 1813 cookieverf3). Cookies of another server or directory are
    /// refused.
    pub fn cookie_verifier(&self, target: &Target) -> [u8; 8] {
        // A directory that recovery recreated has other cookies.
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
        let attr = target.attr()?;
        require_dir(&target.object)?;
        self.require(target, cred, &attr, want::READ, Wait::Yes)?;
        let eof = self.each_entry(target, cookie, &mut visit)?;
        Ok(ListEnd { eof, attr: target.attr()? })
    }

    /// Calls `visit` for each entry after `cookie`; returns whether the end was reached.
    pub(crate) fn each_entry(
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

    /// Returns the directory opened and placed at `cookie`. Uses the last listing's descriptor if no other request has
    /// it.
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
