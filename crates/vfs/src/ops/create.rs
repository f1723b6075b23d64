//! CREATE, MKDIR, SYMLINK and MKNOD.

use std::borrow::Cow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use forebay_oplog::{Given, New};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Timestamps};
use rustix::io::Errno;

use crate::attr::{Attr, SetAttr, SetTime, Time};
use crate::caches::access_cache::want;
use crate::caches::inode::{GoodFor, Inode, Opened};
use crate::cred::Cred;
use crate::durability::request_journal::{self, Asked};
use crate::error::{Error, Result};
use crate::export::Target;
use crate::export::inherited;
use crate::export::vfs::Vfs;
use crate::name::c_name;
use crate::oplog::{self, Access, Did, Rights, binding};
use crate::ops::change::{Changed, Renaming, changeable, metadata};
use crate::ops::set_attr::timespec;
use crate::sys::{self, KernelHandle, proc_path};
use crate::wait::Wait;

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

/// An inode to create that is not a regular file.
#[derive(Clone, Copy, Debug)]
pub enum Special<'a> {
    /// A directory.
    Directory,
    /// A symbolic link with this text.
    Symlink(&'a [u8]),
    /// A named pipe.
    Fifo,
    /// A local socket.
    Socket,
    /// A character device, major and minor.
    Character(u32, u32),
    /// A block device, major and minor.
    Block(u32, u32),
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

type Made = (Target, Attr);

/// A request to make an inode.
struct Wanted<'a> {
    cred: &'a Cred,
    /// The size that was asked for.
    size: Option<u64>,
    /// The length of a symbolic link's text that is too long for a record, in bytes.
    unrecorded: Option<usize>,
    /// The request, if it may not be carried out twice.
    asked: Option<Cow<'a, Asked>>,
}

/// The result of a creation.
struct Creation {
    target: Target,
    attr: Attr,
    /// The facts from which recovery could recreate the inode, if the creation made it.
    new: Option<New>,
}

impl Creation {
    fn of((target, attr): Made, new: Option<New>) -> Self {
        Creation { target, attr, new }
    }
}

