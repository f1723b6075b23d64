//! The state of the file system's journal, as `vfs` finds it out: docs/metadata-log.md, "Checkpoint".

use forebay_engine::io::{BackingError, BackingResult};
use forebay_oplog::{Operation, Proof};

use super::*;
use crate::joined::plant;

/// The time that a commit may take before its waiters give up.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Journal {
    #[default]
    Sound,
    /// A commit does not end: clients have to repeat their changes.
    Late,
    /// A commit failed: the contents of the file system are unknown, and nothing may be changed.
    Failed,
}

/// A commit in progress.
pub(super) struct UnderWay {
    begun: Duration,
    /// The changes that the commit proves if it succeeds.
    proof: Proof,
    ended: Arc<Mutex<Option<BackingResult<()>>>>,
}

impl Server {
    fn journal(&self) -> Journal {
        self.inner.lock().journal
    }

    /// Returns true if changes have to wait for more than their records.
    pub(in crate::joined) fn is_failing(&self) -> bool {
        self.journal() != Journal::Sound
    }

    /// Fails while nothing may be changed.
    pub(super) fn can_change(&self) -> Result<(), Refused> {
        match self.journal() {
            Journal::Sound => Ok(()),
            Journal::Late => {
                self.hits.hit(Fault::JoinedBusy);
                Err(Refused::Busy)
            }
            Journal::Failed => Err(Refused::Io),
        }
    }

    /// Returns the changes that a commit proves if it begins now.
    pub(in crate::joined) fn proof(&self) -> Proof {
        self.inner.lock().numbers.proof()
    }

    /// Notes the proof of a successful commit that began after the proof was taken.
    pub(in crate::joined) fn proven(&self, proof: Proof) {
        let mut inner = self.inner.lock();
        if proof.upto > inner.proven.upto && inner.journal == Journal::Sound {
            inner.proven = proof;
        }
    }

    /// Makes every change carried out so far durable. Only the maker of a checkpoint calls it.
    pub(super) async fn commit_journal(&self) -> Result<(), Refused> {
        let under_way = self.inner.lock().commit.is_some();
        // A commit that has ended meanwhile proves nothing about changes after its beginning.
        self.end_commit(Duration::ZERO).await?;
        if under_way && plant::active("a late commit covers what was done while it was under way") {
            return Ok(());
        }
        if self.journal() == Journal::Failed {
            return Err(Refused::Io);
        }
        let (proof, begun, ended) = (self.proof(), self.executor.time(), Arc::new(Mutex::new(None)));
        let (commit, result) = (self.store.commit(), ended.clone());
        let commit = async move {
            let committed = commit.await;
            *result.lock() = Some(committed);
        };
        self.inner.lock().commit = Some(UnderWay { begun, proof, ended });
        self.executor.start("commit", Box::pin(commit));
        self.end_commit(PATIENCE).await
    }

    /// Waits for the result of the commit in progress, at most `patience` from its beginning.
    async fn end_commit(&self, patience: Duration) -> Result<(), Refused> {
        let under_way = |inner: &Inner| inner.commit.as_ref().map(|it| (it.begun, it.ended.clone()));
        let Some((begun, ended)) = under_way(&self.inner.lock()) else { return Ok(()) };
        let mut rest = Duration::from_micros(50);
        let result = loop {
            if let Some(result) = *ended.lock() {
                break result;
            }
            if self.executor.time() >= begun + patience {
                let before = std::mem::replace(&mut self.inner.lock().journal, Journal::Late);
                if before != Journal::Late {
                    self.hits.hit(Fault::JoinedLate);
                }
                return Err(Refused::Busy);
            }
            self.executor.sleep(rest).await;
            rest = (rest * 2).min(Duration::from_millis(250));
        };
        let proof = self.inner.lock().commit.take().map(|commit| commit.proof);
        if result.is_err() {
            self.inner.lock().journal = Journal::Failed;
            return Err(Refused::Io);
        }
        self.inner.lock().journal = Journal::Sound;
        proof.into_iter().for_each(|proof| self.proven(proof));
        Ok(())
    }

    /// Releases user records except those that recovery may need, since the journal fails. Returns false if all stay
    /// for now.
    pub(super) async fn carry(&self, upto: UserRecordId) -> bool {
        let needed = |note: &[u8]| match Record::decode(note) {
            Some(Record::Operation(operation)) => self.needs(&operation),
            _ => false,
        };
        self.engine.let_go_but(upto, needed).await.unwrap_or(false)
    }

    fn needs(&self, operation: &Operation) -> bool {
        let mut inner = self.inner.lock();
        let needs = inner.journal != Journal::Sound && !inner.proven.covers(operation.number);
        if needs {
            self.hits.hit(Fault::JoinedCarried);
        } else {
            inner.dropped.insert(operation.number);
        }
        needs
    }

    /// Returns the error for a journal of which only the failure is known.
    pub(super) fn io_error(refused: Refused) -> Error {
        Error::Backing(BackingError::Io(if refused == Refused::Busy { 110 } else { 5 }))
    }
}
