//! The backing files of a world, and the right to change them. As in the server, a client that truncates a file holds
//! the file exclusively.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_engine::CachedObject;
use forebay_engine::buffer::BLOCK;
use forebay_engine::io::{Key, Time};

use crate::backing::Store;
use crate::content::Content;
use crate::model::Model;
use crate::rng::Rng;
use crate::stamp::{Place, fill};

/// A backing file.
struct Entry {
    key: Key,
    object: Option<Arc<CachedObject>>,
    writers: u32,
    exclusive: bool,
}

/// Every object, by the world's numbers.
#[derive(Default)]
pub struct Objects {
    entries: BTreeMap<u8, Entry>,
    made: u8,
}

impl Objects {
    /// Makes an object with contents of its own. Returns `None` once 200 objects have been made.
    pub fn create(&mut self, rng: &mut Rng, extent: u64, store: &Store, model: &mut Model) -> Option<u8> {
        if self.made >= 200 {
            return None;
        }
        self.made += 1;
        let number = self.made;
        let most = rng.pick(&[0, 1, 100, extent / 2, extent]);
        let size = rng.within(0, most);
        let mut key = vec![number; rng.within(1, 64) as usize];
        key[0] = number;
        let key = Key::new(&key)?;
        let generation = model.number();
        let time = Time { sec: i64::from(number), nsec: 1 };
        let mut content = Content::default();
        content.mtime = time;
        content.resize(size);
        for block in 0..size.div_ceil(BLOCK as u64) {
            let mut page = [0; BLOCK];
            fill(&mut page, 0, generation, Place { object: number, block });
            content.put(block, Arc::new(page));
        }
        store.create(&key, content);
        model.create(number, size, generation, time);
        self.entries.insert(number, Entry { key, object: None, writers: 0, exclusive: false });
        Some(number)
    }

    /// Returns every object's number.
    pub fn numbers(&self) -> Vec<u8> {
        self.entries.keys().copied().collect()
    }

    /// Returns the object's key.
    pub fn key(&self, number: u8) -> Option<Key> {
        self.entries.get(&number).map(|entry| entry.key.clone())
    }

    /// Returns the engine's object.
    pub fn object(&self, number: u8) -> Option<Arc<CachedObject>> {
        self.entries.get(&number)?.object.clone()
    }

    /// Sets the object of a new engine.
    pub fn opened(&mut self, number: u8, object: Arc<CachedObject>) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.object = Some(object);
        }
    }

    /// Forgets all engine objects and claims, after a crash or a close: no task runs any more.
    pub fn reset(&mut self) {
        for entry in self.entries.values_mut() {
            (entry.object, entry.writers, entry.exclusive) = (None, 0, false);
        }
    }

    /// Claims the object for a write, unless another task holds it exclusively. Returns true on success.
    pub fn share(&mut self, number: u8) -> bool {
        let free = |entry: &&mut Entry| !entry.exclusive;
        self.entries.get_mut(&number).filter(free).map(|entry| entry.writers += 1).is_some()
    }

    /// Returns the number of writes in progress on the object.
    pub fn writers(&self, number: u8) -> u32 {
        self.entries.get(&number).map_or(0, |entry| entry.writers)
    }

    /// Claims the object exclusively. Returns true on success.
    pub fn claim(&mut self, number: u8) -> bool {
        let free = |entry: &&mut Entry| !entry.exclusive && entry.writers == 0;
        self.entries.get_mut(&number).filter(free).map(|entry| entry.exclusive = true).is_some()
    }

    /// Returns true if a task holds the object exclusively.
    pub fn is_claimed(&self, number: u8) -> bool {
        self.entries.get(&number).is_some_and(|entry| entry.exclusive)
    }

    /// Releases the object after [`Objects::share`] or [`Objects::claim`].
    pub fn release(&mut self, number: u8) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.exclusive = false;
            entry.writers = entry.writers.saturating_sub(1);
        }
    }

    /// Forgets the object.
    pub fn remove(&mut self, number: u8) -> Option<(Key, Arc<CachedObject>)> {
        let entry = self.entries.remove(&number)?;
        Some((entry.key, entry.object?))
    }
}
