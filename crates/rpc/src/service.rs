//! What a service implements, and what it is given.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::assemble::RecordBuf;
use crate::link::Link;
use crate::pool::Charge;
use crate::reply::{OwnedReply, Reply};
use crate::stats::CloseReason;

/// Answers records.
pub trait Service: Send + Sync + 'static {
    /// Handles one record on an event-loop thread, which serves many connections: it must not block. What has
    /// to wait is [deferred](Message::defer).
    fn handle(&self, message: Message<'_>, reply: &mut Reply<'_>) -> Outcome;

    /// Whether clients at `address` may use anything at all. Asked when a connection is accepted: one from any other
    /// address is closed at once, and takes no place and no memory from those that are served.
    fn admits(&self, address: IpAddr) -> bool {
        let _ = address;
        true
    }

    /// A connection from `from` was closed before it was served.
    fn refused(&self, from: SocketAddr, reason: CloseReason) {
        let _ = (from, reason);
    }

    /// A connection came; false closes it at once.
    fn connected(&self, peer: &Peer) -> bool {
        let _ = peer;
        true
    }

    /// A connection that [`connected`](Self::connected) accepted is gone. Tickets of it may still be held; what
    /// they send is dropped.
    fn disconnected(&self, peer: &Peer, replies: Replies) {
        let _ = (peer, replies);
    }

    /// Called first on each event-loop thread. What the service has going on there of its own gets a
    /// [`turn`](Self::turn) whenever the loop has been round, and when this descriptor becomes readable; it is watched
    /// edge-triggered and never read.
    fn attach(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Goes on with what was begun on this thread, without blocking. Replies of one turn are sent in one [`batch`].
    fn turn(&self) {}

    /// Called last on each event-loop thread.
    fn detach(&self) {}
}

/// What becomes of a record after [`Service::handle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The reply is complete: send it.
    Reply,
    /// No answer.
    Silent,
    /// The answer comes through the [`Ticket`].
    Deferred,
    /// Close the connection without an answer to this record; earlier replies are sent if the socket takes them.
    Close,
}

/// Whether the peer of a connection that is gone has the replies that were sent on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replies {
    /// The peer closed the connection when every request was answered, and its host has acknowledged every byte.
    Received,
    /// The connection ended in any other way: a client may send its requests again.
    Unsure,
}

/// The other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Unique among the connections of a server, never reused.
    pub id: u64,
    /// Where it connects from.
    pub addr: SocketAddr,
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
    /// The record without its marks.
    pub fn bytes(&self) -> &[u8] {
        match &self.body {
            Body::InPlace(bytes) => bytes,
            Body::Assembled(record) => &record.buf[..record.len],
        }
    }

    /// Who sent it.
    pub fn peer(&self) -> &Arc<Peer> {
        self.link.peer()
    }

    /// Takes the message off the event loop: its bytes (a large record's buffer is handed over, not copied) and
    /// the ticket to answer it with from any thread. Return [`Outcome::Deferred`] afterwards.
    pub fn defer(self) -> (Record, Ticket) {
        let Message { body, link } = self;
        let inner = match body {
            Body::InPlace(bytes) => {
                Inner::Copied { bytes: bytes.into(), _charge: link.account().charge(bytes.len()) }
            }
            Body::Assembled(record) => Inner::Pooled(record),
        };
        let record = Record { inner };
        let held = record.held();
        link.enter(held);
        (record, Ticket { link: Arc::clone(link), held, open: true })
    }
}

/// A record of its own, off the event loop; its buffer returns to the pool when it is dropped.
pub struct Record {
    inner: Inner,
}

enum Inner {
    Copied { bytes: Box<[u8]>, _charge: Charge },
    Pooled(RecordBuf),
}

impl Record {
    /// Bytes of memory it keeps in use.
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

/// The right to answer one deferred record, once, from any thread. Dropped unsent, there is no answer.
pub struct Ticket {
    link: Arc<Link>,
    held: usize,
    open: bool,
}

impl Ticket {
    /// Who asked.
    pub fn peer(&self) -> &Arc<Peer> {
        self.link.peer()
    }

    /// An empty reply to fill.
    pub fn reply(&self) -> OwnedReply {
        OwnedReply::on_ticket(Arc::clone(self.link.account()))
    }

    /// Sends the reply: from this thread if nobody else is writing the connection, without ever blocking; at the end
    /// of a [`batch`] where one is under way. A reply to a connection that is gone is dropped.
    pub fn send(self, reply: OwnedReply) {
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

    fn send_now(mut self, reply: OwnedReply) {
        self.open = false;
        if self.link.leave(self.held, Some(reply)) {
            self.link.write_out();
        }
    }
}

thread_local! {
    /// Replies of the batch this thread is in.
    static BATCH: RefCell<Option<Vec<(Ticket, OwnedReply)>>> = const { RefCell::new(None) };
}

/// Runs `work`, and only then sends the replies that it gave tickets of this thread: those of one connection in one
/// write. For work that finishes many requests at once and does not wait. Batches do not nest: an inner one is part of
/// the outer one.
pub fn batch<R>(work: impl FnOnce() -> R) -> R {
    if BATCH.with_borrow(Option::is_some) {
        return work();
    }
    /// Sends what was collected, also when `work` panics.
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
        if ticket.link.leave(ticket.held, Some(reply)) {
            writers.push(Arc::clone(&ticket.link));
        }
    }
    writers.iter().for_each(|link| link.write_out());
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.open {
            // No reply makes nobody a writer.
            self.link.leave(self.held, None);
        }
    }
}
