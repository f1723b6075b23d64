//! The filter in the path of requests: it counts every block, and keeps the references to sampled blocks for the
//! estimator.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use forebay_common::lock::Mutex;

/// The number of parts of the buffer. More threads than these share them.
const SHARDS: usize = 16;
/// The highest number of references that a part of the buffer holds.
const ROOM: usize = 512;

/// The longest request in blocks that is noted: 256 MiB. A longer one is no request of an application for contents.
const LONGEST: u64 = 1 << 16;

/// A kind of request for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A read through the cache.
    Read,
    /// A read past the cache: a part of a stream, or of data that the kernel has in memory.
    Past,
    /// A write to the log.
    Write,
    /// A write to the backing store whose contents memory keeps.
    Through,
    /// A write to the backing store that no tier keeps.
    Around,
}

/// A request for one sampled block.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    /// [`identity`] of the block.
    pub hash: u64,
    /// The time of the request in milliseconds, from any start, modulo 2^32.
    pub at_ms: u32,
    group: u32,
    kind: Kind,
}

impl Reference {
    /// Returns a reference to the block with identity `hash`, whose object belongs to `group`.
    pub fn new(hash: u64, group: u32, kind: Kind, at_ms: u32) -> Self {
        Reference { hash, at_ms, group, kind }
    }

    pub(crate) fn kind(self) -> Kind {
        self.kind
    }

    pub(crate) fn group(self) -> u32 {
        self.group
    }
}

/// Returns the identity of a block of the object whose key hashes to `object`: a hash whose bits are all equally
/// likely. The mixer is that of SplitMix64 (Steele et al., OOPSLA'14).
pub fn identity(object: u64, block: u64) -> u64 {
    let mut hash = object ^ block.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ hash >> 31
}

/// The counts of some threads, and their references.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard {
    reads: AtomicU64,
    writes: AtomicU64,
    /// Blocks written past the log.
    others: AtomicU64,
    lost_reads: AtomicU64,
    lost_writes: AtomicU64,
    lost_others: AtomicU64,
    references: Mutex<Vec<Reference>>,
}

impl Shard {
    /// Returns the number of the calling thread's shard. Threads get the numbers in turn.
    fn of_thread() -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static SHARD: usize = NEXT.fetch_add(1, Relaxed) % SHARDS);
        SHARD.with(|shard| *shard)
    }
}

/// Numbers of blocks since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Blocks read.
    pub reads: u64,
    /// Blocks written to the log.
    pub writes: u64,
    /// Blocks written past the log.
    pub others: u64,
    /// References to sampled blocks that were read, and for which the buffer had no room.
    pub lost_reads: u64,
    /// References to sampled blocks that were written to the log, and for which the buffer had no room.
    pub lost_writes: u64,
    /// References to other sampled blocks for which the buffer had no room.
    pub lost_others: u64,
}

/// The filter that all requests pass.
///
/// The filter decides block by block: a request of 1 MiB is 256 references. Each block has the same chance whatever
/// the requests look like, so the sample is unbiased. Sampling longer ranges would cost less for long requests, but
/// neighbouring blocks are used alike, so a sample of as many blocks would say less.
#[derive(Debug)]
pub struct Sampler {
    threshold: AtomicU64,
    shards: [Shard; SHARDS],
}

impl Default for Sampler {
    /// Returns a sampler that counts, but samples nothing until [`Sampler::set_threshold`].
    fn default() -> Self {
        Sampler { threshold: AtomicU64::new(0), shards: std::array::from_fn(|_| Shard::default()) }
    }
}

impl Sampler {
    /// Samples the blocks whose identity is below `threshold` from now on.
    pub fn set_threshold(&self, threshold: u64) {
        self.threshold.store(threshold, Relaxed);
    }

    /// Takes note of a request for `blocks` of the object whose key hashes to `object`, and which belongs to `group`.
    /// `now` is asked only for sampled blocks. A request of more than 65,536 blocks has no effect.
    pub fn record(
        &self,
        object: u64,
        group: u32,
        blocks: Range<u64>,
        kind: Kind,
        now: impl Fn() -> Duration,
    ) {
        if blocks.end.saturating_sub(blocks.start) > LONGEST {
            return;
        }
        let shard = &self.shards[Shard::of_thread()];
        let count = match kind {
            Kind::Read | Kind::Past => &shard.reads,
            Kind::Write => &shard.writes,
            Kind::Through | Kind::Around => &shard.others,
        };
        count.fetch_add(blocks.end.saturating_sub(blocks.start), Relaxed);
        let threshold = self.threshold.load(Relaxed);
        for block in blocks {
            let hash = identity(object, block);
            if hash < threshold {
                shard.keep(Reference::new(hash, group, kind, now().as_millis() as u32));
            }
        }
    }

