//! An NFSv4.1 client of a world, and its belief about its state.

use std::collections::BTreeMap;

use forebay_clientstate::*;

use crate::rng::Rng;
use crate::server::{Call, Op, Outcome, Reply, Server, file_key, file_of, name};

pub(crate) const FILES: u8 = 3;
pub(crate) const BYTES: u64 = 12;
const SLOTS: usize = 3;
pub(crate) const LEASE: u64 = 90 * SECOND;

/// The client's belief about one file.
#[derive(Clone, Default)]
pub(crate) struct Belief {
    open: Option<(StateId, Share)>,
    /// The number of crashes when the open was acknowledged: an open without more may be lost in a crash.
    opened_at: u64,
    lock: Option<StateId>,
    /// For each byte: 0 free, 1 read, 2 write.
    pub(crate) bytes: [u8; BYTES as usize],
    pub(crate) delegation: Option<Delegated>,
}

pub(crate) struct Client {
    name: String,
    verifier: u8,
    pub(crate) id: ClientId,
    session: SessionId,
    created: u32,
    sequences: [u32; SLOTS],
    outstanding: [Option<(Op, u64)>; SLOTS],
    /// The last acknowledged change of each slot, for duplicates that come late.
    old: [Option<(u32, Op, u64)>; SLOTS],
    pub(crate) files: BTreeMap<u8, Belief>,
    /// The time of the last request that was answered.
    renewed: Now,
    pub(crate) is_dead: bool,
    pub(crate) acknowledged: Vec<u64>,
    /// The times at which delegations were first recalled.
    pub(crate) recalled: BTreeMap<Other, Now>,
    next_token: u64,
}

impl Client {
    pub(crate) fn new(index: usize) -> Self {
        Client {
            name: format!("client {index}"),
            verifier: 0,
            id: ClientId(0),
            session: SessionId([0; 16]),
            created: 0,
            sequences: [0; SLOTS],
            outstanding: [None; SLOTS],
            old: [None; SLOTS],
            files: BTreeMap::new(),
            renewed: 0,
            is_dead: false,
            acknowledged: vec![],
            recalled: BTreeMap::new(),
            next_token: (index as u64 + 1) << 32,
        }
    }

    /// Returns true if the client may still rely on its state: its lease has not run out.
    pub(crate) fn is_certain(&self, now: Now) -> bool {
        !self.is_dead && now - self.renewed <= LEASE && self.id.0 != 0
    }

    /// Returns true if no request about a file is outstanding.
    pub(crate) fn is_settled(&self, file: u8) -> bool {
        !self.outstanding.iter().flatten().any(|(op, _)| op.file() == Some(file))
    }

    /// Returns true if a removal of the file must leave its contents to the client. A crash may have taken a plain
    /// open, and a recall that is a lease time old may have ended a delegation.
    pub(crate) fn holds(&self, file: u8, crashes: u64, now: Now) -> bool {
        let Some(belief) = self.files.get(&file).filter(|_| self.is_certain(now) && self.is_settled(file))
        else {
            return false;
        };
        let has_open = belief.open.is_some_and(|(_, share)| {
            belief.opened_at == crashes || share.deny != 0 || belief.bytes != [0; BYTES as usize]
        });
        let is_returned = |held: StateId| {
            let returns = |(op, _): &(Op, u64)| matches!(op, Op::Return(other) if *other == held);
            self.outstanding.iter().flatten().any(returns)
        };
        let has_delegation = belief.delegation.is_some_and(|held| {
            let recalled = self.recalled.get(&held.stateid.other);
            !is_returned(held.stateid) && recalled.is_none_or(|at| now - at <= LEASE)
        });
        has_open || has_delegation
    }

    /// Forgets everything, as at a reboot.
    pub(crate) fn restart(&mut self) {
        self.verifier += 1;
        self.forget();
    }

    fn forget(&mut self) {
        self.id = ClientId(0);
        self.files.clear();
        self.outstanding = [None; SLOTS];
        self.old = [None; SLOTS];
    }

