//! Recovery from records, and the snapshot that replaces them.

use std::sync::Arc;

use crate::client::Client;
use crate::lease::Lease;
use crate::locks::lock_owner;
use crate::nlm::Held;
use crate::opens::open_owner;
use crate::record::{Record, SlotReply};
use crate::session::Parts;
use crate::state::{Origin, Ref, State};
use crate::tables::{Holder, OwnerKind};
use crate::{
    ClientId, Effects, HostKey, Limits, LockOwner, Now, OwnerName, Principal, StateId, planted_bugs,
};

/// A state that is being made from records.
///
/// Of several opens of one owner and file, and of several delegations of one client and file, the newest counts. An
/// older one may come behind it: in a second replay, or if an OPEN made its file. The record of such an OPEN is in the
/// record of the file, whose number is older than the OPEN.
///
/// The records may begin anywhere before a complete snapshot: a record about something unknown is skipped. Replaying
/// them twice gives the same state as once.
#[derive(Debug)]
pub struct Recovery {
    state: State,
}

impl Recovery {
    /// Begins without any client.
    pub fn new(limits: Limits, origin: Origin) -> Self {
        Recovery { state: State::empty(limits, origin) }
    }

    /// Applies a record. The order is that of the log.
    pub fn apply(&mut self, record: &Record) {
        let state = &mut self.state;
        let fx = &mut Effects::default();
        match record {
            Record::Client { id, owner, verifier, principal, sequence } => {
                state.recover_client(*id, owner, *verifier, principal, *sequence);
            }
            Record::ClientRemoved(id) => state.remove_client(*id, fx),
            Record::ReclaimComplete(id) => {
                if let Some(client) = state.clients.get_mut(id) {
                    client.reclaim_complete = true;
                }
            }
            Record::Session { id, client, sequence, flags, fore, back } => {
                let (id, client, sequence, flags) = (*id, *client, *sequence, *flags);
                state.add_session(Parts { id, client, sequence, flags, fore: *fore, back: *back }, true);
            }
            Record::SessionDestroyed(id) => state.remove_session(*id),
            Record::Reply(reply) => state.recover_reply(reply),
            Record::SlotsDropped(session, from) => {
                if let Some(session) = state.sessions.get(session) {
                    session.recover_dropped(*from);
                }
            }
            Record::Callback(session, slot, sequence) => {
                if let Some(session) = state.sessions.get(session) {
                    session.recover_callback(*slot, *sequence);
                }
            }
            Record::Open { other, seqid, client, owner, file, share, seen } => {
                if state.clients.contains_key(client) {
                    let stateid = StateId { seqid: *seqid, other: *other };
                    let key = open_owner(*client, owner);
                    let known = state.find_own(&key, file);
                    let newest = known.map(|open| state.opens[open as usize].stateid);
                    if newest.is_some_and(|newest| is_newer(newest, StateId { seqid: *seqid, other: *other }))
                    {
                        return;
                    }
                    // The record of a CLOSE may come behind that of the next open.
                    let is_other = |_: &u32| newest.is_some_and(|newest| newest.other != *other);
                    if let Some(known) = known.filter(is_other) {
                        state.remove_open(known, fx);
                    }
                    state.put_open(*client, &key, file, *share, Some((stateid, *seen)));
                }
            }
            Record::Close(other) => {
                if let Some(Ref::Open(open)) = state.states.get(other).copied() {
                    state.remove_open(open, fx);
                }
            }
            Record::Delegation { other, seqid, client, file, write } => {
                if state.clients.contains_key(client) && !state.states.contains_key(other) {
                    let known =
                        state.files.find(file).and_then(|file| state.delegation_index.get(&(file, *client)));
                    if let Some(known) = known.copied() {
                        let newest = state.delegations[known as usize].stateid;
                        if is_newer(newest, StateId { seqid: *seqid, other: *other }) {
                            return;
                        }
                        state.remove_delegation(known, fx);
                    }
                    state.put_delegation(*client, file, *write, StateId { seqid: *seqid, other: *other });
                }
            }
            Record::DelegationReturned(other) => {
                if let Some(Ref::Delegation(delegation)) = state.states.get(other).copied() {
                    state.remove_delegation(delegation, fx);
                }
            }
            Record::Copy { other, client, file } => state.recover_copy(*other, *client, file),
            Record::CopyEnded(other) => _ = state.ended_copies.remove(other),
            Record::Host(host, number) => match state.by_host.get(host).copied() {
                Some(host) => state.hosts[host as usize].state = *number,
                None => _ = state.add_host(host, *number, fx),
            },
            Record::HostFreed(host) => state.free_host(host, fx),
            Record::NlmShare(owner, file, share) => {
                if let Some(number) = state.add_nlm_owner(owner, fx) {
                    state.put_nlm_share(number, file, *share);
                    state.tidy_nlm_owner(number);
                }
            }
            Record::Lock { .. } | Record::Unlock { .. } | Record::LockStateFreed(_) | Record::NlmLock(..) => {
                state.recover_lock(record, fx);
            }
        }
    }

