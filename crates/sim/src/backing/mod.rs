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
//! - Operations hang for up to a minute, or for as long as somebody says. Objects are removed at any time.
//! - There are several volumes; each fails and hangs by itself. An object's key begins with its volume's number, modulo
//!   their count.

pub(crate) mod file;
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
    /// Writes, or syncs, do not end while this is so.
    pub stuck: Option<Stuck>,
}

/// What does not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// Writes.
    Write,
    /// Syncs.
    Sync,
    /// Cuts.
    Truncate,
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
    /// By volume.
    rates: Vec<Rates>,
    base: Duration,
    next: u64,
    under_way: BTreeMap<u64, Write>,
    /// What of the pool does not count, durably.
    disowned: Vec<(Key, Disowned)>,
    /// Whoever asks for anything makes a mistake.
    closed: bool,
    /// How many syncs were asked for.
    syncs: u64,
    /// Time for a write of an array that carries out one after another, and when the last write ends.
    array: Option<(Duration, Duration)>,
}

struct Write {
    object: Key,
    offset: u64,
    data: Slice,
}

impl Store {
    /// An empty store of `capacity` bytes.
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
            syncs: 0,
            array: None,
        };
        Store { executor: executor.clone(), hits: hits.clone(), state: Arc::new(Mutex::new(state)) }
    }

    /// Makes everything take `factor` times as long, for good.
    pub fn slow_down(&self, factor: u32) {
        self.state.lock().base *= factor;
    }

    /// Carries out one write after another from now on: each takes `each`, and a hundredth of that for each of its blocks.
    pub fn set_array(&self, each: Option<Duration>) {
        self.state.lock().array = each.map(|each| (each, Duration::ZERO));
    }

    /// Divides it into volumes, none of which misbehaves.
    pub fn divide(&self, volumes: usize) {
        self.state.lock().rates = vec![Rates::default(); volumes];
    }

    /// How many volumes there are.
    pub fn volumes(&self) -> usize {
        self.state.lock().rates.len()
    }

    /// How all of it misbehaves from now on.
    pub fn set_rates(&self, rates: Rates) {
        self.state.lock().rates.fill(rates);
    }

    /// How one volume misbehaves from now on.
    pub fn set_rates_of(&self, volume: usize, rates: Rates) {
        self.state.lock().rates[volume] = rates;
    }

    /// Everything answers again.
    pub fn unstick(&self) {
        self.state.lock().rates.iter_mut().for_each(|rates| rates.stuck = None);
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

    /// The kernel sets the modification time of a file that was written; not durable.
    pub fn stamp(&self, object: &Key, mtime: Time) {
        let mut state = self.state.lock();
        let number = state.number();
        if let Some(file) = state.files.get_mut(object) {
            file.change(number, Change::Mtime(mtime));
        }
    }

    /// How large the file is now.
    pub fn size_of(&self, object: &Key) -> u64 {
        self.state.lock().files.get(object).map_or(0, |file| file.current.size)
    }

    /// How many syncs were asked for so far, each of any number of files.
    pub fn syncs(&self) -> u64 {
        self.state.lock().syncs
    }

    /// How many syncs of the file have failed so far.
    pub fn failures(&self, object: &Key) -> u64 {
        self.state.lock().files.get(object).map_or(0, |file| file.failures)
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
}

impl State {
    fn volume(&self, object: &Key) -> usize {
        usize::from(object.as_bytes()[0]) % self.rates.len()
    }

    fn rates(&self, object: &Key) -> &Rates {
        &self.rates[self.volume(object)]
    }

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
        let over_quota = self.rates(object).over_quota;
        let free = if over_quota { 0 } else { self.capacity.saturating_sub(self.used()) };
        let blocks = offset / BLOCK as u64..(offset + len as u64).div_ceil(BLOCK as u64);
        let first = blocks.filter(|block| !file.current.has(*block)).nth(free as usize)?;
        let error = if over_quota { BackingError::Quota } else { BackingError::NoSpace };
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
