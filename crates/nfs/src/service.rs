//! The service: tries a request on the event loop, else gives it to a worker.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_rpc::{CloseReason, Message, Outcome, Peer, Record, Replies, Reply, Service, Ticket, Workers};
use forebay_runtime::tasks;
use forebay_vfs::{Export, Target, Vfs, Wait};
use forebay_wire::mount3;
use forebay_wire::nfs3::{FileHandle, Nfsstat3, Procedure};
use forebay_wire::rpc::{ReplyHeader, ReplyStatus};
use forebay_wire::xdr::Encode;

use crate::answer::Answer;
use crate::caller::{self, Caller, client_address};
use crate::clients::{ClientStats, Clients};
use crate::dispatch::{Call, Route, Stop, failure, route, success};
use crate::groups::Groups;
use crate::mount::Mounts;
use crate::read::{Pending, TriedRead};
use crate::refusals::{Refusal, Refusals, Tell};
use crate::reply_cache::{CacheLimits, CacheUse, ReplyCache};
use crate::rules::Rules;
use crate::stats::Stats;
use crate::v4::compound::{Compound, Kind, Progress};

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
    /// The duration of leases of NFSv4, if it is served.
    pub nfs4_lease: Option<Duration>,
    /// Bounds of the reply cache.
    pub reply_cache: CacheLimits,
    /// The function called for refused clients: once for each address in ten minutes, and for at most 128 addresses.
    pub refused: Tell,
}

/// A request on its way to a worker.
pub struct Job {
    record: Record,
    pub(crate) ticket: Ticket,
    pub(crate) arrived: Instant,
    /// True if the reply cache knows the request, because it was tried on the event loop.
    begun: bool,
    /// A COMPOUND that was begun on the event loop, and its reply so far.
    compound: Option<(Box<Compound>, Vec<u8>)>,
}

/// NFSv3 and MOUNT v3 for a set of exports.
pub struct Nfs {
    shared: Arc<Shared>,
    /// The workers for READ and COMMIT.
    data: Arc<Workers<Job>>,
    /// The workers for WRITE. Only a WRITE may wait for room in the cache.
    writes: Workers<Job>,
    /// The workers for all other requests: names and attributes do not queue behind slow data.
    names: Workers<Job>,
}

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
    /// The state of NFSv4, if it is served.
    pub(crate) v4: Option<crate::v4::Server>,
}

impl Nfs {
    /// Creates the service and starts the workers.
    pub fn new(vfs: Arc<Vfs>, config: NfsConfig) -> std::io::Result<Self> {
        let v4 = config.nfs4_lease.map(|lease| crate::v4::Server::new(&vfs, lease));
        let shared = Arc::new(Shared {
            vfs,
            rules: Rules::new(config.exports),
            cache: ReplyCache::new(config.reply_cache),
            clients: Clients::default(),
            mounts: Mounts::default(),
            stats: Stats::default(),
            refusals: Refusals::new(config.refused),
            groups: Groups::default(),
            v4,
        });
        let pool = || {
            let shared = shared.clone();
            Workers::new(config.workers, config.worker_queue, config.busy_poll, move |job| {
                shared.stats.busy.fetch_add(1, Ordering::Relaxed);
                shared.run(job);
                shared.stats.busy.fetch_sub(1, Ordering::Relaxed);
            })
        };
        let (data, writes, names) = (pool()?, pool()?, pool()?);
        Ok(Nfs { shared, data: Arc::new(data), writes, names })
    }

    /// Keeps the replies of changes made before this start, as [`Vfs::set_cache`] returned them. Their lifetime begins
    /// now, however long no server ran: their clients could not ask meanwhile.
    pub fn recall(&self, answers: &[Box<[u8]>]) {
        let now = Instant::now();
        for answer in answers.iter().filter_map(|bytes| Answer::decode(bytes)) {
            self.shared.cache.end(answer.client, answer.key, answer.reply, now);
        }
    }

    /// Replaces the rules of the exports; the exports themselves are unchanged. After the return, requests are admitted
    /// by the new rules.
    pub fn set_rules(&self, exports: Vec<forebay_config::Export>) {
        self.shared.rules.replace(exports);
    }

