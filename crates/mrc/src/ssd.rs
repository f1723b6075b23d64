//! The simulated cache devices of one size, by the rules of the engine (`tiers/evict.rs`, `tiers/fill.rs`,
//! `maintain/compact.rs`):
//!
//! - One queue has every place that was filled, oldest first. A place is freed in this order and no other, also that of
//!   an overwritten block.
//! - A written block takes two places while its segment is in the log. The log ends at the oldest dirty block.
//! - A block that was read since it took its place is written again at the end of the queue. If live blocks are few,
//!   all of them are.

use std::collections::VecDeque;

use crate::blocks::Blocks;
use crate::entry::Entry;
use crate::geometry::Room;
use crate::ghosts::Ghosts;

/// The part of the log's share that may be dirty. Destaging begins at the first value, whatever the age of the blocks.
/// At the second, the throttle slows writers to the rate of destaging.
const DIRTY: (f64, f64) = (0.25, 0.95);
/// The part of the log's share from which on dirty blocks of its oldest segment are written again.
const LONG: f64 = 1.2;

/// Cache devices of one size.
#[derive(Debug)]
pub(crate) struct Ssd {
    /// The number of the tier in [`Blocks`].
    tier: usize,
    room: Room,
    queue: VecDeque<Entry>,
    /// Number of entries at the front of the queue that are not in the log.
    outside: usize,
    /// Places in use. A place in the log counts twice.
    used: usize,
    in_log: usize,
    live: usize,
    dirty: usize,
    /// Dirty blocks, and the time in milliseconds since which each is dirty.
    dirty_queue: VecDeque<(u32, u32)>,
    pub(crate) ghosts: Ghosts,
    /// The part of the log's share that may be dirty.
    dirty_part: f64,
    /// Pages of records in the log for each written block, and the part of a page that is due.
    pub(crate) record_pages: f64,
    due: f64,
    /// True once a block had to make room.
    pub(crate) full: bool,
}

impl Ssd {
    /// Returns an empty cache. `ghosts` bounds the evicted blocks that it remembers.
    pub(crate) fn new(tier: usize, room: Room, ghosts: usize) -> Self {
        Ssd {
            tier,
            room,
            queue: VecDeque::new(),
            outside: 0,
            used: 0,
            in_log: 0,
            live: 0,
            dirty: 0,
            dirty_queue: VecDeque::new(),
            ghosts: Ghosts::new(ghosts),
            dirty_part: DIRTY.0,
            record_pages: 0.0,
            due: 0.0,
            full: false,
        }
    }

    /// Sets the part of the log's share that may be dirty: larger than the least part if the backing store is slower
    /// than the writers.
    pub(crate) fn set_dirty_part(&mut self, part: f64) {
        self.dirty_part = part.clamp(DIRTY.0, DIRTY.1);
    }

    pub(crate) fn has(&self, blocks: &Blocks, block: u32) -> bool {
        blocks.place(block, self.tier).is_live()
    }

    pub(crate) fn is_dirty(&self, blocks: &Blocks, block: u32) -> bool {
        blocks.place(block, self.tier).is_dirty()
    }

    /// Marks a block as read.
    pub(crate) fn use_block(&self, blocks: &mut Blocks, block: u32) {
        blocks.place_mut(block, self.tier).set_hit(true);
    }

    /// Returns true if clean blocks can be admitted without evicting others.
    pub(crate) fn has_room(&self) -> bool {
        self.used as f64 + self.room.spare <= self.room.usable
    }

    /// Gives a block the newest place.
    fn put(&mut self, blocks: &mut Blocks, block: u32, in_log: bool) {
        let place = blocks.place_mut(block, self.tier);
        self.live += usize::from(!place.is_live());
        place.renew();
        self.push(blocks, block, in_log);
    }

