//! A virtual backing store: files behind a page cache.
//!
//! # Fault model
//!
//! - Nothing is durable before a successful sync. A power cut keeps any subset of the unsynced block writes, and the
//!   changes of size up to some point. A block written after a truncation that was lost is lost with the truncation.
//! - A failed sync marks its pages clean: some of them are durable, the rest are lost. Reads still see the lost pages
//!   until they are evicted, and later syncs succeed without them (ATC'20, "Can applications recover from fsync
//!   failures?").
//! - A hole, reserved space or a clone is a change of each block in the page cache, as a write is. If a failed sync has
//!   lost a page, a clone of it has the contents before.
//! - Operations fail with EIO. A failed write has happened in part, up to a block's end. ENOSPC and EDQUOT come from a
//!   limit that moves.
//! - Operations hang for up to a minute, or for as long as a task says. Objects are removed at any time.
//! - There are several volumes; each fails and hangs by itself. An object's key begins with its volume's number, modulo
//!   the number of volumes.

pub(crate) mod file;
mod holes;
mod io;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_engine::buffer::{BLOCK, Slice};
use forebay_engine::io::{BackingError, Disowned, Key, Time};

use crate::content::Content;
use crate::executor::Executor;
use crate::hits::{Fault, Hits};
use crate::rng::Rng;

use file::{Change, File};
pub use holes::{CloneRange, UNFIT};

/// The rates at which the store misbehaves: chances in 10,000 for each operation.
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
    /// The operations that do not end as long as this is set.
    pub stuck: Option<Stuck>,
}

/// Blocks of a file that the store cannot write, and perhaps cannot read.
#[derive(Clone, Debug)]
pub struct BadRange {
    /// The file.
    pub object: Key,
    /// The blocks.
    pub blocks: Range<u64>,
    /// True if writes succeed, and the next sync of the file fails.
    pub in_sync: bool,
    /// True if reads fail as well.
    pub in_reads: bool,
}

/// A kind of operation that does not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// Writes.
    Write,
    /// Syncs.
    Sync,
    /// Truncations.
    Truncate,
}

/// The backing store. Clones share their state.
#[derive(Clone)]
pub struct Store {
    executor: Executor,
    hits: Arc<Hits>,
    state: Arc<Mutex<State>>,
    /// For the engine: the number of failed syncs of each file from before the engine's first unsynced change.
    changed: Option<Arc<Mutex<BTreeMap<Key, u64>>>>,
}

struct State {
    rng: Rng,
    files: BTreeMap<Key, File>,
    /// The capacity in blocks.
    capacity: u64,
    /// The rates of each volume.
    rates: Vec<Rates>,
    base: Duration,
    next: u64,
    under_way: BTreeMap<u64, Write>,
    /// The parts of the pool's contents that do not count, durably.
    disowned: Vec<(Key, Disowned)>,
    /// True while the store is closed: a request is then a bug of its sender.
    closed: bool,
    /// The blocks that cannot be written.
    bad: Option<BadRange>,
    /// The number of requested syncs.
    syncs: u64,
    /// The time for a write of an array that carries out one write after another, and the end of the last write.
    array: Option<(Duration, Duration)>,
}

struct Write {
    object: Key,
    offset: u64,
    data: Slice,
}

impl Store {
    /// Makes an empty store of `capacity` bytes.
    pub fn new(executor: &Executor, capacity: u64, mut rng: Rng, hits: &Arc<Hits>) -> Self {
        let base = rng.time(Duration::from_micros(100), Duration::from_millis(8));
        let state = State {
            rng,
            files: BTreeMap::new(),
            capacity: capacity / BLOCK as u64,
            rates: vec![Rates::default()],
            base,
            next: 0,
            under_way: BTreeMap::new(),
            disowned: Vec::new(),
            closed: false,
            bad: None,
            syncs: 0,
            array: None,
        };
        let (executor, hits) = (executor.clone(), hits.clone());
        Store { executor, hits, state: Arc::new(Mutex::new(state)), changed: None }
    }

    /// Makes every operation take `factor` times as long, for good.
    pub fn slow_down(&self, factor: u32) {
        self.state.lock().base *= factor;
    }

    /// Carries out one write after another from now on. Each takes `each`, and a hundredth of that for each of its
    /// blocks.
    pub fn set_array(&self, each: Option<Duration>) {
        self.state.lock().array = each.map(|each| (each, Duration::ZERO));
    }

    /// Divides the store into volumes, none of which misbehaves.
    pub fn divide(&self, volumes: usize) {
        self.state.lock().rates = vec![Rates::default(); volumes];
    }

    /// Returns the number of volumes.
    pub fn volumes(&self) -> usize {
        self.state.lock().rates.len()
    }

    /// Sets the rates at which all volumes misbehave from now on.
    pub fn set_rates(&self, rates: Rates) {
        self.state.lock().rates.fill(rates);
    }

    /// Sets the rates at which one volume misbehaves from now on.
    pub fn set_rates_of(&self, volume: usize, rates: Rates) {
        self.state.lock().rates[volume] = rates;
    }

    /// Sets the blocks that cannot be written from now on.
    pub fn set_bad(&self, bad: Option<BadRange>) {
        self.state.lock().bad = bad;
    }

    /// Ends all stuck operations.
    pub fn unstick(&self) {
        self.state.lock().rates.iter_mut().for_each(|rates| rates.stuck = None);
    }

    /// Sets the capacity to `free` bytes more than are in use.
    pub fn set_free(&self, free: u64) {
        let mut state = self.state.lock();
        state.capacity = state.used() + free / BLOCK as u64;
    }

    /// Closes the store, or opens it. No task may send a request to a closed store.
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

