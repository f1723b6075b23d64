//! NFSv4 (RFC 8881) as a program of the service.

use std::sync::Arc;
use std::time::Instant;

use forebay_rpc::{OwnedReply, Reply, Workers};
use forebay_runtime::tasks;
use forebay_vfs::{Outcome, ReadOut, Wait};

use super::compound::{Compound, InSlot, Progress};
use super::recent;
use super::server::Server;
use crate::clients::ClientStats;
use crate::read::SsdReply;
use crate::request::{Call, Request};
use crate::result::{garbage, success};
use crate::shared::Shared;

/// A procedure of NFSv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Procedure {
    Null,
    Compound,
}

impl TryFrom<u32> for Procedure {
    type Error = u32;

    fn try_from(number: u32) -> Result<Self, u32> {
        match number {
            0 => Ok(Procedure::Null),
            1 => Ok(Procedure::Compound),
            number => Err(number),
        }
    }
}

/// A COMPOUND that left the event loop before its reply: its state, and the reply so far.
pub(crate) struct Begun {
    compound: Box<Compound>,
    reply: Vec<u8>,
    progress: Progress,
}

impl Shared {
    /// Executes operations on the event loop until one has to wait. Answers if none has.
    pub(crate) fn attempt_nfs4(
        &self,
        procedure: Procedure,
        call: &Call<'_>,
        reply: &mut Reply<'_>,
        arrived: Instant,
    ) -> Outcome<(), SsdReply> {
        self.clients.count_request(call.peer);
        let (Procedure::Compound, Some(server)) = (procedure, &self.nfs4) else {
            success(reply.head(), call.xid());
            return Outcome::Done(());
        };
        // The COMPOUND stays here unless it leaves the event loop: it is large.
        let mut begun = Compound::begin(call, reply.head(), arrived);
        let Some(compound) = &mut begun else {
            garbage(reply, call.xid());
            return Outcome::Done(());
        };
        let progress = compound.run(self, server, call, reply, Wait::No);
        let is_complete = progress == Progress::Complete;
        if is_complete && (!compound.has_to_commit(self) || compound.log_loosely(self, server, reply.head()))
        {
            let now = compound.now();
            compound.complete(self, server, reply.head(), now).into_iter().for_each(recent::give_session);
            return Outcome::Done(());
        }
        if let Some(InSlot { session, .. }) = &compound.slot {
            recent::give_session(session.clone());
        }
        if let Progress::Later(kind) = progress {
            call.head.kind.set(kind);
        }
        let from_ssd = compound.from_ssd.take().filter(|_| !compound.has_to_commit(self));
        let reply = std::mem::take(reply.head());
        let compound = begun.map(Box::new);
        call.head.compound.set(compound.map(|compound| Begun { compound, reply, progress }));
        match from_ssd {
            Some((read, client)) => Outcome::FromSsd(SsdReply::of_compound(read, client)),
            None => Outcome::Wait,
        }
    }

    /// Completes a COMPOUND whose last operation is a READ, and answers. `reply` has the data as its payload. Returns
    /// the request if the reply has to wait for the log: then a worker reads again.
    pub(crate) fn complete_read_nfs4(
        &self,
        request: Request,
        mut reply: OwnedReply,
        client: &ClientStats,
        out: &ReadOut,
    ) -> Option<Request> {
        let begun = request.head.compound.take()?;
        if begun.compound.has_to_commit(self) {
            request.head.compound.set(Some(begun));
            return Some(request);
        }
        let Begun { mut compound, reply: head, .. } = begun;
        reply.head().extend_from_slice(&head);
        compound.end_read(self, &request.call(), client, &mut reply, out);
        if let Some(server) = &self.nfs4 {
            compound.complete(self, server, reply.head(), server.now());
        }
        self.send(request.ticket, reply);
        None
    }

    /// Makes the effects of a COMPOUND durable that the event loop has executed to its end, and then answers. Returns
    /// the request if an operation has to wait.
    pub(crate) fn attempt_deferred_nfs4(self: &Arc<Self>, request: Request) -> Option<Request> {
        match request.head.compound.take() {
            // The records of clients' state may have to wait for room in the log: a task of the event loop does.
            Some(begun)
                if begun.progress == Progress::Complete
                    && (tasks::attached() || !begun.compound.has_records(self)) =>
            {
                let OffLoop { compound, reply, .. } = take_off_loop(begun, request);
                compound.commit_and_answer(self.clone(), reply);
                None
            }
            begun => {
                request.head.compound.set(begun);
                Some(request)
            }
        }
    }

    /// Goes on at the operation that had to wait, and answers.
    pub(crate) fn carry_out_nfs4(self: &Arc<Self>, request: Request) {
        let (Some(begun), Some(server)) = (request.head.compound.take(), &self.nfs4) else {
            return self.done();
        };
        let (peer, progress) = (request.ticket.peer().clone(), begun.progress);
        let OffLoop { mut compound, kept, mut reply } = take_off_loop(begun, request);
        match progress {
            Progress::Complete => return compound.commit_and_answer(self.clone(), reply),
            Progress::TurnedAway => return compound.turn_away(self, &kept.record, reply),
            Progress::Later(_) | Progress::Parked => {}
        }
        let call = kept.head.call(&kept.record, &peer);
        match compound.run(self, server, &call, &mut reply, Wait::Yes) {
            Progress::Complete => compound.commit_and_answer(self.clone(), reply),
            // The ticket waits for the reply to the running request, and counts as deferred until then.
            Progress::Parked => {}
            // A worker may wait.
            Progress::Later(_) | Progress::TurnedAway => self.done(),
        }
    }

    /// Answers that the next operation shall be tried later.
    ///
    /// The caller is an event loop. It cannot wait for room in the log, so a worker answers if the log has to have
    /// records before the reply. The transport bounds the requests in memory, and so the number of those.
    pub(crate) fn turn_away_nfs4(self: &Arc<Self>, request: Request, workers: &Workers<Request>) {
        let Some(mut begun) = request.head.compound.take() else { return self.done() };
        if begun.compound.has_records(self) {
            begun.progress = Progress::TurnedAway;
            request.head.compound.set(Some(begun));
            if workers.submit_beyond(request.client(), request.bytes(), request).is_err() {
                // The server stops, and its connections end.
                self.done();
            }
            return;
        }
        let OffLoop { compound, kept, reply } = take_off_loop(begun, request);
        compound.turn_away(self, &kept.record, reply);
    }

    /// Returns the state of NFSv4, if it is served.
    pub(crate) fn serves_nfs4(&self) -> Option<&Server> {
        self.nfs4.as_ref()
    }
}

/// The parts of a request besides its ticket.
struct Kept {
    head: crate::request::Head,
    record: forebay_rpc::Record,
}

/// A COMPOUND off the event loop, which has its ticket.
struct OffLoop {
    compound: Box<Compound>,
    kept: Kept,
    /// The reply so far.
    reply: OwnedReply,
}

/// Gives the ticket of the request to its COMPOUND.
fn take_off_loop(begun: Begun, request: Request) -> OffLoop {
    let Begun { mut compound, reply: head, .. } = begun;
    let Request { head: decoded, record, ticket, .. } = request;
    let mut reply = ticket.reply();
    reply.head().extend_from_slice(&head);
    compound.ticket = Some(ticket);
    OffLoop { compound, kept: Kept { head: decoded, record }, reply }
}
