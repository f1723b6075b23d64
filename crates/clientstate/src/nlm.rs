//! NLMv4 and NSM: locks and shares of hosts that speak NFSv3.

use std::collections::BTreeSet;

use crate::locks::{NOBODY, WHOLE};
use crate::ranges::Lock;
use crate::record::Record;
use crate::state::State;
use crate::tables::{Holder, OwnerKey, OwnerKind};
use crate::waiters::Waiter;
use crate::{
    Conflict, Cookie, Durability, Effects, Error, FileKey, HostKey, LockKind, NlmOwner, Now, Range, Share,
    WRITE,
};

/// A host with locks, shares or blocked requests.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) key: HostKey,
    /// Its NSM state number; 0 if it has not said one.
    pub(crate) state: i32,
    pub(crate) owners: BTreeSet<u32>,
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

    fn nlm_lock_unsettled(&mut self, args: &NlmLock, now: Now, fx: &mut Effects) -> NlmAnswer {
        if self.in_grace(now) != args.is_reclaim {
            return NlmAnswer::DeniedGrace;
        }
        self.nlm_state(&args.owner.host, args.state, fx);
        if !self.admit_lock(now, fx) {
            return NlmAnswer::DeniedNoLocks;
        }
        if let Some(file) = self.files.find(&args.file)
            && self.recall(file, None, args.kind == LockKind::Write, now, fx)
        {
            return NlmAnswer::Retry;
        }
        let Some(owner) = self.add_nlm_owner(&args.owner, fx) else { return NlmAnswer::DeniedNoLocks };
        let file = self.files.get_or_add(&args.file);
        self.freed.insert(file);
        let wanted = Lock { range: args.range, kind: args.kind, owner };
        let answer = match self.clear_way(file, wanted, now, fx) {
            Ok(()) => {
                self.stop_waiting(file, owner, args.range);
                self.waiters
                    .grants
                    .retain(|_, grant| (grant.owner, grant.file, grant.range) != (owner, file, args.range));
                self.set_range(owner, file, args.range, Some(args.kind));
                let record =
                    Record::NlmLock(args.owner.clone(), args.file.clone(), args.range, Some(args.kind));
                fx.log(Durability::BeforeReply, record);
                NlmAnswer::Granted
            }
            Err(conflict) if !args.blocks => NlmAnswer::Denied(Some(self.describe_conflict(conflict))),
            Err(_) if self.would_deadlock(file, wanted) => NlmAnswer::Deadlock,
            Err(_) => {
                let cookie = Some(args.cookie.clone());
                let Lock { range, kind, owner } = wanted;
                match self.enqueue(file, Waiter { owner, range, kind, since: now, cookie, notified: false }) {
                    true => NlmAnswer::Blocked,
                    false => NlmAnswer::DeniedNoLocks,
                }
            }
        };
        self.tidy_nlm_owner(owner);
        answer
    }

    fn admit_lock(&mut self, now: Now, fx: &mut Effects) -> bool {
        while self.ranges.len() >= self.limits.locks {
            if !self.expire_one(now, fx) {
                return false;
            }
        }
        true
    }

    /// Returns the number of an owner. It has one use as long as it has locks, shares or blocked requests.
    pub(crate) fn add_nlm_owner(&mut self, owner: &NlmOwner, fx: &mut Effects) -> Option<u32> {
        let host = match self.by_host.get(&owner.host) {
            Some(host) => *host,
            None => self.add_host(&owner.host, 0, fx)?,
        };
        let number = self.owners.get_or_add(&nlm_owner(host, owner));
        if self.hosts[host as usize].owners.insert(number) {
            self.owners.add_use(number);
        }
        Some(number)
    }

    pub(crate) fn add_host(&mut self, key: &HostKey, state: i32, fx: &mut Effects) -> Option<u32> {
        if self.hosts.len() >= self.limits.hosts {
            return None;
        }
        let host = self.hosts.insert(Host { key: key.clone(), state, owners: BTreeSet::new() }) as u32;
        self.by_host.insert(key.clone(), host);
        fx.log(Durability::Loose, Record::Host(key.clone(), state));
        Some(host)
    }

    /// Forgets an owner without locks, shares and blocked requests.
    pub(crate) fn tidy_nlm_owner(&mut self, owner: u32) {
        let Holder::Host(host) = self.owners.holder(owner) else { return };
        let is_used = self.ranges.any_of(owner) || self.waiters.has(owner) || self.has_share(owner);
        if !is_used && self.hosts[host as usize].owners.remove(&owner) {
            self.owners.remove_use(owner);
        }
    }

    fn has_share(&self, owner: u32) -> bool {
        self.nlm_shares_of.range((owner, 0)..=(owner, u32::MAX)).next().is_some()
    }

    fn find_nlm_owner(&self, owner: &NlmOwner) -> Option<u32> {
        let host = self.by_host.get(&owner.host)?;
        self.owners.find(&nlm_owner(*host, owner))
    }

    /// Carries out NLM_TEST.
    pub fn nlm_test(
        &self,
        owner: &NlmOwner,
        file: &FileKey,
        range: Range,
        kind: LockKind,
        now: Now,
    ) -> NlmAnswer {
        if self.in_grace(now) {
            return NlmAnswer::DeniedGrace;
        }
        let owner = self.find_nlm_owner(owner).unwrap_or(NOBODY);
        match self.test_range(file, Lock { range, kind, owner }, now) {
            Some(conflict) => NlmAnswer::Denied(Some(conflict)),
            None => NlmAnswer::Granted,
        }
    }

    /// Carries out NLM_UNLOCK. Freeing bytes that are not locked succeeds.
    pub fn nlm_unlock(&mut self, owner: &NlmOwner, file: &FileKey, range: Range, now: Now, fx: &mut Effects) {
        let (Some(number), Some(at)) = (self.find_nlm_owner(owner), self.files.find(file)) else { return };
        self.waiters
            .grants
            .retain(|_, grant| (grant.owner, grant.file) != (number, at) || !grant.range.overlaps(range));
        self.set_range(number, at, range, None);
        self.freed.insert(at);
        fx.log(Durability::BeforeReply, Record::NlmLock(owner.clone(), file.clone(), range, None));
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
        let granted = self.waiters.grants.iter().find(|(_, grant)| {
            (grant.owner, grant.file, grant.range, grant.kind) == (number, at, range, kind)
        });
        let granted = granted.map(|(ticket, _)| *ticket);
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
        let Some(grant) = self.waiters.grants.remove(&ticket) else { return false };
        if !is_accepted {
            let crate::LockOwner::Nlm(owner) = self.describe_owner(grant.owner) else { return false };
            let file = self.files.at(grant.file).key.clone();
            self.nlm_unlock(&owner, &file, grant.range, now, fx);
        }
        true
    }

    /// Returns true if the server should go on sending GRANTED.
    pub fn nlm_is_granting(&self, ticket: u64) -> bool {
        self.waiters.grants.contains_key(&ticket)
    }

    /// Carries out NLM_SHARE.
    pub fn nlm_share(
        &mut self,
        owner: &NlmOwner,
        file: &FileKey,
        share: Share,
        is_reclaim: bool,
        now: Now,
        fx: &mut Effects,
    ) -> NlmAnswer {
        if self.in_grace(now) != is_reclaim {
            return NlmAnswer::DeniedGrace;
        }
        if share.access > 3 || share.deny > 3 || share == Share::default() {
            return NlmAnswer::Denied(None);
        }
        let own = self
            .find_nlm_owner(owner)
            .and_then(|owner| self.nlm_shares.get(&(self.files.find(file)?, owner)));
        let own = own.map(|own| own.share).unwrap_or_default();
        if self.admit_share(file, share, own, now, fx) == Err(Error::ShareDenied) {
            self.settle(now, fx);
            return NlmAnswer::Denied(None);
        }
        let writes = share.access & WRITE != 0 || share.deny != 0;
        if let Some(number) = self.files.find(file)
            && self.recall(number, None, writes, now, fx)
        {
            self.settle(now, fx);
            return NlmAnswer::Retry;
        }
        let Some(number) = self.add_nlm_owner(owner, fx) else { return NlmAnswer::DeniedNoLocks };
        self.put_nlm_share(number, file, Some(share));
        fx.log(Durability::BeforeReply, Record::NlmShare(owner.clone(), file.clone(), Some(share)));
        self.settle(now, fx);
        NlmAnswer::Granted
    }

    /// Carries out NLM_UNSHARE.
    pub fn nlm_unshare(&mut self, owner: &NlmOwner, file: &FileKey, now: Now, fx: &mut Effects) {
        let Some(number) = self.find_nlm_owner(owner) else { return };
        self.put_nlm_share(number, file, None);
        fx.log(Durability::BeforeReply, Record::NlmShare(owner.clone(), file.clone(), None));
        self.tidy_nlm_owner(number);
        self.settle(now, fx);
    }

    /// Replaces the share of an owner.
    pub(crate) fn put_nlm_share(&mut self, owner: u32, file: &FileKey, share: Option<Share>) {
        let at = match (share, self.files.find(file)) {
            (_, Some(at)) => at,
            (Some(_), None) => self.files.get_or_add(file),
            (None, None) => return,
        };
        let old = match share {
            Some(share) => {
                self.nlm_shares_of.insert((owner, at));
                self.nlm_shares.insert((at, owner), NlmShare { share })
            }
            None => {
                self.nlm_shares_of.remove(&(owner, at));
                self.nlm_shares.remove(&(at, owner))
            }
        };
        let entry = self.files.at_mut(at);
        if let Some(old) = old {
            entry.count(old.share, false);
            entry.opens -= 1;
        }
        if let Some(share) = share {
            entry.count(share, true);
            entry.opens += 1;
        }
        self.freed.insert(at);
    }

    /// Takes the state number of a request. A larger one than before means that the host has rebooted.
    fn nlm_state(&mut self, host: &HostKey, state: i32, fx: &mut Effects) {
        let Some(number) = self.by_host.get(host).copied().filter(|_| state != 0) else {
            if state != 0 {
                self.add_host(host, state, fx);
            }
            return;
        };
        let known = self.hosts[number as usize].state;
        if known == state {
            return;
        }
        if known != 0 && state.wrapping_sub(known) > 0 {
            self.free_host(host, fx);
            self.add_host(host, state, fx);
        } else if known == 0 {
            self.hosts[number as usize].state = state;
            fx.log(Durability::Loose, Record::Host(host.clone(), state));
        }
    }

    /// Carries out SM_NOTIFY: a host has rebooted and has this state number now. An old notification, which repeats
    /// the known number, changes nothing.
    pub fn nsm_notify(&mut self, host: &HostKey, state: i32, now: Now, fx: &mut Effects) {
        let known = self.by_host.get(host).map(|host| self.hosts[*host as usize].state);
        if known.is_some_and(|known| known != state || known == 0) {
            self.free_host(host, fx);
        }
        self.settle(now, fx);
    }

    /// Carries out NLM_FREE_ALL.
    pub fn nlm_free_all(&mut self, host: &HostKey, now: Now, fx: &mut Effects) {
        self.free_host(host, fx);
        self.settle(now, fx);
    }

    /// Removes a host with its locks, shares and blocked requests.
    pub(crate) fn free_host(&mut self, key: &HostKey, fx: &mut Effects) {
        let Some(host) = self.by_host.remove(key) else { return };
        let owners = std::mem::take(&mut self.hosts[host as usize].owners);
        for owner in owners {
            for (file, ticket) in self.waiters.of(owner) {
                self.dequeue(file, ticket);
            }
            self.waiters.grants.retain(|_, grant| grant.owner != owner);
            for file in self.ranges.files_of(owner) {
                self.set_range(owner, file, WHOLE, None);
                self.freed.insert(file);
            }
            let shares: Vec<u32> =
                self.nlm_shares_of.range((owner, 0)..=(owner, u32::MAX)).map(|(_, file)| *file).collect();
            for file in shares {
                let key = self.files.at(file).key.clone();
                self.put_nlm_share(owner, &key, None);
            }
            self.owners.remove_use(owner);
        }
        self.hosts.remove(host as usize);
        fx.log(Durability::BeforeReply, Record::HostFreed(key.clone()));
    }
}

pub(crate) fn nlm_owner(host: u32, owner: &NlmOwner) -> OwnerKey {
    OwnerKey { holder: Holder::Host(host), kind: OwnerKind::Nlm(owner.svid), name: owner.opaque.clone() }
}
