//! Page-aligned buffers in a few sizes, and the count of all buffer memory in use. Buffers are kept for reuse, so that
//! a large request costs no page faults.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use forebay_common::lock::Mutex;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::splice::{Pipe, Pipes};

/// Payloads and partial records up to this many bytes count as small.
pub(crate) const SMALL: usize = 16 << 10;

const PAGE: usize = 4096;
const CLASSES: usize = 4;

/// An anonymous mapping. Its pages become resident only when touched. So a buffer for a length that a peer merely
/// claims costs address space, not memory.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned by this value alone and not bound to a thread.
unsafe impl Send for Mapping {}
// SAFETY: shared access only reads the memory.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(len: usize) -> Option<Self> {
        // SAFETY: a private anonymous mapping at an address the kernel picks aliases nothing.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        Some(Self { start: NonNull::new(start.ok()?.cast())?, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and len are those of the mapping this value owns; no reference outlives it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

struct Class {
    size: usize,
    free: Mutex<Free<Mapping>>,
}

/// The values of one kind that are kept for reuse.
pub(crate) struct Free<T> {
    items: Vec<T>,
    /// The smallest number of free values since the last trim; as many values were not needed.
    unneeded: usize,
}

impl<T> Default for Free<T> {
    fn default() -> Self {
        Self { items: Vec::new(), unneeded: 0 }
    }
}

impl<T> Free<T> {
    pub(crate) fn pop(&mut self) -> Option<T> {
        let item = self.items.pop();
        self.unneeded = self.unneeded.min(self.items.len());
        item
    }

    pub(crate) fn push(&mut self, item: T) {
        self.items.push(item);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Takes the values that were not needed since the last call.
    pub(crate) fn trim(&mut self) -> Vec<T> {
        let unneeded = self.items.drain(..self.unneeded).collect();
        self.unneeded = self.items.len();
        unneeded
    }
}

/// The divisor that gives the part of the memory kept for the shares of addresses.
const SHARED: usize = 4;

/// All buffers of a server.
///
/// Three quarters of the memory are given out first come, first served. The last quarter is divided among the connected
/// addresses. An address that holds less than its share gets more, whatever the other addresses hold.
pub(crate) struct Pool {
    limit: usize,
    used: AtomicUsize,
    /// Memory for the requests in flight: each may need a small buffer, and gets it however much memory is used.
    promised: AtomicUsize,
    cached: AtomicUsize,
    /// True while the one record buffer beyond the limit is on loan.
    extra: AtomicBool,
    /// The number of connected addresses.
    pub(crate) addresses: AtomicUsize,
    classes: [Class; CLASSES],
    pipes: Pipes,
}

impl Pool {
    /// Returns a pool whose largest buffers hold `largest` bytes and which hands out `limit` bytes in all.
    pub(crate) fn new(largest: usize, limit: usize) -> Arc<Self> {
        let largest = largest.max(1 << 20).next_multiple_of(PAGE);
        let class = |size| Class { size, free: Mutex::default() };
        let classes = [SMALL, 64 << 10, 256 << 10, largest].map(class);
        Arc::new(Self {
            limit,
            used: AtomicUsize::new(0),
            promised: AtomicUsize::new(0),
            cached: AtomicUsize::new(0),
            extra: AtomicBool::new(false),
            addresses: AtomicUsize::new(0),
            classes,
            pipes: Pipes::default(),
        })
    }

    /// Returns the bytes in use: leased buffers and charges.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Returns the bytes that may be used for everything except small payloads.
    fn unpromised(&self) -> usize {
        self.limit.saturating_sub(self.promised.load(Relaxed))
    }

    /// Returns the bytes that an address may hold whatever other addresses hold.
    fn share(&self) -> usize {
        self.limit / SHARED / self.addresses.load(Relaxed).max(1)
    }

