//! Byte-range locks of NFSv4: LOCK, LOCKT, LOCKU. The table of ranges is common with NLM.

use crate::ranges::Lock;
use crate::record::Record;
use crate::state::{Ref, State};
use crate::stateid::next;
use crate::tables::{Holder, OwnerKey, OwnerKind};
use crate::waiters::Waiter;
use crate::{
    ClientId, Conflict, Durability, Effects, Error, FileKey, HostKey, LockKind, LockOwner, NlmOwner, Now,
    OwnerName, READ, Range, StateId, WRITE, planted_bugs,
};

/// The state of a lock owner of a file. It belongs to the open through which the owner took its first lock of the file,
/// and ends with it.
#[derive(Debug)]
pub(crate) struct LockState {
    pub(crate) stateid: StateId,
    pub(crate) client: ClientId,
    pub(crate) owner: u32,
    pub(crate) file: u32,
    pub(crate) open: u32,
}

/// The owner that a LOCK names.
#[derive(Clone, Debug)]
pub enum Locker {
    /// A lock owner that may be new to this file, and an open of the file.
    New(StateId, OwnerName),
    /// The lock state of an owner of this file.
    Known(StateId),
}

/// The arguments of LOCK.
#[derive(Clone, Debug)]
pub struct LockArgs {
    /// The client.
    pub client: ClientId,
    /// The owner.
    pub locker: Locker,
    /// The file.
    pub file: FileKey,
    /// The range.
    pub range: Range,
    /// The kind.
    pub kind: LockKind,
    /// True for a reclaim in a grace period.
    pub is_reclaim: bool,
    /// True if the client waits for the lock (READW_LT, WRITEW_LT).
    pub waits: bool,
}

/// The reason why a lock was not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Another owner holds a lock: `NFS4ERR_DENIED`.
    Denied(Conflict),
    /// An error.
    Error(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refused::Error(error)
    }
}

/// Every byte of a file.
pub(crate) const WHOLE: Range = Range { first: 0, last: u64::MAX };
/// The number of an owner that has no state.
pub(crate) const NOBODY: u32 = u32::MAX;

impl State {
    /// Carries out LOCK.
    ///
    /// | case | result |
    /// |---|---|
    /// | as for OPEN: a grace period, RECLAIM_COMPLETE | `Grace`, `NoGrace` |
    /// | the open does not allow the access that the lock implies | `OpenMode` |
    /// | another owner's lock is in the way | `Denied`; `ReclaimConflict` for a reclaim |
    /// | only locks of expired clients are in the way | these clients lose their state, then as below |
    /// | the server has no more room for locks than the client holds | `Delay` |
    /// | else | the range gets this kind, whatever the owner held in it |
    ///
    /// If the client waits, it gets CB_NOTIFY_LOCK when the lock may be free. The hint reserves nothing.
    pub fn lock(&mut self, args: &LockArgs, now: Now, fx: &mut Effects) -> Result<StateId, Refused> {
        let result = self.lock_unsettled(args, now, fx);
        self.settle(now, fx);
        result
    }

    /// Locks a byte range. The caller calls [`State::settle`] afterwards.
    fn lock_unsettled(&mut self, args: &LockArgs, now: Now, fx: &mut Effects) -> Result<StateId, Refused> {
        self.may_claim(args.client, args.is_reclaim, now)?;
        let (open, key) = self.locker(args)?;
        let (file, access) = (self.opens[open as usize].file, self.opens[open as usize].share.access);
        if self.files.at(file).key != args.file {
            return Err(Error::BadStateid.into());
        }
        let needed = if args.kind == LockKind::Write { WRITE } else { READ };
        if access & needed == 0 {
            return Err(Error::OpenMode.into());
        }
        let owner = self.owners.find(&key).unwrap_or(NOBODY);
        let wanted = Lock { range: args.range, kind: args.kind, owner };
        if let Err(conflict) = self.clear_way(file, wanted, now, fx) {
            if args.is_reclaim {
                return Err(Error::ReclaimConflict.into());
            }
            if args.waits {
                self.wait((file, &args.file), &key, wanted, now);
            }
            return Err(Refused::Denied(self.describe_conflict(conflict)));
        }
        self.admit_state(args.client, now, fx)?;
        let held = self.client(args.client)?.held;
        if !self.admit_lock(held, now, fx) {
            return Err(Error::Delay.into());
        }
        let lock = self.put_lock_state(open, &key, None);
        let owner = self.lock_states[lock as usize].owner;
        self.stop_waiting(file, owner, args.range);
        self.set_range(owner, file, args.range, Some(args.kind));
        // A smaller lock than the owner had may free bytes for readers.
        self.freed.insert(file);
        fx.log(Durability::BeforeReply, self.describe_lock(lock, Some((args.range, args.kind))));
        Ok(self.lock_states[lock as usize].stateid)
    }

