//! The state of all clients, and the numbers that it gives out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Release};

use slab::Slab;

use crate::changing::Changes;
use crate::client::Client;
use crate::copies::{EndedCopies, Running};
use crate::delegations::Delegation;
use crate::grace::Grace;
use crate::locks::LockState;
use crate::nlm::{Host, NlmShare};
use crate::opens::Open;
use crate::ranges::Ranges;
use crate::record::Record;
use crate::removals::Removals;
use crate::session::{Memory, Session};
use crate::tables::{Files, Holder, Map, Owners};
use crate::waiters::Waiters;
use crate::{ClientId, Durability, Effects, HostKey, Limits, Now, Other, OwnerName, SessionId};

/// A state behind a state id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ref {
    Open(u32),
    Lock(u32),
    Delegation(u32),
    Copy(u32),
}

impl Ref {
    /// No state comes before it.
    pub(crate) const FIRST: Ref = Ref::Open(0);
    /// No state comes behind it.
    pub(crate) const LAST: Ref = Ref::Copy(u32::MAX);
}

/// The confirmed and the unconfirmed record of one client owner.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Named {
    pub(crate) confirmed: Option<ClientId>,
    pub(crate) unconfirmed: Option<ClientId>,
}

/// Values that the environment gives a new [`State`].
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The number of this instance: larger than that of each earlier instance with this log. It is a part of each
    /// number that the instance gives out, so that no instance gives out a number again.
    pub epoch: u32,
    /// Random bits, which no client may know.
    pub seed: u64,
}

/// The state of all clients: the module documentation of the crate has the parts.
#[derive(Debug)]
pub struct State {
    pub(crate) limits: Limits,
    origin: Origin,
    counter: u64,
    clients_made: u32,
    pub(crate) clients: BTreeMap<ClientId, Client>,
    pub(crate) by_owner: Map<OwnerName, Named>,
    pub(crate) sessions: Map<SessionId, Arc<Session>>,
    pub(crate) kept_memory: Arc<Memory>,
    /// Slots of all sessions.
    pub(crate) granted_slots: u32,
    pub(crate) files: Files,
    pub(crate) owners: Owners,
    pub(crate) states: Map<Other, Ref>,
    /// The states of each client, in the order in which they are described.
    pub(crate) of_client: BTreeSet<(ClientId, Ref)>,
    pub(crate) opens: Slab<Open>,
    /// By file and open owner.
    pub(crate) open_index: BTreeMap<(u32, u32), u32>,
    pub(crate) lock_states: Slab<LockState>,
    /// By lock owner and file.
    pub(crate) lock_index: BTreeMap<(u32, u32), u32>,
    /// The lock states that began with each open.
    pub(crate) locks_of_open: BTreeSet<(u32, u32)>,
    pub(crate) delegations: Slab<Delegation>,
    pub(crate) write_delegations: usize,
    /// For readers without the lock.
    pub(crate) counters: Arc<Counters>,
    /// By file and client.
    pub(crate) delegation_index: BTreeMap<(u32, ClientId), u32>,
    /// Recalled delegations by the time of their revocation.
    pub(crate) recalled: BTreeSet<(Now, u32)>,
    /// The last opens, by hash of client and file: a second open deserves a delegation.
    pub(crate) opened_before: Vec<u64>,
    pub(crate) copies: Slab<Running>,
    pub(crate) ended_copies: EndedCopies,
    pub(crate) ranges: Ranges,
    pub(crate) waiters: Waiters,
    pub(crate) hosts: Slab<Host>,
    pub(crate) by_host: BTreeMap<HostKey, u32>,
    /// By file and NLM owner.
    pub(crate) nlm_shares: BTreeMap<(u32, u32), NlmShare>,
    /// By NLM owner and file.
    pub(crate) nlm_shares_of: BTreeSet<(u32, u32)>,
    pub(crate) grace: Option<Grace>,
    pub(crate) removals: Removals,
    /// Files in which something was freed since [`State::settle`].
    pub(crate) freed: BTreeSet<u32>,
    /// Records of state that was taken from clients, until [`State::take_revoked`].
    pub(crate) revoked: Vec<Record>,
}

/// Counters that requests read without the lock around the state.
#[derive(Debug, Default)]
pub struct Counters {
    /// Delegations. A request that reads 0 is in the way of none.
    pub delegations: AtomicUsize,
    /// Write delegations among them.
    pub write_delegations: AtomicUsize,
    /// Recalls of delegations since the start.
    pub recalls: AtomicU64,
    /// Delegations that were revoked since the start.
    pub revoked: AtomicU64,
    pub(crate) changes: Changes,
    /// Records of state that was taken from clients, until the caller has made them durable and subtracts them. A
    /// request that reads another number than 0 may rely on a revocation, so its reply has to wait.
    pub revocations: AtomicUsize,
}

/// Numbers of entries, for metrics and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Client records, also unconfirmed ones.
    pub clients: usize,
    /// Sessions.
    pub sessions: usize,
    /// Opens.
    pub opens: usize,
    /// Lock states: lock owners of a file.
    pub lock_states: usize,
    /// Byte-range locks.
    pub locks: usize,
    /// Delegations, also revoked ones.
    pub delegations: usize,
    /// Files with any state.
    pub files: usize,
    /// Open owners, lock owners and NLM owners.
    pub owners: usize,
    /// NLM hosts.
    pub hosts: usize,
    /// Shares of NLM owners.
    pub shares: usize,
    /// Blocked requests for locks, and grants that are not acknowledged.
    pub waiters: usize,
    /// Copies that go on after the reply to their COPY.
    pub copies: usize,
}

