//! A virtual cache device: pristine memory, a volatile cache over it, and faults over both.
//!
//! # Fault model
//!
//! - A write that is not durable yet lives in the volatile cache. Reads see it. A power cut lets any subset of the
//!   cache survive, decided by write, by block, by 512-byte sector, or torn at a byte. Writes in flight count as
//!   cached.
//! - A process kill loses no completed write. Writes in flight may end in part.
//! - A flush covers the writes that completed before it began.
//! - A discard leaves zeros, the old contents or garbage, by block.
//! - All other faults happen only to a device that the world's plan calls a *victim*. Writes are lost or misdirected,
//!   reads misdirected, bits rotten, sectors unreadable for a while or until rewritten. Writes and flushes fail, and a
//!   failed flush may lose the writes that it covered. Flushes do nothing. The device is slow, vanishes, or comes back
//!   stale. Worlds with one victim keep one good copy, so there the engine must lose nothing at all.

mod crash;
mod held;
mod io;
mod promises;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_engine::buffer::{BLOCK, Slice};
use forebay_engine::format::content_hash;

use crate::executor::Executor;
use crate::hits::{Fault, Hits};
use crate::rng::{Rng, mix};
use held::Held;
pub use held::Operation;

use promises::Promises;
pub use promises::first_destroyed;

/// The first bytes of the header of a segment.
pub(crate) const HEADER: &[u8] = b"FBYSEGMT";
/// The first bytes of a frame of the log.
pub(crate) const FRAME: &[u8] = b"FBYFRAME";
/// Blocks of the largest frame without its records: its head, and the most data that a frame takes.
const FULL_FRAME: usize = 513;

/// The contents of one block.
pub type Page = Arc<[u8; BLOCK]>;

/// The rates at which a victim misbehaves: chances in 10,000 for each operation.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// A write that fails.
    pub write_error: u32,
    /// A flush that fails.
    pub flush_error: u32,
    /// A write that is lost though reported done.
    pub lost_write: u32,
    /// A write that goes to a wrong place.
    pub misdirected_write: u32,
    /// A read of another place.
    pub misdirected_read: u32,
    /// For each read: one bit of a block that it reads rots first.
    pub rot: u32,
    /// For each read: a block becomes unreadable for a few reads.
    pub latent_passing: u32,
    /// For each read: a block becomes unreadable until rewritten.
    pub latent_lasting: u32,
    /// For each operation: the device vanishes for good.
    pub vanish: u32,
    /// For each read: the device vanishes for good, so that a reader is the first to notice.
    pub vanish_read: u32,
    /// Flushes and durable writes are only cached.
    pub drop_flushes: bool,
    /// Factor on every latency; 0 and 1 are normal.
    pub slow: u32,
}

/// A virtual device. Clones share their state.
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
    /// The contents that survive everything but faults.
    stable: BTreeMap<u64, Page>,
    /// Completed writes that are not durable, oldest first, with the number of their completion.
    cached: BTreeMap<u64, Vec<(u64, Page)>>,
    completed: u64,
    under_way: BTreeMap<u64, (u64, Slice)>,
    next: u64,
    /// Unreadable blocks, and the number of reads for which each stays unreadable.
    latent: BTreeMap<u64, u32>,
    gone: bool,
    rates: Rates,
    base: Duration,
    /// The number of steps after which the machine crashes, counted from the opening of a number of segments.
    crash_at_header: Option<(u32, u64)>,
    /// The number of further beginnings and ends of operations after which the device vanishes.
    vanish_in: Option<u64>,
    held: Held,
    promises: Promises,
}

