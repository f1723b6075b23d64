//! The reference model: the possible values of every block, size and time of every object, after each step and crash.

mod holes;
mod look;
mod object;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use forebay_engine::buffer::BLOCK;
use forebay_engine::io::Time;

use crate::layers::Layered;
use crate::register::{Overwrite, Register, Resize};
use crate::stamp::{Generation, Place, Runs, Stamp};

pub use holes::Cloning;
pub use look::Reading;

type Block = Register<Layered, Overwrite>;

/// The known state of an object.
struct ModelObject {
    size: Register<u64, Resize>,
    mtime: Register<Time, Time>,
    /// Blocks that are not in this map are zeros.
    blocks: BTreeMap<u64, Block>,
    /// Blocks on which an operation began that may not be folded yet.
    unfolded: BTreeSet<u64>,
    /// True if faults have destroyed the records of the object's size.
    unsized_since: bool,
    readers: u32,
    /// Writes that may happen in part: the object may end at the end of any of their blocks.
    torn: BTreeMap<u32, Range<u64>>,
    /// Those writes of `torn` that have happened as a whole. They stay until the reads in progress end.
    whole: Vec<u32>,
    /// Sizes that the object may have had, unless every write goes through the log. Its backing file may still end at
    /// any of them, since later growth may be only in the log.
    ends: BTreeSet<u64>,
    /// The places whose contents clones may have brought to a block.
    cloned: BTreeMap<u64, BTreeSet<Place>>,
    /// In a world with holes, the blocks that the backing file may have space for. The value is the last operation that
    /// may have made such a block.
    filled: BTreeMap<u64, u32>,
}

/// The most blocks of a write that is certainly one frame.
const ONE_FRAME: u64 = 64;

/// An operation that changes an object.
#[derive(Default)]
struct Operation {
    object: u8,
    blocks: Range<u64>,
    /// True if the operation may need more than one frame of the log, so that it may happen in part.
    tears: bool,
    seq: Option<u64>,
    /// The last frame that the operation may need to be durable.
    needs: u64,
    /// True if the operation was answered and is not known to be durable.
    open: bool,
    /// Set if some bytes are in the page cache of the backing file: the number of failed syncs of that file before.
    unsynced: Option<u64>,
    /// The whole blocks whose space the operation frees, without those that another operation was changing then.
    freed: Vec<u64>,
    /// The blocks that the operation gives space.
    reserved: Range<u64>,
    /// True while a hole, an allocation or a clone is in progress.
    past_log: bool,
}

/// The model of a whole world.
#[derive(Default)]
pub struct Model {
    objects: BTreeMap<u8, ModelObject>,
    operations: BTreeMap<u32, Operation>,
    next: u32,
    /// True if both copies of something may be lost, after which errors are possible.
    pub lenient: bool,
    /// True if every write goes through the log.
    pub logged: bool,
    /// True if modification times are not checked: many writes at once have too many possible times.
    pub untimed: bool,
    /// True if acknowledged unstable data may be lost without a crash, since it is in a page cache whose syncs fail.
    pub lossy: bool,
    /// True if clients make holes, so that the blocks without space are followed.
    pub holes: bool,
}

/// Returns the part of block `block` that lies in `range`, in bytes within the block.
fn within(block: u64, range: &Range<u64>) -> Range<usize> {
    let start = block * BLOCK as u64;
    let end = start + BLOCK as u64;
    (range.start.clamp(start, end) - start) as usize..(range.end.clamp(start, end) - start) as usize
}

fn blocks(range: &Range<u64>) -> Range<u64> {
    range.start / BLOCK as u64..range.end.div_ceil(BLOCK as u64)
}

impl Model {
    /// Adds an object with `size` bytes from write `generation`.
    pub fn create(&mut self, object: u8, size: u64, generation: Generation, mtime: Time) {
        let all = 0..size;
        let block = |block| {
            let mut runs = Runs::default();
            runs.apply(&within(block, &all), Stamp::new(generation, Place { object, block }));
            (block, Block::new(runs.into()))
        };
        let filled =
            if self.holes { blocks(&all).map(|block| (block, 0)).collect() } else { BTreeMap::new() };
        let blocks = blocks(&all).map(block).collect();
        let new = ModelObject {
            size: Register::new(size),
            mtime: Register::new(mtime),
            blocks,
            unfolded: BTreeSet::new(),
            unsized_since: false,
            readers: 0,
            torn: BTreeMap::new(),
            whole: Vec::new(),
            ends: BTreeSet::new(),
            cloned: BTreeMap::new(),
            filled,
        };
        self.objects.insert(object, new);
    }

    /// Returns a number that no operation and no contents had before.
    pub fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Forgets the object.
    pub fn remove(&mut self, object: u8) {
        self.objects.remove(&object);
        self.operations.retain(|_, operation| operation.object != object);
    }

