//! The service: attempts a request on the event loop, else gives it to a worker.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_profile::{Recording, Snapshot};
use forebay_rpc::{CloseReason, Handled, Matched, Message, Peer, Replies, Reply, Service, Workers};
use forebay_runtime::tasks;
use forebay_vfs::{Handle, Outcome, STATE_MAX, Vfs};
use forebay_wire::rpc::{AuthStat, MessageKind, ReplyHeader, ReplyStatus, encode_starttls, message_kind};
use forebay_wire::rpcsec_gss::is_gss_call;
use forebay_wire::xdr::Encode;

use crate::answer::Answer;
use crate::caller::client_address;
use crate::clients::{ClientStats, Clients};
use crate::groups::Groups;
use crate::mount::Mounts;
use crate::nfs4;
use crate::nlm::{LockConfig, Locks};
use crate::owners::Owners;
use crate::profiled::Profiled;
use crate::program::{Kind, Served};
use crate::refusals::{Refusal, Refusals, Tell};
use crate::reply_cache::{CacheLimits, CacheUse, ReplyCache};
use crate::request::{Head, Rejected, Request};
use crate::rules::Rules;
use crate::secured::Secured;
use crate::shared::Shared;
use crate::stats::Stats;

/// The parameters of the service besides the file system.
pub struct NfsConfig {
    /// The exports with their rules; their ids equal those of the file system's exports.
    pub exports: Vec<forebay_config::Export>,
    /// Threads for requests that wait for a disk. Reads, writes, and names with attributes have this many threads each.
    pub workers: usize,
    /// The number of requests of each kind that may wait for a thread.
    pub worker_queue: usize,
    /// How long an idle worker polls before it sleeps.
    pub busy_poll: Duration,
    /// True if NFSv4 is served.
    pub nfs4: bool,
    /// The lock manager of NFSv3, if it is served.
    pub locks: Option<LockConfig>,
    /// The duration of leases and of grace periods.
    pub lease: Duration,
    /// The state directory, for the clients of NFSv4 that may reclaim state.
    pub state_dir: Option<PathBuf>,
    /// True if the operations of clients are counted by client, export, user and file.
    pub profile: bool,
    /// The domain of names of owners and groups in NFSv4; `None` for numbers.
    pub idmap_domain: Option<String>,
    /// Bounds of the reply cache.
    pub reply_cache: CacheLimits,
    /// The function called for refused clients: once for each address in ten minutes, and for at most 128 addresses.
    pub refused: Tell,
}

/// NFSv3, MOUNT v3 and NFSv4 for a set of exports.
pub struct Nfs {
    pub(crate) shared: Arc<Shared>,
    pub(crate) pools: Pools,
    /// RPCSEC_GSS, if it is served.
    pub(crate) secured: OnceLock<Secured>,
}

/// The workers for each [`Kind`].
#[derive(Clone)]
pub(crate) struct Pools {
    data: Arc<Workers<Request>>,
    writes: Arc<Workers<Request>>,
    names: Arc<Workers<Request>>,
}

impl Pools {
    /// Returns the workers for requests of this kind.
    pub(crate) fn of(&self, kind: Kind) -> &Arc<Workers<Request>> {
        match kind {
            Kind::Data => &self.data,
            Kind::Writes => &self.writes,
            Kind::Names => &self.names,
        }
    }

    /// Returns the number of requests of each kind that may wait.
    pub(crate) fn limit(&self) -> usize {
        self.data.limit()
    }
}

