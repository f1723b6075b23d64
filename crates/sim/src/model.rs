//! The reference model: what every block, size and time of every object may be, after each step and across crashes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use forebay_engine::buffer::BLOCK;
use forebay_engine::io::Time;

use crate::content::Content;
use crate::register::{Overwrite, Register, Resize};
use crate::stamp::{Generation, Place, Runs, describe, plausible};

type Block = Register<Runs, Overwrite>;

/// What is known of one object.
struct Object {
    size: Register<u64, Resize>,
    mtime: Register<Time, Time>,
    /// Blocks not in here are zeros.
    blocks: BTreeMap<u64, Block>,
    readers: u32,
    /// Writes that may happen in part: the object may end at the end of any of their blocks.
    torn: BTreeMap<u32, Range<u64>>,
    /// Those of them that have happened as a whole; until the reads under way end.
    whole: Vec<u32>,
    /// Sizes it may have had, unless every write goes through the log: its backing file may still end at any of them,
    /// as what made it longer since may be in the log only.
    ends: BTreeSet<u64>,
}

/// Blocks of a write that may be more than one frame.
const ONE_FRAME: u64 = 64;

/// An operation that changes something.
#[derive(Default)]
struct Operation {
    object: u8,
    blocks: Range<u64>,
    /// Not one frame of the log for sure: it may happen in part.
    tears: bool,
    seq: Option<u64>,
    /// Answered, but not known to be durable.
    open: bool,
}

/// The model of a whole world.
#[derive(Default)]
pub struct Model {
    objects: BTreeMap<u8, Object>,
    operations: BTreeMap<u32, Operation>,
    next: u32,
    /// Both copies of something may be lost: old versions and errors are possible, strangers' bytes never are.
    pub lenient: bool,
    /// Every write goes through the log.
    pub logged: bool,
    /// Acknowledged unstable data may be lost without a crash: it is in a page cache whose syncs fail.
    pub lossy: bool,
}

/// A read under way: what it must see.
pub struct Reading {
    object: u8,
    offset: u64,
    len: usize,
    size: u64,
    blocks: BTreeMap<u64, u64>,
}

/// The part of block `block` that lies in `range`, in bytes within the block.
fn within(block: u64, range: &Range<u64>) -> Range<usize> {
    let start = block * BLOCK as u64;
    let end = start + BLOCK as u64;
    (range.start.clamp(start, end) - start) as usize..(range.end.clamp(start, end) - start) as usize
}

fn blocks(range: &Range<u64>) -> Range<u64> {
    range.start / BLOCK as u64..range.end.div_ceil(BLOCK as u64)
}

/// What is not known of a block for sure may be cut off from the start of `tail` on.
fn may_end(register: &mut Block, tail: &Range<usize>) {
    let mut values = register.settled().unwrap_or_default().to_vec();
    if values.len() > 1 {
        for mut value in values.clone() {
            value.apply(tail, 0);
            if !values.contains(&value) {
                values.push(value);
            }
        }
        register.widen(values);
    }
}

impl Model {
    /// A new object whose `size` bytes write `generation` left.
    pub fn create(&mut self, object: u8, size: u64, generation: Generation, mtime: Time) {
        let all = 0..size;
        let block = |block| {
            let mut runs = Runs::default();
            runs.apply(&within(block, &all), generation);
            (block, Block::new(runs))
        };
        let blocks = blocks(&all).map(block).collect();
        let new = Object {
            size: Register::new(size),
            mtime: Register::new(mtime),
            blocks,
            readers: 0,
            torn: BTreeMap::new(),
            whole: Vec::new(),
            ends: BTreeSet::new(),
        };
        self.objects.insert(object, new);
    }

    /// A number that no operation and no contents had before.
    pub fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Nothing is known of the object any more.
    pub fn remove(&mut self, object: u8) {
        self.objects.remove(&object);
        self.operations.retain(|_, operation| operation.object != object);
    }

    /// The objects there are.
    pub fn objects(&self) -> Vec<u8> {
        self.objects.keys().copied().collect()
    }

