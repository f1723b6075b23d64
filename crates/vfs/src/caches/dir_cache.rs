//! The directory cache: listings of directories, held in memory. Entries are in the order of their cookies, with
//! attributes and handles as they were seen. So a directory that is listed again is asked only for its own attributes.
//!
//! Invariants:
//! - A listing belongs to one state of a directory; in another state it does not count.
//! - It begins with the directory's first entry and has no gaps, and its cookies grow. A file system whose cookies do
//!   not grow gets no listing.
//! - All listings together stay within the limit of [`Listings`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use forebay_common::lock::{Mutex, MutexGuard};

use crate::attr::Attr;
use crate::caches::stamp::Stamp;
use crate::caches::versions::Version;
use crate::handle::Handle;
use crate::sys::KernelHandle;

/// The subject of a listing: a state of the directory, seen through an export, whose number is in the handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) stamp: Stamp,
    pub(crate) export: u32,
}

/// The time of an entry that counts until its inode changes, which it does as long as the kernel reports external
/// changes.
pub(crate) const CHANGE: u64 = u64::MAX;

/// The inode of an entry, as it was when it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) attr: Attr,
    pub(crate) handle: Handle,
    /// Under which that holds.
    pub(crate) version: Version,
    /// Up to when it is believed, in milliseconds of the monotonic clock, or [`CHANGE`].
    pub(crate) until: u64,
}

/// An entry; its name and handle are in the listing's text.
#[derive(Clone, Copy, Debug)]
struct Entry {
    cookie: u64,
    ino: u64,
    text: u32,
    name: u8,
    handle: u8,
    /// The attributes of the entry's inode; `None` if they have to be read each time.
    seen: Option<(Attr, Version, u64)>,
}

/// Entries in a row.
#[derive(Debug, Default)]
pub(crate) struct Run {
    entries: Vec<Entry>,
    text: Vec<u8>,
}

/// An entry as a listing has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedEntry<'a> {
    pub(crate) cookie: u64,
    pub(crate) ino: u64,
    pub(crate) name: &'a [u8],
    pub(crate) seen: Option<Seen>,
}

impl Run {
    /// Adds an entry behind the last one. An entry that finds no room ends the row; the cookies show that.
    pub(crate) fn push(&mut self, cookie: u64, ino: u64, name: &[u8], seen: Option<Seen>) {
        let (Ok(text), Ok(len)) = (u32::try_from(self.text.len()), u8::try_from(name.len())) else { return };
        self.text.extend_from_slice(name);
        let handle = seen.as_ref().map_or(&[][..], |seen| seen.handle.as_slice());
        self.text.extend_from_slice(handle);
        let seen = seen.map(|seen| (seen.attr, seen.version, seen.until));
        self.entries.push(Entry { cookie, ino, text, name: len, handle: handle.len() as u8, seen });
    }

    fn get(&self, at: usize) -> Option<ListedEntry<'_>> {
        let entry = self.entries.get(at)?;
        let (name, rest) = self.text[entry.text as usize..].split_at(entry.name.into());
        let handle = &rest[..entry.handle.into()];
        let seen = entry.seen.map(|(attr, version, until)| Seen {
            attr,
            handle: Handle::of(handle),
            version,
            until,
        });
        Some(ListedEntry { cookie: entry.cookie, ino: entry.ino, name, seen })
    }

    fn grows_from(&self, cookie: u64) -> bool {
        let cookies = self.entries.iter().map(|entry| entry.cookie);
        std::iter::once(cookie).chain(cookies.clone()).zip(cookies).all(|(one, next)| one < next)
    }

    /// Appends `more` as far as offsets into the text go; false: nothing was appended.
    fn append(&mut self, more: &Run) -> bool {
        let Ok(base) = u32::try_from(self.text.len() + more.text.len()) else { return false };
        let base = base - more.text.len() as u32;
        self.entries.extend(more.entries.iter().map(|entry| Entry { text: base + entry.text, ..*entry }));
        self.text.extend_from_slice(&more.text);
        true
    }

    fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.text.capacity()
    }
}

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
    }

    pub(crate) fn clear(&mut self) {
        (self.state, self.run, self.ends, self.uses) = (None, Run::default(), false, 0);
        self.count();
    }

    /// Updates the count of the bytes that the listing takes.
    fn count(&mut self) {
        if let Some(tier) = self.tier {
            let (listings, bytes, entries) = (&*self.listings, self.run.bytes(), self.run.entries.len());
            recount(listings.taken(tier), &mut self.counted, bytes);
            recount(&listings.entries, &mut self.counted_entries, entries);
        }
    }

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

