//! The working set: distinct blocks of 4 KiB that clients read or wrote in an hour, by export.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_common::lock::Mutex;

use crate::distinct::{Distinct, Registers};
use crate::operation::{Moved, NO_EXPORT, mixed};

/// Bytes of a block.
const BLOCK: u64 = 4096;
/// An odd number with random bits, which spreads the numbers of blocks over all bits.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Seconds of an hour.
const HOUR: u64 = 3600;
/// Hours that are remembered.
const KEPT: usize = 24;
/// Exports with a set of their own. Further exports share the last one.
const SETS: usize = 16;

/// The distinct data that clients used in an hour. Sizes are estimates, within about 5 %.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkingSet {
    /// The begin of the hour, since the profile began.
    pub begin: Duration,
    /// False if the hour goes on.
    pub complete: bool,
    /// Bytes over all exports.
    pub bytes: u64,
    /// Bytes of each export, by its number. Exports beyond the first 15 are summed under the number of one of them.
    pub exports: Vec<(u32, u64)>,
}

/// The working set of this hour, and those of earlier ones.
pub(crate) struct Hours {
    /// The hour that the sets are about, counted from the begin of the profile.
    hour: AtomicU64,
    sets: [Set; SETS],
    past: Mutex<VecDeque<WorkingSet>>,
}

struct Set {
    export: AtomicU32,
    blocks: OnceLock<Distinct>,
}

impl Hours {
    /// Returns working sets without blocks.
    pub(crate) fn new() -> Self {
        let set = || Set { export: AtomicU32::new(NO_EXPORT), blocks: OnceLock::new() };
        let sets = std::array::from_fn(|_| set());
        Hours { hour: AtomicU64::new(0), sets, past: Mutex::default() }
    }

    /// Counts the blocks of a request.
    pub(crate) fn add(&self, at: Duration, export: u32, file: u64, moved: &Moved) {
        self.turn(at);
        let Some(last) = u64::from(moved.len).checked_sub(1) else { return };
        let blocks = moved.offset / BLOCK..=moved.offset.saturating_add(last) / BLOCK;
        let set = self.set(export).get_or_init(Distinct::new);
        blocks.for_each(|block| set.add(mixed(file ^ (block + 1).wrapping_mul(SPREAD))));
    }

    /// Returns the hours so far, oldest first. The last one goes on.
    pub(crate) fn snapshot(&self, at: Duration) -> Vec<WorkingSet> {
        self.turn(at);
        let mut hours: Vec<_> = self.past.lock().iter().cloned().collect();
        hours.push(self.now(false));
        hours
    }

    /// Forgets the past hours, and begins the present hour again.
    pub(crate) fn clear(&self) {
        self.past.lock().clear();
        self.clear_sets();
    }

    fn clear_sets(&self) {
        self.sets.iter().filter_map(|set| set.blocks.get()).for_each(Distinct::clear);
    }

    /// Returns the set of an export. The first use of an export takes a free one.
    fn set(&self, export: u32) -> &OnceLock<Distinct> {
        for set in &self.sets {
            let free = || set.export.compare_exchange(NO_EXPORT, export, Relaxed, Relaxed);
            // If another thread takes the free set at this moment, it may be for this export.
            let is_own = match set.export.load(Relaxed) {
                NO_EXPORT => free().is_ok() || set.export.load(Relaxed) == export,
                found => found == export,
            };
            if is_own {
                return &set.blocks;
            }
        }
        &self.sets[SETS - 1].blocks
    }

    /// Begins the hour of `at`, if it is a later one.
    fn turn(&self, at: Duration) {
        let hour = at.as_secs() / HOUR;
        if hour <= self.hour.load(Relaxed) {
            return;
        }
        let mut past = self.past.lock();
        if hour <= self.hour.load(Relaxed) {
            return;
        }
        let ended = self.now(true);
        if ended.bytes > 0 {
            past.push_back(ended);
        }
        while past.len() > KEPT {
            past.pop_front();
        }
        self.clear_sets();
        self.hour.store(hour, Relaxed);
    }

    /// Returns the working set of the present hour, of all exports and of each.
    fn now(&self, complete: bool) -> WorkingSet {
        let mut all: Option<Registers> = None;
        let mut exports = Vec::new();
        for set in &self.sets {
            let Some(registers) = set.blocks.get().map(Distinct::registers) else { continue };
            exports.push((set.export.load(Relaxed), registers.estimate() * BLOCK));
            match &mut all {
                Some(all) => all.join(&registers),
                None => all = Some(registers),
            }
        }
        exports.retain(|(_, bytes)| *bytes > 0);
        let bytes = all.map_or(0, |all| all.estimate() * BLOCK);
        WorkingSet { begin: Duration::from_secs(self.hour.load(Relaxed) * HOUR), complete, bytes, exports }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(len: u32) -> Moved {
        Moved { offset: 0, len, stable: false }
    }

    fn near(bytes: u64, wanted: u64) -> bool {
        (bytes as f64 / wanted as f64 - 1.0).abs() < 0.05
    }

    #[test]
    fn each_block_counts_once_in_its_hour() {
        let hours = Hours::new();
        let early = Duration::from_secs(60);
        for _ in 0..3 {
            (1..=40).for_each(|file| hours.add(early, 1, mixed(file), &whole(1 << 20)));
            hours.add(early, 2, mixed(99), &whole(1 << 20));
        }
        // One byte is one block, and no byte is none.
        hours.add(early, 3, mixed(100), &whole(1));
        hours.add(early, 3, mixed(101), &whole(0));
        let now = &hours.snapshot(early)[0];
        assert!(!now.complete && near(now.bytes, 41 << 20), "{now:?}");
        assert!(near(now.exports[0].1, 40 << 20) && near(now.exports[1].1, 1 << 20), "{now:?}");
        assert_eq!(now.exports[2], (3, 4096));
        let later = Duration::from_secs(2 * 3600 + 5);
        hours.add(later, 1, mixed(7), &whole(4096));
        let hours = hours.snapshot(later);
        assert_eq!(hours.len(), 2);
        assert!(hours[0].complete && near(hours[0].bytes, 41 << 20));
        assert_eq!((hours[1].begin.as_secs(), hours[1].bytes), (7200, 4096));
    }

    #[test]
    fn memory_of_hours_and_exports_is_bounded() {
        let hours = Hours::new();
        for hour in 0..100 {
            let at = Duration::from_secs(hour * 3600);
            (0..40).for_each(|export| hours.add(at, export, mixed(u64::from(export)), &whole(8192)));
        }
        let all = hours.snapshot(Duration::from_secs(99 * 3600));
        assert_eq!(all.len(), KEPT + 1);
        assert!(all.iter().all(|one| one.exports.len() == SETS && near(one.bytes, 40 * 8192)), "{all:?}");
        assert_eq!(all.last().unwrap().begin.as_secs(), 99 * 3600);
        hours.clear();
        let left = hours.snapshot(Duration::from_secs(99 * 3600));
        assert_eq!((left.len(), left[0].bytes), (1, 0));
    }
}