impl State {
    /// Returns a state without clients and without a grace period.
    pub(crate) fn empty(limits: Limits, origin: Origin) -> Self {
        let kept_memory = Arc::new(Memory::new(limits.kept_replies));
        State {
            limits,
            origin,
            counter: 0,
            clients_made: 0,
            clients: BTreeMap::new(),
            by_owner: Map::default(),
            sessions: Map::default(),
            kept_memory,
            granted_slots: 0,
            files: Files::default(),
            owners: Owners::default(),
            states: Map::default(),
            of_client: BTreeSet::new(),
            opens: Slab::new(),
            open_index: BTreeMap::new(),
            lock_states: Slab::new(),
            lock_index: BTreeMap::new(),
            locks_of_open: BTreeSet::new(),
            delegations: Slab::new(),
            write_delegations: 0,
            counters: Arc::default(),
            delegation_index: BTreeMap::new(),
            recalled: BTreeSet::new(),
            opened_before: Vec::new(),
            copies: Slab::new(),
            ended_copies: EndedCopies::new(),
            ranges: Ranges::new(origin.seed),
            waiters: Waiters::default(),
            hosts: Slab::new(),
            by_host: BTreeMap::new(),
            nlm_shares: BTreeMap::new(),
            nlm_shares_of: BTreeSet::new(),
            grace: None,
            removals: Removals::default(),
            freed: BTreeSet::new(),
            revoked: Vec::new(),
        }
    }

    /// Returns a session. The server keeps it beside the connection, so that SEQUENCE does not ask this table.
    pub fn session(&self, id: SessionId) -> Option<Arc<Session>> {
        self.sessions.get(&id).cloned()
    }

    /// Keeps counters up to date, which other threads read without the lock around the state.
    pub fn count_in(&mut self, counters: Arc<Counters>) {
        self.counters = counters;
        self.count_delegations();
    }

    /// Notes that state was taken from a client.
    pub(crate) fn revoke(&mut self, record: Record, fx: &mut Effects) {
        self.counters.revocations.fetch_add(1, Release);
        self.revoked.push(record);
        fx.durability = Durability::BeforeReply;
    }

    /// Keeps the records of a call for [`State::take_revoked`]: the call belongs to no request.
    pub(crate) fn defer(&mut self, fx: &mut Effects) {
        for record in std::mem::take(&mut fx.records) {
            self.revoke(record, fx);
        }
    }

    /// Returns the ids of all client records.
    pub fn client_ids(&self) -> Vec<ClientId> {
        self.clients.keys().copied().collect()
    }

    /// Returns the records of state that was taken from clients since the last call, and of locks that were granted
    /// without a request. The caller puts them in front of the records of any request, whichever comes to the log
    /// first: later requests may rely on the revocation.
    pub fn take_revoked(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.revoked)
    }

    /// Returns the number of this instance, as in [`Origin`].
    pub fn epoch(&self) -> u32 {
        self.origin.epoch
    }

    /// Returns the numbers of entries.
    pub fn counts(&self) -> Counts {
        Counts {
            clients: self.clients.len(),
            sessions: self.sessions.len(),
            opens: self.opens.len(),
            lock_states: self.lock_states.len(),
            locks: self.ranges.len(),
            delegations: self.delegations.len(),
            files: self.files.len(),
            owners: self.owners.len(),
            hosts: self.hosts.len(),
            shares: self.nlm_shares.len(),
            waiters: self.waiters.len(),
            copies: self.copies.len(),
        }
    }

    /// Returns the bytes of kept replies, with those that running requests may need.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_memory.used()
    }

    /// Returns the identity of a new state id. The epoch in it makes it differ from those of earlier starts.
    pub(crate) fn next_other(&mut self) -> Other {
        self.counter += 1;
        let mut other = [0; 12];
        other[..4].copy_from_slice(&self.origin.epoch.to_be_bytes());
        other[4..].copy_from_slice(&self.counter.to_be_bytes());
        other
    }

    /// Returns the id of a new session. Its random half keeps other clients from guessing it.
    pub(crate) fn next_session(&mut self, random: [u8; 8]) -> SessionId {
        let other = self.next_other();
        let mut id = [0; 16];
        // The counter's upper half stays 0 for 4 billion states and sessions; the random half alone is unique as well.
        id[..4].copy_from_slice(&other[..4]);
        id[4..8].copy_from_slice(&other[8..]);
        id[8..].copy_from_slice(&random);
        SessionId(id)
    }

    /// Returns an id that no client has: after 4 billion records of one instance the counter begins again.
    pub(crate) fn next_client(&mut self) -> ClientId {
        loop {
            self.clients_made = self.clients_made.wrapping_add(1);
            let id = ClientId(u64::from(self.origin.epoch) << 32 | u64::from(self.clients_made));
            if !self.clients.contains_key(&id) {
                return id;
            }
        }
    }

    /// Returns the expired client that holds an owner's state, if it may lose this state.
    pub(crate) fn courtesy_of(&self, owner: u32, now: Now) -> Option<ClientId> {
        match self.owners.holder(owner) {
            Holder::Client(client) => self.is_courtesy(client, now).then_some(client),
            Holder::Host(_) => None,
        }
    }
}