    /// Gives cached buffers back to the system until at most `keep` bytes are cached, largest first.
    pub(crate) fn shrink_cache(&self, keep: usize) {
        for class in self.classes.iter().rev() {
            while self.cached.load(Relaxed) > keep {
                let Some(map) = class.free.lock().pop() else { break };
                self.cached.fetch_sub(map.len, Relaxed);
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
        let used = self.used.fetch_sub(map.len, Relaxed) - map.len;
        if used + self.cached.load(Relaxed) + map.len <= self.limit {
            self.cached.fetch_add(map.len, Relaxed);
            self.classes[class].free.lock().push(map);
        }
    }
}

/// The part of a [`Pool`] that the connections of one address hold.
pub(crate) struct Account {
    pool: Arc<Pool>,
    held: AtomicUsize,
    /// Connections of the address.
    pub(crate) connections: AtomicUsize,
}

impl Account {
    /// Returns the account of an address without connections.
    pub(crate) fn new(pool: Arc<Pool>) -> Arc<Self> {
        Arc::new(Self { pool, held: AtomicUsize::new(0), connections: AtomicUsize::new(0) })
    }

    /// Returns the bytes that the address's connections hold.
    pub(crate) fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Returns the bytes in use by all addresses up to which this address gets `more` bytes.
    fn bound(&self, more: usize) -> usize {
        let pool = &self.pool;
        // All shares together are the last quarter, so the memory of other addresses beyond the bound does not count.
        if self.held() + more <= pool.share() {
            usize::MAX
        } else {
            pool.unpromised().saturating_sub(pool.limit / SHARED)
        }
    }

    /// Returns true if the address gets no more memory, once all requests in flight have replies.
    pub(crate) fn full(&self) -> bool {
        self.pool.used() >= self.bound(SMALL)
    }

    /// Returns true if a buffer of `size` bytes is available and three quarters of the memory stay free. Then the
    /// announced length of a record may be reserved before the record has arrived.
    pub(crate) fn has_plenty(&self, size: usize) -> bool {
        self.pool.used() + size <= self.pool.limit / SHARED && self.held() + size <= self.pool.limit / 8
    }

    /// Counts a request in flight that may call [`lease_payload`](Self::lease_payload).
    pub(crate) fn promise(&self) {
        self.pool.promised.fetch_add(SMALL, Relaxed);
    }

    /// Ends the promise of a request, because the request is answered.
    pub(crate) fn fulfil(&self) {
        self.pool.promised.fetch_sub(SMALL, Relaxed);
    }

    /// Returns a buffer of at least `size` bytes for a record. Returns none if the limit does not allow the buffer, or
    /// `size` is beyond the largest. One buffer at a time is lent beyond the limit. Otherwise partial records that fill
    /// the memory, and all need a larger buffer, would wait for each other.
    pub(crate) fn lease(self: &Arc<Self>, size: usize) -> Option<PooledBuf> {
        let class = self.pool.classes.iter().position(|class| class.size >= size)?;
        if let Some(buf) = self.lease_class(class, false) {
            return Some(buf);
        }
        if self.pool.extra.swap(true, Relaxed) {
            return None;
        }
        match self.lease_class(class, true) {
            Some(mut buf) => {
                buf.extra = true;
                Some(buf)
            }
            None => {
                self.pool.extra.store(false, Relaxed);
                None
            }
        }
    }

    /// Returns a buffer for up to `size` bytes of reply payload: a smaller one when memory is short. The buffer has at
    /// least [`SMALL`] bytes as long as the system gives memory at all.
    pub(crate) fn lease_payload(self: &Arc<Self>, size: usize) -> Option<PooledBuf> {
        let top = self.pool.classes.iter().position(|class| class.size >= size).unwrap_or(CLASSES - 1);
        (0..=top).rev().find_map(|class| self.lease_class(class, class == 0))
    }

    fn lease_class(self: &Arc<Self>, class: usize, overdraw: bool) -> Option<PooledBuf> {
        let pool = &*self.pool;
        let size = pool.classes[class].size;
        let bound = self.bound(size);
        // A refused lease must not count even for a moment: many at once would keep each other from the last bytes.
        let more = |used| (overdraw || used + size <= bound).then_some(used + size);
        let before = pool.used.fetch_update(Relaxed, Relaxed, more).ok()?;
        let cached = pool.classes[class].free.lock().pop();
        let map = match cached {
            Some(map) => {
                pool.cached.fetch_sub(size, Relaxed);
                map
            }
            None => {
                pool.shrink_cache(pool.limit.saturating_sub(before + size));
                match Mapping::new(size) {
                    Some(map) => map,
                    None => {
                        pool.used.fetch_sub(size, Relaxed);
                        return None;
                    }
                }
            }
        };
        self.held.fetch_add(size, Relaxed);
        Some(PooledBuf { map: Some(map), class, extra: false, account: Arc::clone(self) })
    }

    /// Returns a pipe for `bytes` of reply payload; none if memory is short or there are no more pipes.
    pub(crate) fn lease_pipe(&self, bytes: usize) -> Option<Pipe> {
        if self.pool.used() + bytes > self.bound(bytes) { None } else { self.pool.pipes.lease() }
    }

    /// Takes a pipe back. An empty pipe is used again.
    pub(crate) fn give_back_pipe(&self, pipe: Pipe, empty: bool) {
        self.pool.pipes.give_back(pipe, empty);
    }

    /// Counts `bytes` held outside the pool's own buffers until the charge is dropped.
    pub(crate) fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        self.pool.used.fetch_add(bytes, Relaxed);
        self.held.fetch_add(bytes, Relaxed);
        Charge { bytes, account: Arc::clone(self) }
    }
}

/// Bytes counted as used for as long as this lives.
pub(crate) struct Charge {
    bytes: usize,
    account: Arc<Account>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.pool.used.fetch_sub(self.bytes, Relaxed);
        self.account.held.fetch_sub(self.bytes, Relaxed);
    }
}

/// A buffer on loan from a [`Pool`]. Its contents are left over from its last use.
pub(crate) struct PooledBuf {
    /// Present until drop.
    map: Option<Mapping>,
    class: usize,
    extra: bool,
    account: Arc<Account>,
}

impl Deref for PooledBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.map {
            // SAFETY: the mapping is len bytes, readable, zero-filled by the kernel at first, owned by self.
            Some(map) => unsafe { std::slice::from_raw_parts(map.start.as_ptr(), map.len) },
            None => &[],
        }
    }
}

