//! Copies that go on after the reply to their COPY (RFC 7862 section 4).
//!
//! The server begins a copy with [`State::begin_copy`], asks [`State::copy_goes_on`] before each piece, and says
//! [`State::end_copy`]. [`Action::TellCopy`] then asks for CB_OFFLOAD.
//!
//! | a copy | OFFLOAD_STATUS | OFFLOAD_CANCEL | after a crash of the server |
//! |---|---|---|---|
//! | runs | the bytes so far | ends it | has ended with NFS4ERR_DELAY, and its client is told |
//! | has ended, and its client is not told yet | the bytes, and the status | forgets it | as above |
//! | has ended, and its client is told, or gone | `BadStateid` | `BadStateid` | forgotten |
//!
//! A client that waits for CB_OFFLOAD may wait for ever (Linux before 6.14 does). So the log knows a copy before the
//! reply to its COPY, and until its client is told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::record::Record;
use crate::state::{Ref, State};
use crate::{
    Action, ClientId, Durability, Effects, Error, FileKey, READ, RequestId, StateId, WRITE, planted_bugs,
};

/// The part of a copy that its worker and its call-back use without the lock of the state.
#[derive(Debug, Default)]
pub struct CopyProgress {
    copied: AtomicU64,
    is_unwanted: AtomicBool,
    is_told: AtomicBool,
}

impl CopyProgress {
    /// Counts bytes that were copied.
    pub fn add(&self, bytes: u64) {
        self.copied.fetch_add(bytes, Relaxed);
    }

    /// Returns the bytes copied so far.
    pub fn copied(&self) -> u64 {
        self.copied.load(Relaxed)
    }

    /// Returns true once the copy was cancelled, or its client is gone. The worker copies no further byte then.
    pub fn is_unwanted(&self) -> bool {
        self.is_unwanted.load(Relaxed)
    }

    /// Notes that the client has answered CB_OFFLOAD. The state id is no longer valid (RFC 7862 section 4.8).
    pub fn told(&self) {
        self.is_told.store(true, Relaxed);
    }

    fn is_told(&self) -> bool {
        self.is_told.load(Relaxed)
    }
}

/// Two are equal if they belong to one copy.
impl PartialEq for CopyProgress {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for CopyProgress {}

/// The end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyEnd {
    /// The `nfsstat4`; 0 for success.
    pub status: u32,
    /// True if the bytes are on stable storage. Otherwise the client sends a COMMIT.
    pub is_stable: bool,
    /// The write verifier from before the first byte.
    pub verifier: [u8; 8],
}

impl CopyEnd {
    /// The end of a copy whose server was restarted: the client sends its COPY again.
    const INTERRUPTED: CopyEnd = CopyEnd { status: Error::Delay as u32, is_stable: false, verifier: [0; 8] };
}

/// The arguments of a COPY that may go on after its reply.
#[derive(Clone, Debug)]
pub struct BeginCopy {
    /// The client.
    pub client: ClientId,
    /// The request. CB_OFFLOAD refers to it, because it may overtake the reply.
    pub request: Option<RequestId>,
    /// The file that is read.
    pub source: FileKey,
    /// The file that is written.
    pub target: FileKey,
}

/// A copy that runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) stateid: StateId,
    pub(crate) client: ClientId,
    request: Option<RequestId>,
    source: FileKey,
    target: FileKey,
    progress: Arc<CopyProgress>,
}

/// A copy that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) client: ClientId,
    target: FileKey,
    end: CopyEnd,
    progress: Arc<CopyProgress>,
    /// True if [`Action::TellCopy`] was given out. It is not for a copy from the log.
    is_announced: bool,
}

/// The copies of all clients that have ended, by state.
pub(crate) type EndedCopies = BTreeMap<crate::Other, Ended>;