    /// The largest number of unsettled and of running operations on any block of the range.
    pub fn load(&self, object: u8, range: &Range<u64>) -> (usize, usize) {
        let Some(object) = self.objects.get(&object) else { return (0, 0) };
        let touched = object.blocks.range(blocks(range)).map(|(_, block)| block.load());
        let loads = touched.chain([object.size.load(), object.mtime.load()]);
        loads.fold((0, 0), |most, load| (most.0.max(load.0), most.1.max(load.1)))
    }

    /// The largest size the object may have.
    pub fn size(&self, object: u8) -> u64 {
        let Some(object) = self.objects.get(&object) else { return 0 };
        object.size.possible(0).into_iter().max().unwrap_or(0)
    }

    /// A write of `len` bytes begins; the bytes are those of the returned number.
    pub fn begin_write(&mut self, object: u8, offset: u64, len: u64, now: Time) -> u32 {
        let id = self.number();
        let range = offset..offset + len;
        if let Some(state) = self.objects.get_mut(&object) {
            state.note_end(self.logged);
            for block in blocks(&range) {
                let register = state.blocks.entry(block).or_insert_with(|| Block::new(Runs::default()));
                (register.lossy, register.logged) = (self.lossy, self.logged);
                register.begin(id, Overwrite(within(block, &range), id));
            }
            state.size.lossy = self.lossy;
            state.size.begin(id, Resize::Extend(range.end));
            state.mtime.begin(id, now);
        }
        let blocks = blocks(&range);
        let tears = !self.logged || blocks.end - blocks.start > ONE_FRAME;
        if let (true, Some(state)) = (tears, self.objects.get_mut(&object)) {
            state.torn.insert(id, blocks.clone());
        }
        self.operations.insert(id, Operation { object, blocks, tears, ..Operation::default() });
        id
    }

    /// A truncation begins.
    pub fn begin_truncate(&mut self, object: u8, size: u64, now: Time) -> u32 {
        let id = self.number();
        let first = size / BLOCK as u64;
        if let Some(state) = self.objects.get_mut(&object) {
            state.note_end(self.logged);
            for (block, register) in state.blocks.range_mut(first..) {
                register.begin(id, Overwrite(within(*block, &(size..u64::MAX)), 0));
            }
            state.size.begin(id, Resize::Set(size));
            state.mtime.begin(id, now);
        }
        self.operations.insert(id, Operation { object, blocks: first..u64::MAX, ..Operation::default() });
        id
    }

    /// A change of the modification time begins.
    pub fn begin_mtime(&mut self, object: u8, mtime: Time) -> u32 {
        let id = self.number();
        if let Some(state) = self.objects.get_mut(&object) {
            state.mtime.begin(id, mtime);
        }
        self.operations.insert(id, Operation { object, ..Operation::default() });
        id
    }

