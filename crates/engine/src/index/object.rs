//! An object with cached blocks: its index entries, and its changes that the backing store does not have yet.
//!
//! Invariants:
//! - Bytes of a cached block at or beyond the object's size are zero.
//! - While a fetch from the backing store is in flight, every change of its range marks it stale. The contents
//!   of a stale fetch are never cached.
//! - Only one of {destage, truncation} is in progress. No bypass write is in progress beside a truncation.
//!
//! [`CachedObject::check`] looks through the object, and the simulator calls it after each operation of a client.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use crate::Seq;
use crate::buffer::BLOCK;
use crate::format::key_hash;
use crate::index::account::Account;
pub(crate) use crate::index::fetch::{Fetch, Source};
use crate::index::leaf::{Entry, LEAF, Leaf};
use crate::index::moves::Moves;
use crate::index::page::Page;
use crate::index::policy::{Policy, Standing};
use crate::index::ranges::Ranges;
use crate::index::refused::Refused;
use crate::index::share::Share;
use crate::index::syncs::Syncs;
use crate::index::unsynced::UnsyncedBytes;
use crate::index::version_watch::VersionWatch;
use crate::index::waiting_cuts::WaitingCuts;
use crate::io::{Key, Time};
use crate::segments::{SegmentId, Segments};
use crate::volume::Volume;
use crate::wait::Gate;
use forebay_common::lock::atomic::{AtomicU64, Ordering};
use forebay_common::lock::{Mutex, MutexGuard};

/// An object of the backing store, as the cache knows it.
#[derive(Debug)]
pub struct CachedObject {
    /// The object's number, in the order in which objects entered the index. No other object of this engine has it.
    pub(crate) number: u64,
    pub(crate) key: Key,
    pub(crate) key_hash: u64,
    /// The volume to which the object is destaged.
    pub(crate) volume: Arc<Volume>,
    state: Mutex<State>,
    /// Wakes tasks when something that they wait for has changed.
    pub(crate) changed: Gate,
    pub(crate) watch: VersionWatch,
    /// The [`Policy`], as its number.
    policy: AtomicU64,
}

/// The task that has the object's backing file for itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Busy {
    #[default]
    No,
    Destage,
    Truncate,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Logical size in bytes.
    pub(crate) size: u64,
    /// True if `size` is known. Recovery does not know the size of an object that has only clean blocks.
    pub(crate) sized: bool,
    /// The modification time that destaging has to set on the backing file.
    pub(crate) mtime: Option<Time>,
    pub(crate) leaves: BTreeMap<u64, Leaf>,
    /// Dirty blocks; counted in `volume` and `account` as well.
    pub(crate) dirty: u64,
    pub(crate) volume: Arc<Volume>,
    pub(crate) account: Option<Arc<Account>>,
    /// Dirty blocks of which no copy can be read.
    pub(crate) damaged: BTreeSet<u64>,
    /// Dirty blocks that the backing store refuses.
    pub(crate) refused: Refused,
    /// Position of the newest segment that has or had a copy; 0 if there is none. See [`State::may_be_copied`].
    pub(crate) copied: u64,
    /// Blocks whose copies do not count if they are loaded later. Empty unless some clean segments are still to be
    /// loaded.
    pub(crate) voids: Ranges,
    /// True if the object is in the destage queue.
    pub(crate) queued: bool,
    pub(crate) busy: Busy,
    /// Moves of blocks within the log since the current destage batch was gathered.
    pub(crate) moves: Moves,
    /// Number of bypass writes in flight.
    pub(crate) bypass_writes: u32,
    pub(crate) waiting_cuts: WaitingCuts,
    pub(crate) syncs: Syncs,
    /// Unsynced bytes: a power cut may bring their old contents back.
    pub(crate) volatile: UnsyncedBytes,
    pub(crate) fetches: Vec<Fetch>,
    pub(crate) next_fetch: u64,
    /// The segment held by a truncation that the backing store has not carried out yet.
    pub(crate) truncating: Option<SegmentId>,
    /// True if the truncation is carried out, and the record of that is being appended.
    pub(crate) carried_out: bool,
    /// True if the log may have a modification time of the object.
    pub(crate) logged: bool,
    /// Blocks whose copies on the cache devices do not count, should the devices return: see `request/no_device.rs`.
    pub(crate) disowned: Ranges,
    /// The block at which destaging continues.
    pub(crate) cursor: u64,
    /// The last frame that has a record of the object.
    pub(crate) last_frame: Seq,
    /// True if the backing store lost the object.
    pub(crate) gone: bool,
    /// The count that the object's blocks on the cache devices are in.
    pub(crate) standing: Standing,
    /// The share that counts the object's blocks on the cache devices.
    pub(crate) share: Option<Arc<Share>>,
}

