//! Replies kept to answer retransmissions (RFC 1813 section 4.2 and Juszczak, USENIX 1989).
//!
//! A client retransmits only requests whose replies it has not received, after it has reconnected. A client has a
//! bounded number of such requests, so the last replies of EACH client matter, not the last of all. Therefore every
//! client address has a queue of its own. If the cache is too large, the client that has been quiet longest loses
//! replies.
//!
//! Entries are found by address, transaction, user and a checksum of the whole call, whatever the connection: a client
//! retransmits on a new one. Programs of one host, and hosts behind one address, may give different requests the same
//! transaction number. The checksum tells their requests apart: one of them must not get the other's reply in place of
//! its own change. Two requests that are equal to the byte cannot be told apart. So a reply is
//! dropped when a client that has received it closes the last connection that asked for it ([`ReplyCache::gone`]).
//! Otherwise the reply expires ([`LIFETIME`]).

use std::collections::{HashMap, HashSet, VecDeque, hash_map};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use forebay_rpc::{Replies, Ticket};
use smallvec::SmallVec;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::request::Call;

/// Bounds of the cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheLimits {
    /// Replies kept in all.
    pub entries: usize,
    /// Bytes of replies kept in all.
    pub bytes: usize,
}

/// Counters of the cache.
#[derive(Debug, Default)]
pub struct CacheUse {
    /// Replies kept now.
    pub entries: AtomicUsize,
    /// Bytes of replies kept now.
    pub bytes: AtomicUsize,
    /// Retransmissions answered with a kept reply.
    pub hits: AtomicU64,
    /// Retransmissions that arrived while the original was in progress.
    pub in_progress: AtomicU64,
}

/// The key of a request: transaction, procedure, user, and a hash of the arguments, the machine's name and the groups.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RequestKey {
    pub(crate) xid: u32,
    pub(crate) procedure: u32,
    /// Uid and gid of AUTH_SYS as the client sent them; none for AUTH_NONE.
    pub(crate) user: Option<(u32, u32)>,
    pub(crate) hash: u64,
}

/// The seed of the hash of a principal. The name of a machine is hashed with 0, so that none is like a principal.
const GSS_SEED: u64 = 6;

/// The bytes of the arguments that are hashed. Only large writes exceed this: hashing a MiB would cost a tenth of such
/// a write.
const HASHED: usize = 64 << 10;

/// Returns the hash of a call's arguments. Of longer ones, hashes the first half of [`HASHED`] bytes, and as many at
/// the end.
fn hash(args: &[u8], seed: u64) -> u64 {
    if args.len() <= HASHED {
        return xxh3_64_with_seed(args, seed);
    }
    let first = xxh3_64_with_seed(&args[..HASHED / 2], seed ^ args.len() as u64);
    xxh3_64_with_seed(&args[args.len() - HASHED / 2..], first)
}

impl RequestKey {
    pub(crate) fn of(call: &Call<'_>) -> Self {
        // The hash leaves out the stamp of AUTH_SYS: a client may change the stamp when it retransmits.
        let (user, seed) = match &call.head.user {
            Some(user) => {
                let groups = |seed, gid: &u32| xxh3_64_with_seed(&gid.to_le_bytes(), seed);
                let machine = xxh3_64(call.machine_name(user));
                (Some((user.uid, user.gid)), user.gids.as_slice().iter().fold(machine, groups))
            }
            None => (None, 0),
        };
        // A reply to a principal is for that principal: another one may have the same user.
        let seed = call.head.gss.as_ref().map_or(seed, |gss| xxh3_64_with_seed(&gss.principal, GSS_SEED));
        // The hash is in the cache's log. A version with another hash does not find the replies of this version.
        let hash = hash(call.rest(), seed);
        RequestKey { xid: call.xid(), procedure: call.head.procedure, user, hash }
    }
}

/// Retransmissions of one request that wait for its reply together.
pub(crate) type Waiting = SmallVec<[Ticket; 1]>;
/// The number of connections that may wait for one reply; further connections get none.
const MAX_WAITING: usize = 4;

/// The number of connections recorded as askers of one reply. With more askers the reply is kept until it expires.
const MAX_ASKERS: usize = 4;

/// The connections that asked for a reply and are still open, by [`Peer::id`](forebay_rpc::Peer::id). The value has two
/// words, since nearly every reply is asked for once. So an entry and its key share a processor's cache line.
#[derive(Default)]
struct Askers {
    first: Option<NonZeroU64>,
    others: Option<Box<Others>>,
}

/// The further connections that asked for a reply.
#[derive(Default)]
struct Others {
    open: SmallVec<[u64; MAX_ASKERS - 1]>,
    /// True if there were too many connections to record.
    more: bool,
}

/// Numbers connections from 1, so that zero stands for no connection.
fn asker(connection: u64) -> Option<NonZeroU64> {
    NonZeroU64::new(connection.wrapping_add(1))
}

impl Askers {
    fn one(connection: u64) -> Self {
        Askers { first: asker(connection), others: None }
    }