    fn answer(&mut self, id: u32, visible: bool, durable: bool) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        operation.open = visible && !durable;
        let Some(object) = self.objects.get_mut(&operation.object) else { return };
        if durable {
            object.whole.push(id);
        }
        let accepted = visible;
        let visible = visible && (durable || !self.lossy);
        for (_, block) in object.blocks.range_mut(operation.blocks.clone()) {
            block.acknowledge(id, accepted, visible, durable);
        }
        object.size.acknowledge(id, accepted, visible, durable);
        object.mtime.acknowledge(id, accepted, visible, durable);
        object.settle(self.logged);
    }

    /// The operation was accepted as number `seq`: it is visible, but may be lost in a crash.
    pub fn accepted(&mut self, id: u32, seq: u64) {
        if let Some(operation) = self.operations.get_mut(&id) {
            operation.seq = Some(seq);
        }
        self.answer(id, true, false);
    }

    /// The operation was acknowledged as durable.
    pub fn durable(&mut self, id: u32) {
        self.answer(id, true, true);
    }

    /// The operation failed: it may have happened or not.
    pub fn failed(&mut self, id: u32) {
        self.answer(id, false, false);
    }

    /// Operations accepted up to `seq` and not known to be durable: what a commit that begins now covers.
    pub fn open(&self, seq: u64) -> Vec<u32> {
        let covered = |operation: &Operation| operation.open && operation.seq.is_some_and(|own| own <= seq);
        self.operations.iter().filter(|(_, operation)| covered(operation)).map(|(id, _)| *id).collect()
    }

    /// The newest number accepted for the object and not known to be durable.
    pub fn uncommitted(&self, object: u8) -> Option<u64> {
        let mine = |operation: &&Operation| operation.open && operation.object == object;
        self.operations.values().filter(mine).filter_map(|operation| operation.seq).max()
    }

    /// A read begins.
    pub fn begin_read(&mut self, object: u8, offset: u64, len: usize) -> Reading {
        let mut reading = Reading { object, offset, len, size: 0, blocks: BTreeMap::new() };
        if let Some(state) = self.objects.get_mut(&object) {
            state.readers += 1;
            reading.size = state.size.visible();
            let touched = state.blocks.range(blocks(&(offset..offset + len as u64)));
            reading.blocks = touched.map(|(block, register)| (*block, register.visible())).collect();
        }
        reading
    }

    /// A read ends with `bytes`, or without any where it failed; `Err` says what it must not have seen.
    pub fn end_read(&mut self, reading: &Reading, bytes: Option<&[u8]>) -> Result<(), String> {
        let lenient = self.lenient;
        let newest = self.next;
        let Some(object) = self.objects.get_mut(&reading.object) else { return Ok(()) };
        object.readers -= 1;
        let result = match bytes {
            Some(bytes) if lenient => object.plausible(reading, bytes, newest),
            Some(bytes) => object.check(reading, bytes),
            None => Ok(()),
        };
        object.settle(self.logged);
        result
    }

    /// The object turned out to have `size` bytes, with nothing under way.
    pub fn observe_size(&mut self, object: u8, size: u64) -> Result<(), String> {
        let lenient = self.lenient;
        let Some(state) = self.objects.get_mut(&object) else { return Ok(()) };
        let visible = state.size.visible();
        if lenient {
            return Ok(());
        }
        if !state.observe_size(visible, |value| *value == size) {
            let possible = state.size.possible(visible);
            return Err(format!("object {object} has size {size}, possible are {possible:?}"));
        }
        state.clip();
        Ok(())
    }

    /// The machine crashed: nothing runs any more, and what was not durable may be lost. Where the power did not go,
    /// the page cache is still there, and is made durable before anybody looks, but for what failed syncs have lost.
    pub fn crash(&mut self, power: bool) {
        let settles = self.logged || power || !self.lossy;
        for object in self.objects.values_mut() {
            object.readers = 0;
            object.size.crash(settles);
            object.mtime.crash(settles);
            object.blocks.values_mut().for_each(|block| block.crash(settles));
            if !self.logged {
                object.cut_short();
            }
        }
        for operation in self.operations.values_mut() {
            operation.open = false;
        }
    }

    /// After a crash and a look at everything: what survived must be a prefix of what was accepted, by number (P3).
    pub fn check_prefix(&mut self) -> Result<(), String> {
        let mut survived = Vec::new();
        let mut lost = Vec::new();
        for object in self.objects.values_mut() {
            for block in object.blocks.values_mut() {
                let (here, gone) = block.verdict();
                survived.extend(here);
                lost.extend(gone);
            }
        }
        let whole = |id: &u32| self.operations.get(id).filter(|operation| !operation.tears);
        let seq = |id: &u32| Some((whole(id)?.seq?, *id));
        let newest = survived.iter().filter_map(seq).max();
        let oldest = lost.iter().filter_map(seq).min();
        self.operations.clear();
        match (newest, oldest) {
            (Some((newest, kept)), Some((oldest, gone))) if oldest < newest && !self.lenient => Err(format!(
                "write {gone} (accepted as {oldest}) was lost while write {kept} (accepted as {newest}) survived"
            )),
            _ => Ok(()),
        }
    }

    /// Everything was destaged: the backing file must be what the model says.
    pub fn check_backing(
        &mut self,
        object: u8,
        content: Option<&Content>,
        times: bool,
    ) -> Result<(), String> {
        if !self.objects.contains_key(&object) {
            return Ok(());
        }
        let Some(content) = content else {
            return Err(format!("object {object} is missing in the backing store"));
        };
        let size = self.size(object).max(content.size);
        let reading = self.begin_read(object, 0, size as usize + 1);
        let mut bytes = vec![0; size as usize + 1];
        let len = content.read(0, &mut bytes);
        self.end_read(&reading, Some(&bytes[..len]))
            .map_err(|error| format!("in the backing store, {error}"))?;
        let Some(state) = self.objects.get(&object) else { return Ok(()) };
        let possible = state.mtime.possible(state.mtime.visible());
        // One that was cut short may leave the time at which the backing store was changed.
        if times && !self.lenient && possible.len() == 1 && !possible.contains(&content.mtime) {
            let found = content.mtime;
            return Err(format!(
                "object {object} has mtime {found:?} in the backing store, not {possible:?}"
            ));
        }
        Ok(())
    }
}

