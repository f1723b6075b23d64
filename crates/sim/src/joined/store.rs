//! A virtual file system with names, attributes and contents, behind one page cache.
//!
//! # Fault model
//!
//! - A power cut keeps a first part of the transactions that changed names and attributes: all committed ones, and any
//!   number of those behind them.
//! - Of a file that exists then, a power cut keeps any subset of the blocks written since the last sync, and the
//!   changes of size up to some point (see [`crate::backing`]). Of a file that does not exist then, it keeps nothing.
//! - A sync of a file commits the journal as well. A kill of the process loses nothing.
//! - A commit may take long. Once the journal has failed, no commit succeeds until the file system is mounted again.
//!   That has the effect of a power cut on the file system.
//! - The cache sees an object as removed only after the removal is committed.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_common::lock::{Mutex, MutexGuard};
use forebay_engine::buffer::{BLOCK, Slice};
use forebay_engine::io::{BackingError, BackingResult, Clock as _, Io, Key, Time};
use forebay_oplog::{Identity, Kind};

use super::harness::Harness;
use super::planted_bugs;
use crate::backing::file::File;
use crate::content::Content;
use crate::executor::Executor;
use crate::namespace::volume::{State as Names, Volume};
use crate::rng::Rng;

mod io;

/// The file system. Clones share their state.
#[derive(Clone)]
pub(super) struct Store {
    executor: Executor,
    state: Arc<Mutex<State>>,
}

/// The contents of the file system.
pub(super) struct State {
    rng: Rng,
    /// The present names and attributes, with each transaction since the last commit.
    pub(super) volume: Volume,
    /// Names and attributes at the last commit, and the number of transactions before it.
    committed: Names,
    commits: usize,
    /// Contents, by the file system's own identity of the file.
    files: BTreeMap<Identity, File>,
    under_way: BTreeMap<u64, Write>,
    next: u64,
    base: Duration,
    /// True while the store is closed: a request for contents is then a bug of its sender.
    closed: bool,
    /// The time before which no commit ends.
    hangs: Duration,
    /// True if no commit succeeds until the file system is mounted again.
    failed: bool,
    /// The time at which the journal failed.
    failed_at: Duration,
    /// The harness that learns of the proofs of syncs.
    harness: Weak<Harness>,
    /// True while the tasks of a killed server are dropped: they change nothing any more.
    halted: bool,
}

struct Write {
    object: Key,
    offset: u64,
    data: Slice,
}

/// Returns the key of a file, by the identity that clients know.
pub(super) fn key(outer: Identity) -> Key {
    Key::new(outer.to_name().as_bytes()).unwrap_or_else(|| unreachable!("identities are short here"))
}

impl Store {
    /// Makes a file system with these names, all durable, and no contents.
    pub(super) fn new(executor: &Executor, volume: Volume, mut rng: Rng) -> Self {
        let base = rng.time(Duration::from_micros(100), Duration::from_millis(8));
        let state = State {
            rng,
            committed: volume.state.clone(),
            volume: volume.with(&volume.state),
            commits: 0,
            files: BTreeMap::new(),
            under_way: BTreeMap::new(),
            next: 0,
            base,
            closed: false,
            hangs: Duration::ZERO,
            failed: false,
            failed_at: Duration::ZERO,
            harness: Weak::new(),
            halted: false,
        };
        Store { executor: executor.clone(), state: Arc::new(Mutex::new(state)) }
    }

    /// Locks the present contents.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Closes the store, or opens it. No task may ask a closed store for contents.
    pub(super) fn set_closed(&self, closed: bool) {
        self.lock().closed = closed;
    }

