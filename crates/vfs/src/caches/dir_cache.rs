//! The directory cache: listings of directories, held in memory. Entries are in the order of their cookies, with
//! attributes and handles as they were seen. So a directory that is listed again is asked only for its own attributes.
//!
//! Invariants:
//! - A listing belongs to one state of a directory; in another state it does not count.
//! - It begins with the directory's first entry and has no gaps, and its cookies grow. A file system whose cookies do
//!   not grow gets no listing.
//! - All listings together stay within the limit of [`Listings`].

mod listings;
mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_common::lock::{Mutex, MutexGuard};

use crate::caches::stamp::Stamp;
use crate::sys::KernelHandle;
pub use listings::Listings;
use run::Entry;
pub(crate) use run::{ListedEntry, Run, Seen};

/// The subject of a listing: a state of the directory, seen through an export, whose number is in the handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) stamp: Stamp,
    pub(crate) export: u32,
}

/// The time of an entry that counts until its inode changes, which it does as long as the kernel reports external
/// changes.
pub(crate) const CHANGE: u64 = u64::MAX;

/// The queue of [`Listings`] in which a listing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    /// The listing is new, and no request has asked for it again.
    New,
    Proven,
}

/// A directory's part of the directory cache.
#[derive(Debug)]
pub(crate) struct DirCache {
    /// The directory's handle, by which it is known again after its listing was dropped.
    kernel: KernelHandle,
    listing: Mutex<Listing>,
}

impl DirCache {
    /// Returns the cache of a directory, without a listing.
    pub(crate) fn new(kernel: KernelHandle, listings: Arc<Listings>) -> Self {
        DirCache { kernel, listing: Mutex::new(Listing::new(listings)) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Listing> {
        self.listing.lock()
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Listing>> {
        self.listing.try_lock()
    }
}

/// The listing of one directory; empty at first.
#[derive(Debug)]
pub(crate) struct Listing {
    state: Option<State>,
    run: Run,
    /// True if the last entry is the directory's last.
    ends: bool,
    /// Uses since the hand of eviction came by, up to [`USES`].
    uses: u8,
    tier: Option<Tier>,
    /// The bytes that the listing takes by the count of its tier.
    counted: usize,
    /// Its entries by the common count.
    counted_entries: usize,
    listings: Arc<Listings>,
}

/// More uses than this count no more.
const USES: u8 = 3;

impl Listing {
    /// Returns a listing without entries.
    fn new(listings: Arc<Listings>) -> Self {
        Listing {
            state: None,
            run: Run::default(),
            ends: false,
            uses: 0,
            tier: None,
            counted: 0,
            counted_entries: 0,
            listings,
        }
    }

    /// Returns the place of the first entry behind `cookie`, if that is known in this state.
    pub(crate) fn find(&mut self, state: State, cookie: u64) -> Option<usize> {
        if self.state != Some(state) || self.run.entries.is_empty() {
            return None;
        }
        if cookie == 0 {
            self.uses = USES.min(self.uses + 1);
            return Some(0);
        }
        self.run.entries.binary_search_by_key(&cookie, |entry| entry.cookie).ok().map(|at| at + 1)
    }

    pub(crate) fn get(&self, at: usize) -> Option<ListedEntry<'_>> {
        self.run.get(at)
    }

    /// Returns true if this is the directory's listing in this state.
    pub(crate) fn is_of(&self, state: State) -> bool {
        self.state == Some(state)
    }

    /// Returns true if nothing comes behind the last entry.
    pub(crate) fn ends(&self) -> bool {
        self.ends
    }

    /// Replaces the attributes of the entry at this place, in this state, after they were read again. If `seen` has
    /// another inode than the entry, or is `None`, the entry's attributes are forgotten.
    pub(crate) fn look_again(&mut self, state: State, at: usize, seen: Option<Seen>) {
        let Some(entry) = self.run.entries.get_mut(at).filter(|_| self.state == Some(state)) else { return };
        let from = entry.text as usize + usize::from(entry.name);
        let same = |seen: &Seen| self.run.text[from..].starts_with(seen.handle.as_slice());
        let seen = seen.filter(|seen| entry.handle == seen.handle.as_slice().len() as u8 && same(seen));
        entry.seen = seen.map(|seen| (seen.attr, seen.version, seen.until));
    }

    /// Goes on behind `cookie` with entries of the directory of `owner` in this state; `ends`: they reach its end.
    /// Nothing happens where they do not go on from the last one, or there is no room.
    pub(crate) fn extend(&mut self, owner: &Arc<DirCache>, state: State, cookie: u64, run: &Run, ends: bool) {
        if self.state != Some(state) {
            self.clear();
            self.state = Some(state);
        }
        let last = self.run.entries.last().map_or(0, |entry| entry.cookie);
        if self.ends || cookie != last || !run.grows_from(cookie) {
            return;
        }
        // Larger listings grow in larger steps, since each step copies the present entries.
        let step = |have: usize, more: usize| more.max(have / 8);
        let entries = step(self.run.entries.len(), run.entries.len());
        let text = step(self.run.text.len(), run.text.len());
        self.tier.get_or_insert_with(|| self.listings.enter(owner));
        if !self.listings.make_room(self.counted, entries * size_of::<Entry>() + text) {
            return;
        }
        self.run.entries.reserve_exact(entries);
        self.run.text.reserve_exact(text);
        self.ends = self.run.append(run) && ends;
        self.count();
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// Drops the listing, and counts its memory as free.
    pub(crate) fn clear(&mut self) {
        (self.state, self.run, self.ends, self.uses) = (None, Run::default(), false, 0);
        self.count();
    }

    /// Asserts the invariants of a listing: its entries begin at the directory's first one and their cookies grow, and
    /// the counts of its memory are right.
    pub(crate) fn check(&self) {
        assert!(self.run.grows_from(0), "cookies grow");
        assert!(self.state.is_some() || self.run.entries.is_empty(), "entries belong to a state");
        let counted = (self.run.bytes(), self.run.entries.len());
        assert!(self.tier.is_none() || counted == (self.counted, self.counted_entries), "counts");
    }

    /// Updates the count of the bytes that the listing takes.
    fn count(&mut self) {
        if let Some(tier) = self.tier {
            let (listings, bytes, entries) = (&*self.listings, self.run.bytes(), self.run.entries.len());
            recount(listings.taken(tier), &mut self.counted, bytes);
            recount(&listings.entries, &mut self.counted_entries, entries);
        }
    }

    /// Moves the listing to the tier of listings that were used again.
    fn promote(&mut self) {
        let counted = std::mem::take(&mut self.counted);
        self.listings.new.fetch_sub(counted, Ordering::Relaxed);
        self.tier = Some(Tier::Proven);
        self.count();
    }
}

/// Replaces the size of a `part` in the `total` by `now`.
fn recount(total: &AtomicUsize, part: &mut usize, now: usize) {
    total.fetch_add(now, Ordering::Relaxed);
    total.fetch_sub(std::mem::replace(part, now), Ordering::Relaxed);
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests;
