//! A server in a world: the state, a log of which a prefix is durable, and requests that run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_clientstate::*;

use crate::rng::Rng;

/// An operation behind SEQUENCE.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Op {
    /// A change of the file system that must happen once.
    Change(u64),
    Read,
    Open {
        file: u8,
        share: Share,
        want: Want,
    },
    Close {
        file: u8,
        open: StateId,
    },
    Lock {
        file: u8,
        with: Result<StateId, StateId>,
        range: Range,
        kind: LockKind,
    },
    Unlock {
        file: u8,
        lock: StateId,
        range: Range,
    },
    Return(StateId),
}

impl Op {
    pub(crate) fn file(&self) -> Option<u8> {
        match self {
            Op::Open { file, .. }
            | Op::Close { file, .. }
            | Op::Lock { file, .. }
            | Op::Unlock { file, .. } => Some(*file),
            _ => None,
        }
    }
}

/// The reply to an operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reply {
    Done,
    Opened(Opened),
    State(StateId),
    Denied,
    Failed(Error),
}

/// A request of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) session: SessionId,
    pub(crate) client: ClientId,
    pub(crate) slot: u32,
    pub(crate) sequence: u32,
    pub(crate) op: Op,
    pub(crate) digest: u64,
    pub(crate) operations: u32,
}

/// The fate of a request.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    Reply(Reply),
    Refused(Error),
    /// No reply: it waits, or the server has crashed.
    Silence,
}

/// The records of one request, and the changes that it made.
#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    changes: Vec<u64>,
}

pub(crate) struct Server {
    pub(crate) state: State,
    log: Vec<Batch>,
    /// The batches up to here survive any crash.
    durable: usize,
    epoch: u32,
    /// All replies ever sent: the bytes of a kept reply are an index.
    replies: Vec<Reply>,
    /// Changes carried out, as far as they have survived.
    pub(crate) changes: Vec<u64>,
    running: Vec<Call>,
    /// The number of the last change in the log.
    logged_changes: u64,
    /// The files that have lost their name and are kept for their clients.
    pub(crate) kept: BTreeSet<u8>,
    counters: Arc<Counters>,
    /// Changes of files by clients without state that are in progress.
    pub(crate) changing: Vec<(u8, Changing<'static>)>,
    pub(crate) actions: Vec<Action>,
    pub(crate) crashes: u64,
    /// The kinds of events of this world, each with its number.
    pub(crate) hits: BTreeMap<&'static str, u64>,
}

/// The events that worlds must have, each in some world.
pub(crate) const EVENTS: [&str; 21] = [
    "crash",
    "crash before an acknowledgement",
    "snapshot",
    "snapshot before a reply",
    "replay",
    "in progress",
    "refused",
    "denied",
    "share denied",
    "delay",
    "delegation",
    "recall",
    "hint",
    "grant",
    "client expired",
    "kept",
    "unused",
    "change of a file",
    "copy",
    "copy told",
    "copy told after a crash",
];

pub(crate) fn file_key(file: u8) -> FileKey {
    file_by(file, 0)
}

/// Returns a file as a client knows it. Files with odd numbers are in two exports, and each client uses one of them.
pub(crate) fn file_of(client: ClientId, file: u8) -> FileKey {
    file_by(file, client.0 as u8 & file & 1)
}

/// Returns a file as hosts know it.
pub(crate) fn file_of_host(file: u8) -> FileKey {
    file_by(file, 2)
}

fn file_by(file: u8, export: u8) -> FileKey {
    FileKey::new(&[file], &[file, export]).unwrap()
}

/// Returns the file that a handle names.
fn key_of(handle: &[u8]) -> Option<FileKey> {
    FileKey::new(&handle[..1], handle)
}

pub(crate) fn name(text: &str) -> OwnerName {
    OwnerName::new(text.as_bytes()).unwrap()
}

impl Server {
    pub(crate) fn new() -> Self {
        let counters: Arc<Counters> = Arc::default();
        let mut state = State::new(Limits::default(), Origin { epoch: 1, seed: 1 });
        state.count_in(counters.clone());
        Server {
            state,
            counters,
            log: vec![],
            durable: 0,
            epoch: 1,
            replies: vec![],
            changes: vec![],
            running: vec![],
            logged_changes: 0,
            kept: BTreeSet::new(),
            changing: vec![],
            actions: vec![],
            crashes: 0,
            hits: BTreeMap::new(),
        }
    }

