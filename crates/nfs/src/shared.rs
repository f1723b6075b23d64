//! The state that event loops and workers share.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_rpc::{OwnedReply, Ticket, Workers};
use forebay_vfs::Vfs;

use crate::clients::Clients;
use crate::groups::Groups;
use crate::mount::Mounts;
use crate::nfs4;
use crate::nlm::Locks;
use crate::owners::Owners;
use crate::profiled::Profiled;
use crate::program::Served;
use crate::refusals::Refusals;
use crate::reply_cache::ReplyCache;
use crate::request::Request;
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
    pub(crate) profiled: Profiled,
    pub(crate) refusals: Refusals,
    pub(crate) groups: Groups,
    pub(crate) owners: Owners,
    /// The state of clients, if NFSv4 or locks are served. NFSv4 and NLM share it.
    pub(crate) nfs4: Option<nfs4::Server>,
    /// The lock manager, if it is served.
    pub(crate) locks: Option<Locks>,
    pub(crate) served: Served,
}

impl Shared {
    /// Gives the request to a worker, or turns it away because too many requests wait already.
    pub(crate) fn hand_over(self: &Arc<Self>, request: Request, workers: &Workers<Request>) {
        if let Err(request) = workers.submit(request.client(), request.bytes(), request) {
            self.stats.rejected.fetch_add(1, Ordering::Relaxed);
            request.head.program.turn_away(self, request, workers);
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