impl CachedObject {
    /// Returns an object without cached blocks.
    pub(crate) fn new(number: u64, key: Key, volume: Arc<Volume>) -> Self {
        let key_hash = key_hash(&key);
        CachedObject {
            number,
            key,
            key_hash,
            state: Mutex::new(State { volume: volume.clone(), ..State::default() }),
            volume,
            changed: Gate::default(),
            watch: VersionWatch::default(),
            policy: AtomicU64::new(0),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the policy in force.
    pub fn policy(&self) -> Policy {
        Policy::from_bits(self.policy.load(Ordering::Relaxed))
    }

    /// Sets the policy, under the lock of `state`.
    pub(crate) fn set_policy(
        &self,
        state: &mut State,
        policy: Policy,
        share: Option<Arc<Share>>,
        segments: &Segments,
    ) {
        self.policy.store(policy.to_bits(), Ordering::Relaxed);
        state.set_standing(policy.standing(), segments);
        state.set_share(share);
    }

    /// Returns the key of the object.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the size in bytes that clients see.
    pub fn size(&self) -> u64 {
        self.lock().size
    }

    /// Returns the size in bytes and the modification time that the backing store does not have yet. Returns `None`
    /// if it has everything.
    pub fn undestaged_attributes(&self) -> Option<(u64, Option<Time>)> {
        let state = self.lock();
        (state.dirty > 0 || state.mtime.is_some()).then_some((state.size, state.mtime))
    }

    /// Returns the first run of bytes at or behind `offset` that only the cache has, in whole blocks. A long run may be
    /// returned in parts.
    pub fn dirty_run(&self, offset: u64) -> Option<Range<u64>> {
        /// The highest number of blocks of a part, so that the lock is held for a short time.
        const MOST: u64 = 4096;
        let state = self.lock();
        let mut blocks = state.dirty_entries(offset / BLOCK as u64..u64::MAX).map(|(block, _)| block);
        let first = blocks.next()?;
        let end = blocks.zip(first + 1..first + MOST).take_while(|(block, next)| block == next).last();
        let end = end.map_or(first, |(block, _)| block) + 1;
        Some(first * BLOCK as u64..end * BLOCK as u64)
    }

    /// Returns the first run of cached bytes within `range`, in whole blocks. A long run may be returned in parts.
    pub fn cached_run(&self, range: Range<u64>) -> Option<Range<u64>> {
        /// The highest number of blocks of a run, so that the lock is held for a short time.
        const MOST: u64 = 4096;
        let state = self.lock();
        let (mut first, end) = (range.start / BLOCK as u64, range.end.div_ceil(BLOCK as u64));
        while first < end {
            // A large volume may have few cached blocks.
            let (leaf, _) = state.leaves.range(first / LEAF..).next()?;
            first = first.max(leaf * LEAF).min(end);
            let piece = first..end.min(first + MOST);
            let mut found = state.cached(piece.clone()).into_iter();
            if let Some(start) = found.next() {
                let last = found.zip(start + 1..).take_while(|(block, next)| block == next).last();
                let end = last.map_or(start, |(block, _)| block) + 1;
                return Some(start * BLOCK as u64..end * BLOCK as u64);
            }
            first = piece.end;
        }
        None
    }

    /// Returns the number of blocks whose contents the backing store does not have yet.
    pub fn dirty_blocks(&self) -> u64 {
        self.lock().dirty
    }
}

impl State {
    /// Returns the place of a block on the SSDs.
    pub(crate) fn entry(&self, block: u64) -> Option<&Entry> {
        let (leaf, index) = split(block);
        self.leaves.get(&leaf)?.entry(index)
    }

    /// Returns the place of a block on the SSDs, to be changed.
    pub(crate) fn entry_mut(&mut self, block: u64) -> Option<&mut Entry> {
        let (leaf, index) = split(block);
        self.leaves.get_mut(&leaf)?.entry_mut(index)
    }

    /// Returns the contents of a block that is in memory.
    pub(crate) fn page(&self, block: u64) -> Option<&Page> {
        let (leaf, index) = split(block);
        self.leaves.get(&leaf)?.page(index)
    }

    /// Returns the contents of a block that is in memory, and marks the block as used.
    pub(crate) fn use_page(&mut self, block: u64) -> Option<&Page> {
        let (leaf, index) = split(block);
        self.leaves.get_mut(&leaf)?.use_page(index)
    }

    /// Puts a block into memory. Returns true if it was not there.
    pub(crate) fn set_page(&mut self, block: u64, page: Page) -> bool {
        let (leaf, index) = split(block);
        self.leaves.entry(leaf).or_default().set_page(index, page)
    }

    /// Removes a block from memory. Returns true if it was there.
    pub(crate) fn remove_page(&mut self, block: u64) -> bool {
        let (number, index) = split(block);
        let Some(leaf) = self.leaves.get_mut(&number) else { return false };
        let removed = leaf.remove_page(index).is_some();
        if leaf.is_empty() {
            self.leaves.remove(&number);
        }
        removed
    }

    /// Returns true if a block is in memory, and sweep number `sweep` of the memory tier's queue has met no entry of
    /// it yet.
    pub(crate) fn is_first_entry(&mut self, block: u64, sweep: u32) -> bool {
        let (leaf, index) = split(block);
        self.leaves.get_mut(&leaf).is_some_and(|leaf| leaf.is_first_entry(index, sweep))
    }

    /// Returns true if a block in memory was used since the last call; clears the mark.
    pub(crate) fn take_hit(&mut self, block: u64) -> bool {
        let (leaf, index) = split(block);
        self.leaves.get_mut(&leaf).is_some_and(|leaf| leaf.take_hit(index))
    }

    /// Sets the place of a block to `entry`.
    pub(crate) fn set_entry(&mut self, block: u64, entry: Entry, segments: &Segments) {
        let (leaf, index) = split(block);
        self.set_damaged(block, false, segments);
        self.copied = self.copied.max(segments.place(entry.segment, entry.dirty));
        self.count_dirty(entry.dirty);
        if let Some(old) = self.leaves.entry(leaf).or_default().set_entry(index, entry) {
            segments.unplace(old.segment, old.dirty);
            self.count_clean(old.dirty);
        } else {
            self.count_on_ssd(segments);
        }
    }

    /// Removes the place of a block on the SSDs from the index.
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
        self.uncount_on_ssd(segments);
        Some(old)
    }

    /// Drops all cached blocks of `range`. Returns the number of pages and of SSD copies dropped.
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

    /// Excludes copies of `range` that are loaded later.
    pub(crate) fn void(&mut self, range: Range<u64>, segments: &Segments) {
        if segments.is_warming() && !crate::planted_bugs::active("late copies count though they were dropped")
        {
            self.voids.add(range);
        }
    }

    /// Adds a clean copy that was loaded after the start of service. It counts unless a newer copy or a drop of the
    /// block is known.
    pub(crate) fn add_late(&mut self, block: u64, entry: Entry, segments: &Segments) {
        let known =
            self.entry(block).is_some() && !crate::planted_bugs::active("late copies replace newer ones");
        if !known && !self.voids.contains(block) {
            self.set_entry(block, entry, segments);
        }
    }

    /// Returns true if copies of the object may be on the SSDs. Such a copy is in the index, is not loaded yet, or
    /// was dropped from the index and may be found again after a crash.
    pub(crate) fn may_be_copied(&self, segments: &Segments) -> bool {
        let found = segments.is_warming() || (self.copied > 0 && segments.may_be_found(self.copied));
        found && !self.disowned.covers(&(0..u64::MAX))
    }

    /// Returns the blocks of `range` that are cached anywhere, in order.
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

    /// Returns true if neither a bypass write nor an earlier truncation keeps a change of size from its begin.
    pub(crate) fn allows_cut(&self) -> bool {
        self.bypass_writes == 0 && self.truncating.is_none()
    }

    /// Returns true if a change of size waits for nothing but the end of the destage batch in progress. No other batch
    /// may begin before it, or a steady writer would hold it up for ever. A change that waits for more holds no batch
    /// up: a bypass write in flight may need room in the log, which destaging makes.
    pub(crate) fn owes_cut(&self) -> bool {
        self.waiting_cuts.waits()
            && self.allows_cut()
            && !crate::planted_bugs::active("a cut waits for each batch of destaging")
    }

    /// Returns true if a bypass write of `range` may begin.
    pub(crate) fn allows_bypass(&self, range: &Range<u64>) -> bool {
        self.busy != Busy::Truncate
            && self.truncating.is_none()
            && !self.is_bypassed(range)
            && (self.to_destage(range.clone(), 1).is_empty()
                || crate::planted_bugs::active("direct writes do not wait for dirty blocks"))
    }

    /// Returns true if the object has no state and no operation in progress: the index may drop it.
    pub(crate) fn is_idle(&self, segments: &Segments) -> bool {
        self.leaves.is_empty()
            && !self.may_be_copied(segments)
            && self.dirty == 0
            && self.mtime.is_none()
            && !self.queued
            && self.busy == Busy::No
            && self.bypass_writes == 0
            && self.fetches.is_empty()
            && self.volatile.is_empty()
            && self.truncating.is_none()
    }
}

/// Returns the blocks that `len` bytes at `offset` touch.
pub(crate) fn blocks(offset: u64, len: u64) -> Range<u64> {
    let block = BLOCK as u64;
    offset / block..(offset + len).div_ceil(block)
}

fn split(block: u64) -> (u64, u32) {
    (block / LEAF, (block % LEAF) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::SegmentKind;
    use crate::index::leaf::Hit;

    #[test]
    fn runs_of_dirty_blocks_are_found_in_order() {
        let segments = Segments::new(1, vec![vec![1, 0], vec![1, 0]], vec![2, 2]);
        let segment = segments.open(SegmentKind::Log, 1, 0).unwrap().id;
        let object = CachedObject::new(1, Key::new(b"object").unwrap(), Arc::default());
        let block = BLOCK as u64;
        assert_eq!(object.dirty_run(0), None);
        for (number, dirty) in [(2, false), (3, true), (4, true), (5, false), (63, true), (64, true)] {
            let entry = Entry { segment, checksum: 0, slot: 1, dirty, hit: Hit::No };
            object.lock().set_entry(number, entry, &segments);
        }
        for (offset, run) in [(0, 3..5), (4 * block + 1, 4..5), (5 * block, 63..65), (64 * block, 64..65)] {
            assert_eq!(object.dirty_run(offset), Some(run.start * block..run.end * block), "{offset}");
        }
        assert_eq!(object.dirty_run(65 * block), None);
        assert_eq!(object.dirty_run(u64::MAX), None);
    }

    /// A search that visits each block would not end.
    #[test]
    fn runs_of_cached_blocks_are_found_far_away() {
        let segments = Segments::new(1, vec![vec![1, 0], vec![1, 0]], vec![2, 2]);
        let segment = segments.open(SegmentKind::Log, 1, 0).unwrap().id;
        let object = CachedObject::new(1, Key::new(b"object").unwrap(), Arc::default());
        let (block, far) = (BLOCK as u64, 1 << 45);
        assert_eq!(object.cached_run(0..1 << 60), None);
        for number in [far, far + 1, far + 63, far + 64, far + 9000] {
            let entry = Entry { segment, checksum: 0, slot: 1, dirty: false, hit: Hit::No };
            object.lock().set_entry(number, entry, &segments);
        }
        let runs = [(0, 0..2), (1, 1..2), (2, 63..65), (65, 9000..9001)];
        for (from, run) in runs {
            let from = if from == 0 { 0 } else { (far + from) * block };
            let run = (far + run.start) * block..(far + run.end) * block;
            assert_eq!(object.cached_run(from..1 << 60), Some(run), "from {from}");
        }
        assert_eq!(object.cached_run((far + 9001) * block..1 << 60), None);
        assert_eq!(object.cached_run(0..far * block), None);
    }

    #[test]
    fn an_object_is_not_idle_before_its_copies_are_durably_dead() {
        let segments = Segments::new(1, vec![vec![1, 0], vec![1, 0]], vec![2, 2]);
        let opened = segments.open(SegmentKind::Clean, 1, 0).unwrap();
        segments.seal(opened.id);
        let mut state = State::default();
        assert!(state.is_idle(&segments));
        let copy = Entry { segment: opened.id, checksum: 0, slot: 1, dirty: false, hit: Hit::No };
        state.set_entry(5, copy, &segments);
        state.remove_entry(5, &segments);
        segments.free_segment(opened.id);
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
