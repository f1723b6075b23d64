//! Back-pressure: writers slow down little by little as the log fills, be it with dirty blocks or with what was overwritten.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::Engine;
use crate::lane::Lane;
use crate::wait::Gate;
use forebay_lock::Mutex;

/// From this part of the log on, writers are paced.
const FROM: f64 = 0.5;
/// At this part, no more is accepted than is destaged.
const LEVEL: f64 = 0.9;
/// Blocks accepted before anything is destaged.
const START: f64 = 256.0;

/// Room for dirty blocks of a volume: its destaging makes it. What is overwritten while it is dirty takes none.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Blocks destaged since start.
    destaged: AtomicU64,
    budget: Mutex<Budget>,
}

impl Room {
    /// Blocks were destaged.
    pub(crate) fn destaged(&self, blocks: u64) {
        self.destaged.fetch_add(blocks, Ordering::Relaxed);
    }
}

/// How much may be accepted.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Space in the log: what leaves the log makes it.
    space: Mutex<Budget>,
    pub(crate) changed: Gate,
}

#[derive(Debug, Default)]
struct Budget {
    /// What there had been of it when pacing began; `None` while there is plenty.
    since: Option<u64>,
    /// Blocks taken since then.
    taken: u64,
}

impl Budget {
    /// Whether `blocks` more may be taken while it is used up to `fill`, having been given back `returned` since start. From
    /// half full on, no more are taken than a multiple of what is given back, and that multiple falls to one.
    fn allows(&mut self, fill: f64, returned: u64, blocks: u64) -> bool {
        if fill < FROM {
            *self = Budget::default();
            return true;
        }
        let since = *self.since.get_or_insert(returned);
        let factor = 1.0 + 4.0 * (LEVEL - fill).max(0.0);
        let allowed = (START + (returned - since) as f64 * factor) as u64;
        blocks == 0 || self.taken + blocks <= allowed.max(blocks)
    }

    fn take(&mut self, blocks: u64) {
        if self.since.is_some() {
            self.taken += blocks;
        }
    }
}

/// How full the log is, and what was done about it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Dirty blocks, as a part of what the log should hold.
    pub(crate) dirty: f64,
    /// Segments: 0.5 is what the log should hold, 0.9 a fifth more.
    pub(crate) space: f64,
    /// Blocks of the segments that have left the log since start.
    pub(crate) freed: u64,
}

impl Pace {
    /// Blocks were appended that no client wrote.
    pub(crate) fn moved(&self, blocks: u64) {
        self.space.lock().take(blocks);
    }

    /// Whether `all` blocks more may be accepted, of which `new` were not dirty yet and need `room`.
    pub(crate) fn admits(&self, room: &Room, load: &Load, new: u64, all: u64) -> bool {
        let (mut space, mut dirty) = (self.space.lock(), room.budget.lock());
        let destaged = room.destaged.load(Ordering::Relaxed);
        let admitted = dirty.allows(load.dirty, destaged, new) & space.allows(load.space, load.freed, all);
        if admitted {
            dirty.take(new);
            space.take(all);
        }
        admitted
    }

    /// Waits until something of the volume was destaged or anything has left the log, or writes do not go to the log any
    /// more, or the volume is in trouble that it was not in.
    pub(crate) async fn wait(&self, engine: &Engine, lane: &Lane) {
        let now = || {
            let destaged = lane.room.destaged.load(Ordering::Relaxed);
            (destaged, engine.log_load(lane).freed, lane.is_troubled())
        };
        let seen = now();
        let ready = || {
            let load = engine.log_load(lane);
            let room = load.dirty.max(load.space) < FROM;
            (now() != seen || room || !engine.is_mirrored()).then_some(())
        };
        self.changed.until(ready).await;
    }
}

/// Spreads the room that is left for notes over the time until some are let go: that takes as long as it has taken so far,
/// or as it took last if that was longer. So their writers get slower, but nobody waits for the end of it.
#[derive(Debug, Default)]
pub(crate) struct Spread {
    /// Since when notes have to be let go.
    since: Option<Duration>,
    /// How long that took last.
    took: Duration,
    /// Nothing is appended before that.
    next: Duration,
}

