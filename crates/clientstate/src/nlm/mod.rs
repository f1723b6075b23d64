//! NLMv4 and NSM: locks and shares of hosts that speak NFSv3.

mod hosts;

use std::collections::BTreeSet;

use crate::locks::NOBODY;
use crate::ranges::Lock;
use crate::record::Record;
use crate::state::State;
use crate::tables::{Holder, OwnerKey, OwnerKind};
use crate::waiters::{Grant, Waiter};
use crate::{Conflict, Cookie, Durability, Effects, FileKey, HostKey, LockKind, NlmOwner, Now, Range, Share};

/// A host with locks, shares or blocked requests.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) key: HostKey,
    /// Its NSM state number; 0 if it has not said one.
    pub(crate) state: i32,
    pub(crate) owners: BTreeSet<u32>,
    /// The numbers of its locks, shares and blocked requests.
    pub(crate) held: Held,
}

/// The numbers of things that a client or an NLM host holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) locks: u32,
    pub(crate) shares: u32,
    pub(crate) waiters: u32,
}

/// The share of an NLM owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NlmShare {
    pub(crate) share: Share,
}

/// The arguments of NLM_LOCK.
#[derive(Clone, Debug)]
pub struct NlmLock {
    /// The owner.
    pub owner: NlmOwner,
    /// The file.
    pub file: FileKey,
    /// The range.
    pub range: Range,
    /// The kind.
    pub kind: LockKind,
    /// True if the host waits for the lock.
    pub blocks: bool,
    /// True for a reclaim in a grace period.
    pub is_reclaim: bool,
    /// The cookie for GRANTED.
    pub cookie: Cookie,
    /// The host's NSM state number; 0 if it does not say one.
    pub state: i32,
}

/// The answer to an NLM request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NlmAnswer {
    /// NLM4_GRANTED.
    Granted,
    /// NLM4_DENIED, with the lock in the way, or with none for a share.
    Denied(Option<Conflict>),
    /// NLM4_DENIED_NOLOCKS: a limit is reached.
    DeniedNoLocks,
    /// NLM4_BLOCKED: GRANTED will follow.
    Blocked,
    /// NLM4_DENIED_GRACE_PERIOD.
    DeniedGrace,
    /// NLM4_DEADLCK.
    Deadlock,
    /// A delegation is being recalled: send nothing, and call again when the host repeats the request.
    Retry,
}

impl State {
    /// Carries out NLM_LOCK.
    ///
    /// | case | answer |
    /// |---|---|
    /// | no reclaim in a grace period, or a reclaim outside of one | `DeniedGrace` |
    /// | the host's state number has grown | its old locks are freed: it has rebooted. Then as below |
    /// | a delegation is in the way | `Retry`, and a recall |
    /// | no lock is in the way | `Granted` |
    /// | a lock is in the way, the host does not wait | `Denied` |
    /// | its owner waits, perhaps through other owners, for this owner | `Deadlock` |
    /// | else | `Blocked` |
    pub fn nlm_lock(&mut self, args: &NlmLock, now: Now, fx: &mut Effects) -> NlmAnswer {
        let answer = self.nlm_lock_unsettled(args, now, fx);
        self.settle(now, fx);
        answer
    }

    /// Locks for NLM. The caller calls [`State::settle`] afterwards.
    fn nlm_lock_unsettled(&mut self, args: &NlmLock, now: Now, fx: &mut Effects) -> NlmAnswer {
        if self.in_grace(now) != args.is_reclaim {
            return NlmAnswer::DeniedGrace;
        }
        self.nlm_state(&args.owner.host, args.state, fx);
        let held = self.held_by(&args.owner.host);
        if !self.admit_lock(held, now, fx) {
            return NlmAnswer::DeniedNoLocks;
        }
        if let Some(file) = self.files.find(&args.file)
            && self.recall(file, None, args.kind == LockKind::Write, now, fx)
        {
            return NlmAnswer::Retry;
        }
        if held.locks >= self.limits.locks_per_host {
            return NlmAnswer::DeniedNoLocks;
        }
        let Some(owner) = self.add_nlm_owner(&args.owner, fx) else { return NlmAnswer::DeniedNoLocks };
        let file = self.files.get_or_add(&args.file);
        self.freed.insert(file);
        let wanted = Lock { range: args.range, kind: args.kind, owner };
        let answer = match self.clear_way(file, wanted, now, fx) {
            Ok(()) => {
                self.stop_waiting(file, owner, args.range);
                self.drop_grants(owner, |grant| (grant.file, grant.range) == (file, args.range));
                self.set_range(owner, file, args.range, Some(args.kind));
                let record =
                    Record::NlmLock(args.owner.clone(), args.file.clone(), args.range, Some(args.kind));
                fx.log(Durability::BeforeReply, record);
                NlmAnswer::Granted
            }
            Err(conflict) if !args.blocks => NlmAnswer::Denied(Some(self.describe_conflict(conflict))),
            Err(_) if self.would_deadlock(file, wanted) => NlmAnswer::Deadlock,
            Err(_) => {
                let (known_as, cookie) = (args.file.clone(), Some(args.cookie.clone()));
                let Lock { range, kind, owner } = wanted;
                let waiter = Waiter { owner, known_as, range, kind, since: now, cookie, notified: false };
                match self.enqueue(file, waiter) {
                    true => NlmAnswer::Blocked,
                    false => NlmAnswer::DeniedNoLocks,
                }
            }
        };
        self.tidy_nlm_owner(owner);
        answer
    }

    /// Forgets an owner's grants that are not acknowledged and for which `is_dropped` is true. Their locks stay.
    fn drop_grants(&mut self, owner: u32, is_dropped: impl Fn(&Grant) -> bool) {
        for (ticket, _) in self.waiters.grants_of(owner).into_iter().filter(|(_, grant)| is_dropped(grant)) {
            self.waiters.remove_grant(ticket);
        }
    }