impl Disk {
    /// Makes a blank device of `size` bytes.
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
            vanish_in: None,
            held: Held::default(),
            promises: Promises::default(),
        };
        Disk {
            executor: executor.clone(),
            name: name.into(),
            size,
            hits: hits.clone(),
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Sets the rates at which the device misbehaves from now on.
    pub fn set_rates(&self, rates: Rates) {
        if rates.slow > 1 {
            self.hits.hit(Fault::SlowDevice);
        }
        self.state.lock().rates = rates;
    }

    /// Lets the device vanish: every operation fails from now on. Each cached write stays or is lost, as in a power
    /// cut.
    pub fn vanish(&self) {
        self.power_cut();
        self.state.lock().gone = true;
    }

    /// Lets the device vanish after this number of beginnings and ends of operations on it, or not.
    pub fn vanish_in(&self, events: Option<u64>) {
        self.state.lock().vanish_in = events;
    }

    /// Brings the device back, with its contents at the time when it vanished.
    pub fn appear(&self) {
        self.state.lock().gone = false;
    }

    /// Returns true if the device has vanished.
    pub fn is_gone(&self) -> bool {
        self.state.lock().gone
    }

    /// Erases all contents, as if a new device replaced this one.
    pub fn wipe(&self) {
        let mut state = self.state.lock();
        state.stable.clear();
        state.cached.clear();
        state.latent.clear();
        state.promises = Promises::default();
    }

    /// Returns this device under another name.
    pub fn renamed(&self, name: &str) -> Disk {
        Disk { name: name.into(), ..self.clone() }
    }

    /// Swaps the names of two devices of one size.
    pub fn swap(&self, other: &Disk) {
        std::mem::swap(&mut *self.state.lock(), &mut *other.state.lock());
    }

    /// Writes the magic of an XFS file system to its place.
    pub fn make_xfs(&self) {
        let mut page = [0; BLOCK];
        page[..4].copy_from_slice(b"XFSB");
        self.state.lock().stable.insert(0, Arc::new(page));
    }

    /// Returns a hash of the whole contents.
    pub fn contents(&self) -> u64 {
        let state = self.state.lock();
        let blocks: BTreeSet<u64> = state.stable.keys().chain(state.cached.keys()).copied().collect();
        let pages = blocks.into_iter().filter_map(|block| Some((block, state.current(block)?)));
        pages.fold(0, |hash, (block, page)| mix(hash ^ block ^ content_hash(&page[..])))
    }

    /// Zeroes both superblocks and leaves all other contents, like an administrator who clears the ends of the device.
    pub fn forget_pool(&self) {
        let mut state = self.state.lock();
        for block in [0, self.size / BLOCK as u64 - 1] {
            state.stable.remove(&block);
            state.cached.remove(&block);
        }
    }

    /// Flips a bit in `count` blocks that were ever written, chosen by chance.
    pub fn rot(&self, count: usize) {
        let mut state = self.state.lock();
        for _ in 0..count {
            // About half of the hits are at the front of a mebibyte: superblocks, headers of segments, the first
            // frames.
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

    /// Flips a bit in the headers of about half the segments, chosen by chance.
    pub fn rot_headers(&self) {
        let mut state = self.state.lock();
        let headers = state.stable.keys().copied().filter(|block| *block > 0 && block % 256 == 0);
        for block in headers.collect::<Vec<_>>() {
            // In larger segments, blocks other than headers are in such places too.
            let is_header = state.stable.get(&block).is_some_and(|page| page.starts_with(HEADER));
            if state.rng.chance(5000) && is_header {
                state.rot(block);
                self.hits.hit(Fault::HeaderRot);
            }
        }
    }

    /// Flips a bit in the header of the newest segment of the log, if there is one.
    pub fn rot_newest_header(&self) {
        let mut state = self.state.lock();
        if let Some(block) = state.newest(|page| page.starts_with(HEADER) && page[18] == 1) {
            state.rot(block);
            self.hits.hit(Fault::HeaderRot);
        }
    }

    /// Flips a bit in the first block of the newest frame, if there is one.
    pub fn rot_newest_frame(&self) {
        let mut state = self.state.lock();
        if let Some(block) = state.newest(|page| page.starts_with(FRAME)) {
            state.rot(block);
            self.hits.hit(Fault::BitRot);
        }
    }

    /// Makes the newest frame's first block unreadable until it is written again.
    pub fn spoil_newest_frame(&self) {
        let mut state = self.state.lock();
        if let Some(block) = state.newest(|page| page.starts_with(FRAME)) {
            state.latent.insert(block, u32::MAX);
        }
    }

    /// Makes the block at byte `offset` unreadable until it is written again.
    pub fn spoil(&self, offset: u64) {
        self.state.lock().latent.insert(offset / BLOCK as u64, u32::MAX);
    }

    /// Lets the machine crash `steps` steps after `headers` more segments were opened.
    pub fn crash_at_header(&self, crash: Option<(u32, u64)>) {
        self.state.lock().crash_at_header = crash;
    }

    /// Flips a bit of the block at byte `offset`.
    pub fn rot_at(&self, offset: u64) {
        self.state.lock().rot(offset / BLOCK as u64);
    }

    /// Returns the numbers of all blocks that were ever written.
    pub fn written(&self) -> Vec<u64> {
        self.state.lock().stable.keys().copied().collect()
    }
}