    /// Returns the state. There is no grace period: clients have everything that they were promised. Their leases begin
    /// now.
    pub fn finish(mut self, now: Now) -> State {
        for client in self.state.clients.values() {
            client.lease.renew(now);
        }
        self.state.settle(now, &mut Effects::default());
        // They come from the log.
        self.state.revoked.clear();
        self.state
    }
}

/// Returns true if `known` is newer than `other`. The numbers of state ids grow, also from start to start.
fn is_newer(known: StateId, other: StateId) -> bool {
    match known.other == other.other {
        true => known.seqid.wrapping_sub(other.seqid) as i32 > 0,
        false => known.other > other.other,
    }
}

impl State {
    /// Enters a confirmed client from the log. A record of a client that is known replaces its verifier and
    /// principal.
    fn recover_client(
        &mut self,
        id: ClientId,
        owner: &OwnerName,
        verifier: [u8; 8],
        principal: &Principal,
        sequence: u32,
    ) {
        self.by_owner.entry(owner.clone()).or_default().confirmed = Some(id);
        if let Some(client) = self.clients.get_mut(&id) {
            (client.verifier, client.principal) = (verifier, principal.clone());
            return;
        }
        let client = Client {
            owner: owner.clone(),
            verifier,
            principal: principal.clone(),
            is_confirmed: true,
            reclaim_complete: false,
            sequence,
            created: None,
            sessions: Vec::new(),
            states: 0,
            delegations: 0,
            held: Held::default(),
            lease: Arc::new(Lease::new(0)),
        };
        self.clients.insert(id, client);
    }

    /// Puts a reply from the log into its slot. Ignores the reply if its session has ended.
    fn recover_reply(&mut self, reply: &SlotReply) {
        if let Some(session) = self.sessions.get(&reply.session) {
            session.recover_reply(reply);
        }
    }

    /// Applies a record of a byte-range lock; other records have no effect.
    fn recover_lock(&mut self, record: &Record, fx: &mut Effects) {
        if planted_bugs::active("locks are not recovered") {
            return;
        }
        match record {
            Record::Lock { other, seqid, open, owner, range } => {
                let Some(Ref::Open(open)) = self.states.get(open).copied() else { return };
                let client = self.opens[open as usize].client;
                let stateid = StateId { seqid: *seqid, other: *other };
                let key = lock_owner(client, owner);
                let file = self.opens[open as usize].file;
                let known =
                    self.owners.find(&key).and_then(|owner| self.lock_index.get(&(owner, file)).copied());
                let is_other = |known: &u32| self.lock_states[*known as usize].stateid.other != *other;
                if let Some(known) = known.filter(is_other) {
                    self.remove_lock_state(known, fx);
                }
                let number = self.put_lock_state(open, &key, Some(stateid));
                let (owner, file) =
                    (self.lock_states[number as usize].owner, self.lock_states[number as usize].file);
                if let Some((range, kind)) = range {
                    self.set_range(owner, file, *range, Some(*kind));
                }
            }
            Record::Unlock { other, seqid, range } => {
                let Some(Ref::Lock(number)) = self.states.get(other).copied() else { return };
                let lock = &mut self.lock_states[number as usize];
                lock.stateid.seqid = *seqid;
                let (owner, file) = (lock.owner, lock.file);
                self.set_range(owner, file, *range, None);
            }
            Record::LockStateFreed(other) => {
                if let Some(Ref::Lock(number)) = self.states.get(other).copied() {
                    self.remove_lock_state(number, fx);
                }
            }
            Record::NlmLock(owner, file, range, kind) => {
                let Some(number) = self.add_nlm_owner(owner, fx) else { return };
                let file = self.files.get_or_add(file);
                self.set_range(number, file, *range, *kind);
                self.freed.insert(file);
                self.tidy_nlm_owner(number);
            }
            _ => {}
        }
    }

    /// Returns the names of all confirmed clients.
    pub fn client_owners(&self) -> Vec<OwnerName> {
        let confirmed = self.clients.values().filter(|client| client.is_confirmed);
        confirmed.map(|client| client.owner.clone()).collect()
    }