    /// Returns the counters since the start.
    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    /// Returns the counters of refused clients.
    pub fn refusals(&self) -> &Refusals {
        &self.shared.refusals
    }

    /// Returns the use of the reply cache.
    pub fn reply_cache(&self) -> &CacheUse {
        &self.shared.cache.usage
    }

    /// Returns every client address seen, with its counters.
    pub fn clients(&self) -> Vec<(IpAddr, Arc<ClientStats>)> {
        self.shared.clients.all()
    }

    /// Returns the number of requests waiting for a worker.
    pub fn queued(&self) -> usize {
        self.data.queued() + self.writes.queued() + self.names.queued()
    }

    /// Finishes queued requests and ends the workers.
    pub fn stop(&self) {
        self.data.stop();
        self.writes.stop();
        self.names.stop();
    }
}

impl Nfs {
    /// Answers a COMPOUND, or takes it off the event loop.
    fn after_first_try(
        &self,
        mut compound: Box<Compound>,
        progress: Progress,
        message: Message<'_>,
        reply: &mut Reply<'_>,
    ) -> Outcome {
        if progress == Progress::Complete && !compound.has_to_commit() {
            compound.complete(&self.shared, reply.head());
            return Outcome::Reply;
        }
        let head = std::mem::take(reply.head());
        reply.clear();
        let arrived = compound.arrived;
        let (record, ticket) = message.defer();
        self.shared.stats.deferred.fetch_add(1, Ordering::Relaxed);
        match progress {
            Progress::Complete => {
                let mut owned = ticket.reply();
                owned.head().extend_from_slice(&head);
                compound.ticket = Some(ticket);
                compound.commit_and_answer(self.shared.clone(), owned);
            }
            Progress::Later(kind) => {
                let job = Job { record, ticket, arrived, begun: false, compound: Some((compound, head)) };
                let workers = match kind {
                    Kind::Data => &*self.data,
                    Kind::Write => &self.writes,
                    Kind::Names => &self.names,
                };
                self.shared.hand_over(job, workers);
            }
            Progress::Parked => self.shared.done(),
        }
        Outcome::Deferred
    }
}

impl Service for Nfs {
    fn handle(&self, message: Message<'_>, reply: &mut Reply<'_>) -> Outcome {
        let arrived = Instant::now();
        let tried = match self.shared.first_try(&message, reply, arrived) {
            Tried::Done(outcome) => return outcome,
            Tried::Compound(compound, progress) => {
                return self.after_first_try(compound, progress, message, reply);
            }
            tried => tried,
        };
        reply.clear();
        let (record, ticket) = message.defer();
        self.shared.stats.deferred.fetch_add(1, Ordering::Relaxed);
        let job = Job { record, ticket, arrived, begun: false, compound: None };
        match tried {
            Tried::Done(_) | Tried::Compound(..) => {}
            Tried::OnSsd(read) if tasks::attached() => self.shared.read_on_loop(read, job, &self.data),
            Tried::OnSsd(_) | Tried::Data => self.shared.hand_over(job, &self.data),
            Tried::Write if self.shared.vfs.writes_in_memory() => {
                if let Some(job) = self.shared.write_now(job) {
                    self.shared.hand_over(job, &self.writes);
                }
            }
            Tried::Write => self.shared.hand_over(job, &self.writes),
            Tried::Names => self.shared.hand_over(job, &self.names),
        }
        Outcome::Deferred
    }

