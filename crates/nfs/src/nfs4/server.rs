//! The state of clients that all requests share: of NFSv4, and the locks of NFSv3.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_clientstate::{
    Action, Effects, Granted, Limits, Now, Origin, SECOND, Session, SessionId, State, Waiter,
};
use forebay_common::lock::{Mutex, MutexGuard, RwLock};
use forebay_rpc::Ticket;
use forebay_vfs::Vfs;

use super::durable::Key;
use super::pseudo::Pseudo;

/// The state of clients that all requests share: of NFSv4, and the locks of NFSv3.
pub(crate) struct Server {
    state: Mutex<State>,
    /// True if hosts had locks with a server without a log, and may reclaim them now.
    pub(super) has_lost_locks: bool,
    /// The sessions by name, so that SEQUENCE does not take the lock of all clients' state.
    sessions: RwLock<HashMap<SessionId, Arc<Session>, foldhash::fast::RandomState>>,
    /// Requests that may be retransmissions of running ones, with their transaction numbers.
    waiting: Mutex<HashMap<Waiter, (Ticket, u32)>>,
    next_waiter: AtomicU64,
    /// Requests that a killed server carried out, and that no client was told of.
    pub(super) carried_out: Mutex<HashSet<Key>>,
    pub(super) pseudo: Pseudo,
    pub(super) limits: Limits,
    /// The name of the server for its clients (RFC 8881 section 2.10.4).
    pub(super) owner: Vec<u8>,
    started: Instant,
    last_tick: AtomicU64,
    /// Called for each blocked lock of NFSv3 that is granted.
    granted: OnceLock<Box<dyn Fn(Granted) + Send + Sync>>,
    /// Keys that no client knows.
    keys: RandomState,
}

impl Server {
    /// Returns the state of a server without clients. If clients lost locks with the last server, there is a grace
    /// period for them.
    pub(crate) fn new(vfs: &Vfs, lease: Duration, has_lost_locks: bool) -> Self {
        let limits = Limits { lease: lease.as_nanos() as u64, ..Limits::default() };
        let keys = RandomState::new();
        let state = match has_lost_locks {
            true => State::without_log(limits.clone(), origin(&keys, None), None, 0),
            false => State::new(limits.clone(), origin(&keys, None)),
        };
        Server {
            state: Mutex::new(state),
            has_lost_locks,
            sessions: RwLock::default(),
            waiting: Mutex::default(),
            next_waiter: AtomicU64::new(1),
            carried_out: Mutex::default(),
            pseudo: Pseudo::new(vfs.exports()),
            limits,
            owner: format!("forebay-{:016x}", vfs.derive(b"NFSv4 server owner")).into_bytes(),
            started: Instant::now(),
            last_tick: AtomicU64::new(0),
            granted: OnceLock::new(),
            keys,
        }
    }

    /// Returns the origin of numbers that differ from those of earlier starts, of which `last` is the last one known.
    pub(super) fn origin(&self, last: Option<u32>) -> Origin {
        origin(&self.keys, last)
    }

    /// Returns the time for clients' state.
    pub(crate) fn now(&self) -> Now {
        self.started.elapsed().as_nanos() as u64
    }

    /// Sets the function that is called for each blocked lock of NFSv3 that is granted.
    pub(crate) fn call_when_granted(&self, call: Box<dyn Fn(Granted) + Send + Sync>) {
        let _ = self.granted.set(call);
    }

    /// Returns bytes that no client can guess.
    pub(super) fn random(&self) -> [u8; 8] {
        self.keys.hash_one(self.next_waiter.fetch_add(1, Ordering::Relaxed)).to_be_bytes()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the duration of a lease in seconds.
    pub(super) fn lease_seconds(&self) -> u32 {
        (self.limits.lease / 1_000_000_000) as u32
    }

    pub(super) fn session(&self, id: SessionId) -> Option<Arc<Session>> {
        if let Some(session) = self.sessions.read().get(&id) {
            return Some(session.clone()).filter(|session| !session.is_destroyed());
        }
        let session = self.state().session(id)?;
        self.sessions.write().insert(id, session.clone());
        Some(session)
    }

    /// Forgets sessions that have ended.
    pub(super) fn forget_ended_sessions(&self) {
        self.sessions.write().retain(|_, session| !session.is_destroyed());
    }

    /// Carries out the consequences of operations.
    pub(crate) fn act(&self, effects: &mut Effects) {
        for action in effects.actions.drain(..) {
            match action {
                Action::ClientGone(_) => self.forget_ended_sessions(),
                // Without back channels there are neither delegations nor notifications. The file system frees a
                // removed file at once.
                Action::Granted(granted) => {
                    if let Some(call) = self.granted.get() {
                        call(granted);
                    }
                }
                Action::Recall { .. } | Action::NotifyLock { .. } | Action::FileUnused(_) => {}
            }
        }
    }

    /// Ends what has expired, at most once a second. Requests call it: without any, nobody misses what has expired.
    pub(crate) fn tick(&self, vfs: &Vfs) {
        let now = self.now();
        let last = self.last_tick.load(Ordering::Relaxed);
        let is_due = now.saturating_sub(last) >= SECOND;
        if !is_due
            || self.last_tick.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let mut effects = Effects::default();
        let mut state = self.state();
        state.tick(now, &mut effects);
        if !vfs.logs_state() {
            state.take_revoked();
        }
        drop(state);
        self.act(&mut effects);
    }

    /// Returns a number for a request that may turn out to be the retransmission of a running one.
    pub(super) fn begin_waiting(&self, ticket: Ticket, xid: u32) -> Waiter {
        let waiter = self.next_waiter.fetch_add(1, Ordering::Relaxed);
        self.waiting.lock().insert(waiter, (ticket, xid));
        waiter
    }

    /// Returns the ticket of a request that does not wait.
    pub(super) fn stop_waiting(&self, waiter: Waiter) -> Option<Ticket> {
        self.waiting.lock().remove(&waiter).map(|(ticket, _)| ticket)
    }

    /// Returns the tickets and the transaction numbers of retransmissions that wait.
    pub(super) fn take_waiting(&self, waiters: &[Waiter]) -> Vec<(Ticket, u32)> {
        let mut waiting = self.waiting.lock();
        waiters.iter().filter_map(|waiter| waiting.remove(waiter)).collect()
    }
}

/// Returns the origin of a start after `last`. Clients may still use numbers of earlier starts that nobody knows any
/// more, so it follows the time as well.
fn origin(keys: &RandomState, last: Option<u32>) -> Origin {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let next = last.map_or(0, |last| last.wrapping_add(1));
    Origin { epoch: next.max(since_1970.as_secs() as u32), seed: keys.hash_one(0) }
}
