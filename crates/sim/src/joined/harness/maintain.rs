//! The start of service, checkpoints, and the stop.

use forebay_metalog::StartError;

use super::files::Recovered;
use super::*;
use crate::joined::planted_bugs;

impl Harness {
    /// Returns true if changes have to wait for more than their records.
    #[cfg(test)]
    pub(in crate::joined) fn is_failing(&self) -> bool {
        self.volume.is_failing()
    }

    /// Fails while nothing may be changed.
    pub(super) fn can_change(&self) -> Result<(), Refused> {
        let refusal = self.volume.refusal();
        if refusal == Some(Refused::Busy) {
            self.hits.hit(Fault::JoinedBusy);
        }
        refusal.map_or(Ok(()), Err)
    }

    /// Returns the changes that a commit proves if it begins now.
    pub(in crate::joined) fn proof(&self) -> Proof {
        self.sequence.proof()
    }

    /// Notes the proof of a successful commit that began after the proof was taken.
    pub(in crate::joined) fn proven(&self, proof: Proof) {
        self.volume.proven(proof);
    }

    /// Concludes a recovery that has made the tree equal to the log. Service begins.
    pub(in crate::joined) async fn conclude(
        &self,
        mut recovery: Recovery,
    ) -> Result<(), StartError<Refused>> {
        let mut files = [(0, Recovered(self.store.clone()))];
        recovery.decide(&mut files).await?;
        self.checkpoints.keep_recovered(recovery.replies());
        recovery.declare(&**self.sequence.log()).await?;
        let replies = recovery.conclude(&self.sequence, &self.checkpoints, &mut files).await?;
        let remembers = !planted_bugs::active("replies in the log are not remembered");
        self.inner.lock().replies = Replies::of(replies.into_iter().filter(|_| remembers));
        // This server keeps no state of clients.
        self.checkpoints.keep_state(Box::new(|_, _| Vec::new()));
        Ok(())
    }

    /// Makes a checkpoint for a request that changes more of a file than the log has, if the log has any of the file.
    pub(super) async fn checkpoint_touched(&self, file: Identity) -> Result<bool, Refused> {
        self.checkpoints.make_of_touched(&self.volume, &self.files, &file).await
    }

    /// Makes a checkpoint each time `every` has passed, for ever.
    pub(in crate::joined) async fn make_checkpoints(&self, every: Duration) {
        loop {
            self.executor.sleep(every).await;
            let before = self.volume.checkpoint();
            self.checkpoints.make().await;
            if self.volume.checkpoint() > before {
                self.hits.hit(Fault::JoinedCheckpoint);
            }
        }
    }

    /// Releases user records whenever the engine asks.
    pub(in crate::joined) async fn answer_for_notes(&self) {
        self.checkpoints.answer().await;
    }

    /// Stops cleanly, with no change in progress. Returns true if all answered changes are durable.
    pub(in crate::joined) async fn stop(&self) -> Result<bool, Error> {
        let synced = self.store.sync_all().await.is_ok();
        let made = self.checkpoints.make_last().await;
        if !made {
            self.hits.hit(Fault::JoinedStopWithout);
        }
        self.engine.close().await?;
        if made {
            self.store.lock().volume.clear_slots();
        }
        Ok(synced)
    }

    /// Returns the error for a journal of which only the failure is known.
    pub(super) fn io_error(refused: Refused) -> Error {
        Error::Backing(refused.to_cache())
    }
}
