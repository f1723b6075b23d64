//! A server above the cache and the file system, by the rules of docs/metadata-log.md. A change is carried out and gets
//! its number. Its record goes to the log in order of numbers. The client is answered when the record is durable.

mod change;
mod checkpoint;
mod data;
mod journal;
mod replies;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_engine::io::Clock as _;
use forebay_engine::{Engine, Error, Mode, Object, Seq, UserRecordId};
use forebay_oplog::{Creations, Identity, Numbers, Proof, Record, Removals, RenameIntent, Turns};

use super::store::{Store, key};
use crate::executor::{Executor, Promise, promise};
use crate::hits::{Fault, Hits};
use crate::namespace::history::Step;
use crate::namespace::request::{Done, LOG, Place, Request, carry_out};
use crate::namespace::volume::{Refused, Volume};
use crate::rng::Rng;

use journal::{Journal, UnderWay};
use replies::Replies;
pub(super) use replies::{Answer, Xid};

/// The number of slots. There are fewer slots than clients, so some RENAMEs have to wait for one.
const SLOTS: usize = 2;

/// The progress of a change.
#[derive(Clone, Debug, Default)]
pub(super) struct Logged {
    /// The change's record in the log, if it has one.
    pub(super) note: Option<UserRecordId>,
    /// True if the client was answered.
    pub(super) answered: bool,
}

/// A record that waits for its turn.
struct Turn {
    number: u64,
    record: Vec<u8>,
    ticket: Option<u64>,
    noted: Promise<Result<(Seq, UserRecordId), Error>>,
}

/// Unstable writes of a file past the log, and the number of them that are known to be stable.
#[derive(Clone, Copy, Debug, Default)]
struct Uncommitted {
    made: u64,
    stable: u64,
}

#[derive(Default)]
struct Inner {
    numbers: Numbers,
    turns: Turns<Turn>,
    /// True while a thread carries out the turns.
    busy: bool,
    creations: Creations,
    removals: Removals<Arc<Object>>,
    /// The last change of each object since the last checkpoint.
    touched: BTreeMap<Identity, u64>,
    /// The last change with a record, and the last one that a durable checkpoint covers.
    last: u64,
    checkpoint: u64,
    checkpointing: bool,
    journal: Journal,
    /// The commit in progress. Only the maker of a checkpoint reads it.
    commit: Option<UnderWay>,
    /// The proof of the last successful commit.
    proven: Proof,
    /// Changes whose records were not reappended, since the changes are in the file system.
    dropped: BTreeSet<u64>,
    locked: BTreeSet<Identity>,
    writers: BTreeMap<Identity, u32>,
    slots: Vec<usize>,
    objects: BTreeMap<Identity, Arc<Object>>,
    uncommitted: BTreeMap<Identity, Uncommitted>,
    replies: Replies,
    /// The changes carried out in this session, in that order, and the progress of each.
    steps: Vec<Step>,
    logged: BTreeMap<u64, Logged>,
    /// Numbers of changes in the order of the log.
    order: Vec<u64>,
    let_go: UserRecordId,
}

/// The knowledge about a session that has ended.
pub(super) struct Ended {
    /// The changes carried out, with transactions counted as the file system does.
    pub(super) steps: Vec<Step>,
    /// The progress of each change, by number.
    pub(super) answers: BTreeMap<u64, Logged>,
    /// Changes with a record, in the order of the log.
    pub(super) order: Vec<u64>,
    /// User records up to this one may be missing.
    pub(super) let_go: UserRecordId,
    /// Changes whose records may be missing as well.
    pub(super) dropped: BTreeSet<u64>,
}

/// The server of one session.
pub(super) struct Server {
    executor: Executor,
    hits: Arc<Hits>,
    /// The served file system.
    pub(super) store: Store,
    /// The cache in front of the file system.
    pub(super) engine: Arc<Engine>,
    rng: Mutex<Rng>,
    inner: Mutex<Inner>,
}

/// A lock on some objects, which a drop releases.
struct Locked<'a>(&'a Server, BTreeSet<Identity>);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.inner.lock();
        inner.locked.retain(|object| !self.1.contains(object));
    }
}

/// A shared lock on a file that is written.
struct Writing<'a>(&'a Server, Identity);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if let Some(writers) = self.0.inner.lock().writers.get_mut(&self.1) {
            *writers -= 1;
        }
    }
}

