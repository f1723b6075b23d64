//! A virtual cache device: pristine memory, a volatile cache over it, and faults over both.
//!
//! # Fault model
//!
//! - A write that is not durable yet lives in the volatile cache. Reads see it. A power cut lets any subset of the
//!   cache survive, decided by write, by block, by 512-byte sector, or torn at a byte. Writes under way count as cached.
//! - A process kill loses nothing that completed; writes under way may end in part.
//! - A flush covers the writes that completed before it began.
//! - A discard leaves zeros, the old contents or garbage, by block.
//! - The rest happens only to a device that the world's plan calls a *victim* (charter section 4): writes lost or
//!   misdirected, reads misdirected, bits rotten, sectors unreadable for a while or until rewritten, writes and flushes
//!   that fail (a failed flush may lose what it covered), flushes that do nothing, the device slow, gone, back and stale.
//!   One good copy is left in worlds with one victim, so there the engine must lose nothing at all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{Device, DeviceError, Durability, Io};
use parking_lot::Mutex;

use crate::executor::Executor;
use crate::hits::{Fault, Hits};
use crate::rng::Rng;

/// The contents of one block.
pub type Page = Arc<[u8; BLOCK]>;

/// Bytes of a sector, the unit that real devices write whole.
const SECTOR: usize = 512;

/// How often a victim misbehaves: chances in 10,000 for each operation.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// A write that fails.
    pub write_error: u32,
    /// A flush that fails.
    pub flush_error: u32,
    /// A write that is reported done and lost.
    pub lost_write: u32,
    /// A write that goes elsewhere.
    pub misdirected_write: u32,
    /// A read of another place.
    pub misdirected_read: u32,
    /// For each read: one bit of a block that it reads rots first.
    pub rot: u32,
    /// For each read: a block becomes unreadable for a few reads.
    pub latent_passing: u32,
    /// For each read: a block becomes unreadable until rewritten.
    pub latent_lasting: u32,
    /// Going away for good, for each operation.
    pub vanish: u32,
    /// Going away for good, for each read: whoever reads is the first to notice.
    pub vanish_read: u32,
    /// Flushes and durable writes are only cached.
    pub drop_flushes: bool,
    /// Factor on every latency; 0 and 1 are normal.
    pub slow: u32,
}

/// A virtual device; clones are the same one.
#[derive(Clone)]
pub struct Disk {
    executor: Executor,
    name: Arc<str>,
    size: u64,
    hits: Arc<Hits>,
    state: Arc<Mutex<State>>,
}

struct State {
    rng: Rng,
    /// What survives everything but faults.
    stable: BTreeMap<u64, Page>,
    /// Completed writes that are not durable, oldest first, with the number of their completion.
    cached: BTreeMap<u64, Vec<(u64, Page)>>,
    completed: u64,
    under_way: BTreeMap<u64, (u64, Slice)>,
    next: u64,
    /// Unreadable blocks and how many reads they stay so.
    latent: BTreeMap<u64, u32>,
    gone: bool,
    rates: Rates,
    base: Duration,
    /// The machine crashes so many steps after so many segments were opened.
    crash_at_header: Option<(u32, u64)>,
}

/// What becomes of one write.
enum Fate {
    Done,
    Failed,
    Lost,
    Elsewhere(u64),
}

