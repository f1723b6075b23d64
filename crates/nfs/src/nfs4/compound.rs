//! The execution of a COMPOUND (RFC 8881 section 16.2).
//!
//! An event loop begins it. If an operation has to wait, a worker goes on at that operation: operations before it are
//! not repeated. Changes are carried out one after another; a further change waits until the one before is durable, and
//! the reply waits for the last.

mod answer;
mod change;
mod classes;

use std::sync::Arc;
use std::time::Instant;

use forebay_clientstate::{Effects, Now, RequestId, Session};
use forebay_profile::{Kind as ProfileKind, Moved};
use forebay_rpc::{Reply, Ticket};
use forebay_runtime::tasks;
use forebay_vfs::{Error, SsdRead, Wait};
use forebay_wire::nfs4::{self, CompoundReply, Nfsstat4, Op, Opcode, Operations, Position};
use forebay_wire::xdr::{Decode, DecodeError, Encode, Reader};

use self::change::Pending;
pub(super) use self::change::{Change, Commit};
pub(super) use self::classes::Class;
use super::callback::BackPath;
use super::measured::Measured;
use super::place::Current;
use super::server::Server;
use crate::clients::ClientStats;
use crate::profiled::Done;
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

/// The operations of a COMPOUND from the next arguments on.
pub(super) type Arguments<'a> = Operations<'a, Op<'a>>;

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

impl From<DecodeError> for Stop {
    fn from(_: DecodeError) -> Self {
        Stop::Fail(Nfsstat4::Badxdr)
    }
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
    /// The back channel of the session that the request has made. It opens behind the reply: the client would refuse
    /// call-backs before it knows the session.
    pub(super) opened: Option<BackPath>,
    /// True if a change of names or attributes was carried out, or refused.
    pub(super) has_changed: bool,
    /// True if the log has the reply.
    pub(super) is_logged: bool,
    pub(super) measured: Measured,
    /// The time at which the event loop or the worker began or went on.
    now: Now,
    /// The range of the READ or WRITE in execution, for the profile.
    pub(super) moved: Option<Moved>,
    /// True if the OPEN in execution has made its file, for the profile.
    pub(super) has_made: bool,
}

