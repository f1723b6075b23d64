//! The metadata log's state of one file system.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_engine::io::Io;
use forebay_oplog::{Identity, LoggedObject, Proof};

use crate::io::{Failure, Files};
use crate::planted_bugs;
use crate::sequence::Sequence;
use crate::turnstile::Turnstile;

/// The state of a file system's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Sound,
    /// The journal cannot be asked for a commit now, so nothing may be changed.
    Refused,
    /// A commit failed: the contents of the file system are unknown, and nothing may be changed.
    Failed,
    /// A commit does not end. Clients have to repeat changes: the log keeps its records of the file system, and they
    /// must not become more.
    Late,
}

const STATES: [State; 4] = [State::Sound, State::Refused, State::Failed, State::Late];

/// A commit in progress.
pub(crate) struct UnderWay<E> {
    pub(crate) begun: Duration,
    /// The operations that the commit proves durable if it succeeds.
    pub(crate) proof: Proof,
    pub(crate) ended: Io<Result<(), E>>,
}

/// The operations of one file system that are in the log and not known to be durable in the file system.
pub struct Volume<F: Files> {
    pub(crate) sequence: Arc<Sequence<F::Log>>,
    /// The number of the file system, as in the keys of the cache.
    number: u32,
    /// The last change with a record.
    last: AtomicU64,
    /// All changes up to this one are in the file system, durably, and a durable record says so.
    checkpoint: AtomicU64,
    state: AtomicU8,
    /// The commit in progress; only the task that makes a checkpoint looks at it.
    pub(crate) commit: Mutex<Option<UnderWay<F::Error>>>,
    /// True once the file system says that the log was lost.
    lost: AtomicBool,
    losing: Turnstile,
    /// The operations that the last successful commit proves durable.
    proof: Mutex<Proof>,
    /// The objects that later changes touched, and the last change of each.
    touched: Mutex<HashMap<Identity, u64, foldhash::fast::RandomState>>,
}

impl<F: Files> Volume<F> {
    /// Returns the state of the file system `number`, of which the log has nothing yet.
    pub fn new(sequence: Arc<Sequence<F::Log>>, number: u32) -> Self {
        Volume {
            sequence,
            number,
            last: AtomicU64::new(0),
            checkpoint: AtomicU64::new(0),
            state: AtomicU8::new(State::Sound as u8),
            commit: Mutex::new(None),
            lost: AtomicBool::new(false),
            losing: Turnstile::default(),
            proof: Mutex::default(),
            touched: Mutex::default(),
        }
    }

    /// Returns the number of the file system, as in the keys of the cache.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Notes that a change of these objects got a number.
    pub(crate) fn touch(&self, number: u64, objects: &[LoggedObject]) {
        self.touched.lock().extend(objects.iter().map(|object| (object.identity, number)));
        self.last.fetch_max(number, Ordering::AcqRel);
    }

    /// Returns true if recovery would create the inode, or set its attributes, from the log.
    pub(crate) fn is_touched(&self, object: &Identity) -> bool {
        self.touched.lock().contains_key(object)
    }

    /// Returns true if no change made now could become durable.
    pub fn is_failing(&self) -> bool {
        self.state() != State::Sound
    }

    /// Returns the reason why nothing may be changed now, if there is one.
    pub fn refusal(&self) -> Option<F::Error> {
        match self.state() {
            State::Sound => None,
            State::Late => Some(F::Error::BUSY),
            State::Refused | State::Failed => Some(F::Error::FAILED),
        }
    }

    pub(crate) fn state(&self) -> State {
        STATES[usize::from(self.state.load(Ordering::Acquire))]
    }

    /// Returns the state before.
    pub(crate) fn set_state(&self, state: State) -> State {
        STATES[usize::from(self.state.swap(state as u8, Ordering::AcqRel))]
    }

    /// Notes the proof of a commit that succeeded and that began after the proof was taken.
    pub fn proven(&self, proof: Proof) {
        let mut known = self.proof.lock();
        if proof.upto > known.upto && !self.is_failing() {
            *known = proof;
        }
    }

    /// Returns true if recovery may need the record of this change, since the journal fails. A record that a checkpoint
    /// covers must not be kept for longer than the record of that checkpoint: recovery would carry the change out
    /// again.
    pub(crate) fn needs(&self, number: u64) -> bool {
        let covered = number <= self.checkpoint()
            && !planted_bugs::active("records are carried from before the checkpoint of a start");
        self.is_failing() && !covered && !self.proof.lock().covers(number)
    }

    /// Returns the number up to which all changes of this file system are durable in it. All changes up to
    /// `carried_out` were carried out before the last commit.
    pub(crate) fn durable(&self, carried_out: u64) -> u64 {
        let checkpoint = self.checkpoint();
        let has_more = self.last.load(Ordering::Acquire) > checkpoint;
        if self.is_failing() && has_more { checkpoint.min(carried_out) } else { carried_out }
    }

    /// Records in the file system that the log is lost, before a change without a record becomes durable. The journal
    /// keeps the order.
    pub(crate) async fn lose_log(&self, files: &F) -> Result<(), F::Error> {
        let _alone = self.losing.enter().await;
        if !self.lost.load(Ordering::Acquire) {
            self.sequence.carry_out().await;
            let (identity, upto) = self.sequence.last();
            files.record_lost_log(identity, upto)?;
            self.lost.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Returns true if a checkpoint has something to do: a change that none covers, or a journal that did not answer.
    /// Nothing is changed while the journal does not answer, so no change would make a checkpoint due.
    pub(crate) fn is_due(&self) -> bool {
        let asks_again = matches!(self.state(), State::Late | State::Refused);
        asks_again || self.last.load(Ordering::Acquire) > self.checkpoint()
    }

    /// Returns the number up to which the last checkpoint has made all changes durable.
    pub fn checkpoint(&self) -> u64 {
        self.checkpoint.load(Ordering::Acquire)
    }

    /// Notes that recovery, or a checkpoint, has reached this change.
    pub(crate) fn reached(&self, upto: u64) {
        self.checkpoint.fetch_max(upto, Ordering::AcqRel);
        self.touched.lock().retain(|_, number| *number > upto);
    }
}
