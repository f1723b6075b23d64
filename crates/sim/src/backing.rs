//! A virtual backing store: files behind a page cache.
//!
//! # Fault model
//!
//! - Nothing is durable before a successful sync. A power cut keeps any subset of the unsynced block writes, and the
//!   changes of size up to some point; a block written after a cut of the file that was lost is lost with it.
//! - A failed sync marks its pages clean: some of them are durable, the others are lost although reads go on seeing
//!   them until the page is evicted, and later syncs succeed without them (ATC'20, "Can applications recover from fsync
//!   failures?").
//! - Operations fail with EIO; a failed write has happened in part, up to a block's end. ENOSPC and EDQUOT come from a limit that moves.
//! - Operations hang for up to a minute. Objects are removed at any time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{Backing, BackingError, BackingResult, Io, Key, Time};
use parking_lot::Mutex;

use crate::content::Content;
use crate::disk::Page;
use crate::executor::Executor;
use crate::hits::{Fault, Hits};
use crate::rng::Rng;

const EIO: i32 = 5;

/// How often the store misbehaves: chances in 10,000 for each operation.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// EIO of anything but a sync.
    pub error: u32,
    /// A sync that fails and drops pages.
    pub sync_error: u32,
    /// An operation that takes up to a minute.
    pub hang: u32,
    /// Allocations fail with EDQUOT.
    pub over_quota: bool,
    /// Factor on every latency; 0 and 1 are normal.
    pub slow: u32,
}

/// The store; clones are the same one.
#[derive(Clone)]
pub struct Store {
    executor: Executor,
    hits: Arc<Hits>,
    state: Arc<Mutex<State>>,
}

struct State {
    rng: Rng,
    files: BTreeMap<Key, File>,
    /// Blocks.
    capacity: u64,
    rates: Rates,
    base: Duration,
    next: u64,
    under_way: BTreeMap<u64, Write>,
    /// Whoever asks for anything makes a mistake.
    closed: bool,
}

struct Write {
    object: Key,
    offset: u64,
    data: Slice,
}

#[derive(Default)]
struct File {
    durable: Content,
    current: Content,
    /// Not durable, oldest first, numbered.
    pending: Vec<(u64, Change)>,
    /// Blocks that a failed sync marked clean and lost.
    lost: BTreeMap<u64, ()>,
}

enum Change {
    Page(u64, Page),
    Size(u64),
    Mtime(Time),
}

impl File {
    fn apply(content: &mut Content, change: &Change) {
        match change {
            Change::Page(block, page) => content.put(*block, page.clone()),
            Change::Size(size) => content.resize(*size),
            Change::Mtime(time) => content.mtime = *time,
        }
    }

    fn change(&mut self, number: u64, change: Change) {
        Self::apply(&mut self.current, &change);
        self.pending.push((number, change));
    }

    fn write(&mut self, number: u64, offset: u64, data: &[u8], now: Time) {
        let end = offset + data.len() as u64;
        if end > self.current.size {
            self.change(number, Change::Size(end));
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let within = (at % BLOCK as u64) as usize;
            let count = (BLOCK - within).min(data.len() - done);
            let mut page = self.current.page(at / BLOCK as u64);
            Arc::make_mut(&mut page)[within..within + count].copy_from_slice(&data[done..done + count]);
            self.lost.remove(&(at / BLOCK as u64));
            self.change(number, Change::Page(at / BLOCK as u64, page));
            done += count;
        }
        self.change(number, Change::Mtime(now));
    }

    fn sync(&mut self, mark: u64, rng: &mut Rng, fails: bool) {
        for (number, change) in std::mem::take(&mut self.pending) {
            if number > mark {
                self.pending.push((number, change));
                continue;
            }
            match &change {
                Change::Page(block, _) if fails && rng.chance(6000) => {
                    self.lost.insert(*block, ());
                }
                _ => Self::apply(&mut self.durable, &change),
            }
        }
    }

