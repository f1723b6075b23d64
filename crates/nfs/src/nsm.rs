//! NSM (XNFS chapter 11) as a program of the service: SM_NOTIFY of hosts that have restarted. The status monitor of
//! this host monitors other hosts; the server answers no such request.

use std::net::SocketAddr;

use forebay_wire::nsm::{PROGRAM, Procedure, StatChange, VERSION};
use forebay_wire::rpc::{ReplyHeader, ReplyStatus};
use forebay_wire::xdr::{Decode, Encode};

use crate::request::{Rejected, Request, header};
use crate::result::{garbage, success};
use crate::service::Nfs;
use crate::shared::Shared;

/// Returns true for the procedures that the server answers.
pub(crate) fn is_served(procedure: Procedure) -> bool {
    matches!(procedure, Procedure::Null | Procedure::Notify)
}

impl Shared {
    /// Answers on a worker.
    pub(crate) fn carry_out_nsm(&self, request: Request) {
        let mut reply = request.ticket.reply();
        let call = request.call();
        match call.args::<StatChange<'_>>() {
            Ok(change) => {
                self.host_restarted(call.peer.addr, change.mon_name.0, change.state);
                success(reply.head(), call.xid());
            }
            Err(_) => garbage(&mut reply, call.xid()),
        }
        self.send(request.ticket, reply);
    }

    /// Answers that the server fails: the status monitor repeats the notification.
    pub(crate) fn turn_away_nsm(&self, request: Request) {
        let mut reply = request.ticket.reply();
        ReplyHeader { xid: request.head.xid, status: ReplyStatus::SystemErr }.encode(reply.head());
        self.send(request.ticket, reply);
    }
}

impl Nfs {
    /// Answers a datagram to NSM: the status monitor of Linux sends SM_NOTIFY over UDP. Appends nothing if the bytes
    /// are no call.
    pub fn answer_nsm(&self, call: &[u8], from: SocketAddr, out: &mut Vec<u8>) {
        let (header, mut args) = match header(call) {
            Ok(decoded) => decoded,
            Err(Rejected::NotACall) => return,
            Err(Rejected::With(header)) => return header.encode(out),
        };
        let status = match (header.prog, header.vers, Procedure::try_from(header.proc)) {
            (PROGRAM, VERSION, Ok(Procedure::Null)) => ReplyStatus::Success,
            (PROGRAM, VERSION, Ok(Procedure::Notify)) => match StatChange::decode(&mut args) {
                Ok(change) => {
                    self.shared.host_restarted(from, change.mon_name.0, change.state);
                    ReplyStatus::Success
                }
                Err(_) => ReplyStatus::GarbageArgs,
            },
            (PROGRAM, VERSION, _) => ReplyStatus::ProcUnavail,
            (PROGRAM, ..) => ReplyStatus::ProgMismatch { low: VERSION, high: VERSION },
            _ => ReplyStatus::ProgUnavail,
        };
        ReplyHeader { xid: header.xid, status }.encode(out);
    }
}
