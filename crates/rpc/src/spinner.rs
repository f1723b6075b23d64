//! Polling for a moment before sleeping, if that pays.

use std::time::{Duration, Instant};

/// The number of unsuccessful spins in a row after which spinning stops for a while.
const PATIENCE: u32 = 8;
/// The number of waits after which spinning is tried again, to notice that it pays again.
const PROBE: u32 = 64;
/// The longest pause, in waits, for a thread that loses its core to other threads each time it tries. The pause lasts
/// seconds if waits are frequent.
const PROBE_LIMIT: u32 = 1 << 16;

/// The time between two polls from which the thread may have lost its core meanwhile. If it lost the core to another
/// thread, a sleeper would get the core back sooner. If it kept the core, an interrupt or another guest of the host
/// took the time, and the gap says nothing. The value is also about the gain of one successful spin.
const CONTENDED: Duration = Duration::from_micros(20);

/// Decides whether to poll before a sleep: a wake-up costs up to 40 us on a virtual machine, polling costs a core. The
/// thread spins for at most the limit after work, and rarely once several spins found nothing. A poller yields to other
/// threads. If one of them runs, the poller returns up to a time slice (milliseconds) later. Then it does not spin for
/// the number of waits that would have had to succeed to make up for the loss. The number doubles each time that this
/// happens in a row.
#[derive(Debug)]
pub struct Spinner {
    limit: Duration,
    vain: u32,
    /// Waits to go without spinning.
    skip: u32,
    /// The number of times in a row that the thread lost the core, as a power of two.
    weight: u32,
}

impl Spinner {
    /// Returns a spinner that spins for at most `limit` at a time; zero never spins.
    pub fn new(limit: Duration) -> Self {
        Self { limit, vain: 0, skip: 0, weight: 1 }
    }

    /// Calls `ready` until it returns true or the limit is over; returns its last value.
    pub fn spin(&mut self, ready: impl FnMut() -> bool) -> bool {
        self.spin_by(Instant::now, switches, ready)
    }

    /// Spins as [`spin`](Self::spin) does, by this clock and this counter of the switches to other threads.
    fn spin_by(
        &mut self,
        mut clock: impl FnMut() -> Instant,
        switches: impl Fn() -> i64,
        mut ready: impl FnMut() -> bool,
    ) -> bool {
        if self.limit.is_zero() {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if ready() {
            // A sleeper would have succeeded at once too, so this success says nothing about spinning.
            return true;
        }
        let (start, before) = (clock(), switches());
        let mut last = start;
        loop {
            std::thread::yield_now();
            let found = ready();
            let now = clock();
            if now - last > CONTENDED && switches() > before {
                let lost = ((now - last).as_micros() / CONTENDED.as_micros()) as u32;
                self.skip = lost.saturating_mul(self.weight).min(PROBE_LIMIT);
                self.weight = (self.weight * 2).min(PROBE_LIMIT);
                return found;
            }
            if found {
                (self.vain, self.weight) = (0, 1);
                return true;
            }
            if now - start >= self.limit {
                self.vain = (self.vain + 1).min(PATIENCE);
                if self.vain == PATIENCE {
                    self.skip = PROBE;
                }
                return false;
            }
            last = now;
        }
    }
}

/// Returns how often another thread has taken this thread's core so far.
fn switches() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: it is written to as long as it lives, and zeros are one.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nvcsw + usage.ru_nivcsw
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Returns the number of `waits` that are spun through, with polls `apart` from each other. `ready` returns the
    /// result of the poll of that number within its wait. Another thread gets the core between two polls.
    fn spun(spinner: &mut Spinner, waits: u32, apart: Duration, ready: impl Fn(u32) -> bool) -> u32 {
        spun_with(spinner, waits, apart, 1, ready)
    }

