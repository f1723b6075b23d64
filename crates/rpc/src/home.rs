//! The part of an event loop that other threads see: its inbox, its load, its counters.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Instant;

use forebay_common::lock::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::addresses::Seat;
use crate::admission::Resume;
use crate::handshake::{Stepped, Tls};
use crate::service::Peer;
use crate::stats::LoopStats;

/// A message to an event loop.
pub(crate) enum Post {
    /// Serve a new connection; `evict` = only if an idle one makes room.
    Adopt { fd: OwnedFd, peer: Arc<Peer>, seat: Seat, evict: bool },
    /// Look at a connection again: something it waits for became fewer.
    Resume(u64),
    /// Look at a connection again: there is room for another request of its address.
    Admit(u64),
    /// A worker has carried out a step of a connection's TLS handshake.
    Stepped(u64, Box<Stepped>),
    /// Stop reading, answer the requests in flight, close everything at the deadline.
    Shutdown(Instant),
}

pub(crate) struct Home {
    inbox: Mutex<Vec<Post>>,
    posted: AtomicBool,
    sleeping: AtomicBool,
    event: OwnedFd,
    /// The server's TLS, if it has any.
    pub(crate) tls: Option<Arc<Tls>>,
    /// Connections given to this loop and not closed yet.
    pub(crate) load: AtomicUsize,
    pub(crate) stats: LoopStats,
}

impl Home {
    /// Returns the inbox and counters of an event loop. Fails if the system gives no eventfd.
    pub(crate) fn new(tls: Option<Arc<Tls>>) -> rustix::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            inbox: Mutex::new(Vec::new()),
            posted: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            tls,
            load: AtomicUsize::new(0),
            stats: LoopStats::default(),
        }))
    }

    /// Returns the eventfd. It must be registered edge-triggered, because it is never read.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Leaves a message. Wakes the loop only if it sleeps.
    pub(crate) fn post(&self, post: Post) {
        self.inbox.lock().push(post);
        self.posted.store(true, SeqCst);
        if self.sleeping.swap(false, SeqCst) {
            // Fails only if 2^64 - 1 wake-ups were never read, and then the loop is awake.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Announces sleep; returns false if there is work to do first.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.sleeping.store(true, SeqCst);
        let free = !self.has_posts();
        if !free {
            self.wake_up();
        }
        free
    }

    pub(crate) fn wake_up(&self) {
        self.sleeping.store(false, SeqCst);
    }

    pub(crate) fn has_posts(&self) -> bool {
        self.posted.load(SeqCst)
    }

    /// Takes all messages.
    pub(crate) fn take(&self) -> Vec<Post> {
        if !self.posted.swap(false, SeqCst) {
            return Vec::new();
        }
        std::mem::take(&mut self.inbox.lock())
    }
}

impl Resume for Home {
    fn resume(&self, token: u64) {
        self.post(Post::Admit(token));
    }
}
