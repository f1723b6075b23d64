//! The state of clients that all requests share: of NFSv4, and the locks of NFSv3.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_clientstate::{
    Action, ClientId, Counters, Counts, Effects, Error, FileRef, Granted, Limits, Now, Origin, RequestId,
    SECOND, Session, SessionId, State, StateId, Waiter,
};
use forebay_common::lock::{Mutex, MutexGuard, RwLock};
use forebay_rpc::Ticket;
use forebay_vfs::Vfs;

use super::callback::{Callbacks, Message};
use super::client_ids::ClientIds;
use super::copier::Copier;
use super::durable::Key;
use super::known::Known;
use super::pseudo::Pseudo;
use super::recent::Grant;
use super::removed::Remover;

/// The numbers of the clients' state, for the status.
#[derive(Clone, Copy, Debug, Default)]
pub struct StateNumbers {
    /// Entries now.
    pub counts: Counts,
    /// Delegations that were recalled since the start.
    pub recalls: u64,
    /// Delegations that were revoked since the start.
    pub revoked: u64,
    /// Call-backs that succeeded since the start.
    pub callbacks_answered: u64,
    /// Call-backs that were given up since the start.
    pub callbacks_given_up: u64,
    /// Call-backs that wait for a connection or a slot now.
    pub callbacks_waiting: u64,
}

/// The circumstances of a start.
pub(crate) struct Start {
    pub(crate) lease: Duration,
    /// The file of the clients that may reclaim state.
    pub(crate) known: Option<PathBuf>,
}

/// The state of clients that all requests share: of NFSv4, and the locks of NFSv3.
pub(crate) struct Server {
    state: Mutex<State>,
    /// Moves whenever a thread is about to change the state: see [`recent`](super::recent).
    generation: AtomicU64,
    pub(super) known: Known,
    /// True if a client is gone since the file of known clients was written.
    someone_is_gone: AtomicBool,
    /// The sessions by name, so that SEQUENCE does not take the lock of all clients' state.
    sessions: RwLock<HashMap<SessionId, Arc<Session>, foldhash::fast::RandomState>>,
    /// Requests that may be retransmissions of running ones, with their transaction numbers.
    waiting: Mutex<HashMap<Waiter, (Ticket, u32)>>,
    next_waiter: AtomicU64,
    pub(super) counters: Arc<Counters>,
    pub(crate) callbacks: Arc<Callbacks>,
    /// The number of requests that wait for the answer of a delegation's holder.
    pub(super) asking: AtomicUsize,
    pub(crate) remover: Remover,
    pub(crate) copier: Copier,
    /// Requests that a killed server carried out, and that no client was told of.
    pub(super) carried_out: Mutex<HashSet<Key>>,
    pseudo: RwLock<Arc<Pseudo>>,
    pub(super) limits: Limits,
    /// The name of the server for its clients (RFC 8881 section 2.10.4).
    pub(super) owner: Vec<u8>,
    started: Instant,
    last_tick: AtomicU64,
    /// Called for each blocked lock of NFSv3 that is granted.
    granted: OnceLock<Box<dyn Fn(Granted) + Send + Sync>>,
    /// The key of clients' ids.
    pub(super) client_ids: ClientIds,
    /// Keys that no client knows.
    keys: RandomState,
}

impl Server {
    /// Returns the state of a server without clients.
    ///
    /// # Errors
    /// The file of known clients cannot be read.
    pub(crate) fn new(vfs: &Vfs, start: Start) -> std::io::Result<Self> {
        let Start { lease, known } = start;
        let known = Known::open(known)?;
        let limits = Limits { lease: lease.as_nanos() as u64, ..Limits::default() };
        let keys = RandomState::new();
        let counters = Arc::default();
        let mut state = State::new(limits.clone(), origin(&keys, None));
        state.count_in(Arc::clone(&counters));
        Ok(Server {
            counters,
            callbacks: Arc::default(),
            asking: AtomicUsize::new(0),
            remover: Remover::default(),
            copier: Copier::new(),
            state: Mutex::new(state),
            generation: AtomicU64::new(keys.hash_one(1)),
            known,
            someone_is_gone: AtomicBool::new(false),
            sessions: RwLock::default(),
            waiting: Mutex::default(),
            next_waiter: AtomicU64::new(1),
            carried_out: Mutex::default(),
            pseudo: RwLock::new(Arc::new(Pseudo::new(vfs.exports()))),
            limits,
            owner: format!("forebay-{:016x}", vfs.derive(b"NFSv4 server owner")).into_bytes(),
            started: Instant::now(),
            last_tick: AtomicU64::new(0),
            granted: OnceLock::new(),
            client_ids: ClientIds::new(vfs),
            keys,
        })
    }