    fn admits(&self, address: IpAddr) -> bool {
        self.shared.rules.now().iter().any(|export| export.rule_for(address).is_some())
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

    fn detach(&self) {
        tasks::detach();
    }
}

/// The result of trying a request on the event loop.
enum Tried {
    Done(Outcome),
    /// A COMPOUND, and its state.
    Compound(Box<Compound>, Progress),
    /// The request needs only data on the cache devices.
    OnSsd(Pending),
    /// The request has to wait for file data.
    Data,
    /// The request is a WRITE, which has to wait for file data unless the cache takes it at once.
    Write,
    /// The request has to wait for something else.
    Names,
}

/// An inode that a call names, reached by an admitted caller.
#[derive(Clone)]
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
    /// Answers on the event loop if the request does not have to wait.
    fn first_try(&self, message: &Message<'_>, reply: &mut Reply<'_>, arrived: Instant) -> Tried {
        match route(message.bytes(), message.peer(), self.v4.is_some()) {
            Route::Nfs(procedure, call) => {
                self.clients.count_request(call.peer);
                let looked = match procedure {
                    Procedure::Read => self.read(&call, reply, Wait::No),
                    _ => self.look(procedure, &call, reply, Wait::No).map(TriedRead::Done),
                };
                match looked {
                    Ok(TriedRead::OnSsd(pending)) => Tried::OnSsd(pending),
                    Ok(TriedRead::Done(status)) => {
                        self.stats.answered(procedure, arrived.elapsed(), status != Nfsstat3::Ok);
                        Tried::Done(Outcome::Reply)
                    }
                    Err(Stop::Garbage) => {
                        garbage(reply, call.xid());
                        Tried::Done(Outcome::Reply)
                    }
                    Err(_) if procedure == Procedure::Write => Tried::Write,
                    Err(_) if matches!(procedure, Procedure::Read | Procedure::Commit) => Tried::Data,
                    Err(_) => Tried::Names,
                }
            }
            Route::Nfs4(0, call) => {
                success(reply.head(), call.xid());
                Tried::Done(Outcome::Reply)
            }
            Route::Nfs4(_, call) => {
                self.clients.count_request(call.peer);
                let Some(server) = self.v4.as_ref() else { return Tried::Done(Outcome::Close) };
                let Some(mut compound) = Compound::begin(&call, reply.head(), arrived) else {
                    reply.clear();
                    garbage(reply, call.xid());
                    return Tried::Done(Outcome::Reply);
                };
                let progress = compound.run(self, server, &call, message.bytes(), reply, Wait::No);
                Tried::Compound(compound, progress)
            }
            Route::Mount(mount3::Procedure::Null, call) => {
                success(reply.head(), call.xid());
                Tried::Done(Outcome::Reply)
            }
            Route::Mount(..) => Tried::Names,
            Route::Answer(header) => {
                if matches!(header.status, ReplyStatus::AuthError(_)) {
                    self.refusals.add(message.peer().addr.ip(), Refusal::Auth);
                }
                header.encode(reply.head());
                Tried::Done(Outcome::Reply)
            }
            Route::Close => Tried::Done(Outcome::Close),
        }
    }

    /// Tries a WRITE on the event loop; returns the job if the WRITE would have to wait.
    fn write_now(self: &Arc<Self>, job: Job) -> Option<Job> {
        let Job { record, ticket, arrived, begun, compound } = job;
        let peer = ticket.peer().clone();
        let back = match route(&record, &peer, self.v4.is_some()) {
            Route::Nfs(procedure, call) => self.change(procedure, &call, (ticket, arrived, begun), Wait::No),
            // The event loop has found a WRITE in the record.
            Route::Nfs4(..) | Route::Mount(..) | Route::Answer(_) | Route::Close => Some(ticket),
        };
        back.map(|ticket| Job { record, ticket, arrived, begun: true, compound })
    }

    /// Answers on a worker, waiting as long as necessary.
    fn run(self: &Arc<Self>, job: Job) {
        let Job { record, ticket, arrived, begun, compound } = job;
        let peer = ticket.peer().clone();
        match route(&record, &peer, self.v4.is_some()) {
            Route::Nfs(procedure, call) if is_change(procedure) => {
                self.change(procedure, &call, (ticket, arrived, begun), Wait::Yes);
            }
            Route::Nfs(procedure, call) => {
                let mut reply = ticket.reply();
                let status = match self.look(procedure, &call, &mut reply, Wait::Yes) {
                    Ok(status) => status,
                    Err(Stop::Garbage) => {
                        reply.clear();
                        garbage(&mut reply, call.xid());
                        Nfsstat3::Inval
                    }
                    Err(stop) => {
                        reply.clear();
                        let status = if let Stop::Fail(status) = stop { status } else { Nfsstat3::Jukebox };
                        failure(reply.head(), call.xid(), procedure, status);
                        status
                    }
                };
                self.stats.answered(procedure, arrived.elapsed(), status != Nfsstat3::Ok);
                self.send(ticket, reply);
            }
            Route::Mount(procedure, call) => {
                let mut reply = ticket.reply();
                if self.mount(procedure, &call, reply.head()).is_err() {
                    reply.clear();
                    garbage(&mut reply, call.xid());
                }
                self.send(ticket, reply);
            }
            Route::Nfs4(_, call) => {
                let (Some((mut compound, head)), Some(server)) = (compound, self.v4.as_ref()) else {
                    return self.done();
                };
                let mut reply = ticket.reply();
                reply.head().extend_from_slice(&head);
                compound.ticket = Some(ticket);
                match compound.run(self, server, &call, &record, &mut reply, Wait::Yes) {
                    Progress::Complete => compound.commit_and_answer(self.clone(), reply),
                    Progress::Parked | Progress::Later(_) => self.done(),
                }
            }
            // The event loop has answered these routes.
            Route::Answer(_) | Route::Close => self.done(),
        }
    }

