//! The execution of a COMPOUND (RFC 8881 section 16.2).
//!
//! An event loop begins it. If an operation has to wait, a worker goes on at that operation: operations before it are
//! not repeated. Changes are carried out one after another; a further change waits until the one before is durable, and
//! the reply waits for the last.

use std::sync::{Arc, mpsc};

use forebay_clientstate::{Durability, Effects, Now, REPLY_MAX, RequestId, Session};
use forebay_rpc::{OwnedReply, Reply, Ticket};
use forebay_vfs::{CommitRequest, Error, Export, SsdRead, Target, Wait};
use forebay_wire::nfs4::{self, CompoundReply, Nfsstat4, Op, Opcode, Operation, Operations, Position};
use forebay_wire::xdr::{Decode, Encode, Reader};

use super::convert::status;
use super::durable::Passage;
use super::measured::Measured;
use super::place::Current;
use super::server::Server;
use crate::clients::ClientStats;
use crate::program::Kind;
use crate::request::Call;
use crate::result::success;
use crate::shared::Shared;

/// Bytes that the result of any operation without data takes at most. A change is refused before it is carried out if
/// its result might not fit.
const SMALL_RESULT: usize = 1024;

/// The surroundings of an operation.
pub(super) struct Context<'a> {
    pub(super) shared: &'a Shared,
    pub(super) server: &'a Server,
    pub(super) call: &'a Call<'a>,
    pub(super) wait: Wait,
    pub(super) now: Now,
}

/// The reason why an operation has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The operation would have to wait, and may not wait here. It has changed nothing.
    Later,
    /// The operation failed.
    Fail(Nfsstat4),
    /// The operation has appended a failure, or a whole reply, itself.
    Appended,
    /// The request repeats a running one: the reply comes when that one is complete.
    Parked,
}

/// The state of a COMPOUND after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All results are there.
    Complete,
    /// The next operation has to wait.
    Later(Kind),
    /// Nothing is to be sent for this request.
    Parked,
    /// No worker was free for the next operation. A worker answers, since the log has to have records first.
    TurnedAway,
}

/// The slot that a COMPOUND runs in.
pub(super) struct InSlot {
    pub(super) session: Arc<Session>,
    pub(super) slot: u32,
    pub(super) sequence: u32,
    pub(super) digest: u64,
    /// True if the client asks for the reply to be kept.
    pub(super) keeps: bool,
}

impl InSlot {
    pub(super) fn id(&self) -> RequestId {
        RequestId { session: self.session.id(), slot: self.slot, sequence: self.sequence }
    }
}

/// A change whose durability the reply waits for.
pub(super) struct Change {
    pub(super) export: Arc<Export>,
    pub(super) request: CommitRequest,
    pub(super) commit: Option<Commit>,
}

/// A COMMIT: its result gets the verifier in force after the sync.
pub(super) struct Commit {
    pub(super) target: Target,
    pub(super) seen: u64,
    /// The position of the verifier in the reply.
    pub(super) verifier_at: usize,
}

impl Change {
    /// Returns the result of a change, and the commit that its reply waits for. After a failure nobody waits, but a
    /// part of the change may have happened, and other changes in the log stand behind it.
    pub(super) fn of<T>(
        cx: &Context<'_>,
        export: &Arc<Export>,
        result: Result<T, Error>,
        request: Option<CommitRequest>,
    ) -> Result<(T, Option<Self>), Stop> {
        let change = request.map(|request| Change { export: export.clone(), request, commit: None });
        match result {
            Ok(done) => Ok((done, change)),
            Err(error) => {
                change.into_iter().for_each(|change| change.abandon(cx));
                Err(error.into())
            }
        }
    }

    /// Makes a change durable of which no reply tells.
    pub(super) fn abandon(self, cx: &Context<'_>) {
        cx.shared.vfs.commit(&self.export, self.request, &[], Box::new(drop));
    }

