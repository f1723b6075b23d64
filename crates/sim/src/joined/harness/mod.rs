//! The harness of a joined world: one session of a simulated server. The engine and the metadata log
//! (`forebay_metalog`) are the real ones. The harness has the parts of a server around them:
//!
//! - it carries requests out on the virtual file system, under locks, and repeats replies (`change.rs`, `replies.rs`);
//! - it gives data to the engine, or to the file system past the log (`data.rs`);
//! - it implements the traits of the metadata log over the virtual file system (`files.rs`) and over an engine whose
//!   log it observes (`log.rs`);
//! - it starts and ends a session (`maintain.rs`).

mod change;
mod data;
mod files;
mod log;
mod maintain;
mod replies;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_engine::io::Clock as _;
use forebay_engine::{CachedObject, Engine, Error, Seq, UserRecordId};
use forebay_metalog::{
    Checkpointed, Checkpoints, DurableBy, Failure as _, Making, Recovery, Sequence, Slots,
};
use forebay_oplog::{Identity, Proof, Removals};

use super::store::{Store, key};
use crate::executor::{Executor, promise};
use crate::hits::{Fault, Hits};
use crate::namespace::history::Step;
use crate::namespace::request::{Done, Place, Request, carry_out};
use crate::namespace::volume::{Refused, Volume};
use crate::rng::Rng;

use files::{Served, SlotOf};
pub(super) use log::Logged;
use log::{Observed, Seen};
use replies::Replies;
pub(super) use replies::{Answer, Xid};

/// The numbers of slots. There are fewer slots than clients, so some RENAMEs have to wait for one.
const SLOTS: [usize; 3] = [1, 2, 2];

/// Stands for the holder of an exclusive lock.
const ALONE: u32 = u32::MAX;

/// Unstable writes of a file past the log, and the number of them that are known to be stable.
#[derive(Clone, Copy, Debug, Default)]
struct Uncommitted {
    made: u64,
    stable: u64,
}

#[derive(Default)]
struct Inner {
    removals: Removals<Arc<CachedObject>>,
    /// The number of holders of each lock, or [`ALONE`].
    locks: BTreeMap<Identity, u32>,
    objects: BTreeMap<Identity, Arc<CachedObject>>,
    uncommitted: BTreeMap<Identity, Uncommitted>,
    replies: Replies,
    /// The changes carried out in this session, in that order.
    steps: Vec<Step>,
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
    pub(super) released: UserRecordId,
    /// Changes whose records may be missing as well.
    pub(super) dropped: BTreeSet<u64>,
}

/// The harness of one session.
pub(super) struct Harness {
    executor: Executor,
    hits: Arc<Hits>,
    /// The served file system.
    pub(super) store: Store,
    /// The cache in front of the file system.
    pub(super) engine: Arc<Engine>,
    files: Arc<Served>,
    sequence: Arc<Sequence<Observed>>,
    checkpoints: Checkpoints<Served>,
    volume: Arc<forebay_metalog::Volume<Served>>,
    slots: Arc<Slots<SlotOf>>,
    making: Arc<Making>,
    rng: Mutex<Rng>,
    inner: Mutex<Inner>,
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.sequence.abandon();
    }
}

/// Locks on some objects, which a drop releases.
struct Locked<'a>(&'a Harness, BTreeSet<Identity>);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let locks = &mut self.0.inner.lock().locks;
        for object in &self.1 {
            match locks.get_mut(object) {
                Some(holders) if *holders != ALONE && *holders > 1 => *holders -= 1,
                _ => _ = locks.remove(object),
            }
        }
    }
}

impl Harness {
    /// Makes the harness of a session that has not concluded its recovery.
    pub(super) fn new(
        executor: &Executor,
        store: &Store,
        engine: Arc<Engine>,
        hits: &Arc<Hits>,
        mut rng: Rng,
    ) -> Self {
        let (executor, store, hits) = (executor.clone(), store.clone(), hits.clone());
        let log = Observed::new(&engine, &store, &executor, &hits);
        let (sequence, files) =
            (Arc::new(Sequence::new(Arc::new(log))), Arc::new(Served::new(&store, &executor)));
        let theirs = hits.clone();
        let tell = move |news| {
            if let Checkpointed::Late(_) = news {
                theirs.hit(Fault::JoinedLate);
            }
        };
        let served = vec![(0, Arc::downgrade(&files))];
        let clock = Arc::new(executor.clone());
        let checkpoints = Checkpoints::new(sequence.clone(), clock, served, Arc::new(tell));
        let volume = checkpoints.volume(0).cloned().unwrap_or_else(|| unreachable!("it is served"));
        let (slots, making) = (Arc::new(Slots::new(rng.pick(&SLOTS))), Arc::default());
        let (rng, inner) = (Mutex::new(rng), Mutex::default());
        Harness {
            executor,
            hits,
            store,
            engine,
            files,
            sequence,
            checkpoints,
            volume,
            slots,
            making,
            rng,
            inner,
        }
    }

    /// Returns the number of changes carried out.
    pub(super) fn changes(&self) -> usize {
        self.inner.lock().steps.len()
    }

    /// Returns the knowledge about the session, after all tasks have ended.
    pub(super) fn ended(&self) -> Ended {
        let steps = std::mem::take(&mut self.inner.lock().steps);
        let Seen { logged: answers, order, released, dropped } = std::mem::take(&mut *self.seen());
        Ended { steps, answers, order, released, dropped }
    }

    fn seen(&self) -> forebay_common::lock::MutexGuard<'_, Seen> {
        self.sequence.log().seen.lock()
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

    /// Waits before the next attempt to lock objects or to use the file system: 50 us, or 20 ms if the file system is
    /// in trouble.
    async fn wait(&self) {
        let time = if self.store.is_troubled() { 20_000 } else { 50 };
        self.executor.sleep(Duration::from_micros(time)).await;
    }

    /// Waits until the record of an object's creation is in the log, for a client that has found the object.
    pub(super) async fn found(&self) {
        self.making.wait(self.making.makers()).await;
    }

    /// Locks exclusively the objects that `request` changes.
    async fn lock(&self, request: &Request) -> Locked<'_> {
        loop {
            let wanted = locks(&self.store.lock().volume, request);
            if let Some(locked) = self.try_lock(wanted, true) {
                return locked;
            }
            self.wait().await;
        }
    }

    /// Locks a file that is written. Writers share the lock.
    async fn share(&self, object: Identity) -> Locked<'_> {
        loop {
            if let Some(locked) = self.try_lock(BTreeSet::from([object]), false) {
                return locked;
            }
            self.wait().await;
        }
    }

    /// Locks all wanted objects, `alone` or shared with other holders. Returns `None` and locks nothing if one of
    /// them is not free.
    fn try_lock(&self, wanted: BTreeSet<Identity>, alone: bool) -> Option<Locked<'_>> {
        let locks = &mut self.inner.lock().locks;
        let is_free = |object| locks.get(object).is_none_or(|holders| !alone && *holders != ALONE);
        if !wanted.iter().all(is_free) {
            return None;
        }
        for object in &wanted {
            let holders = locks.entry(*object).or_default();
            *holders = if alone { ALONE } else { *holders + 1 };
        }
        Some(Locked(self, wanted))
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
