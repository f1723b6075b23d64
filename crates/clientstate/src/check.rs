//! The invariants of a state.

use std::collections::BTreeMap;

use crate::nlm::Held;
use crate::ranges::Lock;
use crate::state::{Ref, State};
use crate::tables::{Holder, OwnerKind};
use crate::{Share, WRITE};

/// Returns a sentence if a condition does not hold.
fn ensure(condition: bool, sentence: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(sentence()) }
}

impl State {
    /// Returns the first invariant that does not hold, for tests. It looks at everything.
    pub fn check(&self) -> Result<(), String> {
        self.check_clients()?;
        self.check_files()?;
        self.check_locks()?;
        self.check_delegations()?;
        self.check_owners()
    }

    /// Checks that clients, their sessions, states and copies refer to each other, and that the counts are right.
    fn check_clients(&self) -> Result<(), String> {
        for (id, client) in &self.clients {
            let states = self.of_client.range((*id, Ref::FIRST)..=(*id, Ref::LAST));
            let counted = (client.states, client.delegations);
            let found = states.fold((0, 0), |(states, delegations), (_, state)| {
                (states + 1, delegations + u32::from(matches!(state, Ref::Delegation(_))))
            });
            ensure(counted == found, || format!("{id:?} counts {counted:?} of {found:?} states"))?;
            let named = self.by_owner.get(&client.owner).copied().unwrap_or_default();
            let expected = if client.is_confirmed { named.confirmed } else { named.unconfirmed };
            ensure(expected == Some(*id), || format!("{id:?} is not found by its owner"))?;
            for session in &client.sessions {
                let session = self.sessions.get(session);
                let sound = session.is_some_and(|session| session.client() == *id && session.is_sound());
                ensure(sound, || format!("{id:?} has a session that is not sound"))?;
            }
        }
        let sessions: usize = self.clients.values().map(|client| client.sessions.len()).sum();
        ensure(sessions == self.sessions.len(), || "a session has no client".into())?;
        ensure(self.of_client.len() == self.states.len(), || "a state has no client".into())?;
        let held = self.opens.len() + self.lock_states.len() + self.delegations.len() + self.copies.len();
        ensure(held == self.states.len(), || format!("{held} states have {} state ids", self.states.len()))?;
        let mut ended = self.ended_copies.iter();
        let lost = ended.find(|(other, copy)| {
            self.states.contains_key(*other) || !self.clients.contains_key(&copy.client)
        });
        ensure(lost.is_none(), || format!("{lost:?} runs, or belongs to no client"))?;
        let orphan = self.of_client.iter().find(|(client, _)| !self.clients.contains_key(client));
        ensure(orphan.is_none(), || format!("{orphan:?} belongs to no client"))
    }

    /// Counts of files equal the opens and shares, and no two opens exclude each other.
    fn check_files(&self) -> Result<(), String> {
        let opens = self.opens.iter().map(|(_, open)| (open.file, open.share));
        let shares = self.nlm_shares.iter().map(|((file, _), share)| (*file, share.share));
        let mut found: BTreeMap<u32, Vec<Share>> = BTreeMap::new();
        opens.chain(shares).for_each(|(file, share)| found.entry(file).or_default().push(share));
        for (number, file) in self.files.iter() {
            let shares = found.remove(&number).unwrap_or_default();
            ensure(file.opens as usize == shares.len(), || format!("{:?} counts wrong opens", file.key))?;
            let count = |bit: fn(&Share) -> u8| shares.iter().filter(|share| bit(share) != 0).count() as u32;
            let counts = [
                count(|s| s.access & 1),
                count(|s| s.access & 2),
                count(|s| s.deny & 1),
                count(|s| s.deny & 2),
            ];
            ensure(file.counts == counts, || {
                format!("{:?} counts {:?} for {counts:?}", file.key, file.counts)
            })?;
            let excluded = shares.iter().any(|share| file.excludes(*share, *share));
            ensure(!excluded, || format!("{:?} has opens that exclude each other: {shares:?}", file.key))?;
            let waiters = self.waiters.queue.range((number, 0)..=(number, u64::MAX)).count();
            ensure(file.waiters as usize == waiters, || format!("{:?} counts wrong waiters", file.key))?;
            let used = file.opens > 0 || file.root != u32::MAX || file.delegations > 0 || file.waiters > 0;
            ensure(used, || format!("{:?} is left without any state", file.key))?;
        }
        ensure(found.is_empty(), || format!("opens of unknown files: {found:?}"))
    }

