//! All objects in the index, by key.

use forebay_common::lock::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use xxhash_rust::xxh3::xxh3_64;

use crate::format::{Body, Record};
use crate::index::object::CachedObject;
use crate::io::Key;
use crate::segments::Segments;
use crate::volume::all::Volumes;
use forebay_common::lock::Mutex;

const SHARDS: usize = 32;

#[derive(Debug, Default)]
struct Shard {
    objects: HashMap<Key, Arc<CachedObject>, FixedState>,
    /// The number of objects at which idle objects are dropped.
    sweep_at: usize,
}

/// The objects of the index, in shards by the hash of the key.
pub(crate) struct Objects {
    pub(crate) volumes: Arc<Volumes>,
    shards: Vec<Mutex<Shard>>,
    next: AtomicU64,
}

impl Objects {
    /// Returns an index without objects.
    pub(crate) fn new(volumes: Arc<Volumes>) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Objects { volumes, shards, next: AtomicU64::new(0) }
    }

    fn shard(&self, key: &Key) -> &Mutex<Shard> {
        &self.shards[xxh3_64(key.as_bytes()) as usize % SHARDS]
    }

    /// Returns the object if it is in the index.
    pub(crate) fn find(&self, key: &Key) -> Option<Arc<CachedObject>> {
        self.shard(key).lock().objects.get(key).cloned()
    }

    /// Returns the object. Adds it to the index if it was not there.
    pub(crate) fn get(&self, key: &Key, segments: &Segments) -> Arc<CachedObject> {
        let mut shard = self.shard(key).lock();
        if let Some(object) = shard.objects.get(key) {
            return object.clone();
        }
        if shard.objects.len() >= shard.sweep_at {
            // An idle object that only this table refers to has no state to lose.
            let in_use = |object: &Arc<CachedObject>| {
                Arc::strong_count(object) > 1 || !object.lock().is_idle(segments)
            };
            shard.objects.retain(|_, object| in_use(object));
            shard.sweep_at = (shard.objects.len() * 2).max(1024);
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let object = Arc::new(CachedObject::new(number, key.clone(), self.volumes.of(key)));
        shard.objects.insert(key.clone(), object.clone());
        object
    }

    /// Removes an object from the index, since its file was removed.
    pub(crate) fn remove(&self, key: &Key) {
        self.shard(key).lock().objects.remove(key);
    }

    /// Returns the blocks that a segment's records name, for objects in the index.
    pub(crate) fn blocks_of(&self, body: &Body) -> Vec<(Arc<CachedObject>, u64)> {
        let known: Vec<_> = body.objects.iter().map(|facts| self.find(&facts.key)).collect();
        let mut blocks = Vec::new();
        for record in &body.records {
            let Record::Data { object, block, checksums, .. } = record else { continue };
            let Some(Some(object)) = known.get(usize::from(*object)) else { continue };
            blocks.extend((*block..).take(checksums.len()).map(|block| (object.clone(), block)));
        }
        blocks
    }

    /// Returns the number of objects in the index.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().objects.len()).sum()
    }

    /// Returns all objects, in the order in which they entered the index.
    pub(crate) fn all(&self) -> Vec<Arc<CachedObject>> {
        let mut all: Vec<_> = self
            .shards
            .iter()
            .flat_map(|shard| shard.lock().objects.values().cloned().collect::<Vec<_>>())
            .collect();
        all.sort_unstable_by_key(|object| object.number);
        all
    }
}
