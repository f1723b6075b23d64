//! Delegations in the replies of OPEN, and the recalls that operations cause (RFC 8881 section 10.4).

use forebay_clientstate::Delegated;
use forebay_vfs::Wait;
use forebay_wire::nfs4::{
    Ace, Bitmap, Delegation, ReadDelegation, SpaceLimit, WhyNoDelegation, WriteDelegation, ace_type, attr,
    share,
};

use super::compound::{Compound, Context, Stop};
use super::convert::{file_key, wire_id};
use super::place::Place;
use crate::caller::At;

/// Returns the delegation for the reply to an OPEN with these flags.
pub(super) fn answer(granted: Option<Delegated>, access: u32, has_path: bool) -> Delegation<'static> {
    // The client asks ACCESS for each user.
    let permissions = Ace { kind: ace_type::ALLOWED, flag: 0, access_mask: 0, principal: b"EVERYONE@" };
    if let Some(Delegated { stateid, write }) = granted {
        let (stateid, recall) = (wire_id(stateid), false);
        if !write {
            return Delegation::Read(ReadDelegation { stateid, recall, permissions });
        }
        let space_limit = SpaceLimit::Size(u64::MAX);
        return Delegation::Write(WriteDelegation { stateid, recall, space_limit, permissions });
    }
    match access & share::WANT_DELEG_MASK {
        share::WANT_NO_PREFERENCE => Delegation::None,
        share::WANT_NO_DELEG => Delegation::NoneExt(WhyNoDelegation::NotWanted),
        share::WANT_CANCEL => Delegation::NoneExt(WhyNoDelegation::Cancelled),
        _ if has_path => Delegation::NoneExt(WhyNoDelegation::Contention(false)),
        _ => Delegation::NoneExt(WhyNoDelegation::Resource(false)),
    }
}

impl Compound {
    /// Recalls delegations of other clients before a file is changed, or looked at if `writes` is false. The operation
    /// fails with NFS4ERR_DELAY until they are returned.
    pub(super) fn announce(&mut self, cx: &Context<'_>, handle: &[u8], writes: bool) -> Result<(), Stop> {
        if !cx.server.has_delegations() {
            return Ok(());
        }
        let (client, file) = (self.client()?, file_key(handle)?);
        Ok(cx.server.state().announce(Some(client), &file, writes, cx.now, &mut self.effects)?)
    }

    /// Recalls delegations of the file with a name, before the name is removed or replaced.
    pub(super) fn announce_name(&mut self, cx: &Context<'_>, at: &At, name: &[u8]) -> Result<(), Stop> {
        if !cx.server.has_delegations() {
            return Ok(());
        }
        match cx.shared.vfs.lookup(&at.target, name, &at.caller.cred, Wait::Yes) {
            (Ok(found), _) => self.announce(cx, crate::convert::handle(&found.handle).as_bytes(), true),
            // The operation itself finds the error.
            (Err(_), _) => Ok(()),
        }
    }

    /// Recalls a write delegation of the current file before its size or its times are read.
    pub(super) fn announce_look(&mut self, cx: &Context<'_>, request: &Bitmap) -> Result<(), Stop> {
        let held = Bitmap::of(&[attr::SIZE, attr::CHANGE, attr::TIME_MODIFY, attr::TIME_METADATA]);
        if !cx.server.has_delegations() || (*request & held).is_empty() {
            return Ok(());
        }
        match self.place()? {
            Place::Above(_) => Ok(()),
            Place::Inode(wire, _) => {
                let wire = *wire;
                self.announce(cx, wire.as_bytes(), false)
            }
        }
    }
}