impl Disk {
    /// A blank device of `size` bytes.
    pub fn new(executor: &Executor, name: &str, size: u64, mut rng: Rng, hits: &Arc<Hits>) -> Self {
        let base = rng.time(Duration::from_micros(5), Duration::from_micros(120));
        let state = State {
            rng,
            stable: BTreeMap::new(),
            cached: BTreeMap::new(),
            completed: 0,
            under_way: BTreeMap::new(),
            next: 0,
            latent: BTreeMap::new(),
            gone: false,
            rates: Rates::default(),
            base,
            crash_at_header: None,
        };
        Disk {
            executor: executor.clone(),
            name: name.into(),
            size,
            hits: hits.clone(),
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// How it misbehaves from now on.
    pub fn set_rates(&self, rates: Rates) {
        if rates.slow > 1 {
            self.hits.hit(Fault::SlowDevice);
        }
        self.state.lock().rates = rates;
    }

    /// Goes away: every operation fails from now on. What was cached settles as in a power cut.
    pub fn vanish(&self) {
        self.power_cut();
        self.state.lock().gone = true;
    }

    /// Is there again, with what it held when it went.
    pub fn appear(&self) {
        self.state.lock().gone = false;
    }

    /// Whether it is away.
    pub fn is_gone(&self) -> bool {
        self.state.lock().gone
    }

    /// Loses everything, as if replaced by a new one.
    pub fn wipe(&self) {
        let mut state = self.state.lock();
        state.stable.clear();
        state.cached.clear();
        state.latent.clear();
    }

    /// Flips a bit in `count` blocks that were ever written, chosen by chance.
    pub fn rot(&self, count: usize) {
        let mut state = self.state.lock();
        for _ in 0..count {
            // Every other one hits the front of a mebibyte: superblocks, headers of segments, the first frames.
            let front = state.rng.chance(5000);
            let blocks = state.stable.keys().copied().filter(|block| !front || block % 256 < 2);
            let blocks: Vec<u64> = blocks.collect();
            let place = state.rng.index(blocks.len().max(1));
            if let Some(block) = blocks.get(place).copied() {
                state.rot(block);
                self.hits.hit(Fault::BitRot);
            }
        }
    }

    /// Flips a bit in the headers of about half the segments (of 1 MiB), chosen by chance.
    pub fn rot_headers(&self) {
        let mut state = self.state.lock();
        let headers = state.stable.keys().copied().filter(|block| *block > 0 && block % 256 == 0);
        for block in headers.collect::<Vec<_>>() {
            if state.rng.chance(5000) {
                state.rot(block);
                self.hits.hit(Fault::HeaderRot);
            }
        }
    }

    /// Has the machine crash `steps` steps after `headers` more segments (of 1 MiB) were opened.
    pub fn crash_at_header(&self, crash: Option<(u32, u64)>) {
        self.state.lock().crash_at_header = crash;
    }

    /// Flips a bit of the block at byte `offset`.
    pub fn rot_at(&self, offset: u64) {
        self.state.lock().rot(offset / BLOCK as u64);
    }

    /// Every block that was ever written, by number.
    pub fn written(&self) -> Vec<u64> {
        self.state.lock().stable.keys().copied().collect()
    }

    /// The process is killed: writes under way end somewhere, nothing else is lost.
    pub fn kill(&self) {
        let mut state = self.state.lock();
        for (block, data) in std::mem::take(&mut state.under_way).into_values() {
            let chances = state.rng.pick(&[0, 5000, 10_000]);
            state.completed += 1;
            for (place, page) in pages(&data).enumerate() {
                if state.rng.chance(chances) {
                    state.put(block + place as u64, page);
                }
            }
        }
    }

    /// The power goes: a subset of what is not durable survives. True if it was neither all nor nothing.
    pub fn power_cut(&self) -> bool {
        let mut state = self.state.lock();
        for (block, data) in std::mem::take(&mut state.under_way).into_values() {
            state.completed += 1;
            for (place, page) in pages(&data).enumerate() {
                state.put(block + place as u64, page);
            }
        }
        let (grain, chances) = (state.rng.below(5), state.rng.pick(&[0, 500, 5000, 9500, 10_000]));
        let mut kept: BTreeMap<u64, bool> = BTreeMap::new();
        let mut outcomes = (0, 0);
        for (block, writes) in std::mem::take(&mut state.cached) {
            let mut page = state.stable.get(&block).cloned().unwrap_or_else(|| Arc::new([0; BLOCK]));
            for (number, new) in writes {
                let whole = match grain {
                    0 => *kept.entry(number).or_insert_with(|| state.rng.chance(chances)),
                    _ => state.rng.chance(chances),
                };
                let torn = grain >= 2 && state.rng.chance(2000);
                if torn {
                    page = self.tear(&mut state.rng, grain == 4, &page, &new);
                } else if whole {
                    page = new;
                }
                *if whole { &mut outcomes.0 } else { &mut outcomes.1 } += 1;
            }
            state.stable.insert(block, page);
        }
        let some = outcomes.0 > 0 && outcomes.1 > 0;
        if some {
            self.hits.hit(Fault::Subset);
        }
        some
    }

    fn tear(&self, rng: &mut Rng, by_byte: bool, old: &Page, new: &Page) -> Page {
        let mut page = **old;
        if by_byte {
            let at = rng.index(BLOCK + 1);
            if rng.chance(5000) {
                page[..at].copy_from_slice(&new[..at]);
            } else {
                page[at..].copy_from_slice(&new[at..]);
            }
            self.hits.hit(Fault::TornByte);
        } else {
            for sector in 0..BLOCK / SECTOR {
                if rng.chance(5000) {
                    let range = sector * SECTOR..(sector + 1) * SECTOR;
                    page[range.clone()].copy_from_slice(&new[range]);
                }
            }
            self.hits.hit(Fault::TornSector);
        }
        Arc::new(page)
    }

    /// Time that an operation takes; `None` if the device is gone or the machine has crashed.
    fn begin(&self, state: &mut State, blocks: usize, factor: u32) -> Option<Duration> {
        if !self.executor.step() {
            return None;
        }
        let vanish = state.rates.vanish;
        if !state.gone && state.rng.chance(vanish) {
            state.gone = true;
            self.hits.hit(Fault::Vanished);
        }
        let base = state.base * factor * state.rates.slow.max(1) + Duration::from_nanos(500) * blocks as u32;
        Some(state.rng.time(base / 2, base * 2))
    }

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

    fn write_now(&self, number: u64, mark: Option<u64>, fate: &Fate) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        let Some((block, data)) = state.under_way.remove(&number) else { return Err(DeviceError::Gone) };
        if state.gone {
            return Err(DeviceError::Gone);
        }
        state.completed += 1;
        if block > 0 && block.is_multiple_of(256) {
            state.count_header(&self.executor);
        }
        let block = if let Fate::Elsewhere(other) = fate { *other } else { block };
        for (place, page) in pages(&data).enumerate() {
            let skip = match fate {
                Fate::Lost => true,
                Fate::Failed => state.rng.chance(5000),
                Fate::Done | Fate::Elsewhere(_) => false,
            };
            if !skip {
                state.put(block + place as u64, page);
            }
        }
        if matches!(fate, Fate::Failed) {
            return Err(DeviceError::Io);
        }
        if let Some(mark) = mark {
            let own = state.completed;
            state.harden(|completed| completed <= mark || completed == own);
        }
        Ok(())
    }

    fn flush_now(&self, mark: u64, fails: bool) -> Result<(), DeviceError> {
        let mut state = self.state.lock();
        if state.gone {
            return Err(DeviceError::Gone);
        }
        if fails {
            if state.rng.chance(5000) {
                // What it covered is neither durable nor cached any more.
                let cached = std::mem::take(&mut state.cached);
                for (block, mut writes) in cached {
                    writes.retain(|(completed, _)| *completed > mark || state.rng.chance(5000));
                    if !writes.is_empty() {
                        state.cached.insert(block, writes);
                    }
                }
            }
            return Err(DeviceError::Io);
        }
        if state.rates.drop_flushes {
            self.hits.hit(Fault::DroppedFlush);
        } else {
            state.harden(|completed| completed <= mark);
        }
        Ok(())
    }

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

    /// Runs `action` as the completion of an operation that takes `time`.
    fn complete<T: Send + 'static>(
        &self,
        time: Duration,
        action: impl FnOnce(&Disk) -> T + Send + 'static,
    ) -> Io<T> {
        let disk = self.clone();
        self.executor.after(time, move || disk.executor.step().then(|| action(&disk)))
    }