    /// Waits until the change is durable.
    pub(super) fn wait(self, cx: &Context<'_>) -> Result<Option<Commit>, Error> {
        let (sender, receiver) = mpsc::channel();
        let done = Box::new(move |result| _ = sender.send(result));
        cx.shared.vfs.commit(&self.export, self.request, &[], done);
        receiver.recv().unwrap_or(Err(Error::Busy)).map(|()| self.commit)
    }
}

/// A change, and the reply as it was before.
struct Pending {
    change: Change,
    number: Opcode,
    before: CompoundReply,
    len_before: usize,
}

/// A COMPOUND in execution.
pub(crate) struct Compound {
    xid: u32,
    minor_version: u32,
    position: Position,
    pub(super) reply: CompoundReply,
    /// The length of the RPC header in front of the results.
    body_at: usize,
    pub(super) current: Option<Current>,
    pub(super) saved: Option<Current>,
    pub(super) slot: Option<InSlot>,
    pub(super) effects: Effects,
    pending: Option<Pending>,
    /// The right to answer, once the request is off the event loop.
    pub(crate) ticket: Option<Ticket>,
    /// True if the reply ends with the payload of a READ.
    has_payload: bool,
    /// The last operation, a READ that had to wait, if its data is on the cache devices. The caller's counters go with
    /// it.
    pub(super) from_ssd: Option<(SsdRead, Arc<ClientStats>)>,
    /// True if a change of names or attributes was carried out, or refused.
    pub(super) has_changed: bool,
    /// True if the log has the reply.
    pub(super) is_logged: bool,
    pub(super) measured: Measured,
}

impl Compound {
    /// Decodes the head of a COMPOUND, and begins the reply. The error is that of the RPC: garbage.
    pub(crate) fn begin(call: &Call<'_>, out: &mut Vec<u8>) -> Option<Box<Self>> {
        let args = nfs4::Compound::decode(&mut Reader::new(call.rest())).ok()?;
        success(out, call.xid());
        let body_at = out.len();
        let mut reply = CompoundReply::begin(out, 0, args.tag);
        let mut position = args.operations.position();
        if !(1..=2).contains(&args.minor_version) {
            reply.refuse(out, Nfsstat4::MinorVersMismatch);
            position.index = position.count;
        }
        Some(Box::new(Compound {
            xid: call.xid(),
            minor_version: args.minor_version,
            position,
            reply,
            body_at,
            current: None,
            saved: None,
            slot: None,
            effects: Effects::default(),
            pending: None,
            ticket: None,
            has_payload: false,
            from_ssd: None,
            has_changed: false,
            is_logged: false,
            measured: Measured::begin(),
        }))
    }

    /// Executes operations until all are done, one fails, or one has to wait.
    pub(crate) fn run(
        &mut self,
        shared: &Shared,
        server: &Server,
        call: &Call<'_>,
        reply: &mut Reply<'_>,
        wait: Wait,
    ) -> Progress {
        let now = match wait {
            Wait::No => server.at(self.measured.now()),
            // The request has waited for a worker.
            Wait::Yes => server.now(),
        };
        let cx = Context { shared, server, call, wait, now };
        let mut operations = Operations::<Op<'_>>::resume(call.record, self.position);
        loop {
            let Some(decoded) = operations.next() else { return Progress::Complete };
            let (before, len_before) = (self.reply, reply.head().len());
            let (number, result) = match decoded {
                Err(bad) => (bad.number, Err(Stop::Fail(Nfsstat4::Badxdr))),
                Ok(op) if self.minor_version < 2 && is_of_version_2(op.number()) => {
                    (Opcode::Illegal, Err(Stop::Fail(Nfsstat4::OpIllegal)))
                }
                Ok(op) => (op.number(), self.step(&cx, &op, operations, reply)),
            };
            match result {
                Ok(change) => {
                    if let Some(change) = change {
                        self.pending = Some(Pending { change, number, before, len_before });
                    }
                    if !self.reply.fits(reply.head()) {
                        self.reply.fail(reply.head(), number, self.too_big());
                    }
                }
                Err(Stop::Fail(status)) => {
                    reply.head().truncate(len_before);
                    self.reply = before;
                    self.reply.push_failure(reply.head(), number, status);
                }
                // A worker may wait, so it has no other thread to go to.
                Err(Stop::Later) if wait == Wait::Yes => {
                    self.undo(reply.head(), number, before, len_before, Error::Busy);
                }
                Err(Stop::Later) => {
                    reply.head().truncate(len_before);
                    self.reply = before;
                    return Progress::Later(kind(number));
                }
                Err(Stop::Parked) => return Progress::Parked,
                Err(Stop::Appended) => return Progress::Complete,
            }
            self.measured.ended(&shared.stats, number, self.reply.status() != Nfsstat4::Ok);
            self.position = operations.position();
            if self.reply.status() != Nfsstat4::Ok {
                return Progress::Complete;
            }
        }
    }