    /// Moves all references to the end of `all`, oldest first within a millisecond.
    pub(crate) fn take(&self, all: &mut Vec<Reference>) {
        let start = all.len();
        for shard in &self.shards {
            all.append(&mut shard.references.lock());
        }
        let Some(first) = all.get(start).map(|reference| reference.at_ms) else { return };
        // The clock of references may pass 2^32 within the buffer.
        all[start..].sort_by_key(|reference| reference.at_ms.wrapping_sub(first) as i32);
    }

    /// Returns the counts since the start.
    pub fn seen(&self) -> Seen {
        self.shards.iter().fold(Seen::default(), |sum, shard| Seen {
            reads: sum.reads + shard.reads.load(Relaxed),
            writes: sum.writes + shard.writes.load(Relaxed),
            others: sum.others + shard.others.load(Relaxed),
            lost_reads: sum.lost_reads + shard.lost_reads.load(Relaxed),
            lost_writes: sum.lost_writes + shard.lost_writes.load(Relaxed),
            lost_others: sum.lost_others + shard.lost_others.load(Relaxed),
        })
    }

    /// Returns the bytes of memory that the buffers take.
    pub(crate) fn bytes(&self) -> usize {
        let parts = self.shards.iter().map(|shard| shard.references.lock().capacity());
        size_of::<Self>() + parts.sum::<usize>() * size_of::<Reference>()
    }
}

impl Shard {
    /// Keeps a sampled request for the estimator. Without room the request is lost, and counted by kind.
    #[cold]
    fn keep(&self, reference: Reference) {
        let mut references = self.references.lock();
        if references.len() < ROOM {
            if references.capacity() == 0 {
                references.reserve_exact(ROOM);
            }
            references.push(reference);
            return;
        }
        drop(references);
        let lost = match reference.kind {
            Kind::Read | Kind::Past => &self.lost_reads,
            Kind::Write => &self.lost_writes,
            Kind::Through | Kind::Around => &self.lost_others,
        };
        lost.fetch_add(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_has_the_same_chance() {
        let sampler = Sampler::default();
        sampler.set_threshold(u64::MAX / 100);
        let mut found = Vec::new();
        for object in 0..1000 {
            // Consecutive numbers of objects and blocks are the worst that a hash may meet.
            for first in (0..1000).step_by(100) {
                sampler.record(object, 3, first..first + 100, Kind::Read, || Duration::from_millis(object));
            }
            sampler.take(&mut found);
        }
        assert_eq!(sampler.seen(), Seen { reads: 1_000_000, ..Seen::default() });
        assert!((9_700..10_300).contains(&found.len()), "{} of a million", found.len());
        assert!(found.iter().all(|reference| reference.group() == 3 && reference.kind() == Kind::Read));
        let even = found.iter().filter(|reference| reference.hash % 2 == 0).count();
        assert!((4_700..5_300).contains(&even), "{even} even");
    }

    /// A client may ask for any range. Counting 2^51 blocks would take years.
    #[test]
    fn a_request_of_absurd_length_has_no_effect() {
        let sampler = Sampler::default();
        sampler.set_threshold(u64::MAX);
        sampler.record(1, 0, 0..u64::MAX, Kind::Around, Duration::default);
        sampler.record(1, 0, 0..LONGEST + 1, Kind::Read, Duration::default);
        assert_eq!(sampler.seen(), Seen::default());
        sampler.record(1, 0, 0..LONGEST, Kind::Read, Duration::default);
        assert_eq!(sampler.seen().reads, LONGEST);
    }

    #[test]
    fn references_come_in_the_order_of_their_times_and_a_full_buffer_counts_the_rest() {
        let sampler = Sampler::default();
        sampler.set_threshold(u64::MAX);
        let late = Duration::from_millis(u64::from(u32::MAX));
        sampler.record(1, 0, 0..1, Kind::Write, || late);
        sampler.record(1, 0, 0..1, Kind::Write, || late + Duration::from_millis(2));
        sampler.record(1, 0, 0..1, Kind::Read, || late + Duration::from_millis(1));
        let mut found = Vec::new();
        sampler.take(&mut found);
        assert_eq!(found.iter().map(|one| one.at_ms).collect::<Vec<_>>(), [u32::MAX, 0, 1]);
        sampler.record(1, 0, 0..ROOM as u64 + 7, Kind::Past, || late);
        assert_eq!(sampler.seen().lost_reads, 7);
        found.clear();
        sampler.take(&mut found);
        assert_eq!(found.len(), ROOM);
    }
}
