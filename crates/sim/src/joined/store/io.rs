//! The contents of the virtual file system, as the engine reads and writes them.

use std::ops::Range;

use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{Backing, BackingResult, Disowned, Io, Key, Time};

use super::{State, Store, Write};
use crate::backing::UNFIT;
use crate::backing::file::Change;

impl Store {
    /// Fills bytes with zeros, and frees the space of whole blocks.
    pub(in crate::joined) fn punch(&self, object: &Key, range: Range<u64>) -> Io<BackingResult<()>> {
        self.on_file(10, object, move |state, inner| {
            let number = state.number();
            state.file(inner).punch(number, &range, Time::default());
        })
    }

    /// Gives a file the blocks of `range` of the source, from `offset` on. Passes their contents to `taken`.
    pub(in crate::joined) fn share(
        &self,
        source: &Key,
        range: Range<u64>,
        target: &Key,
        offset: u64,
        taken: impl FnOnce(&[u8]) + Send + 'static,
    ) -> Io<BackingResult<()>> {
        let source = source.clone();
        let sharing = self.on_file(10, target, move |state, inner| {
            let from = state.find(&source)?;
            let number = state.number();
            let from = state.file(from);
            if from.current.size < range.end {
                return Err(UNFIT);
            }
            let block = BLOCK as u64;
            let pages: Vec<_> = (range.start / block..range.end / block).map(|at| from.shared(at)).collect();
            let bytes: Vec<u8> =
                pages.iter().flat_map(|page| page.as_ref().map_or([0; BLOCK], |page| **page)).collect();
            let end = offset + bytes.len() as u64;
            state.file(inner).share(number, offset / block, pages, end, Time::default());
            taken(&bytes);
            Ok(())
        });
        Box::pin(async move { sharing.await? })
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
        "the file system".to_owned()
    }

    fn size(&self, object: &Key) -> Io<BackingResult<u64>> {
        self.on_file(1, object, |state, inner| state.file(inner).current.size)
    }

    fn read(&self, object: &Key, offset: u64, buffer: Buffer) -> Io<(Buffer, BackingResult<usize>)> {
        let object = object.clone();
        assert!(!self.lock().closed, "{object:?} is read before names are where the log says they are");
        self.operation(10, move |store, state| {
            let mut buffer = buffer;
            let read = state.find(&object).map(|inner| state.file(inner).current.read(offset, &mut buffer));
            store.executor.note(offset ^ read.unwrap_or(7) as u64);
            (buffer, read)
        })
    }

    fn write(&self, object: &Key, offset: u64, data: Slice) -> Io<BackingResult<()>> {
        let number = {
            let mut state = self.lock();
            let number = state.number();
            state.under_way.insert(number, Write { object: object.clone(), offset, data });
            number
        };
        self.on_file(2, object, move |state, inner| {
            if let Some(Write { offset, data, .. }) = state.under_way.remove(&number) {
                // The write gets a new number, so a sync that began during the write does not cover it.
                let number = state.number();
                state.file(inner).write(number, offset, &data, Time::default());
            }
        })
    }

    fn truncate(&self, object: &Key, size: u64) -> Io<BackingResult<()>> {
        self.on_file(5, object, move |state, inner| {
            let number = state.number();
            state.file(inner).change(number, Change::Size(size));
        })
    }

    fn set_mtime(&self, object: &Key, mtime: Time) -> Io<BackingResult<()>> {
        self.on_file(1, object, move |state, inner| {
            let number = state.number();
            state.file(inner).change(number, Change::Mtime(mtime));
        })
    }

    fn sync(&self, objects: Vec<Key>) -> Io<Vec<BackingResult<()>>> {
        let (mark, harness) = {
            let state = self.lock();
            (state.next, state.harness.clone())
        };
        // As in `vfs`, the harness learns what a sync proves of its changes.
        let proof = harness.upgrade().map(|harness| harness.proof());
        self.committing(40, move |state, committed| {
            if let Some((harness, proof)) = harness.upgrade().zip(proof).filter(|_| committed.is_ok()) {
                harness.proven(proof);
            }
            let mut one = |object| {
                let inner = state.find(object)?;
                committed?;
                let State { rng, files, .. } = &mut *state;
                files.entry(inner).or_default().sync(mark, rng, false);
                Ok(())
            };
            objects.iter().map(&mut one).collect()
        })
    }

    fn free(&self) -> Io<BackingResult<u64>> {
        self.operation(1, |_, _| Ok(1 << 30))
    }

    fn disown(&self, _: u128, _: &Key, _: Disowned) -> Io<BackingResult<()>> {
        unreachable!("a device is left")
    }

    fn disowned(&self, _: u128) -> Io<BackingResult<Vec<(Key, Disowned)>>> {
        self.operation(1, |_, _| Ok(Vec::new()))
    }

    fn forget_disowned(&self, _: u128) -> Io<BackingResult<()>> {
        self.operation(1, |_, _| Ok(()))
    }
}
