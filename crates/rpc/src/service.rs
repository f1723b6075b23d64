//! The interface that a service implements, and the types that its methods get.

use std::any::Any;
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use forebay_tls::Identity;

use crate::assemble::RecordBuf;
use crate::callback::Line;
use crate::drive::Wire;
use crate::link::Link;
use crate::pool::Charge;
use crate::rate::LastRate;
use crate::reply::{OwnedReply, Reply};
use crate::session::Session;
use crate::shared_bound::Begun;
use crate::stats::CloseReason;

/// A service that answers records.
pub trait Service: Send + Sync + 'static {
    /// Handles one record on an event-loop thread, which serves many connections: it must not block. A request that has
    /// to wait is [deferred](Message::defer).
    fn handle(&self, message: Message<'_>, reply: &mut Reply<'_>) -> Handled;

    /// Returns true if clients at `address` may use any part of the service. Called when a connection is accepted. A
    /// connection from any other address is closed at once, and takes no place and no memory from admitted clients.
    fn admits(&self, address: IpAddr) -> bool {
        let _ = address;
        true
    }

    /// Tells that a connection from `from` was closed before it was served.
    fn refused(&self, from: SocketAddr, reason: CloseReason) {
        let _ = (from, reason);
    }

    /// Tells that a connection was accepted; returning false closes it at once.
    fn connected(&self, peer: &Peer) -> bool {
        let _ = peer;
        true
    }

    /// Returns the session of a new connection. Without a session the messages of the connection are records. Called
    /// after [`connected`](Self::connected).
    fn session(&self, peer: &Peer) -> Option<Arc<dyn Session>> {
        let _ = peer;
        None
    }

    /// Tells that a connection that [`connected`](Self::connected) accepted has ended. Tickets of the connection may
    /// still be held; their replies are dropped.
    fn disconnected(&self, peer: &Peer, replies: Replies) {
        let _ = (peer, replies);
    }

    /// Called first on each event-loop thread. The service's own work on the thread gets a [`turn`](Self::turn) after
    /// every round of the loop, and when the returned descriptor becomes readable. The descriptor is watched
    /// edge-triggered and never read.
    fn attach(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Continues the service's work on this thread, without blocking. Replies of one turn are sent in one [`batch`].
    fn turn(&self) {}

    /// Returns the time at which the service's work on this thread needs a [`turn`](Self::turn), if its descriptor does
    /// not tell that.
    fn wake_at(&self) -> Option<Instant> {
        None
    }

    /// Ends the service's own work on an event-loop thread. Called last on each of these threads.
    fn detach(&self) {}
}

/// The result of [`Service::handle`] for a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handled {
    /// The reply is complete: send it.
    Reply,
    /// No answer.
    Silent,
    /// The answer comes through the [`Ticket`].
    Deferred,
    /// The reply is complete: send it. After it the peer begins a TLS handshake, and sends nothing else before. Only if
    /// [`Message::may_start_tls`] allows it.
    StartTls,
    /// The reply is complete: send it, unless its head is empty. Close the connection when every request is answered
    /// and every reply is sent.
    Finish,
    /// Close the connection without an answer to this record; earlier replies are sent if the socket takes them.
    Close,
}

/// The certainty that the peer of an ended connection has the replies that were sent on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replies {
    /// The peer closed the connection when every request was answered, and its host has acknowledged every byte.
    Received,
    /// The connection ended in any other way, so a client may send its requests again.
    Unsure,
}

/// The other end of a connection.
#[derive(Debug)]
pub struct Peer {
    /// Unique among the connections of a server, never reused.
    pub id: u64,
    /// The address that the peer connects from. All clients of Unix sockets have the address 0.0.0.0 with port 0.
    pub addr: SocketAddr,
    /// True if the connection came through a Unix socket.
    pub is_local: bool,
    /// The way for call-backs to the peer.
    pub line: Line,
    /// The protection of the connection; set when a TLS handshake is complete, and never changed.
    pub security: OnceLock<Security>,
    /// The shared rate that the next request waits for.
    pub last_rate: LastRate,
}

