//! Back-pressure: writers slow down little by little as the log fills, be it with dirty blocks or with overwritten ones.
//!
//! Destaging gives back room for dirty blocks, and segments that leave the log give back space. Both come in lumps: a batch, a
//! segment. So a writer takes a *ticket*, and tickets are granted at a steady rate: the mean rate at which room comes back,
//! plus a share of the room that is left. Writers go on in the order of their tickets, and nobody waits for a lump.

use forebay_common::lock::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::Engine;
use crate::volume::Volume;
use crate::wait::{Gate, before};
use forebay_common::lock::Mutex;

/// How full something may get, as parts of the log's share of the pool.
#[derive(Clone, Copy, Debug)]
struct Levels {
    /// From here on, writers are paced.
    from: f64,
    /// Here, as much is granted as comes back.
    level: f64,
    /// Here, nothing is granted.
    full: f64,
    /// Parts of the share granted in a second, for the square of the room up to the level: close to the level, a batch of
    /// destaging more or less hardly matters.
    gain: f64,
}

/// Of dirty blocks. At most five sixths of the longest log are dirty, so that moving them makes room.
const DIRTY: Levels = Levels { from: 0.5, level: 0.95, full: 1.1, gain: 1.0 };
/// Of segments in the log. A log longer than its share holds more overwritten blocks, so fewer have to be
/// moved. As much leaves the log as has to, so the room grows at once when more is asked for.
const SPACE: Levels = Levels { from: 1.2, level: 1.28, full: 1.35, gain: 10.0 };
/// From this part of the log's share on, no space is granted.
pub(crate) const FULL: f64 = SPACE.full;
/// The part of the log's share at which as many blocks may become dirty as are destaged.
pub(crate) const LEVEL: f64 = DIRTY.level;
/// The room beyond the level is granted over this time, in seconds: enough that nobody stops while the backing store does.
const LAST: f64 = 60.0;
/// Weight of the past in the mean rate, in seconds: several batches of destaging.
const MEMORY: f64 = 2.0;
/// The mean rate is computed anew after this time.
const LOOK: Duration = Duration::from_millis(50);
/// Grants that nobody asked for are kept for this time.
const BURST: Duration = Duration::from_millis(20);
/// A waiting writer looks this often how fast tickets are granted.
const RECHECK: Duration = Duration::from_millis(100);

/// Room for dirty blocks of a volume: its destaging makes it. Overwriting a dirty block takes none.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Blocks destaged since start.
    destaged: AtomicU64,
    supply: Mutex<Supply>,
}

impl Room {
    /// Blocks were destaged.
    pub(crate) fn destaged(&self, blocks: u64) {
        self.destaged.fetch_add(blocks, Ordering::Relaxed);
    }
}

/// How much may be accepted.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// Space in the log: segments that leave the log make it.
    space: Mutex<Supply>,
    pub(crate) changed: Gate,
}

/// How full something is.
#[derive(Clone, Copy, Debug)]
struct Fill {
    /// As a part of the log's share.
    part: f64,
    /// The log's share, in blocks.
    share: f64,
    /// Blocks given back since start.
    returned: f64,
}

/// Blocks that are granted to writers.
#[derive(Debug, Default)]
struct Supply {
    /// Writers need tickets.
    paced: bool,
    /// When `returned` was looked at, and its value.
    seen: (Duration, f64),
    /// The mean of blocks given back in a second.
    rate: f64,
    /// Until when tickets were granted.
    at: Duration,
    /// Blocks granted and taken since start.
    granted: f64,
    taken: f64,
}

/// A writer's place in the order: it goes on once so many blocks were granted.
#[derive(Clone, Copy, Debug, Default)]
struct Ticket(f64);

impl Supply {
    /// Blocks granted in a second.
    fn flow(&self, levels: Levels, fill: &Fill) -> f64 {
        let room = levels.level - fill.part;
        let steady = self.rate + room * room.abs() * fill.share * levels.gain;
        let last = (levels.full - fill.part).max(0.0) * fill.share / LAST;
        steady.max(last)
    }

