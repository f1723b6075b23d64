//! Checkpoints, and letting go of notes.

use super::*;
use crate::joined::plant;

impl Server {
    /// Everything that has a number by now is in the file system, durably, and the log says so. `notes`: those up to this
    /// one are let go then.
    async fn make_checkpoint(&self, notes: Option<NoteId>) {
        while std::mem::replace(&mut self.inner.lock().checkpointing, true) {
            self.wait().await;
        }
        let (upto, due) = {
            let inner = self.inner.lock();
            (inner.numbers.carried_out(), inner.last > inner.checkpoint)
        };
        if due && !plant::active("a checkpoint without a commit") {
            self.store.commit().await;
        }
        if let Some(notes) = notes {
            self.let_go(notes);
        }
        self.inner.lock().checkpointing = false;
        if due {
            self.record_checkpoint(upto).await;
        }
    }

    fn let_go(&self, notes: NoteId) {
        let mut inner = self.inner.lock();
        inner.let_go = inner.let_go.max(notes);
        drop(inner);
        self.engine.let_go(notes);
        self.hits.hit(Fault::JoinedLetGo);
    }

    /// Puts it into the log that a commit succeeded.
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

    /// See [`Server::make_checkpoint`].
    pub(in crate::joined) async fn checkpoint(&self) {
        self.make_checkpoint(None).await;
    }

    /// Makes one every so often, for ever.
    pub(in crate::joined) async fn make_checkpoints(&self, every: Duration) {
        loop {
            self.executor.sleep(every).await;
            self.checkpoint().await;
        }
    }

    /// Lets go of notes whenever the engine asks.
    pub(in crate::joined) async fn answer_for_notes(&self) {
        while let Some(notes) = self.engine.notes_due().await {
            if plant::active("notes are let go without a checkpoint") {
                self.let_go(notes);
                continue;
            }
            self.make_checkpoint(Some(notes)).await;
        }
    }

    /// A clean stop, with nothing under way.
    pub(in crate::joined) async fn stop(&self) -> Result<u64, Error> {
        self.store.settle().await;
        self.make_checkpoint(Some(NoteId::MAX)).await;
        // The record of this checkpoint stays as long as anything before it does.
        self.engine.let_go(NoteId::MAX);
        let closed = self.engine.close().await;
        self.store.lock().volume.clear_slots();
        closed
    }
}