    /// Returns the name of a client that is confirmed, or `None` for any other.
    pub fn owner_of(&self, client: ClientId) -> Option<OwnerName> {
        let client = self.clients.get(&client).filter(|client| client.is_confirmed);
        client.map(|client| client.owner.clone())
    }

    /// Returns records that describe the present state: older records may be released when these are in the log.
    ///
    /// Changes of names and attributes up to the number `durable` are durable without the log: the snapshot has the
    /// replies that tell of them. The records are in the order of the things that they need. A caller that cannot hold
    /// its lock for all of them uses [`State::snapshot_of`] and [`State::snapshot_hosts`].
    pub fn snapshot(&self, durable: u64) -> impl Iterator<Item = Record> + '_ {
        self.clients
            .keys()
            .flat_map(move |client| self.snapshot_of(*client, durable))
            .chain(self.snapshot_hosts())
    }

    /// Returns the records of one client, with `durable` of [`State::snapshot`]. A snapshot is the records of all
    /// clients, then those of the hosts. Other calls may come between, if their records go to the log between.
    pub fn snapshot_of(&self, id: ClientId, durable: u64) -> Vec<Record> {
        let Some(client) = self.clients.get(&id).filter(|client| client.is_confirmed) else {
            return Vec::new();
        };
        let mut records = vec![Record::Client {
            id,
            owner: client.owner.clone(),
            verifier: client.verifier,
            principal: client.principal.clone(),
            sequence: client.sequence,
        }];
        if client.reclaim_complete {
            records.push(Record::ReclaimComplete(id));
        }
        for session in client.sessions.iter().filter_map(|id| self.sessions.get(id)) {
            records.push(Record::Session {
                id: session.id(),
                client: id,
                sequence: session.sequence,
                flags: session.flags,
                fore: session.fore,
                back: session.back,
            });
            records.extend(session.replies(durable));
        }
        for (_, state) in self.of_client.range((id, Ref::FIRST)..=(id, Ref::LAST)) {
            self.snapshot_state(*state, &mut records);
        }
        self.snapshot_copies(id, &mut records);
        records
    }

    /// Appends the records that bring an open, a lock state or a delegation back after a crash. Revoked states are
    /// left out.
    fn snapshot_state(&self, state: Ref, records: &mut Vec<Record>) {
        match state {
            Ref::Open(number) if !self.opens[number as usize].is_revoked => {
                records.push(self.describe_open(number))
            }
            Ref::Lock(number) => {
                let lock = &self.lock_states[number as usize];
                records.push(self.describe_lock(number, None));
                let ranges = self.ranges.of(lock.owner, lock.file);
                records.extend(ranges.map(|range| self.describe_lock(number, Some(range))));
            }
            Ref::Delegation(number) if !self.delegations[number as usize].is_revoked => {
                let delegation = &self.delegations[number as usize];
                records.push(Record::Delegation {
                    other: delegation.stateid.other,
                    seqid: delegation.stateid.seqid,
                    client: delegation.client,
                    file: self.files.at(delegation.file).key.clone(),
                    write: delegation.write,
                });
            }
            // Copies follow behind all other states.
            Ref::Open(_) | Ref::Delegation(_) | Ref::Copy(_) => {}
        }
    }

    /// Returns the records of all NLM hosts.
    pub fn snapshot_hosts(&self) -> Vec<Record> {
        let mut records = Vec::new();
        let all: Vec<(&HostKey, u32)> = self.by_host.iter().map(|(key, host)| (key, *host)).collect();
        for (key, host) in all {
            let host = &self.hosts[host as usize];
            records.push(Record::Host(key.clone(), host.state));
            let mut owners: Vec<_> =
                host.owners.iter().map(|owner| (self.describe_owner(*owner), *owner)).collect();
            owners.sort();
            for (described, owner) in owners {
                let LockOwner::Nlm(described) = described else { continue };
                debug_assert!(matches!(self.owners.key(owner).kind, OwnerKind::Nlm(_)));
                debug_assert!(matches!(self.owners.holder(owner), Holder::Host(_)));
                for file in self.ranges.files_of(owner) {
                    let key = &self.files.at(file).key;
                    records.extend(self.ranges.of(owner, file).map(|(range, kind)| {
                        Record::NlmLock(described.clone(), key.clone(), range, Some(kind))
                    }));
                }
                for (_, file) in self.nlm_shares_of.range((owner, 0)..=(owner, u32::MAX)) {
                    let share = self.nlm_shares.get(&(*file, owner)).map(|share| share.share);
                    records.push(Record::NlmShare(
                        described.clone(),
                        self.files.at(*file).key.clone(),
                        share,
                    ));
                }
            }
        }
        records
    }
}