    /// Checks that locks do not conflict, lie in both indexes, and have a holder, and that each grant is held.
    fn check_locks(&self) -> Result<(), String> {
        let mut total = 0;
        for (number, file) in self.files.iter() {
            let locks = self.ranges.all(file.root);
            total += locks.len();
            for lock in &locks {
                let conflict = self.ranges.conflict(file.root, *lock);
                ensure(conflict.is_none(), || format!("{:?}: {lock:?} and {conflict:?}", file.key))?;
                let own: Vec<_> = self.ranges.of(lock.owner, number).collect();
                let listed = own.contains(&(lock.range, lock.kind));
                ensure(listed, || format!("{:?}: {lock:?} is not in its owner's list", file.key))?;
                let apart = own.windows(2).all(|pair| {
                    let gap = pair[1].0.first.checked_sub(pair[0].0.last);
                    gap.is_some_and(|gap| gap > 1 || gap == 1 && pair[0].1 != pair[1].1)
                });
                ensure(apart, || format!("{:?}: locks of one owner touch: {own:?}", file.key))?;
                let held = match self.owners.holder(lock.owner) {
                    Holder::Client(_) => self.lock_index.contains_key(&(lock.owner, number)),
                    Holder::Host(host) => self.hosts.contains(host as usize),
                };
                ensure(held, || format!("{:?}: {lock:?} belongs to nobody", file.key))?;
            }
        }
        ensure(total == self.ranges.len(), || "the trees and the lists of locks differ".into())?;
        for (ticket, grant) in self.waiters.grants() {
            let lock = Lock { range: grant.range, kind: grant.kind, owner: grant.owner };
            let held = self.ranges.of(grant.owner, grant.file).any(|(range, _)| range.overlaps(grant.range));
            ensure(held, || format!("grant {ticket} of {lock:?} is not held"))?;
        }
        Ok(())
    }

    /// A delegation that is not revoked excludes the opens of other clients that conflict with it.
    fn check_delegations(&self) -> Result<(), String> {
        let write = self.delegations.iter().filter(|(_, one)| one.write).count();
        ensure(write == self.write_delegations, || format!("{write} write delegations are counted wrong"))?;
        for (number, one) in &self.delegations {
            let indexed = self.delegation_index.get(&(one.file, one.client)) == Some(&(number as u32));
            ensure(indexed, || format!("delegation {number} is not found by its file"))?;
        }
        for (other, state) in &self.states {
            let stateid = match state {
                Ref::Open(open) => self.opens[*open as usize].stateid,
                Ref::Lock(lock) => self.lock_states[*lock as usize].stateid,
                Ref::Delegation(delegation) => self.delegations[*delegation as usize].stateid,
                Ref::Copy(copy) => self.copies[*copy as usize].stateid,
            };
            ensure(stateid.other == *other, || format!("{state:?} is found by a wrong state id"))?;
        }
        for (number, one) in self.delegations.iter().filter(|(_, one)| !one.is_revoked) {
            let opens = self.open_index.range((one.file, 0)..=(one.file, u32::MAX));
            for (_, open) in opens {
                let open = &self.opens[*open as usize];
                let conflicts = open.client != one.client && (one.write || open.share.access & WRITE != 0);
                ensure(!conflicts, || format!("delegation {number} and {open:?}"))?;
            }
            let rest =
                self.delegations.iter().filter(|(_, two)| two.file == one.file && two.client != one.client);
            for (_, two) in rest.filter(|(_, two)| !two.is_revoked) {
                ensure(!one.write && !two.write, || format!("delegations {one:?} and {two:?}"))?;
            }
        }
        Ok(())
    }

    /// Checks the counted uses of each owner, and the locks, shares and waiters that each client and NLM host counts.
    fn check_owners(&self) -> Result<(), String> {
        let mut uses: BTreeMap<u32, u32> = BTreeMap::new();
        self.opens.iter().for_each(|(_, open)| *uses.entry(open.owner).or_default() += 1);
        self.lock_states.iter().for_each(|(_, lock)| *uses.entry(lock.owner).or_default() += 1);
        self.waiters.queue.values().for_each(|waiter| *uses.entry(waiter.owner).or_default() += 1);
        for (_, host) in &self.hosts {
            host.owners.iter().for_each(|owner| *uses.entry(*owner).or_default() += 1);
        }
        let mut held: BTreeMap<Holder, Held> = BTreeMap::new();
        for (owner, key, _) in self.owners.iter() {
            let sum = held.entry(key.holder).or_default();
            let files = self.ranges.files_of(owner);
            sum.locks += files.iter().map(|file| self.ranges.of(owner, *file).count() as u32).sum::<u32>();
            sum.shares += self.nlm_shares_of.range((owner, 0)..=(owner, u32::MAX)).count() as u32;
            sum.waiters += self.waiters.of(owner).len() as u32;
        }
        let hosts = self.hosts.iter().map(|(number, host)| (Holder::Host(number as u32), host.held));
        let clients = self.clients.iter().map(|(id, client)| (Holder::Client(*id), client.held));
        for (holder, counted) in hosts.chain(clients) {
            let found = held.remove(&holder).unwrap_or_default();
            ensure(found == counted, || format!("{holder:?} counts {counted:?} of {found:?}"))?;
        }
        for (number, key, counted) in self.owners.iter() {
            let found = uses.remove(&number).unwrap_or_default();
            ensure(found == counted && found > 0, || format!("{key:?} counts {counted} of {found} uses"))?;
            if let (OwnerKind::Nlm(_), Holder::Host(host)) = (key.kind, key.holder) {
                let listed = self.hosts.get(host as usize).is_some_and(|host| host.owners.contains(&number));
                ensure(listed, || format!("{key:?} is not in its host's list"))?;
            }
        }
        ensure(uses.is_empty(), || "an owner without an entry".into())
    }
}