    /// Returns the recorded connections.
    fn open(&self) -> impl Iterator<Item = u64> {
        let others = self.others.iter().flat_map(|others| others.open.iter().copied());
        self.first.into_iter().map(|first| first.get().wrapping_sub(1)).chain(others)
    }

    fn add(&mut self, connection: u64) {
        if self.open().any(|open| open == connection) {
            return;
        }
        if self.first.is_none() {
            self.first = asker(connection);
            return;
        }
        let others = self.others.get_or_insert_default();
        if others.open.len() < MAX_ASKERS - 1 {
            others.open.push(connection);
        } else {
            others.more = true;
        }
    }

    /// Removes a connection; returns true if it was the last one.
    fn remove(&mut self, connection: u64) -> bool {
        if self.first == asker(connection) {
            self.first = None;
        } else {
            let Some(others) = &mut self.others else { return false };
            let Some(at) = others.open.iter().position(|open| *open == connection) else { return false };
            others.open.swap_remove(at);
        }
        self.open().next().is_none() && !self.others.as_ref().is_some_and(|others| others.more)
    }
}

/// One request.
struct Entry {
    askers: Askers,
    state: State,
}

enum State {
    /// The request is in progress; retransmissions may wait for the reply.
    Running(Option<Box<Waiting>>),
    /// The request was answered with these bytes.
    Answered(Arc<[u8]>),
}

/// A reply that is kept.
#[derive(Clone, Copy)]
struct Kept {
    key: RequestKey,
    since: Instant,
}

#[derive(Default)]
struct ClientQueue {
    entries: HashMap<RequestKey, Entry, foldhash::fast::RandomState>,
    /// Every connection that is among the askers of an entry, and some former ones.
    askers: HashSet<u64, foldhash::fast::RandomState>,
    /// The connection that asked last: its next request needs no lookup.
    last_asker: Option<u64>,
    /// Answered requests, oldest first.
    order: VecDeque<Kept>,
    bytes: usize,
    last_use: u64,
}

impl ClientQueue {
    /// Records that a connection asks.
    fn note(&mut self, asker: u64) {
        if self.last_asker.replace(asker) == Some(asker) {
            return;
        }
        // A worker may reach the request of a closed connection, which no later call removes.
        if self.askers.len() > 2 * self.entries.len() + 16 {
            self.askers = self.entries.values().flat_map(|entry| entry.askers.open()).collect();
        }
        self.askers.insert(asker);
    }
}

#[derive(Default)]
struct Inner {
    clients: HashMap<IpAddr, ClientQueue, foldhash::fast::RandomState>,
    clock: u64,
    /// The time when the replies of all clients were last checked for expiry.
    swept: Option<Instant>,
}

/// The cache. One lock is enough: it is held for a hash lookup per change, and changes wait for a disk anyway.
pub(crate) struct ReplyCache {
    inner: Mutex<Inner>,
    limits: CacheLimits,
    pub(crate) usage: CacheUse,
}

/// The action to take for a request.
pub(crate) enum Begin {
    /// Execute it, then call [`ReplyCache::end`].
    Execute(Ticket),
    /// Send this kept reply.
    Again(Ticket, Arc<[u8]>),
    /// Nothing: the original's reply will answer this request too.
    Joined,
}

/// The number of a client's replies that must survive: as many as the client may have unanswered.
const PER_CLIENT: usize = 4096;

/// The longest time that a reply is kept. A Linux client gives up a silent connection after three minutes, waits up to
/// five before it connects again, and then retransmits.
const LIFETIME: Duration = Duration::from_secs(600);

/// The interval between two checks of the replies of idle clients.
const SWEEP: Duration = Duration::from_secs(60);

impl ReplyCache {
    pub(crate) fn new(limits: CacheLimits) -> Self {
        ReplyCache { inner: Mutex::default(), limits, usage: CacheUse::default() }
    }

    /// Decides what happens to a request that arrived at `now`.
    pub(crate) fn begin(&self, client: IpAddr, key: RequestKey, ticket: Ticket, now: Instant) -> Begin {
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let clock = inner.clock;
        let queue = self.queue_of(&mut inner, client, now);
        queue.last_use = clock;
        let connection = ticket.peer().id;
        queue.note(connection);
        let Entry { askers, state } = match queue.entries.entry(key) {
            hash_map::Entry::Occupied(entry) => entry.into_mut(),
            hash_map::Entry::Vacant(place) => {
                place.insert(Entry { askers: Askers::one(connection), state: State::Running(None) });
                return Begin::Execute(ticket);
            }
        };
        askers.add(connection);
        match state {
            State::Running(waiting) => {
                self.usage.in_progress.fetch_add(1, Ordering::Relaxed);
                let waiting = waiting.get_or_insert_default();
                if waiting.len() < MAX_WAITING {
                    waiting.push(ticket);
                }
                Begin::Joined
            }
            State::Answered(reply) => {
                self.usage.hits.fetch_add(1, Ordering::Relaxed);
                Begin::Again(ticket, reply.clone())
            }
        }
    }

