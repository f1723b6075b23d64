//! Changes of directories: CREATE, REMOVE, RENAME, LINK.

use forebay_rpc::Reply;
use forebay_vfs::{Errno, FileType, Special, Wcc};
use forebay_wire::nfs4::{
    ChangeInfo, ChangeOk, CreateArgs, CreateOk, CreateType, Nfsstat4, Opcode, RenameOk,
};

use super::acl::{self, set_attr_of_new};
use super::compound::{Change, Compound, Context, Stop, put};
use super::convert::change;
use super::names::check;
use super::place::{Place, Reached, may_wait};
use super::set_attrs::set_mask;
use crate::caller::At;
use crate::convert::handle;
use crate::limits;

/// Returns the change of a directory for the client.
pub(super) fn change_info(wcc: &Wcc) -> ChangeInfo {
    match (&wcc.before, &wcc.after) {
        (Some(before), Some(after)) => {
            ChangeInfo { atomic: true, before: change(before), after: change(after) }
        }
        (before, after) => {
            let known = after.as_ref().or(before.as_ref()).map(change).unwrap_or_default();
            ChangeInfo { atomic: false, before: known, after: known }
        }
    }
}

/// Returns the change of a directory for a request that an earlier server carried out. The attributes before the
/// request are unknown, so the pair is not atomic (RFC 8881 section 3.3.12).
pub(super) fn change_info_again(wcc: Wcc) -> ChangeInfo {
    change_info(&Wcc { before: None, ..wcc })
}

impl Compound {
    /// Returns the current directory, of a caller who may change it.
    pub(super) fn dir_to_change(&mut self, cx: &Context<'_>) -> Result<At, Stop> {
        at_to_change(self.place()?, cx)
    }

    /// Executes CREATE, which makes anything but a regular file.
    pub(super) fn create(
        &mut self,
        cx: &Context<'_>,
        args: &CreateArgs<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        may_wait(cx)?;
        check(args.name)?;
        let special = match args.objtype {
            CreateType::Dir => Special::Directory,
            CreateType::Blk(device) => Special::Block(device.major, device.minor),
            CreateType::Chr(device) => Special::Character(device.major, device.minor),
            CreateType::Lnk(target) => Special::Symlink(target),
            CreateType::Sock => Special::Socket,
            CreateType::Fifo => Special::Fifo,
            CreateType::Reg | CreateType::Attrdir | CreateType::Namedattr => {
                return Err(Stop::Fail(Nfsstat4::Badtype));
            }
        };
        limits::special(&special)?;
        let set = set_attr_of_new(cx, &args.attributes)?;
        if self.was_carried_out(cx) {
            let cinfo = change_info_again(self.unchanged(cx)?);
            let place = self.find(cx, args.name, false)?;
            let body = CreateOk { cinfo, attrset: set_mask(&args.attributes) };
            put(&mut self.reply, reply.head(), Opcode::Create, &body);
            self.set_place(place);
            return Ok(None);
        }
        let at = self.dir_to_change(cx)?;
        let acls = acl::wanted(cx, &args.attributes, &at.target, kind(&special))?;
        let asked = self.logged_reply(cx, true);
        let changed =
            cx.shared.vfs.make(&at.target, args.name, special, &set, &at.caller.cred, asked.as_ref());
        let ((target, _), change) = Change::of(cx, &at.target.export, changed.result, changed.intent)?;
        let change = acl::set_after(cx, &at, &target, acls, change)?;
        let body = CreateOk { cinfo: change_info(&changed.wcc), attrset: set_mask(&args.attributes) };
        put(&mut self.reply, reply.head(), Opcode::Create, &body);
        let made = handle(&cx.shared.vfs.handle(&target));
        self.set_place(Place::Inode(made, Reached::Open(At { target, caller: at.caller })));
        Ok(change)
    }

    /// Executes REMOVE, of a file or a directory.
    pub(super) fn remove(
        &mut self,
        cx: &Context<'_>,
        name: &[u8],
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        may_wait(cx)?;
        check(name)?;
        let at = self.dir_to_change(cx)?;
        let _changing = self.begin_change_of_name(cx, &at, name)?;
        let (vfs, cred) = (&cx.shared.vfs, &at.caller.cred);
        if self.was_carried_out(cx) {
            let body = ChangeOk { cinfo: change_info_again(self.unchanged(cx)?) };
            put(&mut self.reply, reply.head(), Opcode::Remove, &body);
            return Ok(None);
        }
        let asked = self.logged_reply(cx, false);
        let changed = match vfs.remove(&at.target, name, cred, asked.as_ref()) {
            // NFSv4 has one operation for files and directories.
            changed if matches!(&changed.result, Err(forebay_vfs::Error::Os(Errno::ISDIR))) => {
                vfs.rmdir(&at.target, name, cred, asked.as_ref())
            }
            changed => changed,
        };
        let ((), change) = Change::of(cx, &at.target.export, changed.result, changed.intent)?;
        let body = ChangeOk { cinfo: change_info(&changed.wcc) };
        put(&mut self.reply, reply.head(), Opcode::Remove, &body);
        Ok(change)
    }