    /// True if anything unsynced was lost.
    fn cut(&mut self, rng: &mut Rng) -> bool {
        let sizes = self.pending.iter().filter(|(_, change)| matches!(change, Change::Size(_))).count();
        let mut keep_sizes = rng.within(0, sizes as u64);
        let chances = rng.pick(&[0, 5000, 9000, 10_000]);
        let (mut lost, mut cut_off) = (false, false);
        for (_, change) in std::mem::take(&mut self.pending) {
            let keep = match &change {
                Change::Size(size) => {
                    let keep = keep_sizes > 0;
                    keep_sizes = keep_sizes.saturating_sub(1);
                    cut_off |= !keep && *size < self.durable.size;
                    keep
                }
                Change::Page(..) => !cut_off && rng.chance(chances),
                Change::Mtime(_) => rng.chance(5000),
            };
            lost |= !keep;
            if keep {
                Self::apply(&mut self.durable, &change);
            }
        }
        self.current = self.durable.clone();
        self.lost.clear();
        lost
    }

    fn evict(&mut self) {
        for block in std::mem::take(&mut self.lost).into_keys() {
            self.current.revert(block, &self.durable);
        }
    }
}

impl Store {
    /// An empty store of `capacity` bytes.
    pub fn new(executor: &Executor, capacity: u64, mut rng: Rng, hits: &Arc<Hits>) -> Self {
        let base = rng.time(Duration::from_micros(100), Duration::from_millis(8));
        let state = State {
            rng,
            files: BTreeMap::new(),
            capacity: capacity / BLOCK as u64,
            rates: Rates::default(),
            base,
            next: 0,
            under_way: BTreeMap::new(),
            closed: false,
        };
        Store { executor: executor.clone(), hits: hits.clone(), state: Arc::new(Mutex::new(state)) }
    }

    /// Makes everything take `factor` times as long, for good.
    pub fn slow_down(&self, factor: u32) {
        self.state.lock().base *= factor;
    }

    /// How it misbehaves from now on.
    pub fn set_rates(&self, rates: Rates) {
        self.state.lock().rates = rates;
    }

    /// Changes the space to `free` bytes more than what is in use.
    pub fn set_free(&self, free: u64) {
        let mut state = self.state.lock();
        state.capacity = state.used() + free / BLOCK as u64;
    }

    /// Nobody may ask for anything until it is opened again.
    pub fn set_closed(&self, closed: bool) {
        self.state.lock().closed = closed;
    }

    /// Makes an object, durably, with `content`.
    pub fn create(&self, object: &Key, content: Content) {
        let file = File { durable: content.clone(), current: content, ..File::default() };
        self.state.lock().files.insert(object.clone(), file);
    }

    /// Removes an object, durably.
    pub fn remove(&self, object: &Key) {
        self.state.lock().files.remove(object);
        self.hits.hit(Fault::Removed);
    }

    /// Somebody sets the modification time, durably.
    pub fn touch(&self, object: &Key, mtime: Time) {
        if let Some(file) = self.state.lock().files.get_mut(object) {
            file.durable.mtime = mtime;
            file.current.mtime = mtime;
            file.pending.retain(|(_, change)| !matches!(change, Change::Mtime(_)));
        }
    }

    /// What a reader of the directory sees.
    pub fn current(&self, object: &Key) -> Option<Content> {
        self.state.lock().files.get(object).map(|file| file.current.clone())
    }

    /// What would be left if every unsynced change were lost.
    pub fn durable(&self, object: &Key) -> Option<Content> {
        self.state.lock().files.get(object).map(|file| file.durable.clone())
    }

    /// The process is killed: writes under way end somewhere, the page cache stays.
    pub fn kill(&self) {
        let mut state = self.state.lock();
        let now = state.wall(&self.executor);
        for (number, write) in std::mem::take(&mut state.under_way) {
            let done = state.part(write.offset, write.data.len());
            if let Some(file) = state.files.get_mut(&write.object)
                && done > 0
            {
                file.write(number, write.offset, &write.data[..done], now);
            }
        }
    }