    /// Executes one operation, whose result it appends. Returns the change that the reply has to wait for.
    fn step(
        &mut self,
        cx: &Context<'_>,
        op: &Op<'_>,
        rest: Operations<'_, Op<'_>>,
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        self.is_in_order(op)?;
        if is_change(op) {
            if self.reply.room(reply.head()) < SMALL_RESULT {
                return Err(Stop::Fail(self.too_big()));
            }
            self.settle(cx, reply)?;
        }
        // The records may have to wait for room in the log, and a request that is turned away has none.
        if has_records(op) && cx.shared.vfs.logs_state() {
            super::place::may_wait(cx)?;
        }
        let result = self.execute(cx, op, rest, reply);
        self.has_changed |= is_change(op) && !matches!(result, Err(Stop::Later));
        result
    }

    /// Checks the place of an operation (RFC 8881 sections 2.10.2 and 18.46.3).
    fn is_in_order(&self, op: &Op<'_>) -> Result<(), Stop> {
        let Position { index, count, .. } = self.position;
        let fail = |status| Err(Stop::Fail(status));
        match op {
            Op::Sequence(_) if index > 0 => fail(Nfsstat4::SequencePos),
            Op::Sequence(_) => Ok(()),
            Op::BindConnToSession(_) if count > 1 => fail(Nfsstat4::NotOnlyOp),
            _ if self.slot.is_some() => Ok(()),
            Op::ExchangeId(_) | Op::CreateSession(_) | Op::DestroySession(_) | Op::DestroyClientid(_)
                if count > 1 =>
            {
                fail(Nfsstat4::NotOnlyOp)
            }
            Op::ExchangeId(_)
            | Op::CreateSession(_)
            | Op::DestroySession(_)
            | Op::DestroyClientid(_)
            | Op::BindConnToSession(_) => Ok(()),
            Op::Illegal(()) => fail(Nfsstat4::OpIllegal),
            _ => fail(Nfsstat4::OpNotInSession),
        }
    }

    /// Waits until the change before is durable.
    fn settle(&mut self, cx: &Context<'_>, reply: &mut Reply<'_>) -> Result<(), Stop> {
        if self.pending.is_none() {
            return Ok(());
        }
        super::place::may_wait(cx)?;
        let Some(Pending { change, number, before, len_before }) = self.pending.take() else { return Ok(()) };
        match change.wait(cx) {
            Ok(commit) => {
                confirm(cx.shared, commit, reply.head());
                Ok(())
            }
            Err(error) => {
                self.undo(reply.head(), number, before, len_before, error);
                self.measured.finish(&cx.shared.stats, true);
                Err(Stop::Appended)
            }
        }
    }

    /// Replaces the result of a change that did not become durable, and all later ones, by a failure.
    fn undo(
        &mut self,
        out: &mut Vec<u8>,
        number: Opcode,
        before: CompoundReply,
        len_before: usize,
        error: Error,
    ) {
        out.truncate(len_before);
        self.reply = before;
        self.reply.push_failure(out, number, status(error));
    }

