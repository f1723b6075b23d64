//! The attribute cache: attributes and access verdicts of inodes that are not open, so that a request for them takes no
//! descriptor and no system call into the backing store.
//!
//! Invariants:
//! - An entry is what clients see now. A change of an inode, through this server ([`crate::caches::versions`]) or
//!   external ([`crate::coherence::watch`]), removes the entry before the change can be seen. No entry is added that
//!   was read before the change.
//! - Each part holds a fixed number of inodes. When a part is full, a new inode takes the place of an old one.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::AtomicU64;

use self::record::{CachedAttr, Record};
use crate::sys::KernelHandle;
use forebay_common::lock::Mutex;
use hashbrown::HashTable;

pub(crate) mod record;

/// The bytes that an inode takes: the record, its place in a queue, in the index and among those given up, and a ghost.
pub(crate) const COST: usize = size_of::<Record>() + 2 * size_of::<u32>() + 10 + 2 + size_of::<u32>();

/// More uses than this count no more.
const USES: u8 = 3;
/// When a part is full, inodes asked for once leave first if they are more than one in this number.
const NEW_SHARE: usize = 10;
/// The number of inodes that are examined before one has to leave in any case.
const STEPS: usize = 64;
const PARTS: usize = 64;

/// Some of the inodes: S3-FIFO (Yang et al., SOSP 2023), so that a walk over all files displaces nothing that is asked
/// for again and again.
#[derive(Default)]
struct Part {
    index: HashTable<u32>,
    records: Vec<Record>,
    /// Places of inodes that no request has asked for since they came, in the order of their arrival.
    new: VecDeque<u32>,
    proven: VecDeque<u32>,
    /// The number of places in the queues whose inodes were forgotten since.
    forgotten: usize,
    /// Places in no queue.
    free: Vec<u32>,
    /// Hashes of inodes that have left the queue of new ones, each in the place it leads to.
    ghosts: Vec<u32>,
}

/// The known inodes of all file systems.
pub struct AttrCache {
    parts: Box<[Mutex<Part>]>,
    /// Inodes that a part has room for.
    room: usize,
    hasher: foldhash::fast::RandomState,
    /// The number of GETATTR, LOOKUP and ACCESS requests for inodes that are not open and were answered from here.
    /// `misses` counts the requests that were not.
    pub hits: AtomicU64,
    /// See [`AttrCache::hits`].
    pub misses: AtomicU64,
}

impl std::fmt::Debug for AttrCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AttrCache({})", self.len())
    }
}

impl AttrCache {
    /// Creates a cache with room for as many inodes as fit into `limit` bytes.
    pub(crate) fn new(limit: usize) -> Self {
        AttrCache {
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            room: (limit / COST / PARTS).min(u32::MAX as usize),
            hasher: Default::default(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Returns true if the cache has room for any inode.
    pub(crate) fn has_room(&self) -> bool {
        self.room > 0
    }

    /// Returns the hash of an inode of a file system.
    fn hash(&self, filesystem: u16, kernel: &KernelHandle) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u16(filesystem);
        hasher.write(kernel.as_slice());
        hasher.finish()
    }

    /// Returns the cached facts about an inode. The caller has checked for external changes first.
    pub(crate) fn get(&self, filesystem: u16, kernel: &KernelHandle) -> Option<CachedAttr> {
        let hash = self.hash(filesystem, kernel);
        let mut part = self.part(hash).lock();
        let Part { index, records, .. } = &mut *part;
        let found = index.find(hash, |at| records[*at as usize].is(filesystem, kernel)).copied();
        let record = found.and_then(|at| records.get_mut(at as usize));
        let record = record?;
        record.uses = USES.min(record.uses + 1);
        Some(record.known())
    }

    /// Puts an inode in, unless `holds` says no: asked under the lock that [`AttrCache::forget`] takes.
    pub(crate) fn learn(
        &self,
        filesystem: u16,
        kernel: &KernelHandle,
        known: CachedAttr,
        holds: impl FnOnce() -> bool,
    ) {
        let hash = self.hash(filesystem, kernel);
        let mut part = self.part(hash).lock();
        if !holds() || self.room == 0 {
            return;
        }
        match Record::pack(filesystem, kernel, known) {
            Some(record) => {
                part.put(hash, record, self.room, |record| self.hash(record.filesystem, &record.kernel()))
            }
            None => part.forget(hash, filesystem, kernel),
        }
    }

    /// Forgets an inode that is about to change, or has changed.
    pub(crate) fn forget(&self, filesystem: u16, kernel: &KernelHandle) {
        let hash = self.hash(filesystem, kernel);
        self.part(hash).lock().forget(hash, filesystem, kernel);
    }

    /// Forgets all inodes, since any of them may have changed.
    pub(crate) fn clear(&self) {
        for part in &self.parts {
            *part.lock() = Part::default();
        }
    }

    /// Asserts the invariants of all parts.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        self.parts.iter().for_each(|part| part.lock().check(self.room));
    }

    fn part(&self, hash: u64) -> &Mutex<Part> {
        // The index uses the other bits.
        &self.parts[(hash >> 32) as usize % PARTS]
    }

    /// Inodes known.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.lock().index.len()).sum()
    }