    pub(crate) fn hit(&mut self, event: &'static str) {
        assert!(EVENTS.contains(&event), "{event} is not listed");
        *self.hits.entry(event).or_default() += 1;
    }

    /// Appends the effects of a call to the log. Returns false if the server crashed before they were durable.
    pub(crate) fn append(&mut self, mut fx: Effects, changes: Vec<u64>, rng: &mut Rng, now: Now) -> bool {
        self.changes.extend(&changes);
        fx.records.splice(0..0, self.state.take_revoked());
        if !fx.records.is_empty() || !changes.is_empty() {
            self.log.push(Batch { records: fx.records, changes });
        }
        if fx.durability == Durability::BeforeReply {
            if rng.chance(2) {
                self.hit("crash before an acknowledgement");
                self.crash(rng, now);
                return false;
            }
            self.durable = self.log.len();
        }
        for action in &fx.actions {
            has_own_handle(action);
            match action {
                Action::Recall { .. } => self.hit("recall"),
                Action::NotifyLock { .. } => self.hit("hint"),
                Action::Granted(_) => self.hit("grant"),
                Action::ClientGone(_) => self.hit("client expired"),
                Action::FileUnused(_) => self.hit("unused"),
                Action::TellCopy { .. } => self.hit("copy told"),
            }
        }
        self.actions.extend(fx.actions);
        assert_eq!(self.state.check(), Ok(()));
        true
    }

    /// Calls the state directly; `None` if the server crashed before the call was durable.
    pub(crate) fn call<T>(
        &mut self,
        rng: &mut Rng,
        now: Now,
        call: impl FnOnce(&mut State, &mut Effects) -> T,
    ) -> Option<T> {
        let mut fx = Effects::default();
        let result = call(&mut self.state, &mut fx);
        self.append(fx, vec![], rng, now).then_some(result)
    }

    /// Does what time brings, at the end of a world: its records are not logged.
    pub(crate) fn tick(&mut self, now: Now) {
        let mut fx = Effects::default();
        self.state.tick(now, &mut fx);
        self.actions.append(&mut fx.actions);
    }

    /// Begins a change of a file by a client without state, or ends one.
    pub(crate) fn change(&mut self, file: u8, rng: &mut Rng, now: Now) {
        if rng.chance(50) && !self.changing.is_empty() {
            let _ended = self.changing.remove(rng.below(self.changing.len() as u64) as usize);
            return;
        }
        // A few bytes for each world.
        let counters: &'static Counters = Box::leak(Box::new(self.counters.clone()));
        let changing = counters.begin_change(file_key(file).key());
        let announced = self.call(rng, now, |state, fx| state.announce(None, &file_key(file), true, now, fx));
        if announced == Some(Ok(())) {
            self.hit("change of a file");
            self.changing.push((file, changing));
        }
    }

    /// Ends the server, and starts the next one with a prefix of the log that has everything acknowledged.
    pub(crate) fn crash(&mut self, rng: &mut Rng, now: Now) {
        self.crashes += 1;
        self.hit("crash");
        let kept = self.durable + rng.below((self.log.len() - self.durable) as u64 + 1) as usize;
        self.log.truncate(kept);
        self.durable = kept;
        self.changes = self.log.iter().flat_map(|batch| batch.changes.clone()).collect();
        self.running.clear();
        self.changing.clear();
        self.actions.clear();
        self.epoch += 1;
        let origin = Origin { epoch: self.epoch, seed: rng.below(u64::MAX) };
        let mut recovery = Recovery::new(Limits::default(), origin);
        let times = 1 + rng.below(2);
        for batch in (0..times).flat_map(|_| &self.log) {
            let records = decode_all(&encode_all(&batch.records), &key_of).expect("records come back");
            records.iter().for_each(|record| recovery.apply(record));
        }
        self.state = recovery.finish(now);
        self.state.count_in(self.counters.clone());
        assert_eq!(self.state.check(), Ok(()));
        assert!(!self.state.in_grace(now));
        std::mem::take(&mut self.kept).into_iter().for_each(|file| self.remove(file, now));
    }

