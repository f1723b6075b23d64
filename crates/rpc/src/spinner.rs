//! Polling for a moment before sleeping, where that pays.

use std::time::{Duration, Instant};

/// Vain spins in a row after which spinning is given up for a while.
const PATIENCE: u32 = 8;
/// So many waits later it is tried again, to notice that it pays again.
const PROBE: u32 = 64;
/// The longest while, for a thread that finds its core wanted by others each time it tries: seconds, where waits are many.
const PROBE_LIMIT: u32 = 1 << 16;

/// Two polls further apart than this, and the thread had not the core meanwhile: somebody else needed it, and a sleeper would
/// get it back sooner. If it had, the machine did something else (an interrupt, a host with other guests): says nothing.
/// It is about what one successful spin gains, too.
const CONTENDED: Duration = Duration::from_micros(20);

/// Decides whether to poll before a sleep: a wake-up costs up to 40 us on a virtual machine, polling costs a
/// core. It spins for at most its limit after work, and rarely once spinning found nothing several times. A poller lets
/// others run; where they do, it comes back up to a time slice later (milliseconds): then it does without for as many waits as
/// would have had to succeed to make up for that, and twice as many each time that happens in a row.
#[derive(Debug)]
pub struct Spinner {
    limit: Duration,
    vain: u32,
    /// Waits to go without spinning.
    skip: u32,
    /// How many times it lost the core in a row, as a power of two.
    weight: u32,
}

impl Spinner {
    /// Spins for at most `limit` at a time; zero never spins.
    pub fn new(limit: Duration) -> Self {
        Self { limit, vain: 0, skip: 0, weight: 1 }
    }

    /// Calls `ready` until it is true (returned) or the limit is over.
    pub fn spin(&mut self, ready: impl FnMut() -> bool) -> bool {
        self.spin_by(Instant::now, switches, ready)
    }

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
            // So would a sleeper have found: it says nothing about spinning.
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

/// How often another thread got this one's core so far.
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

    /// How many of `waits` are spun through, where polls are so far apart and `ready` says what the poll of that number within
    /// its wait finds. Another thread gets the core between two polls.
    fn spun(spinner: &mut Spinner, waits: u32, apart: Duration, ready: impl Fn(u32) -> bool) -> u32 {
        spun_with(spinner, waits, apart, 1, ready)
    }

    /// The same with so many switches to other threads each time.
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
