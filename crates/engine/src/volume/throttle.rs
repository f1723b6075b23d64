//! The throttle: writers slow down little by little as the log fills with dirty or overwritten blocks.
//!
//! Destaging gives back room for dirty blocks. Segments that leave the log give back space. Both come in lumps: a
//! batch, a segment. So a writer takes a *ticket*, and tickets are granted at a steady rate. That is the mean rate at
//! which room comes back, plus a share of the room that is left. Writers continue in the order of their tickets, and
//! no writer waits for a lump.

use forebay_common::lock::Mutex;
use forebay_common::lock::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::wait::Gate;

/// Levels of fullness, as parts of the log's share of the pool.
#[derive(Clone, Copy, Debug)]
struct Levels {
    /// The level from which writers are throttled.
    from: f64,
    /// The level at which as much is granted as comes back.
    level: f64,
    /// The level at which nothing is granted.
    full: f64,
    /// Parts of the share granted in a second, for the square of the room up to the level. Close to the level, a
    /// batch of destaging more or less hardly matters.
    gain: f64,
}

/// Levels of dirty blocks. At most five sixths of the longest log are dirty, so that moving them makes room.
const DIRTY: Levels = Levels { from: 0.5, level: 0.95, full: 1.1, gain: 1.0 };

/// Levels of segments in the log. A log longer than its share holds more overwritten blocks, so fewer blocks must be
/// moved. Segments leave the log only as needed, so the room grows at once when more is asked for.
const SPACE: Levels = Levels { from: 1.2, level: 1.28, full: 1.35, gain: 10.0 };

/// The part of the log's share from which on no space is granted.
pub(crate) const FULL: f64 = SPACE.full;

/// The part of the log's share at which as many blocks may become dirty as are destaged.
pub(crate) const LEVEL: f64 = DIRTY.level;

/// The time in seconds over which the room beyond the level is granted. It is long enough that writers continue while
/// the backing store stalls.
const LAST: f64 = 60.0;

/// Weight of the past in the mean rate, in seconds: several batches of destaging.
const MEMORY: f64 = 2.0;

/// The interval at which the mean rate is computed again.
const LOOK: Duration = Duration::from_millis(50);

/// The time for which unused grants are kept.
const BURST: Duration = Duration::from_millis(20);

/// Room for dirty blocks of a volume. The volume's destaging makes room. Overwriting a dirty block takes none.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Blocks destaged since the start.
    destaged: AtomicU64,
    supply: Mutex<Supply>,
}

impl Room {
    /// Counts destaged blocks.
    pub(crate) fn destaged(&self, blocks: u64) {
        self.destaged.fetch_add(blocks, Ordering::Relaxed);
    }
}

/// The limit on accepted writes.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// Space in the log. Segments that leave the log make space.
    space: Mutex<Supply>,
    pub(crate) changed: Gate,
}

/// The fullness of the log in one respect: dirty blocks or segments.
#[derive(Clone, Copy, Debug)]
struct Fill {
    /// The fullness, as a part of the log's share.
    part: f64,
    /// The log's share, in blocks.
    share: f64,
    /// Blocks given back since the start.
    returned: f64,
}

/// Blocks that are granted to writers.
#[derive(Debug, Default)]
struct Supply {
    /// True if writers need tickets.
    paced: bool,
    /// The time of the last look at `returned`, and its value then.
    seen: (Duration, f64),
    /// The mean number of blocks given back in a second.
    rate: f64,
    /// The time up to which tickets were granted.
    at: Duration,
    /// Blocks granted and taken since the start.
    granted: f64,
    taken: f64,
}

/// A writer's place in the order. The writer continues once this number of blocks was granted.
#[derive(Clone, Copy, Debug, Default)]
struct Ticket(f64);

/// A writer's place in the order for space in the log, and for dirty blocks of a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tickets {
    wanted: Wanted,
    space: Ticket,
    dirty: Ticket,
}

impl Supply {
    /// Returns the number of blocks granted in a second.
    fn flow(&self, levels: Levels, fill: &Fill) -> f64 {
        let room = levels.level - fill.part;
        let steady = self.rate + room * room.abs() * fill.share * levels.gain;
        let last = (levels.full - fill.part).max(0.0) * fill.share / LAST;
        steady.max(last)
    }