impl State {
    /// Begins a copy that goes on after the reply. The caller has checked both state ids with [`State::io`].
    ///
    /// | condition | otherwise |
    /// |---|---|
    /// | the client's back channel works | none: CB_OFFLOAD would not arrive |
    /// | the client, and all clients, have fewer copies than the limits | none |
    ///
    /// Without a result the caller copies before it replies, and may copy less than it was asked for.
    pub fn begin_copy(&mut self, args: &BeginCopy, fx: &mut Effects) -> Option<(StateId, Arc<CopyProgress>)> {
        let client = self.clients.get(&args.client).filter(|client| client.is_confirmed)?;
        let is_reached = client.lease.has_back_channel();
        self.forget_told_copies(fx);
        let all = self.copies.len() + self.ended_copies.len();
        if !is_reached
            || all >= self.limits.copies
            || self.copies_of(args.client) >= self.limits.copies_per_client
            || self.states.len() >= self.limits.states
        {
            return None;
        }
        let stateid = StateId { seqid: 1, other: self.next_other() };
        let progress = Arc::<CopyProgress>::default();
        let number = self.copies.insert(Running {
            stateid,
            client: args.client,
            request: args.request,
            source: args.source.clone(),
            target: args.target.clone(),
            progress: progress.clone(),
        });
        self.attach(args.client, stateid, Ref::Copy(number as u32));
        let (other, client, file) = (stateid.other, args.client, args.target.clone());
        if !planted_bugs::active("a copy is not in the log") {
            fx.log(Durability::BeforeReply, Record::Copy { other, client, file });
        }
        Some((stateid, progress))
    }

    /// Returns the copies of a client, running or not told.
    fn copies_of(&self, client: ClientId) -> usize {
        let running = self.of_client.range((client, Ref::Copy(0))..=(client, Ref::Copy(u32::MAX))).count();
        running + self.ended_copies.values().filter(|ended| ended.client == client).count()
    }

    /// Returns success if the next piece may be copied.
    ///
    /// | the client | result |
    /// |---|---|
    /// | has cancelled the copy, or is gone | `BadStateid`, and nobody is to be told |
    /// | has no open and no delegation left that allows to read the source and to write the target | `BadStateid` |
    /// | else | success |
    ///
    /// The state ids of COPY do not count: a client that returns a delegation has an open in its place.
    pub fn copy_goes_on(&self, stateid: StateId) -> Result<(), Error> {
        let Some(Ref::Copy(number)) = self.states.get(&stateid.other) else { return Err(Error::BadStateid) };
        let copy = &self.copies[*number as usize];
        let may = self.may_access(copy.client, &copy.source, READ)
            && self.may_access(copy.client, &copy.target, WRITE);
        if may { Ok(()) } else { Err(Error::BadStateid) }
    }

    /// Returns true if a client has an open or a delegation of a file that allows an access.
    fn may_access(&self, client: ClientId, file: &FileKey, access: u8) -> bool {
        let Some(number) = self.files.find(file) else { return false };
        let mut opens = self.open_index.range((number, 0)..=(number, u32::MAX)).map(|(_, open)| *open);
        opens.any(|open| {
            let open = &self.opens[open as usize];
            // An open for writing also allows to read: see [`State::io`].
            open.client == client
                && !open.is_revoked
                && (access & WRITE == 0 || open.share.access & WRITE != 0)
        }) || self.delegation_index.get(&(number, client)).is_some_and(|at| {
            let delegation = &self.delegations[*at as usize];
            !delegation.is_revoked && (access & WRITE == 0 || delegation.write)
        })
    }

    /// Ends a copy, and asks for CB_OFFLOAD. Does nothing for a copy that was cancelled, or whose client is gone.
    pub fn end_copy(&mut self, stateid: StateId, end: CopyEnd, fx: &mut Effects) {
        let Some(Ref::Copy(number)) = self.states.get(&stateid.other).copied() else { return };
        let Running { client, request, target, progress, .. } = self.remove_copy(number);
        fx.act(Action::TellCopy {
            client,
            stateid,
            file: target.clone(),
            end,
            progress: progress.clone(),
            asked_in: request,
        });
        self.ended_copies.insert(stateid.other, Ended { client, target, end, progress, is_announced: true });
    }

    /// Removes a copy that runs from the tables.
    fn remove_copy(&mut self, number: u32) -> Running {
        let copy = self.copies.remove(number as usize);
        self.detach(copy.client, copy.stateid, Ref::Copy(number));
        copy
    }

    /// Ends a copy of which nobody is to be told.
    pub(crate) fn drop_copy(&mut self, number: u32) {
        self.remove_copy(number).progress.is_unwanted.store(true, Relaxed);
    }

    /// Forgets the ended copies of a client that is gone.
    pub(crate) fn drop_ended_copies(&mut self, client: ClientId) {
        self.ended_copies.retain(|_, ended| ended.client != client);
    }

