//! Polling for a moment before sleeping, where that pays.

use std::time::{Duration, Instant};

/// Vain spins in a row after which spinning is given up for a while.
const PATIENCE: u32 = 8;
/// One of so many waits is still spun through then, to notice that it pays again.
const PROBE: u32 = 64;

/// Two polls further apart than this: somebody else needed the core, and a sleeper would get it back sooner.
const CONTENDED: Duration = Duration::from_micros(20);

/// Decides whether to poll before a sleep: a wake-up costs up to 40 us on a virtual machine, polling costs a
/// core. It spins for at most its limit after work, and rarely once spinning found nothing several times or the
/// core was wanted by others.
#[derive(Debug)]
pub struct Spinner {
    limit: Duration,
    vain: u32,
    skipped: u32,
}

impl Spinner {
    /// Spins for at most `limit` at a time; zero never spins.
    pub fn new(limit: Duration) -> Self {
        Self { limit, vain: 0, skipped: 0 }
    }

    /// Calls `ready` until it is true (returned) or the limit is over.
    pub fn spin(&mut self, mut ready: impl FnMut() -> bool) -> bool {
        if self.limit.is_zero() {
            return false;
        }
        if self.vain >= PATIENCE {
            self.skipped += 1;
            if !self.skipped.is_multiple_of(PROBE) {
                return false;
            }
        }
        let start = Instant::now();
        let mut last = start;
        loop {
            if ready() {
                self.vain = 0;
                return true;
            }
            let now = Instant::now();
            if now - last > CONTENDED {
                self.vain = PATIENCE;
                return false;
            }
            if now - start >= self.limit {
                self.vain = self.vain.saturating_add(1);
                return false;
            }
            last = now;
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_up_where_it_does_not_pay_and_comes_back_when_it_does() {
        let mut spinner = Spinner::new(Duration::from_nanos(1));
        let mut polls = 0;
        for _ in 0..PATIENCE + 2 * PROBE {
            spinner.spin(|| {
                polls += 1;
                false
            });
        }
        assert!(polls >= PATIENCE, "it spins at first");
        let (before, mut calls) = (polls, 0);
        while !spinner.spin(|| true) {
            calls += 1;
        }
        assert!(calls < PROBE, "a probe finds out: {before} polls before");
        assert!(spinner.spin(|| true), "and spinning is on again");
    }

    #[test]
    fn gives_way_to_others_that_want_the_core() {
        let mut spinner = Spinner::new(Duration::from_secs(60));
        let mut polls = 0;
        for _ in 0..PROBE {
            spinner.spin(|| {
                polls += 1;
                std::thread::sleep(2 * CONTENDED);
                false
            });
        }
        assert!(polls <= 2, "{polls} polls");
    }

    #[test]
    fn zero_never_spins() {
        assert!(!Spinner::new(Duration::ZERO).spin(|| true));
    }
}
