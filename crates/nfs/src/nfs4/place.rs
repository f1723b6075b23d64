//! The current and the saved file handle of a COMPOUND (RFC 8881 section 16.2.3.1).

use forebay_config::Flavor;
use forebay_vfs::Wait;
use forebay_wire::nfs3::FileHandle;
use forebay_wire::nfs4::{Nfsstat4, Stateid};

use super::compound::{Context, Stop};
use super::pseudo::{Entry, Pseudo};
use crate::caller::{At, Caller};
use crate::convert::handle;

/// The object that a handle names.
#[derive(Clone)]
pub(super) enum Place {
    /// A directory above the exports.
    Above(usize),
    /// An inode. It is resolved when an operation needs it.
    Inode(FileHandle, Reached),
}

/// The way in which a COMPOUND has an inode.
#[derive(Clone)]
pub(super) enum Reached {
    /// By its handle only.
    Not,
    /// By the attribute cache: the inode is not open. This caller may use it.
    Cached(Caller),
    /// By the inode cache, for an admitted caller.
    Open(At),
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
    /// Returns the place of a root. If the client only asks for its flavours, any flavour will do.
    pub(super) fn of(cx: &Context<'_>, entry: Entry, asks: bool) -> Result<Self, Stop> {
        match entry {
            Entry::Node(number) => Ok(Place::Above(number)),
            Entry::Export(id) => {
                let export = cx.shared.vfs.exports().find(id).ok_or(Stop::Fail(Nfsstat4::Stale))?;
                let target = export.root();
                let wire = handle(&cx.shared.vfs.handle(&target));
                match admit(cx, target.export.id) {
                    Err(Stop::Fail(Nfsstat4::Wrongsec)) if asks => Ok(Place::Inode(wire, Reached::Not)),
                    caller => Ok(Place::Inode(wire, Reached::Open(At { target, caller: caller? }))),
                }
            }
        }
    }

    /// Returns the place that a handle from the client names. It is not reached yet.
    pub(super) fn named(cx: &Context<'_>, wire: &[u8]) -> Result<Self, Stop> {
        if Pseudo::is_handle(wire)
            && let Some(number) = cx.server.pseudo().find(wire)
        {
            return Ok(Place::Above(number));
        }
        let wire = FileHandle::new(wire).ok_or(Stop::Fail(Nfsstat4::Badhandle))?;
        Ok(Place::Inode(wire, Reached::Not))
    }

    /// Reaches the place. With `asks`, the next operation asks for the flavours, so any flavour and any protection will
    /// do (RFC 8881 section 2.6.3.1.1.8).
    pub(super) fn reach_unless_it_asks(&mut self, cx: &Context<'_>, asks: bool) -> Result<(), Stop> {
        match self.reach(cx) {
            Err(Stop::Fail(Nfsstat4::Wrongsec)) if asks => Ok(()),
            reached => reached,
        }
    }

    /// Returns the flavours by which the client may use the place, best first. The directories above the exports take
    /// every flavour that one of the exports takes, and AUTH_SYS.
    pub(super) fn flavors(&self, cx: &Context<'_>) -> Result<Vec<Flavor>, Stop> {
        let peer = cx.call.peer;
        match self {
            Place::Above(_) => {
                let exports = cx.shared.vfs.exports().iter();
                let mut flavors: Vec<_> =
                    exports.flat_map(|export| cx.shared.flavors(export.id, peer)).collect();
                flavors.push(Flavor::Sys);
                let mut seen = Vec::new();
                flavors.retain(|flavor| {
                    !seen.contains(flavor) && {
                        seen.push(*flavor);
                        true
                    }
                });
                Ok(flavors)
            }
            Place::Inode(_, Reached::Open(at)) => Ok(cx.shared.flavors(at.target.export.id, peer)),
            Place::Inode(wire, _) => {
                let target = cx.shared.vfs.target(wire.as_bytes(), cx.wait)?;
                Ok(cx.shared.flavors(target.export.id, peer))
            }
        }
    }

    /// Returns the inode with the caller. Directories above the exports have none: nothing in them can be changed.
    #[inline]
    pub(super) fn resolve(&mut self, cx: &Context<'_>) -> Result<&At, Stop> {
        if !matches!(self, Place::Inode(_, Reached::Open(_))) {
            self.open(cx)?;
        }
        match self {
            Place::Inode(_, Reached::Open(at)) => Ok(at),
            _ => Err(Stop::Fail(Nfsstat4::Serverfault)),
        }
    }

    /// Finds the inode in the inode cache, or opens it, and applies the export's rules to the caller.
    fn open(&mut self, cx: &Context<'_>) -> Result<(), Stop> {
        let Place::Inode(wire, reached) = self else { return Err(Stop::Fail(Nfsstat4::Rofs)) };
        let target = cx.shared.vfs.target(wire.as_bytes(), cx.wait)?;
        let caller = admit(cx, target.export.id)?;
        *reached = Reached::Open(At { target, caller });
        Ok(())
    }

    /// Prepares an operation that needs no more than the attribute cache has. An event loop uses that cache for an
    /// inode that is not open; a worker opens the inode.
    pub(super) fn reach(&mut self, cx: &Context<'_>) -> Result<(), Stop> {
        match self {
            Place::Above(_) => return Ok(()),
            Place::Inode(_, Reached::Cached(_)) if cx.wait == Wait::No => return Ok(()),
            Place::Inode(..) => {}
        }
        let resolved = self.resolve(cx).map(drop);
        let Place::Inode(wire, reached) = self else { return resolved };
        if resolved != Err(Stop::Later) || cx.wait == Wait::Yes {
            return resolved;
        }
        let admitted = cx.shared.vfs.known(wire.as_bytes(), |export, _| Some(admit(cx, export.id)));
        *reached = Reached::Cached(admitted.unwrap_or(Err(Stop::Later))?);
        Ok(())
    }

    /// Returns the handle and the caller of an inode, if the caller was admitted.
    pub(super) fn admitted(&self) -> Option<(&FileHandle, &Caller)> {
        match self {
            Place::Inode(wire, Reached::Open(At { caller, .. }) | Reached::Cached(caller)) => {
                Some((wire, caller))
            }
            _ => None,
        }
    }

    /// Returns the handle for the client.
    pub(super) fn handle(&self, cx: &Context<'_>) -> FileHandle {
        match self {
            Place::Above(number) => cx.server.pseudo().handle(*number),
            Place::Inode(wire, _) => *wire,
        }
    }
}

/// Applies an export's rules. The status is NFS4ERR_WRONGSEC for a flavour that the export does not take, and for a
/// connection without the protection that it asks for (RFC 8881 section 2.6.3.1).
pub(super) fn admit(cx: &Context<'_>, export: u32) -> Result<Caller, Stop> {
    cx.shared.admit(cx.call, export, cx.wait).map_err(|stop| {
        let is_final = stop != crate::result::Stop::Later;
        if is_final && cx.shared.needs_other_protection(export, cx.call) {
            return Stop::Fail(Nfsstat4::Wrongsec);
        }
        stop.into()
    })
}

/// Returns [`Stop::Later`] if an operation that has to wait may not wait here.
pub(super) fn may_wait(cx: &Context<'_>) -> Result<(), Stop> {
    if cx.wait == Wait::No { Err(Stop::Later) } else { Ok(()) }
}
