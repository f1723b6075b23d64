//! The operations of clients. Each world has its own habits, some of them extreme: a generator that is too polite
//! misses bugs.

use std::ops::Range;
use std::time::Duration;

use forebay_engine::Mode;
use forebay_engine::buffer::BLOCK;

use crate::rng::Rng;

/// A kind of operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes a few bytes anywhere.
    WriteBytes,
    /// Writes whole blocks.
    WriteBlocks,
    /// Writes the next part of a stream.
    WriteStream,
    /// Reads anywhere, any length.
    Read,
    /// Reads the next part of a stream.
    ReadStream,
    /// Commits everything unstable of an object.
    Commit,
    /// Truncates or grows an object.
    Truncate,
    /// Sets a modification time.
    Mtime,
    /// Removes an object and makes another.
    Remove,
    /// Makes a hole.
    Hole,
    /// Reserves space, mostly behind the end of an object.
    Allocate,
    /// Clones a part of an object, into another one or elsewhere in it.
    Clone,
    /// Destages everything.
    Flush,
    /// Switches the mode.
    Mode,
    /// Adds a device.
    Add,
    /// Removes a device.
    Drain,
    /// Waits.
    Sleep,
}

/// The behaviour of the clients of a world.
#[derive(Clone, Debug)]
pub struct Habits {
    weights: Vec<(Kind, u32)>,
    /// The number of clients, which work side by side.
    pub clients: usize,
    /// The number of operations of all clients together, per session.
    pub operations: u32,
    /// Chances in 10,000 that a write is stable.
    pub stable: u32,
    /// The largest number of writes in progress on one block.
    pub at_once: usize,
    /// The longest operation, in bytes.
    pub longest: u64,
    /// The offset below which operations lie.
    pub extent: u64,
    /// Chances in 10,000 that an operation is in the first few blocks.
    pub hot: u32,
    /// The longest wait between operations.
    pub rest: Duration,
    /// The modes to switch between.
    pub modes: Vec<Mode>,
    /// Factor on the time that the backing store takes.
    pub slow_store: u32,
}

/// All modes.
pub const MODES: [Mode; 4] = [Mode::WriteBack, Mode::WriteThrough, Mode::WriteAround, Mode::PassThrough];

impl Habits {
    /// Makes the habits of a world.
    pub fn new(rng: &mut Rng) -> Self {
        use Kind::*;
        let mut weights = vec![(Sleep, 3), (Read, 30), (WriteBlocks, 20)];
        // Each kind is common in some worlds, rare in other worlds, and missing in the rest.
        for (kind, most) in [
            (WriteBytes, 40),
            (WriteBlocks, 60),
            (WriteStream, 40),
            (Read, 60),
            (ReadStream, 40),
            (Commit, 20),
            (Truncate, 12),
            (Mtime, 6),
            (Remove, 3),
            (Flush, 3),
            (Mode, 2),
            (Add, 1),
            (Drain, 1),
            (Sleep, 10),
        ] {
            let weight = rng.pick(&[0, 0, most / 4 + 1, most]);
            weights.push((kind, weight));
        }
        if rng.chance(800) {
            return Self::torrent(rng);
        }
        let longest = rng.pick(&[4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20]);
        let extent = rng.pick(&[16 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20]);
        // Long operations make long runs, so there are fewer of them.
        let most = (96 << 20) / longest;
        Habits {
            weights,
            clients: rng.pick(&[1, 2, 3, 4, 8, 16]),
            operations: rng.within(10, most.clamp(60, 1200)) as u32,
            stable: rng.pick(&[0, 2000, 5000, 9000, 10_000]),
            at_once: 3,
            longest,
            extent,
            hot: rng.pick(&[0, 0, 3000, 8000]),
            rest: rng.pick(&[Duration::from_millis(5), Duration::from_secs(1), Duration::from_secs(20)]),
            modes: Vec::new(),
            slow_store: 1,
        }
    }