    /// Executes RENAME, from the saved directory to the current one.
    pub(super) fn rename(
        &mut self,
        cx: &Context<'_>,
        from_name: &[u8],
        to_name: &[u8],
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        may_wait(cx)?;
        let mut saved = self.saved.clone().ok_or(Stop::Fail(Nfsstat4::Nofilehandle))?;
        check(from_name)?;
        check(to_name)?;
        let to = self.dir_to_change(cx)?;
        let from = at_to_change(&mut saved.place, cx)?;
        if from.target.export.id != to.target.export.id {
            return Err(Stop::Fail(Nfsstat4::Xdev));
        }
        // Both recalls are sent at once.
        let moved = self.begin_change_of_name(cx, &from, from_name);
        let replaced = self.begin_change_of_name(cx, &to, to_name);
        let _changing = (moved?, replaced?);
        let cred = &from.caller.cred;
        if self.was_carried_out(cx) {
            let after = Some(cx.shared.vfs.getattr(&from.target)?);
            let source = change_info_again(Wcc { before: None, after });
            let body = RenameOk { source, target: change_info_again(self.unchanged(cx)?) };
            put(&mut self.reply, reply.head(), Opcode::Rename, &body);
            return Ok(None);
        }
        let asked = self.logged_reply(cx, false);
        let renamed =
            cx.shared.vfs.rename(&from.target, from_name, &to.target, to_name, cred, asked.as_ref());
        let ((), change) = Change::of(cx, &from.target.export, renamed.result, renamed.intent)?;
        let body = RenameOk { source: change_info(&renamed.from), target: change_info(&renamed.to) };
        put(&mut self.reply, reply.head(), Opcode::Rename, &body);
        Ok(change)
    }

    /// Executes LINK: the saved file gets a name in the current directory.
    pub(super) fn link(
        &mut self,
        cx: &Context<'_>,
        name: &[u8],
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        may_wait(cx)?;
        let mut saved = self.saved.clone().ok_or(Stop::Fail(Nfsstat4::Nofilehandle))?;
        check(name)?;
        let dir = self.dir_to_change(cx)?;
        let file = at_to_change(&mut saved.place, cx)?;
        if file.target.export.id != dir.target.export.id {
            return Err(Stop::Fail(Nfsstat4::Xdev));
        }
        if file.target.object.kind() == FileType::Directory {
            return Err(Stop::Fail(Nfsstat4::Isdir));
        }
        let _changing = self.begin_change(cx, saved.place.handle(cx).as_bytes())?;
        if self.was_carried_out(cx) {
            let body = ChangeOk { cinfo: change_info_again(self.unchanged(cx)?) };
            put(&mut self.reply, reply.head(), Opcode::Link, &body);
            return Ok(None);
        }
        let (cred, asked) = (&file.caller.cred, self.logged_reply(cx, false));
        let changed = cx.shared.vfs.link(&file.target, &dir.target, name, cred, asked.as_ref());
        let (_, change) = Change::of(cx, &file.target.export, changed.result, changed.intent)?;
        let body = ChangeOk { cinfo: change_info(&changed.wcc) };
        put(&mut self.reply, reply.head(), Opcode::Link, &body);
        Ok(change)
    }
}

/// Returns the type of a new inode, as far as access control lists depend on it.
fn kind(special: &Special<'_>) -> FileType {
    match special {
        Special::Directory => FileType::Directory,
        Special::Symlink(_) => FileType::Symlink,
        _ => FileType::RegularFile,
    }
}

/// Returns the inode of a place, for a caller who may change it.
pub(super) fn at_to_change(place: &mut Place, cx: &Context<'_>) -> Result<At, Stop> {
    let at = place.resolve(cx)?.clone();
    if at.caller.read_only { Err(Stop::Fail(Nfsstat4::Rofs)) } else { Ok(at) }
}
