//! Names: LOOKUP, LOOKUPP, CREATE, REMOVE, RENAME, LINK, READLINK, SECINFO, ACCESS, and the handles of a COMPOUND.

use forebay_config::Flavor;
use forebay_rpc::Reply;
use forebay_vfs::{Access, Errno, FileType, Special, Wcc};
use forebay_wire::nfs4::{
    AccessOk, ChangeInfo, ChangeOk, CreateArgs, CreateOk, CreateType, GssInfo, HandleArgs, Nfsstat4, Opcode,
    ReadlinkOk, RenameOk, Secinfo, SecinfoOk, SecinfoStyle, access,
};
use forebay_wire::rpc::{AUTH_NONE, AUTH_SYS};
use forebay_wire::rpcsec_gss::{GssService, KRB5_OID};
use forebay_wire::{Array, Opaque};

use super::acl::{self, set_attr_of_new};
use super::compound::{Change, Compound, Context, Stop, put};
use super::convert::change;
use super::place::{Current, Place, may_wait};
use super::pseudo::Entry;
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

/// Checks a name (RFC 8881 section 14.5). The file system checks its length.
pub(super) fn check(name: &[u8]) -> Result<(), Stop> {
    let status = match name {
        [] => Nfsstat4::Inval,
        b"." | b".." => Nfsstat4::Badname,
        name if name.contains(&b'/') || name.contains(&0) => Nfsstat4::Badchar,
        _ => return Ok(()),
    };
    Err(Stop::Fail(status))
}

impl Compound {
    /// Returns the current place.
    pub(super) fn place(&mut self) -> Result<&mut Place, Stop> {
        let current = self.current.as_mut().ok_or(Stop::Fail(Nfsstat4::Nofilehandle))?;
        Ok(&mut current.place)
    }

    /// Returns the current directory, of a caller who may change it.
    pub(super) fn dir_to_change(&mut self, cx: &Context<'_>) -> Result<At, Stop> {
        at_to_change(self.place()?, cx)
    }

    pub(super) fn set_place(&mut self, place: Place) {
        self.current = Some(Current::new(place));
    }

    pub(super) fn getfh(&mut self, cx: &Context<'_>, reply: &mut Reply<'_>) -> Result<(), Stop> {
        let handle = self.place()?.handle(cx);
        let body = HandleArgs { object: Opaque(handle.as_bytes()) };
        put(&mut self.reply, reply.head(), Opcode::Getfh, &body);
        Ok(())
    }

    pub(super) fn lookup(
        &mut self,
        cx: &Context<'_>,
        name: &[u8],
        asks: bool,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        check(name)?;
        let next = self.find(cx, name, asks)?;
        self.set_place(next);
        self.reply.start(reply.head(), Opcode::Lookup);
        Ok(())
    }

    /// Returns the object that a name in the current directory leads to. `asks` is true if the client only asks for
    /// the object's flavours.
    pub(super) fn find(&mut self, cx: &Context<'_>, name: &[u8], asks: bool) -> Result<Place, Stop> {
        let place = self.place()?;
        if let Place::Above(number) = place {
            let entry = cx.server.pseudo.node(*number).names.get(name).copied();
            return Place::of(cx, entry.ok_or(Stop::Fail(Nfsstat4::Noent))?, asks);
        }
        let at = place.resolve(cx)?;
        require_dir(at)?;
        let export = &at.target.export;
        let is_root = std::sync::Arc::ptr_eq(&export.root().object, &at.target.object);
        if let Some(entry) = cx.server.pseudo.over_root(name)
            && is_root
            && cx.server.pseudo.is_root(export)
        {
            return Place::of(cx, entry, asks);
        }
        let (found, _) = cx.shared.vfs.lookup(&at.target, name, &at.caller.cred, cx.wait);
        Ok(Place::Inode(handle(&found?.handle), None))
    }

    pub(super) fn lookup_parent(
        &mut self,
        cx: &Context<'_>,
        asks: bool,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        let next = self.parent(cx, asks)?;
        self.set_place(next);
        self.reply.start(reply.head(), Opcode::Lookupp);
        Ok(())
    }

    fn parent(&mut self, cx: &Context<'_>, asks: bool) -> Result<Place, Stop> {
        let place = self.place()?;
        if let Place::Above(number) = *place {
            if number == 0 {
                return Err(Stop::Fail(Nfsstat4::Noent));
            }
            return match cx.server.pseudo.node(number).parent {
                0 => Place::of(cx, cx.server.pseudo.root(), asks),
                above => Ok(Place::Above(above)),
            };
        }
        let at = place.resolve(cx)?;
        require_dir(at)?;
        let export = &at.target.export;
        if std::sync::Arc::ptr_eq(&export.root().object, &at.target.object) {
            return match cx.server.pseudo.above(export) {
                Entry::Export(index) if cx.server.pseudo.exports[index].id == export.id => {
                    Err(Stop::Fail(Nfsstat4::Noent))
                }
                entry => Place::of(cx, entry, asks),
            };
        }
        let (found, _) = cx.shared.vfs.lookup(&at.target, b"..", &at.caller.cred, cx.wait);
        Ok(Place::Inode(handle(&found?.handle), None))
    }

