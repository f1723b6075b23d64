//! Byte-range locks: LOCK, LOCKT, LOCKU, and the state ids' TEST_STATEID and FREE_STATEID.

use forebay_clientstate::{
    Conflict, LockArgs as StateLock, LockKind, LockOwner, Locker as StateLocker, OwnerName, Range, Refused,
};
use forebay_rpc::Reply;
use forebay_wire::nfs4::{
    LockArgs, LockDenied, LockRes, LockType, Locker, LocktArgs, LocktRes, LockuArgs, Nfsstat4, OpResult,
    Opcode, ResultOr, StateOwner, Stateid, TestStateidArgs, TestStateidOk,
};
use forebay_wire::{Array, Opaque};

use super::compound::{Compound, Context, Stop, put};
use super::convert::{refused, state_id, state_status, wire_id};
use super::io::require_file;

fn kind(wire: LockType) -> LockKind {
    if wire.is_exclusive() { LockKind::Write } else { LockKind::Read }
}

/// Returns the lock that is in the way, for the client. The number of its owner's client is not the id by which that
/// client makes sessions.
fn denied(conflict: &Conflict) -> LockDenied<'_> {
    let (offset, length) = conflict.range.to_v4();
    let locktype = if conflict.kind == LockKind::Write { LockType::Write } else { LockType::Read };
    let owner = match &conflict.owner {
        LockOwner::V4(client, name) => StateOwner { clientid: client.0, owner: Opaque(name.as_bytes()) },
        LockOwner::Nlm(owner) => StateOwner { clientid: 0, owner: Opaque(owner.opaque.as_bytes()) },
    };
    LockDenied { offset, length, locktype, owner }
}

impl Compound {
    /// Executes LOCK. A conflicting lock is described in the result.
    pub(super) fn lock(
        &mut self,
        cx: &Context<'_>,
        args: &LockArgs<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        require_file(self.place()?, cx)?;
        let locker = match args.locker {
            Locker::New(new) => {
                let owner = OwnerName::new(new.lock_owner.owner.0).ok_or(Stop::Fail(Nfsstat4::Badxdr))?;
                StateLocker::New(state_id(self.resolve_stateid(new.open_stateid)?), owner)
            }
            Locker::Existing(known) => {
                StateLocker::Known(state_id(self.resolve_stateid(known.lock_stateid)?))
            }
        };
        let request = StateLock {
            client: self.client()?,
            locker,
            file: self.file(cx)?,
            range: Range::v4(args.offset, args.length)?,
            kind: kind(args.locktype),
            is_reclaim: args.reclaim,
            waits: args.locktype.waits(),
        };
        let result = cx.server.state().lock(&request, cx.now, &mut self.effects);
        match result {
            Ok(stateid) => {
                self.put_stateid(Opcode::Lock, wire_id(stateid), reply);
                Ok(())
            }
            Err(Refused::Denied(conflict)) => {
                let result: LockRes<'_> = ResultOr::Failed(denied(&conflict));
                self.reply.push(reply.head(), &OpResult::Lock(result));
                Ok(())
            }
            Err(error) => Err(Stop::Fail(refused(&error))),
        }
    }

    /// Carries out LOCKT: appends success, or the lock that would stand in the way. Takes no lock.
    pub(super) fn lock_test(
        &mut self,
        cx: &Context<'_>,
        args: &LocktArgs<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        require_file(self.place()?, cx)?;
        let owner = OwnerName::new(args.owner.owner.0).ok_or(Stop::Fail(Nfsstat4::Badxdr))?;
        let (client, file) = (self.client()?, self.file(cx)?);
        let range = Range::v4(args.offset, args.length)?;
        let (kind, fx) = (kind(args.locktype), &mut self.effects);
        let result = cx.server.state().test_lock(client, &owner, &file, range, kind, cx.now, fx);
        match result {
            Ok(()) => {
                self.reply.start(reply.head(), Opcode::Lockt);
                Ok(())
            }
            Err(Refused::Denied(conflict)) => {
                let result: LocktRes<'_> = ResultOr::Failed(denied(&conflict));
                self.reply.push(reply.head(), &OpResult::Lockt(result));
                Ok(())
            }
            Err(error) => Err(Stop::Fail(refused(&error))),
        }
    }

    /// Carries out LOCKU: gives back a range of a lock owner. The effects tell clients whose blocked locks are free
    /// now.
    pub(super) fn unlock(
        &mut self,
        cx: &Context<'_>,
        args: &LockuArgs,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        let (client, file) = (self.client()?, self.file(cx)?);
        let stateid = state_id(self.resolve_stateid(args.lock_stateid)?);
        let range = Range::v4(args.offset, args.length)?;
        let stateid = cx.server.state().unlock(client, stateid, &file, range, cx.now, &mut self.effects)?;
        self.put_stateid(Opcode::Locku, wire_id(stateid), reply);
        Ok(())
    }

    /// Carries out TEST_STATEID: appends one status for each state id of the request, and changes nothing.
    pub(super) fn test_stateids(
        &mut self,
        cx: &Context<'_>,
        args: &TestStateidArgs<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        let client = self.client()?;
        let codes: Vec<_> = {
            let state = cx.server.state();
            let test = |wire: Stateid| match state.test_stateid(client, state_id(wire)) {
                Ok(()) => Nfsstat4::Ok,
                Err(error) => state_status(error),
            };
            args.stateids.iter().map(test).collect()
        };
        let mut buffer = Vec::new();
        let codes = Array::encoded(&mut buffer, &codes).ok_or(Stop::Fail(Nfsstat4::Serverfault))?;
        put(&mut self.reply, reply.head(), Opcode::TestStateid, &TestStateidOk { codes });
        Ok(())
    }

    /// Carries out FREE_STATEID: forgets a state id that has no locks any more, or that the server has revoked.
    pub(super) fn free_stateid(
        &mut self,
        cx: &Context<'_>,
        wire: Stateid,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        let client = self.client()?;
        let stateid = state_id(self.resolve_stateid(wire)?);
        cx.server.state().free_stateid(client, stateid, cx.now, &mut self.effects)?;
        self.reply.start(reply.head(), Opcode::FreeStateid);
        Ok(())
    }
}
