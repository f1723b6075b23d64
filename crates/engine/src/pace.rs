//! Back-pressure: writers slow down little by little as the log fills.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::engine::Engine;
use crate::wait::Gate;

/// From this part of the log on, writers are paced.
const FROM: f64 = 0.5;
/// At this part, no more is accepted than is destaged.
const LEVEL: f64 = 0.9;
/// Blocks accepted before anything is destaged.
const START: f64 = 256.0;

/// How much may be accepted.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Blocks destaged since start.
    destaged: AtomicU64,
    paced: Mutex<Paced>,
    pub(crate) changed: Gate,
}

#[derive(Debug, Default)]
struct Paced {
    /// Blocks destaged when pacing began; `None` while the log has room.
    since: Option<u64>,
    /// Blocks accepted since then.
    accepted: u64,
}

impl Pace {
    /// Blocks were destaged.
    pub(crate) fn destaged(&self, blocks: u64) {
        self.destaged.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Whether `blocks` more may be accepted while the log is filled to `fill`. From half full on, no more are accepted
    /// than a multiple of what is destaged, and that multiple falls to one.
    pub(crate) fn admits(&self, fill: f64, blocks: u64) -> bool {
        let mut paced = self.paced.lock();
        if fill < FROM {
            *paced = Paced::default();
            return true;
        }
        let destaged = self.destaged.load(Ordering::Relaxed);
        let since = *paced.since.get_or_insert(destaged);
        let factor = 1.0 + 4.0 * (LEVEL - fill).max(0.0);
        let allowed = (START + (destaged - since) as f64 * factor) as u64;
        if paced.accepted + blocks > allowed.max(blocks) {
            return false;
        }
        paced.accepted += blocks;
        true
    }

    /// Waits until something was destaged, or writes do not go to the log any more.
    pub(crate) async fn wait(&self, engine: &Engine) {
        let seen = self.destaged.load(Ordering::Relaxed);
        let ready = || {
            let destaged = self.destaged.load(Ordering::Relaxed) != seen;
            (destaged || engine.fill() < FROM || !engine.is_mirrored()).then_some(())
        };
        self.changed.until(ready).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_with_room_takes_everything() {
        let pace = Pace::default();
        assert!((0..1000).all(|_| pace.admits(0.49, 1000)));
    }

    #[test]
    fn a_fuller_log_takes_less_for_each_block_destaged() {
        let mut taken = Vec::new();
        for fill in [0.5, 0.7, 0.9, 1.1] {
            let pace = Pace::default();
            while pace.admits(fill, 1) {}
            pace.destaged(1000);
            taken.push((0..).take_while(|_| pace.admits(fill, 1)).count());
        }
        assert!(taken.is_sorted_by(|a, b| a >= b), "{taken:?}");
        assert!(taken[0] > 2000 && taken[3] == 1000, "{taken:?}");
    }

    #[test]
    fn a_write_larger_than_what_is_allowed_gets_through_in_the_end() {
        let pace = Pace::default();
        assert!(pace.admits(0.95, 4096));
        assert!(!pace.admits(0.95, 4096));
        pace.destaged(8192);
        assert!(pace.admits(0.95, 4096));
    }
}