    /// Everything in the page cache becomes durable, but for what failed syncs have lost.
    pub fn settle(&self) {
        for file in self.state.lock().files.values_mut() {
            for (_, change) in std::mem::take(&mut file.pending) {
                File::apply(&mut file.durable, &change);
            }
        }
    }

    /// The power goes: see the fault model.
    pub fn power_cut(&self) {
        self.kill();
        let mut state = self.state.lock();
        let State { rng, files, .. } = &mut *state;
        for file in files.values_mut() {
            if file.cut(rng) {
                self.hits.hit(Fault::BackingCut);
            }
        }
    }

    fn begin(&self, state: &mut State, factor: u32) -> Option<Duration> {
        assert!(
            !state.closed,
            "the backing store is asked while it may have to be brought to where notes say it is"
        );
        if !self.executor.step() {
            return None;
        }
        let hang = state.rates.hang;
        if state.rng.chance(hang) {
            self.hits.hit(Fault::Hang);
            return Some(state.rng.time(Duration::from_secs(2), Duration::from_secs(60)));
        }
        let base = state.base * factor * state.rates.slow.max(1) / 10;
        Some(state.rng.time(base / 2, base * 2))
    }

    /// Runs `action` as the completion of an operation that takes `factor` tenths of the usual time.
    fn operation<T: Send + 'static>(
        &self,
        factor: u32,
        action: impl FnOnce(&Store, &mut State) -> T + Send + 'static,
    ) -> Io<T> {
        let Some(time) = self.begin(&mut self.state.lock(), factor) else { return self.executor.never() };
        let store = self.clone();
        self.executor
            .after(time, move || store.executor.step().then(|| action(&store, &mut store.state.lock())))
    }

    fn fails(&self, state: &mut State) -> bool {
        let error = state.rates.error;
        let fails = state.rng.chance(error);
        if fails {
            self.hits.hit(Fault::BackingError);
        }
        fails
    }

    fn write_now(&self, state: &mut State, number: u64) -> BackingResult<()> {
        let Some(Write { object, offset, data }) = state.under_way.remove(&number) else {
            return Err(BackingError::Gone);
        };
        if !state.files.contains_key(&object) {
            return Err(BackingError::Gone);
        }
        let now = state.wall(&self.executor);
        // Numbered anew: a sync that began while this was under way does not cover it.
        let number = state.number();
        let mut result = Ok(());
        let mut len = data.len();
        if self.fails(state) {
            len = state.part(offset, len);
            result = Err(BackingError::Io(EIO));
        } else if let Some((fits, error)) = state.room(&object, offset, len) {
            self.hits.hit(if error == BackingError::Quota { Fault::Quota } else { Fault::NoSpace });
            len = fits;
            result = Err(error);
        }
        if let Some(file) = state.files.get_mut(&object)
            && len > 0
        {
            file.write(number, offset, &data[..len], now);
        }
        result
    }

    fn sync_now(&self, state: &mut State, objects: &[Key], mark: u64) -> Vec<BackingResult<()>> {
        let chances = state.rates.sync_error;
        let State { rng, files, .. } = state;
        let one = |object| {
            let file = files.get_mut(object).ok_or(BackingError::Gone)?;
            let fails = !file.pending.is_empty() && rng.chance(chances);
            file.sync(mark, rng, fails);
            if fails {
                self.hits.hit(Fault::SyncError);
                return Err(BackingError::Io(EIO));
            }
            Ok(())
        };
        objects.iter().map(one).collect()
    }
}

impl State {
    fn used(&self) -> u64 {
        self.files.values().map(|file| file.current.allocated()).sum()
    }

    /// The time that the file system stamps on a file by itself; the engine's times must replace it.
    fn wall(&self, executor: &Executor) -> Time {
        Time { sec: 4_000_000_000 + executor.time().as_secs() as i64, nsec: executor.time().subsec_nanos() }
    }