impl Vfs {
    /// Makes or finds a regular file.
    pub fn create(
        &self,
        dir: &Target,
        name: &[u8],
        how: Create,
        cred: &Cred,
        asked: Option<&Asked>,
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

    /// Removes a new inode that could not be finished, since the client is told that it does not exist. Another program
    /// may have reused the name, unless the name still leads to inode `number`, if that is known.
    fn take_back(&self, dir: &Target, name: &[u8], number: Option<u64>) {
        let fs = &dir.export.fs;
        let Ok(found) = rustix::fs::statat(dir.object.path(), name, AtFlags::SYMLINK_NOFOLLOW) else {
            return;
        };
        if number.is_some_and(|number| number != found.st_ino) {
            return;
        }
        let victim = fs.handle_at(&dir.object, &c_name(name)).ok();
        let directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        let flags = if directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        let changing = victim.as_ref().map(|victim| (fs.versions.change(victim), fs.own_change_of(victim)));
        // An inode that cannot be removed is left behind, since no client is left to tell.
        let _ = rustix::fs::unlinkat(dir.object.path(), name, flags);
        drop(changing);
        if let (Some(cached), Some(linked)) = (self.forget_if_gone(dir, victim), fs.linked()) {
            linked.cache.forget(cached);
        }
    }

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

    /// Makes anything but a regular file.
    pub fn make(
        &self,
        dir: &Target,
        name: &[u8],
        special: Special<'_>,
        set: &SetAttr,
        cred: &Cred,
        asked: Option<&Asked>,
    ) -> Changed<Made> {
        let new = match special {
            Special::Symlink(text) => New::Link(text.into()),
            Special::Character(major, minor) | Special::Block(major, minor) => New::Device(major, minor),
            Special::Directory | Special::Fifo | Special::Socket => New::Plain,
        };
        let unrecorded = match special {
            Special::Symlink(text) => Some(text.len()).filter(|len| *len > oplog::TEXT_MAX),
            _ => None,
        };
        let asked = asked.map(|asked| journaled_request(set, asked));
        self.make_name(dir, name, Wanted { cred, size: None, unrecorded, asked }, |vfs, begun| {
            let without_size = SetAttr { size: None, ..*set };
            if let Some(made) = vfs.go_on(dir, name, begun, without_size, cred)? {
                return Ok(Creation::of(made, Some(new)));
            }
            {
                let _acting = vfs.act_as(cred)?;
                make_special(dir, name, special, set.mode.unwrap_or(0) & 0o7777)?;
            }
            let mut seen = None;
            let mut finish = || {
                let fs = &dir.export.fs;
                let (object, attr) = match special {
                    Special::Directory => fs.new_directory(&dir.object, name)?,
                    _ => fs.child(&dir.object, name, false)?,
                };
                seen = Some(object.clone());
                // mkdir(2) ignores set-uid and set-gid; a symbolic link has no mode of its own.
                let again =
                    matches!(special, Special::Directory) && set.mode.is_some_and(|mode| mode & 0o6000 != 0);
                let set = SetAttr { mode: set.mode.filter(|_| again), size: None, ..*set };
                vfs.finish(Target { export: dir.export.clone(), object }, attr, set, cred)
            };
            let made = finish().inspect_err(|_| {
                let seen = seen.and_then(|object| rustix::fs::fstat(object.path()).ok());
                vfs.take_back(dir, name, seen.map(|stat| stat.st_ino));
            })?;
            Ok(Creation::of(made, Some(new)))
        })
    }

    /// Completes a creation that a killed server had begun, if the name still leads to the inode that server created.
    fn go_on(
        &self,
        dir: &Target,
        name: &[u8],
        begun: Option<KernelHandle>,
        set: SetAttr,
        cred: &Cred,
    ) -> Result<Option<Made>> {
        let Some(begun) = begun else { return Ok(None) };
        let (object, attr) = match dir.export.fs.child(&dir.object, name, false) {
            Ok((object, attr)) if object.kernel == begun => (object, attr),
            _ => return Ok(None),
        };
        // Attributes given at creation may have been removed since, as by chown(2).
        let mode = set.mode.filter(|_| attr.kind != FileType::Symlink);
        let set = SetAttr { mode, size: set.size.filter(|size| *size != 0), ..set };
        self.finish(Target { export: dir.export.clone(), object }, attr, set, cred).map(Some)
    }

    /// Fails if the kernel is about to refuse a symbolic link with a text of `len` bytes, since checkpoints come first.
    /// The directory is locked, with these attributes.
    fn may_link(&self, dir: &Target, attr: &Attr, name: &[u8], len: usize, cred: &Cred) -> Result<()> {
        self.require(dir, cred, attr, want::EXECUTE, Wait::Yes)?;
        // A name that is taken counts before a directory that may not be written, as for symlink(2).
        if !request_journal::is_free(&dir.object, name) {
            return Err(Error::Os(Errno::EXIST));
        }
        self.require(dir, cred, attr, want::WRITE, Wait::Yes)?;
        if len > dir.export.fs.longest_link() { Err(Error::Os(Errno::NAMETOOLONG)) } else { Ok(()) }
    }

    /// Runs `make` with the directory locked and reports the change of the directory. `make` gets the inode that an
    /// earlier server created for this request, if that server was killed then.
    fn make_name(
        &self,
        dir: &Target,
        name: &[u8],
        Wanted { cred, size, unrecorded, asked }: Wanted<'_>,
        make: impl FnOnce(&Self, Option<KernelHandle>) -> Result<Creation>,
    ) -> Changed<Made> {
        if let Err(error) = changeable(dir, name) {
            return Changed { result: Err(error), wcc: self.wcc_of(dir), intent: None };
        }
        let fs = &dir.export.fs;
        let renaming = Renaming::begin(dir);
        let ticket = fs.linked().map(|_| fs.making.begin());
        let covered = || unrecorded.map_or(Ok(()), |_| fs.without_record());
        let allowed = renaming.before().and_then(|attr| {
            unrecorded
                .map_or(Ok(()), |len| self.may_link(dir, &attr, name, len, cred))
                .and_then(|()| covered())
        });
        let begun = asked.as_ref().and_then(|asked| fs.begun(asked, &dir.object, name));
        let asked = asked.filter(|_| request_journal::is_free(&dir.object, name));
        let request =
            fs.under_way([binding(&dir.object, name, None, None)].into_iter().collect(), asked.as_deref());
        let result = allowed.and_then(|()| make(self, begun));
        let request = request.and_then(|request| request.carried_out(result.is_ok()));
        let child: Option<KernelHandle> = result.as_ref().ok().map(|made| made.target.object.kernel);
        let (mut sized, mut whole) = (Ok(()), Ok(()));
        let intent = result.as_ref().ok().map(|Creation { target, attr, new }| {
            let size = size.filter(|size| new.is_none() || *size > 0);
            let (way, _) = fs.way_with_size(&target.object, size);
            let new =
                new.as_ref().map(|new| NewInode { new: new.clone(), access: access_of(dir, target, new) });
            if let Some(NewInode { access: Err(Unrecorded), .. }) = new {
                whole = fs.made_durable();
            }
            let did = Did { ticket, request, ..did(&renaming, name, target, attr, new) };
            let intent = metadata(&[dir, target], fs.changed(way, did));
            if size.is_some() {
                (_, sized) = fs.way_with_size(&target.object, size);
            }
            intent
        });
        let result = result.and_then(|made| covered().and(sized).and(whole).map(|()| made));
        let wcc = renaming.end(result.is_ok(), &[(name, child)]);
        Changed { result: result.map(|made| (made.target, made.attr)), wcc, intent }
    }

    /// Applies the attributes that could not be given at creation, and reads the final attributes.
    fn finish(&self, target: Target, attr: Attr, set: SetAttr, cred: &Cred) -> Result<Made> {
        // Only root gives its new files away. Any other caller that asks for an owner (some clients always send their
        // ids) gets the owner from creation, with the directory's group where that is set-gid.
        let may_give = self.privileged && cred.uid() == 0;
        let uid = set.uid.filter(|uid| may_give && *uid != attr.uid);
        let gid = set.gid.filter(|gid| may_give && *gid != attr.gid);
        // chown(2) takes set-uid and set-gid away.
        let again = (uid.is_some() || gid.is_some()) && attr.mode & 0o6000 != 0;
        let set = SetAttr { mode: set.mode.or(again.then_some(attr.mode)), uid, gid, ..set };
        if set.is_empty() {
            return Ok((target, attr));
        }
        let change = target.object.begin_change();
        let applied = self.apply(&target, &attr, cred, &set, &mut false);
        target.object.rest();
        drop(change);
        applied?;
        let attr = target.object.attr()?;
        Ok((target, attr))
    }
}

/// Returns the request as the request journal keeps it: if the server is killed in a creation with these attributes,
/// this is known of it.
fn journaled_request<'a>(set: &SetAttr, asked: &'a Asked) -> Cow<'a, Asked> {
    if is_one_call(set) { Cow::Borrowed(asked) } else { Cow::Owned(asked.in_several()) }
}

