//! NLM hosts and their owners, shares, and NSM: the reboot of a host.

use std::collections::BTreeSet;

use super::{Held, Host, NlmAnswer, NlmShare, nlm_owner};
use crate::locks::WHOLE;
use crate::record::Record;
use crate::state::State;
use crate::tables::Holder;
use crate::{Durability, Effects, Error, FileKey, HostKey, NlmOwner, Now, Share, WRITE};

impl State {
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

    /// Adds an NLM host, and returns its number. If there are too many hosts, one without locks, shares and waiters
    /// leaves; without such a host returns `None`.
    pub(crate) fn add_host(&mut self, key: &HostKey, state: i32, fx: &mut Effects) -> Option<u32> {
        if self.hosts.len() >= self.limits.hosts {
            // A host without anything but its state number makes room.
            let idle = self.hosts.iter().find(|(_, host)| host.owners.is_empty());
            let idle = idle.map(|(_, host)| host.key.clone())?;
            self.free_host(&idle, fx);
        }
        let host = self.hosts.insert(Host {
            key: key.clone(),
            state,
            owners: BTreeSet::new(),
            held: Held::default(),
        }) as u32;
        self.by_host.insert(key.clone(), host);
        fx.log(Durability::Loose, Record::Host(key.clone(), state));
        Some(host)
    }

    /// Returns the numbers of things that a host holds.
    pub(crate) fn held_by(&self, host: &HostKey) -> Held {
        self.by_host.get(host).map(|host| self.hosts[*host as usize].held).unwrap_or_default()
    }

    /// Returns the numbers of things that the client or host of an owner holds; `None` if it is gone.
    pub(crate) fn held_mut(&mut self, owner: u32) -> Option<&mut Held> {
        match self.owners.holder(owner) {
            Holder::Host(host) => self.hosts.get_mut(host as usize).map(|host| &mut host.held),
            Holder::Client(client) => self.clients.get_mut(&client).map(|client| &mut client.held),
        }
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
        let is_full = self.nlm_shares.len() >= self.limits.shares
            || self.held_by(&owner.host).shares >= self.limits.shares_per_host;
        if is_full && own == Share::default() {
            return NlmAnswer::DeniedNoLocks;
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
        if let Some(held) = self.held_mut(owner) {
            held.shares += u32::from(share.is_some());
            held.shares -= u32::from(old.is_some());
        }
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
    pub(super) fn nlm_state(&mut self, host: &HostKey, state: i32, fx: &mut Effects) {
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

    /// Returns true if a host has locks, shares or blocked requests.
    pub fn has_host(&self, host: &HostKey) -> bool {
        let host = self.by_host.get(host);
        host.is_some_and(|host| !self.hosts[*host as usize].owners.is_empty())
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
            self.drop_grants(owner, |_| true);
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
