//! Streams of one file: reads that the backing store's own read-ahead serves, and writes that are worth starting early.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_common::lock::Mutex;

/// Bytes of a stream that are started together: enough for a stripe of any array.
const STEP: u64 = 8 << 20;

/// The range that was written UNSTABLE to one file since the last step.
#[derive(Debug, Default)]
pub(crate) struct WriteStream(Mutex<Extent>);

#[derive(Debug, Default)]
struct Extent {
    bytes: u64,
    covers: Range<u64>,
}

impl WriteStream {
    /// Counts a write. Returns the range to write back if a step is complete. Requests of a client run in parallel, so
    /// their order says nothing. A stream is a range of which at least half was written.
    pub(crate) fn wrote(&self, offset: u64, len: u64) -> Option<Range<u64>> {
        let mut extent = self.0.lock();
        let end = offset + len;
        extent.covers = match extent.bytes {
            0 => offset..end,
            _ => extent.covers.start.min(offset)..extent.covers.end.max(end),
        };
        extent.bytes += len;
        if extent.bytes < STEP {
            return None;
        }
        let Extent { bytes, covers } = std::mem::take(&mut *extent);
        (covers.end - covers.start <= 2 * bytes).then_some(covers)
    }
}

/// Detects streams: reads of one file of which each begins about where an earlier one ended.
#[derive(Debug, Default)]
pub(crate) struct ReadStream {
    next: AtomicU64,
    run: AtomicU64,
}

/// The bytes in a row that make a stream, which the backing store's own read-ahead serves better than the cache.
const STREAM: u64 = 1 << 20;
/// The distance in bytes by which requests in flight together arrive out of order.
const SPREAD: u64 = 2 << 20;

impl ReadStream {
    /// Counts a read of uncached data. Returns true if the read belongs to a stream.
    pub(crate) fn streams(&self, offset: u64, len: u64) -> bool {
        let (next, end) = (self.next.load(Ordering::Relaxed), offset + len);
        if offset.abs_diff(next) > SPREAD {
            self.run.store(len, Ordering::Relaxed);
            self.next.store(end, Ordering::Relaxed);
            return len >= STREAM;
        }
        // Only bytes that are read count, not bytes that are skipped.
        let more = end.saturating_sub(next).min(len);
        self.next.store(next.max(end), Ordering::Relaxed);
        self.run.fetch_add(more, Ordering::Relaxed) + more >= STREAM
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: u64 = 1 << 20;

    fn started(offsets: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
        let stream = WriteStream::default();
        offsets.into_iter().filter_map(|offset| stream.wrote(offset, WRITE)).collect()
    }

    #[test]
    fn a_stream_is_started_step_by_step_in_whatever_order_it_comes() {
        assert_eq!(started((0..7).map(|n| n * WRITE)), []);
        assert_eq!(started((0..20).map(|n| n * WRITE)), [0..STEP, STEP..2 * STEP]);
        // Two and two swapped.
        assert_eq!(started((0..16).map(|n| (n ^ 2) * WRITE)), [0..STEP, STEP..2 * STEP]);
    }

    #[test]
    fn scattered_writes_are_left_alone() {
        assert_eq!(started((0..64).map(|n| n * 5 * WRITE)), []);
    }

    #[test]
    fn a_stream_is_noticed_after_a_mebibyte_and_out_of_order_after_two() {
        const K: u64 = 1 << 10;
        for (swap, after) in [(0, 31), (1, 62)] {
            let reads = ReadStream::default();
            let seen: Vec<_> = (0..100u64).map(|n| reads.streams((n ^ swap) * 32 * K, 32 * K)).collect();
            assert_eq!(seen.iter().position(|stream| *stream), Some(after));
            assert!(seen[after..].iter().all(|stream| *stream));
            assert!(!reads.streams(500 << 20, 4 * K), "it goes on elsewhere");
        }
    }

    #[test]
    fn random_reads_of_a_small_file_are_no_stream() {
        let reads = ReadStream::default();
        let mut at = 1u64;
        for _ in 0..10_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            assert!(!reads.streams((at >> 40) % 256 * 4096, 4096));
        }
    }
}