    /// Carries out OFFLOAD_STATUS. Returns the bytes copied, and the `nfsstat4` of a copy that has ended.
    pub fn offload_status(
        &self,
        client: ClientId,
        stateid: StateId,
        file: &FileKey,
    ) -> Result<(u64, Option<u32>), Error> {
        if let Some(number) = self.running_copy(client, stateid, file)? {
            return Ok((self.copies[number as usize].progress.copied(), None));
        }
        let ended = self.ended_copy(client, stateid, file)?;
        Ok((ended.progress.copied(), Some(ended.end.status)))
    }

    /// Carries out OFFLOAD_CANCEL. The client is not told of the end. A worker may still be in a piece of the copy.
    pub fn offload_cancel(
        &mut self,
        client: ClientId,
        stateid: StateId,
        file: &FileKey,
        fx: &mut Effects,
    ) -> Result<(), Error> {
        match self.running_copy(client, stateid, file)? {
            Some(number) => self.drop_copy(number),
            None => {
                self.ended_copy(client, stateid, file)?;
                self.ended_copies.remove(&stateid.other);
            }
        }
        fx.log(Durability::BeforeReply, Record::CopyEnded(stateid.other));
        Ok(())
    }

    /// Returns the number of a running copy, or `None` if the state id may be that of a copy that has ended.
    fn running_copy(&self, client: ClientId, stateid: StateId, file: &FileKey) -> Result<Option<u32>, Error> {
        if stateid.is_reserved() {
            return Err(Error::BadStateid);
        }
        if !self.states.contains_key(&stateid.other) {
            return Ok(None);
        }
        match self.find_state(client, stateid)? {
            Ref::Copy(number) if self.copies[number as usize].target == *file => Ok(Some(number)),
            _ => Err(Error::BadStateid),
        }
    }

    /// Returns a copy of this client that has ended and whose end the client has not acknowledged. Fails with
    /// `BadStateid` for any other state id.
    fn ended_copy(&self, client: ClientId, stateid: StateId, file: &FileKey) -> Result<&Ended, Error> {
        let ended = self.ended_copies.get(&stateid.other).filter(|ended| {
            let is_current = matches!(stateid.seqid, 0 | 1);
            is_current && ended.client == client && ended.target == *file && !ended.progress.is_told()
        });
        ended.ok_or(Error::BadStateid)
    }

    /// Forgets ended copies whose clients are told.
    pub(crate) fn forget_told_copies(&mut self, fx: &mut Effects) {
        self.ended_copies.retain(|other, ended| {
            let is_told = ended.progress.is_told();
            if is_told {
                fx.log(Durability::Loose, Record::CopyEnded(*other));
            }
            !is_told
        });
    }

    /// Asks for CB_OFFLOAD of copies that ended with an earlier instance of the server.
    pub(crate) fn announce_ended_copies(&mut self, fx: &mut Effects) {
        for (other, ended) in self.ended_copies.iter_mut().filter(|(_, ended)| !ended.is_announced) {
            ended.is_announced = true;
            fx.act(Action::TellCopy {
                client: ended.client,
                stateid: StateId { seqid: 1, other: *other },
                file: ended.target.clone(),
                end: ended.end,
                progress: ended.progress.clone(),
                asked_in: None,
            });
        }
    }

    /// Recovers a copy from its record: it has ended with the server that ran it.
    pub(crate) fn recover_copy(&mut self, other: crate::Other, client: ClientId, file: &FileKey) {
        if self.clients.contains_key(&client) {
            let (end, progress) = (CopyEnd::INTERRUPTED, Arc::default());
            let ended = Ended { client, target: file.clone(), end, progress, is_announced: false };
            self.ended_copies.insert(other, ended);
        }
    }

    /// Appends the records of a client's copies.
    pub(crate) fn snapshot_copies(&self, client: ClientId, records: &mut Vec<Record>) {
        let range = (client, Ref::Copy(0))..=(client, Ref::Copy(u32::MAX));
        let running = self.of_client.range(range).filter_map(|(_, state)| match state {
            Ref::Copy(number) => Some(&self.copies[*number as usize]),
            _ => None,
        });
        records.extend(running.map(|copy| Record::Copy {
            other: copy.stateid.other,
            client,
            file: copy.target.clone(),
        }));
        let ended = self.ended_copies.iter().filter(|(_, ended)| ended.client == client);
        records.extend(ended.map(|(other, ended)| Record::Copy {
            other: *other,
            client,
            file: ended.target.clone(),
        }));
    }
}
