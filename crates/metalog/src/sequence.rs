//! The order of changes: their numbers, and the order of their records in the log.
//!
//! Records go to the log in order of their numbers, which were given out under the locks of the changes. So a record
//! that is found after a crash has all earlier records that it builds on.

use std::sync::Arc;

use forebay_common::lock::Mutex;
use forebay_engine::wait::Gate;
use forebay_engine::{Error, Seq, UserRecordId};
use forebay_oplog::{Numbers, Proof, Turns};

use crate::change::DurableBy;
use crate::io::Log;
use crate::planted_bugs;

/// Called with the place of a record, as part of its turn. The records with higher numbers wait.
pub(crate) type Noted = Box<dyn FnOnce(Result<(Seq, UserRecordId), Error>) + Send>;

/// A record that waits for its turn.
pub(crate) struct Turn {
    pub(crate) record: Vec<u8>,
    pub(crate) noted: Noted,
}

#[derive(Debug, Default)]
struct Inner {
    /// The number that distinguishes this log from other logs.
    identity: u64,
    numbers: Numbers,
}

#[derive(Default)]
struct Queue {
    turns: Turns<Turn>,
    /// True while some task appends records.
    busy: bool,
}

/// Numbers changes, and appends their records in order of numbers. No task waits for the records before its own. A task
/// that comes too early leaves its record to the task whose turn it is, which continues with all that follow.
pub struct Sequence<L> {
    pub(crate) log: Arc<L>,
    inner: Mutex<Inner>,
    /// Woken when a number that was ahead is so no more.
    through: Gate,
    queue: Mutex<Queue>,
}

impl<L: Log> Sequence<L> {
    /// Returns the sequence of a log, before [`Sequence::mark_reconciled`].
    pub fn new(log: Arc<L>) -> Self {
        Sequence { log, inner: Mutex::default(), through: Gate::default(), queue: Mutex::default() }
    }

    /// Returns the log that the records go to.
    pub fn log(&self) -> &Arc<L> {
        &self.log
    }

    /// Marks all changes up to `last` as settled. `identity` distinguishes this log from other logs.
    pub fn mark_reconciled(&self, identity: u64, last: u64) {
        let mut inner = self.inner.lock();
        inner.identity = identity;
        inner.numbers.mark_reconciled(last);
        drop(inner);
        self.queue.lock().turns.begin(last + 1);
    }

    /// Returns the log's identity, and the number of the last change.
    pub fn last(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.identity, inner.numbers.last())
    }

    /// Returns the operations that a commit which begins now will prove durable.
    pub fn proof(&self) -> Proof {
        self.inner.lock().numbers.proof()
    }

    /// Waits until every change that has a number by now is carried out. Other tasks are in its system calls, and they
    /// hold all the locks that they need.
    pub async fn carry_out(&self) {
        let (_, last) = self.last();
        self.through.until(|| (self.carried_out() >= last).then_some(())).await;
    }

    /// Returns the number up to which all changes are carried out.
    pub(crate) fn carried_out(&self) -> u64 {
        self.inner.lock().numbers.carried_out()
    }

    /// Returns the number of a change that was just carried out.
    pub(crate) fn begin(&self, way: DurableBy) -> u64 {
        let numbers = &mut self.inner.lock().numbers;
        if way == DurableBy::Each { numbers.begin_open() } else { numbers.begin() }
    }

    /// Returns the log's identity and the number of a change that is still to be carried out.
    pub(crate) fn begin_ahead(&self) -> (u64, u64) {
        let mut inner = self.inner.lock();
        (inner.identity, inner.numbers.begin_ahead())
    }

    /// Notes that a change which [`Sequence::begin_ahead`] numbered is carried out, or never will be.
    pub(crate) fn end_ahead(&self, number: u64) {
        self.inner.lock().numbers.end_ahead(number);
        self.through.wake();
    }

    /// Notes that a change is durable, or that there is no record of it.
    pub(crate) fn durable(&self, number: u64) {
        self.inner.lock().numbers.durable(number);
    }

    /// Returns the number up to which all changes of [`DurableBy::Each`] are durable.
    pub(crate) fn confirmed(&self) -> u64 {
        self.inner.lock().numbers.confirmed()
    }

    /// Appends a record when it is this number's turn, or leaves that to the task whose turn it is. Each number has its
    /// turn, or is skipped, soon after it was given out. The future must be polled to its end: records with higher
    /// numbers wait for it.
    pub(crate) async fn submit(&self, number: u64, turn: Turn) {
        if let Some(turn) = self.ready(number, Some(turn)) {
            self.lead(turn).await;
        }
    }

    /// Declares that this number has no record. Records with higher numbers may have to be appended now, and wait for
    /// room: a task beside the caller does that.
    pub(crate) fn skip(self: &Arc<Self>, number: u64) {
        if let Some(turn) = self.ready(number, None) {
            let sequence = self.clone();
            self.log.run(Box::pin(async move { sequence.lead(turn).await }));
        }
    }

    /// Drops the records that wait for their turns, and what waits for them: the server was killed.
    pub fn abandon(&self) {
        let turns = std::mem::take(&mut self.queue.lock().turns);
        drop(turns);
    }

    /// Marks a number as ready. Returns the turn that the caller has to carry out, if any.
    fn ready(&self, number: u64, turn: Option<Turn>) -> Option<Turn> {
        if planted_bugs::active("records go to the log as they come") {
            return turn;
        }
        let mut queue = self.queue.lock();
        queue.turns.ready(number, turn);
        if queue.busy {
            return None;
        }
        let next = queue.turns.take();
        queue.busy = next.is_some();
        next
    }

    /// Carries out a turn, and then all turns that are ready.
    async fn lead(&self, mut turn: Turn) {
        loop {
            let Turn { record, noted } = turn;
            noted(self.log.note(&record).await);
            let mut queue = self.queue.lock();
            let next = queue.turns.take();
            queue.busy = next.is_some();
            drop(queue);
            match next {
                Some(next) => turn = next,
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Memory, at_once};

    /// Submits a change whose record is its number.
    fn submit(sequence: &Sequence<Memory>, number: u8) {
        let turn = Turn { record: vec![number], noted: Box::new(drop) };
        at_once(sequence.submit(number.into(), turn));
    }

    #[test]
    fn records_come_in_order_of_numbers_whoever_comes_first() {
        let log = Arc::new(Memory::default());
        let sequence = Arc::new(Sequence::new(log.clone()));
        sequence.mark_reconciled(0, 0);
        submit(&sequence, 5);
        submit(&sequence, 3);
        sequence.skip(4);
        submit(&sequence, 2);
        assert!(log.records().is_empty(), "whoever comes early does not wait");
        submit(&sequence, 1);
        assert_eq!(log.records(), [[1], [2], [3], [5]]);
        submit(&sequence, 7);
        sequence.skip(6);
        assert_eq!(log.records().last().unwrap(), &[7]);
    }
}