    fn check(&self, offset: u64, len: usize) {
        assert!(offset.is_multiple_of(BLOCK as u64), "{}: offset {offset} is not aligned", self.name);
        assert!(len > 0 && len.is_multiple_of(BLOCK), "{}: a length of {len} is not whole blocks", self.name);
        assert!(offset + len as u64 <= self.size, "{}: {offset}+{len} is beyond the end", self.name);
    }
}

impl State {
    fn count_header(&mut self, executor: &Executor) {
        self.crash_at_header = match self.crash_at_header {
            Some((headers, steps)) if headers <= 1 => {
                executor.crash_in(Some(steps));
                None
            }
            Some((headers, steps)) => Some((headers - 1, steps)),
            None => None,
        };
    }

    fn current(&self, block: u64) -> Option<&Page> {
        self.cached
            .get(&block)
            .and_then(|writes| writes.last())
            .map(|(_, page)| page)
            .or_else(|| self.stable.get(&block))
    }

    fn put(&mut self, block: u64, page: Page) {
        self.latent.remove(&block);
        self.cached.entry(block).or_default().push((self.completed, page));
    }

    /// Makes durable, block by block, the newest of the writes that `covered` accepts, and everything before it.
    fn harden(&mut self, covered: impl Fn(u64) -> bool) {
        let stable = &mut self.stable;
        self.cached.retain(|block, writes| {
            let newest = writes.iter().rposition(|(completed, _)| covered(*completed));
            if let Some((_, page)) = newest.and_then(|newest| writes.drain(..=newest).next_back()) {
                stable.insert(*block, page);
            }
            !writes.is_empty()
        });
    }