    /// Keeps the reply of a request that was executed by `now`; returns the retransmissions that wait for it.
    pub(crate) fn end(&self, client: IpAddr, key: RequestKey, reply: &[u8], now: Instant) -> Waiting {
        let kept: Arc<[u8]> = reply.into();
        let mut inner = self.inner.lock();
        let queue = self.queue_of(&mut inner, client, now);
        let entry = queue.entries.entry(key).or_insert_with(|| {
            let (askers, state) = (Askers::default(), State::Running(None));
            Entry { askers, state }
        });
        let before = std::mem::replace(&mut entry.state, State::Answered(kept));
        queue.order.push_back(Kept { key, since: now });
        queue.bytes += reply.len();
        self.usage.entries.fetch_add(1, Ordering::Relaxed);
        self.usage.bytes.fetch_add(reply.len(), Ordering::Relaxed);
        if queue.order.len() > PER_CLIENT {
            self.drop_oldest(queue);
        }
        while self.usage.entries.load(Ordering::Relaxed) > self.limits.entries
            || self.usage.bytes.load(Ordering::Relaxed) > self.limits.bytes
        {
            if !self.evict(&mut inner) {
                break;
            }
        }
        match before {
            State::Running(waiting) => waiting.map(|waiting| *waiting).unwrap_or_default(),
            State::Answered(_) => SmallVec::new(),
        }
    }

    /// Records that a connection of `client` has ended. With [`Replies::Received`], drops each reply that no other
    /// connection asked for: a client that has its replies does not retransmit.
    pub(crate) fn gone(&self, client: IpAddr, connection: u64, replies: Replies) {
        let mut inner = self.inner.lock();
        let Some(queue) = inner.clients.get_mut(&client) else { return };
        // Most connections change nothing, and there may be thousands of entries to check.
        if !queue.askers.remove(&connection) {
            return;
        }
        queue.last_asker = queue.last_asker.filter(|last| *last != connection);
        let ClientQueue { entries, order, bytes, .. } = queue;
        let (mut dropped, mut freed) = (0, 0);
        entries.retain(|_, entry| {
            let last = entry.askers.remove(connection);
            match &entry.state {
                State::Answered(reply) if last && replies == Replies::Received => {
                    dropped += 1;
                    freed += reply.len();
                    false
                }
                _ => true,
            }
        });
        if dropped > 0 {
            order.retain(|kept| entries.contains_key(&kept.key));
            *bytes -= freed;
            self.usage.entries.fetch_sub(dropped, Ordering::Relaxed);
            self.usage.bytes.fetch_sub(freed, Ordering::Relaxed);
        }
    }

    /// Forgets a request that was not executed after all, so that it may be retransmitted. Returns the retransmissions
    /// that wait for its reply.
    pub(crate) fn abandon(&self, client: IpAddr, key: RequestKey) -> Waiting {
        let mut inner = self.inner.lock();
        match inner.clients.get_mut(&client).and_then(|queue| queue.entries.remove(&key)) {
            Some(Entry { state: State::Running(Some(waiting)), .. }) => *waiting,
            _ => SmallVec::new(),
        }
    }

    /// Drops the oldest replies of the client that has been quiet longest. Drops several at once, because finding that
    /// client takes a look at every client.
    fn evict(&self, inner: &mut Inner) -> bool {
        let quiet = inner.clients.iter().filter(|(_, queue)| !queue.order.is_empty());
        let Some(address) = quiet.min_by_key(|(_, queue)| queue.last_use).map(|(address, _)| *address) else {
            return false;
        };
        let Some(queue) = inner.clients.get_mut(&address) else { return false };
        for _ in 0..64 {
            self.drop_oldest(queue);
        }
        if queue.entries.is_empty() {
            inner.clients.remove(&address);
        }
        true
    }

    /// Returns the requests of a client, without expired replies.
    fn queue_of<'a>(&self, inner: &'a mut Inner, client: IpAddr, now: Instant) -> &'a mut ClientQueue {
        if inner.swept.is_none_or(|swept| now.saturating_duration_since(swept) > SWEEP) {
            inner.swept = Some(now);
            inner.clients.retain(|_, queue| {
                self.expire(queue, now);
                !queue.entries.is_empty()
            });
        }
        let queue = inner.clients.entry(client).or_default();
        self.expire(queue, now);
        queue
    }

    fn expire(&self, queue: &mut ClientQueue, now: Instant) {
        let expired = |kept: &Kept| now.saturating_duration_since(kept.since) > LIFETIME;
        while queue.order.front().is_some_and(expired) {
            self.drop_oldest(queue);
        }
    }

    fn drop_oldest(&self, queue: &mut ClientQueue) {
        if let Some(Kept { key, .. }) = queue.order.pop_front()
            && let Some(Entry { state: State::Answered(reply), .. }) = queue.entries.remove(&key)
        {
            queue.bytes -= reply.len();
            self.usage.entries.fetch_sub(1, Ordering::Relaxed);
            self.usage.bytes.fetch_sub(reply.len(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
