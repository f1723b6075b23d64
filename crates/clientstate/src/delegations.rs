//! Delegations: granted on a second open, recalled by a conflict, returned or revoked.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use foldhash::fast::FixedState;

use crate::opens::Claim;
use crate::ranges::EMPTY;
use crate::record::Record;
use crate::state::{Ref, State};
use crate::{
    Action, ClientId, Durability, Effects, Error, FileKey, LockKind, Now, OpenArgs, RequestId, StateId,
    WRITE, planted_bugs,
};

/// A client, and the handle that its request has for the file.
pub(crate) type By<'a> = (ClientId, &'a [u8]);

/// Opens that are remembered to recognise a second one.
const REMEMBERED: usize = 8192;
/// Opens of a file that are looked at before a write delegation is granted. With more, there is none.
const LOOKED_AT: usize = 16;

/// A delegation.
#[derive(Debug)]
pub(crate) struct Delegation {
    pub(crate) stateid: StateId,
    pub(crate) client: ClientId,
    pub(crate) file: u32,
    pub(crate) write: bool,
    pub(crate) recalled: Option<Now>,
    /// The request that got it, unless it comes from the log.
    pub(crate) granted_in: Option<RequestId>,
    /// True if the client did not return it in time. It is in nobody's way, and stays until FREE_STATEID.
    pub(crate) is_revoked: bool,
    /// The change attribute of the file at the grant. Unknown for a delegation from the log.
    pub(crate) change: Option<u64>,
}

/// The holder of a write delegation: it can be asked for the size of the file (RFC 8881 section 10.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The client.
    pub client: ClientId,
    /// The change attribute that the client got with the delegation. It states another one after it has changed the
    /// file.
    pub change: u64,
    /// The request that got the delegation. Its reply may still be on the way.
    pub granted_in: Option<RequestId>,
}

/// A granted delegation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delegated {
    /// The delegation.
    pub stateid: StateId,
    /// True for a write delegation.
    pub write: bool,
}

/// The client's wish in an OPEN (`OPEN4_SHARE_ACCESS_WANT_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Want {
    /// The server decides: on the client's second open of the file.
    #[default]
    NoPreference,
    /// A delegation of any kind, now.
    Any,
    /// A read delegation, now.
    Read,
    /// A write delegation, now.
    Write,
    /// None. Also for a request to cancel a wish, since the server keeps no wishes.
    None,
}

impl State {
    /// Grants a delegation to the client of an open, if it deserves one.
    ///
    /// | condition | otherwise |
    /// |---|---|
    /// | the client's back channel works | none |
    /// | the client has no delegation of the file, and fewer than the limit has room for | none |
    /// | all clients know the file by one handle, of one export | none |
    /// | nobody holds or awaits byte-range locks of the file | none |
    /// | no open denies anything | none |
    /// | the client wishes one, or has opened the file before; in a grace period it reclaims one | none |
    /// | the open is for writing, and no other client has the file open or delegated | no write delegation |
    /// | no open is for writing, and no other client has a write delegation | no read delegation |
    /// | no change of the file is in progress (`changing.rs`) | none |
    pub(crate) fn delegate(
        &mut self,
        args: &OpenArgs,
        open: u32,
        now: Now,
        fx: &mut Effects,
    ) -> Option<Delegated> {
        let (client, number) = (args.client, self.opens[open as usize].file);
        let opened_before = self.remember(client, &args.file);
        let wished = match (args.claim, args.want) {
            (Claim::Previous(delegation), _) => delegation.is_some(),
            (_, Want::NoPreference) => opened_before,
            (_, want) => want != Want::None,
        };
        let file = self.files.at(number);
        let has_one_handle =
            !file.has_handles || planted_bugs::active("a file with two handles is delegated");
        let is_quiet = file.root == EMPTY && file.waiters == 0 && file.counts[2..] == [0, 0];
        let holder = self.clients.get(&client)?;
        let room = self.limits.delegations.saturating_sub(self.delegations.len());
        if !wished
            || !is_quiet
            || !has_one_handle
            || !holder.lease.has_back_channel()
            || self.delegation_index.contains_key(&(number, client))
            || holder.delegations as usize >= room
            || self.states.len() >= self.limits.states
            || self.is_recalled(number, now)
        {
            return None;
        }
        let writes = args.share.access & WRITE != 0 && args.want != Want::Read;
        let write = writes && self.is_alone(number, client);
        let others_write = self
            .delegations_of(number)
            .any(|(holder, at)| holder != client && self.delegations[at as usize].write);
        if !write && (file.counts[1] > 0 || others_write) {
            return None;
        }
        let stateid = StateId { seqid: 1, other: self.next_other() };
        let delegation = self.put_delegation(client, &args.file, write, stateid);
        self.delegations[delegation as usize].granted_in = args.request;
        // Only now: a change that begins later finds the delegation.
        if self.counters.changes.include(args.file.key())
            && !planted_bugs::active("a delegation is granted during a change")
        {
            self.remove_delegation(delegation, fx);
            return None;
        }
        let record =
            Record::Delegation { other: stateid.other, seqid: 1, client, file: args.file.clone(), write };
        fx.log(Durability::BeforeReply, record);
        Some(Delegated { stateid, write })
    }

