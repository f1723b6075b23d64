//! The part of a connection that event loop and tickets share: its socket, its output, and the requests in flight.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl};
use rustix::net::sockopt::socket_error;
use rustix::net::{Shutdown, shutdown};

use crate::addresses::Seat;
use crate::chunk::{Chunk, send, send_front};
use crate::drive::{Wire, Wrote, submit, write_out};
use crate::home::{Home, Post};
use crate::kernel_tls::{InKernel, say_farewell};
use crate::outlet::{Outlet, Weigh};
use crate::pool::Account;
use crate::reply::{OwnedReply, Payload};
use crate::secured::Secured;
use crate::service::Peer;
use crate::session::Session;
use crate::shared_bound::Begun;
use crate::splice::Spliced;

/// The part of a connection that only one with a session has.
pub(crate) struct Negotiated {
    pub(crate) session: Arc<dyn Session>,
    /// The time when the connection was accepted.
    pub(crate) opened: Instant,
}

/// The part of the host that seals and opens the records of a connection with TLS.
pub(crate) enum Protection {
    /// The session, in user space.
    Session(Box<Secured>),
    /// The socket.
    Kernel(InKernel),
}

pub(crate) struct Link {
    fd: OwnedFd,
    peer: Arc<Peer>,
    token: u64,
    home: Arc<Home>,
    /// The place of the connection. It stays taken until the last request in flight has ended: a client that connects
    /// again and again has no more requests in flight than its places allow.
    seat: Seat,
    /// Present for a connection with a session.
    session: Option<Box<Negotiated>>,
    outlet: Mutex<Outlet<Chunk>>,
    inflight: AtomicUsize,
    /// The protection by TLS, after the handshake.
    protection: OnceLock<Protection>,
    /// Bytes of records in flight.
    held: AtomicUsize,
}

impl Link {
    /// Returns the part of a connection that workers share with its event loop, and gives the peer the way for
    /// call-backs.
    pub(crate) fn new(
        fd: OwnedFd,
        peer: Arc<Peer>,
        token: u64,
        home: Arc<Home>,
        seat: Seat,
        session: Option<Box<Negotiated>>,
    ) -> Arc<Self> {
        let outlet = Mutex::new(Outlet::new());
        let (inflight, held) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let link = Arc::new(Self {
            fd,
            peer,
            token,
            home,
            seat,
            session,
            outlet,
            inflight,
            protection: OnceLock::new(),
            held,
        });
        link.peer.line.set(Arc::downgrade(&link));
        link
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    pub(crate) fn account(&self) -> &Arc<Account> {
        self.seat.account()
    }

    /// Returns the number of connections of the address, this one included.
    pub(crate) fn connections(&self) -> usize {
        self.seat.connections()
    }

    /// Returns the session of the connection; none for a connection with records.
    pub(crate) fn session(&self) -> Option<&dyn Session> {
        self.session.as_ref().map(|negotiated| &*negotiated.session)
    }

    /// Returns the time when a connection with a session was accepted.
    pub(crate) fn opened(&self) -> Option<Instant> {
        self.session.as_ref().map(|negotiated| negotiated.opened)
    }

    /// Returns an empty reply for a ticket of this connection.
    pub(crate) fn owned_reply(&self) -> OwnedReply {
        OwnedReply::on_ticket(Arc::clone(self.account()), self.session.is_none())
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
    }

    /// Returns the TLS session, after a handshake that left it in user space.
    pub(crate) fn secured(&self) -> Option<&Secured> {
        match self.protection.get() {
            Some(Protection::Session(secured)) => Some(&**secured),
            Some(Protection::Kernel(_)) | None => None,
        }
    }

    /// Returns true if the connection has TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.protection.get().is_some()
    }

    /// Returns true if the socket seals and opens the records of TLS.
    pub(crate) fn is_in_kernel(&self) -> bool {
        self.kernel().is_some()
    }

    fn kernel(&self) -> Option<&InKernel> {
        match self.protection.get() {
            Some(Protection::Kernel(kernel)) => Some(kernel),
            Some(Protection::Session(_)) | None => None,
        }
    }