    /// Adds an entry of a block at the end of the queue. The entry is stale as soon as the block gets a newer place.
    fn push(&mut self, blocks: &mut Blocks, block: u32, in_log: bool) {
        let entry = Entry::new(block, blocks.place(block, self.tier), in_log);
        blocks.added(block);
        self.queue.push_back(entry);
        self.used += 1 + usize::from(in_log);
        self.in_log += usize::from(in_log);
    }

    /// Admits a clean block that the tier lacks.
    pub(crate) fn admit(&mut self, blocks: &mut Blocks, block: u32) {
        self.put(blocks, block, false);
        self.make_room(blocks);
    }

    /// Writes a block at `at`, in milliseconds.
    pub(crate) fn write(&mut self, blocks: &mut Blocks, block: u32, at: u32) {
        self.due += self.record_pages;
        if self.due >= 1.0 {
            // A page of records takes a place that is dead from the start, as an overwritten block's.
            self.due -= 1.0;
            self.push(blocks, block, true);
        }
        self.put(blocks, block, true);
        let place = blocks.place_mut(block, self.tier);
        if !place.is_dirty() {
            place.set_dirty(true);
            blocks.added(block);
            self.dirty += 1;
            self.dirty_queue.push_back((block, at));
        }
        while self.dirty as f64 > self.room.share * self.dirty_part && self.destage_oldest(blocks) {}
        self.shorten_log(blocks);
        self.make_room(blocks);
    }

    /// Drops a block. Its dirty contents are destaged first.
    pub(crate) fn drop_block(&mut self, blocks: &mut Blocks, block: u32) {
        self.clean(blocks, block);
        let place = blocks.place_mut(block, self.tier);
        if place.is_live() {
            place.leave();
            self.live -= 1;
        }
    }

    /// Destages every block that became dirty `age` milliseconds or more before `at`.
    pub(crate) fn destage(&mut self, blocks: &mut Blocks, at: u32, age: u32) {
        while let Some((_, since)) = self.dirty_queue.front()
            && at.wrapping_sub(*since) >= age
            // A reference may come a little late.
            && at.wrapping_sub(*since) < 1 << 31
        {
            self.destage_oldest(blocks);
        }
    }

    /// Destages the block that has been dirty for longest. Returns false if no block is dirty.
    fn destage_oldest(&mut self, blocks: &mut Blocks) -> bool {
        let Some((block, _)) = self.dirty_queue.pop_front() else { return false };
        self.clean(blocks, block);
        blocks.removed(block);
        true
    }

    /// Makes a block clean.
    fn clean(&mut self, blocks: &mut Blocks, block: u32) {
        let place = blocks.place_mut(block, self.tier);
        if place.is_dirty() {
            place.set_dirty(false);
            self.dirty -= 1;
        }
    }

    /// Returns true if the entry keeps its segment in the log.
    fn keeps_log(&self, blocks: &Blocks, entry: Entry) -> bool {
        let place = blocks.place(entry.block(), self.tier);
        entry.in_log() && place.is_dirty() && entry.is_current(place)
    }

    /// Lets the oldest entries leave the log, up to the first that holds a dirty block.
    fn advance(&mut self, blocks: &Blocks) {
        while let Some(entry) = self.queue.get(self.outside).copied() {
            if self.keeps_log(blocks, entry) {
                return;
            }
            if entry.in_log() {
                self.queue[self.outside] = entry.out_of_log();
                self.used -= 1;
                self.in_log -= 1;
            }
            self.outside += 1;
        }
    }

    /// Writes the dirty blocks of the log's oldest entries again, if the log is too long.
    fn shorten_log(&mut self, blocks: &mut Blocks) {
        if self.in_log as f64 <= self.room.share * LONG {
            return;
        }
        self.advance(blocks);
        // Each step moves one dirty block. At most five sixths of so long a log are dirty, so there is an end.
        while self.in_log as f64 > self.room.share * LONG
            && let Some(entry) = self.queue.get(self.outside).copied()
        {
            self.put(blocks, entry.block(), true);
            self.advance(blocks);
        }
    }

