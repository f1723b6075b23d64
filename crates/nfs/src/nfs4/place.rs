//! The current and the saved file handle of a COMPOUND (RFC 8881 section 16.2.3.1).

use forebay_vfs::Wait;
use forebay_wire::nfs3::FileHandle;
use forebay_wire::nfs4::{Nfsstat4, Stateid};

use super::compound::{Context, Stop};
use super::pseudo::Entry;
use crate::caller::At;
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
                let wire = handle(&cx.shared.vfs.handle(&target));
                let caller = cx.shared.admit(cx.call, target.export.id, cx.wait)?;
                Ok(Place::Inode(wire, Some(At { target, caller })))
            }
        }
    }

    /// Returns the place of a handle from the client.
    pub(super) fn from_wire(cx: &Context<'_>, wire: &[u8]) -> Result<Self, Stop> {
        if let Some(number) = cx.server.pseudo.find(wire) {
            return Ok(Place::Above(number));
        }
        let wire = FileHandle::new(wire).ok_or(Stop::Fail(Nfsstat4::Badhandle))?;
        let mut place = Place::Inode(wire, None);
        place.resolve(cx)?;
        Ok(place)
    }

    /// Returns the inode with the caller. Directories above the exports have none: nothing in them can be changed.
    pub(super) fn resolve(&mut self, cx: &Context<'_>) -> Result<&At, Stop> {
        match self {
            Place::Above(_) => Err(Stop::Fail(Nfsstat4::Rofs)),
            Place::Inode(wire, at) => {
                if at.is_none() {
                    *at = Some(cx.shared.at(cx.call, wire, cx.wait)?);
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

/// Returns [`Stop::Later`] if an operation that has to wait may not wait here.
pub(super) fn may_wait(cx: &Context<'_>) -> Result<(), Stop> {
    if cx.wait == Wait::No { Err(Stop::Later) } else { Ok(()) }
}