    /// Returns true if no inode is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that the cached inodes take.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.lock().bytes()).sum()
    }
}

impl Part {
    fn put(&mut self, hash: u64, mut record: Record, room: usize, hash_of: impl Fn(&Record) -> u64) {
        let (filesystem, kernel) = (record.filesystem, record.kernel());
        if let Some(at) = self.index.find(hash, |at| self.records[*at as usize].is(filesystem, &kernel)) {
            let place = &mut self.records[*at as usize];
            record.take_over(place);
            *place = record;
            return;
        }
        let Some(at) = self.place(room, &hash_of) else { return };
        match self.records.get_mut(at as usize) {
            Some(place) => *place = record,
            None => self.records.push(record),
        }
        let known = self.ghosts.get(hash as usize % room).is_some_and(|ghost| *ghost == ghost_of(hash));
        if known { &mut self.proven } else { &mut self.new }.push_back(at);
        let records = &self.records;
        self.index.insert_unique(hash, at, |at| hash_of(&records[*at as usize]));
    }

    /// Returns a place for another inode: a free one, a new one at the end, or the place of an inode that has to leave.
    fn place(&mut self, room: usize, hash_of: impl Fn(&Record) -> u64) -> Option<u32> {
        if let Some(at) = self.free.pop() {
            return Some(at);
        }
        if self.records.len() >= room {
            return self.evict(room, hash_of);
        }
        if self.records.len() == self.records.capacity() {
            // In steps, not by doubling: the memory is bounded.
            self.records.reserve_exact((self.records.len() / 8).max(16));
        }
        Some(self.records.len() as u32)
    }

    /// Takes one out and returns its place.
    fn evict(&mut self, room: usize, hash_of: impl Fn(&Record) -> u64) -> Option<u32> {
        for step in 0.. {
            let from_new = self.new.len() > room / NEW_SHARE || self.proven.is_empty();
            let at = if from_new { self.new.pop_front() } else { self.proven.pop_front() }?;
            let record = &mut self.records[at as usize];
            if record.len == 0 {
                self.forgotten -= 1;
                return Some(at);
            }
            if record.uses > 0 && step < STEPS {
                record.uses = if from_new { 0 } else { record.uses - 1 };
                self.proven.push_back(at);
                continue;
            }
            let hash = hash_of(record);
            if let Ok(entry) = self.index.find_entry(hash, |other| *other == at) {
                entry.remove();
            }
            if from_new {
                self.ghosts.resize(room, 0);
                self.ghosts[hash as usize % room] = ghost_of(hash);
            }
            return Some(at);
        }
        None
    }

    /// Forgets an inode. Its place stays in its queue until its turn comes, or until a quarter of all places are
    /// forgotten ones.
    fn forget(&mut self, hash: u64, filesystem: u16, kernel: &KernelHandle) {
        let records = &mut self.records;
        let found = self.index.find_entry(hash, |at| records[*at as usize].is(filesystem, kernel));
        if let Ok(entry) = found {
            let (at, _) = entry.remove();
            self.records[at as usize].len = 0;
            self.forgotten += 1;
        }
        if self.forgotten > self.records.len() / 4 {
            let Part { new, proven, records, free, .. } = self;
            for queue in [new, proven] {
                queue.retain(|at| {
                    let used = records[*at as usize].len > 0;
                    free.extend((!used).then_some(*at));
                    used
                });
            }
            self.forgotten = 0;
        }
    }

    /// Asserts the invariants of a part with this much room: each place is in one queue, or free, and the index leads
    /// to exactly the places that are used.
    #[cfg(test)]
    fn check(&self, room: usize) {
        assert!(self.records.len() <= room, "a part holds a fixed number of inodes");
        let mut places: Vec<_> = self.new.iter().chain(&self.proven).chain(&self.free).copied().collect();
        places.sort_unstable();
        assert_eq!(places, (0..self.records.len() as u32).collect::<Vec<_>>());
        let mut indexed: Vec<_> = self.index.iter().copied().collect();
        indexed.sort_unstable();
        let mut used: Vec<_> = self.new.iter().chain(&self.proven).copied().collect();
        used.retain(|at| self.records[*at as usize].len > 0);
        used.sort_unstable();
        assert_eq!(used, indexed);
        assert_eq!(self.forgotten, self.new.len() + self.proven.len() - used.len());
    }

    fn bytes(&self) -> usize {
        let queues = self.new.capacity() + self.proven.capacity();
        let places = queues + self.ghosts.capacity() + self.free.capacity();
        self.records.capacity() * size_of::<Record>()
            + places * size_of::<u32>()
            + self.index.allocation_size()
    }
}

/// Returns the number by which a ghost is recognised; never 0.
fn ghost_of(hash: u64) -> u32 {
    (hash >> 32) as u32 | 1
}

#[cfg(test)]
mod tests;
