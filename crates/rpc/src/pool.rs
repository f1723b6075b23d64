//! Page-aligned buffers in a few sizes, and the count of all buffer memory in use. Buffers are kept for reuse, so that
//! a large request costs no page faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use forebay_common::lock::Mutex;

use crate::splice::Pipes;

mod account;
mod buffer;
mod free;
#[cfg(test)]
mod tests;

use buffer::Mapping;

pub(crate) use account::{Account, Charge};
pub(crate) use buffer::PooledBuf;
pub(crate) use free::Free;

/// Payloads and partial records up to this many bytes count as small.
pub(crate) const SMALL: usize = 16 << 10;

const PAGE: usize = 4096;
/// The sizes of the smaller buffers. There is room for a header beside a power of two of data. The largest size is a
/// setting.
const SIZES: [usize; 5] = [SMALL, 64 << 10, 256 << 10, (1 << 20) + (64 << 10), (4 << 20) + (64 << 10)];

/// The buffers of one size that are kept for reuse.
struct Class {
    size: usize,
    free: Mutex<Free<Mapping>>,
}

/// The divisor that gives the part of the memory kept for the shares of addresses.
const SHARED: usize = 4;

/// All buffers of a server.
///
/// Three quarters of the memory are given out first come, first served. The last quarter is divided among the connected
/// addresses. An address that holds less than its share gets more, whatever the other addresses hold.
pub(crate) struct Pool {
    /// Bytes that may be used for everything except small payloads. The limit may change at any moment.
    limit: AtomicUsize,
    used: AtomicUsize,
    /// Memory for the requests in flight: each may need a small buffer, and gets it however much memory is used.
    promised: AtomicUsize,
    cached: AtomicUsize,
    /// True while the one record buffer beyond the limit is on loan.
    extra: AtomicBool,
    /// The number of connected addresses.
    pub(crate) addresses: AtomicUsize,
    classes: Vec<Class>,
    pipes: Pipes,
}

impl Pool {
    /// Returns a pool whose largest buffers hold `largest` bytes and which hands out `limit` bytes in all.
    pub(crate) fn new(largest: usize, limit: usize) -> Arc<Self> {
        let largest = largest.max(1 << 20).next_multiple_of(PAGE);
        let class = |size| Class { size, free: Mutex::default() };
        let smaller = SIZES.into_iter().filter(|size| *size < largest);
        let classes = smaller.chain([largest]).map(class).collect();
        Arc::new(Self {
            limit: AtomicUsize::new(limit),
            used: AtomicUsize::new(0),
            promised: AtomicUsize::new(0),
            cached: AtomicUsize::new(0),
            extra: AtomicBool::new(false),
            addresses: AtomicUsize::new(0),
            classes,
            pipes: Pipes::default(),
        })
    }

    fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    /// Changes the limit. Buffers in use stay; cached buffers beyond the limit are given back.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Relaxed);
        self.shrink_cache(limit.saturating_sub(self.used()));
    }

    /// Returns the bytes in use: leased buffers and charges.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Returns the bytes that may be used for everything except small payloads.
    fn unpromised(&self) -> usize {
        self.limit().saturating_sub(self.promised.load(Relaxed))
    }

    /// Returns the bytes that an address may hold whatever other addresses hold.
    fn share(&self) -> usize {
        self.limit() / SHARED / self.addresses.load(Relaxed).max(1)
    }

    /// Gives cached buffers back to the system until at most `keep` bytes are cached, largest first.
    pub(crate) fn shrink_cache(&self, keep: usize) {
        for class in self.classes.iter().rev() {
            while self.cached.load(Relaxed) > keep {
                let Some(map) = class.free.lock().pop() else { break };
                self.cached.fetch_sub(map.len(), Relaxed);
            }
        }
    }

    /// Gives buffers back to the system that were not needed since the last call.
    pub(crate) fn trim(&self) {
        for class in &self.classes {
            // Unmapping takes time, and other threads may need the lock.
            let unneeded = class.free.lock().trim();
            self.cached.fetch_sub(unneeded.len() * class.size, Relaxed);
        }
        self.pipes.trim();
    }

    /// Returns true if buffers are kept for reuse.
    pub(crate) fn has_cached(&self) -> bool {
        self.cached.load(Relaxed) > 0 || self.pipes.has_free()
    }

    fn give_back(&self, map: Mapping, class: usize) {
        let used = self.used.fetch_sub(map.len(), Relaxed) - map.len();
        if used + self.cached.load(Relaxed) + map.len() <= self.limit() {
            self.cached.fetch_add(map.len(), Relaxed);
            self.classes[class].free.lock().push(map);
        }
    }
}