    /// Gives the job to a worker.
    pub(crate) fn hand_over(self: &Arc<Self>, job: Job, workers: &Workers<Job>) {
        if let Err(job) = workers.submit(job) {
            self.turn_away(job);
        }
    }

    /// Turns a request away because too many wait already: the client shall try later (RFC 1813 NFS3ERR_JUKEBOX).
    fn turn_away(self: &Arc<Self>, job: Job) {
        self.stats.rejected.fetch_add(1, Ordering::Relaxed);
        if let Some((mut compound, head)) = job.compound {
            let mut reply = job.ticket.reply();
            reply.head().extend_from_slice(&head);
            compound.ticket = Some(job.ticket);
            return compound.turn_away(self, &job.record, reply);
        }
        let mut reply = job.ticket.reply();
        match route(&job.record, job.ticket.peer(), self.v4.is_some()) {
            Route::Nfs(procedure, call) => {
                failure(reply.head(), call.xid(), procedure, Nfsstat3::Jukebox);
                if job.begun {
                    self.give_up(procedure, &call, &mut reply);
                }
            }
            Route::Mount(_, call) => {
                ReplyHeader { xid: call.xid(), status: ReplyStatus::SystemErr }.encode(reply.head());
            }
            Route::Nfs4(..) | Route::Answer(_) | Route::Close => return self.done(),
        }
        self.send(job.ticket, reply);
    }

    /// Sends the reply to a deferred request.
    pub(crate) fn send(&self, ticket: Ticket, reply: forebay_rpc::OwnedReply) {
        self.done();
        ticket.send(reply);
    }

    /// Counts one deferred request less.
    pub(crate) fn done(&self) {
        self.stats.deferred.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the inode that `handle` names and the caller, if the export's rules admit the caller.
    pub(crate) fn at(&self, call: &Call<'_>, handle: &FileHandle, wait: Wait) -> Result<At, Stop> {
        let target = self.vfs.target(handle.as_bytes(), wait)?;
        let caller = self.admit(call, &target.export, wait)?;
        Ok(At { target, caller })
    }

    /// Returns the caller, if the export's rules admit it.
    pub(crate) fn admit(&self, call: &Call<'_>, export: &Export, wait: Wait) -> Result<Caller, Stop> {
        let caller = caller::admit(self, export.id, call.peer, &call.header.cred, wait)?;
        caller.ok_or_else(|| self.refuse(export.id, call.peer))
    }
}

impl Shared {
    /// Counts the refusal of a client that no rule of the export lets in, and returns the error.
    fn refuse(&self, export: u32, peer: &Peer) -> Stop {
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
}

/// Returns true if a procedure changes something (or, for COMMIT, waits for stable storage).
fn is_change(procedure: Procedure) -> bool {
    use Procedure::{Commit, Create, Link, Mkdir, Mknod, Remove, Rename, Rmdir, Setattr, Symlink, Write};
    matches!(
        procedure,
        Commit | Create | Link | Mkdir | Mknod | Remove | Rename | Rmdir | Setattr | Symlink | Write
    )
}

pub(crate) fn garbage(reply: &mut Reply<'_>, xid: u32) {
    reply.clear();
    ReplyHeader { xid, status: ReplyStatus::GarbageArgs }.encode(reply.head());
}
