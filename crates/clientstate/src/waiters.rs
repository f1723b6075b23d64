//! The queues of blocked requests for locks, and grants that are not acknowledged.

use std::collections::{BTreeMap, BTreeSet};

use crate::ranges::Lock;
use crate::record::Record;
use crate::state::State;
use crate::tables::Holder;
use crate::{
    Action, ClientId, Cookie, Durability, Effects, FileKey, Granted, LockKind, LockOwner, Now, Range,
    planted_bugs,
};

/// A blocked request for a lock.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) owner: u32,
    /// The file, as the client knows it.
    pub(crate) known_as: FileKey,
    pub(crate) range: Range,
    pub(crate) kind: LockKind,
    /// The time at which the client last asked.
    pub(crate) since: Now,
    /// The cookie of an NLM request; `None` for NFSv4.
    pub(crate) cookie: Option<Cookie>,
    /// True if an NFSv4 client was told since it last asked.
    pub(crate) notified: bool,
}

/// A lock that was granted to a blocked NLM request, and that the host has not acknowledged.
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) owner: u32,
    pub(crate) file: u32,
    pub(crate) range: Range,
    pub(crate) kind: LockKind,
}

/// The queues of all files.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// By file and ticket: in the order of arrival.
    pub(crate) queue: BTreeMap<(u32, u64), Waiter>,
    /// By owner, file and ticket.
    by_owner: BTreeSet<(u32, u32, u64)>,
    /// The requests of NFSv4 clients.
    by_client: BTreeSet<(ClientId, u32, u64)>,
    grants: BTreeMap<u64, Grant>,
    /// By owner and ticket.
    grants_of: BTreeSet<(u32, u64)>,
    next: u64,
}

impl Waiters {
    /// Returns the number of blocked requests, and of grants that are not acknowledged.
    pub(crate) fn len(&self) -> usize {
        self.queue.len() + self.grants.len()
    }

    /// Returns the waiters of an owner as file and ticket.
    pub(crate) fn of(&self, owner: u32) -> Vec<(u32, u64)> {
        let range = (owner, 0, 0)..=(owner, u32::MAX, u64::MAX);
        self.by_owner.range(range).map(|(_, file, ticket)| (*file, *ticket)).collect()
    }

    /// Returns the grants of an owner.
    pub(crate) fn grants_of(&self, owner: u32) -> Vec<(u64, Grant)> {
        let tickets = self.grants_of.range((owner, 0)..=(owner, u64::MAX));
        tickets.filter_map(|(_, ticket)| Some((*ticket, self.grants.get(ticket)?.clone()))).collect()
    }

    /// Returns all grants, each with its ticket.
    pub(crate) fn grants(&self) -> impl Iterator<Item = (&u64, &Grant)> {
        self.grants.iter()
    }

    /// Returns true if the host has not acknowledged the grant with this ticket.
    pub(crate) fn is_granting(&self, ticket: u64) -> bool {
        self.grants.contains_key(&ticket)
    }

    /// Keeps a grant until its host acknowledges it.
    fn add_grant(&mut self, ticket: u64, grant: Grant) {
        self.grants_of.insert((grant.owner, ticket));
        self.grants.insert(ticket, grant);
    }

    /// Removes a grant, which the host has acknowledged, refused or given up.
    pub(crate) fn remove_grant(&mut self, ticket: u64) -> Option<Grant> {
        let grant = self.grants.remove(&ticket)?;
        self.grants_of.remove(&(grant.owner, ticket));
        Some(grant)
    }

    /// Returns true if a request of the owner is blocked.
    pub(crate) fn has(&self, owner: u32) -> bool {
        self.by_owner.range((owner, 0, 0)..=(owner, u32::MAX, u64::MAX)).next().is_some()
    }
}

