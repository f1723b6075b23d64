//! Checkpoints, and the release of user records.

use forebay_engine::io::BackingError;

use super::*;
use crate::joined::plant;

impl Server {
    /// Makes every numbered change durable in the file system, and logs that as a checkpoint. Then user records up to
    /// `notes` are released. While the journal fails, the records that recovery may need are kept.
    async fn make_checkpoint(&self, notes: Option<UserRecordId>) -> Result<(), Refused> {
        while std::mem::replace(&mut self.inner.lock().checkpointing, true) {
            self.wait().await;
        }
        let (upto, due) = {
            let inner = self.inner.lock();
            (inner.numbers.carried_out(), inner.last > inner.checkpoint)
        };
        let made = match due && !plant::active("a checkpoint without a commit") {
            true => self.commit_journal().await,
            false => Ok(()),
        };
        self.engine.keep_notes(made.err().map(|_| BackingError::Io(5)));
        let let_go = made.is_ok() || plant::active("notes are let go though the journal fails");
        match notes {
            Some(notes) if let_go => self.let_go(notes),
            Some(notes) if notes < UserRecordId::MAX && !self.carry(notes).await => self.later().await,
            _ => {}
        }
        self.inner.lock().checkpointing = false;
        if due && made.is_ok() {
            self.record_checkpoint(upto).await;
        }
        made
    }

    /// Pauses: no record could be reappended, and the engine would ask for room again at once.
    async fn later(&self) {
        self.executor.sleep(Duration::from_millis(100)).await;
    }

    fn let_go(&self, notes: UserRecordId) {
        let mut inner = self.inner.lock();
        inner.let_go = inner.let_go.max(notes);
        drop(inner);
        self.engine.let_go(notes);
        self.hits.hit(Fault::JoinedLetGo);
    }

    /// Logs a checkpoint after a successful commit.
    async fn record_checkpoint(&self, upto: u64) {
        let record = Record::Checkpoint { filesystem: 0, upto }.encode();
        let Ok((frame, _)) = self.engine.note(&record).await else { return };
        if self.engine.commit(frame).await.is_ok() {
            let mut inner = self.inner.lock();
            inner.checkpoint = inner.checkpoint.max(upto);
            inner.touched.retain(|_, number| *number > upto);
            self.hits.hit(Fault::JoinedCheckpoint);
        }
    }

    /// Makes a checkpoint, see [`Server::make_checkpoint`].
    pub(in crate::joined) async fn checkpoint(&self) -> Result<(), Refused> {
        self.make_checkpoint(None).await
    }

    /// Makes a checkpoint each time `every` has passed, for ever.
    pub(in crate::joined) async fn make_checkpoints(&self, every: Duration) {
        loop {
            self.executor.sleep(every).await;
            // A failure is reported to the clients that change something.
            let _ = self.checkpoint().await;
        }
    }

    /// Releases user records whenever the engine asks.
    pub(in crate::joined) async fn answer_for_notes(&self) {
        while let Some(notes) = self.engine.notes_due().await {
            if plant::active("notes are let go without a checkpoint") {
                self.let_go(notes);
                continue;
            }
            // The engine asks for the next one soon enough.
            let _ = self.make_checkpoint(Some(notes)).await;
        }
    }

    /// Stops cleanly, with no change in progress. Returns true if all answered changes are durable.
    pub(in crate::joined) async fn stop(&self) -> Result<bool, Error> {
        let settled = self.store.settle().await.is_ok();
        let made = self.make_checkpoint(Some(UserRecordId::MAX)).await.is_ok();
        if made {
            // The record of this checkpoint stays as long as any record before it.
            self.engine.let_go(UserRecordId::MAX);
        } else {
            self.hits.hit(Fault::JoinedStopWithout);
        }
        self.engine.close().await?;
        if made {
            self.store.lock().volume.clear_slots();
        }
        Ok(settled)
    }
}
