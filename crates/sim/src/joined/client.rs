//! Clients of the harness: they keep handles, send requests, and check every answer against the model.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_engine::Error;
use forebay_engine::io::{BackingError, Clock as _, Time};
use forebay_oplog::{Identity, Kind};

use super::calls::{CHANGES, Calls};
use super::harness::{Harness, Xid};
use super::store::Store;
use crate::client::stamp;
use crate::epochs::Epochs;
use crate::executor::Executor;
use crate::front::durable;
use crate::hits::{Fault, Hits};
use crate::model::Model;
use crate::register::OPERATIONS;
use crate::rng::Rng;

/// The number of files that a world can distinguish.
const FILES: u8 = 200;

/// The behaviour of clients.
#[derive(Clone, Debug)]
pub(super) struct Habits {
    /// The number of clients, which work side by side.
    pub(super) clients: u32,
    /// The number of operations of each client in a session.
    pub(super) operations: u32,
    /// Chances in 10,000 that an operation changes names or attributes.
    pub(super) names: u32,
    /// Chances in 10,000 that such a change concerns a file with several names.
    pub(super) links: u32,
    /// Chances in 10,000 that a client makes a file, changes it and removes it at once.
    pub(super) brief: u32,
    /// Chances in 10,000 that a request for such a change comes twice, and that its answer is lost.
    pub(super) again: u32,
    /// Chances in 10,000 that a write is stable.
    pub(super) stable: u32,
    /// The longest write, in bytes.
    pub(super) longest: u64,
    /// The offset below which contents lie, except for the last write.
    pub(super) extent: u64,
    /// Chances in 10,000 that an operation on contents makes a hole or clones.
    pub(super) holes: u32,
}

/// The state that all tasks of a world share.
pub(super) struct Shared {
    /// Virtual time.
    pub(super) executor: Executor,
    /// The epochs of pools, as the state directory holds them.
    pub(super) epochs: Epochs,
    /// The file system.
    pub(super) store: Store,
    /// Counts of faults.
    pub(super) hits: Arc<Hits>,
    /// The possible contents of every file.
    pub(super) model: Mutex<Model>,
    /// The model's numbers of files, by the identity that clients know.
    pub(super) files: Mutex<Files>,
    /// The requests.
    pub(super) calls: Mutex<Calls>,
    /// The first failure.
    pub(super) failure: Mutex<Option<String>>,
    /// The events of the world, for a person; kept only on request.
    pub(super) log: Option<Mutex<Vec<String>>>,
}

/// The files that have numbers, see [`Shared::files`].
#[derive(Default)]
pub(super) struct Files {
    /// The numbers of existing files.
    pub(super) numbers: BTreeMap<Identity, u8>,
    made: u8,
}

impl Shared {
    /// Reports a failure. The first one counts.
    pub(super) fn fail(&self, what: String) {
        self.tell(|| format!("FAILED {what}"));
        self.failure.lock().get_or_insert(what);
    }

    /// Adds a line to the log, if there is one.
    pub(super) fn tell(&self, line: impl FnOnce() -> String) {
        if let Some(log) = &self.log {
            log.lock().push(format!("{:>12.6} {}", self.executor.time().as_secs_f64(), line()));
        }
    }

    /// Returns the number of a file. A file without a number gets one, and is empty.
    pub(super) fn number(&self, file: Identity) -> Option<u8> {
        let mut files = self.files.lock();
        if let Some(number) = files.numbers.get(&file) {
            return Some(*number);
        }
        if files.made == FILES {
            return None;
        }
        files.made += 1;
        let number = files.made;
        files.numbers.insert(file, number);
        drop(files);
        let mut model = self.model.lock();
        let generation = model.number();
        model.create(number, 0, generation, Time::default());
        Some(number)
    }

    /// Forgets a file that is removed for good.
    pub(super) fn forget(&self, file: Identity) {
        if let Some(number) = self.files.lock().numbers.remove(&file) {
            self.model.lock().remove(number);
        }
    }

    /// Returns every file that has a number.
    pub(super) fn numbered(&self) -> Vec<(Identity, u8)> {
        self.files.lock().numbers.iter().map(|(file, number)| (*file, *number)).collect()
    }
}