    /// Returns the directories above the exports.
    pub(super) fn pseudo(&self) -> Arc<Pseudo> {
        self.pseudo.read().clone()
    }

    /// Makes the directories above the exports lead to the exports in service.
    pub(crate) fn exports_changed(&self, vfs: &Vfs) {
        let mut pseudo = self.pseudo.write();
        *pseudo = Arc::new(pseudo.changed(vfs.exports()));
    }

    /// Returns the origin of numbers that differ from those of earlier starts, of which `last` is the last one known.
    pub(super) fn origin(&self, last: Option<u32>) -> Origin {
        origin(&self.keys, last.max(self.known.epoch))
    }

    /// Prepares for clients, after [`Server::recover`] if there is a log. Without one, clients that the server knew may
    /// reclaim their state for the time of a lease. `has_lost_locks`: so may hosts of NFSv3, which no list names.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn begin(&self, vfs: &Vfs, has_lost_locks: bool) -> std::io::Result<()> {
        let known = (!has_lost_locks).then(|| self.known.owners());
        let mut state = self.state();
        if !vfs.logs_state() {
            let origin = self.origin(None);
            *state = State::without_log(self.limits.clone(), origin, known, self.now());
            state.count_in(self.counters.clone());
        }
        let has_all = vfs.logs_state() && !state.in_grace(self.now());
        let (epoch, owners) = (state.epoch(), has_all.then(|| state.client_owners()));
        drop(state);
        // Clients that wait for copies of the last server may send nothing for most of a lease time.
        self.without_request(vfs, |state, now, effects| state.tick(now, effects));
        self.known.begin(epoch, owners.as_deref())
    }

    /// Adds the client of a session to the known ones, durably, before the client learns of the session. After an
    /// error no session of the client may be answered: a server without its name would deny the client its reclaim.
    pub(super) fn know(&self, client: ClientId) -> std::io::Result<()> {
        let owner = self.state.lock().owner_of(client);
        owner.map_or(Ok(()), |owner| self.known.add(&owner))?;
        self.forget_known();
        Ok(())
    }

    /// Removes clients that are gone from the known ones, with the next new client or snapshot: the caller may wait for
    /// a disk. In a grace period those that have not come back yet stay.
    pub(super) fn forget_known(&self) {
        let was_in_grace = self.known.in_grace();
        let owners = || {
            let state = self.state.lock();
            let is_due = || self.someone_is_gone.swap(false, Ordering::Relaxed) || was_in_grace;
            (!state.in_grace(self.now()) && is_due()).then(|| state.client_owners())
        };
        // A client that stays in the file makes a later grace period longer, and does no other harm.
        let _ = self.known.keep(owners);
    }

    /// Returns the time for clients' state.
    pub(crate) fn now(&self) -> Now {
        self.at(Instant::now())
    }

    /// Returns the time for clients' state at `instant`.
    pub(super) fn at(&self, instant: Instant) -> Now {
        instant.saturating_duration_since(self.started).as_nanos() as u64
    }

    /// Sets the function that is called for each blocked lock of NFSv3 that is granted.
    pub(crate) fn call_when_granted(&self, call: Box<dyn Fn(Granted) + Send + Sync>) {
        let _ = self.granted.set(call);
    }

    /// Returns bytes that no client can guess.
    pub(super) fn random(&self) -> [u8; 8] {
        self.keys.hash_one(self.next_waiter.fetch_add(1, Ordering::Relaxed)).to_be_bytes()
    }

    /// Locks the state for a change.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        let state = self.state.lock();
        // Before the change, so that a thread which learns of the change by any way finds that its grants are outdated.
        self.generation.fetch_add(1, Ordering::AcqRel);
        state
    }

    /// Locks the state for a look, or for a change of no grant. Threads may go on with the state ids that they know.
    pub(super) fn state_with_its_grants(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns success if a READ, a WRITE or a SETATTR of the size may go on. Takes no lock for an access that this
    /// thread has had since the last change of the state.
    pub(super) fn io(
        &self,
        vfs: &Vfs,
        grant: Grant<'_>,
        now: Now,
        effects: &mut Effects,
    ) -> Result<(), Error> {
        let Grant { client, stateid, file, access } = grant;
        let is_special = stateid == StateId::ANONYMOUS || stateid == StateId::BYPASS;
        if !is_special && grant.is_known(self.generation.load(Ordering::Acquire)) {
            return Ok(());
        }
        let key = vfs.file_key(file.as_bytes());
        let file = FileRef { key: key.as_slice(), handle: file.as_bytes() };
        if is_special {
            return self.state().io(Some(client), stateid, file, access, now, effects);
        }
        // A state id that is not special changes nothing.
        let mut state = self.state.lock();
        state.io(Some(client), stateid, file, access, now, effects)?;
        grant.remember(self.generation.load(Ordering::Acquire));
        Ok(())
    }

    /// Returns the numbers of the clients' state.
    pub(crate) fn numbers(&self) -> StateNumbers {
        StateNumbers {
            counts: self.state.lock().counts(),
            recalls: self.counters.recalls.load(Ordering::Relaxed),
            revoked: self.counters.revoked.load(Ordering::Relaxed),
            callbacks_answered: self.callbacks.answered.load(Ordering::Relaxed),
            callbacks_given_up: self.callbacks.given_up.load(Ordering::Relaxed),
            callbacks_waiting: self.callbacks.waiting() as u64,
        }
    }

    /// Returns the duration of a lease in seconds.
    pub(super) fn lease_seconds(&self) -> u32 {
        (self.limits.lease / 1_000_000_000) as u32
    }

    /// Returns the session with this id, or `None` if the session does not exist or has ended. SEQUENCE asks
    /// [`recent`](super::recent) before.
    pub(super) fn session(&self, id: SessionId) -> Option<Arc<Session>> {
        let known = self.sessions.read().get(&id).cloned();
        let session = match known {
            Some(session) => session,
            None => {
                let session = self.state.lock().session(id)?;
                self.sessions.write().insert(id, session.clone());
                session
            }
        };
        Some(session).filter(|session| !session.is_destroyed())
    }

    /// Forgets sessions that have ended.
    pub(super) fn forget_ended_sessions(&self) {
        self.sessions.write().retain(|_, session| !session.is_destroyed());
    }

    /// Carries out the consequences of operations.
    #[inline]
    pub(crate) fn act(&self, effects: &mut Effects) {
        // Few requests have any.
        if !effects.actions.is_empty() {
            self.act_on(effects);
        }
    }

    fn act_on(&self, effects: &mut Effects) {
        for action in effects.actions.drain(..) {
            match action {
                Action::ClientGone(client) => {
                    self.someone_is_gone.store(true, Ordering::Relaxed);
                    self.callbacks.forget(client);
                    self.forget_ended_sessions();
                }
                Action::Recall { client, stateid, file, granted_in } => {
                    let granted_in = self.unseen(granted_in);
                    self.callbacks.send(client, Message::Recall { stateid, file, granted_in });
                }
                Action::NotifyLock { client, owner, file } => {
                    let sealed = self.client_ids.seal(client);
                    self.callbacks.send(client, Message::NotifyLock { client: sealed, owner, file });
                }
                Action::TellCopy { client, stateid, file, end, progress, asked_in } => {
                    let asked_in = self.unseen(asked_in);
                    self.callbacks.send(client, Message::Offload { stateid, file, end, progress, asked_in });
                }
                Action::Granted(granted) => {
                    if let Some(call) = self.granted.get() {
                        call(granted);
                    }
                }
                Action::FileUnused(file) => self.remover.remove(file),
            }
        }
    }

    /// Returns a request unless its client certainly has the reply: it has used the slot since.
    pub(super) fn unseen(&self, request: Option<RequestId>) -> Option<RequestId> {
        request.filter(|request| {
            let session = self.session(request.session);
            session.is_some_and(|session| session.is_last(request.slot, request.sequence))
        })
    }

    /// Ends what has expired at `now`, at most once a second. Requests call it: without any, nobody misses what has
    /// expired.
    pub(crate) fn tick(&self, vfs: &Vfs, now: Now) {
        let last = self.last_tick.load(Ordering::Relaxed);
        let is_due = now.saturating_sub(last) >= SECOND;
        if !is_due
            || self.last_tick.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        self.without_request(vfs, |state, now, effects| state.tick(now, effects));
        self.callbacks.tick();
    }

    /// Makes a change of the state that belongs to no request. Its records go to the log with the next request's.
    pub(super) fn without_request(&self, vfs: &Vfs, change: impl FnOnce(&mut State, Now, &mut Effects)) {
        let mut effects = Effects::default();
        let mut state = self.state();
        change(&mut state, self.now(), &mut effects);
        if !vfs.logs_state() {
            let forgotten = state.take_revoked().len();
            self.counters.revocations.fetch_sub(forgotten, Ordering::Release);
        }
        drop(state);
        self.act(&mut effects);
    }

    /// Returns true if state was taken from clients, and the log does not have that durably yet. Takes no lock.
    pub(crate) fn has_revocations(&self) -> bool {
        self.counters.revocations.load(Ordering::Acquire) > 0
    }

    /// Returns true if clients have delegations. Takes no lock.
    pub(super) fn has_delegations(&self) -> bool {
        self.counters.delegations.load(Ordering::SeqCst) > 0
    }

    /// Returns true if clients have write delegations. Takes no lock.
    pub(super) fn has_write_delegations(&self) -> bool {
        self.counters.write_delegations.load(Ordering::SeqCst) > 0
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
