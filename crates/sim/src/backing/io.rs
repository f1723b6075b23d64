//! The operations of the store, and the faults of each.

use std::time::Duration;

use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{Backing, BackingError, BackingResult, Clock as _, Disowned, Io, Key, Time};

use super::file::Change;
use super::{Rates, State, Store, Stuck, Write};
use crate::hits::Fault;

pub(super) const EIO: i32 = 5;

impl Store {
    /// Counts the start of an operation and draws its duration: `factor` tenths of the usual time, or up to a minute
    /// if the volume hangs. Returns `None` after a crash.
    fn begin(&self, state: &mut State, volume: usize, factor: u32) -> Option<Duration> {
        assert!(
            !state.closed,
            "the backing store is asked while it may have to be brought to where notes say it is"
        );
        if !self.executor.step() {
            return None;
        }
        let Rates { hang, slow, .. } = state.rates[volume];
        if state.rng.chance(hang) {
            self.hits.hit(Fault::Hang);
            return Some(state.rng.time(Duration::from_secs(2), Duration::from_secs(60)));
        }
        let base = state.base * factor * slow.max(1) / 10;
        Some(state.rng.time(base / 2, base * 2))
    }

    /// Runs `action` as the completion of an operation on a volume that takes `factor` tenths of the usual time.
    fn operation<T: Send + 'static>(
        &self,
        volume: usize,
        factor: u32,
        action: impl FnOnce(&Store, &mut State) -> T + Send + 'static,
    ) -> Io<T> {
        let time = self.begin(&mut self.state.lock(), volume, factor);
        let Some(time) = time else { return self.executor.never() };
        let store = self.clone();
        self.executor
            .after(time, move || store.executor.step().then(|| action(&store, &mut store.state.lock())))
    }

    /// Runs `action` as the completion of an operation that changes the state that a crash leaves.
    fn change<T: Send + 'static>(
        &self,
        volume: usize,
        factor: u32,
        action: impl FnOnce(&Store, &mut State) -> T + Send + 'static,
    ) -> Io<T> {
        self.operation(volume, factor, move |store, state| {
            store.executor.mark();
            action(store, state)
        })
    }

    /// Runs `action` as the completion of an operation that may get stuck.
    pub(super) fn sticky<T: Send + 'static>(
        &self,
        volume: usize,
        kind: Stuck,
        factor: u32,
        action: impl FnOnce(&Store, &mut State) -> T + Send + 'static,
    ) -> Io<T> {
        let is_stuck = move |store: &Store| store.state.lock().rates[volume].stuck == Some(kind);
        if !is_stuck(self) {
            return self.change(volume, factor, action);
        }
        self.hits.hit(Fault::Stuck);
        let store = self.clone();
        Box::pin(async move {
            while is_stuck(&store) {
                store.executor.sleep(Duration::from_millis(100)).await;
            }
            store.change(volume, factor, action).await
        })
    }

    pub(super) fn volume_of(&self, object: &Key) -> usize {
        self.state.lock().volume(object)
    }

    /// Decides by chance whether an operation on the volume fails with EIO, and counts the fault.
    pub(super) fn fails(&self, state: &mut State, volume: usize) -> bool {
        let error = state.rates[volume].error;
        let fails = state.rng.chance(error);
        if fails {
            self.hits.hit(Fault::BackingError);
        }
        fails
    }

    /// Carries out a write at its end. An I/O error or a lack of space may leave a part of the write, up to a block's
    /// end, in the page cache.
    fn write_now(&self, state: &mut State, number: u64) -> BackingResult<()> {
        let Some(Write { object, offset, data }) = state.under_way.remove(&number) else {
            return Err(BackingError::Gone);
        };
        if !state.files.contains_key(&object) {
            return Err(BackingError::Gone);
        }
        let now = state.wall(&self.executor);
        // The change gets a new number, so a sync that began during the operation does not cover it.
        let number = state.number();
        let mut result = Ok(());
        let mut len = data.len();
        let volume = state.volume(&object);
        let blocks = offset / BLOCK as u64..(offset + len as u64).div_ceil(BLOCK as u64);
        if self.fails(state, volume) || state.is_bad(&object, blocks, false) {
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

    /// Notes the number of failed syncs before a change of a file by the engine.
    fn changes(&self, object: &Key) {
        if let Some(changed) = &self.changed {
            let failures = self.failures(object);
            changed.lock().entry(object.clone()).or_insert(failures);
        }
    }

    /// Syncs each file up to the change with number `mark`, and returns one result for each file. A sync fails by
    /// chance, or because of a block that cannot be written.
    fn sync_now(&self, state: &mut State, objects: &[Key], mark: u64) -> Vec<BackingResult<()>> {
        let bad: Vec<bool> = objects.iter().map(|object| state.has_bad_pages(object)).collect();
        let State { rng, files, rates, .. } = state;
        let volumes = rates.len();
        let one = |(object, bad): (&Key, bool)| {
            let chances = rates[usize::from(object.as_bytes()[0]) % volumes].sync_error;
            let file = files.get_mut(object).ok_or(BackingError::Gone)?;
            let fails = bad || !file.pending.is_empty() && rng.chance(chances);
            file.sync(mark, rng, fails);
            if fails {
                file.failures += 1;
                self.hits.hit(Fault::SyncError);
                return Err(BackingError::Io(EIO));
            }
            Ok(())
        };
        objects.iter().zip(bad).map(one).collect()
    }
}

impl Backing for Store {
    fn volumes(&self) -> Vec<u32> {
        (0..Store::volumes(self) as u32).collect()
    }

    fn volume(&self, object: &Key) -> u32 {
        self.volume_of(object) as u32
    }

    fn name(&self, volume: u32) -> String {
        format!("volume {volume}")
    }

    fn size(&self, object: &Key) -> Io<BackingResult<u64>> {
        let (object, volume) = (object.clone(), self.volume_of(object));
        self.operation(volume, 1, move |store, state| {
            if store.fails(state, volume) {
                return Err(BackingError::Io(EIO));
            }
            state.files.get(&object).map(|file| file.current.size).ok_or(BackingError::Gone)
        })
    }

    fn read(&self, object: &Key, offset: u64, mut buffer: Buffer) -> Io<(Buffer, BackingResult<usize>)> {
        let (object, volume) = (object.clone(), self.volume_of(object));
        let blocks = offset / BLOCK as u64..(offset + buffer.len() as u64).div_ceil(BLOCK as u64);
        self.operation(volume, 10, move |store, state| {
            if store.fails(state, volume) || state.is_unreadable(&object, blocks) {
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
        self.changes(object);
        let mut state = self.state.lock();
        state.assert_apart(object, &(offset..offset + data.len() as u64));
        let number = state.number();
        self.executor.note(offset ^ forebay_engine::format::content_hash(&data));
        let now = self.executor.time();
        let turn = state.array.as_mut().map(|(each, free)| {
            *free = now.max(*free) + *each + *each / 100 * (data.len() / BLOCK) as u32;
            *free - now
        });
        state.under_way.insert(number, Write { object: object.clone(), offset, data });
        let volume = state.volume(object);
        drop(state);
        let write = move |store: &Store| {
            store.sticky(volume, Stuck::Write, 2, move |store, state| store.write_now(state, number))
        };
        let store = self.clone();
        let writing: Io<_> = match turn {
            Some(turn) => Box::pin(async move {
                store.executor.sleep(turn).await;
                write(&store).await
            }),
            None => write(self),
        };
        // A part of the write may be there from now on.
        self.executor.mark();
        writing
    }

    fn truncate(&self, object: &Key, size: u64) -> Io<BackingResult<()>> {
        self.changes(object);
        let (object, volume) = (object.clone(), self.volume_of(object));
        self.sticky(volume, Stuck::Truncate, 5, move |store, state| {
            let (number, now) = (state.number(), state.wall(&store.executor));
            let fails = store.fails(state, volume);
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
        self.changes(object);
        let (object, volume) = (object.clone(), self.volume_of(object));
        self.change(volume, 1, move |store, state| {
            let (number, fails) = (state.number(), store.fails(state, volume));
            let file = state.files.get_mut(&object).ok_or(BackingError::Gone)?;
            if fails {
                return Err(BackingError::Io(EIO));
            }
            file.change(number, Change::Mtime(mtime));
            Ok(())
        })
    }

    fn sync(&self, objects: Vec<Key>) -> Io<Vec<BackingResult<()>>> {
        let mark = {
            let mut state = self.state.lock();
            state.syncs += 1;
            state.next
        };
        let volume = objects.first().map_or(0, |object| self.volume_of(object));
        let changed = self.changed.as_ref();
        let before = |object| changed.and_then(|changed| changed.lock().remove(object));
        let before: Vec<Option<u64>> = objects.iter().map(before).collect();
        self.sticky(volume, Stuck::Sync, 40, move |store, state| {
            let synced = store.sync_now(state, &objects, mark);
            let failed = |object, before: Option<u64>| {
                before
                    .is_some_and(|before| state.files.get(object).is_some_and(|file| file.failures > before))
            };
            let told = objects.iter().zip(before).zip(synced);
            told.map(|((object, before), result)| match failed(object, before) {
                true => result.and(Err(BackingError::Io(EIO))),
                false => result,
            })
            .collect()
        })
    }

    fn free(&self) -> Io<BackingResult<u64>> {
        self.operation(0, 1, |store, state| {
            if store.fails(state, 0) {
                return Err(BackingError::Io(EIO));
            }
            Ok(state.capacity.saturating_sub(state.used()) * BLOCK as u64)
        })
    }

    fn disown(&self, _: u128, object: &Key, what: Disowned) -> Io<BackingResult<()>> {
        let object = object.clone();
        self.change(0, 40, move |store, state| {
            if store.fails(state, 0) {
                return Err(BackingError::Io(EIO));
            }
            state.disowned.push((object, what));
            store.hits.hit(Fault::Disowned);
            Ok(())
        })
    }

    fn disowned(&self, _: u128) -> Io<BackingResult<Vec<(Key, Disowned)>>> {
        self.operation(0, 1, |_, state| Ok(state.disowned.clone()))
    }

    fn forget_disowned(&self, _: u128) -> Io<BackingResult<()>> {
        self.change(0, 40, |_, state| {
            state.disowned.clear();
            Ok(())
        })
    }
}