    /// Grants the blocks that have come due. Returns false if there is plenty of room, and no writer needs a ticket.
    fn grant(&mut self, levels: Levels, fill: &Fill, now: Duration) -> bool {
        let (since, returned) = self.seen;
        let elapsed = now.saturating_sub(since);
        if elapsed >= LOOK {
            let rate = (fill.returned - returned) / elapsed.as_secs_f64();
            self.rate += (rate - self.rate) * (1.0 - (-elapsed.as_secs_f64() / MEMORY).exp());
            self.seen = (now, fill.returned);
        }
        let paced = fill.part >= levels.from;
        if !std::mem::replace(&mut self.paced, paced) || !paced {
            // Every ticket is granted, since it is from a time with plenty of room.
            (self.granted, self.at) = (self.taken, now);
            return paced;
        }
        let flow = self.flow(levels, fill);
        let due = flow * now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        let most = self.taken + flow * BURST.as_secs_f64();
        self.granted = (self.granted + due).min(most.max(self.granted));
        true
    }

    /// Takes a number of blocks from the supply. Returns the writer's place in the order.
    fn take(&mut self, blocks: u64) -> Ticket {
        self.taken += blocks as f64;
        Ticket(self.taken)
    }

    /// Returns true if `blocks` may be taken at once.
    fn allows(&self, blocks: u64) -> bool {
        blocks == 0 || self.taken + blocks as f64 <= self.granted
    }

    /// Returns the time until the ticket is granted at the current rate; `None` if it is granted.
    fn due(&self, ticket: Ticket, levels: Levels, fill: &Fill) -> Option<Duration> {
        let missing = ticket.0 - self.granted;
        (missing > 0.0 && self.paced).then(|| {
            let flow = self.flow(levels, fill).max(1e-3);
            Duration::from_secs_f64((missing / flow).clamp(1e-4, 3600.0))
        })
    }
}

/// The fullness of the log, and the room given back so far. Parts are of the log's share of the pool.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Dirty blocks, as a part of the share.
    pub(crate) dirty: f64,
    /// Segments, as a part of the share.
    pub(crate) space: f64,
    /// The log's share, in blocks.
    pub(crate) share: f64,
    /// Blocks of the segments that have left the log since the start, and the part of the oldest segment that is
    /// ready to leave.
    pub(crate) freed: f64,
}

impl Load {
    /// Returns the fullness of the log by dirty blocks, with the blocks of the volume destaged so far.
    fn of_dirty(&self, room: &Room) -> Fill {
        let returned = room.destaged.load(Ordering::Relaxed) as f64;
        Fill { part: self.dirty, share: self.share, returned }
    }

    fn of_space(&self) -> Fill {
        Fill { part: self.space, share: self.share, returned: self.freed }
    }
}

/// Blocks that a writer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Blocks that are not dirty yet.
    pub(crate) new: u64,
    pub(crate) all: u64,
}

impl Throttle {
    /// Takes space for blocks that were appended but not by a client.
    pub(crate) fn moved(&self, blocks: u64) {
        let mut space = self.space.lock();
        if space.paced {
            space.take(blocks);
        }
    }

    /// Returns true if `wanted` may be accepted at once.
    pub(crate) fn admits(
        &self,
        room: &Room,
        load: &Load,
        wanted: Wanted,
        now: impl Fn() -> Duration,
    ) -> bool {
        if load.dirty < DIRTY.from && load.space < SPACE.from {
            return true;
        }
        let now = now();
        let (mut space, mut dirty) = (self.space.lock(), room.supply.lock());
        let spacious = !space.grant(SPACE, &load.of_space(), now);
        let clean = !dirty.grant(DIRTY, &load.of_dirty(room), now);
        let admitted = (spacious || space.allows(wanted.all)) && (clean || dirty.allows(wanted.new));
        if admitted {
            if !spacious {
                space.take(wanted.all);
            }
            if !clean {
                dirty.take(wanted.new);
            }
        }
        admitted
    }

    /// Takes tickets for `wanted`.
    pub(crate) fn take(&self, room: &Room, wanted: Wanted) -> Tickets {
        let (mut space, mut dirty) = (self.space.lock(), room.supply.lock());
        Tickets { wanted, space: space.take(wanted.all), dirty: dirty.take(wanted.new) }
    }