impl Server {
    /// Makes a server that goes on after the change `last`. Everything up to that change is durable in the file system.
    /// The server knows these replies.
    pub(super) fn new(
        executor: &Executor,
        store: &Store,
        engine: Arc<Engine>,
        hits: &Arc<Hits>,
        rng: Rng,
        last: u64,
        replies: impl Iterator<Item = Box<[u8]>>,
    ) -> Self {
        let (slots, replies) = ((0..SLOTS).collect(), Replies::of(replies));
        let mut inner = Inner { last, checkpoint: last, slots, replies, ..Inner::default() };
        inner.numbers.settled(last);
        inner.turns.begin(last + 1);
        let (executor, store, hits) = (executor.clone(), store.clone(), hits.clone());
        Server { executor, hits, store, engine, rng: Mutex::new(rng), inner: Mutex::new(inner) }
    }

    /// Returns the number of changes carried out.
    pub(super) fn changes(&self) -> usize {
        self.inner.lock().steps.len()
    }

    /// Returns the knowledge about the session, after all tasks have ended.
    pub(super) fn ended(&self) -> Ended {
        let mut inner = self.inner.lock();
        Ended {
            steps: std::mem::take(&mut inner.steps),
            answers: std::mem::take(&mut inner.logged),
            order: std::mem::take(&mut inner.order),
            let_go: inner.let_go,
            dropped: std::mem::take(&mut inner.dropped),
        }
    }

    /// Lets time pass, now and then a lot. The machine may crash meanwhile.
    pub(super) async fn pause(&self) {
        let time = {
            let mut rng = self.rng.lock();
            let most = if rng.chance(500) { 20_000 } else { 200 };
            rng.time(Duration::ZERO, Duration::from_micros(most))
        };
        let executor = self.executor.clone();
        self.executor.after(time, move || executor.step().then_some(())).await;
    }

    async fn wait(&self) {
        let time = if self.store.is_troubled() { 20_000 } else { 50 };
        self.executor.sleep(Duration::from_micros(time)).await;
    }

    /// Waits until the record of an object's creation is in the log, for a client that has found the object.
    pub(super) async fn found(&self) {
        let latest = self.inner.lock().creations.latest();
        while !self.inner.lock().creations.is_through(latest) {
            self.wait().await;
        }
    }

    /// Locks exclusively the objects that `request` changes.
    async fn lock(&self, request: &Request) -> Locked<'_> {
        loop {
            let wanted = locks(&self.store.lock().volume, request);
            {
                let mut inner = self.inner.lock();
                let written = |object: &Identity| inner.writers.get(object).is_some_and(|count| *count > 0);
                if inner.locked.is_disjoint(&wanted) && !wanted.iter().any(written) {
                    inner.locked.extend(&wanted);
                    return Locked(self, wanted);
                }
            }
            self.wait().await;
        }
    }

    async fn share(&self, object: Identity) -> Writing<'_> {
        loop {
            {
                let mut inner = self.inner.lock();
                if !inner.locked.contains(&object) {
                    *inner.writers.entry(object).or_default() += 1;
                    return Writing(self, object);
                }
            }
            self.wait().await;
        }
    }
}

/// Returns the objects that a request locks: directories whose names change, directories that lose their name, and
/// touched objects.
fn locks(volume: &Volume, request: &Request) -> BTreeSet<Identity> {
    let child = |place: &Place| {
        let found = volume.resolve(place.0).and_then(|dir| volume.child(dir, &place.1).ok()?);
        found.filter(|inner| volume.is_directory(*inner)).map(|inner| volume.outer(inner))
    };
    match request {
        Request::Create(place, _)
        | Request::Mkdir(place)
        | Request::Symlink(place)
        | Request::Mknod(place)
        | Request::Remove(place) => BTreeSet::from([place.0]),
        Request::Rmdir(place) => [place.0].into_iter().chain(child(place)).collect(),
        Request::Link(object, place) => BTreeSet::from([*object, place.0]),
        Request::Chmod(object) | Request::Setattr(object) => BTreeSet::from([*object]),
        Request::Rename(from, to) => {
            // Only one directory at a time changes its parent: the directory for moving stands for all of them.
            let moves = child(from).filter(|_| from.0 != to.0).map(|_| Volume::moving_dir());
            [from.0, to.0].into_iter().chain(child(to)).chain(moves).collect()
        }
    }
}