    fn rot(&mut self, block: u64) {
        let bit = self.rng.index(BLOCK * 8);
        let flip = |page: &mut Page| Arc::make_mut(page)[bit / 8] ^= 1 << (bit % 8);
        self.stable.get_mut(&block).map(flip);
        for (_, page) in self.cached.get_mut(&block).into_iter().flatten() {
            flip(page);
        }
    }

    fn read_block(&mut self, block: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        if let Some(reads) = self.latent.get_mut(&block) {
            if *reads != u32::MAX {
                *reads -= 1;
                if *reads == 0 {
                    self.latent.remove(&block);
                }
            }
            return Err(DeviceError::Io);
        }
        match self.current(block) {
            Some(page) => bytes.copy_from_slice(&page[..]),
            None => bytes.fill(0),
        }
        Ok(())
    }
}

/// The blocks of `data`.
fn pages(data: &Slice) -> impl Iterator<Item = Page> + use<> {
    let data = data.clone();
    (0..data.len() / BLOCK).map(move |place| {
        let mut page = [0; BLOCK];
        page.copy_from_slice(&data[place * BLOCK..(place + 1) * BLOCK]);
        Arc::new(page)
    })
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
        self.complete(time, move |disk| {
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
        let fate = self.fate(&mut state, blocks as u64);
        let mut mark = (durable && !state.rates.drop_flushes).then_some(state.completed);
        if durable && mark.is_none() {
            self.hits.hit(Fault::DroppedFlush);
        }
        let flush_error = state.rates.flush_error;
        let unflushed = durable && state.rng.chance(flush_error);
        if unflushed {
            self.hits.hit(Fault::FlushError);
            mark = None;
        }
        state.next += 1;
        let number = state.next;
        self.executor.note(offset ^ forebay_engine::format::content_hash(&data));
        state.under_way.insert(number, (offset / BLOCK as u64, data));
        drop(state);
        self.complete(time, move |disk| {
            let written = disk.write_now(number, mark, &fate);
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
        self.complete(time, move |disk| disk.flush_now(mark, fails))
    }

    fn discard(&self, offset: u64, len: u64) -> Io<Result<(), DeviceError>> {
        self.check(offset, len as usize);
        let mut state = self.state.lock();
        let Some(time) = self.begin(&mut state, 0, 1) else { return self.executor.never() };
        drop(state);
        self.complete(time, move |disk| {
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn disk(seed: u64) -> (Executor, Disk) {
        let mut rng = Rng::new(seed);
        let executor = Executor::new(rng.fork());
        let disk = Disk::new(&executor, "a", 1 << 20, rng, &Arc::default());
        (executor, disk)
    }

    fn write(executor: &Executor, disk: &Disk, block: u64, byte: u8, durability: Durability) {
        let data = Buffer::from_bytes(&[byte; BLOCK]).into();
        let done = executor.block_on(LIMIT, disk.write(block * BLOCK as u64, data, durability));
        assert_eq!(done, Ok(Ok(())));
    }

    fn read(executor: &Executor, disk: &Disk, block: u64) -> Result<Vec<u8>, DeviceError> {
        let (buffer, result) =
            executor.block_on(LIMIT, disk.read(block * BLOCK as u64, Buffer::zeroed(1))).unwrap();
        result.map(|()| buffer.to_vec())
    }

    #[test]
    fn a_cut_keeps_what_was_flushed_and_any_subset_of_the_rest() {
        let mut seen = [false; 3];
        for seed in 0..200 {
            let (executor, disk) = disk(seed);
            write(&executor, &disk, 0, 1, Durability::Later);
            assert_eq!(executor.block_on(LIMIT, disk.flush()), Ok(Ok(())));
            write(&executor, &disk, 1, 2, Durability::Later);
            write(&executor, &disk, 2, 3, Durability::Later);
            assert_eq!(read(&executor, &disk, 1).unwrap(), [2; BLOCK], "the cache is read");
            disk.power_cut();
            assert_eq!(read(&executor, &disk, 0).unwrap(), [1; BLOCK]);
            let kept = read(&executor, &disk, 1).unwrap() == [2; BLOCK];
            let other = read(&executor, &disk, 2).unwrap() == [3; BLOCK];
            seen[usize::from(kept) + usize::from(other)] = true;
        }
        assert_eq!(seen, [true; 3]);
    }

    #[test]
    fn a_durable_write_is_durable_with_all_before_it_unless_flushes_are_dropped() {
        for seed in 0..50 {
            let (executor, disk) = disk(seed);
            disk.set_rates(Rates { drop_flushes: seed >= 25, ..Rates::default() });
            write(&executor, &disk, 0, 1, Durability::Later);
            write(&executor, &disk, 1, 2, Durability::Now);
            let durable = disk.state.lock().cached.is_empty();
            assert_eq!(durable, seed < 25);
        }
    }

    #[test]
    fn a_latent_error_ends_with_a_rewrite() {
        let (executor, disk) = disk(1);
        write(&executor, &disk, 0, 1, Durability::Now);
        disk.set_rates(Rates { latent_lasting: 10_000, ..Rates::default() });
        assert_eq!(read(&executor, &disk, 0), Err(DeviceError::Io));
        disk.set_rates(Rates::default());
        assert_eq!(read(&executor, &disk, 0), Err(DeviceError::Io));
        write(&executor, &disk, 0, 2, Durability::Now);
        assert_eq!(read(&executor, &disk, 0).unwrap(), [2; BLOCK]);
    }

    #[test]
    fn rot_changes_one_bit() {
        let (executor, disk) = disk(1);
        write(&executor, &disk, 3, 1, Durability::Now);
        disk.rot_at(3 * BLOCK as u64);
        let differs =
            read(&executor, &disk, 3).unwrap().iter().map(|byte| (byte ^ 1).count_ones()).sum::<u32>();
        assert_eq!(differs, 1);
    }
}