    /// Makes sure that the client has a session. Replies are not lost here, but requests come twice.
    fn connect(&mut self, server: &mut Server, rng: &mut Rng, now: Now) -> Option<()> {
        let principal = Principal::new(b"root").unwrap();
        let args = ExchangeId {
            owner: name(&self.name),
            verifier: [self.verifier; 8],
            principal: principal.clone(),
            flags: 0,
        };
        let exchanged = server.call(rng, now, |state, fx| state.exchange_id(&args, now, fx))?.unwrap();
        let channel = Channel {
            max_request: 1 << 20,
            max_response: 1 << 20,
            max_cached: 1024,
            operations: 16,
            slots: 4,
        };
        let mut create = CreateSession {
            client: exchanged.client,
            sequence: exchanged.sequence,
            flags: PERSIST | CONN_BACK_CHAN,
            fore: channel,
            back: channel,
            callback_program: 1,
            callback_security: vec![],
            principal,
            connection: exchanged.client.0,
            random: rng.below(u64::MAX).to_le_bytes(),
        };
        let created = server.call(rng, now, |state, fx| state.create_session(&create, now, fx))?.unwrap();
        create.random = [0; 8];
        let again = server.call(rng, now, |state, fx| state.create_session(&create, now, fx))?;
        assert_eq!(again.as_ref(), Ok(&created), "a retransmitted CREATE_SESSION");
        let complete =
            server.call(rng, now, |state, fx| state.reclaim_complete(exchanged.client, false, now, fx))?;
        assert!(matches!(complete, Ok(()) | Err(Error::CompleteAlready)), "{complete:?}");
        if exchanged.client != self.id {
            self.forget();
        }
        (self.id, self.session, self.created) = (exchanged.client, created.session, created.sequence);
        (self.sequences, self.outstanding, self.old) = ([0; SLOTS], [None; SLOTS], [None; SLOTS]);
        self.renewed = now;
        Some(())
    }

    pub(crate) fn step(&mut self, server: &mut Server, rng: &mut Rng, now: Now) {
        if self.is_dead {
            return;
        }
        if self.id.0 == 0 {
            self.connect(server, rng, now);
            return;
        }
        // After a crash call-backs need a connection again.
        if rng.chance(5) && self.is_certain(now) {
            let bound =
                server.state.bind_conn_to_session(self.session, Direction::ForeOrBoth, self.id.0, now);
            assert!(bound.is_ok(), "{}: the session is gone within its lease", self.name);
            self.renewed = now;
        }
        let slot = rng.below(SLOTS as u64) as usize;
        if self.outstanding[slot].is_none() {
            if rng.chance(6) && self.misbehave(slot, server, rng, now) {
                return;
            }
            let op = self.choose(rng);
            self.sequences[slot] = self.sequences[slot].wrapping_add(1);
            self.outstanding[slot] = Some((op, rng.below(u64::MAX)));
        }
        self.send(slot, server, rng, now);
    }

    fn call(&self, slot: usize, sequence: u32, (op, digest): (Op, u64)) -> Call {
        Call {
            session: self.session,
            client: self.id,
            slot: slot as u32,
            sequence,
            op,
            digest,
            operations: 3,
        }
    }

    /// Sends the request of a slot, perhaps again. The request or the reply may be lost.
    pub(crate) fn send(&mut self, slot: usize, server: &mut Server, rng: &mut Rng, now: Now) {
        let Some(request) = self.outstanding[slot] else { return };
        if rng.chance(4) {
            return;
        }
        let call = self.call(slot, self.sequences[slot], request);
        let outcome = server.request(call, rng, now);
        if rng.chance(12) {
            return;
        }
        match outcome {
            Outcome::Silence => {}
            Outcome::Refused(Error::BadSession) => {
                assert!(!self.is_certain(now), "{}: the session is gone within its lease", self.name);
                let old = self.id;
                if self.connect(server, rng, now).is_none() {
                    self.forget();
                }
                assert_ne!(self.id, old, "a client without a session has no state");
            }
            Outcome::Refused(Error::RetryUncachedRep) if request.0 == Op::Read => self.done(slot, now),
            Outcome::Refused(error) => panic!("{}: {request:?}: {error:?}", self.name),
            Outcome::Reply(reply) => {
                if let (Op::Return(held), Reply::Failed(Error::DelegRevoked | Error::BadStateid)) =
                    (request.0, reply)
                {
                    self.revoked(held, server, rng, now);
                } else {
                    self.believe(request.0, reply, server.crashes);
                }
                if let Op::Change(token) = request.0 {
                    self.old[slot] = Some((self.sequences[slot], request.0, request.1));
                    self.acknowledged.push(token);
                }
                self.done(slot, now);
            }
        }
    }

