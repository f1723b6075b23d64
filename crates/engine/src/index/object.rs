//! An object with cached blocks: its index, and what the backing store does not know of it yet.
//!
//! Invariants:
//! - Bytes of a cached block at or beyond the object's size are zero.
//! - While a fetch from the backing store is under way, every change of its range marks it stale: what it brings is
//!   never cached then.
//! - Only one of {destage, truncation} is under way; direct writes only while neither is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::Seq;
use crate::buffer::BLOCK;
use crate::format::key_hash;
use crate::index::account::Account;
use crate::index::leaf::{Entry, LEAF, Leaf, Page, SegmentId};
use crate::index::ranges::Ranges;
use crate::io::{Key, Time};
use crate::request::external_change::VersionWatch;
use crate::request::sync::Syncs;
use crate::request::unsynced::UnsyncedBlocks;
use crate::segments::Segments;
use crate::volume::Volume;
use crate::wait::Gate;
use forebay_common::lock::{Mutex, MutexGuard};

/// An object of the backing store, as the cache knows it.
#[derive(Debug)]
pub struct Object {
    /// In the order in which objects became known; of no other object of this engine.
    pub(crate) number: u64,
    pub(crate) key: Key,
    pub(crate) key_hash: u64,
    /// Where it is destaged.
    pub(crate) volume: Arc<Volume>,
    state: Mutex<State>,
    /// Something other tasks wait for has changed.
    pub(crate) changed: Gate,
    pub(crate) watch: VersionWatch,
}

/// Who has the object's backing file for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Busy {
    #[default]
    No,
    Destage,
    Truncate,
}

/// A read of the backing store under way.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) id: u64,
    pub(crate) blocks: Range<u64>,
    pub(crate) stale: bool,
    /// The object was cut within or behind it since: what it brings may be of two states.
    pub(crate) cut: bool,
    pub(crate) source: Source,
}

/// Where contents under way come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A read of the backing store: others may wait for what it brings.
    Backing,
    /// The cache itself.
    Cache,
    /// A client that writes them straight to the backing store.
    Client,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Logical size in bytes.
    pub(crate) size: u64,
    /// Whether `size` is known: recovery learns it late for objects with clean blocks only.
    pub(crate) sized: bool,
    /// The modification time destage has to give the backing file.
    pub(crate) mtime: Option<Time>,
    pub(crate) leaves: BTreeMap<u64, Leaf>,
    /// Dirty blocks; counted in `volume` and `account` as well.
    pub(crate) dirty: u64,
    pub(crate) volume: Arc<Volume>,
    pub(crate) account: Option<Arc<Account>>,
    /// Dirty blocks of which no copy can be read.
    pub(crate) damaged: BTreeSet<u64>,
    /// Position of the newest segment that has or had a copy; 0 for none. See [`State::may_be_copied`].
    pub(crate) copied: u64,
    /// Blocks of which copies that are loaded later do not count; nothing unless some are still to be loaded.
    pub(crate) voids: Ranges,
    /// In the destager's queue.
    pub(crate) queued: bool,
    pub(crate) busy: Busy,
    /// Direct writes to the backing store under way.
    pub(crate) directs: u32,
    pub(crate) syncs: Syncs,
    /// Blocks of the backing file that a power cut may take back.
    pub(crate) volatile: UnsyncedBlocks,
    pub(crate) fetches: Vec<Fetch>,
    pub(crate) next_fetch: u64,
    /// The segment held by a truncation that the backing store has not carried out yet.
    pub(crate) truncating: Option<SegmentId>,
    /// It has by now, and the log is being told.
    pub(crate) carried_out: bool,
    /// The log may have a modification time of the object.
    pub(crate) logged: bool,
    /// What the cache devices have of these blocks does not count, should they ever be seen again: see `pool/no_device.rs`.
    pub(crate) disowned: Ranges,
    /// Where the destager goes on.
    pub(crate) cursor: u64,
    /// The last frame that has something of the object.
    pub(crate) last_frame: Seq,
    /// The backing store lost the object.
    pub(crate) gone: bool,
}

/// The blocks that `len` bytes at `offset` touch.
pub(crate) fn blocks(offset: u64, len: u64) -> Range<u64> {
    let block = BLOCK as u64;
    offset / block..(offset + len).div_ceil(block)
}

fn split(block: u64) -> (u64, u32) {
    (block / LEAF, (block % LEAF) as u32)
}