    /// Runs `action` as the completion of an operation that takes `factor` tenths of the usual time.
    fn operation<T: Send + 'static>(
        &self,
        factor: u32,
        action: impl FnOnce(&Store, &mut State) -> T + Send + 'static,
    ) -> Io<T> {
        if !self.executor.step() {
            return self.executor.never();
        }
        let time = {
            let mut state = self.lock();
            let base = state.base * factor / 10;
            state.rng.time(base / 2, base * 2)
        };
        let store = self.clone();
        self.executor.after(time, move || store.executor.step().then(|| action(&store, &mut store.lock())))
    }

    /// Runs an operation of the cache on the contents of one file, as [`Store::operation`] does.
    fn on_file<T: Send + 'static>(
        &self,
        factor: u32,
        object: &Key,
        action: impl FnOnce(&mut State, Identity) -> T + Send + 'static,
    ) -> Io<BackingResult<T>> {
        let object = object.clone();
        assert!(!self.lock().closed, "{object:?} is asked for before names are where the log says they are");
        self.operation(factor, move |_, state| {
            let inner = state.find(&object)?;
            Ok(action(state, inner))
        })
    }

    /// Runs an operation as [`Store::operation`] does, with a commit of all earlier changes of names and attributes.
    fn committing<T: Send + 'static>(
        &self,
        factor: u32,
        action: impl FnOnce(&mut State, BackingResult<()>) -> T + Send + 'static,
    ) -> Io<T> {
        let upto = self.lock().transactions();
        let (committing, executor) = (self.operation(factor, |_, _| ()), self.executor.clone());
        let store = self.clone();
        Box::pin(async move {
            committing.await;
            let hangs = store.lock().hangs.saturating_sub(executor.time());
            if hangs > Duration::ZERO {
                executor.sleep(hangs).await;
            }
            let mut state = store.lock();
            if state.failed {
                return action(&mut state, Err(BackingError::Io(5)));
            }
            state.commit(upto);
            action(&mut state, Ok(()))
        })
    }

    /// Makes all changes of names and attributes before this call durable.
    pub(super) fn commit(&self) -> Io<BackingResult<()>> {
        self.committing(30, |_, committed| committed)
    }

    /// Makes everything durable: syncfs(2).
    pub(super) fn sync_all(&self) -> Io<BackingResult<()>> {
        let mark = self.lock().next;
        self.committing(40, move |state, committed| {
            let State { rng, files, .. } = &mut *state;
            if committed.is_ok() {
                files.values_mut().for_each(|file| file.sync(mark, rng, false));
            }
            committed
        })
    }

    /// Sets the harness that learns of the proofs of syncs.
    pub(super) fn serve(&self, harness: &Arc<Harness>) {
        self.lock().harness = Arc::downgrade(harness);
    }

    /// Lets no commit end for this time.
    pub(super) fn hang(&self, time: Duration) {
        self.lock().hangs = self.executor.time() + time;
    }

    /// Lets the journal fail.
    pub(super) fn fail(&self) {
        let mut state = self.lock();
        (state.failed, state.failed_at) = (true, self.executor.time());
    }

    /// Returns true if the journal has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.lock().failed
    }

    /// Returns true if the journal failed at least this time ago.
    pub(super) fn has_failed_for(&self, time: Duration) -> bool {
        let state = self.lock();
        state.failed && self.executor.time() >= state.failed_at + time
    }

    /// Returns true if the journal has hung or failed since the last kill of the process.
    pub(super) fn is_troubled(&self) -> bool {
        let state = self.lock();
        state.failed || state.hangs > Duration::ZERO
    }

    /// Lets a killed server change nothing any more, until [`Store::kill`].
    pub(super) fn halt(&self) {
        self.lock().halted = true;
    }

    /// Returns true while the tasks of a killed server are dropped.
    pub(super) fn is_halted(&self) -> bool {
        self.lock().halted
    }

    /// Kills the process: writes in flight end somewhere, and the page cache stays.
    pub(super) fn kill(&self) {
        let mut state = self.lock();
        (state.hangs, state.failed, state.harness) = (Duration::ZERO, false, Weak::new());
        state.halted = false;
        for (number, write) in std::mem::take(&mut state.under_way) {
            let blocks = state.rng.below(write.data.len() as u64 / BLOCK as u64 + 2);
            let end = (write.offset / BLOCK as u64 + blocks) * BLOCK as u64;
            let done = end.saturating_sub(write.offset).min(write.data.len() as u64) as usize;
            if let (true, Ok(inner)) = (done > 0, state.find(&write.object)) {
                state.file(inner).write(number, write.offset, &write.data[..done], Time::default());
            }
        }
    }

    /// Cuts the power: see the fault model. Returns the number of transactions left, and true if contents were lost.
    pub(super) fn power_cut(&self) -> (usize, bool) {
        self.kill();
        let mut state = self.lock();
        let all = state.transactions();
        let least =
            if state.rng.chance(5000) { state.commits } else { all.saturating_sub(12).max(state.commits) };
        let kept = state.rng.within(least as u64, all as u64) as usize;
        state.commit(kept);
        state.volume = state.volume.with(&state.committed);
        state.drop_contents();
        let State { rng, files, .. } = &mut *state;
        let lost = files.values_mut().fold(false, |lost, file| file.cut(rng) | lost);
        (kept, lost)
    }

    /// Kills the process in the middle of the changes since `transactions`. A prefix of them is left.
    pub(super) fn interrupt(&self, transactions: usize) {
        let mut state = self.lock();
        let all = state.transactions();
        let kept = state.rng.within(transactions as u64, all as u64) as usize;
        let before = state.names_after(kept).clone();
        let history = state.volume.history[..kept - state.commits].to_vec();
        state.volume = state.volume.with(&before);
        state.volume.history = history;
    }
}

