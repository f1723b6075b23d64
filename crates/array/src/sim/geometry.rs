//! The location of each byte of the array. Stripes of RAID 6 spans have rotating parity (left-symmetric); the spans
//! take turns.

use crate::model::Model;

/// A contiguous range of one disk, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) disk: usize,
    pub(crate) position: u64,
    pub(crate) length: u64,
}

/// The layout of an array of a given size.
#[derive(Debug, Clone)]
pub(crate) struct Geometry {
    spans: u64,
    per_span: u64,
    data: u64,
    chunk: u64,
    size: u64,
}

impl Geometry {
    /// Returns the layout of at most `size` bytes, rounded down to whole stripes of all spans.
    pub(crate) fn new(model: &Model, size: u64) -> Self {
        let spans = u64::from(model.raid.spans);
        let full = model.stripe_bytes() * spans;
        let per_span = u64::from(model.raid.disks_per_span);
        Self { spans, per_span, data: per_span - 2, chunk: model.chunk_bytes(), size: size / full * full }
    }

    /// Returns the bytes of data that the array holds.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Returns the bytes of one disk that are in use.
    pub(crate) fn disk_bytes(&self) -> u64 {
        self.size / (self.data * self.spans)
    }

    /// Returns the bytes of data in one stripe.
    pub(crate) fn stripe_bytes(&self) -> u64 {
        self.data * self.chunk
    }

    /// Returns the bytes of one chunk.
    pub(crate) fn chunk(&self) -> u64 {
        self.chunk
    }

    /// Returns the number of data chunks in one stripe.
    pub(crate) fn data_chunks(&self) -> u64 {
        self.data
    }

    /// Returns the number of disks, including parity.
    pub(crate) fn disks(&self) -> usize {
        (self.spans * self.per_span) as usize
    }

    /// Returns the disk and the position of a chunk of a stripe. `index` is 0 to data - 1 for data, data for parity
    /// P, data + 1 for parity Q.
    pub(crate) fn chunk_at(&self, stripe: u64, index: u64) -> (usize, u64) {
        let (span, row) = (stripe % self.spans, stripe / self.spans);
        let parity = self.per_span - 1 - row % self.per_span;
        let turn = if index < self.data { 2 + index } else { index - self.data };
        let disk = (parity + turn) % self.per_span;
        ((span * self.per_span + disk) as usize, row * self.chunk)
    }

    /// Appends the extents that hold a range. Neighbours on one disk are joined if no parity chunk is between them.
    pub(crate) fn extents(&self, offset: u64, length: u64, into: &mut Vec<Extent>) {
        let first = into.len();
        let (mut at, end) = (offset, offset + length);
        while at < end {
            let within = at % self.chunk;
            let take = (self.chunk - within).min(end - at);
            let index = at / self.chunk;
            let (disk, start) = self.chunk_at(index / self.data, index % self.data);
            let position = start + within;
            match into[first..].iter_mut().rev().find(|e| e.disk == disk) {
                Some(e) if e.position + e.length == position => e.length += take,
                _ => into.push(Extent { disk, position, length: take }),
            }
            at += take;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn geometry(name: &str) -> Geometry {
        Geometry::new(&Model::load(name).unwrap(), 1 << 30)
    }

    #[test]
    fn no_two_chunks_share_a_place() {
        for name in ["nl-sas-8", "nl-sas-48"] {
            let g = geometry(name);
            let mut seen = HashSet::new();
            for stripe in 0..200 {
                for index in 0..g.data_chunks() + 2 {
                    assert!(seen.insert(g.chunk_at(stripe, index)), "{name}: stripe {stripe} chunk {index}");
                }
            }
        }
    }

    #[test]
    fn every_disk_takes_the_same_share_of_data() {
        let g = geometry("nl-sas-48");
        let mut bytes = vec![0; g.disks()];
        let mut extents = Vec::new();
        let round = g.stripe_bytes() * 4 * 12;
        g.extents(0, round, &mut extents);
        for e in &extents {
            bytes[e.disk] += e.length;
        }
        assert!(bytes.iter().all(|b| *b == round / 48), "{bytes:?}");
    }

    #[test]
    fn size_is_whole_stripes_and_fits_the_disks() {
        let g = geometry("nl-sas-48");
        assert_eq!(g.size() % (g.stripe_bytes() * 4), 0);
        let mut extents = Vec::new();
        g.extents(g.size() - 4096, 4096, &mut extents);
        assert!(extents[0].position + extents[0].length <= g.disk_bytes());
    }
}
