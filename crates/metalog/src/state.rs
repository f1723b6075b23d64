//! The state of clients in the log: sessions, opens and locks, whose records this crate does not read.
//!
//! | moment | code |
//! |---|---|
//! | a request has changed the state | it takes numbers under the lock of the state, then [`log_state`] |
//! | a request has changed names as well | its reply is in the record of the change |
//! | the log needs user records to be released | a [`Snapshot`] replaces them |
//! | a start | all records, in the order of their numbers |

use std::sync::Arc;

use forebay_engine::{Error, Seq, UserRecordId};
use forebay_oplog::Record;

use crate::io::{Done, Files, Log};
use crate::sequence::{Sequence, Turn};
use crate::service::unlogged;
use crate::volume::Volume;

/// Returns records that describe the whole state, each with the number that it took, by the first argument, under the
/// lock of the state. They need not be in order. All changes of names and attributes up to the second argument are
/// durable in their file systems, and the log may release their records with the replies in them.
pub type Snapshot = Box<dyn Fn(&dyn Fn() -> u64, u64) -> Vec<(u64, Vec<u8>)> + Send + Sync>;

impl<L: Log> Sequence<L> {
    /// Returns the number of a change of clients' state. The caller holds the lock of the state, and soon gives the
    /// number to [`log_state`]: later records wait for it.
    pub fn number_state(&self) -> u64 {
        self.begin(crate::DurableBy::Log)
    }

    /// Returns a snapshot of the state; the changes up to `durable` need no record. Its numbers have no turn: a record
    /// that waits for its turn may wait for the room that the release behind a snapshot makes.
    pub(crate) fn snapshot(self: &Arc<Self>, snapshot: &Snapshot, durable: u64) -> Vec<(u64, Vec<u8>)> {
        let records = snapshot(&|| self.number_state(), durable);
        records.iter().for_each(|(number, _)| self.skip(*number));
        records
    }

    /// Appends the records of a snapshot, durably. Returns the last user record that they replace, and their bytes.
    /// Returns `None` without room, or if the log is broken.
    pub(crate) async fn note_snapshot(&self, records: Vec<(u64, Vec<u8>)>) -> Option<(UserRecordId, usize)> {
        let (mut first, mut last, mut len) = (None, None, 0);
        for (number, bytes) in records {
            let record = Record::State { number, bytes: bytes.into() }.encode();
            let (frame, id) = self.log.replace_user_records(&record).await.ok()??;
            len += record.len();
            first = first.or(Some(id));
            last = Some(frame);
        }
        if let Some(frame) = last {
            self.log.commit(frame).await.ok()?;
        }
        Some((first.map_or(UserRecordId::MAX, |first| first - 1), len))
    }
}

/// Appends a change of clients' state to the log, behind all changes with lower numbers. Calls `done`, if there is one,
/// when the change is durable. May wait for room.
///
/// If the log does not take the change, a file system records that the log is lost: its records must not come back.
/// Then `done` is called as well, because the running server has the state.
pub async fn log_state<F: Files>(
    files: &Arc<F>,
    volume: &Arc<Volume<F>>,
    number: u64,
    bytes: Vec<u8>,
    done: Option<Done<F::Error>>,
) {
    let record = Record::State { number, bytes: bytes.into() }.encode();
    let (files, volume, sequence) = (files.clone(), volume.clone(), volume.sequence.clone());
    let lost = move |done: Option<Done<F::Error>>| {
        unlogged(&files, &volume, F::Request::default(), done.unwrap_or_else(|| Box::new(drop)));
    };
    let log = sequence.log.clone();
    let noted = move |noted: Result<(Seq, _), Error>| match (noted, done) {
        (Ok((frame, _)), Some(done)) => {
            let recorded = move |durable: Result<(), Error>| match durable {
                Ok(()) => done(Ok(())),
                Err(_) => lost(Some(done)),
            };
            log.when_durable(frame, Box::new(recorded));
        }
        (Ok(_), None) => {}
        (Err(_), done) => lost(done),
    };
    sequence.submit(number, Turn { record, noted: Box::new(noted) }).await;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use forebay_common::lock::Mutex;

    use super::*;
    use crate::DurableBy;
    use crate::tests::{Bench, Refused, at_once, touching};

    /// Logs a change with this number; returns its result.
    fn logged(bench: &Bench, number: u64) -> Option<Result<(), Refused>> {
        let result = Arc::new(Mutex::new(None));
        let theirs = result.clone();
        let done = Box::new(move |result| *theirs.lock() = Some(result));
        at_once(log_state(&bench.disk, &bench.volume, number, vec![number as u8], Some(done)));
        result.lock().take()
    }

    fn states(bench: &Bench) -> Vec<u64> {
        let number = |record: &Record| match record {
            Record::State { number, bytes } => {
                assert_eq!(**bytes, [*number as u8]);
                Some(*number)
            }
            _ => None,
        };
        bench.log.decoded().iter().filter_map(number).collect()
    }

    #[test]
    fn changes_of_the_state_are_in_the_log_in_the_order_of_their_numbers() {
        let bench = Bench::new();
        let sequence = bench.volume.sequence.clone();
        let (first, second) = (sequence.number_state(), sequence.number_state());
        assert_eq!(logged(&bench, second), None, "the first one is not there");
        assert_eq!(logged(&bench, first), Some(Ok(())));
        assert_eq!(states(&bench), [first, second]);
        assert!(bench.asked().is_empty(), "no file system has anything to do");
    }

    #[test]
    fn a_change_that_the_log_does_not_take_marks_the_log_as_lost() {
        let bench = Bench::new();
        bench.log.lost.store(true, Relaxed);
        let number = bench.volume.sequence.number_state();
        assert_eq!(logged(&bench, number), Some(Ok(())));
        assert_eq!(bench.asked()[..2], ["broke".to_owned(), format!("lost 77 after {number}")]);
    }

    #[test]
    fn a_snapshot_does_not_wait_for_turns_and_holds_none_up() {
        let bench = Bench::new();
        let sequence = bench.volume.sequence.clone();
        let waits = sequence.number_state();
        let snapshot: Snapshot = Box::new(|number, _| {
            let number = number();
            vec![(number, vec![number as u8])]
        });
        let records = sequence.snapshot(&snapshot, 0);
        assert!(at_once(sequence.note_snapshot(records)).is_some());
        assert_eq!(states(&bench), [waits + 1]);
        drop(bench.volume.changed(DurableBy::Log, touching(1)));
        assert_eq!(logged(&bench, waits), Some(Ok(())));
        assert_eq!(states(&bench), [waits + 1, waits]);
    }
}
