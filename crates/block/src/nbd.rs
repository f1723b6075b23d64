//! The service that the transport calls: negotiation, reads from memory at once, all other requests as futures of the
//! event loop.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use forebay_rpc::{CloseReason, Handled, Message, Peer, Reply, Service, Workers};
use forebay_runtime::{block_on, tasks};
use forebay_volume::disk::Disks;
use forebay_wire::nbd::{
    COMPACT_REQUEST, EXTENDED_REQUEST, OPTION_HEADER, OptionHeader, Request, encode_data_head, encode_error,
};

use crate::answer::{Job, Unanswered, error_code};
use crate::export::Export;
use crate::negotiation::{Negotiation, Next, Tls};
use crate::refused::{Refusals, Tell};
use crate::request::{Action, check};
use crate::session::Session;

/// The longest READ in bytes that an event loop copies from memory. A longer one would delay other clients.
const COPIED: usize = 1 << 20;
/// Threads for requests that the event loops cannot carry out.
const THREADS: usize = 4;
/// The pause of a worker before it looks for memory again.
const PAUSE: Duration = Duration::from_millis(5);

/// The conditions for clients on TCP. Clients of Unix sockets need neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    /// True if clients on TCP have to begin TLS before anything else.
    pub needs_tls: bool,
    /// True if clients with TLS have to show a certificate.
    pub needs_certificate: bool,
}

/// The numbers of requests since the start.
#[derive(Debug, Default)]
pub struct Counts {
    /// READs answered with data.
    pub reads: AtomicU64,
    /// Bytes of these READs.
    pub bytes_read: AtomicU64,
    /// WRITEs carried out.
    pub writes: AtomicU64,
    /// Bytes of these WRITEs.
    pub bytes_written: AtomicU64,
    /// FLUSHes carried out.
    pub flushes: AtomicU64,
    /// Requests answered with an error.
    pub errors: AtomicU64,
}

/// The service of NBD.
pub struct Nbd {
    disks: Arc<dyn Disks>,
    policy: Policy,
    counts: Arc<Counts>,
    refusals: Refusals,
    workers: Arc<Workers<Job>>,
}

impl Nbd {
    /// Returns the service for these devices. Refused clients are told to `tell`.
    ///
    /// # Errors
    /// The system has no threads left.
    pub fn new(disks: Arc<dyn Disks>, policy: Policy, tell: Tell) -> std::io::Result<Arc<Self>> {
        let workers = Arc::new(Workers::new(THREADS, 0, Duration::ZERO, wait_and_answer)?);
        let refusals = Refusals::new(tell);
        Ok(Arc::new(Self { disks, policy, counts: Arc::default(), refusals, workers }))
    }

    /// Returns the counters.
    pub fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    /// Finishes the requests of the workers. For the time after the event loops have ended.
    pub fn stop(&self) {
        self.workers.stop();
    }

    /// Handles a message before the transmission: the client's flags first, then options. The result says how the
    /// connection goes on.
    fn negotiate(&self, session: &Session, message: &Message<'_>, out: &mut Vec<u8>) -> Handled {
        let bytes = message.bytes();
        let Some(negotiation) = session.negotiation.get() else {
            let flags = bytes.first_chunk().and_then(|flags| Negotiation::new(u32::from_be_bytes(*flags)));
            let Some(begun) = flags else { return Handled::Close };
            // The first message of a connection is handled once.
            let _ = session.negotiation.set(Mutex::new(begun));
            return Handled::Silent;
        };
        let Ok(header) = OptionHeader::decode(bytes) else { return Handled::Close };
        let (tls, data) = (self.tls(message), &bytes[OPTION_HEADER..]);
        match negotiation.lock().answer(header, data, tls, &*self.disks, out) {
            Next::Option => Handled::Reply,
            Next::Tls => Handled::StartTls,
            Next::Transmission(export) => {
                // The negotiation ends once.
                let _ = session.export.set(Arc::new(export));
                Handled::Reply
            }
            Next::End => Handled::Finish,
            Next::Drop => Handled::Close,
        }
    }