    /// Sets the modification time, durably, like an administrator.
    pub fn touch(&self, object: &Key, mtime: Time) {
        if let Some(file) = self.state.lock().files.get_mut(object) {
            file.durable.mtime = mtime;
            file.current.mtime = mtime;
            file.pending.retain(|(_, change)| !matches!(change, Change::Mtime(_)));
        }
    }

    /// Sets the modification time of a written file, as the kernel does. The time is not durable.
    pub fn stamp(&self, object: &Key, mtime: Time) {
        let mut state = self.state.lock();
        let number = state.number();
        if let Some(file) = state.files.get_mut(object) {
            file.change(number, Change::Mtime(mtime));
        }
    }

    /// Returns the present size of the file.
    pub fn size_of(&self, object: &Key) -> u64 {
        self.state.lock().files.get(object).map_or(0, |file| file.current.size)
    }

    /// Returns the number of requested syncs so far, each of any number of files.
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    /// Returns the store as an engine sees it beside users who sync the same files: a sync fails as well if a sync by
    /// any user has failed since the engine's first change that it covers. The vfs promises that.
    pub fn for_engine(&self) -> Self {
        Store { changed: Some(Arc::default()), ..self.clone() }
    }

    /// Returns the number of failed syncs of the file so far.
    pub fn failures(&self, object: &Key) -> u64 {
        self.state.lock().files.get(object).map_or(0, |file| file.failures)
    }

    /// Returns the contents that a reader of the directory sees.
    pub fn current(&self, object: &Key) -> Option<Content> {
        self.state.lock().files.get(object).map(|file| file.current.clone())
    }

    /// Returns the contents that would be left if every unsynced change were lost.
    pub fn durable(&self, object: &Key) -> Option<Content> {
        self.state.lock().files.get(object).map(|file| file.durable.clone())
    }

    /// Kills the process: writes in flight end somewhere, and the page cache stays.
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

    /// Makes everything in the page cache durable, except pages that failed syncs have lost.
    pub fn write_back(&self) {
        for file in self.state.lock().files.values_mut() {
            for (_, change) in std::mem::take(&mut file.pending) {
                File::apply(&mut file.durable, &change);
            }
        }
    }

    /// Cuts the power: see the fault model.
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
}

impl Store {
    /// Forgets changes of one file that no sync has covered, as a server does that is killed. The store goes on.
    pub fn lose_unsynced(&self, object: &Key) {
        let mut state = self.state.lock();
        let State { rng, files, .. } = &mut *state;
        if let Some(file) = files.get_mut(object)
            && file.cut(rng)
        {
            self.hits.hit(Fault::BackingCut);
        }
    }
}

impl State {
    /// Returns true if a write of these blocks, or a sync of them, fails.
    fn is_bad(&self, object: &Key, blocks: Range<u64>, in_sync: bool) -> bool {
        let of = |bad: &&BadRange| bad.object == *object && bad.in_sync == in_sync;
        let bad = self.bad.as_ref().filter(of);
        bad.is_some_and(|bad| bad.blocks.start < blocks.end && blocks.start < bad.blocks.end)
    }

    /// Returns true if a read of these blocks fails.
    fn is_unreadable(&self, object: &Key, blocks: Range<u64>) -> bool {
        self.bad.as_ref().is_some_and(|bad| bad.in_reads) && self.is_bad(object, blocks, false)
    }

    /// Returns true if a sync of the file fails for a page that is not durable.
    fn has_bad_pages(&self, object: &Key) -> bool {
        let file = self.files.get(object);
        let mut changes = file.into_iter().flat_map(|file| &file.pending);
        changes.any(|(_, change)| match change {
            Change::Page(block, _) => self.is_bad(object, *block..block + 1, true),
            _ => false,
        })
    }

    fn volume(&self, object: &Key) -> usize {
        usize::from(object.as_bytes()[0]) % self.rates.len()
    }

    fn rates(&self, object: &Key) -> &Rates {
        &self.rates[self.volume(object)]
    }

    fn used(&self) -> u64 {
        self.files.values().map(|file| file.current.allocated()).sum()
    }

    /// Returns the time that the file system sets on a file by itself. The engine's times must replace it.
    fn wall(&self, executor: &Executor) -> Time {
        Time { sec: 4_000_000_000 + executor.time().as_secs() as i64, nsec: executor.time().subsec_nanos() }
    }

    /// Returns the number of bytes that an interrupted write wrote: all, or up to a block's end.
    fn part(&mut self, offset: u64, len: usize) -> usize {
        let end = offset + self.rng.below(len as u64 + BLOCK as u64);
        let block_end = end / BLOCK as u64 * BLOCK as u64;
        if end >= offset + len as u64 { len } else { block_end.saturating_sub(offset) as usize }
    }

    /// Returns the number of a new change or write. Numbers grow, so that a sync covers those up to a mark.
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns the number of bytes of a write that have room, if not all have.
    fn room(&self, object: &Key, offset: u64, len: usize) -> Option<(usize, BackingError)> {
        let file = self.files.get(object)?;
        let over_quota = self.rates(object).over_quota;
        let free = if over_quota { 0 } else { self.capacity.saturating_sub(self.used()) };
        let blocks = offset / BLOCK as u64..(offset + len as u64).div_ceil(BLOCK as u64);
        let first = blocks.filter(|block| !file.current.has(*block)).nth(free as usize)?;
        let error = if over_quota { BackingError::Quota } else { BackingError::NoSpace };
        Some(((first * BLOCK as u64).saturating_sub(offset) as usize, error))
    }

    /// Panics if a write in progress overlaps this range of the file. The order of two such writes is undefined, so
    /// the engine must never send them.
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