/// The protection of a connection by TLS.
#[derive(Debug)]
pub struct Security {
    /// The client, if it has shown a certificate.
    pub client: Option<Identity>,
}

/// One record.
pub struct Message<'a> {
    pub(crate) body: Body<'a>,
    pub(crate) link: &'a Arc<Link>,
}

pub(crate) enum Body<'a> {
    InPlace(&'a [u8]),
    Assembled(RecordBuf),
}

impl Message<'_> {
    /// Returns the record without its marks.
    pub fn bytes(&self) -> &[u8] {
        match &self.body {
            Body::InPlace(bytes) => bytes,
            Body::Assembled(record) => &record.buf[..record.len],
        }
    }

    /// Returns the peer that sent the record.
    pub fn peer(&self) -> &Arc<Peer> {
        self.link.peer()
    }

    /// Returns true if the peer may begin a TLS handshake after the reply: the server has a certificate, the connection
    /// is not encrypted, and no other request of the connection is unanswered.
    pub fn may_start_tls(&self) -> bool {
        self.link.may_start_tls()
    }

    /// Returns the session of the connection; none if the connection has none of this type.
    pub fn session<T: Session>(&self) -> Option<&T> {
        (self.link.session()? as &dyn Any).downcast_ref()
    }

    /// Takes the message off the event loop. Returns its bytes and the ticket to answer it with from any thread. The
    /// buffer of a large record is handed over, not copied. Return [`Handled::Deferred`] afterwards.
    pub fn defer(self) -> (Record, Ticket) {
        self.defer_for(0)
    }

    /// Takes the message off the event loop like [`defer`](Self::defer). Counts the `more` bytes that the request
    /// needs, for its reply or beside it, as bytes of the request: see
    /// [`Config::conn_memory`](crate::Config::conn_memory).
    pub fn defer_for(self, more: usize) -> (Record, Ticket) {
        let Message { body, link } = self;
        let inner = match body {
            Body::InPlace(bytes) => {
                Inner::Copied { bytes: bytes.into(), _charge: link.account().charge(bytes.len()) }
            }
            Body::Assembled(record) => Inner::Pooled(record),
        };
        let record = Record { inner };
        let held = record.held() + more;
        let begun = link.enter(held);
        (record, Ticket { link: Arc::clone(link), held, begun, open: true, seal: None })
    }
}

/// A record off the event loop, with a buffer of its own; the buffer returns to the pool when the record is dropped.
pub struct Record {
    inner: Inner,
}

enum Inner {
    Copied { bytes: Box<[u8]>, _charge: Charge },
    Pooled(RecordBuf),
}

impl Record {
    /// Returns the bytes of memory that the record keeps in use.
    fn held(&self) -> usize {
        match &self.inner {
            Inner::Copied { bytes, .. } => bytes.len(),
            Inner::Pooled(record) => record.buf.len(),
        }
    }
}

impl Deref for Record {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.inner {
            Inner::Copied { bytes, .. } => bytes,
            Inner::Pooled(record) => &record.buf[..record.len],
        }
    }
}

/// The right to answer one deferred record, once, from any thread. A ticket that is dropped unsent sends no answer.
pub struct Ticket {
    link: Arc<Link>,
    held: usize,
    begun: Option<Begun>,
    open: bool,
    seal: Option<Seal>,
}

/// Memory that counts for [`Config::memory`](crate::Config::memory) as long as the value lives.
pub struct Held {
    _charge: Charge,
}

/// A function that rewrites a whole reply, just before the reply is sent.
pub type Seal = Box<dyn FnOnce(&mut Vec<u8>) + Send>;

impl Ticket {
    /// Returns the peer that sent the request.
    pub fn peer(&self) -> &Arc<Peer> {
        self.link.peer()
    }