impl State {
    /// Returns the number of transactions so far.
    pub(super) fn transactions(&self) -> usize {
        self.commits + self.volume.history.len()
    }

    /// Returns the names and attributes after this number of transactions. The number is at least that of the
    /// committed transactions.
    fn names_after(&self, transactions: usize) -> &Names {
        match transactions - self.commits {
            0 => &self.committed,
            count => &self.volume.history[count - 1],
        }
    }

    /// Makes the first `upto` transactions durable. A power cut cannot take them back from then on.
    fn commit(&mut self, upto: usize) {
        if upto > self.commits {
            self.committed = self.names_after(upto).clone();
            self.volume.history.drain(..upto - self.commits);
            self.commits = upto;
            self.drop_contents();
        }
    }

    /// Drops the contents of files that cannot exist after any crash.
    fn drop_contents(&mut self) {
        let State { volume, committed, files, .. } = self;
        let states = || [&*committed, &volume.state].into_iter().chain(&volume.history);
        files.retain(|inner, _| states().any(|state| state.inodes.contains_key(inner)));
    }

    /// Returns the file system's own identity of a file of the cache.
    fn find(&mut self, object: &Key) -> BackingResult<Identity> {
        let outer = Identity::from_name(object.as_bytes()).ok_or(BackingError::Io(22))?;
        let found = match planted_bugs::active("aliases are not applied to keys") {
            true => Some(outer).filter(|outer| self.volume.inode(*outer).is_ok()),
            false => self.volume.resolve(outer),
        };
        if found.is_none() && self.failed {
            return Err(BackingError::Io(5));
        }
        if found.is_none() {
            self.commit(self.transactions());
        }
        found.ok_or(BackingError::Gone)
    }

    /// Returns the contents of a file, and makes them, empty, at the first use.
    fn file(&mut self, inner: Identity) -> &mut File {
        if planted_bugs::active("a new file has the contents of another") && !self.files.contains_key(&inner)
        {
            let other = self.files.values().next().map(|other| other.current.clone()).unwrap_or_default();
            self.files.insert(inner, File { current: other, ..File::default() });
        }
        self.files.entry(inner).or_default()
    }

    /// Returns the number of a new change. Numbers grow, so that a sync covers those up to a mark.
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns the present contents of a file, by the identity that clients know.
    pub(super) fn content(&self, outer: Identity) -> Option<Content> {
        let inner = self.volume.resolve(outer)?;
        let is_file = self.volume.inode(inner).is_ok_and(|inode| inode.attributes.kind == Kind::File);
        is_file.then(|| self.files.get(&inner).map(|file| file.current.clone()).unwrap_or_default())
    }
}
