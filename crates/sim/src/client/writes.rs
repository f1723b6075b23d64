//! Writes and commits of a client, and the point from which the model takes each as durable.

use std::sync::Arc;

use forebay_engine::{CachedObject, Error, Seq};

use super::{Client, stamp};
use crate::front::{Writing, Wrote, durable};
use crate::hits::Fault;
use crate::workload::Kind;

impl Client {
    /// Writes a range that the client's habits choose.
    pub(super) async fn write_somewhere(&mut self, kind: Kind) {
        let Some(number) = self.any() else { return };
        let size = self.shared.model.lock().size(number);
        let habits = self.shared.habits.clone();
        let mut range = habits.range(&mut self.rng, kind, size);
        if kind == Kind::WriteStream {
            range = self.streams[0]..self.streams[0] + habits.longest;
            self.streams[0] = if range.end > habits.extent { 0 } else { range.end };
        }
        let stable = self.rng.chance(habits.stable);
        self.write(number, range.start, range.end - range.start, stable).await;
    }

    /// Writes, and commits if the write is stable.
    pub async fn write(&mut self, number: u8, offset: u64, len: u64, stable: bool) {
        let (open, running) = self.shared.model.lock().load(number, &(offset..offset + len));
        if running >= self.shared.habits.at_once {
            return;
        }
        if open + 4 > crate::register::OPERATIONS {
            self.commit(number).await;
            return;
        }
        let Some(object) = self.object(number) else { return };
        if !self.shared.objects.lock().share(number) {
            return;
        }
        if self.shared.objects.lock().writers(number) >= 12 {
            self.shared.hits.hit(Fault::Crowded);
        }
        let now = self.now();
        let id = self.shared.model.lock().begin_write(number, offset, len, now);
        let mut data = vec![0; len as usize];
        stamp(&mut data, offset, number, id);
        self.shared.tell(|| format!("write {id} to {number} at {offset}+{len} stable {stable}"));
        let (lost, before) = (self.shared.lost.lock().clone(), self.engine.last());
        let changed = self.shared.verifier_changed();
        let written = self.put(&Writing { object: &object, offset, data: &data, now }).await;
        self.shared.objects.lock().release(number);
        let result = match written {
            Ok(Wrote { before: Some(frame), .. }) => self.frame(frame).await.and(written),
            _ => written,
        };
        match result {
            Ok(Wrote { frame, unsynced: Some(failures), .. }) => {
                self.shared.model.lock().accepted_unsynced(id, frame, failures);
            }
            Ok(wrote) => self.shared.model.lock().accepted(id, wrote.frame.unwrap_or_default()),
            Err(error) => self.write_failed(id, number, error),
        }
        if self.shared.verifier_changed() != changed {
            // The reply has the old verifier, so the client takes the write for lost.
            self.shared.model.lock().lost(id);
        }
        // In a model in which every write is in the log, no write is in a page cache.
        let stable = stable || self.shared.model.lock().logged;
        if let (Ok(wrote), true) = (result, stable) {
            match self.until_stable(&object, offset, len, wrote).await {
                Ok(()) => {
                    self.shared.model.lock().durable_by(id, self.engine.last());
                    // The frame was written without the lost devices.
                    if wrote.frame.max(wrote.before).is_some_and(|frame| frame > before) {
                        // A device that was added again meanwhile is not outdated.
                        let now = self.shared.lost.lock().clone();
                        self.shared
                            .outdated
                            .lock()
                            .extend(lost.into_iter().filter(|name| now.contains(name)));
                    }
                }
                Err(error) => {
                    self.shared.model.lock().lost(id);
                    self.check("a write", number, error);
                }
            }
        } else if let Ok(Wrote { unsynced: Some(_), .. }) = result {
            self.shared.hits.hit(Fault::WroteUnsynced);
        }
        self.shared.tell(|| format!("write {id} done: {result:?}"));
    }

    /// Waits until everything is durable that the reply to a stable WRITE requires.
    async fn until_stable(
        &self,
        object: &Arc<CachedObject>,
        offset: u64,
        len: u64,
        wrote: Wrote,
    ) -> Result<(), Error> {
        if let Some(failures) = wrote.unsynced {
            self.sync(object, offset, len, failures).await?;
        }
        match wrote.frame {
            Some(frame) => self.frame(frame).await,
            None => Ok(()),
        }
    }

    /// Waits until a frame is durable. If the frame is lost, the write verifier changes.
    pub(super) async fn frame(&self, frame: Seq) -> Result<(), Error> {
        durable(&self.engine, frame).await.inspect_err(|_| self.shared.log_broke())
    }

    /// Notes that a write failed: it may have happened or not. Reports the error if the plan does not allow it.
    fn write_failed(&self, id: u32, number: u8, error: Error) {
        self.shared.model.lock().failed(id);
        self.check("a write", number, error);
    }

    /// Commits all unstable writes of an object.
    pub async fn commit(&mut self, number: u8) {
        let Some(object) = self.object(number).filter(|_| self.shared.model.lock().is_open(number)) else {
            return;
        };
        let seq = self.engine.last();
        let (covered, unsynced) = {
            let model = self.shared.model.lock();
            (model.open(seq), model.unsynced(number))
        };
        self.shared.tell(|| format!("commit {seq} covers {covered:?}, syncs {unsynced:?}"));
        self.sync_all(&object, &unsynced).await;
        match durable(&self.engine, seq).await {
            Ok(()) => {
                let mut model = self.shared.model.lock();
                covered.into_iter().for_each(|id| model.durable_by(id, seq));
                let logged = unsynced.into_iter().map(|(id, _)| id);
                let logged: Vec<u32> = logged.filter(|id| model.open(seq).contains(id)).collect();
                logged.into_iter().for_each(|id| model.durable_by(id, seq));
            }
            // The write verifier has changed, which answers the client's COMMIT.
            Err(_) => self.shared.log_broke(),
        }
    }

    /// Syncs an object's backing file for these writes. If the sync fails, the writes may be lost, and the write
    /// verifier says so.
    async fn sync_all(&self, object: &Arc<CachedObject>, unsynced: &[(u32, u64)]) {
        let Some(failures) = unsynced.iter().map(|(_, failures)| *failures).min() else { return };
        let synced = self.sync(object, 0, 0, failures).await;
        let hits = &self.shared.hits;
        hits.hit(if synced.is_ok() { Fault::Committed } else { Fault::CommitLost });
        let mut model = self.shared.model.lock();
        for (id, _) in unsynced {
            match synced {
                Ok(()) => model.synced(*id),
                Err(_) => model.lost(*id),
            }
        }
    }

    /// Syncs every object with writes in a page cache, as the server does before a stop.
    pub async fn sync_everything(&self) {
        let numbers = self.shared.objects.lock().numbers();
        for number in numbers {
            let unsynced = self.shared.model.lock().unsynced(number);
            if let Some(object) = self.object(number) {
                self.sync_all(&object, &unsynced).await;
            }
        }
    }
}