    /// Returns the status for a result that does not fit.
    pub(super) fn too_big(&self) -> Nfsstat4 {
        match &self.slot {
            Some(slot) if slot.keeps => Nfsstat4::RepTooBigToCache,
            _ => Nfsstat4::RepTooBig,
        }
    }

    /// Returns true if the next result may have its data as the payload of the reply.
    pub(super) fn may_have_payload(&self, is_last: bool) -> bool {
        is_last && self.pending.is_none()
    }

    pub(super) fn set_payload(&mut self, bytes: usize) {
        self.reply.add_payload(bytes);
        self.has_payload = true;
    }

    /// Replaces all results by the reply that the slot has kept.
    pub(super) fn replay(&self, out: &mut Vec<u8>, kept: &[u8]) {
        out.truncate(self.body_at);
        out.extend_from_slice(kept);
    }

    /// Returns true if the reply has to wait for a change, or for the log.
    pub(crate) fn has_to_commit(&self, shared: &Shared) -> bool {
        self.pending.is_some() || self.has_records(shared)
    }

    /// Returns true if the record of the last change keeps the reply.
    pub(super) fn change_keeps_reply(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.change.request.keeps_answer())
    }

    /// Makes the effects of the request durable, then answers. The request is off the event loop.
    pub(crate) fn commit_and_answer(self: Box<Self>, shared: Arc<Shared>, reply: OwnedReply) {
        self.log_and_commit(shared, reply);
    }

    /// Makes the last change durable. Answers then, once the passage is open.
    pub(super) fn commit_change(
        mut self: Box<Self>,
        shared: Arc<Shared>,
        mut reply: OwnedReply,
        passage: Arc<Passage>,
    ) {
        let answer = match self.change_keeps_reply() {
            true => self.logged_answer(&shared, reply.head()),
            false => Vec::new(),
        };
        let Some(Pending { change, number, before, len_before }) = self.pending.take() else {
            return passage.pass(move || self.answer(&shared, reply));
        };
        let Change { export, request, commit } = change;
        let after = shared.clone();
        let done = Box::new(move |result: Result<(), Error>| {
            match result {
                Ok(()) => confirm(&after, commit, reply.head()),
                Err(error) => {
                    self.is_logged = false;
                    self.undo(reply.head(), number, before, len_before, error);
                    self.measured.finish(&after.stats, true);
                }
            }
            passage.pass(move || self.answer(&after, reply));
        });
        shared.vfs.commit(&export, request, &answer, done);
    }

    /// Answers a COMPOUND for which no worker is free: the client shall try the next operation later.
    pub(crate) fn turn_away(mut self: Box<Self>, shared: &Arc<Shared>, record: &[u8], mut reply: OwnedReply) {
        let next = Operations::<Op<'_>>::resume(record, self.position).peek().unwrap_or(Opcode::Illegal);
        self.reply.push_failure(reply.head(), next, Nfsstat4::Delay);
        self.commit_and_answer(shared.clone(), reply);
    }

    /// Answers through the ticket.
    fn answer(mut self: Box<Self>, shared: &Shared, mut reply: OwnedReply) {
        self.complete(shared, reply.head());
        match self.ticket.take() {
            Some(ticket) => shared.send(ticket, reply),
            None => shared.done(),
        }
    }

    /// Ends the request in its slot, and answers its retransmissions. `head` is the reply up to a payload.
    pub(crate) fn complete(&mut self, shared: &Shared, head: &[u8]) {
        let Some(server) = shared.serves_nfs4() else { return };
        let now = server.at(self.measured.now());
        let body = head.get(self.body_at..).unwrap_or_default();
        if let Some(InSlot { session, slot, .. }) = self.slot.take() {
            let logged = self.is_logged.then_some(Durability::Loose);
            // Its record is in the log already.
            let fx = &mut Effects::default();
            let waiters = session.complete(slot, self.kept_reply(head), logged, now, fx);
            for (ticket, xid) in server.take_waiting(&waiters) {
                let mut again = ticket.reply();
                success(again.head(), xid);
                if self.has_payload {
                    let reply = &mut CompoundReply::begin(again.head(), 0, &[]);
                    reply.push_failure(again.head(), Opcode::Sequence, Nfsstat4::Delay);
                } else {
                    again.head().extend_from_slice(body);
                }
                shared.send(ticket, again);
            }
        }
        self.measured.finish(&shared.stats, false);
        server.act(&mut self.effects);
        server.tick(&shared.vfs, now);
    }

    /// Returns the results that the slot keeps, of a reply up to its payload.
    pub(super) fn kept_reply<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        if self.has_payload { &NOT_KEPT } else { head.get(self.body_at..).unwrap_or_default() }
    }

    /// Returns true in a COMPOUND of minor version 2.
    pub(super) fn is_version_2(&self) -> bool {
        self.minor_version >= 2
    }

    /// Returns the minor version.
    pub(super) fn minor(&self) -> u32 {
        self.minor_version
    }

    pub(super) fn xid(&self) -> u32 {
        self.xid
    }
}