    /// A delegation was not returned in time. A restarted server does not know it any more.
    fn revoked(&mut self, held: StateId, server: &mut Server, rng: &mut Rng, now: Now) {
        let recalled = self.recalled.get(&held.other);
        let is_late = recalled.is_some_and(|at| now - at > LEASE);
        assert!(is_late, "{}: {held:?} is revoked, recalled at {recalled:?}, now {now}", self.name);
        for belief in self.files.values_mut() {
            belief.delegation.take_if(|other| *other == Delegated { stateid: held, ..*other });
        }
        server.call(rng, now, |state, fx| state.free_stateid(self.id, held, now, fx).ok());
    }

    fn done(&mut self, slot: usize, now: Now) {
        self.outstanding[slot] = None;
        self.renewed = now;
    }

    pub(crate) fn drain(&mut self, server: &mut Server, rng: &mut Rng, now: Now) {
        (0..SLOTS).for_each(|slot| self.send(slot, server, rng, now));
    }

    /// Sends a request that the server has to refuse. Returns false if there is none to send.
    fn misbehave(&mut self, slot: usize, server: &mut Server, rng: &mut Rng, now: Now) -> bool {
        let sequence = self.sequences[slot];
        self.next_token += 1;
        let change = (Op::Change(self.next_token), rng.below(u64::MAX));
        let (call, allowed) = match (rng.below(3), self.old[slot]) {
            (0, _) => {
                let call = Call { operations: 4000, ..self.call(slot, sequence.wrapping_add(1), change) };
                (call, [Error::TooManyOps, Error::TooManyOps])
            }
            // Another request with the number of the last logged one.
            (1, Some((old, ..))) => {
                (self.call(slot, old, change), [Error::SeqFalseRetry, Error::SeqMisordered])
            }
            // A logged request that comes late, behind a later logged one.
            (2, Some((old, ..))) if old > 1 => {
                (self.call(slot, old - 1, change), [Error::SeqMisordered, Error::SeqMisordered])
            }
            _ => return false,
        };
        let outcome = server.request(call, rng, now);
        let refused = matches!(&outcome, Outcome::Refused(error) if allowed.contains(error));
        let is_gone = outcome == Outcome::Refused(Error::BadSession) && !self.is_certain(now);
        assert!(refused || is_gone, "{}: {call:?}: {outcome:?}", self.name);
        true
    }

    fn choose(&mut self, rng: &mut Rng) -> Op {
        let returned = self.files.values().find_map(|belief| belief.delegation.filter(|_| rng.chance(15)));
        let returning = |op: &Op, stateid| matches!(op, Op::Return(other) if *other == stateid);
        if let Some(held) = returned
            && !self.outstanding.iter().flatten().any(|(op, _)| returning(op, held.stateid))
        {
            return Op::Return(held.stateid);
        }
        let file = rng.below(FILES.into()) as u8;
        if rng.chance(20) || !self.is_settled(file) {
            self.next_token += 1;
            return Op::Change(self.next_token);
        }
        if rng.chance(20) {
            return Op::Read;
        }
        let (one, two) = (rng.below(BYTES), rng.below(BYTES));
        let range = Range { first: one.min(two), last: one.max(two) };
        let kind = if rng.chance(50) { LockKind::Write } else { LockKind::Read };
        let belief = self.files.entry(file).or_default();
        match (belief.open, belief.lock) {
            (Some((open, _)), Some(lock)) => match rng.below(10) {
                0 => Op::Close { file, open },
                1..5 => Op::Unlock { file, lock, range },
                _ => Op::Lock { file, with: Ok(lock), range, kind },
            },
            (Some((open, _)), None) => match rng.below(4) {
                0 => Op::Close { file, open },
                1 => open_op(file, rng),
                _ => Op::Lock { file, with: Err(open), range, kind },
            },
            (None, _) => open_op(file, rng),
        }
    }