impl State {
    /// Adds a request to the queue of a file. A repeated request keeps its place. Returns false if the queue is full.
    pub(crate) fn enqueue(&mut self, file: u32, waiter: Waiter) -> bool {
        for (of_file, ticket) in self.waiters.of(waiter.owner) {
            if let Some(known) = self.waiters.queue.get_mut(&(of_file, ticket))
                && (of_file, known.range, known.kind) == (file, waiter.range, waiter.kind)
            {
                *known = waiter;
                return true;
            }
        }
        let is_host = matches!(self.owners.holder(waiter.owner), Holder::Host(_));
        let own = self.held_mut(waiter.owner).map(|held| held.waiters).unwrap_or_default();
        if self.files.at(file).waiters as usize >= self.limits.waiters_per_file
            || own as usize >= self.limits.waiters.saturating_sub(self.waiters.len())
            || is_host && own >= self.limits.waiters_per_host
        {
            return false;
        }
        if let Some(held) = self.held_mut(waiter.owner) {
            held.waiters += 1;
        }
        self.waiters.next += 1;
        let ticket = self.waiters.next;
        self.waiters.by_owner.insert((waiter.owner, file, ticket));
        if let Holder::Client(client) = self.owners.holder(waiter.owner) {
            self.waiters.by_client.insert((client, file, ticket));
        }
        self.owners.add_use(waiter.owner);
        self.files.at_mut(file).waiters += 1;
        self.waiters.queue.insert((file, ticket), waiter);
        true
    }

    /// Removes a blocked request from its file's queue. The requests behind it are looked at before the public call
    /// ends.
    pub(crate) fn dequeue(&mut self, file: u32, ticket: u64) {
        let Some(waiter) = self.waiters.queue.remove(&(file, ticket)) else { return };
        self.waiters.by_owner.remove(&(waiter.owner, file, ticket));
        if let Holder::Client(client) = self.owners.holder(waiter.owner) {
            self.waiters.by_client.remove(&(client, file, ticket));
        }
        self.files.at_mut(file).waiters -= 1;
        if let Some(held) = self.held_mut(waiter.owner) {
            held.waiters -= 1;
        }
        self.owners.remove_use(waiter.owner);
        // The waiters behind it may be free now.
        self.freed.insert(file);
    }

    /// Removes an owner's requests for bytes that it has got.
    pub(crate) fn stop_waiting(&mut self, file: u32, owner: u32, range: Range) {
        for (of_file, ticket) in self.waiters.of(owner) {
            let known = self.waiters.queue.get(&(of_file, ticket));
            if of_file == file && known.is_some_and(|known| known.range.overlaps(range)) {
                self.dequeue(file, ticket);
            }
        }
    }

    /// Removes all blocked requests of an NFSv4 client.
    pub(crate) fn remove_waiters_of(&mut self, client: ClientId) {
        let requests = self.waiters.by_client.range((client, 0, 0)..=(client, u32::MAX, u64::MAX));
        let found: Vec<_> = requests.map(|(_, file, ticket)| (*file, *ticket)).collect();
        found.into_iter().for_each(|(file, ticket)| self.dequeue(file, ticket));
    }

    /// Forgets requests of NFSv4 clients that were not repeated for a lease time: such a client waits no longer.
    pub(crate) fn forget_late_waiters(&mut self, now: Now) {
        let lease = self.limits.lease;
        let late = |waiter: &Waiter| waiter.cookie.is_none() && now.saturating_sub(waiter.since) > lease;
        let found: Vec<_> =
            self.waiters.queue.iter().filter(|(_, waiter)| late(waiter)).map(|(key, _)| *key).collect();
        found.into_iter().for_each(|(file, ticket)| self.dequeue(file, ticket));
    }

    /// Serves the queues of the files in which something was freed. Each public call ends with this.
    ///
    /// Serving a queue may end expired clients, which frees locks in further files. These join the set of files, so
    /// there is no recursion.
    pub(crate) fn settle(&mut self, now: Now, fx: &mut Effects) {
        while let Some(file) = self.freed.pop_first() {
            if !self.files.contains(file) {
                continue;
            }
            if !planted_bugs::active("waiters are not served") {
                self.serve(file, now, fx);
            }
            let key = self.files.at(file).key.clone();
            self.files.remove_if_idle(file);
            if !planted_bugs::active("a removed file outlives its last open") {
                self.release(&key, now, fx);
            }
        }
    }

