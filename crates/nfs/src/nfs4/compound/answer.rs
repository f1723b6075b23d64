//! The answer to a COMPOUND, to its retransmissions, and to a request that is turned away.

use std::sync::Arc;

use forebay_clientstate::{Durability, Effects, Now, REPLY_MAX, Session, Waiter};
use forebay_rpc::OwnedReply;
use forebay_wire::nfs4::{CompoundReply, Nfsstat4, Op, Opcode, Operations};

use super::{Compound, InSlot};
use crate::nfs4::server::Server;
use crate::result::success;
use crate::shared::Shared;

/// A reply that no slot keeps: its data is not in the buffer.
static NOT_KEPT: [u8; REPLY_MAX + 1] = [0; REPLY_MAX + 1];

impl Compound {
    /// Replaces all results by the reply that the slot has kept.
    pub(in crate::nfs4) fn replay(&self, out: &mut Vec<u8>, kept: &[u8]) {
        out.truncate(self.body_at);
        out.extend_from_slice(kept);
    }

    /// Answers a COMPOUND for which no worker is free: the client shall try the next operation later.
    pub(crate) fn turn_away(mut self: Box<Self>, shared: &Arc<Shared>, record: &[u8], mut reply: OwnedReply) {
        let next = Operations::<Op<'_>>::resume(record, self.position).peek().unwrap_or(Opcode::Illegal);
        self.reply.push_failure(reply.head(), next, Nfsstat4::Delay);
        self.commit_and_answer(shared.clone(), reply);
    }

    /// Answers through the ticket.
    pub(super) fn answer(mut self: Box<Self>, shared: &Shared, mut reply: OwnedReply) {
        if let Some(server) = shared.serves_nfs4() {
            self.complete(shared, server, reply.head(), server.now());
        }
        match self.ticket.take() {
            Some(ticket) => shared.send(ticket, reply),
            None => shared.done(),
        }
        if let (Some(path), Some(server)) = (&self.opened, shared.serves_nfs4()) {
            server.callbacks.open(path);
        }
    }

    /// Ends the request in its slot, and answers its retransmissions. `head` is the reply up to a payload. Returns the
    /// session of the request.
    pub(crate) fn complete(
        &mut self,
        shared: &Shared,
        server: &Server,
        head: &[u8],
        now: Now,
    ) -> Option<Arc<Session>> {
        let in_slot = self.slot.take();
        if let Some(InSlot { session, slot, .. }) = &in_slot {
            let logged = self.is_logged.then_some(Durability::Loose);
            // Its record is in the log already.
            let fx = &mut Effects::default();
            let waiters = session.complete(*slot, self.kept_reply(head), logged, now, fx);
            // Nearly no request has a retransmission.
            if !waiters.is_empty() {
                self.answer_again(shared, server, head, &waiters);
            }
        }
        self.measured.finish(&shared.stats, false);
        server.act(&mut self.effects);
        server.tick(&shared.vfs, now);
        in_slot.map(|in_slot| in_slot.session)
    }

    /// Answers retransmissions of the request.
    fn answer_again(&self, shared: &Shared, server: &Server, head: &[u8], waiters: &[Waiter]) {
        for (ticket, xid) in server.take_waiting(waiters) {
            let mut again = ticket.reply();
            success(again.head(), xid);
            if self.has_payload {
                let reply = &mut CompoundReply::begin(again.head(), 0, &[]);
                reply.push_failure(again.head(), Opcode::Sequence, Nfsstat4::Delay);
            } else {
                again.head().extend_from_slice(head.get(self.body_at..).unwrap_or_default());
            }
            shared.send(ticket, again);
        }
    }

    /// Returns the results that the slot keeps, of a reply up to its payload.
    pub(in crate::nfs4) fn kept_reply<'a>(&self, head: &'a [u8]) -> &'a [u8] {
        if self.has_payload { &NOT_KEPT } else { head.get(self.body_at..).unwrap_or_default() }
    }
}