    /// Makes habits of writes that fill a small pool several times over.
    pub fn torrent(rng: &mut Rng) -> Self {
        use Kind::*;
        let weights =
            vec![(WriteBlocks, 60), (WriteStream, 20), (Read, 4), (Truncate, 1), (Commit, 2), (Sleep, 1)];
        let longest = rng.pick(&[256 << 10, 1 << 20]);
        Habits {
            weights,
            clients: rng.pick(&[2, 4, 8]),
            operations: ((200 << 20) / longest) as u32,
            stable: rng.pick(&[0, 5000, 10_000]),
            at_once: 3,
            longest,
            extent: rng.pick(&[4 << 20, 16 << 20, 64 << 20]),
            hot: 0,
            rest: Duration::from_millis(5),
            modes: Vec::new(),
            // With a slow store, the log fills with overwritten blocks.
            slow_store: rng.pick(&[1, 30]),
        }
    }

    /// Makes habits of dozens of clients on a few blocks.
    pub fn crowd(rng: &mut Rng) -> Self {
        use Kind::*;
        let weights = vec![
            (WriteBlocks, 30),
            (WriteBytes, 20),
            (Read, 10),
            (Commit, rng.pick(&[0, 2, 10])),
            (Truncate, rng.pick(&[0, 2])),
            (Flush, rng.pick(&[0, 1])),
            (Sleep, rng.pick(&[0, 2])),
        ];
        Habits {
            weights,
            clients: rng.pick(&[24, 32, 48]),
            operations: rng.within(100, 500) as u32,
            stable: rng.pick(&[0, 5000, 10_000]),
            at_once: 4,
            longest: rng.pick(&[4096, 16 << 10, 64 << 10]),
            extent: rng.pick(&[64 << 10, 256 << 10, 1 << 20]),
            hot: rng.pick(&[0, 3000]),
            rest: Duration::from_millis(5),
            modes: Vec::new(),
            slow_store: 1,
        }
    }

    /// Makes habits of writes that fill whole frames of large segments.
    pub fn flood(rng: &mut Rng) -> Self {
        use Kind::*;
        let weights = vec![
            (WriteBlocks, 40),
            (WriteBytes, 5),
            (Read, 5),
            (Truncate, 1),
            (Commit, 2),
            (Sleep, rng.pick(&[0, 2])),
        ];
        Habits {
            weights,
            clients: rng.pick(&[4, 8, 16]),
            operations: rng.within(40, 160) as u32,
            stable: rng.pick(&[0, 5000, 10_000]),
            at_once: 3,
            longest: rng.pick(&[1 << 20, 2 << 20]),
            extent: rng.pick(&[4 << 20, 16 << 20]),
            hot: 0,
            rest: Duration::from_millis(5),
            modes: Vec::new(),
            slow_store: 1,
        }
    }

    /// Returns the kind of a client's next operation.
    pub fn kind(&self, rng: &mut Rng) -> Kind {
        let all: u32 = self.weights.iter().map(|(_, weight)| weight).sum();
        let mut left = rng.below(u64::from(all)) as u32;
        for (kind, weight) in &self.weights {
            if left < *weight {
                return *kind;
            }
            left -= weight;
        }
        Kind::Read
    }

    /// Adds operations of a kind, in proportion to the weights of the others.
    pub fn add(&mut self, kind: Kind, weight: u32) {
        self.weights.push((kind, weight));
    }

    /// Removes `kind` from the operations.
    pub fn without(&mut self, kind: Kind) {
        self.weights.retain(|(other, _)| *other != kind);
    }

    /// Returns a range of bytes for a read or a write in an object of about `size` bytes. The range is not empty.
    pub fn range(&self, rng: &mut Rng, kind: Kind, size: u64) -> Range<u64> {
        let block = BLOCK as u64;
        let extent = if rng.chance(self.hot) { 4 * block } else { self.extent };
        let near_end = rng.chance(1500);
        let offset = if near_end { size.saturating_sub(rng.below(2 * block)) } else { rng.below(extent) };
        let offset = offset.min(self.extent);
        let len = match kind {
            Kind::WriteBytes => rng.within(1, block.min(self.longest)),
            _ => rng.within(1, rng.clone().within(1, self.longest)),
        };
        if kind == Kind::WriteBlocks || (kind == Kind::Read && rng.chance(5000)) {
            let first = offset / block * block;
            return first..first + len.div_ceil(block) * block;
        }
        offset..offset + len
    }
}