/// A client.
pub(super) struct Client {
    /// The state shared with all tasks of the world.
    pub(super) shared: Arc<Shared>,
    /// The harness of this session.
    pub(super) harness: Arc<Harness>,
    /// The client's behaviour.
    pub(super) habits: Habits,
    /// The source of the client's choices.
    pub(super) rng: Rng,
    /// Requests of earlier sessions whose answers the client awaits.
    pub(super) waits: Vec<Xid>,
}

impl Client {
    /// Carries out the client's operations of a session.
    pub(super) async fn run(mut self) {
        for xid in std::mem::take(&mut self.waits) {
            self.ask_again(xid).await;
        }
        for _ in 0..self.habits.operations {
            self.act().await;
            if self.shared.failure.lock().is_some() {
                return;
            }
        }
    }

    /// Carries out one operation that chance chooses: a change of names, a write, a read, a truncation, a commit, a
    /// flush, or a rest of up to 20 ms.
    async fn act(&mut self) {
        if self.rng.chance(self.habits.brief) {
            if self.harness.changes() + 3 < CHANGES {
                self.live_briefly().await;
            }
            return;
        }
        if self.rng.chance(self.habits.names) {
            if self.harness.changes() < CHANGES {
                self.change().await;
            }
            return;
        }
        // Without holes the draw is left out, so that older worlds stay as they are.
        if self.habits.holes > 0 && self.rng.chance(self.habits.holes) {
            return self.punch_or_clone().await;
        }
        match self.rng.below(20) {
            0..=8 => self.write_somewhere().await,
            9..=13 => self.read_somewhere().await,
            14 | 15 => self.resize_somewhere().await,
            16 | 17 => self.commit_some().await,
            18 => self.flush().await,
            _ => {
                let rest = self.rng.time(Duration::ZERO, Duration::from_millis(20));
                self.shared.executor.sleep(rest).await;
            }
        }
    }

    /// Returns a file of which a client has a handle.
    pub(super) async fn any(&mut self) -> Option<(Identity, u8)> {
        let files: Vec<Identity> = {
            let state = self.shared.store.lock();
            let inodes = state.volume.state.inodes.iter();
            let files = inodes.filter(|(_, inode)| inode.attributes.kind == Kind::File);
            files.map(|(inner, _)| state.volume.outer(*inner)).collect()
        };
        if files.is_empty() {
            return None;
        }
        let file = self.rng.pick(&files);
        self.harness.found().await;
        Some((file, self.shared.number(file)?))
    }

    /// Checks an error of an existing file. While the journal works, there must be none.
    pub(super) fn check(&self, what: &str, file: Identity, error: Error) {
        if self.shared.store.is_troubled() {
            return;
        }
        let there = self.shared.store.lock().volume.resolve(file).is_some();
        if there || error != Error::Backing(BackingError::Gone) {
            self.shared.fail(format!("{what} of {file:?} failed: {error}"));
        }
    }

    /// Writes a range that chance chooses to a file that chance chooses. Two thirds of the ranges consist of whole
    /// blocks.
    async fn write_somewhere(&mut self) {
        let Some((file, number)) = self.any().await else { return };
        let Habits { extent, longest, stable, .. } = self.habits;
        let len = self.rng.within(1, longest);
        let (offset, len) = match self.rng.below(3) {
            0 => (self.rng.below(extent), len),
            // The range consists of whole blocks.
            _ => (self.rng.below(extent) / 4096 * 4096, len.div_ceil(4096) * 4096),
        };
        let stable = self.rng.chance(stable);
        self.write(file, number, offset..offset + len, stable).await;
    }

    /// Writes to a file, waits until the write is durable if it is `stable`, and tells the model. Commits instead if
    /// the model cannot follow another open write.
    pub(super) async fn write(&self, file: Identity, number: u8, range: Range<u64>, stable: bool) {
        let (offset, len) = (range.start, range.end - range.start);
        let (open, running) = self.shared.model.lock().load(number, &range);
        if running >= 3 {
            return;
        }
        if open + 4 > OPERATIONS {
            return self.commit(file, number).await;
        }
        let id = self.shared.model.lock().begin_write(number, offset, len, Time::default());
        let mut data = vec![0; len as usize];
        stamp(&mut data, offset, number, id);
        self.shared.tell(|| format!("write {id} to {file:?} ({number}) at {offset}+{len}, stable {stable}"));
        let result = self.harness.write(file, offset, &data, stable).await;
        match result {
            Ok(seq) => self.shared.model.lock().accepted(id, seq),
            Err(error) => self.write_failed(id, file, error),
        }
        if let (Ok(seq), true) = (result, stable) {
            match durable(&self.harness.engine, seq).await {
                Ok(()) => self.shared.model.lock().durable(id),
                Err(error) => self.write_failed(id, file, error),
            }
        }
        self.shared.tell(|| format!("write {id} done: {result:?}"));
    }

