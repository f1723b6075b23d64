//! Delegations in the replies of OPEN, and the recalls that operations cause (RFC 8881 section 10.4).

use forebay_clientstate::{Changing, ClientId, Delegated, Effects, FileKey};
use forebay_vfs::{Handle, Wait};
use forebay_wire::nfs3::{self, Fattr3, FileHandle, Nfsstat3, PostOpAttr, Procedure};
use forebay_wire::nfs4::{
    Ace, Bitmap, Delegation, Nfsstat4, ReadDelegation, SpaceLimit, WhyNoDelegation, WriteDelegation, attr,
    share,
};

use super::compound::{Compound, Context, Stop};
use super::convert::wire_id;
use super::server::Server;
use crate::caller::At;
use crate::request::Call;
use crate::result::Stop as Stop3;
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

/// The attributes that the holder of a write delegation may know better than the server.
pub(super) const HELD: Bitmap =
    Bitmap::of(&[attr::SIZE, attr::CHANGE, attr::TIME_MODIFY, attr::TIME_METADATA]);

impl Context<'_> {
    /// Returns the key of the file with a handle. Handles of this server always fit.
    pub(super) fn file_key(&self, handle: &[u8]) -> Result<FileKey, Stop> {
        self.shared.file_key(handle).ok_or(Stop::Fail(Nfsstat4::Badhandle))
    }

    /// Returns true if a listing with these attributes would show outdated ones of an entry.
    pub(super) fn is_outdated(&self, by: ClientId, handle: &[u8], request: &Bitmap) -> bool {
        !(*request & HELD).is_empty() && self.server.is_write_delegated(self.shared, Some(by), handle)
    }
}

impl Compound {
    /// Begins a change of a file, and recalls delegations of other clients. The operation fails with NFS4ERR_DELAY
    /// until they are returned. No client gets a delegation before the result is dropped.
    pub(super) fn begin_change<'a>(&mut self, cx: &Context<'a>, handle: &[u8]) -> Result<Changing<'a>, Stop> {
        let changing = cx.server.counters.begin_change(cx.shared.vfs.file_key(handle).as_slice());
        if cx.server.has_delegations() {
            self.announce(cx, handle, true)?;
        }
        Ok(changing)
    }

    /// Begins a change of the file that a name leads to: the name is removed or replaced.
    pub(super) fn begin_change_of_name<'a>(
        &mut self,
        cx: &Context<'a>,
        at: &At,
        name: &[u8],
    ) -> Result<Changing<'a>, Stop> {
        let any = cx.server.counters.begin_change_of_any();
        if !cx.server.counters.needs_file() {
            return Ok(any);
        }
        match cx.shared.vfs.lookup(&at.target, name, &at.caller.cred, Wait::Yes) {
            (Ok(found), _) => self.begin_change(cx, crate::convert::handle(&found.handle).as_bytes()),
            // The operation itself finds the error, or a file that is made meanwhile.
            (Err(_), _) => Ok(any),
        }
    }

    /// Recalls the write delegations of files in a listing whose size or times it would show.
    pub(super) fn announce_listed(&mut self, cx: &Context<'_>, files: &[FileHandle]) -> Result<(), Stop> {
        files.iter().map(|file| self.announce(cx, file.as_bytes(), false)).fold(Ok(()), Result::and)
    }

    /// Announces a change of a file, or a look at its size or its times.
    pub(super) fn announce(&mut self, cx: &Context<'_>, handle: &[u8], writes: bool) -> Result<(), Stop> {
        let (client, file) = (self.client()?, cx.file_key(handle)?);
        Ok(cx.server.state().announce(Some(client), &file, writes, cx.now, &mut self.effects)?)
    }
}

impl Server {
    /// Returns true if another client than `by` has a write delegation of a file. Costs the read of a counter while no
    /// client has any.
    fn is_write_delegated(&self, shared: &Shared, by: Option<ClientId>, handle: &[u8]) -> bool {
        let is_delegated = |file: &FileKey| self.state().is_delegated(by, file, false);
        self.has_write_delegations() && shared.file_key(handle).as_ref().is_some_and(is_delegated)
    }
}