impl Object {
    pub(crate) fn new(number: u64, key: Key, volume: Arc<Volume>) -> Self {
        let key_hash = key_hash(&key);
        Object {
            number,
            key,
            key_hash,
            state: Mutex::new(State { volume: volume.clone(), ..State::default() }),
            volume,
            changed: Gate::default(),
            watch: VersionWatch::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// What names it.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The size in bytes that clients see.
    pub fn size(&self) -> u64 {
        self.lock().size
    }

    /// What the backing store does not know yet: size in bytes and modification time. `None` if it knows everything.
    pub fn unsettled(&self) -> Option<(u64, Option<Time>)> {
        let state = self.lock();
        (state.dirty > 0 || state.mtime.is_some()).then_some((state.size, state.mtime))
    }

    /// Blocks whose contents the backing store does not have yet.
    pub fn dirty_blocks(&self) -> u64 {
        self.lock().dirty
    }
}

impl State {
    pub(crate) fn entry(&self, block: u64) -> Option<&Entry> {
        let (leaf, index) = split(block);
        self.leaves.get(&leaf)?.entry(index)
    }

    pub(crate) fn entry_mut(&mut self, block: u64) -> Option<&mut Entry> {
        let (leaf, index) = split(block);
        self.leaves.get_mut(&leaf)?.entry_mut(index)
    }

    pub(crate) fn page(&self, block: u64) -> Option<&Page> {
        let (leaf, index) = split(block);
        self.leaves.get(&leaf)?.page(index)
    }

    pub(crate) fn use_page(&mut self, block: u64) -> Option<&Page> {
        let (leaf, index) = split(block);
        self.leaves.get_mut(&leaf)?.use_page(index)
    }

    /// Puts a block into memory; true if it was not there.
    pub(crate) fn set_page(&mut self, block: u64, page: Page) -> bool {
        let (leaf, index) = split(block);
        self.leaves.entry(leaf).or_default().set_page(index, page)
    }

    /// Takes a block out of memory; true if it was there.
    pub(crate) fn remove_page(&mut self, block: u64) -> bool {
        let (number, index) = split(block);
        let Some(leaf) = self.leaves.get_mut(&number) else { return false };
        let removed = leaf.remove_page(index).is_some();
        if leaf.is_empty() {
            self.leaves.remove(&number);
        }
        removed
    }

    /// Whether a block is in memory, and sweep number `sweep` of the memory tier's queue has met no entry of it yet.
    pub(crate) fn is_first_entry(&mut self, block: u64, sweep: u32) -> bool {
        let (leaf, index) = split(block);
        self.leaves.get_mut(&leaf).is_some_and(|leaf| leaf.is_first_entry(index, sweep))
    }

    pub(crate) fn take_hit(&mut self, block: u64) -> bool {
        let (leaf, index) = split(block);
        self.leaves.get_mut(&leaf).is_some_and(|leaf| leaf.take_hit(index))
    }

    /// Says that a block is now where `entry` says.
    pub(crate) fn set_entry(&mut self, block: u64, entry: Entry, segments: &Segments) {
        let (leaf, index) = split(block);
        self.set_damaged(block, false, segments);
        self.copied = self.copied.max(segments.place(entry.segment, entry.dirty));
        self.count_dirty(entry.dirty);
        if let Some(old) = self.leaves.entry(leaf).or_default().set_entry(index, entry) {
            segments.unplace(old.segment, old.dirty);
            self.count_clean(old.dirty);
        }
    }

    fn count_dirty(&mut self, dirty: bool) {
        if dirty {
            self.dirty += 1;
            self.volume.dirtied();
            self.account.iter().for_each(|account| account.dirtied(1));
        }
    }

    fn count_clean(&mut self, was_dirty: bool) {
        if was_dirty {
            self.dirty -= 1;
            self.volume.cleaned();
            self.account.iter().for_each(|account| account.cleaned(1));
        }
    }

    /// Forgets where a block is on the SSDs.
    pub(crate) fn remove_entry(&mut self, block: u64, segments: &Segments) -> Option<Entry> {
        let (number, index) = split(block);
        self.set_damaged(block, false, segments);
        self.void(block..block + 1, segments);
        let leaf = self.leaves.get_mut(&number)?;
        let old = leaf.remove_entry(index)?;
        if leaf.is_empty() {
            self.leaves.remove(&number);
        }
        segments.unplace(old.segment, old.dirty);
        self.count_clean(old.dirty);
        Some(old)
    }

    /// Notes that no copy of a dirty block can be read, or that this is not so any more. True if that is new.
    pub(crate) fn set_damaged(&mut self, block: u64, damaged: bool, segments: &Segments) -> bool {
        if !damaged && self.damaged.is_empty() {
            return false;
        }
        let Some(segment) = self.entry(block).filter(|entry| entry.dirty).map(|entry| entry.segment) else {
            return false;
        };
        let changed = if damaged { self.damaged.insert(block) } else { self.damaged.remove(&block) };
        if changed {
            segments.damage(segment, damaged);
        }
        changed
    }

    /// The backing store has this very copy of the block.
    pub(crate) fn cleaned(&mut self, block: u64, copy: &Entry, segments: &Segments) {
        let Some(entry) = self.entry(block) else { return };
        let same =
            entry.same_place(copy) || crate::plant::active("destage cleans what was rewritten meanwhile");
        if entry.dirty && same {
            self.set_damaged(block, false, segments);
            self.entry_mut(block).into_iter().for_each(|entry| entry.dirty = false);
            segments.clean(copy.segment);
            self.count_clean(true);
        }
    }

    /// Drops everything cached of `range`; returns the number of pages and of SSD copies dropped.
    pub(crate) fn drop_range(&mut self, range: Range<u64>, segments: &Segments) -> (usize, usize) {
        self.outdate(&range);
        self.void(range.clone(), segments);
        let (mut pages, mut copies) = (0, 0);
        for block in self.cached(range) {
            copies += usize::from(self.remove_entry(block, segments).is_some());
            pages += usize::from(self.remove_page(block));
        }
        (pages, copies)
    }

    /// No copy of `range` that is loaded later counts.
    pub(crate) fn void(&mut self, range: Range<u64>, segments: &Segments) {
        if segments.is_warming() && !crate::plant::active("late copies count though they were dropped") {
            self.voids.add(range);
        }
    }

    /// A clean copy found behind the start of service: counts unless something newer is known of the block.
    pub(crate) fn add_late(&mut self, block: u64, entry: Entry, segments: &Segments) {
        let known = self.entry(block).is_some() && !crate::plant::active("late copies replace newer ones");
        if !known && !self.voids.contains(block) {
            self.set_entry(block, entry, segments);
        }
    }

    /// Whether copies of the object may be on the SSDs: in the index, not loaded yet, or let go of by the index and found
    /// again after a crash.
    pub(crate) fn may_be_copied(&self, segments: &Segments) -> bool {
        let found = segments.is_warming() || (self.copied > 0 && segments.may_be_found(self.copied));
        found && !self.disowned.covers(&(0..u64::MAX))
    }

    /// The blocks of `range` that are cached anywhere, in order.
    pub(crate) fn cached(&self, range: Range<u64>) -> Vec<u64> {
        let mut found = Vec::new();
        if range.is_empty() {
            return found;
        }
        for (number, leaf) in self.leaves.range(range.start / LEAF..=(range.end - 1) / LEAF) {
            let mut here: Vec<u64> =
                leaf.on_ssd().chain(leaf.in_ram()).map(|index| number * LEAF + u64::from(index)).collect();
            here.sort_unstable();
            here.dedup();
            found.extend(here.into_iter().filter(|block| range.contains(block)));
        }
        found
    }

    /// The dirty blocks of `range`, in order, with their copies; at most `most`.
    pub(crate) fn dirty_in(&self, range: Range<u64>, most: usize) -> Vec<(u64, Entry)> {
        self.dirty_where(range, most, |_| true)
    }

    /// The same without those that cannot be read.
    pub(crate) fn to_destage(&self, range: Range<u64>, most: usize) -> Vec<(u64, Entry)> {
        self.dirty_where(range, most, |block| !self.damaged.contains(&block))
    }

    /// Whether there is any such block.
    pub(crate) fn needs_destage(&self) -> bool {
        self.dirty > self.damaged.len() as u64
    }

    fn dirty_where(&self, range: Range<u64>, most: usize, wanted: impl Fn(u64) -> bool) -> Vec<(u64, Entry)> {
        let dirty = self.dirty_entries(range).filter(|(block, _)| wanted(*block));
        dirty.map(|(block, entry)| (block, *entry)).take(most).collect()
    }

    /// The dirty blocks of `range`, in order.
    pub(crate) fn dirty_entries(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Entry)> {
        let wanted = self.dirty > 0 && !range.is_empty();
        let leaves = wanted.then(|| self.leaves.range(range.start / LEAF..=(range.end - 1) / LEAF));
        leaves.into_iter().flatten().flat_map(move |(number, leaf)| {
            let first = number * LEAF;
            let here = leaf.entries_in(range.start.saturating_sub(first), range.end.saturating_sub(first));
            here.filter(|(_, entry)| entry.dirty).map(move |(index, entry)| (first + u64::from(index), entry))
        })
    }

    /// Fetches of any of `range` bring what is out of date.
    pub(crate) fn outdate(&mut self, range: &Range<u64>) {
        for fetch in &mut self.fetches {
            let touched = fetch.blocks.start < range.end && range.start < fetch.blocks.end;
            fetch.stale |= touched;
            fetch.cut |= touched && range.end == u64::MAX;
        }
    }

    /// Notes that contents of `blocks` are under way. While the backing store is being written directly or cut, what
    /// they bring is never cached.
    pub(crate) fn begin_fetch(&mut self, blocks: Range<u64>, source: Source) -> u64 {
        self.next_fetch += 1;
        let stale = self.directs > 0 || self.busy == Busy::Truncate;
        self.fetches.push(Fetch { id: self.next_fetch, blocks, stale, cut: false, source });
        self.next_fetch
    }

    /// Notes a direct write of `blocks`; it overlaps no other.
    pub(crate) fn begin_own(&mut self, blocks: Range<u64>) -> u64 {
        self.next_fetch += 1;
        let source = Source::Client;
        self.fetches.push(Fetch { id: self.next_fetch, blocks, stale: false, cut: false, source });
        self.next_fetch
    }

    /// Whether `range` may be written straight to the backing store.
    pub(crate) fn is_free_for_direct(&self, range: &Range<u64>) -> bool {
        self.busy != Busy::Truncate
            && self.truncating.is_none()
            && !self.is_written_directly(range)
            && (self.to_destage(range.clone(), 1).is_empty()
                || crate::plant::active("direct writes do not wait for dirty blocks"))
    }

    /// Whether a block of `range` is one that no copy can be read of.
    pub(crate) fn is_damaged(&self, range: &Range<u64>) -> bool {
        self.damaged.range(range.clone()).next().is_some()
    }

    /// Whether a direct write of any of `range` is under way.
    pub(crate) fn is_written_directly(&self, range: &Range<u64>) -> bool {
        let overlaps = |fetch: &Fetch| {
            fetch.source == Source::Client && fetch.blocks.start < range.end && range.start < fetch.blocks.end
        };
        self.directs > 0 && self.fetches.iter().any(overlaps)
    }

    /// Whether a fetch under way still brings what is up to date.
    pub(crate) fn is_current(&self, id: u64) -> bool {
        self.fetches.iter().any(|fetch| fetch.id == id && !fetch.stale)
    }

    pub(crate) fn is_fetching(&self, id: u64) -> bool {
        self.fetches.iter().any(|fetch| fetch.id == id)
    }

    /// Whether the object was cut within what is fetched, or behind it, since the fetch began.
    pub(crate) fn is_cut(&self, id: u64) -> bool {
        self.fetches.iter().any(|fetch| fetch.id == id && fetch.cut)
    }

    /// Ends a fetch; true if what it brought may be cached.
    pub(crate) fn end_fetch(&mut self, id: u64) -> bool {
        let Some(at) = self.fetches.iter().position(|fetch| fetch.id == id) else { return false };
        !self.fetches.swap_remove(at).stale || crate::plant::active("stale fetches are cached")
    }

    /// Whether nothing is known or under way: the object may be forgotten.
    pub(crate) fn is_idle(&self, segments: &Segments) -> bool {
        self.leaves.is_empty()
            && !self.may_be_copied(segments)
            && self.dirty == 0
            && self.mtime.is_none()
            && !self.queued
            && self.busy == Busy::No
            && self.directs == 0
            && self.fetches.is_empty()
            && self.volatile.is_empty()
            && self.truncating.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::SegmentKind;

    #[test]
    fn an_object_is_not_idle_before_its_copies_are_durably_dead() {
        let segments = Segments::new(1, vec![vec![1, 0], vec![1, 0]], vec![2, 2]);
        let opened = segments.open(SegmentKind::Clean, 1, 0).unwrap();
        segments.seal(opened.id);
        let mut state = State::default();
        assert!(state.is_idle(&segments));
        let copy = Entry { segment: opened.id, checksum: 0, slot: 1, dirty: false, hit: false };
        state.set_entry(5, copy, &segments);
        state.remove_entry(5, &segments);
        segments.let_go(opened.id);
        assert!(
            state.leaves.is_empty() && !state.is_idle(&segments),
            "a crash now would bring the copy back"
        );
        segments.open(SegmentKind::Log, 2, 0).unwrap();
        let reach = segments.advance();
        segments.reached(reach);
        assert!(state.is_idle(&segments));
        segments.set_warming(true);
        assert!(!state.is_idle(&segments), "any object may have copies that are not loaded yet");
    }
}
