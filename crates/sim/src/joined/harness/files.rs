//! The virtual file system in service, as the metadata log sees it.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_engine::io::{BackingError, Io};
use forebay_metalog::{Done, Failure, Files, Slot, Start};
use forebay_oplog::{RenameIntent, Rights};

use super::*;

impl Failure for Refused {
    const LATE: Self = Refused::Busy;
    const FAILED: Self = Refused::Io;
    const BUSY: Self = Refused::Busy;

    fn to_cache(self) -> BackingError {
        BackingError::Io(if self == Refused::Busy { 110 } else { 5 })
    }
}

/// A slot, by its number.
pub(super) struct SlotOf {
    store: Store,
    number: usize,
}

impl SlotOf {
    /// A server that is killed does not empty its slots: its tasks are only dropped.
    fn set(&self, intent: Option<RenameIntent>) {
        if !self.store.is_halted() {
            self.store.lock().volume.slot(self.number, intent);
        }
    }
}

impl Slot for SlotOf {
    type Error = Refused;

    fn write(&self, intent: &RenameIntent) -> Result<(), Refused> {
        self.set(Some(intent.clone()));
        Ok(())
    }

    fn withdraw(&self) -> Result<(), Refused> {
        self.set(None);
        Ok(())
    }
}

/// The file system that one session serves.
pub(super) struct Served {
    store: Store,
    executor: Executor,
    broken: AtomicBool,
}

impl Served {
    pub(super) fn new(store: &Store, executor: &Executor) -> Self {
        Served { store: store.clone(), executor: executor.clone(), broken: AtomicBool::new(false) }
    }

    /// Returns true if the log broke: the engine has closed.
    pub(super) fn has_no_log(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }
}

impl Files for Served {
    type Log = Observed;
    type Error = Refused;
    type Slot = SlotOf;
    type Request = ();
    type Kept = ();

    fn make_slot(&self, number: usize) -> Result<SlotOf, Refused> {
        Ok(SlotOf { store: self.store.clone(), number })
    }

    fn begin_commit(&self) -> Result<Io<Result<(), Refused>>, Refused> {
        let (ended, comes) = promise();
        let commit = self.store.commit();
        let commit = async move { ended.keep(commit.await.map_err(|_| Refused::Io)) };
        self.executor.start("commit", Box::pin(commit));
        Ok(Box::pin(comes))
    }

    fn has_failed(&self) -> bool {
        self.store.has_failed()
    }

    fn commit(self: &Arc<Self>, (): (), done: Done<Refused>) {
        let commit = self.store.commit();
        let commit = async move { done(commit.await.map_err(|_| Refused::Io)) };
        self.executor.start("change", Box::pin(commit));
    }

    fn complete(self: &Arc<Self>, (): (), done: Done<Refused>) {
        done(Ok(()));
    }

    fn log_broke(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    /// Refuses: one device stays in every world, so the log only breaks when the engine closes.
    fn record_lost_log(&self, _log: u64, _upto: u64) -> Result<(), Refused> {
        Err(Refused::Io)
    }
}

/// The file system at a start, once it is equal to the log.
pub(super) struct Recovered(pub(super) Store);

impl Start for Recovered {
    type Error = Refused;

    fn leads_to(&mut self, dir: Identity, name: &[u8]) -> Result<Option<(Identity, Rights)>, Refused> {
        let volume = &self.0.lock().volume;
        let Some(inner) = volume.child(volume.resolve(dir).ok_or(Refused::Stale)?, name)? else {
            return Ok(None);
        };
        let is = volume.inode(inner)?.attributes;
        Ok(Some((volume.outer(inner), Rights { mode: is.mode, uid: is.uid, gid: is.gid })))
    }

    fn has_own_files(&mut self) -> bool {
        true
    }

    fn clear_slots(&mut self) -> Result<(), Refused> {
        self.0.lock().volume.clear_slots();
        Ok(())
    }

    fn clear_aliases(&mut self) -> Result<(), Refused> {
        let volume = &mut self.0.lock().volume;
        let aliases: Vec<Identity> = volume.state.identities.entries().map(|(outer, _)| outer).collect();
        for outer in aliases {
            if volume.resolve(outer).is_none() {
                volume.set_alias(outer, None);
            }
        }
        Ok(())
    }

    async fn barrier(&mut self) -> Result<(), Refused> {
        self.0.commit().await.map_err(|_| Refused::Io)
    }
}
