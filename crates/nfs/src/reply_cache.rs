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
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use forebay_rpc::{Replies, Ticket};
use forebay_wire::nfs3::Procedure;
use smallvec::SmallVec;

mod askers;
mod key;
#[cfg(test)]
mod tests;

use askers::Askers;
pub(crate) use key::{RequestKey, hash};

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

/// Retransmissions of one request that wait for its reply together.
pub(crate) type Waiting = SmallVec<[Ticket; 1]>;
/// The number of connections that may wait for one reply; further connections get none.
const MAX_WAITING: usize = 4;

/// One request.
struct Entry {
    askers: Askers,
    state: State,
}

enum State {
    /// The request is in progress.
    Running(Option<Box<Progress>>),
    /// The request was answered with these bytes.
    Answered(Arc<[u8]>),
}

/// The further state of a request in progress.
#[derive(Default)]
struct Progress {
    /// Retransmissions that wait for the reply.
    waiting: Waiting,
    logging: Option<Logging>,
}

/// A reply on its way to the log, in the record of the change with this number.
struct Logging {
    reply: Arc<[u8]>,
    change: u64,
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
    entries: AtomicUsize,
    bytes: AtomicUsize,
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

/// The number of a client's replies that a snapshot has: as many requests of one connection are in progress at most,
/// unless the administrator allows more.
const PER_CLIENT_IN_LOG: usize = 256;

/// The number of replies of all clients that a snapshot has, about 4 MiB: a small log must have room for it. With more
/// clients than that, it has the newest reply of each.
const IN_LOG: usize = 16_384;

/// The longest time that a reply is kept. A Linux client gives up a silent connection after three minutes, waits up to
/// five before it connects again, and then retransmits.
const LIFETIME: Duration = Duration::from_secs(600);

/// The interval between two checks of the replies of idle clients.
const SWEEP: Duration = Duration::from_secs(60);

impl ReplyCache {
    pub(crate) fn new(limits: CacheLimits) -> Self {
        let (entries, bytes) = (limits.entries.into(), limits.bytes.into());
        ReplyCache { inner: Mutex::default(), entries, bytes, usage: CacheUse::default() }
    }

    /// Changes the bounds. Replies beyond a lower bound are dropped when the next one is kept.
    pub(crate) fn set_limits(&self, limits: CacheLimits) {
        self.entries.store(limits.entries, Ordering::Relaxed);
        self.bytes.store(limits.bytes, Ordering::Relaxed);
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
            State::Running(progress) => {
                self.usage.in_progress.fetch_add(1, Ordering::Relaxed);
                let waiting = &mut progress.get_or_insert_default().waiting;
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
        while self.usage.entries.load(Ordering::Relaxed) > self.entries.load(Ordering::Relaxed)
            || self.usage.bytes.load(Ordering::Relaxed) > self.bytes.load(Ordering::Relaxed)
        {
            if !self.evict(&mut inner) {
                break;
            }
        }
        match before {
            State::Running(progress) => progress.map(|progress| progress.waiting).unwrap_or_default(),
            State::Answered(_) => SmallVec::new(),
        }
    }

    /// Notes that the reply to a running request is about to go to the log, in the record of the change with this
    /// number. From now on a snapshot has the reply, if the change is durable without its record.
    pub(crate) fn log(&self, client: IpAddr, key: RequestKey, reply: &[u8], change: u64) {
        let reply = reply.into();
        let mut inner = self.inner.lock();
        let entry = inner.clients.get_mut(&client).and_then(|queue| queue.entries.get_mut(&key));
        if let Some(Entry { state: State::Running(progress), .. }) = entry {
            progress.get_or_insert_default().logging = Some(Logging { reply, change });
        }
    }

    /// Returns the replies that a snapshot in the log has: of each client the newest that have not expired by `now`,
    /// and those on their way to the log whose changes, up to the number `durable`, need no record any more. A WRITE
    /// may happen twice, so its reply is left out.
    pub(crate) fn snapshot(&self, durable: u64, now: Instant) -> Vec<(IpAddr, RequestKey, Arc<[u8]>)> {
        let inner = self.inner.lock();
        let mut replies = Vec::new();
        let each = (IN_LOG / inner.clients.len().max(1)).clamp(1, PER_CLIENT_IN_LOG);
        for (client, queue) in &inner.clients {
            let is_kept = |kept: &&Kept| {
                let age = now.saturating_duration_since(kept.since);
                kept.key.procedure != Procedure::Write as u32 && age <= LIFETIME
            };
            let newest = queue.order.iter().rev().filter(is_kept).take(each);
            let answered = newest.filter_map(|kept| match &queue.entries.get(&kept.key)?.state {
                State::Answered(reply) => Some((*client, kept.key, reply.clone())),
                State::Running(..) => None,
            });
            replies.extend(answered);
            let logging = queue.entries.iter().filter_map(|(key, entry)| match &entry.state {
                State::Running(Some(progress)) => {
                    let logging = progress.logging.as_ref().filter(|it| it.change <= durable)?;
                    Some((*client, *key, logging.reply.clone()))
                }
                _ => None,
            });
            replies.extend(logging);
        }
        replies
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
            Some(Entry { state: State::Running(Some(progress)), .. }) => progress.waiting,
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
