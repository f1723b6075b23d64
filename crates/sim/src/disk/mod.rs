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

/// How the header of a segment begins.
pub(crate) const HEADER: &[u8] = b"FBYSEGMT";
/// How a frame of the log begins.
pub(crate) const FRAME: &[u8] = b"FBYFRAME";
/// Blocks of the largest frame without its records: its head and as much data as a frame takes.
const FULL_FRAME: usize = 513;

/// The contents of one block.
pub type Page = Arc<[u8; BLOCK]>;

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
    /// It goes away after so many more beginnings and ends of operations.
    vanish_in: Option<u64>,
    held: Held,
    promises: Promises,
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

    /// Goes away after so many more beginnings and ends of operations on it, or not.
    pub fn vanish_in(&self, events: Option<u64>) {
        self.state.lock().vanish_in = events;
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
        state.promises = Promises::default();
    }

    /// Returns this device under another name.
    pub fn renamed(&self, name: &str) -> Disk {
        Disk { name: name.into(), ..self.clone() }
    }

    /// The two devices, of one size, change their names.
    pub fn swap(&self, other: &Disk) {
        std::mem::swap(&mut *self.state.lock(), &mut *other.state.lock());
    }

    /// The magic of an XFS file system is where it should be.
    pub fn make_xfs(&self) {
        let mut page = [0; BLOCK];
        page[..4].copy_from_slice(b"XFSB");
        self.state.lock().stable.insert(0, Arc::new(page));
    }

    /// A hash of all that is on it.
    pub fn contents(&self) -> u64 {
        let state = self.state.lock();
        let blocks: BTreeSet<u64> = state.stable.keys().chain(state.cached.keys()).copied().collect();
        let pages = blocks.into_iter().filter_map(|block| Some((block, state.current(block)?)));
        pages.fold(0, |hash, (block, page)| mix(hash ^ block ^ content_hash(&page[..])))
    }

    /// Both superblocks are zeros, and all else is as it was: somebody has cleared its ends.
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

    /// Flips a bit in the headers of about half the segments, chosen by chance.
    pub fn rot_headers(&self) {
        let mut state = self.state.lock();
        let headers = state.stable.keys().copied().filter(|block| *block > 0 && block % 256 == 0);
        for block in headers.collect::<Vec<_>>() {
            // In larger segments other blocks are in such places, too.
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

    /// The newest frame's first block cannot be read until it is written again.
    pub fn spoil_newest_frame(&self) {
        let mut state = self.state.lock();
        if let Some(block) = state.newest(|page| page.starts_with(FRAME)) {
            state.latent.insert(block, u32::MAX);
        }
    }

    /// The block at byte `offset` cannot be read until it is written again.
    pub fn spoil(&self, offset: u64) {
        self.state.lock().latent.insert(offset / BLOCK as u64, u32::MAX);
    }

    /// Has the machine crash `steps` steps after `headers` more segments were opened.
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
}
