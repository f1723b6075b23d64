//! Servers of a process whose requests wait for the same disks, cache devices and log frames.
//!
//! The addresses of all these servers are reviewed together. So a client of one server waits for few requests of a busy
//! client of another one ([`admission`]).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;

use crate::addresses::Addresses;
use crate::admission::{self, REVIEW, UNBOUNDED};
use crate::shared_bound::SharedBound;

/// The servers that contend for the same devices: see [`Server::contend`](crate::Server::contend). The default has no
/// server yet.
#[derive(Clone)]
pub struct Contenders(Arc<Inner>);

struct Inner {
    servers: Mutex<Vec<Weak<Addresses>>>,
    began: Instant,
    /// The time of the next review, in nanoseconds since `began`.
    review_at: AtomicU64,
    /// True while requests in flight are bounded.
    is_contended: AtomicBool,
    /// The search for the bound. The lock is taken inside of those of the accounts.
    search: Mutex<SharedBound>,
}

impl Default for Contenders {
    fn default() -> Self {
        let (servers, search) = (Mutex::default(), Mutex::default());
        let (began, review_at, is_contended) = (Instant::now(), AtomicU64::new(0), AtomicBool::new(false));
        Contenders(Arc::new(Inner { servers, began, review_at, is_contended, search }))
    }
}

impl std::fmt::Debug for Contenders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Contenders({})", self.0.servers.lock().len())
    }
}

impl Contenders {
    /// Adds the addresses of a server until they are dropped.
    pub(crate) fn join(&self, addresses: &Arc<Addresses>) {
        let mut servers = self.0.servers.lock();
        servers.retain(|server| server.strong_count() > 0);
        servers.push(Arc::downgrade(addresses));
    }

    /// Bounds the requests in flight of each address by what all of them did since the last review, if a review is due.
    /// The least setting of the servers holds for all of them.
    pub(crate) fn review(&self, now: Instant) {
        let Inner { servers, began, review_at, is_contended, search } = &*self.0;
        let (now, due) = (now.saturating_duration_since(*began).as_nanos() as u64, review_at.load(Relaxed));
        let next = now + REVIEW.as_nanos() as u64;
        if now < due || review_at.compare_exchange(due, next, Relaxed, Relaxed).is_err() {
            return;
        }
        let was_contended = is_contended.load(Relaxed);
        let servers: Vec<Arc<Addresses>> = servers.lock().iter().filter_map(Weak::upgrade).collect();
        let connected: usize = servers.iter().map(|server| server.connected()).sum();
        if connected < 2 && !was_contended {
            return;
        }
        let most = servers.iter().map(|server| server.shared_inflight()).min().unwrap_or(0);
        // No other code takes the locks of two servers, and every review takes them in this order.
        let all: Vec<_> = servers.iter().map(|server| (server.known(), server.stalled_after())).collect();
        let accounts = || all.iter().flat_map(|(known, stall)| known.values().zip(std::iter::repeat(*stall)));
        let reviewed: Vec<_> = accounts()
            .filter_map(|(account, stall)| Some((&account.admission, account.admission.review(stall)?)))
            .collect();
        let bound = admission::review(&reviewed, &mut search.lock(), most);
        is_contended.store(bound != UNBOUNDED, Relaxed);
        if bound != UNBOUNDED || was_contended {
            accounts().for_each(|(account, _)| account.admission.set_bound(bound));
        }
    }

    /// Returns the time of the next review, if requests in flight are bounded.
    pub(crate) fn next_review(&self) -> Option<Instant> {
        let at = Duration::from_nanos(self.0.review_at.load(Relaxed));
        self.0.is_contended.load(Relaxed).then(|| self.0.began + at)
    }
}
