//! What the journal of the file system is good for, as `vfs` finds out: docs/metadata-log.md, "Checkpoint".

use forebay_engine::io::{BackingError, BackingResult};
use forebay_oplog::{Operation, Proof};

use super::*;
use crate::joined::plant;

/// So long a commit may take before nobody waits for it any more.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Journal {
    #[default]
    Sound,
    /// A commit does not end: changes have to come again.
    Late,
    /// A commit failed: it is not known any more what the file system has, and nothing may be changed.
    Failed,
}

/// A commit under way.
pub(super) struct UnderWay {
    begun: Duration,
    /// What it proves if it succeeds.
    proof: Proof,
    ended: Arc<Mutex<Option<BackingResult<()>>>>,
}

impl Server {
    fn journal(&self) -> Journal {
        self.inner.lock().journal
    }

    /// Changes do not wait for their records only.
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

    /// What a commit that begins now will prove.
    pub(in crate::joined) fn proof(&self) -> Proof {
        self.inner.lock().numbers.proof()
    }

    /// A commit succeeded that began after this was true.
    pub(in crate::joined) fn proven(&self, proof: Proof) {
        let mut inner = self.inner.lock();
        if proof.upto > inner.proven.upto && inner.journal == Journal::Sound {
            inner.proven = proof;
        }
    }

    /// Everything carried out so far becomes durable. Who calls this makes a checkpoint.
    pub(super) async fn commit_journal(&self) -> Result<(), Refused> {
        let under_way = self.inner.lock().commit.is_some();
        // One that has ended since says nothing of what was done after it had begun.
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

    /// What comes of the commit under way, within so long of its beginning.
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

    /// Lets go of notes but of those that recovery may need, since the journal fails. False: they stay for now.
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

    /// Nothing is known of the journal but that it fails.
    pub(super) fn io_error(refused: Refused) -> Error {
        Error::Backing(BackingError::Io(if refused == Refused::Busy { 110 } else { 5 }))
    }
}
