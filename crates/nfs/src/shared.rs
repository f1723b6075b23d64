//! The state that event loops and workers share.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_rpc::{OwnedReply, Peer, Ticket, Workers};
use forebay_vfs::{Target, Vfs, Wait};
use forebay_wire::nfs3::{FileHandle, Nfsstat3};

use crate::caller::Caller;
use crate::clients::Clients;
use crate::groups::Groups;
use crate::mount::Mounts;
use crate::refusals::{Refusal, Refusals};
use crate::reply_cache::ReplyCache;
use crate::request::{Call, Request};
use crate::result::Stop;
use crate::rules::Rules;
use crate::stats::Stats;

/// The state that event loops and workers share.
pub(crate) struct Shared {
    pub(crate) vfs: Arc<Vfs>,
    pub(crate) rules: Rules,
    pub(crate) cache: ReplyCache,
    pub(crate) clients: Clients,
    pub(crate) mounts: Mounts,
    pub(crate) stats: Stats,
    pub(crate) refusals: Refusals,
    pub(crate) groups: Groups,
}

/// An inode that a call names, reached by an admitted caller.
pub(crate) struct At {
    pub(crate) target: Target,
    pub(crate) caller: Caller,
}

impl At {
    pub(crate) fn fsid(&self) -> u64 {
        self.target.export.fsid
    }
}

impl Shared {
    /// Returns the inode that `handle` names and the caller, if the export's rules admit the caller.
    pub(crate) fn at(&self, call: &Call<'_>, handle: &FileHandle, wait: Wait) -> Result<At, Stop> {
        let target = self.vfs.target(handle.as_bytes(), wait)?;
        let caller = self.admit(call, target.export.id, wait)?;
        Ok(At { target, caller })
    }

    /// Counts the refusal of a client that no rule of the export lets in, and returns the error.
    pub(crate) fn refuse(&self, export: u32, peer: &Peer) -> Stop {
        self.count_refusal(export, peer);
        Stop::Fail(Nfsstat3::Acces)
    }

    /// Counts a client that no rule of the export lets in.
    pub(crate) fn count_refusal(&self, export: u32, peer: &Peer) {
        let exports = self.rules.now();
        let export = exports.iter().find(|known| known.id == export);
        let port = export.is_some_and(|export| export.rule_for(peer.addr.ip()).is_some());
        self.refusals.add(peer.addr.ip(), if port { Refusal::Port } else { Refusal::Export });
    }

    /// Gives the request to a worker, or turns it away because too many requests wait already.
    pub(crate) fn hand_over(&self, request: Request, workers: &Workers<Request>) {
        if let Err(request) = workers.submit(request) {
            self.stats.rejected.fetch_add(1, Ordering::Relaxed);
            request.head.program.turn_away(self, request);
        }
    }

    /// Sends the reply to a deferred request.
    pub(crate) fn send(&self, ticket: Ticket, reply: OwnedReply) {
        self.done();
        ticket.send(reply);
    }

    /// Counts one deferred request less.
    pub(crate) fn done(&self) {
        self.stats.deferred.fetch_sub(1, Ordering::Relaxed);
    }
}