    /// Serves the queue of a file in order. An NLM request waits also for earlier NLM requests that conflict with it,
    /// so that a stream of readers cannot starve a writer.
    fn serve(&mut self, file: u32, now: Now, fx: &mut Effects) {
        let queue = self.waiters.queue.range((file, 0)..=(file, u64::MAX));
        let tickets: Vec<u64> = queue.map(|(key, _)| key.1).collect();
        let mut ahead: Vec<Lock> = Vec::new();
        for ticket in tickets {
            let Some(waiter) = self.waiters.queue.get(&(file, ticket)).cloned() else { continue };
            let wanted = Lock { range: waiter.range, kind: waiter.kind, owner: waiter.owner };
            if ahead.iter().any(|lock| conflicts(*lock, wanted))
                || self.clear_way(file, wanted, now, fx).is_err()
            {
                if waiter.cookie.is_some() {
                    ahead.push(wanted);
                }
                continue;
            }
            // The end of an expired client may have removed this request as well.
            if self.waiters.queue.contains_key(&(file, ticket)) {
                self.grant(file, ticket, waiter, fx);
            }
        }
    }

    /// Serves a blocked request whose way is free. An NLM request gets the lock, and its host a GRANTED. An NFSv4
    /// client is notified once, and has to ask again.
    fn grant(&mut self, file: u32, ticket: u64, waiter: Waiter, fx: &mut Effects) {
        let key = match planted_bugs::active("a call-back has the handle of another client") {
            true => self.files.at(file).key.clone(),
            false => waiter.known_as,
        };
        match (self.describe_owner(waiter.owner), waiter.cookie) {
            (LockOwner::V4(client, owner), _) => {
                if let Some(known) =
                    self.waiters.queue.get_mut(&(file, ticket)).filter(|known| !known.notified)
                {
                    known.notified = true;
                    fx.act(Action::NotifyLock { client, owner, file: key });
                }
            }
            (LockOwner::Nlm(owner), cookie) => {
                let (range, kind) = (waiter.range, waiter.kind);
                self.set_range(waiter.owner, file, range, Some(kind));
                self.waiters.add_grant(ticket, Grant { owner: waiter.owner, file, range, kind });
                self.dequeue(file, ticket);
                let record = Record::NlmLock(owner.clone(), key.clone(), range, Some(kind));
                fx.log(Durability::BeforeReply, record);
                if let Some(cookie) = cookie {
                    fx.act(Action::Granted(Granted { ticket, owner, cookie, file: key, range, kind }));
                }
            }
        }
    }

    /// Returns true if an owner would wait for itself: the owners that hold locks in its way wait, perhaps through
    /// further owners, for a lock of its own. Only NLM requests count; NFSv4 clients ask again by themselves.
    pub(crate) fn would_deadlock(&self, file: u32, wanted: Lock) -> bool {
        let mut seen = BTreeSet::new();
        let mut stack = vec![(file, wanted)];
        while let Some((file, blocked)) = stack.pop() {
            let mut holders = Vec::new();
            self.ranges.conflicts(self.files.at(file).root, blocked, &mut |lock| {
                holders.push(lock.owner);
                lock.owner != wanted.owner
            });
            if holders.contains(&wanted.owner) {
                return true;
            }
            for holder in holders.into_iter().filter(|holder| seen.insert(*holder)) {
                let waits = self.waiters.of(holder).into_iter().filter_map(|(file, ticket)| {
                    let waiter = self.waiters.queue.get(&(file, ticket))?;
                    waiter.cookie.as_ref()?;
                    Some((file, Lock { range: waiter.range, kind: waiter.kind, owner: holder }))
                });
                stack.extend(waits);
            }
        }
        false
    }
}

/// Returns true if two locks of different owners exclude each other.
fn conflicts(one: Lock, two: Lock) -> bool {
    let excludes = one.kind == LockKind::Write || two.kind == LockKind::Write;
    excludes && one.owner != two.owner && one.range.overlaps(two.range)
}