    /// How many bytes an interrupted write wrote: all, or up to a block's end.
    fn part(&mut self, offset: u64, len: usize) -> usize {
        let end = offset + self.rng.below(len as u64 + BLOCK as u64);
        let block_end = end / BLOCK as u64 * BLOCK as u64;
        if end >= offset + len as u64 { len } else { block_end.saturating_sub(offset) as usize }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// How many bytes of a write have room, if not all.
    fn room(&self, object: &Key, offset: u64, len: usize) -> Option<(usize, BackingError)> {
        let file = self.files.get(object)?;
        let free = if self.rates.over_quota { 0 } else { self.capacity.saturating_sub(self.used()) };
        let blocks = offset / BLOCK as u64..(offset + len as u64).div_ceil(BLOCK as u64);
        let first = blocks.filter(|block| !file.current.has(*block)).nth(free as usize)?;
        let error = if self.rates.over_quota { BackingError::Quota } else { BackingError::NoSpace };
        Some(((first * BLOCK as u64).saturating_sub(offset) as usize, error))
    }

    fn assert_apart(&self, object: &Key, range: &Range<u64>) {
        let overlap = self.under_way.values().find(|write| {
            write.object == *object
                && write.offset < range.end
                && range.start < write.offset + write.data.len() as u64
        });
        assert!(
            overlap.is_none(),
            "two backing writes of overlapping ranges are under way: {object:?} {range:?}"
        );
    }
}

impl Backing for Store {
    fn size(&self, object: &Key) -> Io<BackingResult<u64>> {
        let object = object.clone();
        self.operation(1, move |store, state| {
            if store.fails(state) {
                return Err(BackingError::Io(EIO));
            }
            state.files.get(&object).map(|file| file.current.size).ok_or(BackingError::Gone)
        })
    }

    fn read(&self, object: &Key, offset: u64, mut buffer: Buffer) -> Io<(Buffer, BackingResult<usize>)> {
        let object = object.clone();
        self.operation(10, move |store, state| {
            if store.fails(state) {
                return (buffer, Err(BackingError::Io(EIO)));
            }
            let evict = state.rng.chance(3000);
            let result = match state.files.get_mut(&object) {
                Some(file) => {
                    if evict {
                        file.evict();
                    }
                    Ok(file.current.read(offset, &mut buffer))
                }
                None => Err(BackingError::Gone),
            };
            store.executor.note(offset ^ result.unwrap_or(7) as u64);
            (buffer, result)
        })
    }

    fn write(&self, object: &Key, offset: u64, data: Slice) -> Io<BackingResult<()>> {
        let mut state = self.state.lock();
        state.assert_apart(object, &(offset..offset + data.len() as u64));
        let number = state.number();
        self.executor.note(offset ^ forebay_engine::format::content_hash(&data));
        state.under_way.insert(number, Write { object: object.clone(), offset, data });
        drop(state);
        self.operation(2, move |store, state| store.write_now(state, number))
    }

    fn truncate(&self, object: &Key, size: u64) -> Io<BackingResult<()>> {
        let object = object.clone();
        self.operation(5, move |store, state| {
            let (number, now, fails) = (state.number(), state.wall(&store.executor), store.fails(state));
            let file = state.files.get_mut(&object).ok_or(BackingError::Gone)?;
            if fails {
                return Err(BackingError::Io(EIO));
            }
            file.change(number, Change::Size(size));
            file.change(number, Change::Mtime(now));
            file.lost.retain(|block, ()| *block < size / BLOCK as u64);
            Ok(())
        })
    }

    fn set_mtime(&self, object: &Key, mtime: Time) -> Io<BackingResult<()>> {
        let object = object.clone();
        self.operation(1, move |store, state| {
            let (number, fails) = (state.number(), store.fails(state));
            let file = state.files.get_mut(&object).ok_or(BackingError::Gone)?;
            if fails {
                return Err(BackingError::Io(EIO));
            }
            file.change(number, Change::Mtime(mtime));
            Ok(())
        })
    }

    fn sync(&self, objects: Vec<Key>) -> Io<Vec<BackingResult<()>>> {
        let mark = self.state.lock().next;
        self.operation(40, move |store, state| store.sync_now(state, &objects, mark))
    }