    /// Remembers an open. Returns true if it was remembered before.
    fn remember(&mut self, client: ClientId, file: &FileKey) -> bool {
        self.opened_before.resize(REMEMBERED, 0);
        let hash = FixedState::default().hash_one((client, file));
        let place = &mut self.opened_before[hash as usize % REMEMBERED];
        std::mem::replace(place, hash) == hash
    }

    /// Returns the delegations of a file with their clients, also revoked ones.
    pub(crate) fn delegations_of(&self, file: u32) -> impl Iterator<Item = (ClientId, u32)> + '_ {
        let range = (file, ClientId(0))..=(file, ClientId(u64::MAX));
        self.delegation_index.range(range).map(|(key, number)| (key.1, *number))
    }

    /// Returns true if a delegation of a file is being recalled: a new one would be recalled at once.
    fn is_recalled(&self, file: u32, _now: Now) -> bool {
        self.delegations_of(file).any(|(_, at)| self.delegations[at as usize].recalled.is_some())
    }

    /// Returns true if no other client and no NLM host has a file open or delegated.
    fn is_alone(&self, file: u32, client: ClientId) -> bool {
        let opens = self.open_index.range((file, 0)..=(file, u32::MAX)).take(LOOKED_AT);
        let own = opens.filter(|(_, open)| self.opens[**open as usize].client == client).count();
        own == self.files.at(file).opens as usize
            && self.delegations_of(file).all(|(holder, _)| holder == client)
    }

    /// Enters a delegation, new or from a record of the log, and returns its number. The caller has found nothing in
    /// its way.
    pub(crate) fn put_delegation(
        &mut self,
        client: ClientId,
        file_key: &FileKey,
        write: bool,
        stateid: StateId,
    ) -> u32 {
        let file = self.files.get_or_add(file_key);
        let delegation = Delegation {
            stateid,
            client,
            file,
            write,
            recalled: None,
            granted_in: None,
            is_revoked: false,
            change: None,
        };
        let number = self.delegations.insert(delegation) as u32;
        self.write_delegations += usize::from(write);
        self.count_delegations();
        self.delegation_index.insert((file, client), number);
        let at = self.files.at_mut(file);
        at.delegations += 1;
        // After a crash another handle may have come first.
        at.key = file_key.clone();
        self.attach(client, stateid, Ref::Delegation(number));
        number
    }

    /// Tells readers of the counters how many delegations there are.
    pub(crate) fn count_delegations(&self) {
        self.counters.write_delegations.store(self.write_delegations, SeqCst);
        self.counters.delegations.store(self.delegations.len(), SeqCst);
    }

    /// Returns the number of the client's delegation with this state id. Fails with `BadStateid` for an open or a
    /// lock.
    pub(crate) fn find_delegation(&self, client: ClientId, stateid: StateId) -> Result<u32, Error> {
        match self.find_state(client, stateid)? {
            Ref::Delegation(delegation) => Ok(delegation),
            _ => Err(Error::BadStateid),
        }
    }

    /// Announces a change of a file, or a look at it, by a client, by a v3 client or by the host (`None`): data,
    /// attributes, a link, a removal, a rename. `writes` is false for a look. Delegations of other clients that are in
    /// the way are recalled. The change waits with `Delay` until they are returned.
    pub fn announce(
        &mut self,
        by: Option<ClientId>,
        file: &FileKey,
        writes: bool,
        now: Now,
        fx: &mut Effects,
    ) -> Result<(), Error> {
        let Some(number) = self.files.find(file) else { return Ok(()) };
        let waits = self.recall(number, by.map(|client| (client, file.handle())), writes, now, fx);
        self.settle(now, fx);
        if waits { Err(Error::Delay) } else { Ok(()) }
    }

    /// Recalls the delegations of a file, or of all files, that the host has changed. Nobody waits for their return,
    /// and the records wait for the next request's.
    pub fn host_changed(&mut self, file: Option<&FileKey>, now: Now, fx: &mut Effects) {
        match file {
            Some(file) => self.recall_unasked(self.files.find(file).into_iter().collect(), now, fx),
            None => self.recall_where(|_| true, now, fx),
        }
    }

    /// Recalls the delegations of all files for whose keys `is_meant` returns true. Nobody waits for their return, and
    /// the records wait for the next request's.
    pub fn recall_where(&mut self, is_meant: impl Fn(&FileKey) -> bool, now: Now, fx: &mut Effects) {
        let delegated = self.delegation_index.keys().map(|(file, _)| *file);
        let files = delegated.filter(|file| is_meant(&self.files.at(*file).key)).collect();
        self.recall_unasked(files, now, fx);
    }

    /// Recalls the delegations of files for no request.
    fn recall_unasked(&mut self, files: BTreeSet<u32>, now: Now, fx: &mut Effects) {
        for file in files {
            self.recall(file, None, true, now, fx);
        }
        self.settle(now, fx);
        self.defer(fx);
    }

    /// Returns true if a delegation of another client than `by` is in the way of a change of a file, or of a look at it
    /// if `writes` is false.
    pub fn is_delegated(&self, by: Option<ClientId>, file: &FileKey, writes: bool) -> bool {
        let by = by.map(|client| (client, file.handle()));
        self.files.find(file).is_some_and(|number| self.in_way(number, by, writes).next().is_some())
    }

    /// Notes the change attribute that the client of a new write delegation gets with it.
    pub fn note_change(&mut self, client: ClientId, stateid: StateId, change: u64) {
        if let Ok(number) = self.find_delegation(client, stateid) {
            self.delegations[number as usize].change = Some(change);
        }
    }

    /// Returns the holder of the write delegation that is in the way of a look at a file by a client. Returns `None` if
    /// no delegation is, or if the holder cannot be asked: it has expired, the delegation is being recalled, or it is
    /// from the log. [`State::announce`] decides then.
    pub fn holder(&self, by: ClientId, file: &FileKey, now: Now) -> Option<Holder> {
        let number = self.files.find(file)?;
        let (client, at) = self.in_way(number, Some((by, file.handle())), false).next()?;
        let Delegation { recalled, granted_in, change, .. } = self.delegations[at as usize];
        let can_answer = recalled.is_none() && !self.is_courtesy(client, now);
        change.filter(|_| can_answer).map(|change| Holder { client, change, granted_in })
    }

    /// Returns the delegations of a file that conflict with a look, or with a change if `writes`, by the client `by`.
    /// A revoked delegation conflicts with nothing. A client that uses another handle than for its delegation does not
    /// know that the files are one.
    fn in_way(&self, file: u32, by: Option<By<'_>>, writes: bool) -> impl Iterator<Item = (ClientId, u32)> {
        let leaves_reads = planted_bugs::active("a write open leaves read delegations");
        let known_as = self.files.at(file).key.handle();
        let holder = by.filter(|(_, handle)| *handle == known_as).map(|(client, _)| client);
        self.delegations_of(file).filter(move |(client, at)| {
            let delegation = &self.delegations[*at as usize];
            let conflicts = delegation.write || writes && !leaves_reads;
            conflicts && holder != Some(*client) && !delegation.is_revoked
        })
    }

    /// Recalls delegations that are in the way. Returns true if any has not been returned.
    ///
    /// | a delegation in the way | then |
    /// |---|---|
    /// | of an expired client | that client loses its state |
    /// | not recalled | it is recalled |
    /// | recalled a lease time ago | it is revoked |
    /// | recalled | the caller waits |
    pub(crate) fn recall(
        &mut self,
        file: u32,
        by: Option<By<'_>>,
        writes: bool,
        now: Now,
        fx: &mut Effects,
    ) -> bool {
        let in_way: Vec<_> = self.in_way(file, by, writes).collect();
        let mut waits = false;
        for (holder, number) in in_way {
            if self.is_courtesy(holder, now) {
                self.remove_client(holder, fx);
            } else {
                waits |= self.recall_one(number, now, fx);
            }
        }
        waits
    }

    /// Recalls delegations whose holders may have a lock that the server does not know, and that is in the way of a
    /// tested one. Returns true if any has not been returned. Expired clients keep theirs, since their locks do not
    /// count in a test.
    pub(crate) fn recall_for_test(
        &mut self,
        file: &FileKey,
        by: Option<ClientId>,
        kind: LockKind,
        now: Now,
        fx: &mut Effects,
    ) -> bool {
        let by = by.map(|client| (client, file.handle()));
        let Some(file) = self.files.find(file) else { return false };
        let in_way = self.in_way(file, by, kind == LockKind::Write);
        let live: Vec<_> = in_way.filter(|(holder, _)| !self.is_courtesy(*holder, now)).collect();
        let mut waits = false;
        for (_, number) in live {
            waits |= self.recall_one(number, now, fx);
        }
        self.settle(now, fx);
        waits
    }

    /// Recalls a delegation of a client that is not expired, or revokes it. Returns true if it is still there.
    fn recall_one(&mut self, number: u32, now: Now, fx: &mut Effects) -> bool {
        let delegation = &mut self.delegations[number as usize];
        match delegation.recalled {
            Some(at) if now.saturating_sub(at) > self.limits.lease => {
                self.revoke_delegation(number, fx);
                return false;
            }
            Some(_) => {}
            None => {
                delegation.recalled = Some(now);
                self.recalled.insert((now, number));
                let Delegation { client, stateid, granted_in, file, .. } = *delegation;
                let file = self.files.at(file).key.clone();
                self.counters.recalls.fetch_add(1, Relaxed);
                fx.act(Action::Recall { client, stateid, file, granted_in });
            }
        }
        true
    }

    /// Carries out DELEGRETURN (RFC 8881, section 18.6). The reply waits until the log has the return. Fails with
    /// [`Error::BadStateid`] if the stateid is not that of a delegation.
    pub fn return_delegation(
        &mut self,
        client: ClientId,
        stateid: StateId,
        now: Now,
        fx: &mut Effects,
    ) -> Result<(), Error> {
        let number = self.find_delegation(client, stateid)?;
        fx.log(Durability::BeforeReply, Record::DelegationReturned(stateid.other));
        self.remove_delegation(number, fx);
        self.settle(now, fx);
        Ok(())
    }

    /// Revokes the delegations that their clients have not returned within a lease time after the recall.
    pub(crate) fn revoke_late_delegations(&mut self, now: Now, fx: &mut Effects) {
        while let Some((at, number)) = self.recalled.first().copied()
            && now.saturating_sub(at) > self.limits.lease
        {
            self.revoke_delegation(number, fx);
        }
    }

    /// Revokes a delegation. Its client learns of that from SEQUENCE, and frees the state id. Requests that waited
    /// for the file can go on.
    fn revoke_delegation(&mut self, number: u32, fx: &mut Effects) {
        let delegation = &mut self.delegations[number as usize];
        delegation.is_revoked = true;
        self.counters.revoked.fetch_add(1, Relaxed);
        if let Some(at) = delegation.recalled.take() {
            self.recalled.remove(&(at, number));
        }
        let (stateid, file, client) = (delegation.stateid, delegation.file, delegation.client);
        self.revoke(Record::DelegationReturned(stateid.other), fx);
        self.freed.insert(file);
        if let Some(client) = self.clients.get(&client) {
            client.lease.revoked_delegations.fetch_add(1, Relaxed);
        }
    }

    /// Removes a delegation with all references to it. Does nothing if it is gone. Requests that waited for the file
    /// can go on.
    pub(crate) fn remove_delegation(&mut self, number: u32, _fx: &mut Effects) {
        let Some(delegation) = self.delegations.try_remove(number as usize) else { return };
        self.write_delegations -= usize::from(delegation.write);
        self.count_delegations();
        if let Some(at) = delegation.recalled {
            self.recalled.remove(&(at, number));
        }
        if delegation.is_revoked
            && let Some(client) = self.clients.get(&delegation.client)
        {
            client.lease.revoked_delegations.fetch_sub(1, Relaxed);
        }
        self.delegation_index.remove(&(delegation.file, delegation.client));
        self.files.at_mut(delegation.file).delegations -= 1;
        self.detach(delegation.client, delegation.stateid, Ref::Delegation(number));
        self.freed.insert(delegation.file);
    }
}