    /// Returns true if so few blocks are live that eviction writes all of them again.
    fn is_sparse(&self) -> bool {
        let taken = (self.live + self.dirty) as f64;
        taken * 2.0 <= self.room.all && taken < self.room.usable && (self.live as f64) < self.room.movable
    }

    /// Returns true if places outside of the log take more than half of the devices, and hardly any is live.
    fn is_wasteful(&self) -> bool {
        let outside = (self.used - 2 * self.in_log) as f64;
        (self.live as f64) < self.room.movable
            && outside * 2.0 > self.room.all
            && ((self.live * 4) as f64) < outside
    }

    /// Frees the oldest places until the others fit.
    fn make_room(&mut self, blocks: &mut Blocks) {
        while self.used as f64 > self.room.usable || self.is_wasteful() {
            self.full |= !self.is_sparse();
            if self.outside == 0 {
                self.advance(blocks);
                let is_short = self.used as f64 > self.room.usable;
                if self.outside == 0 && !(is_short && self.destage_oldest(blocks)) {
                    return;
                }
                continue;
            }
            let Some(entry) = self.queue.pop_front() else { return };
            self.outside -= 1;
            self.used -= 1;
            let block = entry.block();
            let place = blocks.place(block, self.tier);
            if entry.is_current(place) {
                if place.is_hit() || self.is_sparse() {
                    self.put(blocks, block, false);
                } else {
                    blocks.place_mut(block, self.tier).leave();
                    self.live -= 1;
                }
            }
            blocks.removed(block);
        }
    }

    /// Gives the tier another room. Entries of blocks with a hash of `threshold` or above are dropped.
    pub(crate) fn resize(&mut self, blocks: &mut Blocks, room: Room, ghosts: usize, threshold: u64) {
        self.room = room;
        self.ghosts.resize(ghosts, threshold);
        let outside = std::mem::take(&mut self.outside);
        for number in 0..self.queue.len() {
            let Some(entry) = self.queue.pop_front() else { break };
            let block = entry.block();
            if blocks.hash(block) < threshold {
                self.queue.push_back(entry);
                self.outside += usize::from(number < outside);
                continue;
            }
            self.used -= 1 + usize::from(entry.in_log());
            self.in_log -= usize::from(entry.in_log());
            if entry.is_current(blocks.place(block, self.tier)) {
                blocks.place_mut(block, self.tier).leave();
                self.live -= 1;
            }
            blocks.removed(block);
        }
        for _ in 0..self.dirty_queue.len() {
            let Some((block, since)) = self.dirty_queue.pop_front() else { break };
            if blocks.hash(block) < threshold {
                self.dirty_queue.push_back((block, since));
            } else {
                self.clean(blocks, block);
                blocks.removed(block);
            }
        }
        self.queue.shrink_to_fit();
        self.dirty_queue.shrink_to_fit();
        self.make_room(blocks);
    }

    /// Returns the memory that the queues use, in entries of the clean queue.
    pub(crate) fn entries(&self) -> usize {
        // An entry of the dirty queue takes twice the memory.
        self.queue.len() + 2 * self.dirty_queue.len()
    }

    /// Returns the memory in use, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.queue.capacity() * size_of::<Entry>()
            + self.dirty_queue.capacity() * size_of::<(u32, u32)>()
            + self.ghosts.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a tier of 100 places, of which 80 are filled, with a log of 30 blocks.
    fn small() -> (Blocks, Ssd) {
        let room = Room { all: 100.0, usable: 80.0, spare: 10.0, share: 30.0, movable: 20.0 };
        (Blocks::new(1, 64), Ssd::new(0, room, 64))
    }

    fn admit(blocks: &mut Blocks, ssd: &mut Ssd, hash: u64) -> u32 {
        let block = blocks.get(hash);
        ssd.admit(blocks, block);
        block
    }