    pub(super) fn access(&mut self, cx: &Context<'_>, bits: u32, reply: &mut Reply<'_>) -> Result<(), Stop> {
        const ALL: u32 = access::READ
            | access::LOOKUP
            | access::MODIFY
            | access::EXTEND
            | access::DELETE
            | access::EXECUTE
            | XATTRS;
        /// The bits of RFC 8276.
        const XATTRS: u32 = access::XAREAD | access::XAWRITE | access::XALIST;
        let is_version_2 = self.is_version_2();
        let place = self.place()?;
        let body = if let Place::Above(_) = place {
            AccessOk { supported: bits & ALL & !XATTRS, access: bits & (access::READ | access::LOOKUP) }
        } else {
            let at = place.resolve(cx)?;
            let is_dir = at.target.object.kind() == FileType::Directory;
            // A directory is not executed, and a file is not looked up in (RFC 8881 section 18.1.3).
            let none = if is_dir { access::EXECUTE } else { access::LOOKUP | access::DELETE };
            let is_file = at.target.object.kind() == FileType::RegularFile;
            let has_xattrs = (is_dir || is_file) && at.target.export.supports_xattrs() && is_version_2;
            let supported = bits & ALL & !none & !if has_xattrs { 0 } else { XATTRS };
            let any = |some: u32| supported & some != 0;
            let writes = any(access::MODIFY | access::EXTEND | access::DELETE);
            let asked = Access {
                read: any(access::READ | access::XAREAD | access::XALIST),
                write: (writes || any(access::XAWRITE)) && !at.caller.read_only,
                execute: any(access::LOOKUP | access::EXECUTE) || is_dir && writes,
            };
            let (may, _) = cx.shared.vfs.access(&at.target, &at.caller.cred, asked, cx.wait)?;
            let may_write = may.write && (!is_dir || may.execute);
            let bit = |on: bool, bits: u32| if on { bits } else { 0 };
            let granted = bit(may.read, access::READ | access::XAREAD | access::XALIST)
                | bit(may.write, access::XAWRITE)
                | bit(may.execute, access::LOOKUP | access::EXECUTE)
                | bit(may_write, access::MODIFY | access::EXTEND | access::DELETE);
            AccessOk { supported, access: supported & granted }
        };
        put(&mut self.reply, reply.head(), Opcode::Access, &body);
        Ok(())
    }

    pub(super) fn readlink(&mut self, cx: &Context<'_>, reply: &mut Reply<'_>) -> Result<(), Stop> {
        may_wait(cx)?;
        let place = self.place()?;
        if let Place::Above(_) = place {
            return Err(Stop::Fail(Nfsstat4::WrongType));
        }
        let at = place.resolve(cx)?;
        if at.target.object.kind() != FileType::Symlink {
            return Err(Stop::Fail(Nfsstat4::WrongType));
        }
        let (link, _) = cx.shared.vfs.readlink(&at.target)?;
        put(&mut self.reply, reply.head(), Opcode::Readlink, &ReadlinkOk { link: &link });
        Ok(())
    }

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
        self.set_place(Place::Inode(made, Some(At { target, caller: at.caller })));
        Ok(change)
    }

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

    /// SECINFO and SECINFO_NO_NAME: the flavours that the server takes. Afterwards there is no current handle (RFC 8881
    /// section 2.6.3.1.1.8).
    pub(super) fn secinfo(
        &mut self,
        cx: &Context<'_>,
        name: Option<&[u8]>,
        style: SecinfoStyle,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        let place = match (name, style) {
            (Some(name), _) => {
                check(name)?;
                self.find(cx, name, true)
            }
            (None, SecinfoStyle::Parent) => self.parent(cx, true),
            (None, SecinfoStyle::CurrentFh) => self.place().cloned(),
        };
        // Names in an export that refuses the caller are not looked up: the flavours are those of the export.
        let place = match place {
            Err(Stop::Fail(Nfsstat4::Wrongsec)) => self.place()?.clone(),
            place => place?,
        };
        let gss = |service| Secinfo::Gss(GssInfo { oid: KRB5_OID, qop: 0, service });
        let mut list = Vec::new();
        for flavor in place.flavors(cx)? {
            match flavor {
                Flavor::Sys => list.extend([Secinfo::Flavor(AUTH_SYS), Secinfo::Flavor(AUTH_NONE)]),
                Flavor::Krb5 => list.push(gss(GssService::None as u32)),
                Flavor::Krb5i => list.push(gss(GssService::Integrity as u32)),
                Flavor::Krb5p => list.push(gss(GssService::Privacy as u32)),
            }
        }
        let mut buffer = Vec::new();
        let flavours = Array::encoded(&mut buffer, &list);
        let flavors = flavours.ok_or(Stop::Fail(Nfsstat4::Serverfault))?;
        let number = if name.is_some() { Opcode::Secinfo } else { Opcode::SecinfoNoName };
        put(&mut self.reply, reply.head(), number, &SecinfoOk { flavors });
        self.current = None;
        Ok(())
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

/// Fails for an inode that is no directory, as LOOKUP and READDIR do.
pub(super) fn require_dir(at: &At) -> Result<(), Stop> {
    match at.target.object.kind() {
        FileType::Directory => Ok(()),
        FileType::Symlink => Err(Stop::Fail(Nfsstat4::Symlink)),
        _ => Err(Stop::Fail(Nfsstat4::Notdir)),
    }
}
