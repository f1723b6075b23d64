//! NFSv3 (RFC 1813) as a program of the service.

use std::sync::Arc;
use std::time::Instant;

use forebay_rpc::Reply;
use forebay_vfs::{Outcome, Wait};
use forebay_wire::nfs3::{Nfsstat3, Procedure};

use crate::caller::client_address;
use crate::change::answer_waiting;
use crate::read::SsdReply;
use crate::request::{Call, Request};
use crate::result::{Stop, failure, garbage};
use crate::shared::Shared;

impl Shared {
    /// Answers on the event loop if the request does not have to wait.
    pub(crate) fn attempt_nfs3(
        &self,
        procedure: Procedure,
        call: &Call<'_>,
        reply: &mut Reply<'_>,
        arrived: Instant,
    ) -> Outcome<(), SsdReply> {
        self.clients.count_request(call.peer);
        let tried = match procedure {
            Procedure::Read => self.read(call, reply, Wait::No),
            _ if is_change(procedure) => return Outcome::Wait,
            _ => self.look(procedure, call, reply, Wait::No).map(Outcome::Done),
        };
        match tried {
            Ok(Outcome::Done(status)) => {
                self.stats.answered(procedure, arrived.elapsed(), status != Nfsstat3::Ok);
                self.profile_nfs3(call, procedure, status != Nfsstat3::Ok, arrived);
                Outcome::Done(())
            }
            Ok(Outcome::FromSsd(read)) => Outcome::FromSsd(read),
            Err(Stop::Garbage) => {
                garbage(reply, call.xid());
                Outcome::Done(())
            }
            Ok(Outcome::Wait) | Err(Stop::Later | Stop::Fail(_)) => Outcome::Wait,
        }
    }

    /// Answers on a worker.
    pub(crate) fn carry_out_nfs3(self: &Arc<Self>, procedure: Procedure, request: Request) {
        if is_change(procedure) {
            self.change(procedure, request, Wait::Yes);
            return;
        }
        let xid = request.head.xid;
        let mut reply = request.ticket.reply();
        let status = match self.look(procedure, &request.call(), &mut reply, Wait::Yes) {
            Ok(status) => status,
            Err(Stop::Garbage) => {
                garbage(&mut reply, xid);
                Nfsstat3::Inval
            }
            Err(stop) => {
                reply.clear();
                let status = if let Stop::Fail(status) = stop { status } else { Nfsstat3::Jukebox };
                failure(reply.head(), xid, procedure, status);
                status
            }
        };
        self.stats.answered(procedure, request.arrived.elapsed(), status != Nfsstat3::Ok);
        self.profile_nfs3(&request.call(), procedure, status != Nfsstat3::Ok, request.arrived);
        self.send(request.ticket, reply);
    }

    /// Answers with NFS3ERR_JUKEBOX. Retransmissions of a change that wait for its reply get this reply too.
    pub(crate) fn turn_away_nfs3(&self, procedure: Procedure, request: Request) {
        let mut reply = request.ticket.reply();
        failure(reply.head(), request.head.xid, procedure, Nfsstat3::Jukebox);
        if let Some(key) = request.begun {
            answer_waiting(self.cache.abandon(client_address(request.ticket.peer()), key), &mut reply);
        }
        self.send(request.ticket, reply);
    }
}

/// Returns true if a procedure changes something (or, for COMMIT, waits for stable storage).
fn is_change(procedure: Procedure) -> bool {
    use Procedure::{Commit, Create, Link, Mkdir, Mknod, Remove, Rename, Rmdir, Setattr, Symlink, Write};
    matches!(
        procedure,
        Commit | Create | Link | Mkdir | Mknod | Remove | Rename | Rmdir | Setattr | Symlink | Write
    )
}
