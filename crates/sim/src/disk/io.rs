//! The operations of a device, and the faults of each.

use std::time::Duration;

use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{Device, DeviceError, Durability, Io};

use super::state::pages;
use super::{Disk, FRAME, FULL_FRAME, HEADER, Operation, State};
use crate::hits::Fault;

/// The fate of a write.
enum Fate {
    Done,
    Failed,
    Lost,
    Elsewhere(u64),
}

/// The earlier writes that a durable write makes durable too: completed writes up to a number.
#[derive(Clone, Copy, Default)]
struct Marks {
    /// The number up to which writes are really durable.
    mark: Option<u64>,
    /// The number up to which writes are only reported durable.
    owed: Option<u64>,
}

impl Disk {
    /// Begins an operation and returns its time. `None` if the device has vanished or the machine has crashed.
    fn begin(&self, state: &mut State, blocks: usize, factor: u32) -> Option<Duration> {
        if !self.executor.step() {
            return None;
        }
        let vanish = state.rates.vanish;
        if !state.gone && state.rng.chance(vanish) {
            state.gone = true;
            self.hits.hit(Fault::Vanished);
        }
        self.count(state);
        let base = state.base * factor * state.rates.slow.max(1) + Duration::from_nanos(500) * blocks as u32;
        Some(state.rng.time(base / 2, base * 2))
    }

    /// Counts the beginning or end of an operation.
    pub(super) fn count(&self, state: &mut State) {
        if state.goes_now() {
            self.hits.hit(Fault::Vanished);
        }
    }

    /// Carries out a read at its end, with the faults that chance adds: a misdirected read, bit rot, and sector
    /// errors that pass or last.
    fn read_now(&self, offset: u64, buffer: &mut Buffer) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        if state.gone {
            return Err(DeviceError::Gone);
        }
        let mut first = offset / BLOCK as u64;
        let count = (buffer.len() / BLOCK) as u64;
        let rates = state.rates.clone();
        if state.rng.chance(rates.misdirected_read) {
            first = state.rng.below(self.size / BLOCK as u64 - count + 1);
            self.hits.hit(Fault::MisdirectedRead);
        }
        let one = first + state.rng.below(count);
        if state.rng.chance(rates.rot) && state.current(one).is_some() {
            state.rot(one);
            self.hits.hit(Fault::BitRot);
        }
        if state.rng.chance(rates.latent_passing) {
            let reads = state.rng.within(1, 3) as u32;
            state.latent.insert(one, reads);
            self.hits.hit(Fault::LatentPassing);
        }
        if state.rng.chance(rates.latent_lasting) {
            state.latent.insert(one, u32::MAX);
            self.hits.hit(Fault::LatentLasting);
        }
        for (block, bytes) in (first..).zip(buffer.chunks_exact_mut(BLOCK)) {
            state.read_block(block, bytes)?;
        }
        Ok(())
    }

    /// Carries out a write at its end, according to its fate. A durable write makes the earlier completed writes up
    /// to the mark durable as well.
    fn write_now(&self, number: u64, Marks { mark, owed }: Marks, fate: &Fate) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        let Some((block, data)) = state.under_way.remove(&number) else { return Err(DeviceError::Gone) };
        self.executor.mark();
        if state.gone {
            return Err(DeviceError::Gone);
        }
        state.completed += 1;
        if data.starts_with(HEADER) {
            state.count_header(&self.executor);
        }
        if data.starts_with(FRAME) && data.len() >= FULL_FRAME * BLOCK {
            self.hits.hit(Fault::FullFrame);
        }
        let meant = block;
        let block = if let Fate::Elsewhere(other) = fate { *other } else { block };
        for (place, page) in pages(&data).enumerate() {
            let skip = match fate {
                Fate::Lost => true,
                Fate::Failed => state.rng.chance(5000),
                Fate::Done | Fate::Elsewhere(_) => false,
            };
            if place == 0 && !matches!(fate, Fate::Failed) {
                let count = (data.len() / BLOCK) as u64;
                state.promises.wrote(meant, count, &page);
            }
            if !skip {
                state.put(block + place as u64, page);
            }
            if !matches!(fate, Fate::Done) {
                state.promises.harm(block + place as u64);
                state.promises.harm(meant + place as u64);
            }
        }
        if matches!(fate, Fate::Failed) {
            return Err(DeviceError::Io);
        }
        if let Some(mark) = mark {
            let own = state.completed;
            state.harden(|completed| completed <= mark || completed == own);
        } else if let Some(mark) = owed {
            let own = state.completed;
            state.promises.owe(mark, Some(own));
        }
        Ok(())
    }

    /// Makes the writes that were completed up to number `mark` durable. A flush that `fails` may drop any subset of
    /// them. A device that drops flushes reports success and does nothing.
    fn flush_now(&self, mark: u64, fails: bool) -> Result<(), DeviceError> {
        self.executor.mark();
        let mut state = self.state.lock();
        if state.gone {
            return Err(DeviceError::Gone);
        }
        if fails {
            if state.rng.chance(5000) {
                // The discarded writes are neither durable nor cached any more.
                let cached = std::mem::take(&mut state.cached);
                for (block, mut writes) in cached {
                    let before = writes.len();
                    writes.retain(|(completed, _)| *completed > mark || state.rng.chance(5000));
                    if writes.len() < before {
                        state.promises.harm(block);
                    }
                    if !writes.is_empty() {
                        state.cached.insert(block, writes);
                    }
                }
            }
            return Err(DeviceError::Io);
        }
        if state.rates.drop_flushes {
            self.hits.hit(Fault::DroppedFlush);
            state.promises.owe(mark, None);
        } else {
            state.harden(|completed| completed <= mark);
        }
        Ok(())
    }

    /// Draws the fate of a write of `blocks` blocks from the device's fault rates, and counts the fault.
    fn fate(&self, state: &mut State, blocks: u64) -> Fate {
        let rates = state.rates.clone();
        if state.rng.chance(rates.write_error) {
            self.hits.hit(Fault::WriteError);
            Fate::Failed
        } else if state.rng.chance(rates.lost_write) {
            self.hits.hit(Fault::LostWrite);
            Fate::Lost
        } else if state.rng.chance(rates.misdirected_write) {
            self.hits.hit(Fault::MisdirectedWrite);
            Fate::Elsewhere(state.rng.below(self.size / BLOCK as u64 - blocks + 1))
        } else {
            Fate::Done
        }
    }

    /// Panics if a request is not aligned to blocks or reaches beyond the device's end. Only a bug of the engine can
    /// send such a request.
    fn check(&self, offset: u64, len: usize) {
        assert!(offset.is_multiple_of(BLOCK as u64), "{}: offset {offset} is not aligned", self.name);
        assert!(len > 0 && len.is_multiple_of(BLOCK), "{}: a length of {len} is not whole blocks", self.name);
        assert!(offset + len as u64 <= self.size, "{}: {offset}+{len} is beyond the end", self.name);
    }
}

