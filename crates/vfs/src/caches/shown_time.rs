//! The change time that clients see of an inode, which grows with every change through this server.
//!
//! NFSv4's change attribute is this time in nanoseconds. A kernel's change times may be as coarse as a clock tick, so
//! two changes within one tick have one change time. Each change therefore moves the shown time by at least 1 ns.
//!
//! The kernel moves a file's change time before it copies the data of a write. Requests side by side may apply their
//! times in another order. So the file system's time is shown only while no change is in progress. During changes
//! clients see the time from before, and 1 ns more for each change that has ended.
//!
//! The shown time is lost when the inode leaves memory, and when the server ends. [`first`] returns a later one.
//! docs/decisions/050-change-attribute.md has the reasons.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::attr::Time;

const SECOND: i64 = 1_000_000_000;
/// No change was shown yet. Every time is later.
const NONE: i64 = i64::MIN;
/// The difference between the change time of an inode and the time shown of it after it has left memory. It is longer
/// than any tick. It is no multiple of one, so the sum is not the time of another change.
const LEAP: i64 = SECOND + SECOND / 2000;

/// The change time shown after the last change of an inode, in nanoseconds since 1970, while the inode is in memory.
#[derive(Debug)]
pub(super) struct ShownTime(AtomicI64);

/// A lower bound of the change times that may still be shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Floor(i64);

impl Default for ShownTime {
    fn default() -> Self {
        ShownTime(AtomicI64::new(NONE))
    }
}

impl ShownTime {
    /// Returns the lower bound for attributes that the caller reads afterwards. A bound that was taken after the
    /// attributes would let older attributes have the change time of newer ones.
    pub(super) fn floor(&self) -> Floor {
        Floor(self.0.load(Ordering::Acquire))
    }

    /// Notes a change time that clients saw.
    pub(super) fn seen(&self, time: Time) {
        self.0.fetch_max(nanos(time), Ordering::AcqRel);
    }

    /// Ends a change that has been carried out. Clients saw the change time `before`, if it is known. The file system
    /// and the cache now say `after`, or `None` while other changes are in progress. The shown time becomes `after` if
    /// that is later than all shown times. Otherwise it becomes 1 ns later than they are.
    pub(super) fn advance(&self, before: Option<Time>, after: Option<Time>) {
        let (before, after) = (before.map_or(NONE, nanos), after.map_or(NONE, nanos));
        let next = |last: i64| {
            let last = last.max(before);
            Some(if after > last { after } else { last.saturating_add(1) })
        };
        // The closure never refuses.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }
}

impl Floor {
    /// Returns true if `time` is later than the bound.
    pub(super) fn is_before(self, time: Time) -> bool {
        self.0 < nanos(time)
    }

    /// Returns true if `time` is earlier than the bound.
    pub(super) fn is_after(self, time: Time) -> bool {
        self.0 > nanos(time)
    }

