//! OPEN_DOWNGRADE, CLOSE, and the end of an open.

use std::sync::atomic::Ordering::Relaxed;

use crate::record::Record;
use crate::state::{Ref, State};
use crate::stateid::next;
use crate::{ClientId, Durability, Effects, Error, FileKey, Now, Share, StateId, planted_bugs};

impl State {
    /// Carries out OPEN_DOWNGRADE. The new share must be one that the owner has opened with.
    pub fn open_downgrade(
        &mut self,
        client: ClientId,
        stateid: StateId,
        file: &FileKey,
        share: Share,
        fx: &mut Effects,
    ) -> Result<StateId, Error> {
        let number = self.find_open(client, stateid)?;
        let open = &mut self.opens[number as usize];
        if self.files.at(open.file).key != *file {
            return Err(Error::BadStateid);
        }
        let share = Share::new(share.access.into(), share.deny.into())?;
        let seen = open.seen.0 & 1 << share.access != 0 && open.seen.1 & 1 << share.deny != 0;
        if open.share.union(share) != open.share || !seen {
            return Err(Error::Inval);
        }
        let at = self.files.at_mut(open.file);
        at.count(open.share, false);
        at.count(share, true);
        open.share = share;
        // Only values that are part of the new share remain.
        let within = |bits: u8, limit: u8| {
            (0..4).filter(|value| value & !limit == 0).fold(0, |all, value| all | bits & 1 << value)
        };
        open.seen = (within(open.seen.0, share.access), within(open.seen.1, share.deny));
        open.stateid.seqid = next(open.stateid.seqid);
        let stateid = open.stateid;
        fx.log(Durability::BeforeReply, self.describe_open(number));
        Ok(stateid)
    }

    /// Carries out CLOSE, and returns the state id for the answer. Locks that were taken through this open are freed.
    pub fn close(
        &mut self,
        client: ClientId,
        stateid: StateId,
        file: &FileKey,
        now: Now,
        fx: &mut Effects,
    ) -> Result<StateId, Error> {
        let number = self.find_open(client, stateid)?;
        let open = &self.opens[number as usize];
        if self.files.at(open.file).key != *file {
            return Err(Error::BadStateid);
        }
        let denied = open.share.deny != 0;
        let locked = self.locks_of_open.range((number, 0)..=(number, u32::MAX)).next().is_some();
        let durability = if denied || locked { Durability::BeforeReply } else { Durability::Loose };
        fx.log(durability, Record::Close(stateid.other));
        self.remove_open(number, fx);
        self.settle(now, fx);
        Ok(StateId::INVALID)
    }

    /// Removes an open with its lock states.
    pub(crate) fn remove_open(&mut self, number: u32, fx: &mut Effects) {
        let locks: Vec<u32> =
            self.locks_of_open.range((number, 0)..=(number, u32::MAX)).map(|(_, lock)| *lock).collect();
        locks.into_iter().for_each(|lock| self.remove_lock_state(lock, fx));
        let Some(open) = self.opens.try_remove(number as usize) else { return };
        if open.is_revoked
            && let Ok(client) = self.client(open.client)
        {
            client.lease.admin_revoked.fetch_sub(1, Relaxed);
        }
        self.open_index.remove(&(open.file, open.owner));
        let file = self.files.at_mut(open.file);
        file.opens -= 1;
        if planted_bugs::active("a close keeps the deny bits") {
            file.count(Share { access: open.share.access, deny: 0 }, false);
        } else {
            file.count(open.share, false);
        }
        self.detach(open.client, open.stateid, Ref::Open(number));
        self.owners.remove_use(open.owner);
        self.freed.insert(open.file);
    }

    /// Revokes a client's open with its locks, on behalf of an administrator. The client gets `AdminRevoked` until it
    /// frees the state.
    pub fn revoke_open(
        &mut self,
        client: ClientId,
        stateid: StateId,
        now: Now,
        fx: &mut Effects,
    ) -> Result<(), Error> {
        let number = self.find_open(client, StateId { seqid: 0, ..stateid })?;
        let locks: Vec<u32> =
            self.locks_of_open.range((number, 0)..=(number, u32::MAX)).map(|(_, lock)| *lock).collect();
        locks.into_iter().for_each(|lock| self.remove_lock_state(lock, fx));
        let open = &mut self.opens[number as usize];
        open.is_revoked = true;
        let share = std::mem::take(&mut open.share);
        let file = open.file;
        self.files.at_mut(file).count(share, false);
        fx.log(Durability::BeforeReply, Record::Close(stateid.other));
        self.client(client)?.lease.admin_revoked.fetch_add(1, Relaxed);
        self.freed.insert(file);
        self.settle(now, fx);
        Ok(())
    }
}
