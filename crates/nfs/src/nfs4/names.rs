//! Names: LOOKUP, LOOKUPP, READLINK, SECINFO, and the handles of a COMPOUND.

use forebay_config::Flavor;
use forebay_rpc::Reply;
use forebay_vfs::FileType;
use forebay_wire::nfs4::{
    GssInfo, HandleArgs, Nfsstat4, Opcode, ReadlinkOk, Secinfo, SecinfoOk, SecinfoStyle,
};
use forebay_wire::rpc::{AUTH_NONE, AUTH_SYS};
use forebay_wire::rpcsec_gss::{GssService, KRB5_OID};
use forebay_wire::{Array, Opaque};

use super::compound::{Compound, Context, Stop, put};
use super::place::{Current, Place, Reached, may_wait};
use super::pseudo::Entry;
use crate::caller::At;
use crate::convert::handle;

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

    /// Makes a place the current one.
    pub(super) fn set_place(&mut self, place: Place) -> &mut Place {
        &mut self.current.insert(Current::new(place)).place
    }

    /// Carries out GETFH: appends the current file handle.
    pub(super) fn getfh(&mut self, cx: &Context<'_>, reply: &mut Reply<'_>) -> Result<(), Stop> {
        let handle = self.place()?.handle(cx);
        let body = HandleArgs { object: Opaque(handle.as_bytes()) };
        put(&mut self.reply, reply.head(), Opcode::Getfh, &body);
        Ok(())
    }

    /// Carries out LOOKUP: makes the object with this name the current one. `asks` is true if the client only asks
    /// for the object's flavours.
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
            let entry = cx.server.pseudo().node(*number).names.get(name).copied();
            return Place::of(cx, entry.ok_or(Stop::Fail(Nfsstat4::Noent))?, asks);
        }
        let at = place.resolve(cx)?;
        require_dir(at)?;
        let export = &at.target.export;
        let is_root = std::sync::Arc::ptr_eq(&export.root().object, &at.target.object);
        if is_root {
            let pseudo = cx.server.pseudo();
            if let Some(entry) = pseudo.over_root(name)
                && pseudo.is_root(export)
            {
                return Place::of(cx, entry, asks);
            }
        }
        let (found, _) = cx.shared.vfs.lookup(&at.target, name, &at.caller.cred, cx.wait);
        Ok(Place::Inode(handle(&found?.handle), Reached::Not))
    }

    /// Carries out LOOKUPP: makes the directory above the current one the current one.
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

    /// Returns the directory above the current one, across the root of an export as well. Fails with NFS4ERR_NOENT at
    /// the root that clients see.
    fn parent(&mut self, cx: &Context<'_>, asks: bool) -> Result<Place, Stop> {
        let place = self.place()?;
        if let Place::Above(number) = *place {
            if number == 0 {
                return Err(Stop::Fail(Nfsstat4::Noent));
            }
            let pseudo = cx.server.pseudo();
            return match pseudo.node(number).parent {
                0 => Place::of(cx, pseudo.root(), asks),
                above => Ok(Place::Above(above)),
            };
        }
        let at = place.resolve(cx)?;
        require_dir(at)?;
        let export = &at.target.export;
        if std::sync::Arc::ptr_eq(&export.root().object, &at.target.object) {
            return match cx.server.pseudo().above(export) {
                Entry::Export(id) if id == export.id => Err(Stop::Fail(Nfsstat4::Noent)),
                entry => Place::of(cx, entry, asks),
            };
        }
        let (found, _) = cx.shared.vfs.lookup(&at.target, b"..", &at.caller.cred, cx.wait);
        Ok(Place::Inode(handle(&found?.handle), Reached::Not))
    }

    /// Carries out READLINK: appends the target of the current symbolic link. Fails with [`Stop::Later`] on an event
    /// loop.
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

/// Fails for an inode that is no directory, as LOOKUP and READDIR do.
pub(super) fn require_dir(at: &At) -> Result<(), Stop> {
    match at.target.object.kind() {
        FileType::Directory => Ok(()),
        FileType::Symlink => Err(Stop::Fail(Nfsstat4::Symlink)),
        _ => Err(Stop::Fail(Nfsstat4::Notdir)),
    }
}