    /// Removes the name of a file. If no client holds it, a new file gets its key and its name at once.
    pub(crate) fn remove(&mut self, file: u8, now: Now) {
        let key = file_key(file);
        if self.state.begin_removal(&key, now) {
            self.hit("kept");
            self.state.keep_removed(&key, now, &mut Effects::default());
            self.kept.insert(file);
        } else {
            self.state.end_removal(&key);
        }
    }

    /// Returns true if some client has state for a file, in the log.
    pub(crate) fn has_state(&self, file: u8) -> bool {
        let key = file_key(file);
        self.state.snapshot(0).any(|record| match record {
            Record::Open { file, .. } | Record::Delegation { file, .. } => file == key,
            _ => false,
        })
    }

    /// Replaces the log by a snapshot, client by client, behind leftovers of the old log.
    pub(crate) fn compact(&mut self, rng: &mut Rng) {
        self.hit("snapshot");
        let from = rng.below(self.log.len() as u64 + 1) as usize;
        // Changes are counted, not recovered: they stay.
        let changes = self.log.iter().flat_map(|batch| batch.changes.clone()).collect();
        let mut log: Vec<_> = self.log.split_off(from);
        log.iter_mut().for_each(|batch| batch.changes.clear());
        log.push(Batch { records: self.state.snapshot(self.logged_changes).collect(), changes });
        self.log = log;
        self.durable = self.log.len();
    }

