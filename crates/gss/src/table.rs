//! The contexts of clients, bounded in number and age.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;

/// Bounds of the contexts. A client that loses its context to a bound gets RPCSEC_GSS_CREDPROBLEM, and makes a new one.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Established contexts in all. One takes about 8 KiB.
    pub contexts: usize,
    /// Established contexts of one address. A host has one for each of its users.
    pub per_address: usize,
    /// Contexts that need another token.
    pub half_open: usize,
    /// Longest life of a context, also if its ticket lasts longer.
    pub life: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { contexts: 8192, per_address: 1024, half_open: 64, life: Duration::from_secs(24 * 3600) }
    }
}

/// The time in which a client has to send the next token.
const HALF_OPEN: Duration = Duration::from_secs(60);

/// The length of a handle in bytes.
const LEN: usize = 16;

/// A number that stands for a context. Its first half differs from one start of the server to the next, so that no
/// handle leads to another client's context.
pub(crate) type Handle = [u8; LEN];

/// A table of established contexts `E`, and of half-open ones `H`.
pub(crate) struct Table<E, H> {
    limits: Limits,
    /// The first half of every handle.
    start: [u8; LEN / 2],
    inner: Mutex<Inner<E, H>>,
}

struct Inner<E, H> {
    established: HashMap<Handle, Slot<E>>,
    /// The contexts that need another token, oldest first.
    half_open: VecDeque<(Handle, H, Instant)>,
    by_address: HashMap<IpAddr, usize>,
    /// Counts uses, for the least recent one.
    clock: u64,
    next: u64,
}

struct Slot<E> {
    entry: Arc<E>,
    address: IpAddr,
    until: Instant,
    used: u64,
}

impl<E, H> Table<E, H> {
    /// Returns an empty table. `start` begins all handles, so that handles of an earlier server name nothing.
    pub(crate) fn new(limits: Limits, start: [u8; LEN / 2]) -> Self {
        let inner = Inner {
            established: HashMap::new(),
            half_open: VecDeque::new(),
            by_address: HashMap::new(),
            clock: 0,
            next: 0,
        };
        Table { limits, start, inner: Mutex::new(inner) }
    }

    /// Returns a handle that was never given out.
    fn handle(&self, inner: &mut Inner<E, H>) -> Handle {
        inner.next += 1;
        let mut handle = [0; LEN];
        handle[..LEN / 2].copy_from_slice(&self.start);
        handle[LEN / 2..].copy_from_slice(&inner.next.to_be_bytes());
        handle
    }

    /// Keeps an established context until `life` has passed. At a bound the context that was not used for longest goes:
    /// one of `address` if that address has too many, else one of the address with most contexts.
    pub(crate) fn insert(&self, entry: Arc<E>, address: IpAddr, life: Duration, now: Instant) -> Handle {
        let mut inner = self.inner.lock();
        let handle = self.handle(&mut inner);
        let is_full = |inner: &Inner<E, H>| {
            inner.established.len() >= self.limits.contexts
                || inner.by_address.get(&address).is_some_and(|count| *count >= self.limits.per_address)
        };
        if is_full(&inner) {
            inner.expire(now);
        }
        if inner.by_address.get(&address).is_some_and(|count| *count >= self.limits.per_address) {
            inner.drop_oldest_of(address);
        } else if inner.established.len() >= self.limits.contexts {
            let most = inner.by_address.iter().max_by_key(|(_, count)| **count).map(|(address, _)| *address);
            most.into_iter().for_each(|address| inner.drop_oldest_of(address));
        }
        inner.clock += 1;
        let slot = Slot { entry, address, until: now + life.min(self.limits.life), used: inner.clock };
        inner.established.insert(handle, slot);
        *inner.by_address.entry(address).or_default() += 1;
        handle
    }

    /// Returns an established context, unless its time is over.
    pub(crate) fn get(&self, handle: &[u8], now: Instant) -> Option<Arc<E>> {
        let handle = Handle::try_from(handle).ok()?;
        let mut inner = self.inner.lock();
        inner.clock += 1;
        let clock = inner.clock;
        let slot = inner.established.get_mut(&handle)?;
        if now < slot.until {
            slot.used = clock;
            return Some(slot.entry.clone());
        }
        inner.remove(&handle);
        None
    }

    /// Removes an established context.
    pub(crate) fn remove(&self, handle: &[u8]) {
        if let Ok(handle) = Handle::try_from(handle) {
            self.inner.lock().remove(&handle);
        }
    }

    /// Keeps a half-open context for a minute. At the bound the oldest one goes.
    pub(crate) fn begin(&self, context: H, now: Instant) -> Handle {
        let mut inner = self.inner.lock();
        let handle = self.handle(&mut inner);
        if inner.half_open.len() >= self.limits.half_open {
            inner.half_open.pop_front();
        }
        inner.half_open.push_back((handle, context, now));
        handle
    }