impl Object {
    fn settle(&mut self, logged: bool) {
        if self.readers == 0 {
            for id in self.whole.drain(..) {
                self.torn.remove(&id);
            }
            self.size.settle(logged);
            self.mtime.settle(logged);
            self.blocks.values_mut().for_each(|block| block.settle(logged));
        }
    }

    /// The size is about to change.
    fn note_end(&mut self, logged: bool) {
        if !logged {
            let partial = self.size.possible(0).into_iter().filter(|size| !size.is_multiple_of(BLOCK as u64));
            self.ends.extend(partial);
        }
    }

    /// New contents of the last block may be there without the new size: that of the object or of its backing file.
    fn cut_short(&mut self) {
        for size in self.size.settled().unwrap_or_default().to_vec() {
            for (block, register) in self.blocks.range_mut(size / BLOCK as u64..) {
                may_end(register, &within(*block, &(size..u64::MAX)));
            }
        }
        for end in &self.ends {
            let block = end / BLOCK as u64;
            if let Some(register) = self.blocks.get_mut(&block) {
                may_end(register, &within(block, &(*end..u64::MAX)));
            }
        }
    }

    fn observe_size(&mut self, visible: u64, fits: impl Fn(&u64) -> bool) -> bool {
        if self.size.observe(visible, &fits) {
            return true;
        }
        let mut ends =
            self.torn.values().flat_map(|blocks| blocks.clone().skip(1)).map(|block| block * BLOCK as u64);
        match (ends.find(&fits), self.size.settled()) {
            (Some(size), Some(_)) => {
                self.size.found(size);
                true
            }
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    /// With one size possible, nothing can be beyond it.
    fn clip(&mut self) {
        let Some([size]) = self.size.settled() else { return };
        let size = *size;
        for (block, register) in self.blocks.range_mut(size / BLOCK as u64..) {
            let Some(values) = register.settled() else { continue };
            let mut clipped: Vec<Runs> = Vec::new();
            for mut value in values.iter().cloned() {
                value.apply(&within(*block, &(size..u64::MAX)), 0);
                if !clipped.contains(&value) {
                    clipped.push(value);
                }
            }
            register.set(clipped);
        }
    }

    fn check(&mut self, reading: &Reading, bytes: &[u8]) -> Result<(), String> {
        let Reading { object, offset, len, size: visible, .. } = *reading;
        let fits = |size: &u64| size.saturating_sub(offset).min(len as u64) == bytes.len() as u64;
        if !self.observe_size(visible, fits) {
            let possible = self.size.possible(visible);
            return Err(format!(
                "a read of {len} bytes at {offset} of object {object} gave {} bytes, possible sizes are {possible:?}",
                bytes.len()
            ));
        }
        let range = offset..offset + bytes.len() as u64;
        let zeros = Block::new(Runs::default());
        for block in blocks(&range) {
            let part = within(block, &range);
            let start = (block * BLOCK as u64 + part.start as u64 - offset) as usize;
            let bytes = &bytes[start..start + part.len()];
            let place = Place { object, block };
            let visible = reading.blocks.get(&block).copied().unwrap_or(0);
            let matches = |runs: &Runs| runs.matches(bytes, part.start, place);
            let known = match self.blocks.get_mut(&block) {
                Some(register) => register.observe(visible, matches),
                None => matches(&Runs::default()),
            };
            if !known {
                let register = self.blocks.get(&block).unwrap_or(&zeros);
                return Err(format!(
                    "object {object} block {block} from byte {} holds{}; possible are {:?}",
                    part.start,
                    describe(bytes, part.start),
                    register.possible(visible)
                ));
            }
        }
        Ok(())
    }

    fn plausible(&self, reading: &Reading, bytes: &[u8], newest: Generation) -> Result<(), String> {
        let range = reading.offset..reading.offset + bytes.len() as u64;
        for block in blocks(&range) {
            let part = within(block, &range);
            let start = (block * BLOCK as u64 + part.start as u64 - reading.offset) as usize;
            let bytes = &bytes[start..start + part.len()];
            let place = Place { object: reading.object, block };
            if !plausible(bytes, part.start, place, newest) {
                return Err(format!(
                    "object {} block {block} holds what was never there:{}",
                    reading.object,
                    describe(bytes, part.start)
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::fill;

    const NOW: Time = Time { sec: 1, nsec: 0 };

    fn read(model: &mut Model, generation: Generation, range: Range<usize>) -> Result<(), String> {
        let reading = model.begin_read(1, range.start as u64, range.len());
        let mut bytes = vec![0; range.len()];
        for (at, byte) in range.clone().zip(&mut bytes) {
            let place = Place { object: 1, block: (at / BLOCK) as u64 };
            fill(std::slice::from_mut(byte), at % BLOCK, generation, place);
        }
        model.end_read(&reading, Some(&bytes))
    }

    #[test]
    fn an_acknowledged_write_is_seen_and_an_unstable_one_may_be_lost_in_a_crash() {
        let mut model = Model { logged: true, ..Model::default() };
        model.create(1, 10_000, 0, NOW);
        let stable = model.begin_write(1, 100, 9000, NOW);
        read(&mut model, 0, 0..10_000).unwrap();
        model.durable(stable);
        assert!(read(&mut model, 0, 200..300).is_err());
        read(&mut model, stable, 100..9100).unwrap();
        let unstable = model.begin_write(1, 100, 9000, NOW);
        model.accepted(unstable, 7);
        assert!(read(&mut model, stable, 5000..6000).is_err());
        model.crash(true);
        read(&mut model, stable, 5000..6000).unwrap();
        read(&mut model, unstable, 100..4096).unwrap();
        assert!(read(&mut model, unstable, 5000..6000).is_err(), "it was lost, as seen before");
    }

    #[test]
    fn what_survives_a_crash_is_a_prefix() {
        let mut model = Model { logged: true, ..Model::default() };
        model.create(1, 3 * 4096, 0, NOW);
        let writes: Vec<u32> = (0..2).map(|block| model.begin_write(1, block * 4096, 4096, NOW)).collect();
        model.accepted(writes[0], 1);
        model.accepted(writes[1], 2);
        model.crash(true);
        read(&mut model, 0, 0..4096).unwrap();
        read(&mut model, writes[1], 4096..8192).unwrap();
        assert!(model.check_prefix().is_err());
    }

    #[test]
    fn a_direct_write_may_be_cut_short_where_the_backing_file_ends_though_the_log_has_more() {
        let mut model = Model::default();
        model.create(1, 49, 0, NOW);
        let failed = model.begin_write(1, 0, 8192, NOW);
        model.failed(failed);
        let logged = model.begin_write(1, 4 * 4096, 4096, NOW);
        model.durable(logged);
        model.crash(true);
        let mut first_block = |end: usize| {
            let mut bytes = vec![0; BLOCK];
            fill(&mut bytes[..end], 0, failed, Place { object: 1, block: 0 });
            let reading = model.begin_read(1, 0, BLOCK);
            model.end_read(&reading, Some(&bytes))
        };
        first_block(49).unwrap();
        assert!(first_block(100).is_err(), "the file never ended there");
        assert!(read(&mut model, 0, 4 * 4096..5 * 4096).is_err(), "what is durable stays");
    }

    #[test]
    fn nothing_is_left_beyond_a_truncation() {
        let mut model = Model { logged: true, ..Model::default() };
        model.create(1, 0, 0, NOW);
        let write = model.begin_write(1, 0, 8192, NOW);
        model.durable(write);
        for size in [100, 8192] {
            let truncate = model.begin_truncate(1, size, NOW);
            model.durable(truncate);
        }
        read(&mut model, write, 0..100).unwrap();
        read(&mut model, 0, 100..8192).unwrap();
        assert!(read(&mut model, write, 0..101).is_err());
        assert!(model.observe_size(1, 100).is_err());
    }
}