    /// Returns the open and the owner of a LOCK.
    fn locker(&self, args: &LockArgs) -> Result<(u32, OwnerKey), Error> {
        match &args.locker {
            Locker::New(open, owner) => {
                Ok((self.find_open(args.client, *open)?, lock_owner(args.client, owner)))
            }
            Locker::Known(stateid) => {
                let lock = &self.lock_states[self.find_lock(args.client, *stateid)? as usize];
                Ok((lock.open, self.owners.key(lock.owner).clone()))
            }
        }
    }

    /// Ends expired clients that are in the way of a lock. Returns a lock that stays in the way.
    pub(crate) fn clear_way(
        &mut self,
        file: u32,
        wanted: Lock,
        now: Now,
        fx: &mut Effects,
    ) -> Result<(), Lock> {
        while let Some(conflict) = self.conflict(file, wanted) {
            match self.courtesy_of(conflict.owner, now) {
                Some(client) => self.remove_client(client, fx),
                None => return Err(conflict),
            }
        }
        Ok(())
    }

    /// Returns the first lock of a file that conflicts with the wanted one, of whatever protocol, also of an expired
    /// client.
    pub(crate) fn conflict(&self, file: u32, wanted: Lock) -> Option<Lock> {
        let root = self.files.at(file).root;
        if planted_bugs::active("NLM locks are in a table of their own") && wanted.owner != NOBODY {
            let is_nlm = |owner| matches!(self.owners.holder(owner), Holder::Host(_));
            let mut first = None;
            self.ranges.conflicts(root, wanted, &mut |lock| {
                first = (is_nlm(lock.owner) == is_nlm(wanted.owner)).then_some(lock);
                first.is_none()
            });
            return first;
        }
        self.ranges.conflict(root, wanted)
    }

    /// Replaces an owner's locks in a range by one of `kind`, or by none. Corrects the count of locks of its client
    /// or host.
    pub(crate) fn set_range(&mut self, owner: u32, file: u32, range: Range, kind: Option<LockKind>) {
        let before = self.ranges.len();
        self.ranges.set(&mut self.files.at_mut(file).root, (owner, file), range, kind);
        let now = self.ranges.len();
        if let Some(held) = self.held_mut(owner) {
            held.locks = (held.locks as usize + now - before) as u32;
        }
    }

    /// Returns the lock state of an owner, made or moved to its next version. `recovered` is the state id of a record.
    pub(crate) fn put_lock_state(&mut self, open: u32, key: &OwnerKey, recovered: Option<StateId>) -> u32 {
        let (client, file) = (self.opens[open as usize].client, self.opens[open as usize].file);
        let owner = self.owners.get_or_add(key);
        if let Some(number) = self.lock_index.get(&(owner, file)).copied() {
            let stateid = &mut self.lock_states[number as usize].stateid;
            *stateid = recovered.unwrap_or(StateId { seqid: next(stateid.seqid), ..*stateid });
            return number;
        }
        let stateid = recovered.unwrap_or_else(|| StateId { seqid: 1, other: self.next_other() });
        let state = LockState { stateid, client, owner, file, open };
        let number = self.lock_states.insert(state) as u32;
        self.lock_index.insert((owner, file), number);
        self.locks_of_open.insert((open, number));
        self.owners.add_use(owner);
        self.attach(client, stateid, Ref::Lock(number));
        number
    }

    /// Returns the record of a lock state, with the lock that a request has set in `range`.
    pub(crate) fn describe_lock(&self, number: u32, range: Option<(Range, LockKind)>) -> Record {
        let lock = &self.lock_states[number as usize];
        Record::Lock {
            other: lock.stateid.other,
            seqid: lock.stateid.seqid,
            open: self.opens[lock.open as usize].stateid.other,
            owner: self.owners.key(lock.owner).name.clone(),
            range,
        }
    }

    /// Returns true if freeing a range makes two locks of one.
    pub(crate) fn splits(&self, owner: u32, file: u32, range: Range) -> bool {
        self.ranges.of(owner, file).any(|(held, _)| held.first < range.first && range.last < held.last)
    }

    /// Carries out LOCKU. Freeing bytes that are not locked succeeds. Freeing bytes in the middle of a lock makes two
    /// locks of it, and gets `Delay` at the bound.
    pub fn unlock(
        &mut self,
        client: ClientId,
        stateid: StateId,
        file: &FileKey,
        range: Range,
        now: Now,
        fx: &mut Effects,
    ) -> Result<StateId, Error> {
        let number = self.find_lock(client, stateid)?;
        let lock = &self.lock_states[number as usize];
        let (owner, at) = (lock.owner, lock.file);
        if self.files.at(at).key != *file {
            return Err(Error::BadStateid);
        }
        let held = self.client(client)?.held;
        if self.splits(owner, at, range) && !self.admit_lock(held, now, fx) {
            return Err(Error::Delay);
        }
        let lock = &mut self.lock_states[number as usize];
        lock.stateid.seqid = next(lock.stateid.seqid);
        let (owner, file, stateid) = (lock.owner, lock.file, lock.stateid);
        self.set_range(owner, file, range, None);
        self.freed.insert(file);
        if !planted_bugs::active("an unlock need not be in the log") {
            let record = Record::Unlock { other: stateid.other, seqid: stateid.seqid, range };
            fx.log(Durability::BeforeReply, record);
        }
        self.settle(now, fx);
        Ok(stateid)
    }