impl DerefMut for PooledBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.map {
            // SAFETY: as in deref; &mut self makes the access exclusive.
            Some(map) => unsafe { std::slice::from_raw_parts_mut(map.start.as_ptr(), map.len) },
            None => &mut [],
        }
    }
}

impl Drop for PooledBuf {
    fn drop(&mut self) {
        if let Some(map) = self.map.take() {
            let pool = &self.account.pool;
            if self.extra {
                pool.extra.store(false, Relaxed);
            }
            self.account.held.fetch_sub(map.len, Relaxed);
            pool.give_back(map, self.class);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the only address of a pool, and the pool.
    fn alone(largest: usize, limit: usize) -> (Arc<Account>, Arc<Pool>) {
        let pool = Pool::new(largest, limit);
        (Account::new(pool.clone()), pool)
    }

    #[test]
    fn the_limit_holds_and_buffers_come_back() {
        let (account, pool) = alone(1 << 20, 4 << 20);
        let mut held: Vec<_> = std::iter::from_fn(|| account.lease(1 << 20)).collect();
        assert_eq!(held.len(), 4, "three quarters, and the one extra");
        held.pop();
        assert!(account.full());
        held.pop();
        assert!(account.lease(1 << 20).is_some());
        held.clear();
        assert_eq!(pool.used(), 0);
        assert!(pool.cached.load(Relaxed) <= 4 << 20);
    }

    #[test]
    fn an_address_gets_its_share_whatever_another_holds() {
        let (greedy, pool) = alone(1 << 20, 16 << 20);
        let other = Account::new(pool.clone());
        pool.addresses.store(2, Relaxed);
        let mut held: Vec<_> = std::iter::from_fn(|| greedy.lease(1 << 20)).collect();
        held.extend(std::iter::from_fn(|| greedy.lease(SMALL)));
        assert!(greedy.full() && !other.full());
        // The sixteenth part of 16 MiB each, twice.
        let theirs: Vec<_> = (0..2).map(|_| other.lease(1 << 20).unwrap()).collect();
        assert!(other.full() && other.lease(1 << 20).is_none());
        drop(theirs);
        assert_eq!(other.lease_payload(1 << 20).unwrap().len(), 1 << 20);
        assert!(other.lease_pipe(1 << 20).is_some() && greedy.lease_pipe(1 << 20).is_none());
        drop(held);
        assert!(!greedy.full() && greedy.held() == 0);
    }

    #[test]
    fn what_is_in_flight_gets_small_payloads_within_the_limit() {
        let (account, pool) = alone(1 << 20, 4 << 20);
        (0..64).for_each(|_| account.promise());
        let payloads: Vec<_> = (0..64).map(|_| account.lease_payload(1 << 20).unwrap()).collect();
        assert_eq!(payloads.iter().map(|payload| payload.len()).max(), Some(1 << 20));
        assert!(pool.used() <= 4 << 20 && account.full(), "{} bytes", pool.used());
        drop(payloads);
        assert!(account.lease_pipe(2 << 20).is_some() && account.lease_pipe(3 << 20).is_none());
        assert!(!account.full());
        (0..64).for_each(|_| account.fulfil());
        let held: Vec<_> = std::iter::from_fn(|| account.lease(1 << 20)).collect();
        assert_eq!(held.len(), 4, "and the one extra");
    }

    #[test]
    fn what_is_refused_never_counts() {
        let (account, pool) = alone(1 << 20, 4 << 20);
        let held: Vec<_> = std::iter::from_fn(|| account.lease(1 << 20)).collect();
        let full = pool.used();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        assert!(account.lease(1 << 20).is_none());
                    }
                });
            }
            let most = (0..1_000_000).map(|_| pool.used()).max();
            stop.store(true, Relaxed);
            assert_eq!(most, Some(full));
        });
        drop(held);
    }

    #[test]
    fn a_payload_gets_less_when_memory_is_short() {
        let (account, _) = alone(1 << 20, ((1 << 20) + (70 << 10)) / 3 * 4);
        let first = account.lease_payload(1 << 20).unwrap();
        assert_eq!(first.len(), 1 << 20);
        let second = account.lease_payload(1 << 20).unwrap();
        assert_eq!(second.len(), 64 << 10);
        let third = account.lease_payload(1 << 20).unwrap();
        assert_eq!(third.len(), SMALL);
    }

    #[test]
    fn cached_buffers_of_one_size_make_room_for_another() {
        let (account, pool) = alone(1 << 20, 4 << 20);
        drop((0..192).map(|_| account.lease(SMALL).unwrap()).collect::<Vec<_>>());
        assert_eq!(pool.cached.load(Relaxed), 3 << 20);
        let large: Vec<_> = (0..3).map(|_| account.lease_payload(1 << 20).unwrap()).collect();
        assert_eq!(pool.cached.load(Relaxed), 1 << 20);
        assert_eq!(pool.used(), large.iter().map(|buf| buf.len()).sum());
    }

    #[test]
    fn what_is_not_needed_goes_back_to_the_system() {
        let (account, pool) = alone(1 << 20, 1 << 30);
        drop((0..4).map(|_| account.lease(1 << 20).unwrap()).collect::<Vec<_>>());
        pool.trim();
        assert_eq!(pool.cached.load(Relaxed), 4 << 20, "they were needed since the last time");
        drop((0..3).map(|_| account.lease(1 << 20).unwrap()).collect::<Vec<_>>());
        pool.trim();
        assert_eq!(pool.cached.load(Relaxed), 3 << 20);
        pool.trim();
        assert!(!pool.has_cached());
    }

    #[test]
    fn nothing_beyond_the_largest_size() {
        assert!(alone(1 << 20, 1 << 30).0.lease((1 << 20) + 1).is_none());
    }
}