    /// Returns false if the connection has ended, so that no reply is sent.
    pub fn is_wanted(&self) -> bool {
        self.link.with_outlet(|outlet| outlet.is_open())
    }

    /// Returns an empty reply to fill. A reply that will be [sealed](Self::seal) is all in memory.
    pub fn reply(&self) -> OwnedReply {
        let reply = self.link.owned_reply();
        if self.seal.is_some() { reply.without_splice() } else { reply }
    }

    /// Has `seal` rewrite the reply to this record. `seal` runs on the sending thread.
    pub fn seal(&mut self, seal: Seal) {
        self.seal = Some(seal);
    }

    /// Returns a record with other bytes than the one that came with this ticket, for example decrypted ones.
    pub fn record(&self, bytes: Vec<u8>) -> Record {
        let charge = self.link.account().charge(bytes.len());
        Record { inner: Inner::Copied { bytes: bytes.into(), _charge: charge } }
    }

    /// Counts `bytes` of memory, which the request needs, as memory of the server until the result is dropped. The
    /// connection does not count them: see [`Message::defer_for`].
    pub fn hold(&self, bytes: usize) -> Held {
        Held { _charge: self.link.account().charge(bytes) }
    }

    /// Counts memory like [`hold`](Self::hold). Returns `None`, and counts nothing, if the address may have no more
    /// memory now.
    pub fn try_hold(&self, bytes: usize) -> Option<Held> {
        self.link.account().try_charge(bytes).map(|charge| Held { _charge: charge })
    }

    /// Sends the reply, without ever blocking. This thread writes if no other thread writes the connection. Inside a
    /// [`batch`] the reply is sent at the end of the batch. A reply to an ended connection is dropped.
    pub fn send(mut self, mut reply: OwnedReply) {
        if let Some(seal) = self.seal.take() {
            reply.flatten();
            seal(reply.head());
        }
        let now = BATCH.with_borrow_mut(|batch| match batch {
            Some(replies) => {
                replies.push((self, reply));
                None
            }
            None => Some((self, reply)),
        });
        if let Some((ticket, reply)) = now {
            ticket.send_now(reply);
        }
    }

    /// Queues the reply and ends the ticket. Writes to the socket if no other thread does so; never blocks.
    fn send_now(mut self, reply: OwnedReply) {
        self.open = false;
        if self.link.leave((self.held, self.begun), Some(reply)) {
            self.link.write_out();
        }
    }
}

thread_local! {
    /// The replies of the batch that this thread runs.
    static BATCH: RefCell<Option<Vec<(Ticket, OwnedReply)>>> = const { RefCell::new(None) };
}

/// Runs `work`, and then sends the replies that it gave to tickets of this thread. The replies of one connection are
/// sent in one write. For work that finishes many requests at once and does not wait. An inner batch is part of the
/// outer one.
pub fn batch<R>(work: impl FnOnce() -> R) -> R {
    if BATCH.with_borrow(Option::is_some) {
        return work();
    }
    /// Sends the collected replies, also when `work` panics.
    struct Scope;
    impl Drop for Scope {
        fn drop(&mut self) {
            send_all(BATCH.take().unwrap_or_default());
        }
    }
    BATCH.set(Some(Vec::new()));
    let _scope = Scope;
    work()
}

/// Sends replies, those of one connection in one write: all are queued before the first is written.
fn send_all(replies: Vec<(Ticket, OwnedReply)>) {
    let mut writers = Vec::new();
    for (mut ticket, reply) in replies {
        ticket.open = false;
        if ticket.link.leave((ticket.held, ticket.begun), Some(reply)) {
            writers.push(Arc::clone(&ticket.link));
        }
    }
    writers.iter().for_each(|link| link.write_out());
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.open {
            // Leaving without a reply never makes this thread the writer.
            self.link.leave((self.held, self.begun), None);
        }
    }
}
