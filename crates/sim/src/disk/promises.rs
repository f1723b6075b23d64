//! Broken promises of a device: the injected faults, by block, and the places where frames of the log were reported
//! written. With these, a world knows if its faults destroyed every copy of acknowledged data.

use std::collections::{BTreeMap, BTreeSet};

use super::{Disk, Page, State};

/// The place where a frame of the log was reported written.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// The frame's first block on the device.
    block: u64,
    /// The frame's length in blocks.
    count: u64,
    /// The block of the segment's header.
    header: u64,
    /// The number of the segment that the frame is in.
    segment: u64,
    /// The oldest segment of the log when the frame was written.
    tail: u64,
}

/// The promises of a device.
#[derive(Default)]
pub(super) struct Promises {
    /// Blocks that do not hold the promised contents.
    harmed: BTreeSet<u64>,
    /// The number up to which a flush that did nothing reported completed writes as durable.
    owed: u64,
    /// Writes that were singly reported durable and are not.
    owed_alone: BTreeSet<u64>,
    /// By the frame's number.
    frames: BTreeMap<u64, Frame>,
}

fn number(page: &Page, at: usize) -> u64 {
    page[at..at + 8].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
}

impl Promises {
    /// Notes a fault: the block does not hold the promised contents.
    pub(super) fn harm(&mut self, block: u64) {
        self.harmed.insert(block);
    }

    /// Notes that the block was written.
    pub(super) fn mend(&mut self, block: u64) {
        self.harmed.remove(&block);
    }

    /// Notes that the device reported completed writes up to `mark` as durable, and `own` too, although they are not.
    pub(super) fn owe(&mut self, mark: u64, own: Option<u64>) {
        self.owed = self.owed.max(mark);
        self.owed_alone.extend(own);
    }

    /// Returns true if a completed write was reported durable.
    pub(super) fn owes(&self, completed: u64) -> bool {
        completed <= self.owed || self.owed_alone.contains(&completed)
    }

    /// Notes that a write of `count` blocks that begins with `page` was reported done.
    pub(super) fn wrote(&mut self, block: u64, count: u64, page: &Page) {
        if !page.starts_with(b"FBYFRAME") {
            return;
        }
        let frame = number(page, 56);
        // An interrupted session used the numbers from here on too.
        self.frames.split_off(&frame);
        self.frames.retain(|_, other| other.block + other.count <= block || block + count <= other.block);
        let start = number(page, 18) & 0xffff;
        let (tail, segment) = (number(page, 72), number(page, 96));
        self.frames.insert(frame, Frame { block, count, header: block - start, segment, tail });
    }
}

impl Disk {
    /// Returns the frames that the device reported written: the number, the place, and true if the frame and its
    /// segment's header are readable and intact.
    fn promised(&self) -> Vec<(u64, Frame, bool)> {
        let state = self.state.lock();
        let State { promises, latent, .. } = &*state;
        let bad = |block: &u64| promises.harmed.contains(block) || latent.contains_key(block);
        let good = |frame: &Frame| {
            !bad(&frame.header) && !(frame.block..frame.block + frame.count).any(|block| bad(&block))
        };
        promises.frames.iter().map(|(number, frame)| (*number, *frame, good(frame))).collect()
    }
}

/// Returns the first frame of the log that faults have destroyed on every device. Each frame before it is whole on at
/// least one of `counted`. `all` are the devices on which a frame may have been written.
pub fn first_destroyed(all: &[Disk], counted: &[Disk]) -> Option<u64> {
    let mut frames: BTreeMap<u64, (Frame, bool)> = BTreeMap::new();
    for disk in all {
        let counts = counted.iter().any(|other| other.name == disk.name);
        for (number, frame, good) in disk.promised() {
            frames.entry(number).or_insert((frame, false)).1 |= good && counts;
        }
    }
    let mut end = u64::MAX;
    loop {
        // The oldest segment that still counts, according to the last frame before the end.
        let tail = frames.range(..end).next_back().map_or(0, |(_, (frame, _))| frame.tail);
        let destroyed = |(frame, good): &(Frame, bool)| !good && frame.segment >= tail;
        let first = frames.range(..end).find(|(_, frame)| destroyed(frame)).map(|(number, _)| *number);
        match first {
            Some(first) => end = first,
            None => return (end != u64::MAX).then_some(end),
        }
    }
}
