//! A real file system as recovery of the log sees it: by identity, as the server itself.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use forebay_oplog::{Attributes, Given, Kind, Name, New, RenameIntent, Time, Tree};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Timespec, Timestamps, Uid,
};
use rustix::io::Errno;

use super::rename_intents;
use crate::attr::Attr;
use crate::error::Error;
use crate::export::filesystem::Filesystem;
use crate::export::inherited;
use crate::export::private_dir::{MOVING, private_dir};
use crate::sys::{self, KernelHandle, proc_path};

/// Why the directory could not be brought to where the log says it is.
#[derive(Debug, thiserror::Error)]
#[error("{what} failed: {why}; nothing acknowledged is lost: mend that and start again")]
pub(crate) struct FilesError {
    what: String,
    why: Error,
}

/// See the file's comment.
pub(crate) struct Files<'a> {
    fs: &'a Filesystem,
    /// The number of its log. Intents in the slots that name other logs are ignored.
    log: u64,
}

type Result<T> = std::result::Result<T, FilesError>;

/// Adds a description of the failed step to an error.
fn during<T>(what: impl FnOnce() -> String, result: std::result::Result<T, impl Into<Error>>) -> Result<T> {
    result.map_err(|why| FilesError { what: what(), why: why.into() })
}

/// Returns a name in a form for people.
fn shown(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

impl<'a> Files<'a> {
    pub(crate) fn new(fs: &'a Filesystem, log: u64) -> Self {
        Files { fs, log }
    }

    fn open(&self, object: KernelHandle) -> Result<OwnedFd> {
        during(|| format!("opening object {object:?}"), self.fs.open_inner(&object))
    }

    fn identity(&self, fd: &OwnedFd) -> Result<KernelHandle> {
        during(|| "asking for an object's identity".into(), sys::name_to_handle(fd, c""))
    }

    /// Opens a child of a directory. Returns `None` if there is no such name.
    fn child(&self, dir: &OwnedFd, name: &[u8]) -> Result<Option<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat2(dir, name, flags, Mode::empty(), ResolveFlags::NO_XDEV) {
            Err(Errno::NOENT) => Ok(None),
            found => during(|| format!("looking at {}", shown(name)), found.map(Some)),
        }
    }

    /// Returns the names in a directory.
    fn names(&self, dir: &OwnedFd) -> Result<Vec<Name>> {
        let read = || -> std::result::Result<Vec<Name>, Errno> {
            let readable = sys::reopen(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
            let mut names = Vec::new();
            for entry in Dir::new(readable)? {
                let name = entry?.file_name().to_bytes().to_vec();
                if name != b"." && name != b".." {
                    names.push(Name::from_vec(name));
                }
            }
            Ok(names)
        };
        during(|| "listing a directory".into(), read())
    }
}

/// Returns the kind of an object in records; `None` for a kind that no record has.
fn kind_of(kind: FileType) -> Option<Kind> {
    Some(match kind {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::Character,
        FileType::BlockDevice => Kind::Block,
        _ => return None,
    })
}

fn time(time: crate::attr::Time) -> Time {
    Time { sec: time.sec, nsec: time.nsec }
}

/// Returns the log's description of an inode with these attributes.
pub(crate) fn attributes(attr: &Attr) -> Option<Attributes> {
    let &Attr { mode, uid, gid, atime, mtime, .. } = attr;
    Some(Attributes { kind: kind_of(attr.kind)?, mode, uid, gid, atime: time(atime), mtime: time(mtime) })
}

fn timespec(time: Time) -> Timespec {
    Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() }
}