    /// Returns the numbers of all objects.
    pub fn objects(&self) -> Vec<u8> {
        self.objects.keys().copied().collect()
    }

    /// Returns the largest numbers of unfolded and of running operations on any block of the range.
    pub fn load(&self, object: u8, range: &Range<u64>) -> (usize, usize) {
        let Some(object) = self.objects.get(&object) else { return (0, 0) };
        let touched = object.blocks.range(blocks(range)).map(|(_, block)| block.load());
        let loads = touched.chain([object.size.load(), object.mtime.load()]);
        loads.fold((0, 0), |most, load| (most.0.max(load.0), most.1.max(load.1)))
    }

    /// Returns the largest size that the object may have.
    pub fn size(&self, object: u8) -> u64 {
        let Some(object) = self.objects.get(&object) else { return 0 };
        object.size.possible(0).into_iter().max().unwrap_or(0)
    }

    /// Begins a write of `len` bytes. Returns its number, with which the bytes are stamped.
    pub fn begin_write(&mut self, object: u8, offset: u64, len: u64, now: Time) -> u32 {
        let id = self.number();
        let range = offset..offset + len;
        if let Some(state) = self.objects.get_mut(&object) {
            state.note_end(self.logged);
            for block in blocks(&range) {
                let register =
                    state.blocks.entry(block).or_insert_with(|| Block::new(Runs::default().into()));
                (register.lossy, register.logged) = (self.lossy, self.logged);
                register.begin(
                    id,
                    Overwrite::Bytes(within(block, &range), Stamp::new(id, Place { object, block })),
                );
                state.unfolded.insert(block);
                if self.holes {
                    state.filled.insert(block, id);
                }
            }
            state.size.lossy = self.lossy;
            if !(self.untimed && state.reaches(range.end)) {
                state.size.begin(id, Resize::Extend(range.end));
            }
            if !self.untimed {
                state.mtime.begin(id, now);
            }
        }
        let blocks = blocks(&range);
        let tears = !self.logged || blocks.end - blocks.start > ONE_FRAME;
        if let (true, Some(state)) = (tears, self.objects.get_mut(&object)) {
            state.torn.insert(id, blocks.clone());
        }
        self.operations.insert(id, Operation { object, blocks, tears, ..Operation::default() });
        id
    }

    /// Begins a truncation.
    pub fn begin_truncate(&mut self, object: u8, size: u64, now: Time) -> u32 {
        let id = self.number();
        let first = size / BLOCK as u64;
        if let Some(state) = self.objects.get_mut(&object) {
            state.note_end(self.logged);
            for (block, register) in state.blocks.range_mut(first..) {
                register.begin(id, Overwrite::Bytes(within(*block, &(size..u64::MAX)), Stamp::ZEROS));
                state.unfolded.insert(*block);
            }
            state.size.begin(id, Resize::Set(size));
            if !self.untimed {
                state.mtime.begin(id, now);
            }
        }
        self.operations.insert(id, Operation { object, blocks: first..u64::MAX, ..Operation::default() });
        id
    }

    /// Begins a change of the modification time.
    pub fn begin_mtime(&mut self, object: u8, mtime: Time) -> u32 {
        let id = self.number();
        if let Some(state) = self.objects.get_mut(&object).filter(|_| !self.untimed) {
            state.mtime.begin(id, mtime);
        }
        self.operations.insert(id, Operation { object, ..Operation::default() });
        id
    }