/// Returns true if creation itself gives all these attributes, so that an inode which has its name has them too.
fn is_one_call(set: &SetAttr) -> bool {
    set.mode.is_none_or(|mode| mode & 0o6000 == 0)
        && SetAttr { mode: None, size: set.size.filter(|size| *size > 0), ..*set }.is_empty()
}

/// The inode has more inherited attributes than a record can hold, or they cannot be read.
struct Unrecorded;

/// A new inode as the log may describe it.
struct NewInode {
    new: New,
    access: std::result::Result<Access, Unrecorded>,
}

/// Returns the access attributes of a new inode, for the log.
fn access_of(dir: &Target, target: &Target, new: &New) -> std::result::Result<Access, Unrecorded> {
    let fs = &target.export.fs;
    if !fs.is_recorded_whole() {
        return Ok(Access::Set);
    }
    let given =
        inherited::of_new(&dir.object, &target.object, fs.has_inode_flags()).map_err(|_| Unrecorded)?;
    let text = if let New::Link(text) = new { text.len() } else { 0 };
    match given.len() + text > oplog::TEXT_MAX + Given::default().len() {
        // Its record is too long in any case, and left out.
        _ if text > oplog::TEXT_MAX => Ok(Access::Set),
        true => Err(Unrecorded),
        false => Ok(Access::Given(Box::new(given))),
    }
}

/// Returns the facts about a creation for the log, also if the inode existed already. An inode that a record cannot
/// hold whole is made durable in the file system instead. The log must not have it as new, or recovery might recreate
/// it without some of its attributes.
fn did(renaming: &Renaming<'_>, name: &[u8], target: &Target, attr: &Attr, new: Option<NewInode>) -> Did {
    let kernel = target.object.kernel;
    let Some(NewInode { new, access }) = new else {
        // With a size, which takes set-id bits away, it has waited for the journal.
        return Did { objects: oplog::objects(&[&target.object]), ..Did::default() };
    };
    let made = Some(Rights { mode: attr.mode, uid: attr.uid, gid: attr.gid });
    let (new, access) = match access {
        Ok(access) => (Some(new), access),
        Err(Unrecorded) => (None, Access::Kept),
    };
    let objects =
        renaming.logged().into_iter().chain(oplog::object(&target.object, attr, new, access)).collect();
    Did {
        bindings: [binding(&renaming.dir.object, name, None, Some(kernel))].into_iter().collect(),
        objects,
        made,
        ..Did::default()
    }
}

fn make_special(dir: &Target, name: &[u8], special: Special<'_>, mode: u32) -> Result<()> {
    let at = dir.object.path();
    let mode = Mode::from_raw_mode(mode);
    let node = |kind, device| rustix::fs::mknodat(at, name, kind, mode, device);
    let made = match special {
        Special::Directory => rustix::fs::mkdirat(at, name, mode),
        Special::Symlink(text) => rustix::fs::symlinkat(text, at, name),
        Special::Fifo => node(FileType::Fifo, 0),
        Special::Socket => node(FileType::Socket, 0),
        Special::Character(major, minor) => {
            node(FileType::CharacterDevice, rustix::fs::makedev(major, minor))
        }
        Special::Block(major, minor) => node(FileType::BlockDevice, rustix::fs::makedev(major, minor)),
    };
    Ok(made?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cred::Identity;
    use crate::{Budget, ExportSpec, HandleKey, HostWatch, Verifier};

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
            let root = vfs.exports()[0].root();
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