    /// Returns the number of `waits` that are spun through, with `each` switches to other threads between two polls.
    fn spun_with(
        spinner: &mut Spinner,
        waits: u32,
        apart: Duration,
        each: i64,
        ready: impl Fn(u32) -> bool,
    ) -> u32 {
        let (mut spun, mut now, switched) = (0, Instant::now(), Cell::new(0));
        for _ in 0..waits {
            let mut polls = 0;
            let clock = || {
                now += apart;
                switched.set(switched.get() + each);
                now
            };
            spinner.spin_by(
                clock,
                || switched.get(),
                || {
                    polls += 1;
                    ready(polls)
                },
            );
            spun += u32::from(polls > 0);
        }
        spun
    }

    const LIMIT: Duration = Duration::from_micros(50);
    const SOON: Duration = Duration::from_micros(1);
    const LATE: Duration = Duration::from_millis(4);

    #[test]
    fn gives_up_where_it_does_not_pay_and_comes_back_when_it_does() {
        let mut spinner = Spinner::new(LIMIT);
        assert_eq!(spun(&mut spinner, PATIENCE, SOON, |_| false), PATIENCE, "it spins at first");
        assert_eq!(spun(&mut spinner, 10 * (PROBE + 1), SOON, |_| false), 10, "then rarely");
        assert_eq!(spun(&mut spinner, PROBE + 1, SOON, |poll| poll == 3), 1);
        assert_eq!(spun(&mut spinner, PATIENCE, SOON, |_| false), PATIENCE, "that probe found that it pays");
    }

    #[test]
    fn what_was_there_already_says_nothing_about_spinning() {
        let mut spinner = Spinner::new(LIMIT);
        spun(&mut spinner, PATIENCE, SOON, |_| false);
        assert_eq!(spun(&mut spinner, PROBE + 1, SOON, |_| true), 1);
        assert_eq!(spun(&mut spinner, PROBE + 1, SOON, |_| false), 1);
    }

    #[test]
    fn gives_way_to_others_that_want_the_core_for_longer_each_time() {
        let mut spinner = Spinner::new(LIMIT);
        let first = LATE.as_micros() as u32 / CONTENDED.as_micros() as u32;
        assert_eq!(spun(&mut spinner, first + 1, LATE, |_| false), 1);
        assert_eq!(spun(&mut spinner, 2 * first + 1, LATE, |_| false), 1);
        let found = |poll| poll == 2;
        assert_eq!(spun(&mut spinner, 4 * first + 1, LATE, found), 1, "not found by spinning, but by then");
        assert_eq!(spun(&mut spinner, 8 * first + 1, LATE, |_| false), 1);
        for _ in 0..32 {
            spun(&mut spinner, PROBE_LIMIT + 1, LATE, |_| false);
        }
        assert_ne!(spun(&mut spinner, PROBE_LIMIT + 1, SOON, found), 0, "not for ever");
        assert_eq!(spun(&mut spinner, PROBE, SOON, found), PROBE);
    }

    #[test]
    fn a_short_loss_costs_few_waits() {
        let mut spinner = Spinner::new(LATE);
        let apart = 3 * CONTENDED;
        assert_eq!(spun(&mut spinner, 4, apart, |_| false), 1);
        assert_eq!(spun(&mut spinner, 7, apart, |_| false), 1, "the second in a row");
        assert_eq!(spun(&mut spinner, PROBE, SOON, |poll| poll == 2), PROBE);
        assert_eq!(spun(&mut spinner, 4, apart, |_| false), 1, "not in a row any more");
    }

    #[test]
    fn a_machine_that_stops_for_a_moment_wants_no_core() {
        let mut spinner = Spinner::new(LATE * 2);
        assert_eq!(spun_with(&mut spinner, 4 * PROBE, LATE, 0, |poll| poll == 2), 4 * PROBE);
    }

    #[test]
    fn zero_never_spins() {
        assert!(!Spinner::new(Duration::ZERO).spin(|| true));
    }
}
