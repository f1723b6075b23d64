//! CREATE.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use forebay_oplog::New;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Timestamps};
use rustix::io::Errno;

use crate::attr::{SetAttr, SetTime, Time};
use crate::caches::inode::{GoodFor, Inode, Opened};
use crate::cred::Cred;
use crate::durability::request_journal::LoggedReply;
use crate::error::{Error, Result};
use crate::export::Target;
use crate::export::vfs::Vfs;
use crate::ops::change::Changed;
use crate::ops::new_name::{Creation, Made, Wanted, is_one_call, journaled_request};
use crate::ops::set_attr::timespec;
use crate::sys::{self, proc_path};

/// The way in which CREATE treats a name that exists (RFC 1813 createmode3).
#[derive(Clone, Copy, Debug)]
pub enum Create {
    /// An existing file is fine; only its size is set.
    Unchecked(SetAttr),
    /// An existing name is an error.
    Guarded(SetAttr),
    /// An existing file is fine if it was made with this very verifier.
    Exclusive([u8; 8]),
}

/// Returns the times that hold the verifier of an exclusive create. It lives in the new file's times, where it survives
/// a restart; the client sets the times right after. Each time takes 31 bits, the range that every file system can
/// store.
fn verifier_times(verifier: [u8; 8]) -> (Time, Time) {
    let half = |i: usize| {
        let word = u32::from_be_bytes([verifier[i], verifier[i + 1], verifier[i + 2], verifier[i + 3]]);
        Time { sec: i64::from(word & 0x7fff_ffff), nsec: 0 }
    };
    (half(0), half(4))
}

/// A regular file that was just created.
struct NewFile {
    opened: Opened,
    /// The attributes that are still to be set.
    left: SetAttr,
}

/// Creates a regular file. The descriptor is for reading only if `to_read` says that this is enough, and the kernel
/// allows it.
fn open_new(dir: &Inode, name: &[u8], how: Create, to_read: bool) -> Result<NewFile> {
    let set = match how {
        Create::Unchecked(set) | Create::Guarded(set) => set,
        Create::Exclusive(verifier) => {
            let (atime, mtime) = verifier_times(verifier);
            if let Some(file) = open_new_with_times(dir, name, atime, mtime)? {
                let opened = Opened { file, good_for: GoodFor::ToWrite };
                return Ok(NewFile { opened, left: SetAttr::default() });
            }
            SetAttr { atime: SetTime::To(atime), mtime: SetTime::To(mtime), ..SetAttr::default() }
        }
    };
    let (access, good_for) =
        if to_read { (OFlags::RDONLY, GoodFor::ToRead) } else { (OFlags::RDWR, GoodFor::ToWrite) };
    let flags = OFlags::CREATE | OFlags::EXCL | access | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(set.mode.unwrap_or(0) & 0o7777);
    let file = rustix::fs::openat(dir.path(), name, flags, mode)?;
    Ok(NewFile { opened: Opened { file, good_for }, left: set })
}

/// Creates a file that has its times before its name. After a crash at any instant, a client that repeats the request
/// with its verifier finds nothing, or its own file. Returns `None` if the file system has no files without a name.
fn open_new_with_times(dir: &Inode, name: &[u8], atime: Time, mtime: Time) -> Result<Option<OwnedFd>> {
    // A name that is taken counts before a directory that may not be written, as for open(2).
    if rustix::fs::statat(dir.path(), name, AtFlags::SYMLINK_NOFOLLOW).is_ok() {
        return Err(Error::Os(Errno::EXIST));
    }
    let unnamed = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(dir.path(), c".", unnamed, Mode::empty()) {
        Err(Errno::OPNOTSUPP) => return Ok(None),
        file => file?,
    };
    let [last_access, last_modification] = [atime, mtime].map(|time| timespec(SetTime::To(time)));
    rustix::fs::futimens(&file, &Timestamps { last_access, last_modification })?;
    let mut path = [0; 32];
    let path = proc_path(&mut path, &file);
    rustix::fs::linkat(CWD, path, dir.path(), name, AtFlags::SYMLINK_FOLLOW)?;
    Ok(Some(file))
}

