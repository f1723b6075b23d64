//! LOOKUP, ACCESS, GETATTR and READLINK.

use rustix::io::Errno;

use crate::attr::{Attr, Wcc};
use crate::caches::access_cache::{is_past_tick, want};
use crate::caches::attr_cache::record::CachedAttr;
use crate::caches::dentry_cache;
use crate::caches::stamp::Stamp;
use crate::cred::Cred;
use crate::error::{Error, Result};
use crate::export::Target;
use crate::export::filesystem::require_dir;
use crate::export::vfs::Vfs;
use crate::handle::Handle;
use crate::name::check_name;
use crate::sys::KernelHandle;
use crate::wait::Wait;

/// The permissions that ACCESS asks about, in POSIX terms. The protocol layer maps its own bits to these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Read the contents or list the directory.
    pub read: bool,
    /// Change the contents, or (with execute) the names of a directory.
    pub write: bool,
    /// Execute the file or search the directory.
    pub execute: bool,
}

impl Access {
    /// Returns the permissions as bits of an access verdict.
    fn want(self) -> u8 {
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        bit(self.read, want::READ) | bit(self.write, want::WRITE) | bit(self.execute, want::EXECUTE)
    }

    /// Returns the permissions that the bits of an access verdict grant.
    fn of(granted: u8) -> Self {
        let has = |bit: u8| granted & bit != 0;
        Access { read: has(want::READ), write: has(want::WRITE), execute: has(want::EXECUTE) }
    }
}

impl CachedAttr {
    /// Returns the part of `asked` that the caller has, if the kernel's verdict is cached.
    pub fn access(&self, cred: &Cred, asked: Access) -> Option<Access> {
        self.verdicts.find(cred, &self.attr, asked.want()).map(Access::of)
    }
}

/// The result of a LOOKUP.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// The inode's handle.
    pub handle: Handle,
    /// Its attributes.
    pub attr: Attr,
}

impl Vfs {
    /// Returns the attributes of a target. Does not wait.
    pub fn getattr(&self, target: &Target) -> Result<Attr> {
        target.attr()
    }

    /// Moves the change time that clients see of a file, and changes nothing else: a client has newer contents than the
    /// server. The attributes before are there if no change overlapped.
    pub fn outdate(&self, target: &Target) -> Wcc {
        let change = target.object.begin_change();
        change.made();
        change.end()
    }

    /// Returns the part of `asked` that the caller has, and the attributes.
    pub fn access(&self, target: &Target, cred: &Cred, asked: Access, wait: Wait) -> Result<(Access, Attr)> {
        let attr = target.attr()?;
        let granted = self.granted(target, cred, &attr, asked.want(), wait)?;
        Ok((Access::of(granted), attr))
    }

    /// Finds `name` in a directory: the inode's handle and attributes, and the directory's attributes. The second is
    /// there even when the lookup fails.
    pub fn lookup(
        &self,
        dir: &Target,
        name: &[u8],
        cred: &Cred,
        wait: Wait,
    ) -> (Result<Found>, Option<Attr>) {
        let attr = match dir.attr() {
            Ok(attr) => attr,
            Err(error) => return (Err(error), None),
        };
        (self.lookup_in(dir, &attr, name, cred, wait), Some(attr))
    }

    /// Looks a name up. The caller needs the right to search the directory.
    fn lookup_in(&self, dir: &Target, attr: &Attr, name: &[u8], cred: &Cred, wait: Wait) -> Result<Found> {
        require_dir(&dir.object)?;
        check_name(name)?;
        self.require(dir, cred, attr, want::EXECUTE, wait)?;
        match name {
            b"." => Ok(Found { handle: self.handle(dir), attr: *attr }),
            b".." => self.parent(dir, wait),
            _ => self.child(dir, attr, name, wait),
        }
    }

    /// Looks a name up: in the names in memory first, then in the file system. Keeps the answer in memory.
    fn child(&self, dir: &Target, attr: &Attr, name: &[u8], wait: Wait) -> Result<Found> {
        const NONE: Error = Error::Os(Errno::NOENT);
        let fs = &dir.export.fs;
        if fs.is_private(&dir.object.kernel, name) {
            return Err(NONE);
        }
        let found = |kernel: &KernelHandle, attr| Found { handle: self.seal(&dir.export, kernel), attr };
        let stamp = dir.object.stamp(attr);
        let known = stamp.and_then(|stamp| self.known_name(dir, stamp, name));
        match known {
            Some(dentry_cache::CachedName::Nowhere) => return Err(NONE),
            Some(dentry_cache::CachedName::Here(kernel)) => {
                let attr = match fs.inodes.get(&kernel) {
                    Some(object) => object.attr().ok(),
                    None => fs.known(&kernel, wait, |known| Some(known.attr)),
                };
                if let Some(attr) = attr {
                    return Ok(found(&kernel, attr));
                }
            }
            Some(dentry_cache::CachedName::HereIf(..)) | None => {}
        }
        let notices = fs.notices();
        let child = fs.child(&dir.object, name, !wait.allowed());
        let kernel = match &child {
            Ok((object, _)) => Some(Some(fs.child_since(object.kernel, notices))),
            // Change times from elsewhere are cached and coarse.
            Err(error) => (*error == NONE && fs.attributes_in_memory()).then_some(None),
        };
        if let (Some(kernel), Some(stamp)) = (kernel, stamp.filter(|_| is_past_tick(attr.ctime))) {
            dir.object.learn_name(stamp, name, kernel);
        }
        child.map(|(object, attr)| found(&object.kernel, attr))
    }

    /// Returns the cached answer for a name in a directory that was just seen in this state.
    fn known_name(&self, dir: &Target, stamp: Stamp, name: &[u8]) -> Option<dentry_cache::CachedName> {
        let (fs, names) = (&dir.export.fs, dir.object.names.as_ref()?);
        let known = names.lock().get(stamp, name)?;
        let dentry_cache::CachedName::HereIf(kernel, version) = known else { return Some(known) };
        if !fs.catch_up() || !fs.versions.holds(version) {
            return None;
        }
        names.lock().prove(stamp, name, version);
        Some(dentry_cache::CachedName::Here(kernel))
    }

    /// Returns the directory above, which is never outside of the export.
    fn parent(&self, dir: &Target, wait: Wait) -> Result<Found> {
        if dir.object.kernel == dir.export.root.kernel {
            return Ok(Found { handle: self.handle(dir), attr: dir.attr()? });
        }
        if !wait.allowed() {
            return Err(Error::WouldBlock);
        }
        let fs = &dir.export.fs;
        let (object, attr) = fs.child(&dir.object, b"..", false)?;
        // An external change may have moved the directory out of the export. It must not lead the export's clients out.
        if !fs.is_below(&object, &dir.export.root)? {
            return Err(Error::ACCESS);
        }
        Ok(Found { handle: self.handle_of(&dir.export, &object), attr })
    }

    /// Returns the target of a symbolic link, and the link's attributes.
    pub fn readlink(&self, target: &Target) -> Result<(Vec<u8>, Attr)> {
        let attr = target.attr()?;
        if target.object.kind() != rustix::fs::FileType::Symlink {
            return Err(Error::INVALID);
        }
        let path = rustix::fs::readlinkat(target.object.path(), c"", Vec::new())?;
        Ok((path.into_bytes(), attr))
    }
}
