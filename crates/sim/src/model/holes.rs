//! Holes, reserved space and clones: changes of files that go past the log.

use std::ops::Range;

use forebay_engine::buffer::BLOCK;
use forebay_engine::io::Time;

use super::{Block, Model, ModelObject, Operation, Reading, blocks, within};
use crate::register::{Overwrite, Resize};
use crate::stamp::{Place, Runs, Stamp};

/// A clone in progress.
pub struct Cloning {
    /// The number of the operation.
    pub id: u32,
    /// The file that gets the contents.
    pub target: u8,
    /// The changed bytes of the target.
    pub range: Range<u64>,
    /// The read that the clone implies.
    pub source: Reading,
}

impl ModelObject {
    /// Begins a change of these blocks with no effect yet.
    fn begin_blocks(&mut self, id: u32, range: &Range<u64>, effect: impl Fn(u64) -> Overwrite, lossy: bool) {
        for block in blocks(range) {
            let register = self.blocks.entry(block).or_insert_with(|| Block::new(Runs::default().into()));
            (register.lossy, register.logged) = (lossy, false);
            register.begin(id, effect(block));
            self.unfolded.insert(block);
        }
    }

    /// Notes that operation `id` has freed the space of these blocks. A later operation may have filled some again.
    pub(super) fn emptied(&mut self, id: u32, freed: &[u64]) {
        for block in freed {
            if self.filled.get(block).is_some_and(|last| *last < id) {
                self.filled.remove(block);
            }
        }
    }
}

impl Model {
    /// Begins to make a hole of these bytes, which lie within the object.
    pub fn begin_hole(&mut self, object: u8, range: Range<u64>, now: Time) -> u32 {
        let id = self.number();
        let mut freed = Vec::new();
        if let Some(state) = self.objects.get_mut(&object) {
            state.note_end(self.logged);
            let reserving = self.operations.values().filter(|other| other.object == object && other.past_log);
            let reserved: Vec<Range<u64>> = reserving.map(|other| other.reserved.clone()).collect();
            let quiet = |at: &u64| {
                let running = state.blocks.get(at).is_some_and(|register| register.load().1 > 0);
                !running && !reserved.iter().any(|range| range.contains(at))
            };
            let block = BLOCK as u64;
            freed = (range.start.div_ceil(block)..range.end / block).filter(quiet).collect();
            let zeros = |block| Overwrite::Bytes(within(block, &range), Stamp::ZEROS);
            state.begin_blocks(id, &range, zeros, self.lossy);
            if !self.untimed {
                state.mtime.begin(id, now);
            }
        }
        let operation = Operation {
            object,
            blocks: blocks(&range),
            tears: true,
            freed,
            past_log: true,
            ..Operation::default()
        };
        self.operations.insert(id, operation);
        id
    }

    /// Begins to reserve space for these bytes. The object gets at least the end of the range as its size.
    pub fn begin_allocate(&mut self, object: u8, range: Range<u64>, now: Time) -> u32 {
        let id = self.number();
        if let Some(state) = self.objects.get_mut(&object) {
            state.note_end(self.logged);
            state.size.lossy = self.lossy;
            state.size.begin(id, Resize::Extend(range.end));
            if !self.untimed {
                state.mtime.begin(id, now);
            }
            if self.holes {
                state.filled.extend(blocks(&range).map(|block| (block, id)));
            }
        }
        let reserved = blocks(&range);
        let operation = Operation { object, tears: true, reserved, past_log: true, ..Operation::default() };
        self.operations.insert(id, operation);
        id
    }

    /// Begins to clone `len` bytes of an object, from a block's start to a block's start or to the end of the object.
    pub fn begin_clone(
        &mut self,
        (from, source): (u8, u64),
        (target, offset): (u8, u64),
        len: u64,
        now: Time,
    ) -> Cloning {
        let source = self.begin_read(from, source, len as usize);
        let id = self.number();
        let range = offset..offset + len;
        if let Some(state) = self.objects.get_mut(&target) {
            state.note_end(self.logged);
            state.begin_blocks(id, &range, |_| Overwrite::Nothing, self.lossy);
            state.size.lossy = self.lossy;
            state.size.begin(id, Resize::Extend(0));
            if !self.untimed {
                state.mtime.begin(id, now);
            }
        }
        let operation = Operation {
            object: target,
            blocks: blocks(&range),
            tears: true,
            past_log: true,
            ..Operation::default()
        };
        self.operations.insert(id, operation);
        Cloning { id, target, range, source }
    }

    /// Notes that the backing file of the target now has `bytes`, the contents of the source. They must be those that a
    /// read of the source, begun with the clone, may find.
    pub fn cloned(&mut self, cloning: &Cloning, bytes: &[u8]) -> Result<(), String> {
        let Cloning { id, target, range, source } = cloning;
        self.look(source, bytes).map_err(|error| format!("in a clone, {error}"))?;
        let Some(from) = self.objects.get(&source.object) else { return Ok(()) };
        let block = BLOCK as u64;
        let places = |at: u64| {
            let mut places = from.cloned.get(&at).cloned().unwrap_or_default();
            places.insert(Place { object: source.object, block: at });
            places
        };
        let contents: Vec<_> = (source.offset / block..)
            .zip(bytes.chunks(BLOCK))
            .map(|(at, bytes)| (from.contents_of(at, bytes), places(at)))
            .collect();
        let Some(state) = self.objects.get_mut(target) else { return Ok(()) };
        for (at, (runs, places)) in (range.start / block..).zip(contents) {
            if let Some(register) = state.blocks.get_mut(&at) {
                register.revise(*id, Overwrite::Block(runs));
            }
            state.cloned.entry(at).or_default().extend(places);
            if self.holes {
                state.filled.insert(at, *id);
            }
        }
        state.size.revise(*id, Resize::Extend(range.end));
        Ok(())
    }

    /// Ends the read of the source of a clone.
    pub fn end_clone(&mut self, cloning: &Cloning) {
        let (logged, lossy) = (self.logged, self.lossy);
        if let Some(source) = self.objects.get_mut(&cloning.source.object) {
            source.readers -= 1;
            source.fold(logged, lossy);
        }
    }
}

impl ModelObject {
    /// Returns possible contents of a block that has these bytes from its start on, and zeros behind them.
    fn contents_of(&self, block: u64, bytes: &[u8]) -> Runs {
        let Some(register) = self.blocks.get(&block) else { return Runs::default() };
        let explained = register.possible(0).iter().find_map(|contents| contents.explain(bytes));
        let mut runs = explained.unwrap_or_else(Runs::unknown);
        runs.apply(&(bytes.len()..BLOCK), Stamp::ZEROS);
        runs
    }
}