impl Vfs {
    /// Makes or finds a regular file.
    pub fn create(
        &self,
        dir: &Target,
        name: &[u8],
        how: Create,
        cred: &Cred,
        asked: Option<&LoggedReply>,
    ) -> Changed<Made> {
        let size = match how {
            Create::Unchecked(set) | Create::Guarded(set) => set.size,
            Create::Exclusive(_) => None,
        };
        if size.is_some_and(|size| size > dir.export.fs.largest_file) {
            let result = Err(Error::Os(Errno::FBIG));
            return Changed { result, wcc: self.wcc_of(dir), intent: None };
        }
        let (set, asked) = match how {
            Create::Guarded(set) => (set, asked.map(|asked| journaled_request(&set, asked))),
            Create::Unchecked(set) => {
                (set, asked.map(|asked| journaled_request(&set, asked)).filter(|_| !is_one_call(&set)))
            }
            // Its times, which it has before its name, tell whether it is done.
            Create::Exclusive(_) => (SetAttr::default(), None),
        };
        self.make_name(dir, name, Wanted { cred, size, unrecorded: None, asked }, |vfs, begun| {
            if let Some(made) = vfs.go_on(dir, name, begun, set, cred)? {
                return Ok(Creation::of(made, Some(New::Plain)));
            }
            match vfs.create_new(dir, name, how, cred) {
                Err(Error::Os(Errno::EXIST)) => {
                    Ok(Creation::of(vfs.create_existing(dir, name, how, cred)?, None))
                }
                result => Ok(Creation::of(result?, Some(New::Plain))),
            }
        })
    }

