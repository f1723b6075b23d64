//! Delegations in the replies of OPEN, and the recalls that operations cause (RFC 8881 section 10.4).

use forebay_clientstate::{Delegated, Effects, FileKey};
use forebay_vfs::Wait;
use forebay_wire::nfs3::{self, FileHandle, Nfsstat3, Procedure};
use forebay_wire::nfs4::{
    Ace, Bitmap, Delegation, ReadDelegation, SpaceLimit, WhyNoDelegation, WriteDelegation, attr, share,
};

use super::compound::{Compound, Context, Stop};
use super::convert::{file_key, wire_id};
use super::place::Place;
use super::server::Server;
use crate::caller::At;
use crate::request::Call;
use crate::shared::Shared;

/// `ACE4_ACCESS_ALLOWED_ACE_TYPE`.
const ALLOWED: u32 = 0;

/// Returns the delegation for the reply to an OPEN with these flags.
pub(super) fn answer(granted: Option<Delegated>, access: u32, has_path: bool) -> Delegation<'static> {
    // The client asks ACCESS for each user.
    let permissions = Ace { kind: ALLOWED, flag: 0, access_mask: 0, principal: b"EVERYONE@" };
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

impl Shared {
    /// Recalls delegations that are in the way of a request of NFSv3. The request gets NFS3ERR_JUKEBOX until they are
    /// returned, or waits until their revocation is durable. Costs the read of two counters while no client has a
    /// delegation.
    #[inline]
    pub(crate) fn announce_v3(
        &self,
        procedure: Procedure,
        call: &Call<'_>,
        wait: Wait,
    ) -> Result<(), crate::result::Stop> {
        match &self.nfs4 {
            Some(server) if server.has_delegations() || server.has_revocations() => {
                self.recall_for_v3(server, procedure, call, wait)
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn recall_for_v3(
        &self,
        server: &Server,
        procedure: Procedure,
        call: &Call<'_>,
        wait: Wait,
    ) -> Result<(), crate::result::Stop> {
        let mut effects = Effects::default();
        let mut waits = false;
        for handle in self.touched(procedure, call, wait)? {
            let Some(file) = FileKey::new(handle.as_bytes()) else { continue };
            let writes = procedure != Procedure::Read;
            waits |= server.state().announce(None, &file, writes, server.now(), &mut effects).is_err();
        }
        if server.has_revocations() && self.vfs.logs_state() {
            // The request may rely on them.
            if wait == Wait::No {
                return Err(crate::result::Stop::Later);
            }
            server.log_and_wait(&self.vfs, &mut effects);
        }
        server.act(&mut effects);
        if waits { Err(crate::result::Stop::Fail(Nfsstat3::Jukebox)) } else { Ok(()) }
    }

    /// Returns the files whose data, attributes or names a request of NFSv3 touches.
    fn touched(
        &self,
        procedure: Procedure,
        call: &Call<'_>,
        wait: Wait,
    ) -> Result<Vec<FileHandle>, crate::result::Stop> {
        let named = |place: &nfs3::DirOpArgs<'_>| {
            let at = self.at(call, &place.dir, wait)?;
            match self.vfs.lookup(&at.target, place.name, &at.caller.cred, wait).0 {
                Ok(found) => Ok(Some(crate::convert::handle(&found.handle))),
                Err(forebay_vfs::Error::WouldBlock) => Err(crate::result::Stop::Later),
                // The procedure itself finds the error.
                Err(_) => Ok(None),
            }
        };
        Ok(match procedure {
            Procedure::Read => vec![call.args::<nfs3::ReadArgs>()?.file],
            Procedure::Write => vec![call.args::<nfs3::WriteArgs<'_>>()?.file],
            Procedure::Setattr => vec![call.args::<nfs3::SetattrArgs>()?.object],
            Procedure::Link => vec![call.args::<nfs3::LinkArgs<'_>>()?.file],
            Procedure::Remove => named(&call.args::<nfs3::RemoveArgs<'_>>()?)?.into_iter().collect(),
            Procedure::Create => named(&call.args::<nfs3::CreateArgs<'_>>()?.target)?.into_iter().collect(),
            Procedure::Rename => {
                let args: nfs3::RenameArgs<'_> = call.args()?;
                named(&args.from)?.into_iter().chain(named(&args.to)?).collect()
            }
            _ => Vec::new(),
        })
    }
}