/// Letting go of notes is taken to need this long at least.
const SHORTEST: Duration = Duration::from_secs(2);
/// What is ahead of its time by less need not wait.
pub(crate) const SLACK: Duration = Duration::from_millis(1);

impl Spread {
    /// Notes have to be let go. When `cost` bytes of the `room` that is left may be appended, which count from now on;
    /// `None`: there is no room until some are let go.
    pub(crate) fn admit(&mut self, now: Duration, cost: u64, room: u64) -> Option<Duration> {
        let since = *self.since.get_or_insert(now);
        if room <= cost {
            return None;
        }
        let takes = self.took.max(now.saturating_sub(since)).max(SHORTEST);
        let turn = self.next.max(now);
        self.next = turn + takes.mul_f64(cost as f64 / room as f64);
        Some(turn)
    }

    /// Some were let go.
    pub(crate) fn let_go(&mut self, now: Duration) {
        self.took = self.since.take().map_or(Duration::ZERO, |since| now.saturating_sub(since));
        self.next = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A log filled to `fill` with dirty blocks.
    fn dirty(fill: f64) -> Load {
        Load { dirty: fill, space: fill, freed: 0 }
    }

    #[test]
    fn a_log_with_room_takes_everything() {
        let (pace, room) = (Pace::default(), Room::default());
        assert!((0..1000).all(|_| pace.admits(&room, &dirty(0.49), 1000, 1000)));
    }

    #[test]
    fn a_fuller_log_takes_less_for_each_block_destaged() {
        let mut taken = Vec::new();
        for fill in [0.5, 0.7, 0.9, 1.1] {
            let (pace, room) = (Pace::default(), Room::default());
            let load = Load { dirty: fill, ..Load::default() };
            while pace.admits(&room, &load, 1, 1) {}
            room.destaged(1000);
            taken.push((0..).take_while(|_| pace.admits(&room, &load, 1, 1)).count());
        }
        assert!(taken.is_sorted_by(|a, b| a >= b), "{taken:?}");
        assert!(taken[0] > 2000 && taken[3] == 1000, "{taken:?}");
    }

    #[test]
    fn what_is_dirty_already_needs_space_in_the_log_only() {
        let (pace, room) = (Pace::default(), Room::default());
        let mut load = Load { dirty: 1.0, space: 0.3, freed: 0 };
        while pace.admits(&room, &load, 1, 1) {}
        assert!((0..10_000).all(|_| pace.admits(&room, &load, 0, 1)));
        load.space = 0.9;
        let taken = (0..).take_while(|_| pace.admits(&room, &load, 0, 1)).count();
        assert_eq!(taken, START as usize);
        load.freed = 1000;
        pace.moved(400);
        assert_eq!((0..).take_while(|_| pace.admits(&room, &load, 0, 1)).count(), 600);
    }

    #[test]
    fn a_write_larger_than_what_is_allowed_gets_through_in_the_end() {
        let (pace, room) = (Pace::default(), Room::default());
        let mut load = dirty(0.95);
        assert!(pace.admits(&room, &load, 4096, 4096));
        assert!(!pace.admits(&room, &load, 4096, 4096));
        room.destaged(8192);
        load.freed = 8192;
        assert!(pace.admits(&room, &load, 4096, 4096));
    }

    #[test]
    fn each_volume_has_the_room_that_its_own_destaging_makes() {
        let (pace, fast, slow) = (Pace::default(), Room::default(), Room::default());
        let load = Load { dirty: 0.95, ..Load::default() };
        for room in [&fast, &slow] {
            while pace.admits(room, &load, 1, 1) {}
        }
        fast.destaged(1000);
        assert!(!pace.admits(&slow, &load, 1, 1));
        assert_eq!((0..).take_while(|_| pace.admits(&fast, &load, 1, 1)).count(), 1000);
    }
}