    /// Returns the time until the tickets are granted at the current rates; `None` if they are granted.
    pub(crate) fn due(&self, room: &Room, load: &Load, tickets: &Tickets, now: Duration) -> Option<Duration> {
        let (mut space, mut dirty) = (self.space.lock(), room.supply.lock());
        let (filled, dirtied) = (load.of_space(), load.of_dirty(room));
        space.grant(SPACE, &filled, now);
        dirty.grant(DIRTY, &dirtied, now);
        let space = space.due(tickets.space, SPACE, &filled);
        let dirty = dirty.due(tickets.dirty, DIRTY, &dirtied).filter(|_| tickets.wanted.new > 0);
        space.max(dirty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    /// The log's share, in blocks.
    const SHARE: f64 = 10_000.0;

    fn fill(part: f64, returned: f64) -> Fill {
        Fill { part, share: SHARE, returned }
    }

    /// Returns the blocks granted in a second at a steady `part`, while `rate` blocks come back in a second, `lump`
    /// at a time.
    fn granted(part: f64, rate: f64, lump: f64) -> f64 {
        let mut supply = Supply::default();
        let mut before = 0.0;
        for time in 0..20_000 {
            let returned = (rate * f64::from(time) / 1000.0 / lump).floor() * lump;
            supply.grant(DIRTY, &fill(part, returned), MS * time);
            // Writers wait all the time, so every grant is taken.
            supply.taken = supply.granted + 1.0;
            if time == 10_000 {
                before = supply.granted;
            }
        }
        (supply.granted - before) / 10.0
    }

    #[test]
    fn a_log_with_room_takes_everything() {
        let (throttle, room) = (Throttle::default(), Room::default());
        let load = Load { dirty: 0.49, space: 1.19, share: SHARE, freed: 0.0 };
        let wanted = Wanted { new: 1000, all: 1000 };
        assert!((0..1000).all(|_| throttle.admits(&room, &load, wanted, || panic!("nobody needs to know"))));
    }

    #[test]
    fn as_much_is_granted_as_comes_back_when_the_log_is_at_its_level() {
        for lump in [1.0, 300.0] {
            let rate = granted(DIRTY.level, 1000.0, lump);
            assert!((950.0..1050.0).contains(&rate), "{rate} in lumps of {lump}");
        }
    }

    #[test]
    fn a_fuller_log_grants_less_and_never_stops_before_it_is_full() {
        let rates = [0.5, 0.7, 0.94, 1.0, 1.05].map(|part| granted(part, 0.0, 1.0));
        assert!(rates.is_sorted_by(|a, b| a > b), "{rates:?}");
        assert!(rates[4] > 1.0 && granted(DIRTY.full, 0.0, 1.0) == 0.0, "{rates:?}");
    }

    #[test]
    fn lumps_are_spread_over_time() {
        let mut supply = Supply::default();
        let mut longest = (0, 0);
        let mut last = 0.0;
        for time in 0..20_000 {
            // A batch comes each second.
            let returned = f64::from(time / 1000) * 500.0;
            supply.grant(DIRTY, &fill(DIRTY.level, returned), MS * time);
            supply.taken = supply.granted + 1.0;
            if supply.granted >= last + 1.0 {
                (last, longest.0) = (supply.granted, 0);
            } else {
                longest.0 += 1;
                longest.1 = longest.1.max(if time > 5000 { longest.0 } else { 0 });
            }
        }
        assert!(longest.1 < 10, "nothing was granted for {} ms", longest.1);
    }

    #[test]
    fn overwriting_dirty_blocks_takes_space_only() {
        let (throttle, room) = (Throttle::default(), Room::default());
        let load = Load { dirty: 1.0, space: 0.3, share: SHARE, freed: 0.0 };
        let admits = |new| throttle.admits(&room, &load, Wanted { new, all: 1 }, || Duration::ZERO);
        assert!(!admits(1));
        assert!((0..10_000).all(|_| admits(0)));
    }

    #[test]
    fn moved_blocks_take_space_from_clients() {
        let (throttle, room) = (Throttle::default(), Room::default());
        let load = Load { dirty: 0.0, space: SPACE.from, share: SHARE, freed: 0.0 };
        let admitted = |now: Duration| {
            (0..).take_while(|_| throttle.admits(&room, &load, Wanted { new: 0, all: 1 }, || now)).count()
        };
        admitted(Duration::ZERO);
        let before = admitted(MS * 10);
        throttle.moved(before as u64);
        assert!(before > 1 && admitted(MS * 20) <= 1);
    }

    #[test]
    fn each_volume_has_the_room_that_its_own_destaging_makes() {
        let (throttle, fast, slow) = (Throttle::default(), Room::default(), Room::default());
        let load = Load { dirty: DIRTY.level, space: 0.0, share: SHARE, freed: 0.0 };
        let mut admitted = [0, 0];
        for time in 0..10_000 {
            fast.destaged(1);
            for (room, admitted) in [&fast, &slow].into_iter().zip(&mut admitted) {
                *admitted +=
                    usize::from(throttle.admits(room, &load, Wanted { new: 1, all: 1 }, || MS * time));
            }
        }
        assert!(admitted[0] > 5 * admitted[1], "{admitted:?}");
    }
}