    /// Returns the change time to show for `ctime`, which was read after this bound. `quiet` says that no change was in
    /// progress since.
    pub(super) fn show(self, ctime: Time, quiet: bool) -> Time {
        if self.0 == NONE || quiet && self.0 <= nanos(ctime) {
            return ctime;
        }
        time(self.0)
    }
}

/// Returns a change time to show of an inode that may have been in memory before. The file system says `ctime`, and its
/// times are coarse. `now` is at most the present time. The result is later than every time that was shown before the
/// inode's last change, if that change was at `ctime`:
///
/// - Soon after `ctime` that is the present time, since each shown time was past when it was shown.
/// - Later, the tick of `ctime` is over. Shown times before the last change were in that tick, so one fixed time after
///   it exceeds them.
pub(crate) fn first(ctime: Time, now: Time) -> Time {
    let from = nanos(ctime);
    let until = from.saturating_add(LEAP);
    if nanos(now) < from { ctime } else { time(nanos(now).min(until)) }
}

/// Returns the time that is this number of nanoseconds after the start of 1970.
fn time(nanos: i64) -> Time {
    Time { sec: nanos.div_euclid(SECOND), nsec: nanos.rem_euclid(SECOND) as u32 }
}

/// Returns a time in nanoseconds since 1970. Times before 1677 and after 2262 become the nearest such number.
fn nanos(time: Time) -> i64 {
    time.sec.saturating_mul(SECOND).saturating_add(time.nsec.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An inode on a file system whose clock has ticks of 4 ms.
    #[derive(Debug, Default)]
    struct Coarse {
        now: i64,
        ctime: i64,
        shown: ShownTime,
    }

    impl Coarse {
        const TICK: i64 = 4_000_000;

        fn look(&self) -> i64 {
            nanos(self.shown.floor().show(time(self.ctime), true))
        }

        fn change(&mut self) -> i64 {
            let before = self.look();
            self.ctime = self.now - self.now % Self::TICK;
            self.shown.advance(Some(time(before)), Some(time(self.ctime)));
            self.look()
        }

        /// Takes the inode out of memory and back.
        fn leave(&mut self) -> i64 {
            self.shown = ShownTime::default();
            self.shown.seen(first(time(self.ctime), time(self.now)));
            self.look()
        }
    }

    #[test]
    fn no_time_that_was_shown_of_an_earlier_state_returns() {
        // Steps of 1 us to 1 s: within a tick, over a tick, and over the leap.
        for (round, step) in [1_000, 300_000, 5_000_000, SECOND].into_iter().enumerate() {
            let mut inode = Coarse { now: 1_700_000_000 * SECOND + 123, ..Coarse::default() };
            let mut last = inode.change();
            for turn in 0..1000 {
                inode.now += step;
                let left = inode.leave();
                assert!(left >= last, "{round} {turn}: {left} after {last}");
                assert!(left <= inode.now, "{round} {turn}: times of the future could be shown again");
                for _ in 0..turn % 3 {
                    inode.now += step;
                    let next = inode.change();
                    assert!(next > left.max(last), "{round} {turn}: {next} after {left}");
                    last = next;
                }
                last = last.max(left);
            }
        }
    }

    #[test]
    fn an_inode_that_is_not_changed_soon_keeps_its_time_whenever_it_leaves_memory() {
        let mut inode = Coarse { now: 1_700_000_000 * SECOND, ..Coarse::default() };
        inode.change();
        inode.now += 2 * LEAP;
        let settled = inode.leave();
        inode.now += 86_400 * SECOND;
        assert_eq!((inode.leave(), settled), (settled, inode.ctime + LEAP));
        // A clock that is set back.
        inode.now = inode.ctime - SECOND;
        assert_eq!(inode.leave(), inode.ctime);
        for time in [Time { sec: i64::MIN, nsec: 0 }, Time { sec: i64::MAX, nsec: 9 }] {
            first(time, time);
        }
    }

    #[test]
    fn changes_within_one_tick_differ_and_the_next_tick_overtakes_them() {
        let mut inode = Coarse { now: 1_700_000_000 * SECOND, ..Coarse::default() };
        let mut last = inode.look();
        for step in 1..10_000 {
            inode.now += 1000;
            let next = inode.change();
            assert!(next > last, "step {step}: {next} after {last}");
            assert!(next - inode.ctime < Coarse::TICK, "the clock overtakes what was added");
            assert_eq!(inode.look(), next, "nothing changed");
            last = next;
        }
        inode.now += Coarse::TICK;
        assert_eq!(inode.change(), inode.ctime, "nothing is left of what was added");
    }

    #[test]
    fn a_clock_that_is_set_back_takes_no_shown_time_back() {
        let mut inode = Coarse { now: 100 * SECOND, ..Coarse::default() };
        let first = inode.change();
        inode.now = 50 * SECOND;
        assert_eq!(inode.look(), first);
        assert_eq!([inode.change(), inode.change()], [first + 1, first + 2]);
        inode.now = 101 * SECOND;
        assert_eq!(inode.change(), 101 * SECOND);
    }

    #[test]
    fn during_changes_the_time_of_the_file_system_is_not_shown() {
        let shown = ShownTime::default();
        let look = |ctime, quiet| nanos(shown.floor().show(time(ctime), quiet));
        shown.seen(time(5));
        assert_eq!([look(30, false), look(30, true)], [5, 30]);
        // Two changes side by side: the first one to end has applied the later time.
        shown.advance(Some(time(5)), None);
        assert_eq!(look(30, false), 6);
        shown.advance(Some(time(5)), Some(time(20)));
        assert_eq!([look(20, false), look(20, true)], [20, 20]);
        // A change whose attributes before it could not be read.
        shown.advance(None, Some(time(20)));
        assert_eq!(look(20, true), 21);
    }

    #[test]
    fn attributes_from_before_a_change_never_have_its_time() {
        let shown = ShownTime::default();
        let floor = shown.floor();
        shown.advance(Some(time(7)), Some(time(7)));
        assert_eq!((floor.show(time(7), true), shown.floor().show(time(7), true)), (time(7), time(8)));
    }

    #[test]
    fn an_inode_without_changes_has_the_time_of_its_file_system() {
        for time in
            [Time { sec: -5, nsec: 3 }, Time { sec: i64::MIN, nsec: 0 }, Time { sec: i64::MAX, nsec: 9 }]
        {
            assert_eq!(ShownTime::default().floor().show(time, true), time);
        }
    }
}