    /// Takes a half-open context out.
    pub(crate) fn go_on(&self, handle: &[u8], now: Instant) -> Option<H> {
        let mut inner = self.inner.lock();
        inner.half_open.retain(|(.., since)| now.duration_since(*since) < HALF_OPEN);
        let at = inner.half_open.iter().position(|(known, ..)| known == handle)?;
        inner.half_open.remove(at).map(|(_, context, _)| context)
    }

    /// Returns the number of established contexts.
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().established.len()
    }
}

impl<E, H> Inner<E, H> {
    /// Removes an established context and counts it out of its address.
    fn remove(&mut self, handle: &Handle) {
        let Some(slot) = self.established.remove(handle) else { return };
        if let Some(count) = self.by_address.get_mut(&slot.address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&slot.address);
            }
        }
    }

    /// Removes the contexts whose time is over.
    fn expire(&mut self, now: Instant) {
        let over = |slot: &Slot<E>| now >= slot.until;
        let handles: Vec<_> =
            self.established.iter().filter(|(_, slot)| over(slot)).map(|(handle, _)| *handle).collect();
        handles.iter().for_each(|handle| self.remove(handle));
    }

    /// Removes the context of an address that was unused for the longest time.
    fn drop_oldest_of(&mut self, address: IpAddr) {
        let own = self.established.iter().filter(|(_, slot)| slot.address == address);
        let oldest = own.min_by_key(|(_, slot)| slot.used).map(|(handle, _)| *handle);
        oldest.iter().for_each(|handle| self.remove(handle));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn table(contexts: usize, per_address: usize) -> Table<u32, u32> {
        Table::new(Limits { contexts, per_address, half_open: 2, life: 10 * HOUR }, [7; 8])
    }

    fn host(number: u8) -> IpAddr {
        [192, 0, 2, number].into()
    }

    #[test]
    fn an_address_at_its_bound_loses_its_own_context_that_was_not_used_for_longest() {
        let (table, now) = (table(100, 2), Instant::now());
        let other = table.insert(Arc::new(9), host(9), HOUR, now);
        let first = table.insert(Arc::new(1), host(1), HOUR, now);
        let second = table.insert(Arc::new(2), host(1), HOUR, now);
        assert_eq!(table.get(&first, now).as_deref(), Some(&1));
        let third = table.insert(Arc::new(3), host(1), HOUR, now);
        let there = [other, first, second, third].map(|handle| table.get(&handle, now).is_some());
        assert_eq!(there, [true, true, false, true]);
    }

    #[test]
    fn a_full_table_takes_from_the_address_that_has_most() {
        let (table, now) = (table(3, 3), Instant::now());
        let quiet = table.insert(Arc::new(0), host(1), HOUR, now);
        let greedy = [1, 2].map(|number| table.insert(Arc::new(number), host(2), HOUR, now));
        let late = table.insert(Arc::new(3), host(3), HOUR, now);
        assert!(table.get(&quiet, now).is_some() && table.get(&late, now).is_some());
        assert!(table.get(&greedy[0], now).is_none() && table.get(&greedy[1], now).is_some());
        assert_eq!(table.len(), 3);
    }

    #[test]
    fn contexts_end_with_their_ticket_or_the_bound() {
        let (table, now) = (table(2, 2), Instant::now());
        let short = table.insert(Arc::new(1), host(1), HOUR, now);
        let long = table.insert(Arc::new(2), host(1), 100 * HOUR, now);
        assert!(table.get(&short, now + HOUR).is_none() && table.get(&long, now + HOUR).is_some());
        assert!(table.get(&long, now + 10 * HOUR).is_none());
        assert_eq!(table.len(), 0);
        // Contexts whose time is over make room before live ones do.
        let dead = table.insert(Arc::new(3), host(1), HOUR, now);
        let live = table.insert(Arc::new(4), host(1), 3 * HOUR, now);
        table.get(&dead, now);
        table.insert(Arc::new(5), host(1), HOUR, now + 2 * HOUR);
        assert!(table.get(&live, now + 2 * HOUR).is_some());
    }

    #[test]
    fn handles_are_never_used_again() {
        let (table, now) = (table(2, 2), Instant::now());
        let first = table.insert(Arc::new(1), host(1), HOUR, now);
        table.remove(&first);
        table.remove(b"no handle");
        assert!(table.get(&first, now).is_none() && table.get(b"", now).is_none());
        assert_ne!(table.insert(Arc::new(1), host(1), HOUR, now), first);
    }

    #[test]
    fn a_half_open_context_is_taken_once_within_a_minute() {
        let (table, now) = (table(2, 2), Instant::now());
        let handles = [1, 2, 3].map(|number| table.begin(number, now));
        assert_eq!(table.go_on(&handles[0], now), None, "the oldest went at the bound");
        assert_eq!(table.go_on(&handles[1], now), Some(2));
        assert_eq!(table.go_on(&handles[1], now), None);
        assert_eq!(table.go_on(&handles[2], now + HALF_OPEN), None);
    }
}
