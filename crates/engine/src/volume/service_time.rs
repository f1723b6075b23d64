//! The service times of the log and of the backing store. A stream goes where it is finished sooner.

use forebay_common::lock::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of blocks written together from which a write counts as a stream.
pub(crate) const STREAM: u64 = 32;
/// The weight of the last measurement in the mean: one part in eight.
const WEIGHT: u64 = 8;
/// One stream write in this number goes through the log in any case, so that both figures stay current.
const PROBE: u64 = 64;

/// A running mean of the time for a block of a stream.
#[derive(Debug, Default)]
pub(crate) struct ServiceTime {
    /// Nanoseconds; 0 while nothing was measured.
    mean: AtomicU64,
}

impl ServiceTime {
    /// Records that `writes` writes of `blocks` blocks in all took `time`. Short writes do not count.
    pub(crate) fn measured(&self, blocks: u64, writes: u64, time: Duration) {
        if blocks < STREAM * writes.max(1) {
            return;
        }
        let sample = (time.as_nanos() as u64 / blocks).max(1);
        // Updates that cross lose a sample, which does not matter.
        let mean = match self.mean.load(Ordering::Relaxed) {
            0 => sample,
            mean => mean - mean / WEIGHT + sample / WEIGHT,
        };
        self.mean.store(mean.max(1), Ordering::Relaxed);
    }

    fn known(&self) -> Option<u64> {
        Some(self.mean.load(Ordering::Relaxed)).filter(|mean| *mean > 0)
    }
}

/// The service time of the log.
#[derive(Debug, Default)]
pub(crate) struct Service {
    /// Frames of the log.
    pub(crate) log: ServiceTime,
    asked: AtomicU64,
}

impl Service {
    /// Returns true if a stream write is finished sooner past the log. `backing` is the service time of destage
    /// batches.
    pub(crate) fn is_faster_direct(&self, backing: &ServiceTime) -> bool {
        let Some((log, backing)) = self.log.known().zip(backing.known()) else { return false };
        // A small gain does not count, since data in the log is also cached.
        backing < log - log / 4 && !self.asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn a_stream_goes_past_the_log_once_the_backing_store_is_known_to_be_faster() {
        let (service, backing) = (Service::default(), ServiceTime::default());
        let directly = || (0..PROBE).filter(|_| service.is_faster_direct(&backing)).count();
        service.log.measured(64, 1, US * 64 * 8);
        assert_eq!(directly(), 0, "nothing is known of the backing store");
        backing.measured(6400, 25, US * 6400 * 7);
        assert_eq!(directly(), 0, "about the same");
        (0..100).for_each(|_| backing.measured(6400, 25, US * 6400 * 2));
        assert_eq!(directly(), PROBE as usize - 1, "one in so many looks whether that is still so");
        (0..100).for_each(|_| service.log.measured(64, 1, US * 64));
        assert_eq!(directly(), 0);
    }

    #[test]
    fn what_is_written_in_small_pieces_says_nothing() {
        let (service, backing) = (Service::default(), ServiceTime::default());
        service.log.measured(8, 1, US);
        backing.measured(1000, 900, US);
        assert!(service.log.known().is_none() && backing.known().is_none());
    }
}
