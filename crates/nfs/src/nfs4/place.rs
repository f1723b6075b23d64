//! The current and the saved file handle of a COMPOUND (RFC 8881 section 16.2.3.1).

use forebay_vfs::Wait;
use forebay_wire::nfs3::FileHandle;
use forebay_wire::nfs4::{Nfsstat4, Stateid};

use super::compound::{Context, Stop};
use super::pseudo::Entry;
use crate::caller::{At, Caller};
use crate::convert::handle;

/// The object that a handle names.
#[derive(Clone)]
pub(super) enum Place {
    /// A directory above the exports.
    Above(usize),
    /// An inode. It is resolved when an operation needs it.
    Inode(FileHandle, Option<At>),
}

/// A current or saved handle, with the state id that goes with it.
#[derive(Clone)]
pub(super) struct Current {
    pub(super) place: Place,
    /// The state id for the special value "current".
    pub(super) stateid: Option<Stateid>,
}

impl Current {
    pub(super) fn new(place: Place) -> Self {
        Current { place, stateid: None }
    }
}

impl Place {
    /// Returns the place of a root.
    pub(super) fn of(cx: &Context<'_>, entry: Entry) -> Result<Self, Stop> {
        match entry {
            Entry::Node(number) => Ok(Place::Above(number)),
            Entry::Export(index) => {
                let target = cx.server.pseudo.exports[index].root();
                let caller = admit(cx, target.export.id)?;
                let wire = handle(&cx.shared.vfs.handle(&target));
                Ok(Place::Inode(wire, Some(At { target, caller })))
            }
        }
    }

    /// Returns the place of a root before any rule is applied: an operation that needs the inode applies them.
    pub(super) fn before_rules(cx: &Context<'_>, entry: Entry) -> Self {
        match entry {
            Entry::Node(number) => Place::Above(number),
            Entry::Export(index) => {
                let target = cx.server.pseudo.exports[index].root();
                Place::Inode(handle(&cx.shared.vfs.handle(&target)), None)
            }
        }
    }

    /// Returns the place of a handle from the client. With `for_secinfo`, the next operation asks for the flavours of
    /// authentication, and no protection is required (RFC 8881 section 2.6.3.1.1.8).
    pub(super) fn from_wire(cx: &Context<'_>, wire: &[u8], for_secinfo: bool) -> Result<Self, Stop> {
        if let Some(number) = cx.server.pseudo.find(wire) {
            return Ok(Place::Above(number));
        }
        let wire = FileHandle::new(wire).ok_or(Stop::Fail(Nfsstat4::Badhandle))?;
        let mut place = Place::Inode(wire, None);
        match place.resolve(cx) {
            Err(Stop::Fail(Nfsstat4::Wrongsec)) if for_secinfo => {}
            resolved => _ = resolved?,
        }
        Ok(place)
    }

    /// Returns the inode with the caller. Directories above the exports have none: nothing in them can be changed.
    pub(super) fn resolve(&mut self, cx: &Context<'_>) -> Result<&At, Stop> {
        match self {
            Place::Above(_) => Err(Stop::Fail(Nfsstat4::Rofs)),
            Place::Inode(wire, at) => {
                if at.is_none() {
                    let target = cx.shared.vfs.target(wire.as_bytes(), cx.wait)?;
                    let caller = admit(cx, target.export.id)?;
                    *at = Some(At { target, caller });
                }
                at.as_ref().ok_or(Stop::Fail(Nfsstat4::Serverfault))
            }
        }
    }

    /// Returns the handle for the client.
    pub(super) fn handle(&self, cx: &Context<'_>) -> FileHandle {
        match self {
            Place::Above(number) => cx.server.pseudo.handle(*number),
            Place::Inode(wire, _) => *wire,
        }
    }
}

/// Applies an export's rules. The status for a connection without the protection that the export asks for is
/// NFS4ERR_WRONGSEC (RFC 8881 section 2.6.3.1).
pub(super) fn admit(cx: &Context<'_>, export: u32) -> Result<Caller, Stop> {
    cx.shared.admit(cx.call, export, cx.wait).map_err(|stop| {
        let is_final = stop != crate::result::Stop::Later;
        if is_final && cx.shared.needs_other_protection(export, cx.call.peer) {
            return Stop::Fail(Nfsstat4::Wrongsec);
        }
        stop.into()
    })
}

/// Returns [`Stop::Later`] if an operation that has to wait may not wait here.
pub(super) fn may_wait(cx: &Context<'_>) -> Result<(), Stop> {
    if cx.wait == Wait::No { Err(Stop::Later) } else { Ok(()) }
}