/// All listings in memory: S3-FIFO over directories (Yang et al., SOSP 2023). A listing that was asked for once waits
/// in a short queue and leaves from there. So a walk over a large tree does not displace listings that are asked for
/// again and again.
#[derive(Debug)]
pub struct Listings {
    limit: usize,
    entries: AtomicUsize,
    new: AtomicUsize,
    proven: AtomicUsize,
    queues: Mutex<Queues>,
    /// The number of pages of listings that were answered from memory alone. `misses` counts the pages that were not.
    pub hits: AtomicU64,
    /// See [`Listings::hits`].
    pub misses: AtomicU64,
}

#[derive(Debug, Default)]
struct Queues {
    new: VecDeque<Weak<DirCache>>,
    proven: VecDeque<Weak<DirCache>>,
    /// Directories whose listings left the short queue last.
    ghosts: VecDeque<KernelHandle>,
    /// The length of the queues at which the entries of dropped listings are removed.
    sweep_at: usize,
}

/// When memory is full, listings asked for once leave first if they take more than one in this number of bytes.
const NEW_SHARE: usize = 10;
const GHOSTS: usize = 1024;
/// The number of listings that are examined for room before a new listing goes on without room.
const STEPS: usize = 4096;
const SWEEP: usize = 1024;

impl Listings {
    /// Creates the directory cache; the listings of all directories may take `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        let none = || AtomicU64::new(0);
        let [entries, new, proven] = std::array::from_fn(|_| AtomicUsize::new(0));
        Listings { limit, entries, new, proven, queues: Mutex::default(), hits: none(), misses: none() }
    }

    /// Entries of all of them.
    pub fn entries(&self) -> usize {
        self.entries.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the listings take.
    pub fn bytes(&self) -> usize {
        self.new.load(Ordering::Relaxed) + self.proven.load(Ordering::Relaxed)
    }

    fn taken(&self, tier: Tier) -> &AtomicUsize {
        match tier {
            Tier::New => &self.new,
            Tier::Proven => &self.proven,
        }
    }

    /// Enters a directory that gets a listing.
    fn enter(&self, owner: &Arc<DirCache>) -> Tier {
        let mut queues = self.queues.lock();
        if queues.new.len() + queues.proven.len() >= queues.sweep_at {
            queues.new.retain(|owner| owner.strong_count() > 0);
            queues.proven.retain(|owner| owner.strong_count() > 0);
            queues.sweep_at = SWEEP + 2 * (queues.new.len() + queues.proven.len());
        }
        match queues.ghosts.iter().position(|ghost| *ghost == owner.kernel) {
            Some(at) => {
                queues.ghosts.remove(at);
                queues.proven.push_back(Arc::downgrade(owner));
                Tier::Proven
            }
            None => {
                queues.new.push_back(Arc::downgrade(owner));
                Tier::New
            }
        }
    }

    /// Drops listings until there is room for `more` bytes. Returns false if there is none. The caller holds the lock
    /// of its own listing of `own` bytes.
    fn make_room(&self, own: usize, more: usize) -> bool {
        if own + more > self.limit {
            return false;
        }
        let mut busy = 0;
        for _ in 0..STEPS {
            if self.bytes() + more <= self.limit {
                return true;
            }
            let crowded = self.new.load(Ordering::Relaxed) > self.limit / NEW_SHARE;
            let mut queues = self.queues.lock();
            let from = if crowded || queues.proven.is_empty() { Tier::New } else { Tier::Proven };
            let queue = if from == Tier::New { &mut queues.new } else { &mut queues.proven };
            let Some(weak) = queue.pop_front() else { return false };
            let Some(owner) = weak.upgrade() else { continue };
            // The thread that holds the lock may be making room as well.
            let Some(mut kept) = owner.try_lock() else {
                queue.push_back(weak);
                busy += 1;
                if busy > queue.len() {
                    return false;
                }
                continue;
            };
            if kept.uses > 0 {
                kept.uses = if from == Tier::New { 0 } else { kept.uses - 1 };
                if from == Tier::New {
                    kept.promote();
                }
                queues.proven.push_back(weak);
                continue;
            }
            kept.clear();
            kept.tier = None;
            if from == Tier::New {
                queues.ghosts.push_back(owner.kernel);
                if queues.ghosts.len() > GHOSTS {
                    queues.ghosts.pop_front();
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;