    /// Makes a file that does not exist, with its attributes, as the caller.
    fn create_new(&self, dir: &Target, name: &[u8], how: Create, cred: &Cred) -> Result<Made> {
        let NewFile { mut opened, left } = {
            let _acting = self.act_as(cred)?;
            open_new(&dir.object, name, how, self.privileged)?
        };
        // One without a name is made for writing, and a file that is open for writing cannot be executed.
        if self.privileged
            && opened.good_for == GoodFor::ToWrite
            && let Ok(file) = sys::reopen(&opened.file, OFlags::RDONLY)
        {
            opened = Opened { file, good_for: GoodFor::ToRead };
        }
        let fs = &dir.export.fs;
        let take_back = |file: BorrowedFd<'_>| {
            let stat = rustix::fs::fstat(file).ok();
            self.take_back(dir, name, stat.map(|stat| stat.st_ino));
        };
        let identified = fs.identify(&opened.file);
        let (kernel, attr) = identified.inspect_err(|_| take_back(opened.file.as_fd()))?;
        let object = fs.adopt_new(opened, kernel, &attr, &dir.object, name);
        // Attributes that the creation already gave need no second call.
        let set = SetAttr { mode: None, size: left.size.filter(|size| *size != 0), ..left };
        let target = Target { export: dir.export.clone(), object: object.clone() };
        self.finish(target, attr, set, cred).inspect_err(|_| take_back(object.path()))
    }

    /// Carries out a CREATE of a name that exists: UNCHECKED sets the size, an exclusive one compares the verifier.
    fn create_existing(&self, dir: &Target, name: &[u8], how: Create, cred: &Cred) -> Result<Made> {
        let (object, attr) = dir.export.fs.child(&dir.object, name, false)?;
        let target = Target { export: dir.export.clone(), object };
        if attr.kind != FileType::RegularFile {
            return Err(Error::Os(Errno::EXIST));
        }
        match how {
            Create::Unchecked(set) => {
                let size_only = SetAttr { size: set.size, ..SetAttr::default() };
                let _alone = target.object.changing.write();
                self.finish(target.clone(), attr, size_only, cred)
            }
            Create::Exclusive(verifier)
                if attr.size == 0 && (attr.atime, attr.mtime) == verifier_times(verifier) =>
            {
                Ok((target, attr))
            }
            _ => Err(Error::Os(Errno::EXIST)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cred::Identity;
    use crate::{Budget, ExportSpec, HandleKey, HostWatch, Verifier, Wait};

    /// The host renames a file while a client creates another one, between the two reads of the directory's change
    /// time. So the change time shows one change only.
    #[test]
    fn a_name_that_somebody_changed_during_a_change_of_the_server_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let [path, state] = ["data", "state"].map(|name| dir.path().join(name));
        [&path, &state].into_iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        for watched in [false, true] {
            let watch = if watched { HostWatch::open(&path).map(std::sync::Arc::new) } else { None };
            let told = watch.is_some();
            let spec = ExportSpec { id: 1, name: "/".to_owned(), path: path.clone(), watch };
            let verifier = std::sync::Arc::new(Verifier::open(&state).unwrap());
            let budget = Budget::new(1000, 1 << 20);
            let vfs =
                Vfs::open(&[spec], HandleKey::new(&[1; 16]), verifier, budget, |run| run()).ok().unwrap();
            let root = vfs.exports().iter().next().unwrap().root();
            let fs = &root.export.fs;
            let cred =
                vfs.creds.intern(&Identity { uid: vfs.server_uid, gid: 0, groups: Default::default() });
            let how = |name: &[u8]| vfs.create(&root, name, Create::Guarded(SetAttr::default()), &cred, None);
            let found = |name: &[u8]| vfs.lookup(&root, name, &cred, Wait::Yes).0.is_ok();
            let children = [&b"a"[..], b"stays"].map(|name| {
                let (made, _) = how(name).result.ok().unwrap();
                (name, made.object.kernel)
            });
            // As a look at them learns it.
            let notices = fs.notices();
            let attr = root.attr().unwrap();
            let stamp = root.object.stamp(&attr).unwrap();
            for (name, kernel) in children {
                root.object.learn_name(stamp, name, Some(fs.child_since(kernel, notices)));
            }
            let wanted = Wanted { cred: &cred, size: None, unrecorded: None, asked: None };
            let made = vfs.make_name(&root, b"new", wanted, |vfs, _| {
                std::fs::rename(path.join("a"), path.join("b")).unwrap();
                let made = vfs.create_new(&root, b"new", Create::Guarded(SetAttr::default()), &cred)?;
                Ok(Creation::of(made, Some(New::Plain)))
            });
            assert!(made.result.is_ok());
            let stamp = root.object.stamp(&root.attr().unwrap()).unwrap();
            let known = root.object.names.as_ref().unwrap().lock().get(stamp, b"stays");
            assert_eq!(
                known.is_some(),
                told && fs.fine_times,
                "what nobody has changed is known as long as that is told"
            );
            assert_eq!([&b"a"[..], b"b", b"new", b"stays"].map(found), [false, true, true, true]);
            for name in ["b", "new", "stays"] {
                std::fs::remove_file(path.join(name)).unwrap();
            }
        }
    }

    #[test]
    fn a_name_shows_that_a_creation_is_done_if_that_is_one_call() {
        let none = SetAttr::default();
        for one in [none, SetAttr { mode: Some(0o1777), size: Some(0), ..none }] {
            assert!(is_one_call(&one), "{one:?}");
        }
        let more = [
            SetAttr { mode: Some(0o4755), ..none },
            SetAttr { uid: Some(0), ..none },
            SetAttr { gid: Some(0), ..none },
            SetAttr { size: Some(1), ..none },
            SetAttr { atime: SetTime::Now, ..none },
            SetAttr { mtime: SetTime::Now, ..none },
        ];
        for more in more {
            assert!(!is_one_call(&more), "{more:?}");
        }
    }
}