impl Nfs {
    /// Creates the service and starts the workers.
    pub fn new(vfs: Arc<Vfs>, config: NfsConfig) -> std::io::Result<Self> {
        let locks = config.locks.as_ref().map(Locks::open).transpose()?;
        let served = Served { nfs4: config.nfs4, locks: locks.is_some() };
        let known = config.state_dir.filter(|_| served.nfs4).map(|dir| dir.join("nfs4-clients"));
        let start = nfs4::Start { lease: config.lease, known };
        let state = || nfs4::Server::new(&vfs, start);
        let nfs4 = (served.nfs4 || served.locks).then(state).transpose()?;
        let shared = Arc::new(Shared {
            vfs,
            rules: Rules::new(config.exports),
            cache: ReplyCache::new(config.reply_cache),
            clients: Clients::default(),
            mounts: Mounts::default(),
            stats: Stats::default(),
            profiled: Profiled::new(config.profile),
            refusals: Refusals::new(config.refused),
            groups: Groups::default(),
            owners: Owners::default(),
            nfs4,
            locks,
            served,
        });
        shared.owners.set_domain(config.idmap_domain.as_deref());
        if let Some(server) = &shared.nfs4 {
            server.remover.start(&shared)?;
            server.copier.start(&shared)?;
        }
        if let (Some(locks), Some(server)) = (&shared.locks, &shared.nfs4) {
            locks.start(server, &shared)?;
        }
        let weak = Arc::downgrade(&shared);
        shared.vfs.tell_external_changes(&Arc::new(move |file: Option<&Handle>| {
            if let Some(shared) = weak.upgrade() {
                shared.host_changed(file);
            }
        }));
        let pool = || {
            let shared = shared.clone();
            Workers::new(config.workers, config.worker_queue, config.busy_poll, move |request: Request| {
                shared.stats.busy.fetch_add(1, Ordering::Relaxed);
                request.head.program.carry_out(&shared, request);
                shared.stats.busy.fetch_sub(1, Ordering::Relaxed);
            })
            .map(Arc::new)
        };
        let pools = Pools { data: pool()?, writes: pool()?, names: pool()? };
        Ok(Nfs { shared, pools, secured: OnceLock::new() })
    }