impl Tree for Files<'_> {
    type Error = FilesError;

    fn root(&mut self) -> Result<KernelHandle> {
        Ok(self.fs.root)
    }

    fn moving(&mut self) -> Result<KernelHandle> {
        let made = self.fs.private().and_then(|private| private_dir(private, MOVING));
        let dir = during(|| "making .forebay/moving".into(), made)?;
        self.identity(&dir)
    }

    fn lookup(&mut self, dir: KernelHandle, name: &[u8]) -> Result<Option<KernelHandle>> {
        let dir = self.open(dir)?;
        self.child(&dir, name)?.map(|fd| self.identity(&fd)).transpose()
    }

    fn attributes(&mut self, object: KernelHandle) -> Result<Option<Attributes>> {
        let stat = match self.fs.open_inner(&object) {
            Err(Error::Stale) => return Ok(None),
            opened => opened.and_then(|fd| Ok(rustix::fs::fstat(&fd)?)),
        };
        let attr = Attr::from(&during(|| format!("looking at object {object:?}"), stat)?);
        Ok(if attr.nlink == 0 { None } else { attributes(&attr) })
    }

    fn list(&mut self, dir: KernelHandle) -> Result<Vec<Name>> {
        let dir = self.open(dir)?;
        self.names(&dir)
    }

    fn place(&mut self, dir: KernelHandle) -> Result<(KernelHandle, Name)> {
        let fd = self.open(dir)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let up = rustix::fs::openat(&fd, c"..", flags, Mode::empty());
        let up = during(|| "looking for the parent of a directory".into(), up)?;
        let parent = self.identity(&up)?;
        let is_it = |name: &[u8]| match self.child(&up, name) {
            Ok(Some(found)) => Ok(self.identity(&found)? == dir),
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        // The kernel knows the name, most often; else it is looked for.
        let mut buffer = [0; 32];
        let path = rustix::fs::readlinkat(CWD, proc_path(&mut buffer, &fd), Vec::new()).unwrap_or_default();
        let last = path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if !last.is_empty() && last.len() <= 255 && is_it(last)? {
            return Ok((parent, Name::from_slice(last)));
        }
        for name in self.names(&up)? {
            if is_it(&name)? {
                return Ok((parent, name));
            }
        }
        during(|| "looking for the name of a directory".into(), Err(Errno::NOENT))
    }

    fn make(
        &mut self,
        dir: KernelHandle,
        name: &[u8],
        kind: Kind,
        new: &New,
        given: &Given,
    ) -> Result<KernelHandle> {
        let dir = self.open(dir)?;
        if kind == Kind::Symlink {
            // Nothing can give it another one.
            let project = given.flags.map_or(0, |flags| flags.project);
            let set = sys::reopen(&dir, OFlags::RDONLY)
                .map_err(Error::from)
                .and_then(|dir| inherited::pass_on_project(dir.as_fd(), project));
            during(|| format!("setting the project of {MOVING} to {project}"), set)?;
        }
        let node = |kind, device| rustix::fs::mknodat(&dir, name, kind, Mode::empty(), device);
        let device = match *new {
            New::Device(major, minor) => rustix::fs::makedev(major, minor),
            _ => 0,
        };
        let made = match kind {
            Kind::File => node(FileType::RegularFile, 0),
            Kind::Directory => rustix::fs::mkdirat(&dir, name, Mode::empty()),
            Kind::Symlink => match new {
                New::Link(text) => CString::new(&text[..])
                    .map_err(|_| Errno::INVAL)
                    .and_then(|text| rustix::fs::symlinkat(text, &dir, name)),
                _ => Err(Errno::INVAL),
            },
            Kind::Fifo => node(FileType::Fifo, 0),
            Kind::Socket => node(FileType::Socket, 0),
            Kind::Character => node(FileType::CharacterDevice, device),
            Kind::Block => node(FileType::BlockDevice, device),
        };
        during(|| format!("making {} again", shown(name)), made)?;
        match self.child(&dir, name)? {
            Some(fd) => self.identity(&fd),
            None => during(|| format!("making {} again", shown(name)), Err(Errno::NOENT)),
        }
    }

    fn give(&mut self, object: KernelHandle, given: &Given) -> Result<()> {
        let fd = self.open(object)?;
        let what = || format!("giving object {object:?} its access control list, attributes and flags");
        let stat = during(what, rustix::fs::fstat(&fd))?;
        let opened = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile | FileType::Directory => {
                Some(during(what, sys::reopen(&fd, OFlags::RDONLY))?)
            }
            _ => None,
        };
        let mut path = [0; 32];
        let path = proc_path(&mut path, &fd);
        during(what, inherited::give(path, opened.as_ref().map(AsFd::as_fd), given))
    }

    fn set_acl(&mut self, object: KernelHandle, acl: Option<&[u8]>) -> Result<()> {
        let fd = self.open(object)?;
        let mut path = [0; 32];
        let set = inherited::set_acl(proc_path(&mut path, &fd), acl);
        during(|| format!("setting the access control list of object {object:?}"), set)
    }

    fn link(&mut self, object: KernelHandle, dir: KernelHandle, name: &[u8]) -> Result<()> {
        let (object, dir) = (self.open(object)?, self.open(dir)?);
        let mut path = [0; 32];
        let path = proc_path(&mut path, &object);
        let linked = rustix::fs::linkat(CWD, path, &dir, name, AtFlags::SYMLINK_FOLLOW);
        during(|| format!("linking {}", shown(name)), linked)
    }

    fn rename(&mut self, from: (KernelHandle, &[u8]), to: (KernelHandle, &[u8])) -> Result<()> {
        let (left, taken) = (self.open(from.0)?, self.open(to.0)?);
        let renamed = rustix::fs::renameat_with(&left, from.1, &taken, to.1, RenameFlags::NOREPLACE);
        during(|| format!("moving {} to {}", shown(from.1), shown(to.1)), renamed)
    }

    fn unlink(&mut self, dir: KernelHandle, name: &[u8]) -> Result<()> {
        let dir = self.open(dir)?;
        during(|| format!("removing {}", shown(name)), rustix::fs::unlinkat(&dir, name, AtFlags::empty()))
    }

    fn rmdir(&mut self, dir: KernelHandle, name: &[u8]) -> Result<bool> {
        let dir = self.open(dir)?;
        match rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            removed => during(|| format!("removing directory {}", shown(name)), removed).map(|()| true),
        }
    }

    fn set(&mut self, object: KernelHandle, wanted: &Attributes) -> Result<()> {
        let fd = self.open(object)?;
        let what = || format!("setting the attributes of object {object:?}");
        let is = Attr::from(&during(what, rustix::fs::fstat(&fd))?);
        if (is.uid, is.gid) != (wanted.uid, wanted.gid) {
            let (uid, gid) = (Uid::from_raw(wanted.uid), Gid::from_raw(wanted.gid));
            during(what, rustix::fs::chownat(&fd, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH))?;
        }
        // chown(2) takes set-uid and set-gid away: looked at again.
        let is = Attr::from(&during(what, rustix::fs::fstat(&fd))?);
        if is.mode != wanted.mode && wanted.kind != Kind::Symlink {
            during(what, sys::chmod(&fd, wanted.mode & 0o7777))?;
        }
        if (time(is.atime), time(is.mtime)) != (wanted.atime, wanted.mtime) {
            let times =
                Timestamps { last_access: timespec(wanted.atime), last_modification: timespec(wanted.mtime) };
            during(what, rustix::fs::utimensat(&fd, c"", &times, AtFlags::EMPTY_PATH))?;
        }
        Ok(())
    }

    fn intents(&mut self) -> Result<Vec<RenameIntent>> {
        let mut intents = during(|| "reading .forebay/slots".into(), rename_intents::read(&self.fs.aliases))?;
        intents.retain(|intent| intent.log == self.log);
        Ok(intents)
    }

    fn aliases(&mut self) -> Result<Vec<(KernelHandle, KernelHandle)>> {
        Ok(self.fs.aliases.all())
    }

    fn alias(&mut self, outer: KernelHandle, inner: KernelHandle) -> Result<()> {
        during(|| "writing to .forebay/aliases".into(), self.fs.aliases.insert(outer, inner))
    }

    fn unalias(&mut self, outer: KernelHandle) -> Result<()> {
        during(|| "writing to .forebay/aliases".into(), self.fs.aliases.remove(&outer))
    }

    fn is_own(&mut self, object: KernelHandle) -> Result<bool> {
        during(|| "looking at .forebay".into(), self.fs.aliases.is_own(&object))
    }

    fn is_spent(&mut self, identity: &KernelHandle) -> bool {
        self.fs.aliases.is_spent(identity)
    }

    fn spend(&mut self, gone: Vec<KernelHandle>) -> Result<()> {
        during(|| "writing to .forebay/spent".into(), self.fs.aliases.spend(gone))
    }

    fn make_up(&mut self, inner: KernelHandle) -> Result<KernelHandle> {
        during(|| "writing to .forebay/aliases".into(), self.fs.aliases.outer(inner))
    }

    fn sync(&mut self) -> Result<()> {
        during(|| "making the directory durable".into(), rustix::fs::syncfs(self.fs.mount()))
    }
}
