//! The count of the clients being served, and of their requests that may take long.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forebay_common::lock::{Condvar, Mutex};

/// Most clients served at once; a further client is refused with a sentence.
pub(super) const MOST_CLIENTS: usize = 16;
/// Of these, clients whose request may take long, such as a flush to a file system that does not answer: there is
/// always room for clients that only read the status.
pub(super) const MOST_LONG: usize = 12;

/// The clients being served, and the request to stop serving them.
#[derive(Debug, Default)]
pub(super) struct Clients {
    pub(super) stopping: AtomicBool,
    pub(super) count: Mutex<usize>,
    pub(super) left: Condvar,
    /// The number of requests in progress that may take long.
    long: Mutex<usize>,
}

/// A request that may take long and is being counted.
pub(super) struct Long<'a>(&'a Clients);

impl<'a> Long<'a> {
    /// Counts a request. Returns `None` if too many such requests are in progress.
    pub(super) fn enter(clients: &'a Clients) -> Option<Self> {
        let mut long = clients.long.lock();
        if *long >= MOST_LONG {
            return None;
        }
        *long += 1;
        Some(Self(clients))
    }
}

impl Drop for Long<'_> {
    fn drop(&mut self) {
        *self.0.long.lock() -= 1;
    }
}

/// A client that is counted in `Clients` until this value is dropped.
pub(super) struct Served(pub(super) Arc<Clients>);

impl Served {
    /// Counts a client. Returns `None` if too many clients are being served.
    pub(super) fn enter(clients: &Arc<Clients>) -> Option<Self> {
        let mut count = clients.count.lock();
        if *count >= MOST_CLIENTS {
            return None;
        }
        *count += 1;
        Some(Self(Arc::clone(clients)))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        *self.0.count.lock() -= 1;
        self.0.left.notify_all();
    }
}
