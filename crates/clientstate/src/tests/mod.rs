//! A rig for tests: a state, a time, and everything that the calls have logged and asked for.

mod clients;
mod copies;
mod delegations;
mod durable;
mod grace;
mod jumps;
mod locks;
mod nlm;
mod opens;
mod ranges;
mod removals;
mod slots;

use std::sync::Arc;

use crate::*;

/// A state whose every call is followed by a check of the invariants.
pub(crate) struct Rig {
    pub(crate) state: State,
    pub(crate) now: Now,
    pub(crate) log: Vec<Record>,
    pub(crate) actions: Vec<Action>,
    pub(crate) durability: Durability,
}

pub(crate) const ORIGIN: Origin = Origin { epoch: 7, seed: 1 };

impl Rig {
    pub(crate) fn new() -> Self {
        Rig::of(State::new(Limits::default(), ORIGIN))
    }

    pub(crate) fn of(state: State) -> Self {
        Rig { state, now: 1000 * SECOND, log: vec![], actions: vec![], durability: Durability::None }
    }

    /// Calls the state and collects the effects. `durability` and `actions` are those of the last call.
    pub(crate) fn call<T>(&mut self, call: impl FnOnce(&mut State, Now, &mut Effects) -> T) -> T {
        let mut fx = Effects::default();
        let result = call(&mut self.state, self.now, &mut fx);
        self.log.extend(self.state.take_revoked());
        self.log.extend(fx.records);
        self.actions = fx.actions;
        self.durability = fx.durability;
        assert_eq!(self.state.check(), Ok(()));
        result
    }

    pub(crate) fn wait(&mut self, seconds: u64) {
        self.now += seconds * SECOND;
    }

    pub(crate) fn exchange(
        &mut self,
        name: &str,
        verifier: u8,
        principal: &str,
        flags: u32,
    ) -> Result<Exchanged, Error> {
        let args = ExchangeId {
            owner: name_of(name),
            verifier: [verifier; 8],
            principal: Principal::new(principal.as_bytes()).unwrap(),
            flags,
        };
        self.call(|state, now, fx| state.exchange_id(&args, now, fx))
    }

    pub(crate) fn session(
        &mut self,
        client: ClientId,
        sequence: u32,
        principal: &str,
    ) -> Result<Created, Error> {
        let args = create_args(client, sequence, principal);
        self.call(|state, now, fx| state.create_session(&args, now, fx))
    }

    /// Returns a confirmed client with a session and a back channel, which has nothing to reclaim.
    pub(crate) fn client(&mut self, name: &str) -> ClientId {
        let id = self.exchange(name, 1, "root", 0).unwrap().client;
        self.session(id, 1, "root").unwrap();
        self.call(|state, now, fx| state.reclaim_complete(id, false, now, fx)).unwrap();
        id
    }

    pub(crate) fn session_of(&self, client: ClientId) -> Arc<Session> {
        let id = self.state.clients[&client].sessions[0];
        self.state.session(id).unwrap()
    }

    pub(crate) fn open(
        &mut self,
        client: ClientId,
        owner: &str,
        name: &str,
        access: u8,
        deny: u8,
    ) -> Result<Opened, Error> {
        let args = open_args(client, owner, name, access, deny);
        self.call(|state, now, fx| state.open(&args, now, fx))
    }

    /// Locks through a fresh open of the file.
    pub(crate) fn lock(
        &mut self,
        client: ClientId,
        owner: &str,
        name: &str,
        kind: LockKind,
        range: Range,
    ) -> Result<StateId, Refused> {
        let open = self.open(client, "opener", name, 3, 0)?.stateid;
        let args = lock_args(client, Locker::New(open, name_of(owner)), name, kind, range);
        self.call(|state, now, fx| state.lock(&args, now, fx))
    }

    pub(crate) fn nlm(
        &mut self,
        host: &str,
        name: &str,
        kind: LockKind,
        range: Range,
        blocks: bool,
    ) -> NlmAnswer {
        let args = nlm_args(host, 1, name, kind, range, blocks);
        self.call(|state, now, fx| state.nlm_lock(&args, now, fx))
    }

    /// Returns the tickets of the last call's grants.
    pub(crate) fn granted(&self) -> Vec<u64> {
        let granted = self.actions.iter().filter_map(|action| match action {
            Action::Granted(granted) => Some(granted.ticket),
            _ => None,
        });
        granted.collect()
    }

    /// Returns the state that the log gives.
    pub(crate) fn recovered(&self) -> State {
        let mut recovery = Recovery::new(Limits::default(), Origin { epoch: 8, seed: 2 });
        decode_all(&encode_all(&self.log), &FileKey::of_handle)
            .unwrap()
            .iter()
            .for_each(|record| recovery.apply(record));
        let state = recovery.finish(self.now);
        assert_eq!(state.check(), Ok(()));
        state
    }
}

/// Returns the durable part of a state: requests that change nothing leave no trace in the log.
pub(crate) fn described(state: &State) -> Vec<Record> {
    let is_durable =
        |record: &Record| !matches!(record, Record::Reply(reply) if reply.reply == Kept::Repeatable);
    let mut records: Vec<_> = state.snapshot(0).filter(is_durable).collect();
    records.sort();
    records
}

pub(crate) fn name_of(name: &str) -> OwnerName {
    OwnerName::new(name.as_bytes()).unwrap()
}

pub(crate) fn file(name: &str) -> FileKey {
    FileKey::of_handle(name.as_bytes()).unwrap()
}

pub(crate) const CHANNEL: Channel =
    Channel { max_request: 1 << 20, max_response: 1 << 20, max_cached: 2048, operations: 16, slots: 64 };

pub(crate) fn create_args(client: ClientId, sequence: u32, principal: &str) -> CreateSession {
    CreateSession {
        client,
        sequence,
        flags: PERSIST | CONN_BACK_CHAN,
        fore: CHANNEL,
        back: CHANNEL,
        callback_program: 0x4000_0000,
        callback_security: vec![1],
        principal: Principal::new(principal.as_bytes()).unwrap(),
        connection: client.0,
        random: [9; 8],
    }
}

pub(crate) fn open_args(client: ClientId, owner: &str, name: &str, access: u8, deny: u8) -> OpenArgs {
    let share = Share { access, deny };
    OpenArgs {
        client,
        owner: name_of(owner),
        file: file(name),
        share,
        claim: Claim::New,
        want: Want::None,
        request: None,
    }
}

pub(crate) fn lock_args(
    client: ClientId,
    locker: Locker,
    name: &str,
    kind: LockKind,
    range: Range,
) -> LockArgs {
    LockArgs { client, locker, file: file(name), range, kind, is_reclaim: false, waits: false }
}

pub(crate) fn nlm_owner(host: &str, svid: i32) -> NlmOwner {
    NlmOwner {
        host: HostKey::new(host.as_bytes(), &[10, 0, 0, 1]).unwrap(),
        opaque: name_of("process"),
        svid,
    }
}

pub(crate) fn nlm_args(
    host: &str,
    svid: i32,
    name: &str,
    kind: LockKind,
    range: Range,
    blocks: bool,
) -> NlmLock {
    NlmLock {
        owner: nlm_owner(host, svid),
        file: file(name),
        range,
        kind,
        blocks,
        is_reclaim: false,
        cookie: Cookie::new(b"cookie").unwrap(),
        state: 0,
    }
}

pub(crate) fn range(first: u64, last: u64) -> Range {
    Range { first, last }
}
