//! Corrects for late completions: if a completion was delivered late, the next request counts as that much earlier.
//!
//! A timer wakes its thread late, and later still on a busy machine. Without this correction every request of a
//! closed loop would add that delay. The emulated disks would then be slower than their model.

use crate::sim::Nanos;
use std::collections::VecDeque;

/// Longest delay that is corrected, and longest age of a credit, in nanoseconds.
const LIMIT: Nanos = 5_000_000;
/// Most credits kept; a further one replaces the oldest.
const KEPT: usize = 256;

/// The credits that no request has used, oldest first: time of delivery and delay, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct Credits(VecDeque<(Nanos, Nanos)>);

impl Credits {
    /// Adds a credit for a completion that was due at `due` and delivered at `now`.
    pub(super) fn earn(&mut self, now: Nanos, due: Nanos) {
        if self.0.len() == KEPT {
            self.0.pop_front();
        }
        self.0.push_back((now, now.saturating_sub(due).min(LIMIT)));
    }

    /// Uses the oldest valid credit. Returns the time at which a request that came at `now` would have come on an
    /// exact clock.
    pub(super) fn spend(&mut self, now: Nanos) -> Nanos {
        while let Some((earned, credit)) = self.0.pop_front() {
            if now.saturating_sub(earned) <= LIMIT {
                return now - credit;
            }
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_completion_makes_the_next_request_early_once() {
        let mut credits = Credits::default();
        credits.earn(10_060_000, 10_000_000);
        assert_eq!(credits.spend(10_100_000), 10_040_000);
        assert_eq!(credits.spend(10_100_000), 10_100_000);
        credits.earn(20_000_000, 1_000_000);
        assert_eq!(credits.spend(20_000_000), 15_000_000, "the credit is limited");
        credits.earn(30_000_000, 29_000_000);
        assert_eq!(credits.spend(40_000_000), 40_000_000, "the credit has lapsed");
    }
}