    /// Notes that a write failed: it may have happened or not. Reports the error if it has no cause in the plan.
    fn write_failed(&self, id: u32, file: Identity, error: Error) {
        self.shared.model.lock().failed(id);
        self.check("a write", file, error);
    }

    /// Commits the unstable writes of a file that chance chooses.
    async fn commit_some(&mut self) {
        if let Some((file, number)) = self.any().await {
            self.commit(file, number).await;
        }
    }

    /// Commits all writes of the file that the server has accepted so far. The model takes them as durable from the
    /// answer on.
    pub(super) async fn commit(&self, file: Identity, number: u8) {
        let (seq, covered) = {
            let model = self.shared.model.lock();
            let covered = model.open_of(number);
            if covered.is_empty() {
                return;
            }
            (self.harness.engine.last(), covered)
        };
        match self.harness.commit(file, seq).await {
            Ok(()) => covered.into_iter().for_each(|id| self.shared.model.lock().durable(id)),
            Err(error) => self.check("a commit", file, error),
        }
    }

    /// Reads a range that chance chooses from a file that chance chooses.
    async fn read_somewhere(&mut self) {
        let Some((file, number)) = self.any().await else { return };
        let Habits { extent, longest, .. } = self.habits;
        let (offset, len) = (self.rng.below(extent), self.rng.within(1, 2 * longest));
        self.read(file, number, offset, len as usize).await;
    }

    /// Reads, and checks the returned bytes.
    pub(super) async fn read(&mut self, file: Identity, number: u8, offset: u64, len: usize) {
        let Some(object) = self.harness.object(file) else { return };
        let reading = self.shared.model.lock().begin_read(number, offset, len);
        let mut buffer = vec![0xee; len];
        let result = self.harness.engine.read(&object, offset, &mut buffer).await;
        let bytes = result.ok().map(|len| &buffer[..len]);
        if let Err(error) = self.shared.model.lock().end_read(&reading, bytes) {
            self.shared.fail(format!("{file:?}: {error}"));
        }
        if let Err(error) = result {
            self.check("a read", file, error);
        }
    }

    /// Truncates or grows a file to a size at which mistakes are likely. Does nothing if the session has its number
    /// of changes.
    async fn resize_somewhere(&mut self) {
        let Some((file, number)) = self.any().await else { return };
        if self.harness.changes() >= CHANGES {
            return;
        }
        let size = self.shared.model.lock().size(number);
        let sizes = [0, 0, size / 2, size.saturating_sub(1), size + 1, self.rng.below(self.habits.extent)];
        let size = self.rng.pick(&sizes);
        self.resize(file, number, size).await;
    }

    /// Sends a SETATTR of the size. The model takes the new size as durable from the answer on. Commits instead if
    /// the model cannot follow another open operation.
    pub(super) async fn resize(&self, file: Identity, number: u8, size: u64) {
        if self.shared.model.lock().load(number, &(0..u64::MAX / 2)).0 + 4 > OPERATIONS {
            return self.commit(file, number).await;
        }
        let (shared, xid) = (self.shared.clone(), self.shared.calls.lock().next());
        let mut begun = None;
        let begin = || {
            let id = shared.model.lock().begin_truncate(number, size, Time::default());
            shared.tell(|| format!("truncate {id} of {file:?} ({number}) to {size}"));
            begun = Some(id);
        };
        let result = self.harness.resize(xid, file, size, begin).await;
        let Some(id) = begun else { return };
        self.shared.hits.hit(Fault::JoinedCut);
        match result {
            Ok(()) => self.shared.model.lock().durable(id),
            Err(error) => {
                self.shared.model.lock().failed(id);
                self.check("a truncation", file, error);
            }
        }
        self.shared.tell(|| format!("truncate {id} done: {result:?}"));
    }

    /// Destages everything. An error is a failure of the world, unless the file system is in trouble at that time.
    async fn flush(&mut self) {
        self.shared.tell(|| "flush".to_owned());
        if let Err(error) = self.harness.engine.flush().await
            && !self.shared.store.is_troubled()
        {
            self.shared.fail(format!("a flush failed: {error}"));
        }
    }
}