impl Device for Disk {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, mut buffer: Buffer) -> Io<(Buffer, Result<(), DeviceError>)> {
        self.check(offset, buffer.len());
        let mut state = self.state.lock();
        let vanish = state.rates.vanish_read;
        if !state.gone && state.rng.chance(vanish) {
            state.gone = true;
            self.hits.hit(Fault::VanishedOnRead);
        }
        let Some(time) = self.begin(&mut state, buffer.len() / BLOCK, 1) else {
            return self.executor.never();
        };
        drop(state);
        self.complete(Operation::Read(offset / BLOCK as u64), time, move |disk| {
            let result = disk.read_now(offset, &mut buffer);
            disk.executor.note(offset);
            (buffer, result)
        })
    }

    fn write(&self, offset: u64, data: Slice, durability: Durability) -> Io<Result<(), DeviceError>> {
        self.check(offset, data.len());
        let mut state = self.state.lock();
        let blocks = data.len() / BLOCK;
        let durable = durability == Durability::Now;
        let Some(time) = self.begin(&mut state, blocks, if durable { 2 } else { 1 }) else {
            return self.executor.never();
        };
        let failed = state.fails_once(Operation::Write(offset / BLOCK as u64));
        let fate = if failed { Fate::Failed } else { self.fate(&mut state, blocks as u64) };
        let completed = Some(state.completed).filter(|_| durable);
        let mut marks = match state.rates.drop_flushes {
            true => Marks { mark: None, owed: completed },
            false => Marks { mark: completed, owed: None },
        };
        if marks.owed.is_some() {
            self.hits.hit(Fault::DroppedFlush);
        }
        let flush_error = state.rates.flush_error;
        let unflushed = durable && state.rng.chance(flush_error);
        if unflushed {
            self.hits.hit(Fault::FlushError);
            marks = Marks::default();
        }
        state.next += 1;
        let number = state.next;
        self.executor.note(offset ^ forebay_engine::format::content_hash(&data));
        state.under_way.insert(number, (offset / BLOCK as u64, data));
        self.executor.mark();
        drop(state);
        self.complete(Operation::Write(offset / BLOCK as u64), time, move |disk| {
            let written = disk.write_now(number, marks, &fate);
            if unflushed { written.and(Err(DeviceError::Io)) } else { written }
        })
    }

    fn flush(&self) -> Io<Result<(), DeviceError>> {
        let mut state = self.state.lock();
        let Some(time) = self.begin(&mut state, 0, 3) else { return self.executor.never() };
        let (mark, error) = (state.completed, state.rates.flush_error);
        let fails = state.rng.chance(error);
        if fails {
            self.hits.hit(Fault::FlushError);
        }
        drop(state);
        self.complete(Operation::Flush, time, move |disk| disk.flush_now(mark, fails))
    }

    fn discard(&self, offset: u64, len: u64) -> Io<Result<(), DeviceError>> {
        self.check(offset, len as usize);
        let mut state = self.state.lock();
        let Some(time) = self.begin(&mut state, 0, 1) else { return self.executor.never() };
        drop(state);
        self.complete(Operation::Discard, time, move |disk| {
            let mut state = disk.state.lock();
            if state.gone {
                return Err(DeviceError::Gone);
            }
            let first = offset / BLOCK as u64;
            for block in first..first + len / BLOCK as u64 {
                match state.rng.below(3) {
                    0 => {
                        state.stable.remove(&block);
                        state.cached.remove(&block);
                    }
                    1 => state.rot(block),
                    _ => {}
                }
            }
            Ok(())
        })
    }
}