    /// Returns the state of TLS on the connection, against the rules of this door. A local socket needs no TLS.
    fn tls(&self, message: &Message<'_>) -> Tls {
        let peer = message.peer();
        match peer.security.get() {
            Some(security) if self.policy.needs_certificate && security.client.is_none() => Tls::Anonymous,
            Some(_) => Tls::Secured,
            None if self.policy.needs_tls && !peer.is_local => Tls::Forced,
            None if message.may_start_tls() => Tls::Offered,
            None => Tls::None,
        }
    }

    /// Answers a READ from memory, and a request that is refused, at once. A future or a worker carries out any other
    /// request of an attached client.
    fn transmit(&self, export: &Arc<Export>, message: Message<'_>, reply: &mut Reply<'_>) -> Handled {
        let is_extended = export.style.is_extended();
        let Ok(request) = Request::decode(message.bytes(), is_extended) else { return Handled::Close };
        let id = (request.cookie, request.offset);
        let refused = |(error, text): (_, &str), reply: &mut Reply<'_>| {
            self.counts.errors.fetch_add(1, Relaxed);
            reply.clear();
            encode_error(export.style, id, error, text, reply.head());
            Handled::Reply
        };
        let action = match check(export, export.size(), &request) {
            Ok(action) => action,
            Err(error) => return refused(error, reply),
        };
        match action {
            Action::Disconnect => return Handled::Finish,
            Action::Read { len } => match self.read_now(export, request.offset, len, reply) {
                Ok(true) => {
                    encode_data_head(export.style, id, len as u64, reply.head());
                    return Handled::Reply;
                }
                Ok(false) => reply.clear(),
                Err(error) => return refused(error, reply),
            },
            _ => {}
        }
        let memory = action.memory(request.length);
        let (record, ticket) = message.defer_for(memory);
        let (export, counts) = (export.clone(), self.counts.clone());
        let payload = if is_extended { EXTENDED_REQUEST } else { COMPACT_REQUEST };
        self.carry_out(Job { export, counts, request, action, record, payload, ticket, held: None });
        Handled::Deferred
    }

    /// Reads from memory into the reply. Returns false if a device or more memory is needed.
    fn read_now(
        &self,
        export: &Export,
        offset: u64,
        len: usize,
        reply: &mut Reply<'_>,
    ) -> Result<bool, crate::request::Refused> {
        if len > COPIED {
            return Ok(false);
        }
        let payload = reply.payload(len);
        if payload.capacity() < len {
            return Ok(false);
        }
        let read = export.disk.try_read(offset, &mut payload.spare_mut()[..len]).map_err(error_code)?;
        if read {
            payload.set_len(len);
            self.counts.reads.fetch_add(1, Relaxed);
            self.counts.bytes_read.fetch_add(len as u64, Relaxed);
        }
        Ok(read)
    }

    /// Carries out a request on this event loop; on a worker without io_uring or if memory is short.
    fn carry_out(&self, job: Job) {
        if !tasks::attached() {
            self.hand_over(job);
            return;
        }
        let workers = self.workers.clone();
        tasks::spawn(async move {
            if let Err(Unanswered(job)) = job.answer().await {
                job.submit(&workers);
            }
        });
    }

    fn hand_over(&self, job: Job) {
        job.submit(&self.workers);
    }
}

/// Answers on a worker. Waits until there is memory for the request and its reply.
fn wait_and_answer(mut job: Job) {
    loop {
        match block_on(job.answer()) {
            Ok(()) => return,
            Err(Unanswered(again)) if again.ticket.is_wanted() => job = again,
            Err(_) => return,
        }
        std::thread::sleep(PAUSE);
    }
}

impl Service for Nbd {
    fn handle(&self, message: Message<'_>, reply: &mut Reply<'_>) -> Handled {
        let Some(session) = message.session::<Session>() else { return Handled::Close };
        match session.export.get().cloned() {
            Some(export) => self.transmit(&export, message, reply),
            None => self.negotiate(session, &message, reply.head()),
        }
    }

    fn refused(&self, from: SocketAddr, reason: CloseReason) {
        self.refusals.add(from, reason);
    }

    fn session(&self, _: &Peer) -> Option<Arc<dyn forebay_rpc::Session>> {
        Some(Arc::new(Session::default()))
    }

    fn attach(&self) -> Option<Arc<OwnedFd>> {
        // Without io_uring, workers carry out the requests.
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