/// The changes of files that a request of NFSv3 makes: two for a RENAME, else at most one.
pub(crate) type Changes<'a> = [Option<Changing<'a>>; 2];

impl Shared {
    /// Returns the key under which clients' state knows the file with a handle. `None`: the handle is too long.
    pub(crate) fn file_key(&self, handle: &[u8]) -> Option<FileKey> {
        FileKey::new(self.vfs.file_key(handle).as_slice(), handle)
    }

    /// Recalls the delegations of a file, or of all files, that the host has changed behind the server.
    pub(crate) fn host_changed(&self, file: Option<&Handle>) {
        let Some(server) = self.nfs4.as_ref().filter(|server| server.has_delegations()) else { return };
        let key = file.and_then(|file| self.file_key(file.as_slice()));
        if key.is_some() == file.is_some() {
            server.without_request(&self.vfs, |state, now, effects| {
                state.host_changed(key.as_ref(), now, effects);
            });
        }
    }

    /// Recalls the delegations of files in exports that have none by the rules in force.
    pub(crate) fn recall_undelegated(&self) {
        let Some(server) = self.nfs4.as_ref().filter(|server| server.has_delegations()) else { return };
        let is_meant = |file: &FileKey| {
            let export = self.vfs.export_of_handle(file.handle());
            export.is_some_and(|export| !self.rules.delegates(export))
        };
        server.without_request(&self.vfs, |state, now, effects| state.recall_where(is_meant, now, effects));
    }