    #[test]
    fn the_oldest_block_is_evicted_unless_it_was_read() {
        let (mut blocks, mut ssd) = small();
        let (first, second) = (admit(&mut blocks, &mut ssd, 1), admit(&mut blocks, &mut ssd, 2));
        assert!(ssd.has_room());
        ssd.use_block(&mut blocks, second);
        for hash in 3..=80 {
            admit(&mut blocks, &mut ssd, hash);
        }
        assert!(ssd.has(&blocks, first) && !ssd.has_room() && !ssd.full);
        admit(&mut blocks, &mut ssd, 81);
        assert!(!ssd.has(&blocks, first) && ssd.has(&blocks, second) && ssd.full);
        admit(&mut blocks, &mut ssd, 82);
        assert!(ssd.has(&blocks, second), "written again");
        for hash in 100..180 {
            admit(&mut blocks, &mut ssd, hash);
        }
        let second = blocks.get(2);
        assert!(!ssd.has(&blocks, second), "spared once");
        assert_eq!((ssd.live, ssd.used), (80, 80));
    }

    #[test]
    fn a_dirty_block_takes_two_places_and_leaves_the_log_in_order() {
        let (mut blocks, mut ssd) = small();
        ssd.set_dirty_part(1.0);
        for hash in 1..=10 {
            let block = blocks.get(hash);
            ssd.write(&mut blocks, block, hash as u32);
        }
        assert_eq!((ssd.used, ssd.dirty, ssd.in_log), (20, 10, 10));
        ssd.destage(&mut blocks, 105, 100);
        assert_eq!(ssd.dirty, 5);
        ssd.advance(&blocks);
        assert_eq!((ssd.used, ssd.in_log), (15, 5));
        // Overwriting a dirty block coalesces, but takes a place.
        let block = blocks.get(10);
        ssd.write(&mut blocks, block, 106);
        assert_eq!((ssd.used, ssd.dirty, ssd.in_log), (17, 5, 6));
        ssd.destage(&mut blocks, 1000, 100);
        ssd.advance(&blocks);
        assert_eq!((ssd.used, ssd.dirty, ssd.in_log, ssd.live), (11, 0, 0, 10));
    }

    #[test]
    fn no_more_is_dirty_than_the_log_takes() {
        let (mut blocks, mut ssd) = small();
        ssd.set_dirty_part(1.0);
        for hash in 1..=1000 {
            let block = blocks.get(hash);
            ssd.write(&mut blocks, block, 0);
            assert!(ssd.dirty <= 28 && ssd.used <= 80, "{} dirty, {} used", ssd.dirty, ssd.used);
        }
        // Overwriting few blocks fills the log with dead places.
        for step in 0..1000 {
            let block = blocks.get(1000 - step % 5);
            ssd.write(&mut blocks, block, 0);
            assert!(ssd.in_log <= 37 && ssd.used <= 80, "{} in the log, {} used", ssd.in_log, ssd.used);
        }
        ssd.set_dirty_part(0.0);
        for hash in 2000..=3000 {
            let block = blocks.get(hash);
            ssd.write(&mut blocks, block, 0);
        }
        assert_eq!(ssd.dirty, 7, "a quarter of the log's share");
    }

    #[test]
    fn a_smaller_sample_keeps_the_rest_as_it_was() {
        let (mut blocks, mut ssd) = small();
        ssd.set_dirty_part(1.0);
        for hash in 1..=40 {
            let block = blocks.get(hash);
            if hash % 2 == 0 { ssd.write(&mut blocks, block, 0) } else { ssd.admit(&mut blocks, block) }
        }
        ssd.destage(&mut blocks, 1, 1);
        ssd.advance(&blocks);
        let room = Room { all: 50.0, usable: 40.0, spare: 5.0, share: 15.0, movable: 10.0 };
        ssd.resize(&mut blocks, room, 32, 21);
        assert_eq!((ssd.live, ssd.used, blocks.len()), (20, 20, 20));
        for hash in 1..=20 {
            let block = blocks.get(hash);
            assert!(ssd.has(&blocks, block));
        }
    }
}