    pub(crate) fn request(&mut self, call: Call, rng: &mut Rng, now: Now) -> Outcome {
        let Some(session) = self.state.session(call.session) else {
            return Outcome::Refused(Error::BadSession);
        };
        let request = Request {
            slot: call.slot,
            sequence: call.sequence,
            highest: 3,
            cache_this: call.op != Op::Read,
            digest: call.digest,
            operations: call.operations,
            length: 500,
            connection: call.client.0,
            waiter: Some(1),
        };
        match session.sequence(&request, now) {
            Err(error) => {
                self.hit("refused");
                Outcome::Refused(error)
            }
            Ok(Sequenced::InProgress(_)) => {
                self.hit("in progress");
                Outcome::Silence
            }
            Ok(Sequenced::NotKept(_)) => Outcome::Refused(Error::RetryUncachedRep),
            Ok(Sequenced::Replay(bytes)) => {
                self.hit("replay");
                let index = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                Outcome::Reply(self.replies[index as usize])
            }
            Ok(Sequenced::New(_, record)) => {
                if let Some(record) = record {
                    self.log.push(Batch { records: vec![record], changes: vec![] });
                }
                if rng.chance(10) {
                    self.running.push(call);
                    return Outcome::Silence;
                }
                self.finish(call, rng, now)
            }
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    /// Completes a request that runs. Its reply is lost: the client has to send the request again.
    pub(crate) fn finish_one(&mut self, rng: &mut Rng, now: Now) {
        if !self.running.is_empty() {
            let call = self.running.remove(rng.below(self.running.len() as u64) as usize);
            self.finish(call, rng, now);
        }
    }

    fn finish(&mut self, call: Call, rng: &mut Rng, now: Now) -> Outcome {
        let mut fx = Effects::default();
        let mut changes = vec![];
        let reply = match call.op {
            Op::Change(token) => {
                changes.push(token);
                fx.durability = Durability::BeforeReply;
                Reply::Done
            }
            _ => carry_out(&mut self.state, call.client, call.op, now, &mut fx),
        };
        match reply {
            Reply::Denied => self.hit("denied"),
            Reply::Failed(Error::ShareDenied) => self.hit("share denied"),
            Reply::Failed(Error::Delay) => self.hit("delay"),
            Reply::Opened(Opened { delegation: Some(_), .. }) => self.hit("delegation"),
            _ => {}
        }
        self.replies.push(reply);
        let bytes = (self.replies.len() as u64 - 1).to_le_bytes();
        // Long enough that a client has to ask for it.
        let bytes = [&bytes[..], &[0; 300]].concat();
        let Some(session) = self.state.session(call.session) else {
            return self.end(fx, changes, reply, rng, now);
        };
        let logged = (call.op != Op::Read).then_some(Durability::Loose);
        if changes.is_empty() || rng.chance(50) {
            session.complete(call.slot, &bytes, logged, now, &mut fx);
            return self.end(fx, changes, reply, rng, now);
        }
        // The reply goes to the log before the request ends. A snapshot may come before and after.
        let number = self.logged_changes + 1;
        fx.records.extend(session.reply_record(call.slot, &bytes));
        session.log_reply(call.slot, &bytes, number);
        if self.is_caught(rng, now) || self.end(fx, changes, reply, rng, now) == Outcome::Silence {
            return Outcome::Silence;
        }
        self.logged_changes = number;
        if self.is_caught(rng, now) {
            return Outcome::Silence;
        }
        session.complete(call.slot, &bytes, logged, now, &mut Effects::default());
        Outcome::Reply(reply)
    }

    /// Ends a request with its records in the log.
    fn end(&mut self, fx: Effects, changes: Vec<u64>, reply: Reply, rng: &mut Rng, now: Now) -> Outcome {
        if self.append(fx, changes, rng, now) { Outcome::Reply(reply) } else { Outcome::Silence }
    }

    /// Makes a snapshot sometimes, while the reply to a request is on its way to the log. Returns true if the server
    /// crashes then.
    fn is_caught(&mut self, rng: &mut Rng, now: Now) -> bool {
        if !rng.chance(10) {
            return false;
        }
        self.hit("snapshot before a reply");
        self.compact(rng);
        let crashes = rng.chance(50);
        if crashes {
            self.crash(rng, now);
        }
        crashes
    }
}

/// Fails if a call-back names a file by the handle of another client.
fn has_own_handle(action: &Action) {
    let (known, own) = match action {
        Action::Recall { client, file, .. }
        | Action::NotifyLock { client, file, .. }
        | Action::TellCopy { client, file, .. } => (file, file_of(*client, file.key()[0])),
        Action::Granted(granted) => (&granted.file, file_of_host(granted.file.key()[0])),
        Action::ClientGone(_) | Action::FileUnused(_) => return,
    };
    assert_eq!(known.handle(), own.handle(), "{action:?}");
}

fn carry_out(state: &mut State, client: ClientId, op: Op, now: Now, fx: &mut Effects) -> Reply {
    let failed = Reply::Failed;
    match op {
        Op::Change(_) | Op::Read => Reply::Done,
        Op::Open { file, share, want } => {
            let args = OpenArgs {
                client,
                owner: name("o"),
                file: file_of(client, file),
                share,
                claim: Claim::New,
                want,
                request: None,
            };
            state.open(&args, now, fx).map_or_else(failed, Reply::Opened)
        }
        Op::Close { file, open } => {
            state.close(client, open, &file_of(client, file), now, fx).map_or_else(failed, Reply::State)
        }
        Op::Lock { file, with, range, kind } => {
            let locker = match with {
                Ok(lock) => Locker::Known(lock),
                Err(open) => Locker::New(open, name("l")),
            };
            let args = LockArgs {
                client,
                locker,
                file: file_of(client, file),
                range,
                kind,
                is_reclaim: false,
                waits: true,
            };
            match state.lock(&args, now, fx) {
                Ok(stateid) => Reply::State(stateid),
                Err(Refused::Denied(_)) => Reply::Denied,
                Err(Refused::Error(error)) => Reply::Failed(error),
            }
        }
        Op::Unlock { file, lock, range } => state
            .unlock(client, lock, &file_of(client, file), range, now, fx)
            .map_or_else(failed, Reply::State),
        Op::Return(stateid) => {
            state.return_delegation(client, stateid, now, fx).map_or_else(failed, |()| Reply::Done)
        }
    }
}