    /// Keeps the replies of changes made before this start, and the state of NFSv4 clients, as [`Vfs::set_cache`]
    /// returned them. Their lifetime begins now, however long no server ran: their clients could not ask meanwhile.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub fn recall(&self, answers: &[Box<[u8]>]) -> std::io::Result<()> {
        let is_lost = self.shared.vfs.state_is_lost();
        if is_lost {
            self.shared.lose_locks()?;
        }
        let now = Instant::now();
        for answer in answers.iter().filter_map(|bytes| Answer::decode(bytes)) {
            self.shared.cache.end(answer.client, answer.key, answer.reply, now);
        }
        if let Some(nfs4) = &self.shared.nfs4 {
            let key_of = |handle: &[u8]| self.shared.file_key(handle);
            nfs4.recover(answers.iter().map(|bytes| &**bytes), &key_of, is_lost, self.has_lost_locks());
        }
        if !is_lost {
            self.shared.keep_lock_hosts()?;
        }
        let weak = Arc::downgrade(&self.shared);
        self.shared.vfs.keep_state(Box::new(move |number, durable| {
            let Some(shared) = weak.upgrade() else { return Vec::new() };
            let nfs4 = shared.nfs4.as_ref().map(|nfs4| nfs4.snapshot(number, durable));
            let mut snapshot = nfs4.unwrap_or_default();
            let answers = shared
                .cache
                .snapshot(durable, Instant::now())
                .into_iter()
                .map(|(client, key, reply)| Answer { client, key, reply: &reply }.encode());
            let short = answers.filter(|answer| answer.len() <= STATE_MAX);
            snapshot.extend(short.map(|answer| (number(), answer)));
            snapshot
        }));
        Ok(())
    }

    /// Returns true if hosts had locks that this server does not have: there is a grace period for them.
    fn has_lost_locks(&self) -> bool {
        self.shared.locks.as_ref().is_some_and(Locks::has_hosts_of_before)
    }

    /// Prepares for clients, after [`Nfs::recall`] if there is a cache.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub fn begin(&self) -> std::io::Result<()> {
        if !self.shared.vfs.logs_state() {
            self.shared.lose_locks()?;
        }
        let Some(server) = &self.shared.nfs4 else { return Ok(()) };
        server.begin(&self.shared.vfs, self.has_lost_locks())?;
        // The log may have delegations of files in exports that had some in the last run.
        self.shared.recall_undelegated();
        Ok(())
    }

    /// Removes the files that earlier runs have kept for clients which are gone, after [`Nfs::begin`] and before any
    /// request.
    ///
    /// # Errors
    /// The directory of kept files in this export cannot be read.
    pub fn remove_unopened_kept(&self) -> Result<(), (PathBuf, forebay_vfs::Error)> {
        self.shared.vfs.remove_unopened_kept()
    }

    /// Replaces the rules of the exports. After the return, requests are admitted by the new rules. Delegations of
    /// files in exports that have none any more are being recalled.
    pub fn set_rules(&self, exports: Vec<forebay_config::Export>) {
        self.shared.rules.replace(exports);
        self.shared.recall_undelegated();
    }

    /// Changes the domain of names of owners and groups in NFSv4. `None` is for numbers.
    pub fn set_idmap_domain(&self, domain: Option<&str>) {
        self.shared.owners.set_domain(domain);
    }

    /// Makes the directories above the exports lead to those that `vfs` has in service now.
    pub fn exports_changed(&self) {
        self.shared.nfs4.iter().for_each(|server| server.exports_changed(&self.shared.vfs));
    }

    /// Changes the number of requests of each kind that may wait for a thread, and the bounds of the reply cache.
    pub fn set_limits(&self, worker_queue: usize, reply_cache: CacheLimits) {
        for kind in [Kind::Data, Kind::Writes, Kind::Names] {
            self.pools.of(kind).set_limit(worker_queue);
        }
        self.shared.cache.set_limits(reply_cache);
    }

    /// Returns the counters since the start.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// Returns what clients did, with the `top` busiest clients, exports, users and files. Its times count from the
    /// returned moment.
    pub fn profile(&self, top: usize) -> (Snapshot, Instant) {
        self.shared.profiled.snapshot(top)
    }

    /// Begins to record every operation that is counted. Returns none if a trace is being recorded already.
    pub fn record_trace(&self) -> Option<Recording<'_>> {
        self.shared.profiled.profile.record()
    }

    /// Forgets what clients did so far.
    pub fn reset_profile(&self) {
        self.shared.profiled.reset();
    }

    /// Begins or ends counting what clients do.
    pub fn set_profile(&self, enabled: bool) {
        self.shared.profiled.profile.set_enabled(enabled);
    }

    /// Returns true if what clients do is counted.
    pub fn has_profile(&self) -> bool {
        self.shared.profiled.profile.is_enabled()
    }

    /// Returns the counters of refused clients.
    pub fn refusals(&self) -> &Refusals {
        &self.shared.refusals
    }

    /// Returns the use of the reply cache.
    pub fn reply_cache(&self) -> &CacheUse {
        &self.shared.cache.usage
    }

    /// Returns the numbers of the clients' state, if NFSv4 or locks are served.
    pub fn state_numbers(&self) -> Option<nfs4::StateNumbers> {
        self.shared.nfs4.as_ref().map(nfs4::Server::numbers)
    }

    /// Returns every client address seen, with its counters.
    pub fn clients(&self) -> Vec<(IpAddr, Arc<ClientStats>)> {
        self.shared.clients.all()
    }

    /// Returns the number of requests waiting for a worker.
    pub fn queued(&self) -> usize {
        [Kind::Data, Kind::Writes, Kind::Names].map(|kind| self.pools.of(kind).queued()).iter().sum()
    }

    /// Tells the hosts that had locks when the last server ended that this one has started. Does not wait for them.
    pub fn notify_hosts(&self) {
        self.shared.notify_hosts();
    }

    /// Gives a record that is no call to the call-back that waits for it.
    fn callback_reply(&self, message: &Message<'_>) -> Handled {
        let Ok((xid, MessageKind::Reply)) = message_kind(message.bytes()) else { return Handled::Close };
        match message.peer().line.reply(xid, message.bytes()) {
            Matched::Answered => Handled::Silent,
            Matched::Stray => {
                self.shared.stats.stray_replies.fetch_add(1, Ordering::Relaxed);
                Handled::Silent
            }
            Matched::Refused => Handled::Close,
        }
    }

    /// Finishes queued requests and ends the workers.
    pub fn stop(&self) {
        self.shared.nfs4.iter().for_each(|server| server.copier.stop());
        self.shared.locks.iter().for_each(Locks::stop);
        self.secured.get().into_iter().for_each(Secured::stop);
        [Kind::Data, Kind::Writes, Kind::Names].into_iter().for_each(|kind| self.pools.of(kind).stop());
        self.shared.nfs4.iter().for_each(|server| server.remover.stop());
    }
}