    /// Takes a reply into account.
    fn believe(&mut self, op: Op, reply: Reply, crashes: u64) {
        if let (Op::Return(stateid), Reply::Done) = (op, reply) {
            for belief in self.files.values_mut() {
                belief.delegation.take_if(|held| held.stateid == stateid);
            }
        }
        let Some(file) = op.file() else {
            assert!(matches!(reply, Reply::Done), "{}: {op:?}: {reply:?}", self.name);
            return;
        };
        let belief = self.files.entry(file).or_default();
        match (op, reply) {
            (_, Reply::Denied) => {}
            (Op::Open { .. }, Reply::Failed(Error::ShareDenied | Error::Delay)) => {}
            (Op::Lock { .. }, Reply::Failed(Error::OpenMode)) => {}
            // A plain open that a crash has taken. An open with a lock is durable with it.
            (Op::Close { .. } | Op::Lock { with: Err(_), .. }, Reply::Failed(Error::BadStateid)) => {
                let denies = belief.open.is_some_and(|(_, share)| share.deny != 0);
                let may_be_lost =
                    belief.opened_at < crashes && !denies && belief.bytes == [0; BYTES as usize];
                assert!(may_be_lost, "{}: {op:?}: an acknowledged open is lost", self.name);
                (belief.open, belief.lock) = (None, None);
            }
            (Op::Open { share, .. }, Reply::Opened(opened)) => {
                let share = belief.open.map_or(share, |(_, old)| Share {
                    access: old.access | share.access,
                    deny: old.deny | share.deny,
                });
                belief.open = Some((opened.stateid, share));
                belief.opened_at = crashes;
                belief.delegation = opened.delegation.or(belief.delegation);
            }
            (Op::Close { .. }, Reply::State(_)) => {
                (belief.open, belief.lock, belief.bytes) = (None, None, [0; BYTES as usize]);
            }
            (Op::Lock { range, kind, .. }, Reply::State(lock)) => {
                belief.lock = Some(lock);
                belief.bytes[range.first as usize..=range.last as usize].fill(kind as u8 + 1);
            }
            (Op::Unlock { range, .. }, Reply::State(lock)) => {
                belief.lock = Some(lock);
                belief.bytes[range.first as usize..=range.last as usize].fill(0);
            }
            (op, reply) => panic!("{}: {op:?}: {reply:?}", self.name),
        }
    }

    /// Returns the owner of the client's locks.
    pub(crate) fn owner(&self) -> LockOwner {
        LockOwner::V4(self.id, name("l"))
    }

    /// Unlocks and closes everything, with an open of each file first: a close may be lost in a crash. Renews the
    /// lease. A file that is being recalled from another client is left for the next time.
    pub(crate) fn leave(&mut self, server: &mut Server, now: Now) {
        let bound = server.state.bind_conn_to_session(self.session, Direction::ForeOrBoth, self.id.0, now);
        assert!(bound.is_ok(), "{}: the session is gone within its lease", self.name);
        self.renewed = now;
        for file in 0..FILES {
            let fx = &mut Effects::default();
            let args = OpenArgs {
                client: self.id,
                owner: name("o"),
                file: file_of(self.id, file),
                share: Share { access: 1, deny: 0 },
                claim: Claim::New,
                want: Want::None,
                request: None,
            };
            let belief = self.files.remove(&file).unwrap_or_default();
            if let Some(held) = belief.delegation
                && server.state.return_delegation(self.id, held.stateid, now, fx).is_err()
            {
                _ = server.state.free_stateid(self.id, held.stateid, now, fx);
            }
            let open = match belief.open {
                Some((open, _)) if server.state.test_stateid(self.id, open).is_ok() => Some(open),
                _ => server.state.open(&args, now, fx).ok().map(|opened| opened.stateid),
            };
            if let Some(open) = open {
                server.state.close(self.id, open, &file_key(file), now, fx).unwrap();
            }
            server.actions.append(&mut fx.actions);
        }
    }
}

fn open_op(file: u8, rng: &mut Rng) -> Op {
    let access = 1 + rng.below(3) as u8;
    let deny = if rng.chance(15) { rng.below(4) as u8 } else { 0 };
    let want = if rng.chance(40) { Want::Any } else { Want::NoPreference };
    Op::Open { file, share: Share { access, deny }, want }
}
