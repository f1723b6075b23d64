//! The backing store in memory: files whose changes are durable after a sync.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_engine::buffer::{Buffer, Slice};
use forebay_engine::io::{Backing, BackingResult, Disowned, Io, Key, Time};

use crate::disk::carry_out;

/// A file: its contents now, and the contents that certainly survive a power cut.
#[derive(Clone, Debug, Default)]
pub struct File {
    /// Contents.
    pub now: Vec<u8>,
    /// Contents at the last sync.
    pub synced: Vec<u8>,
}

/// Files by key. A file exists as soon as a caller asks for it.
pub type Files = BTreeMap<Key, File>;

/// The backing store.
#[derive(Clone)]
pub struct Store {
    state: Arc<Mutex<State>>,
    quick: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    files: Files,
    under_way: Vec<(Key, Range<u64>)>,
}

impl Store {
    /// Makes a store that holds `files`.
    pub fn new(files: Files, quick: &Arc<AtomicBool>) -> Self {
        let state = State { files, under_way: Vec::new() };
        Store { state: Arc::new(Mutex::new(state)), quick: quick.clone() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all files.
    pub fn files(&self) -> Files {
        self.state().files.clone()
    }

    /// Has another thread carry out an action on the files. While the store is quick, this thread does so at once.
    fn run<T: Send + 'static>(&self, action: impl FnOnce(&mut State) -> T + Send + 'static) -> Io<T> {
        let store = self.clone();
        carry_out(self.quick.load(Relaxed), move || action(&mut store.state()))
    }

    /// Runs `action` on one file.
    fn with<T: Send + 'static>(
        &self,
        object: &Key,
        action: impl FnOnce(&mut File) -> T + Send + 'static,
    ) -> Io<T> {
        let key = object.clone();
        self.run(move |state| action(state.files.entry(key).or_default()))
    }
}

impl Backing for Store {
    fn volumes(&self) -> Vec<u32> {
        vec![0]
    }

    fn volume(&self, _: &Key) -> u32 {
        0
    }

    fn name(&self, _: u32) -> String {
        "store".to_owned()
    }

    fn size(&self, object: &Key) -> Io<BackingResult<u64>> {
        self.with(object, |file| Ok(file.now.len() as u64))
    }

    fn read(&self, object: &Key, offset: u64, mut buffer: Buffer) -> Io<(Buffer, BackingResult<usize>)> {
        self.with(object, move |file| {
            let there = file.now.get(offset as usize..).unwrap_or_default();
            let len = there.len().min(buffer.len());
            buffer[..len].copy_from_slice(&there[..len]);
            (buffer, Ok(len))
        })
    }

    fn write(&self, object: &Key, offset: u64, data: Slice) -> Io<BackingResult<()>> {
        let range = offset..offset + data.len() as u64;
        let mark = (object.clone(), range.clone());
        let overlaps = |(key, other): &(Key, Range<u64>)| {
            key == object && other.start < range.end && range.start < other.end
        };
        {
            let mut state = self.state();
            assert!(!state.under_way.iter().any(overlaps), "two writes of {range:?} at once");
            state.under_way.push(mark.clone());
        }
        self.run(move |state| {
            state.under_way.retain(|other| *other != mark);
            let (key, range) = mark;
            let file = &mut state.files.entry(key).or_default().now;
            file.resize(file.len().max(range.end as usize), 0);
            file[range.start as usize..range.end as usize].copy_from_slice(&data);
            Ok(())
        })
    }

    fn truncate(&self, object: &Key, size: u64) -> Io<BackingResult<()>> {
        self.with(object, move |file| {
            file.now.resize(size as usize, 0);
            Ok(())
        })
    }

    fn set_mtime(&self, object: &Key, _: Time) -> Io<BackingResult<()>> {
        self.with(object, |_| Ok(()))
    }

    fn sync(&self, objects: Vec<Key>) -> Io<Vec<BackingResult<()>>> {
        self.run(move |state| {
            let sync = |key| {
                let file = state.files.entry(key).or_default();
                file.synced.clone_from(&file.now);
                Ok(())
            };
            objects.into_iter().map(sync).collect()
        })
    }

    fn free(&self) -> Io<BackingResult<u64>> {
        self.run(|_| Ok(1 << 40))
    }

    fn disown(&self, _: u128, _: &Key, _: Disowned) -> Io<BackingResult<()>> {
        self.run(|_| Ok(()))
    }

    fn disowned(&self, _: u128) -> Io<BackingResult<Vec<(Key, Disowned)>>> {
        self.run(|_| Ok(Vec::new()))
    }

    fn forget_disowned(&self, _: u128) -> Io<BackingResult<()>> {
        self.run(|_| Ok(()))
    }
}
