//! The part of a connection that event loop and tickets share: its socket, its output, what is in flight.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, Shutdown, sendmsg, shutdown};

use crate::assemble::single_mark;
use crate::drive::{Wire, Wrote, submit, write_out};
use crate::home::{Home, Post};
use crate::outlet::{Outlet, Weigh};
use crate::pool::{Charge, Pool, PooledBuf};
use crate::reply::OwnedReply;
use crate::service::Peer;

/// Slices passed to one sendmsg; enough to fill a socket, few enough for the stack.
pub(crate) const SLICES: usize = 64;

/// Output that waits: bytes of its own, then a pooled payload.
pub(crate) struct Chunk {
    head: Vec<u8>,
    payload: Option<(PooledBuf, usize)>,
    done: usize,
    _charge: Charge,
}

impl Chunk {
    /// `done` bytes of `head` and the payload's first bytes were written already.
    pub(crate) fn new(
        head: Vec<u8>,
        payload: Option<(PooledBuf, usize)>,
        done: usize,
        pool: &Arc<Pool>,
    ) -> Self {
        let charge = pool.charge(head.capacity());
        Self { head, payload, done, _charge: charge }
    }

    fn from_reply(reply: OwnedReply, pool: &Arc<Pool>) -> Self {
        let (mut head, payload) = reply.into_parts();
        let payload = payload.and_then(|payload| match payload.finish() {
            (len, Some(buf)) => Some((buf, len)),
            (_, None) => None,
        });
        let mark = single_mark(head.len() + payload.as_ref().map_or(0, |(_, len)| *len));
        head.splice(0..0, mark);
        Self::new(head, payload, 0, pool)
    }

    fn slices(&self) -> [&[u8]; 2] {
        let head = &self.head[self.done.min(self.head.len())..];
        let payload = match &self.payload {
            Some((buf, len)) => &buf[self.done.saturating_sub(self.head.len())..*len],
            None => &[],
        };
        [head, payload]
    }
}

impl Weigh for Chunk {
    fn weight(&self) -> usize {
        self.head.len() + self.payload.as_ref().map_or(0, |(_, len)| *len) - self.done
    }
}

pub(crate) struct Link {
    fd: OwnedFd,
    peer: Arc<Peer>,
    token: u64,
    home: Arc<Home>,
    pool: Arc<Pool>,
    outlet: Mutex<Outlet<Chunk>>,
    inflight: AtomicUsize,
    /// Bytes of records in flight.
    held: AtomicUsize,
}

impl Link {
    pub(crate) fn new(
        fd: OwnedFd,
        peer: Arc<Peer>,
        token: u64,
        home: Arc<Home>,
        pool: Arc<Pool>,
    ) -> Arc<Self> {
        let outlet = Mutex::new(Outlet::new());
        let (inflight, held) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { fd, peer, token, home, pool, outlet, inflight, held })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Nothing more is sent; what waits is dropped. The socket itself goes with the last ticket.
    pub(crate) fn close(&self) {
        self.with_outlet(Outlet::close);
        let _ = shutdown(&self.fd, Shutdown::Both);
    }

    /// Bytes of deferred records not answered yet.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// A record goes off the loop.
    pub(crate) fn enter(&self, held: usize) {
        self.inflight.fetch_add(1, Relaxed);
        self.held.fetch_add(held, Relaxed);
    }

    /// A deferred record is done with. Returns whether [`write_out`](Self::write_out) has to follow.
    pub(crate) fn leave(&self, held: usize, reply: Option<OwnedReply>) -> bool {
        let chunk = reply.map(|reply| Chunk::from_reply(reply, &self.pool));
        let (writer, tell) = submit(self, chunk, || {
            self.held.fetch_sub(held, Relaxed);
            self.inflight.fetch_sub(1, Relaxed);
        });
        if tell {
            self.home.post(Post::Resume(self.token));
        }
        writer
    }

    /// Writes what is queued.
    pub(crate) fn write_out(&self) {
        if write_out(self) {
            self.home.post(Post::Resume(self.token));
        }
    }
}

impl Wire for Link {
    type Chunk = Chunk;

    fn with_outlet<R>(&self, f: impl FnOnce(&mut Outlet<Chunk>) -> R) -> R {
        f(&mut self.outlet.lock())
    }

    fn write(&self, batch: &mut VecDeque<Chunk>) -> Wrote {
        let mut total = 0;
        while !batch.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut used = 0;
            for slice in batch.iter().flat_map(Chunk::slices).filter(|slice| !slice.is_empty()).take(SLICES) {
                slices[used] = IoSlice::new(slice);
                used += 1;
            }
            self.home.stats.sends.fetch_add(1, Relaxed);
            match send(self.fd(), &slices[..used]) {
                Ok(n) => {
                    total += n;
                    advance(batch, n);
                }
                Err(Errno::AGAIN) => {
                    self.home.stats.bytes_out.fetch_add(total as u64, Relaxed);
                    return Wrote::Full(total);
                }
                Err(_) => return Wrote::Failed,
            }
        }
        self.home.stats.bytes_out.fetch_add(total as u64, Relaxed);
        Wrote::All(total)
    }

    fn inflight(&self) -> usize {
        self.inflight.load(Relaxed)
    }

    fn failed(&self) {
        // Readiness for a hang-up brings the loop here; it may be the caller, so nothing is posted.
        let _ = shutdown(&self.fd, Shutdown::Both);
    }
}

fn advance(batch: &mut VecDeque<Chunk>, mut n: usize) {
    while let Some(front) = batch.front_mut() {
        let weight = front.weight();
        if n < weight {
            front.done += n;
            return;
        }
        n -= weight;
        batch.pop_front();
    }
}

/// One vectored send that never blocks; interrupted ones are repeated.
pub(crate) fn send(fd: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| sendmsg(fd, slices, &mut SendAncillaryBuffer::default(), flags))
}
