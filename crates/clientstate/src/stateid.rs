//! State ids: their checks, TEST_STATEID, FREE_STATEID, and the access that they give.

use crate::record::Record;
use crate::state::{Ref, State};
use crate::{ClientId, Durability, Effects, Error, FileRef, Now, READ, StateId, WRITE};

/// Returns the version that follows. 0 is not a version: it means the current one.
pub(crate) fn next(seqid: u32) -> u32 {
    seqid.checked_add(1).unwrap_or(1)
}

impl State {
    /// Returns the state behind a state id of a client.
    ///
    /// | state id | result |
    /// |---|---|
    /// | special, unknown, or of another client | `BadStateid` |
    /// | of a revoked delegation | `DelegRevoked` |
    /// | of a state that an administrator has revoked | `AdminRevoked` |
    /// | version 0, or the current one | the state |
    /// | an older version | `OldStateid` |
    /// | a version that was never given out | `BadStateid` |
    ///
    /// There is no `StaleStateid` in NFSv4.1: a Linux client hangs on it.
    pub(crate) fn find_state(&self, client: ClientId, stateid: StateId) -> Result<Ref, Error> {
        if stateid.is_reserved() {
            return Err(Error::BadStateid);
        }
        let state = *self.states.get(&stateid.other).ok_or(Error::BadStateid)?;
        let (holder, current, revoked) = match state {
            Ref::Open(open) => {
                let open = &self.opens[open as usize];
                (open.client, open.stateid, open.is_revoked.then_some(Error::AdminRevoked))
            }
            Ref::Lock(lock) => {
                let lock = &self.lock_states[lock as usize];
                (lock.client, lock.stateid, None)
            }
            Ref::Delegation(delegation) => {
                let delegation = &self.delegations[delegation as usize];
                let revoked = delegation.is_revoked.then_some(Error::DelegRevoked);
                (delegation.client, delegation.stateid, revoked)
            }
            Ref::Copy(copy) => {
                let copy = &self.copies[copy as usize];
                (copy.client, copy.stateid, None)
            }
        };
        if holder != client {
            return Err(Error::BadStateid);
        }
        if let Some(error) = revoked {
            return Err(error);
        }
        match stateid.seqid {
            0 => Ok(state),
            seqid if seqid == current.seqid => Ok(state),
            seqid if (seqid.wrapping_sub(current.seqid) as i32) < 0 => Err(Error::OldStateid),
            _ => Err(Error::BadStateid),
        }
    }

    /// Returns the number of the client's open with this state id. Fails with `BadStateid` for a lock or a
    /// delegation.
    pub(crate) fn find_open(&self, client: ClientId, stateid: StateId) -> Result<u32, Error> {
        match self.find_state(client, stateid)? {
            Ref::Open(open) => Ok(open),
            _ => Err(Error::BadStateid),
        }
    }

    /// Returns the number of the client's lock state with this state id. Fails with `BadStateid` for an open or a
    /// delegation.
    pub(crate) fn find_lock(&self, client: ClientId, stateid: StateId) -> Result<u32, Error> {
        match self.find_state(client, stateid)? {
            Ref::Lock(lock) => Ok(lock),
            _ => Err(Error::BadStateid),
        }
    }

    /// Carries out TEST_STATEID for one state id.
    pub fn test_stateid(&self, client: ClientId, stateid: StateId) -> Result<(), Error> {
        self.find_state(client, stateid).map(|_| ())
    }

