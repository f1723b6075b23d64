//! Stripes that hold writes on their way to the disks, and the cost of a write on RAID 6.
//!
//! A stripe collects dirty blocks and then goes through one round. The round reads the blocks that the parity needs
//! (none for a full stripe), then writes data, P and Q. Blocks that become dirty during a round wait for the next
//! one.

use super::Nanos;
use super::geometry::{Extent, Geometry};
use super::runs::Runs;
use crate::model::BLOCK;

/// A stripe with writes in it.
#[derive(Debug, Default)]
pub(crate) struct Stripe {
    /// Blocks to write in the next round.
    pub(crate) dirty: Runs,
    /// Requests that wait for the next round.
    pub(crate) waiters: Vec<usize>,
    /// Time at which the first of the dirty blocks arrived.
    pub(crate) since: Nanos,
    /// Time before which an incomplete stripe is not written, because a sequential writer is about to send further
    /// data.
    pub(crate) hold_until: Nanos,
    /// The round in progress.
    pub(crate) round: Option<Round>,
}

/// The blocks of a stripe on their way to the disks.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) blocks: Runs,
    pub(crate) waiters: Vec<usize>,
    /// Disk commands of the current phase that have not ended.
    pub(crate) outstanding: u32,
    /// The extents to write once the reads are done; `None` after the writes have started.
    pub(crate) writes: Option<Vec<Extent>>,
    /// True if data or parity was read first.
    pub(crate) partial: bool,
}

/// The disk commands of a round.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) reads: Vec<Extent>,
    pub(crate) writes: Vec<Extent>,
}

/// The range of one chunk that is written, in blocks from the chunk's start; `None` if the chunk is not written.
type Touched = Option<(u64, u64)>;

/// Returns the disk commands that write `blocks` (numbers within the stripe). A full stripe needs no reads. Otherwise
/// the plan reads the old data and parity (read-modify-write) or the unchanged data (reconstruct), whichever needs
/// fewer commands.
pub(crate) fn plan(geometry: &Geometry, stripe: u64, blocks: &Runs) -> Plan {
    let per_chunk = geometry.chunk() / BLOCK;
    let mut touched: Vec<Touched> = vec![None; geometry.data_chunks() as usize];
    for (start, end) in blocks.iter() {
        let (mut at, end) = (u64::from(start), u64::from(end));
        while at < end {
            let (index, within) = (at / per_chunk, at % per_chunk);
            let until = (within + end - at).min(per_chunk);
            let range = touched[index as usize].get_or_insert((within, until));
            *range = (range.0.min(within), range.1.max(until));
            at += until - within;
        }
    }
    let parity = touched.iter().flatten().fold((u64::MAX, 0), |p, t| (p.0.min(t.0), p.1.max(t.1)));
    let extent = |index: u64, range: (u64, u64)| {
        let (disk, start) = geometry.chunk_at(stripe, index);
        Extent { disk, position: start + range.0 * BLOCK, length: (range.1 - range.0) * BLOCK }
    };
    let data = geometry.data_chunks();
    let parities = [extent(data, parity), extent(data + 1, parity)];
    let chunks = || (0..data).zip(&touched);
    let mut writes: Vec<Extent> = chunks().filter_map(|(i, t)| t.map(|t| extent(i, t))).collect();
    let reconstruct: Vec<Extent> =
        chunks().filter(|(_, t)| **t != Some(parity)).map(|(i, _)| extent(i, parity)).collect();
    let reads = if reconstruct.len() < writes.len() + parities.len() {
        reconstruct
    } else {
        writes.iter().chain(&parities).copied().collect()
    };
    writes.extend(parities);
    Plan { reads, writes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;

    fn planned(blocks: &[(u32, u32)]) -> Plan {
        let geometry = Geometry::new(&Model::load("nl-sas-8").unwrap(), 1 << 30);
        let mut runs = Runs::default();
        for (start, end) in blocks {
            runs.insert(*start, *end);
        }
        plan(&geometry, 5, &runs)
    }

    #[test]
    fn a_small_write_reads_and_writes_data_and_both_parities() {
        let p = planned(&[(17, 18)]);
        assert_eq!((p.reads.len(), p.writes.len()), (3, 3));
        assert_eq!(p.reads, p.writes);
        assert!(p.reads.iter().all(|e| e.length == BLOCK));
    }

    #[test]
    fn a_full_stripe_reads_nothing() {
        let p = planned(&[(0, 96)]);
        assert_eq!((p.reads.len(), p.writes.len()), (0, 8));
        assert_eq!(p.writes.iter().map(|e| e.length).sum::<u64>(), 8 * 65536);
    }

    #[test]
    fn most_of_a_stripe_is_reconstructed_from_the_rest() {
        let p = planned(&[(0, 80)]);
        assert_eq!((p.reads.len(), p.writes.len()), (1, 7));
        assert!(!p.writes.contains(&p.reads[0]));
    }
}
