//! The part of the pool that one address holds: it leases buffers and counts other memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::buffer::{Mapping, PooledBuf};
use super::{Pool, SHARED, SMALL};
use crate::admission::Admission;
use crate::rate::Rate;
use crate::splice::Pipe;

/// The part of a [`Pool`] that the connections of one address hold.
pub(crate) struct Account {
    pub(super) pool: Arc<Pool>,
    /// The bytes of buffers and charges that the connections of the address hold.
    pub(super) held: AtomicUsize,
    /// Connections of the address.
    pub(crate) connections: AtomicUsize,
    /// The limit on what the address does in a second.
    pub(crate) rate: Rate,
    /// The bound on the requests in flight of the address.
    pub(crate) admission: Admission,
}

impl Account {
    /// Returns the account of an address without connections.
    pub(crate) fn new(pool: Arc<Pool>) -> Arc<Self> {
        let [held, connections] = std::array::from_fn(|_| AtomicUsize::new(0));
        Arc::new(Self { pool, held, connections, rate: Rate::default(), admission: Admission::new() })
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
            pool.unpromised().saturating_sub(pool.limit() / SHARED)
        }
    }

    /// Returns true if the address gets no more memory, once all requests in flight have replies.
    pub(crate) fn full(&self) -> bool {
        self.pool.used() >= self.bound(SMALL)
    }

    /// Returns true if a buffer of `size` bytes is available and three quarters of the memory stay free. Then the
    /// announced length of a record may be reserved before the record has arrived.
    pub(crate) fn has_plenty(&self, size: usize) -> bool {
        self.pool.used() + size <= self.pool.limit() / SHARED && self.held() + size <= self.pool.limit() / 8
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
        let classes = &self.pool.classes;
        let top = classes.iter().position(|class| class.size >= size).unwrap_or(classes.len() - 1);
        (0..=top).rev().find_map(|class| self.lease_class(class, class == 0))
    }

    /// Returns a buffer of a size class, from the cache of the pool or newly mapped. Returns `None` beyond the bound
    /// of the address, unless `overdraw`, and if the system has no memory.
    fn lease_class(self: &Arc<Self>, class: usize, overdraw: bool) -> Option<PooledBuf> {
        let pool = &*self.pool;
        let size = pool.classes[class].size;
        let before = self.take(size, overdraw)?;
        let cached = pool.classes[class].free.lock().pop();
        let map = match cached {
            Some(map) => {
                pool.cached.fetch_sub(size, Relaxed);
                map
            }
            None => {
                pool.shrink_cache(pool.limit().saturating_sub(before + size));
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

    /// Counts `bytes` like [`charge`](Self::charge), unless that exceeds the bound of the address.
    pub(crate) fn try_charge(self: &Arc<Self>, bytes: usize) -> Option<Charge> {
        self.take(bytes, false)?;
        self.held.fetch_add(bytes, Relaxed);
        Some(Charge { bytes, account: Arc::clone(self) })
    }

    /// Counts `bytes` as used in the pool, unless that exceeds the bound of the address. Returns the bytes that were
    /// used before.
    fn take(&self, bytes: usize, overdraw: bool) -> Option<usize> {
        let bound = self.bound(bytes);
        // Bytes that are refused must not count even for a moment: many at once would keep each other from the last
        // bytes.
        let more = |used| (overdraw || used + bytes <= bound).then_some(used + bytes);
        self.pool.used.fetch_update(Relaxed, Relaxed, more).ok()
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