    fn free(&self) -> Io<BackingResult<u64>> {
        self.operation(1, |store, state| {
            if store.fails(state) {
                return Err(BackingError::Io(EIO));
            }
            Ok(state.capacity.saturating_sub(state.used()) * BLOCK as u64)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(600);

    fn store(seed: u64) -> (Executor, Store, Key) {
        let mut rng = Rng::new(seed);
        let executor = Executor::new(rng.fork());
        let store = Store::new(&executor, 1 << 20, rng, &Arc::default());
        let key = Key::new(b"file").unwrap();
        store.create(&key, Content::default());
        (executor, store, key)
    }

    fn write(executor: &Executor, store: &Store, key: &Key, offset: u64, data: &[u8]) -> BackingResult<()> {
        let mut buffer = Buffer::zeroed(data.len().div_ceil(BLOCK));
        buffer[..data.len()].copy_from_slice(data);
        let slice = Slice::new(Arc::new(buffer), 0..data.len());
        executor.block_on(LIMIT, store.write(key, offset, slice)).unwrap()
    }

    fn bytes(content: &Content) -> Vec<u8> {
        let mut bytes = vec![0; content.size as usize];
        content.read(0, &mut bytes);
        bytes
    }

    #[test]
    fn only_a_successful_sync_makes_durable() {
        let (executor, store, key) = store(1);
        write(&executor, &store, &key, 10, b"abc").unwrap();
        assert_eq!(store.durable(&key).unwrap().size, 0);
        assert_eq!(executor.block_on(LIMIT, store.sync(vec![key.clone()])).unwrap(), [Ok(())]);
        store.power_cut();
        assert_eq!(bytes(&store.current(&key).unwrap()), b"\0\0\0\0\0\0\0\0\0\0abc");
    }

    #[test]
    fn a_failed_sync_loses_pages_that_a_later_one_does_not_bring_back() {
        let mut lost = 0;
        for seed in 0..20 {
            let (executor, store, key) = store(seed);
            write(&executor, &store, &key, 0, b"abc").unwrap();
            store.set_rates(Rates { sync_error: 10_000, ..Rates::default() });
            assert!(executor.block_on(LIMIT, store.sync(vec![key.clone()])).unwrap()[0].is_err());
            store.set_rates(Rates::default());
            assert_eq!(executor.block_on(LIMIT, store.sync(vec![key.clone()])).unwrap(), [Ok(())]);
            assert_eq!(bytes(&store.current(&key).unwrap()), b"abc", "reads go on seeing them");
            store.power_cut();
            lost += usize::from(bytes(&store.current(&key).unwrap()) == b"\0\0\0");
        }
        assert!((5..20).contains(&lost));
    }

    #[test]
    fn a_cut_never_keeps_more_than_was_written_and_what_a_cut_off_end_had() {
        for seed in 0..100 {
            let (executor, store, key) = store(seed);
            write(&executor, &store, &key, 0, &[1; 5000]).unwrap();
            executor.block_on(LIMIT, store.sync(vec![key.clone()])).unwrap();
            executor.block_on(LIMIT, store.truncate(&key, 100)).unwrap().unwrap();
            executor.block_on(LIMIT, store.truncate(&key, 6000)).unwrap().unwrap();
            store.power_cut();
            let content = store.current(&key).unwrap();
            let ones = bytes(&content).iter().filter(|byte| **byte == 1).count();
            assert_eq!(ones, if content.size == 5000 { 5000 } else { 100 });
        }
    }

    #[test]
    fn space_is_limited_but_overwriting_needs_none() {
        let (executor, store, key) = store(1);
        write(&executor, &store, &key, 0, &[1; 8192]).unwrap();
        store.set_free(4096);
        assert_eq!(write(&executor, &store, &key, 4096, &[2; 8192]), Ok(()));
        assert_eq!(write(&executor, &store, &key, 12_288, b"x"), Err(BackingError::NoSpace));
        assert_eq!(write(&executor, &store, &key, 0, &[3; 12_288]), Ok(()));
    }
}