    /// Makes room for one more lock by ending expired clients. Returns false if there is no room, or no more of it than
    /// the client or host already holds.
    pub(crate) fn admit_lock(&mut self, held: Held, now: Now, fx: &mut Effects) -> bool {
        while self.ranges.len() >= self.limits.locks {
            if !self.expire_one(now, fx) {
                return false;
            }
        }
        (held.locks as usize) < self.limits.locks - self.ranges.len()
    }

    /// Returns the number of an NLM owner that has something.
    pub(super) fn find_nlm_owner(&self, owner: &NlmOwner) -> Option<u32> {
        let host = self.by_host.get(&owner.host)?;
        self.owners.find(&nlm_owner(*host, owner))
    }

    /// Carries out NLM_TEST. Recalls delegations as [`State::test_lock`] does, with `Retry`.
    pub fn nlm_test(
        &mut self,
        owner: &NlmOwner,
        file: &FileKey,
        range: Range,
        kind: LockKind,
        now: Now,
        fx: &mut Effects,
    ) -> NlmAnswer {
        if self.in_grace(now) {
            return NlmAnswer::DeniedGrace;
        }
        let owner = self.find_nlm_owner(owner).unwrap_or(NOBODY);
        match self.test_range(file, Lock { range, kind, owner }, now) {
            Some(conflict) => NlmAnswer::Denied(Some(conflict)),
            None if self.recall_for_test(file, None, kind, now, fx) => NlmAnswer::Retry,
            None => NlmAnswer::Granted,
        }
    }

    /// Carries out NLM_UNLOCK. Freeing bytes that are not locked succeeds. Freeing bytes in the middle of a lock makes
    /// two locks of it, and gets `DeniedNoLocks` at the bound.
    pub fn nlm_unlock(
        &mut self,
        owner: &NlmOwner,
        file: &FileKey,
        range: Range,
        now: Now,
        fx: &mut Effects,
    ) -> NlmAnswer {
        let (Some(number), Some(at)) = (self.find_nlm_owner(owner), self.files.find(file)) else {
            return NlmAnswer::Granted;
        };
        let held = self.held_by(&owner.host);
        if self.splits(number, at, range)
            && (held.locks >= self.limits.locks_per_host || !self.admit_lock(held, now, fx))
        {
            return NlmAnswer::DeniedNoLocks;
        }
        self.unlock_nlm_owner(owner, (number, at), range, now, fx);
        NlmAnswer::Granted
    }

    /// Frees a range of an NLM owner, drops grants in it, and serves the waiters of the file. The reply waits for the
    /// record.
    fn unlock_nlm_owner(
        &mut self,
        owner: &NlmOwner,
        (number, at): (u32, u32),
        range: Range,
        now: Now,
        fx: &mut Effects,
    ) {
        let file = self.files.at(at).key.clone();
        self.drop_grants(number, |grant| grant.file == at && grant.range.overlaps(range));
        self.set_range(number, at, range, None);
        self.freed.insert(at);
        fx.log(Durability::BeforeReply, Record::NlmLock(owner.clone(), file, range, None));
        self.tidy_nlm_owner(number);
        self.settle(now, fx);
    }

    /// Carries out NLM_CANCEL. If the request was granted meanwhile, and the host has not acknowledged it, the lock is
    /// freed. Returns false if there is nothing to cancel.
    pub fn nlm_cancel(
        &mut self,
        owner: &NlmOwner,
        file: &FileKey,
        range: Range,
        kind: LockKind,
        now: Now,
        fx: &mut Effects,
    ) -> bool {
        let (Some(number), Some(at)) = (self.find_nlm_owner(owner), self.files.find(file)) else {
            return false;
        };
        let waits = self.waiters.of(number).into_iter().find(|(of_file, ticket)| {
            let waiter = self.waiters.queue.get(&(*of_file, *ticket));
            *of_file == at && waiter.is_some_and(|waiter| (waiter.range, waiter.kind) == (range, kind))
        });
        let mut granted = self.waiters.grants_of(number).into_iter();
        let granted = granted.find(|(_, grant)| (grant.file, grant.range, grant.kind) == (at, range, kind));
        let granted = granted.map(|(ticket, _)| ticket);
        if let Some((_, ticket)) = waits {
            self.dequeue(at, ticket);
            self.tidy_nlm_owner(number);
            self.settle(now, fx);
        } else if let Some(ticket) = granted {
            self.nlm_granted(ticket, false, now, fx);
        }
        waits.is_some() || granted.is_some()
    }

    /// Takes a host's answer to GRANTED. If it refuses, or never answers, the lock is freed. Returns false if nobody
    /// waits for this answer any more: the server stops repeating GRANTED.
    pub fn nlm_granted(&mut self, ticket: u64, is_accepted: bool, now: Now, fx: &mut Effects) -> bool {
        let Some(grant) = self.waiters.remove_grant(ticket) else { return false };
        if !is_accepted {
            let crate::LockOwner::Nlm(owner) = self.describe_owner(grant.owner) else { return false };
            self.unlock_nlm_owner(&owner, (grant.owner, grant.file), grant.range, now, fx);
        }
        true
    }

    /// Returns true if the server should go on sending GRANTED.
    pub fn nlm_is_granting(&self, ticket: u64) -> bool {
        self.waiters.is_granting(ticket)
    }
}

pub(crate) fn nlm_owner(host: u32, owner: &NlmOwner) -> OwnerKey {
    OwnerKey { holder: Holder::Host(host), kind: OwnerKind::Nlm(owner.svid), name: owner.opaque.clone() }
}