/// Answers a client that asks for TLS. A server that cannot begin TLS now answers as to any null call.
fn answer_tls(xid: u32, message: &Message<'_>, reply: &mut Reply<'_>) -> Handled {
    if message.may_start_tls() {
        encode_starttls(xid, reply.head());
        return Handled::StartTls;
    }
    // Inside of TLS there is no second handshake.
    let is_inside = message.peer().security.get().is_some();
    let status = if is_inside { ReplyStatus::AuthError(AuthStat::BadCred) } else { ReplyStatus::Success };
    ReplyHeader { xid, status }.encode(reply.head());
    Handled::Reply
}

impl Service for Nfs {
    fn handle(&self, message: Message<'_>, reply: &mut Reply<'_>) -> Handled {
        let arrived = Instant::now();
        if is_gss_call(message.bytes())
            && let Some(secured) = self.secured.get()
        {
            return secured.take(&self.shared, message, arrived);
        }
        let head = match Head::decode(message.bytes(), self.shared.served) {
            Ok(head) => head,
            Err(Rejected::NotACall) => return self.callback_reply(&message),
            Err(Rejected::With(header)) => {
                if matches!(header.status, ReplyStatus::AuthError(_)) {
                    self.shared.refusals.add(message.peer().addr.ip(), Refusal::Auth);
                }
                header.encode(reply.head());
                return Handled::Reply;
            }
        };
        if head.wants_tls {
            return answer_tls(head.xid, &message, reply);
        }
        let (program, call) = (head.program, head.call(message.bytes(), message.peer()));
        let tried = program.attempt(&self.shared, &call, reply, arrived);
        if let Outcome::Done(()) = tried {
            return Handled::Reply;
        }
        reply.clear();
        let (record, ticket) = message.defer();
        self.shared.stats.deferred.fetch_add(1, Ordering::Relaxed);
        let request = Request { head, record, ticket, arrived, begun: None };
        let workers = self.pools.of(request.head.kind.get());
        match tried {
            Outcome::FromSsd(read) if tasks::attached() => self.shared.read_on_loop(read, request, workers),
            Outcome::Done(()) | Outcome::FromSsd(_) | Outcome::Wait => {
                if let Some(request) = program.attempt_deferred(&self.shared, request) {
                    self.shared.hand_over(request, workers);
                }
            }
        }
        Handled::Deferred
    }

    fn admits(&self, address: IpAddr) -> bool {
        self.shared.rules.now().iter().any(|export| export.may_admit(address))
    }

    fn refused(&self, from: SocketAddr, reason: CloseReason) {
        let why = match reason {
            CloseReason::Stranger => Refusal::Stranger,
            CloseReason::Crowded => Refusal::Crowded,
            _ => Refusal::Full,
        };
        self.shared.refusals.add(from.ip(), why);
    }

    fn connected(&self, peer: &Peer) -> bool {
        self.shared.clients.connected(peer.addr.ip());
        true
    }

    fn disconnected(&self, peer: &Peer, replies: Replies) {
        if let Some(server) = &self.shared.nfs4 {
            server.callbacks.disconnected(peer);
        }
        self.shared.cache.gone(client_address(peer), peer.id, replies);
        self.shared.clients.disconnected(peer.addr.ip());
    }

    fn attach(&self) -> Option<Arc<OwnedFd>> {
        // Without io_uring, workers read from the cache devices.
        tasks::attach().ok()
    }

    fn turn(&self) {
        tasks::turn();
    }

    fn wake_at(&self) -> Option<Instant> {
        tasks::next_timer()
    }

    fn detach(&self) {
        tasks::detach();
    }
}