    /// Returns true if the connection needs new keys, which only another connection has.
    pub(crate) fn has_used_up_keys(&self) -> bool {
        self.kernel().is_some_and(InKernel::is_used_up)
    }

    /// Seals all further output. The handshake is complete, so the peer has received all previous output.
    pub(crate) fn secure(&self, protection: Protection) {
        if self.protection.set(protection).is_ok() {
            self.count_encrypted(|count| {
                count.fetch_add(1, Relaxed);
            });
        }
    }

    /// Changes the counts of open connections with TLS that this one belongs to.
    fn count_encrypted(&self, change: impl Fn(&AtomicU64)) {
        change(&self.home.stats.encrypted);
        if self.is_in_kernel() {
            change(&self.home.stats.encrypted_in_kernel);
        }
    }

    /// Returns true if the peer may begin TLS now: the server has a certificate, the connection is plain, and no
    /// request is unanswered, whose reply would go out in the middle of the handshake.
    pub(crate) fn may_start_tls(&self) -> bool {
        self.home.tls.as_ref().is_some_and(|tls| !tls.keyring.is_empty())
            && !self.is_encrypted()
            && self.inflight() == 0
    }

    /// Sends as many bytes of the slices as one system call takes. `more` = the rest of a reply follows at once. Only
    /// for the writer of the connection.
    pub(crate) fn send(&self, slices: &[IoSlice<'_>], more: bool) -> Result<usize, Errno> {
        match self.secured() {
            None => self.count_sent(send(self.fd(), slices, more)),
            Some(secured) => secured.send(self.fd(), slices, more, self.account()),
        }
    }

    /// Sends bytes of a payload in a pipe, as many as one system call takes. Only for the writer of the connection.
    pub(crate) fn send_spliced(&self, spliced: &mut Spliced) -> Result<usize, Errno> {
        match self.secured() {
            None => self.count_sent(spliced.send(self.fd())),
            Some(secured) => secured.send_spliced(self.fd(), spliced, self.account()),
        }
    }

    /// Counts the records of TLS that the kernel makes of sent bytes.
    fn count_sent(&self, sent: Result<usize, Errno>) -> Result<usize, Errno> {
        if let (Some(kernel), Ok(bytes)) = (self.kernel(), sent) {
            kernel.sent(bytes);
        }
        sent
    }

    /// Waits until there is room for another request of the address. Returns false if there is room already.
    pub(crate) fn wait_for_admission(&self) -> bool {
        self.account().admission.wait(self.home.clone(), self.token)
    }

    /// Leaves a message for the event loop of the connection.
    pub(crate) fn post(&self, message: impl FnOnce(u64) -> Post) {
        self.home.post(message(self.token));
    }

    /// Ends the TLS session, if there is one. Tells the peer, unless output waits.
    pub(crate) fn end_session(&self) {
        let Some(protection) = self.protection.get() else { return };
        self.count_encrypted(|count| {
            count.fetch_sub(1, Relaxed);
        });
        if self.with_outlet(Outlet::begin) {
            match protection {
                Protection::Session(secured) => secured.say_farewell(self.fd()),
                Protection::Kernel(_) => say_farewell(self.fd()),
            }
        }
    }

    /// Stops all sending, and drops the waiting output. The socket itself is closed with the last ticket. If no ticket
    /// is left, dropping the link has this effect too.
    pub(crate) fn close(&self) {
        self.with_outlet(Outlet::close);
        let _ = shutdown(&self.fd, Shutdown::Both);
    }

    /// Returns true if the peer's host has acknowledged every byte sent, and the connection was not reset. For a
    /// connection of which the peer has closed its side, once everything is answered and sent.
    pub(crate) fn received(&self) -> bool {
        matches!(socket_error(&self.fd), Ok(Ok(()))) && unacknowledged(self.fd()) == Ok(0)
    }

    /// Returns the bytes of deferred records that are not answered yet.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Returns the time until the rates of the address and of the last request's export allow another request; none if
    /// they allow it now.
    pub(crate) fn wait_for_rate(&self, now: Instant) -> Option<Duration> {
        self.account().rate.wait(now).max(self.peer.last_rate.wait(now))
    }

    /// Counts a delay of the connection for `time` at each limit that demands it.
    pub(crate) fn count_delay(&self, now: Instant, time: Duration) {
        if self.account().rate.wait(now).is_some() {
            self.account().rate.count_delay(time);
        }
        if self.peer.last_rate.wait(now).is_some() {
            self.peer.last_rate.count_delay(time);
        }
    }

    /// Counts a record that leaves the loop. Returns its beginning if its time counts.
    pub(crate) fn enter(&self, held: usize) -> Option<Begun> {
        self.account().promise();
        self.inflight.fetch_add(1, Relaxed);
        self.held.fetch_add(held, Relaxed);
        self.account().admission.enter()
    }

    /// Ends a deferred record. Returns whether [`write_out`](Self::write_out) has to follow.
    pub(crate) fn leave(&self, (held, begun): (usize, Option<Begun>), reply: Option<OwnedReply>) -> bool {
        let chunk = reply.map(|reply| Chunk::from_reply(reply, self.account()));
        self.account().rate.charge(0, chunk.as_ref().map_or(0, Weigh::weight), Instant::now);
        let (writer, tell) = submit(self, chunk, || {
            self.held.fetch_sub(held, Relaxed);
            self.inflight.fetch_sub(1, Relaxed);
            self.account().fulfil();
        });
        self.account().admission.leave(begun);
        if tell {
            self.home.post(Post::Resume(self.token));
        }
        writer
    }

    /// Sends a record that answers no request. Returns false if the connection has ended.
    pub(crate) fn send_own(&self, record: Vec<u8>) -> bool {
        let mut reply = self.owned_reply();
        *reply.head() = record;
        self.queue(Chunk::from_reply(reply, self.account()))
    }

    /// Sends the bytes of a handshake or a greeting, which have no record mark.
    pub(crate) fn send_unsealed(&self, bytes: Vec<u8>) {
        self.queue(Chunk::new(bytes, Payload::None, 0, self.account()));
    }

    /// Queues a chunk, and writes the queue if no thread writes. Returns false if the connection has ended.
    fn queue(&self, chunk: Chunk) -> bool {
        let (writer, is_open) = self.with_outlet(|outlet| {
            let writer = outlet.push(chunk);
            (writer, outlet.is_open())
        });
        if writer {
            self.write_out();
        }
        is_open
    }

    /// Writes the queued output.
    pub(crate) fn write_out(&self) {
        if write_out(self) {
            self.home.post(Post::Resume(self.token));
        }
    }
}

/// Returns the number of bytes given to the socket that its peer has not acknowledged.
fn unacknowledged(fd: BorrowedFd<'_>) -> rustix::io::Result<c_int> {
    // SAFETY: SIOCOUTQ (which has the number of TIOCOUTQ) takes the address of an int and sets it.
    unsafe { ioctl(fd, Getter::<{ libc::TIOCOUTQ as Opcode }, c_int>::new()) }
}

impl Wire for Link {
    type Chunk = Chunk;

    fn with_outlet<R>(&self, f: impl FnOnce(&mut Outlet<Chunk>) -> R) -> R {
        f(&mut self.outlet.lock())
    }

    fn write(&self, batch: &mut VecDeque<Chunk>) -> Wrote {
        let mut total = 0;
        let wrote = loop {
            if batch.is_empty() {
                break Wrote::All(total);
            }
            self.home.stats.sends.fetch_add(1, Relaxed);
            match send_front(self, batch) {
                Ok(n) => total += n,
                Err(Errno::AGAIN) => break Wrote::Full(total),
                Err(_) => return Wrote::Failed,
            }
        };
        self.home.stats.bytes_out.fetch_add(total as u64, Relaxed);
        wrote
    }

    fn inflight(&self) -> usize {
        self.inflight.load(Relaxed)
    }

    fn failed(&self) {
        // Readiness for a hang-up wakes the loop. The loop may be the caller, so nothing is posted.
        let _ = shutdown(&self.fd, Shutdown::Both);
    }
}