    /// Notes an answer to an operation. From now on its effect must be `visible` to readers, and must survive crashes
    /// if it is `durable`.
    fn answer(&mut self, id: u32, visible: bool, durable: bool) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        operation.open = visible && !durable;
        operation.past_log = false;
        let Some(object) = self.objects.get_mut(&operation.object) else { return };
        if durable {
            object.emptied(id, &operation.freed);
            object.whole.push(id);
            let newest = operation.needs;
            let blocks = object.blocks.range_mut(operation.blocks.clone());
            blocks.for_each(|(_, block)| block.newest = block.newest.max(newest));
            object.size.newest = object.size.newest.max(newest);
        }
        let accepted = visible;
        let visible = visible && (durable || !self.lossy);
        for (_, block) in object.blocks.range_mut(operation.blocks.clone()) {
            block.acknowledge(id, accepted, visible, durable);
        }
        object.size.acknowledge(id, accepted, visible, durable);
        object.mtime.acknowledge(id, accepted, visible, durable);
        object.fold(self.logged, self.lossy);
    }

    /// Notes that the operation was accepted as number `seq`: it is visible, but a crash may lose it.
    pub fn accepted(&mut self, id: u32, seq: u64) {
        if let Some(operation) = self.operations.get_mut(&id) {
            operation.seq = Some(seq);
        }
        self.answer(id, true, false);
    }

    /// Notes that the write was accepted with some bytes in the page cache of the backing file. `failures` is the
    /// number of syncs of that file that had failed before. The other bytes, if any, have number `seq`.
    pub fn accepted_unsynced(&mut self, id: u32, seq: Option<u64>, failures: u64) {
        if let Some(operation) = self.operations.get_mut(&id) {
            (operation.seq, operation.unsynced) = (seq, Some(failures));
        }
        // If syncs fail, the page cache may lose the write at any time. Later writes then lie over the contents before
        // it.
        self.answer(id, !self.lossy, false);
        if let Some(operation) = self.operations.get_mut(&id) {
            operation.open = true;
        }
    }

    /// Returns answered writes of the object with bytes in the page cache, each with its number of failed syncs.
    pub fn unsynced(&self, object: u8) -> Vec<(u32, u64)> {
        let mine = |operation: &Operation| operation.open && operation.object == object;
        let all = self.operations.iter().filter(|(_, operation)| mine(operation));
        all.filter_map(|(id, operation)| Some((*id, operation.unsynced?))).collect()
    }

    /// Notes that a sync made the write's bytes in the page cache durable.
    pub fn synced(&mut self, id: u32) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        operation.unsynced = None;
        if operation.open && operation.seq.is_none() {
            self.durable(id);
        }
    }

    /// Notes that the operation was acknowledged as durable.
    pub fn durable(&mut self, id: u32) {
        self.answer(id, true, true);
    }

    /// Notes that the operation was acknowledged as durable, and that no frame behind `seq` is needed for that.
    pub fn durable_by(&mut self, id: u32, seq: u64) {
        if let Some(operation) = self.operations.get_mut(&id) {
            operation.needs = seq;
        }
        self.durable(id);
    }

    /// Notes that faults destroyed every copy of frame `first` of the log. Operations that need it or a later frame are
    /// unknown from now on. No operation may be in progress.
    pub fn destroyed(&mut self, first: u64) {
        for object in self.objects.values_mut() {
            let blocks = object.blocks.values_mut().filter(|block| block.newest >= first);
            blocks.for_each(|block| block.forget(Runs::unknown().into()));
            object.unsized_since |= object.size.newest >= first;
        }
    }

    /// Notes that the operation failed: it may have happened or not.
    pub fn failed(&mut self, id: u32) {
        self.answer(id, false, false);
    }

    /// Notes that the log is lost with the last device. Accepted operations that were not durable may be lost, although
    /// later ones survive; the write verifier tells the clients.
    pub fn log_lost(&mut self) {
        let logged = |operation: &Operation| operation.open && operation.seq.is_some();
        let all = self.operations.iter().filter(|(_, operation)| logged(operation));
        let all: Vec<u32> = all.map(|(id, _)| *id).collect();
        all.into_iter().for_each(|id| self.lost(id));
    }

    /// Notes that one operation may be lost, although later ones survive.
    pub fn lost(&mut self, id: u32) {
        let Some(operation) = self.operations.get_mut(&id) else { return };
        operation.open = false;
        // Blocks that were only in the log are errors from now on. The object keeps its size and time until a crash.
        let in_memory = operation.seq.is_some();
        let (object, blocks) = (operation.object, operation.blocks.clone());
        let Some(object) = self.objects.get_mut(&object) else { return };
        object.blocks.range_mut(blocks).for_each(|(_, block)| block.lose(id, false));
        object.size.lose(id, in_memory);
        object.mtime.lose(id, in_memory);
    }

    /// Returns operations accepted up to `seq` and not known to be durable. A commit that begins now covers them.
    pub fn open(&self, seq: u64) -> Vec<u32> {
        let covered = |operation: &Operation| {
            let logged = operation.unsynced.is_none() && operation.seq.is_some_and(|own| own <= seq);
            operation.open && logged
        };
        self.operations.iter().filter(|(_, operation)| covered(operation)).map(|(id, _)| *id).collect()
    }

    /// Returns open operations of one object. A commit that also syncs the object's file covers them.
    pub fn open_of(&self, object: u8) -> Vec<u32> {
        let mine = |operation: &Operation| operation.open && operation.object == object;
        self.operations.iter().filter(|(_, operation)| mine(operation)).map(|(id, _)| *id).collect()
    }

    /// Returns true if a hole, an allocation or a clone is in progress.
    pub fn is_past_log(&self) -> bool {
        self.operations.values().any(|operation| operation.past_log)
    }

    /// Returns true if an accepted operation on the object is not known to be durable.
    pub fn is_open(&self, object: u8) -> bool {
        self.operations.values().any(|operation| operation.open && operation.object == object)
    }
}