    /// Carries out LOCKT. Locks of expired clients do not count, and stay. The holder of a delegation locks without
    /// the server, so a delegation in the way is recalled, with `Delay`, unless a known lock answers already.
    #[expect(clippy::too_many_arguments, reason = "those of LOCKT")]
    pub fn test_lock(
        &mut self,
        client: ClientId,
        owner: &OwnerName,
        file: &FileKey,
        range: Range,
        kind: LockKind,
        now: Now,
        fx: &mut Effects,
    ) -> Result<(), Refused> {
        if self.in_grace(now) {
            return Err(Error::Grace.into());
        }
        self.client(client)?;
        let owner = self.owners.find(&lock_owner(client, owner)).unwrap_or(NOBODY);
        match self.test_range(file, Lock { range, kind, owner }, now) {
            Some(conflict) => Err(Refused::Denied(conflict)),
            None if self.recall_for_test(file, Some(client), kind, now, fx) => Err(Error::Delay.into()),
            None => Ok(()),
        }
    }

    /// Returns a lock that conflicts with the wanted one, for LOCKT and TEST. Locks of expired clients do not count,
    /// and stay.
    pub(crate) fn test_range(&self, file: &FileKey, wanted: Lock, now: Now) -> Option<Conflict> {
        let file = self.files.find(file)?;
        let mut first = None;
        self.ranges.conflicts(self.files.at(file).root, wanted, &mut |lock| {
            first = self.courtesy_of(lock.owner, now).is_none().then_some(lock);
            first.is_none()
        });
        first.map(|lock| self.describe_conflict(lock))
    }

    pub(crate) fn describe_conflict(&self, lock: Lock) -> Conflict {
        Conflict { range: lock.range, kind: lock.kind, owner: self.describe_owner(lock.owner) }
    }

    /// Returns the owner with this number as the protocol of its client names it.
    pub(crate) fn describe_owner(&self, owner: u32) -> LockOwner {
        let OwnerKey { holder, kind, name } = self.owners.key(owner).clone();
        match holder {
            Holder::Client(client) => LockOwner::V4(client, name),
            Holder::Host(host) => {
                let host: HostKey = self.hosts[host as usize].key.clone();
                let svid = if let OwnerKind::Nlm(svid) = kind { svid } else { 0 };
                LockOwner::Nlm(NlmOwner { host, opaque: name, svid })
            }
        }
    }

    /// Removes a lock state with its locks.
    pub(crate) fn remove_lock_state(&mut self, number: u32, _fx: &mut Effects) {
        let Some(lock) = self.lock_states.try_remove(number as usize) else { return };
        self.set_range(lock.owner, lock.file, WHOLE, None);
        self.lock_index.remove(&(lock.owner, lock.file));
        self.locks_of_open.remove(&(lock.open, number));
        self.detach(lock.client, lock.stateid, Ref::Lock(number));
        self.owners.remove_use(lock.owner);
        self.freed.insert(lock.file);
    }

    /// Puts a request of NFSv4 into the queue of a file, or marks that it was repeated.
    fn wait(&mut self, (file, known_as): (u32, &FileKey), key: &OwnerKey, wanted: Lock, now: Now) {
        let owner = self.owners.get_or_add(key);
        self.enqueue(
            file,
            Waiter {
                owner,
                known_as: known_as.clone(),
                range: wanted.range,
                kind: wanted.kind,
                since: now,
                cookie: None,
                notified: false,
            },
        );
        self.owners.remove_if_idle(owner);
    }

    /// Returns true if an owner of a client holds a lock of at least this kind in all bytes of a range.
    pub fn holds(&self, owner: &LockOwner, file: &FileKey, range: Range, kind: LockKind) -> bool {
        let key = match owner {
            LockOwner::V4(client, name) => Some(lock_owner(*client, name)),
            LockOwner::Nlm(owner) => {
                self.by_host.get(&owner.host).map(|host| crate::nlm::nlm_owner(*host, owner))
            }
        };
        let owner = key.and_then(|key| self.owners.find(&key));
        let (Some(owner), Some(file)) = (owner, self.files.find(file)) else { return false };
        let mut at = range.first;
        for (held, held_kind) in self.ranges.of(owner, file).filter(|(held, _)| held.overlaps(range)) {
            if held.first > at || held_kind < kind {
                return false;
            }
            if held.last >= range.last {
                return true;
            }
            at = held.last + 1;
        }
        false
    }
}

pub(crate) fn lock_owner(client: ClientId, owner: &OwnerName) -> OwnerKey {
    OwnerKey { holder: Holder::Client(client), kind: OwnerKind::Lock, name: owner.clone() }
}
