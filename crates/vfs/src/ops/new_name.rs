//! The steps that CREATE, MKDIR, SYMLINK and MKNOD share: a new name in a locked directory, and its record in the log.

use std::borrow::Cow;

use forebay_oplog::{Given, New};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use crate::attr::{Attr, SetAttr};
use crate::caches::access_cache::want;
use crate::cred::Cred;
use crate::durability::request_journal::{self, LoggedReply};
use crate::error::{Error, Result};
use crate::export::Target;
use crate::export::inherited;
use crate::export::vfs::Vfs;
use crate::name::c_name;
use crate::oplog::{self, Access, ChangeEffects, Rights, binding};
use crate::ops::change::{Changed, Renaming, changeable, metadata};
use crate::sys::KernelHandle;
use crate::wait::Wait;

/// An inode that was made or found, with its attributes.
pub(super) type Made = (Target, Attr);

/// A request to make an inode.
pub(super) struct Wanted<'a> {
    pub(super) cred: &'a Cred,
    /// The size that was asked for.
    pub(super) size: Option<u64>,
    /// The length of a symbolic link's text that is too long for a record, in bytes.
    pub(super) unrecorded: Option<usize>,
    /// The request, if it may not be carried out twice.
    pub(super) asked: Option<Cow<'a, LoggedReply>>,
}

/// The result of a creation.
pub(super) struct Creation {
    pub(super) target: Target,
    pub(super) attr: Attr,
    /// The facts from which recovery could recreate the inode, if the creation made it.
    pub(super) new: Option<New>,
}

impl Creation {
    pub(super) fn of((target, attr): Made, new: Option<New>) -> Self {
        Creation { target, attr, new }
    }
}

impl Vfs {
    /// Runs `make` with the directory locked and reports the change of the directory. `make` gets the inode that an
    /// earlier server created for this request, if that server was killed then.
    pub(super) fn make_name(
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
        if let (Some(ticket), Ok(Creation { target, new: Some(_), .. })) = (&ticket, &result) {
            // Its requests need not wait for other creations.
            target.object.made_by.set(ticket.makers());
        }
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
            let did = ChangeEffects { ticket, kept: request, ..did(&renaming, name, target, attr, new) };
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

    /// Completes a creation that a killed server had begun, if the name still leads to the inode that server created.
    pub(super) fn go_on(
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

    /// Applies the attributes that could not be given at creation, and reads the final attributes.
    pub(super) fn finish(&self, target: Target, attr: Attr, set: SetAttr, cred: &Cred) -> Result<Made> {
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
        let mut changed = false;
        let applied = self.apply(&target, &attr, cred, &set, &mut changed);
        target.object.rest();
        if changed {
            change.made();
        }
        drop(change);
        applied?;
        let attr = target.object.attr()?;
        Ok((target, attr))
    }

    /// Removes a new inode that could not be finished, since the client is told that it does not exist. Another program
    /// may have reused the name, unless the name still leads to inode `number`, if that is known.
    pub(super) fn take_back(&self, dir: &Target, name: &[u8], number: Option<u64>) {
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
        let changing = victim.as_ref().map(|victim| fs.named_change(victim));
        // An inode that cannot be removed is left behind, since no client is left to tell.
        let _ = rustix::fs::unlinkat(dir.object.path(), name, flags);
        drop(changing);
        if let (Some(cached), Some(linked)) = (self.forget_if_gone(dir, victim), fs.linked()) {
            linked.cache.forget(cached);
        }
    }
}

/// Returns the request as the request journal keeps it: if the server is killed in a creation with these attributes,
/// this is known of it.
pub(super) fn journaled_request<'a>(set: &SetAttr, asked: &'a LoggedReply) -> Cow<'a, LoggedReply> {
    if is_one_call(set) { Cow::Borrowed(asked) } else { Cow::Owned(asked.in_several_calls()) }
}

/// Returns true if creation itself gives all these attributes, so that an inode which has its name has them too.
pub(super) fn is_one_call(set: &SetAttr) -> bool {
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
fn did(
    renaming: &Renaming<'_>,
    name: &[u8],
    target: &Target,
    attr: &Attr,
    new: Option<NewInode>,
) -> ChangeEffects {
    let kernel = target.object.kernel;
    let Some(NewInode { new, access }) = new else {
        // With a size, which takes set-id bits away, it has waited for the journal.
        return ChangeEffects { objects: oplog::objects(&[&target.object]), ..ChangeEffects::default() };
    };
    let made = Some(Rights { mode: attr.mode, uid: attr.uid, gid: attr.gid });
    let (new, access) = match access {
        Ok(access) => (Some(new), access),
        Err(Unrecorded) => (None, Access::Kept),
    };
    let objects =
        renaming.logged().into_iter().chain(oplog::object(&target.object, attr, new, access)).collect();
    ChangeEffects {
        bindings: [binding(&renaming.dir.object, name, None, Some(kernel))].into_iter().collect(),
        objects,
        made,
        ..ChangeEffects::default()
    }
}
