//! Replies kept to answer retransmissions (RFC 1813 section 4.2 and Juszczak, USENIX 1989).
//!
//! A client retransmits only requests whose replies it has not received, after it has reconnected. It has a
//! bounded number of those, so what matters is the last replies of EACH client, not the last of all: every client
//! address has a queue of its own, and when the whole is too large the client that has been quiet longest gives
//! way. Entries are found by address, transaction, user and a checksum of the arguments, whatever the connection: another
//! user of the client is another caller, who must not get the first one's reply.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use forebay_lock::Mutex;
use forebay_rpc::Ticket;
use forebay_wire::rpc::{Auth, AuthSys};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::dispatch::Call;

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
    /// Retransmissions that came while the original was being worked on.
    pub in_progress: AtomicU64,
}

/// What tells one request from another: transaction, procedure, who asks, and a hash of the arguments' first bytes and
/// their length.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RequestKey {
    pub(crate) xid: u32,
    pub(crate) procedure: u32,
    /// Uid and gid of AUTH_SYS as the client sent them; none for AUTH_NONE.
    pub(crate) user: Option<(u32, u32)>,
    pub(crate) hash: u64,
}

/// Bytes of the arguments that go into the checksum: enough for any name, little for a large write.
const HASHED: usize = 512;

impl RequestKey {
    pub(crate) fn of(call: &Call<'_>) -> Self {
        let user = match call.header.cred {
            Auth::Sys(AuthSys { uid, gid, .. }) => Some((uid, gid)),
            _ => None,
        };
        let args = call.args.rest();
        // The same in every version: it is in the cache's log.
        let hash = xxh3_64_with_seed(&args[..args.len().min(HASHED)], args.len() as u64);
        RequestKey { xid: call.xid(), procedure: call.header.proc, user, hash }
    }
}

/// Retransmissions of one request that wait for its reply together.
pub(crate) type Waiting = SmallVec<[Ticket; 1]>;
/// More connections than this asking for the same reply: the rest get none.
const MAX_WAITING: usize = 4;

enum State {
    /// Being worked on.
    Running(Waiting),
    /// Answered with these bytes.
    Answered(Arc<[u8]>),
}

#[derive(Default)]
struct ClientQueue {
    states: HashMap<RequestKey, State, foldhash::fast::RandomState>,
    /// Answered requests, oldest first.
    order: VecDeque<RequestKey>,
    bytes: usize,
    last_use: u64,
}

#[derive(Default)]
struct Inner {
    clients: HashMap<IpAddr, ClientQueue, foldhash::fast::RandomState>,
    clock: u64,
}

/// The cache. One lock: it is held for a hash lookup per change, and changes wait for a disk anyway.
pub(crate) struct ReplyCache {
    inner: Mutex<Inner>,
    limits: CacheLimits,
    pub(crate) usage: CacheUse,
}

/// What to do with a request.
pub(crate) enum Begin {
    /// Execute it, then call [`ReplyCache::end`].
    Execute(Ticket),
    /// Send this kept reply.
    Again(Ticket, Arc<[u8]>),
    /// The original's reply will answer this one too.
    Joined,
}

/// What must survive of one client: at least this many replies, as many as it may have unanswered.
const PER_CLIENT: usize = 4096;

impl ReplyCache {
    pub(crate) fn new(limits: CacheLimits) -> Self {
        ReplyCache { inner: Mutex::default(), limits, usage: CacheUse::default() }
    }

    /// Decides what happens to a request.
    pub(crate) fn begin(&self, client: IpAddr, key: RequestKey, ticket: Ticket) -> Begin {
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let now = inner.clock;
        let queue = inner.clients.entry(client).or_default();
        queue.last_use = now;
        match queue.states.get_mut(&key) {
            None => {
                queue.states.insert(key, State::Running(SmallVec::new()));
                Begin::Execute(ticket)
            }
            Some(State::Running(waiting)) => {
                self.usage.in_progress.fetch_add(1, Ordering::Relaxed);
                if waiting.len() < MAX_WAITING {
                    waiting.push(ticket);
                }
                Begin::Joined
            }
            Some(State::Answered(reply)) => {
                self.usage.hits.fetch_add(1, Ordering::Relaxed);
                Begin::Again(ticket, reply.clone())
            }
        }
    }

    /// Keeps the reply of an executed request; returns the retransmissions that wait for it.
    pub(crate) fn end(&self, client: IpAddr, key: RequestKey, reply: &[u8]) -> Waiting {
        let kept: Arc<[u8]> = reply.into();
        let mut inner = self.inner.lock();
        let queue = inner.clients.entry(client).or_default();
        let before = queue.states.insert(key, State::Answered(kept));
        queue.order.push_back(key);
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
            Some(State::Running(waiting)) => waiting,
            _ => SmallVec::new(),
        }
    }

    /// Forgets a request that was not executed after all, so that it may be sent again; returns the retransmissions
    /// that wait for its reply.
    pub(crate) fn abandon(&self, client: IpAddr, key: RequestKey) -> Waiting {
        let mut inner = self.inner.lock();
        match inner.clients.get_mut(&client).and_then(|queue| queue.states.remove(&key)) {
            Some(State::Running(waiting)) => waiting,
            _ => SmallVec::new(),
        }
    }

    /// Drops the oldest replies of the client that has been quiet longest, some at once: finding it takes a look
    /// at every client.
    fn evict(&self, inner: &mut Inner) -> bool {
        let quiet = inner.clients.iter().filter(|(_, queue)| !queue.order.is_empty());
        let Some(address) = quiet.min_by_key(|(_, queue)| queue.last_use).map(|(address, _)| *address) else {
            return false;
        };
        let Some(queue) = inner.clients.get_mut(&address) else { return false };
        for _ in 0..64 {
            self.drop_oldest(queue);
        }
        if queue.states.is_empty() {
            inner.clients.remove(&address);
        }
        true
    }

    fn drop_oldest(&self, queue: &mut ClientQueue) {
        if let Some(key) = queue.order.pop_front()
            && let Some(State::Answered(reply)) = queue.states.remove(&key)
        {
            queue.bytes -= reply.len();
            self.usage.entries.fetch_sub(1, Ordering::Relaxed);
            self.usage.bytes.fetch_sub(reply.len(), Ordering::Relaxed);
        }
    }
}