    /// Grants what has come due. False: there is plenty, and nobody needs a ticket.
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
            // Every ticket is granted: it is of a time when there was plenty.
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

    fn take(&mut self, blocks: u64) -> Ticket {
        self.taken += blocks as f64;
        Ticket(self.taken)
    }

    /// Whether `blocks` may be taken at once.
    fn allows(&self, blocks: u64) -> bool {
        blocks == 0 || self.taken + blocks as f64 <= self.granted
    }

    /// When the ticket will be granted if nothing changes; `None`: it is.
    fn due(&self, ticket: Ticket, levels: Levels, fill: &Fill) -> Option<Duration> {
        let missing = ticket.0 - self.granted;
        (missing > 0.0 && self.paced).then(|| {
            let flow = self.flow(levels, fill).max(1e-3);
            Duration::from_secs_f64((missing / flow).clamp(1e-4, 3600.0))
        })
    }
}

/// How full the log is, and what was done about it. Parts are of the log's share of the pool.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Dirty blocks.
    pub(crate) dirty: f64,
    /// Segments.
    pub(crate) space: f64,
    /// The share, in blocks.
    pub(crate) share: f64,
    /// Blocks of the segments that have left the log since start, and of the oldest one as far as it is on its way.
    pub(crate) freed: f64,
}

impl Load {
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
    /// Those that are not dirty yet.
    pub(crate) new: u64,
    pub(crate) all: u64,
}

impl Throttle {
    /// Blocks were appended that no client wrote.
    pub(crate) fn moved(&self, blocks: u64) {
        let mut space = self.space.lock();
        if space.paced {
            space.take(blocks);
        }
    }

    /// Whether `wanted` may be accepted at once.
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

    /// Takes tickets for `wanted` and waits until they are granted. False: writes do not go to the log any more, or the
    /// volume got into trouble, or the engine closes; the writer looks again.
    pub(crate) async fn wait(&self, engine: &Engine, volume: &Volume, wanted: Wanted) -> bool {
        let now = || engine.env.clock.now();
        let troubled = volume.is_troubled();
        engine.totals.room_waits.add(1);
        let (for_space, for_dirty) = {
            let (mut space, mut dirty) = (self.space.lock(), volume.room.supply.lock());
            (space.take(wanted.all), dirty.take(wanted.new))
        };
        loop {
            let load = engine.log_load(volume);
            let due = {
                let (mut space, mut dirty) = (self.space.lock(), volume.room.supply.lock());
                let (now, filled, dirtied) = (now(), load.of_space(), load.of_dirty(&volume.room));
                space.grant(SPACE, &filled, now);
                dirty.grant(DIRTY, &dirtied, now);
                let space = space.due(for_space, SPACE, &filled);
                let dirty = dirty.due(for_dirty, DIRTY, &dirtied).filter(|_| wanted.new > 0);
                space.max(dirty)
            };
            let Some(due) = due else { return true };
            let over = || {
                (!engine.is_mirrored() || volume.is_troubled() != troubled || engine.closing()).then_some(())
            };
            let sleep = engine.env.clock.sleep(due.min(RECHECK));
            if before(sleep, self.changed.until(over)).await.is_some() {
                return false;
            }
        }
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

    const MS: Duration = Duration::from_millis(1);
    /// Blocks of the log's share.
    const SHARE: f64 = 10_000.0;

    fn fill(part: f64, returned: f64) -> Fill {
        Fill { part, share: SHARE, returned }
    }

    /// Blocks granted within ten seconds at a steady `part` while `rate` blocks come back in a second, `lump` at a time.
    fn granted(part: f64, rate: f64, lump: f64) -> f64 {
        let mut supply = Supply::default();
        let mut before = 0.0;
        for time in 0..20_000 {
            let returned = (rate * f64::from(time) / 1000.0 / lump).floor() * lump;
            supply.grant(DIRTY, &fill(part, returned), MS * time);
            // Writers wait all the time.
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
            // A batch each second.
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