    /// Begins the changes that a request of NFSv3 makes, and recalls the delegations of their files. The request gets
    /// NFS3ERR_JUKEBOX until they are returned, or waits until their revocation is durable. Takes no lock while no
    /// client has a delegation.
    #[inline]
    pub(crate) fn begin_change_v3(
        &self,
        procedure: Procedure,
        call: &Call<'_>,
        wait: Wait,
    ) -> Result<Changes<'_>, Stop3> {
        let Some(server) = &self.nfs4 else { return Ok([None, None]) };
        let file = |file: &FileHandle| self.begin_change(call, file, wait);
        let named = |place: &nfs3::DirOpArgs<'_>| self.begin_change_of_name(server, call, place, wait);
        Ok(match procedure {
            Procedure::Write => [file(&call.args::<nfs3::WriteArgs<'_>>()?.file)?, None],
            Procedure::Setattr => [file(&call.args::<nfs3::SetattrArgs>()?.object)?, None],
            Procedure::Link => [file(&call.args::<nfs3::LinkArgs<'_>>()?.file)?, None],
            Procedure::Remove => [named(&call.args::<nfs3::RemoveArgs<'_>>()?)?, None],
            Procedure::Create => {
                let args: nfs3::CreateArgs<'_> = call.args()?;
                let truncates = matches!(args.how, nfs3::CreateHow::Unchecked(set) if set.size.is_some());
                [if truncates { named(&args.target)? } else { None }, None]
            }
            Procedure::Rename => {
                let args: nfs3::RenameArgs<'_> = call.args()?;
                // Both recalls are sent at once.
                let (from, to) = (named(&args.from), named(&args.to));
                [from?, to?]
            }
            _ => {
                self.wait_for_revocations(server, &mut Effects::default(), wait)?;
                [None, None]
            }
        })
    }

    /// Begins a change of a file for a request without a client of NFSv4.
    pub(crate) fn begin_change(
        &self,
        call: &Call<'_>,
        file: &FileHandle,
        wait: Wait,
    ) -> Result<Option<Changing<'_>>, Stop3> {
        let Some(server) = &self.nfs4 else { return Ok(None) };
        let changing = server.counters.begin_change(self.vfs.file_key(file.as_bytes()).as_slice());
        if server.has_delegations() || server.has_revocations() {
            self.recall_for_v3(server, call, file, true, wait)?;
        }
        Ok(Some(changing))
    }

    /// Begins a change of the file that a name leads to, and recalls its delegations. If no client has or wants a
    /// delegation, the name is not looked up. Until the result is dropped, no client gets a delegation of the file.
    fn begin_change_of_name<'a>(
        &'a self,
        server: &'a Server,
        call: &Call<'_>,
        place: &nfs3::DirOpArgs<'_>,
        wait: Wait,
    ) -> Result<Option<Changing<'a>>, Stop3> {
        let any = server.counters.begin_change_of_any();
        if server.counters.needs_file() {
            let at = self.at(call, &place.dir, wait)?;
            match self.vfs.lookup(&at.target, place.name, &at.caller.cred, wait).0 {
                Ok(found) => return self.begin_change(call, &crate::convert::handle(&found.handle), wait),
                Err(forebay_vfs::Error::WouldBlock) => return Err(Stop3::Later),
                // The procedure itself finds the error, or a file that is made meanwhile.
                Err(_) => {}
            }
        }
        self.wait_for_revocations(server, &mut Effects::default(), wait)?;
        Ok(Some(any))
    }

    /// Recalls a write delegation of a file before its data, its size or its times are read. Costs the read of two
    /// counters while no client has one.
    #[inline]
    pub(crate) fn announce_look_v3(
        &self,
        call: &Call<'_>,
        file: &FileHandle,
        wait: Wait,
    ) -> Result<(), Stop3> {
        match &self.nfs4 {
            Some(server) if server.has_write_delegations() || server.has_revocations() => {
                self.recall_for_v3(server, call, file, false, wait)
            }
            _ => Ok(()),
        }
    }

    /// Returns attributes for a reply that may go without them. Those of a file with a write delegation are outdated:
    /// the client has to ask for them with GETATTR.
    pub(crate) fn shown(&self, handle: &[u8], attributes: Fattr3) -> PostOpAttr {
        let is_outdated =
            self.nfs4.as_ref().is_some_and(|server| server.is_write_delegated(self, None, handle));
        (!is_outdated).then_some(attributes)
    }

    /// Recalls the delegations of a file that conflict with a request without a client of NFSv4. Fails with
    /// NFS3ERR_JUKEBOX until they are returned, and with [`Stop3::Later`] on an event loop that would have to recall.
    #[cold]
    fn recall_for_v3(
        &self,
        server: &Server,
        call: &Call<'_>,
        file: &FileHandle,
        writes: bool,
        wait: Wait,
    ) -> Result<(), Stop3> {
        let Some(key) = self.file_key(file.as_bytes()) else { return Ok(()) };
        if wait == Wait::No {
            // A worker recalls: the effects of that may have to wait for the log.
            let waits = server.has_revocations() && self.vfs.logs_state();
            let is_free = !waits && !server.state().is_delegated(None, &key, writes);
            return if is_free { Ok(()) } else { Err(Stop3::Later) };
        }
        // A caller without access to the export takes nothing from others.
        let at = self.at(call, file, wait)?;
        if writes && at.caller.read_only {
            return Err(Stop3::Fail(Nfsstat3::Rofs));
        }
        let mut effects = Effects::default();
        let announced = server.state().announce(None, &key, writes, server.now(), &mut effects);
        self.wait_for_revocations(server, &mut effects, wait)?;
        announced.map_err(|_| Stop3::Fail(Nfsstat3::Jukebox))
    }

    /// Waits until the log has the state that was taken from clients: the request may rely on that. Then carries out
    /// the effects.
    #[inline]
    fn wait_for_revocations(&self, server: &Server, effects: &mut Effects, wait: Wait) -> Result<(), Stop3> {
        let has_to_wait = server.has_revocations() && self.vfs.logs_state();
        if has_to_wait && wait == Wait::Yes {
            server.log_and_wait(&self.vfs, effects);
        }
        server.act(effects);
        if has_to_wait && wait == Wait::No { Err(Stop3::Later) } else { Ok(()) }
    }
}