/// A reply that no slot keeps: its data is not in the buffer.
static NOT_KEPT: [u8; REPLY_MAX + 1] = [0; REPLY_MAX + 1];

/// Completes the result of a COMMIT whose data is durable.
fn confirm(shared: &Shared, commit: Option<Commit>, out: &mut [u8]) {
    let Some(Commit { target, seen, verifier_at }) = commit else { return };
    shared.vfs.committed(&target, seen);
    let verifier = shared.vfs.verifier.get();
    if let Some(place) = out.get_mut(verifier_at..verifier_at + verifier.len()) {
        place.copy_from_slice(&verifier);
    }
}

/// Returns true for operations that change names, attributes or data.
fn is_change(op: &Op<'_>) -> bool {
    match op {
        Op::Write(_) | Op::Commit(_) | Op::Setattr(_) | Op::Create(_) => true,
        Op::Remove(_) | Op::Rename(_) | Op::Link(_) => true,
        Op::Setxattr(_) | Op::Removexattr(_) => true,
        Op::Allocate(_) | Op::Deallocate(_) | Op::Copy(_) | Op::Clone(_) => true,
        Op::Open(open) => matches!(open.how, nfs4::OpenHow::Create(_)),
        _ => false,
    }
}

/// Returns true for the operations that minor version 2 has added.
fn is_of_version_2(number: Opcode) -> bool {
    (Opcode::Allocate as u32..=Opcode::Removexattr as u32).contains(&(number as u32))
}

/// Returns true for operations that change the state of clients: the log gets records of them.
fn has_records(op: &Op<'_>) -> bool {
    let of_client = matches!(op, Op::ExchangeId(_) | Op::CreateSession(_) | Op::ReclaimComplete(_))
        || matches!(op, Op::DestroySession(_) | Op::DestroyClientid(_));
    let of_file = matches!(op, Op::Open(_) | Op::OpenDowngrade(_) | Op::Close(_) | Op::Delegreturn(_))
        || matches!(op, Op::Lock(_) | Op::Locku(_) | Op::FreeStateid(_));
    of_client || of_file
}

fn kind(number: Opcode) -> Kind {
    match number {
        Opcode::Read | Opcode::Commit | Opcode::Seek => Kind::Data,
        Opcode::Write | Opcode::Allocate | Opcode::Deallocate | Opcode::Copy | Opcode::Clone => Kind::Writes,
        _ => Kind::Names,
    }
}

/// Appends the successful result of an operation.
pub(super) fn put<T: Encode>(reply: &mut CompoundReply, out: &mut Vec<u8>, number: Opcode, body: &T) {
    reply.start(out, number);
    body.encode(out);
}