impl Compound {
    /// Decodes the head of a COMPOUND, and begins the reply. The error is that of the RPC: garbage.
    pub(crate) fn begin(call: &Call<'_>, out: &mut Vec<u8>, arrived: Instant) -> Option<Self> {
        let args = nfs4::Compound::decode(&mut Reader::new(call.rest())).ok()?;
        success(out, call.xid());
        let body_at = out.len();
        let mut reply = CompoundReply::begin(out, 0, args.tag);
        let mut position = args.operations.position();
        if !(1..=2).contains(&args.minor_version) {
            reply.refuse(out, Nfsstat4::MinorVersMismatch);
            position.index = position.count;
        }
        Some(Compound {
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
            opened: None,
            has_changed: false,
            is_logged: false,
            measured: Measured::begin(arrived),
            now: 0,
            moved: None,
            has_made: false,
        })
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
            // The event loop begins a COMPOUND at its arrival.
            Wait::No => server.at(self.measured.last()),
            // The request has waited for a worker.
            Wait::Yes => server.now(),
        };
        self.now = now;
        let cx = Context { shared, server, call, wait, now };
        let mut operations = Operations::<Op<'_>>::resume(call.record, self.position);
        loop {
            let next = match operations.next_number() {
                None => return Progress::Complete,
                Some(next) => next,
            };
            let (before, len_before) = (self.reply, reply.head().len());
            let number = next.unwrap_or(Opcode::Illegal);
            let result = match next {
                Err(_) => Err(Stop::Fail(Nfsstat4::Badxdr)),
                Ok(_) => self.step(&cx, number, &mut operations, reply),
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
                    return Progress::Later(Class::of(number).workers);
                }
                Err(Stop::Parked) => return Progress::Parked,
                Err(Stop::Appended) => return Progress::Complete,
            }
            self.measured.ended(&shared.stats, number, self.reply.status() != Nfsstat4::Ok);
            self.profile(shared, call, number);
            self.position = operations.position();
            if self.reply.status() != Nfsstat4::Ok {
                return Progress::Complete;
            }
        }
    }

    /// Executes the operation `number`, whose arguments are next, and appends its result. Returns the change that the
    /// reply has to wait for.
    fn step(
        &mut self,
        cx: &Context<'_>,
        number: Opcode,
        arguments: &mut Arguments<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        self.is_in_order(number)?;
        let class = Class::of(number);
        let is_change = class.is_change(*arguments);
        if is_change {
            if self.reply.room(reply.head()) < SMALL_RESULT {
                return Err(Stop::Fail(self.too_big()));
            }
            self.wait_for_pending(cx, reply)?;
        }
        // The records may have to wait for room in the log. An event loop without tasks cannot wait.
        if class.has_records && cx.shared.vfs.logs_state() && !tasks::attached() {
            super::place::may_wait(cx)?;
        }
        let result = self.execute(cx, number, arguments, reply);
        self.has_changed |= is_change && !matches!(result, Err(Stop::Later));
        result
    }

    /// Checks the place of an operation (RFC 8881 sections 2.10.2 and 18.46.3).
    fn is_in_order(&self, number: Opcode) -> Result<(), Stop> {
        let Position { index, count, .. } = self.position;
        let fail = |status| Err(Stop::Fail(status));
        match number {
            Opcode::Sequence if index > 0 => fail(Nfsstat4::SequencePos),
            Opcode::Sequence => Ok(()),
            Opcode::BindConnToSession if count > 1 => fail(Nfsstat4::NotOnlyOp),
            _ if self.slot.is_some() => Ok(()),
            Opcode::ExchangeId | Opcode::CreateSession | Opcode::DestroySession | Opcode::DestroyClientid
                if count > 1 =>
            {
                fail(Nfsstat4::NotOnlyOp)
            }
            Opcode::ExchangeId
            | Opcode::CreateSession
            | Opcode::DestroySession
            | Opcode::DestroyClientid
            | Opcode::BindConnToSession => Ok(()),
            Opcode::Illegal => fail(Nfsstat4::OpIllegal),
            _ => fail(Nfsstat4::OpNotInSession),
        }
    }

    /// Counts an operation that has its result in the profile.
    pub(super) fn profile(&mut self, shared: &Shared, call: &Call<'_>, number: Opcode) {
        let (moved, has_made) = (self.moved.take(), std::mem::take(&mut self.has_made));
        let Some(kind) = Class::of(number).counted else { return };
        let kind = if has_made { ProfileKind::Create } else { kind };
        let done = Done { kind, failed: self.reply.status() != Nfsstat4::Ok, moved };
        let at = self.current.as_ref().and_then(|current| current.place.admitted());
        shared.profile_nfs4(call, done, at, self.measured.last());
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

    /// Counts a payload of the last result, in bytes, which the reply carries outside of its head. Only one result
    /// may have a payload.
    pub(super) fn set_payload(&mut self, bytes: usize) {
        self.reply.add_payload(bytes);
        self.has_payload = true;
    }

    /// Returns true in a COMPOUND of minor version 2.
    pub(super) fn is_version_2(&self) -> bool {
        self.minor_version >= 2
    }

    /// Returns the minor version.
    pub(super) fn minor(&self) -> u32 {
        self.minor_version
    }

    /// Returns the time at which the event loop or the worker began or went on.
    pub(super) fn now(&self) -> Now {
        self.now
    }

    pub(super) fn xid(&self) -> u32 {
        self.xid
    }
}

/// Appends the successful result of an operation.
pub(super) fn put<T: Encode>(reply: &mut CompoundReply, out: &mut Vec<u8>, number: Opcode, body: &T) {
    reply.start(out, number);
    body.encode(out);
}