    /// Carries out FREE_STATEID: a lock state without locks, or a revoked state.
    pub fn free_stateid(
        &mut self,
        client: ClientId,
        stateid: StateId,
        now: Now,
        fx: &mut Effects,
    ) -> Result<(), Error> {
        let found = self.find_state(client, stateid);
        let revoked = matches!(found, Err(Error::DelegRevoked | Error::AdminRevoked));
        let state = match found {
            Ok(state) => state,
            Err(error) if !revoked => return Err(error),
            Err(_) => *self.states.get(&stateid.other).ok_or(Error::BadStateid)?,
        };
        match state {
            Ref::Open(open) if revoked => {
                fx.log(Durability::BeforeReply, Record::Close(stateid.other));
                self.remove_open(open, fx);
            }
            Ref::Lock(lock) => {
                let at = &self.lock_states[lock as usize];
                if !revoked && self.ranges.of(at.owner, at.file).next().is_some() {
                    return Err(Error::LocksHeld);
                }
                fx.log(Durability::Loose, Record::LockStateFreed(stateid.other));
                self.remove_lock_state(lock, fx);
            }
            // Its return is in the log since the revocation.
            Ref::Delegation(delegation) if revoked => self.remove_delegation(delegation, fx),
            Ref::Open(_) | Ref::Delegation(_) | Ref::Copy(_) => return Err(Error::LocksHeld),
        }
        self.settle(now, fx);
        Ok(())
    }

    /// Returns success if a READ, a WRITE or a SETATTR of the size may go on. `access` is [`READ`] or [`WRITE`].
    ///
    /// | state id | access | result |
    /// |---|---|---|
    /// | anonymous, or bypass with [`WRITE`] | denied by an open | `Locked` |
    /// | anonymous, bypass | a delegation of a client is in the way | `Delay`, and a recall |
    /// | anonymous, bypass | in a grace period | `Grace` |
    /// | of another file | | `BadStateid` |
    /// | of an open or a lock | [`WRITE`], and the open is for reading | `OpenMode` |
    /// | of a read delegation | [`WRITE`] | `OpenMode` |
    /// | else | | success |
    ///
    /// An open for writing also allows READ, as the kernel's server does: clients fill
    /// their pages with it.
    pub fn io(
        &mut self,
        client: Option<ClientId>,
        stateid: StateId,
        file: FileRef<'_>,
        access: u8,
        now: Now,
        fx: &mut Effects,
    ) -> Result<(), Error> {
        if stateid == StateId::ANONYMOUS || stateid == StateId::BYPASS {
            return self.io_without_state(client, stateid == StateId::BYPASS, file, access, now, fx);
        }
        let client = client.ok_or(Error::BadStateid)?;
        let state = self.find_state(client, stateid)?;
        let (number, writes) = match state {
            Ref::Open(open) => {
                (self.opens[open as usize].file, self.opens[open as usize].share.access & WRITE != 0)
            }
            Ref::Lock(lock) => {
                let open = &self.opens[self.lock_states[lock as usize].open as usize];
                (open.file, open.share.access & WRITE != 0)
            }
            Ref::Delegation(delegation) => {
                let delegation = &self.delegations[delegation as usize];
                (delegation.file, delegation.write)
            }
            Ref::Copy(_) => return Err(Error::BadStateid),
        };
        if self.files.at(number).key.key() != file.key {
            return Err(Error::BadStateid);
        }
        if access & WRITE != 0 && !writes { Err(Error::OpenMode) } else { Ok(()) }
    }

    /// Decides on READ or WRITE with a special state id: fails in a grace period, if an open denies the access, and
    /// while delegations are recalled.
    fn io_without_state(
        &mut self,
        client: Option<ClientId>,
        bypass: bool,
        file: FileRef<'_>,
        access: u8,
        now: Now,
        fx: &mut Effects,
    ) -> Result<(), Error> {
        if self.in_grace(now) {
            return Err(Error::Grace);
        }
        let Some(number) = self.files.find(file.key) else { return Ok(()) };
        let [_, _, no_readers, no_writers] = self.files.at(number).counts;
        let denied = access & READ != 0 && no_readers > 0 && !bypass || access & WRITE != 0 && no_writers > 0;
        if denied {
            return Err(Error::Locked);
        }
        let by = client.map(|client| (client, file.handle));
        let waits = self.recall(number, by, access & WRITE != 0, now, fx);
        self.settle(now, fx);
        if waits { Err(Error::Delay) } else { Ok(()) }
    }
}
