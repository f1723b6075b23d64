//! The contents of all user records in the log, gathered.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::operation::Operation;
use crate::record::{Change, Record};

/// The contents of all user records in the log.
#[derive(Debug, Default)]
pub struct LogContents {
    /// Changes that the file system itself made durable, by number.
    pub changes: BTreeMap<u64, Change>,
    /// All changes up to this number are settled: durable, or known never to have happened.
    pub settled: u64,
    /// The numbers of settled changes that never happened.
    pub void: HashSet<u64>,
    /// Changes that the log makes durable, by file system. Each list is in order of numbers, which is the order in
    /// which the changes first came into the log.
    pub operations: BTreeMap<u32, Vec<Operation>>,
    /// Changes of the state of clients, by number.
    pub states: BTreeMap<u64, Box<[u8]>>,
    /// For each file system, the number up to which all its operations are durable in it.
    pub checkpoints: HashMap<u32, u64>,
    /// The replies, and the changes of clients' state, count no more up to this number.
    pub forgotten: u64,
}

impl LogContents {
    /// Reads the user records in the order of the log. Returns `None` if one of them is no record of this version.
    pub fn read<'a>(notes: impl IntoIterator<Item = &'a [u8]>) -> Option<Self> {
        let mut found = LogContents::default();
        for note in notes {
            match Record::decode(note)? {
                Record::Change(change) => {
                    found.settled = found.settled.max(change.confirmed);
                    found.changes.insert(change.number, *change);
                }
                Record::Settled { upto, void } => {
                    found.settled = found.settled.max(upto);
                    found.void.extend(void);
                }
                Record::Operation(operation) => {
                    found.operations.entry(operation.filesystem).or_default().push(*operation);
                }
                Record::Checkpoint { filesystem, upto } => found.reached(filesystem, upto),
                Record::State { number, bytes } => _ = found.states.insert(number, bytes),
                Record::Forgotten { upto } => found.forgotten = found.forgotten.max(upto),
            }
        }
        // An operation that is needed for long is reappended, so its record may occur more than once.
        for operations in found.operations.values_mut() {
            operations.sort_by_key(|operation| operation.number);
            operations.dedup_by_key(|operation| operation.number);
        }
        Some(found)
    }

    /// Notes that all changes up to the number `upto` are durable in a file system.
    pub fn reached(&mut self, filesystem: u32, upto: u64) {
        let known = self.checkpoints.entry(filesystem).or_default();
        *known = upto.max(*known);
    }

    /// Forgets the replies and the state of clients in all records up to now.
    pub fn forget(&mut self) {
        self.forgotten = self.last();
    }

    /// Returns the operations of a file system, and its checkpoint.
    pub fn of(&self, filesystem: u32) -> (&[Operation], u64) {
        let operations = self.operations.get(&filesystem).map_or(&[][..], Vec::as_slice);
        (operations, self.checkpoints.get(&filesystem).copied().unwrap_or(0))
    }

    /// Returns the highest number in the log. A slot may hold a higher one.
    pub fn last(&self) -> u64 {
        let numbers = self.operations.values().flatten().map(|operation| operation.number);
        let numbers = numbers.chain(self.changes.keys().copied()).chain(self.checkpoints.values().copied());
        let numbers = numbers.chain(self.states.keys().copied());
        numbers.max().unwrap_or(0).max(self.settled).max(self.forgotten)
    }

    /// Returns the replies of all changes that happened, and the changes of clients' state, with their numbers and in
    /// the order of these, except those that count no more.
    pub fn replies(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let changes = self.changes.iter().filter(|(number, _)| !self.void.contains(number));
        let mut replies: BTreeMap<u64, &[u8]> =
            changes.map(|(number, change)| (*number, &*change.answer)).collect();
        let operations = self.operations.values().flatten();
        replies.extend(operations.map(|operation| (operation.number, &*operation.reply)));
        replies.extend(self.states.iter().map(|(number, state)| (*number, &**state)));
        replies.into_iter().filter(|(number, reply)| *number > self.forgotten && !reply.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_come_in_order_and_once_however_often_they_were_written() {
        let operation = |number: u64| {
            let (entries, objects, reply) = Default::default();
            Record::Operation(Box::new(Operation { number, filesystem: 3, entries, objects, reply }))
        };
        let notes = [1, 2, 3, 7, 1, 3, 8, 1, 9].map(|number| operation(number).encode());
        let found = LogContents::read(notes.iter().map(Vec::as_slice)).unwrap();
        let numbers: Vec<_> = found.of(3).0.iter().map(|operation| operation.number).collect();
        assert_eq!((numbers, found.last()), (vec![1, 2, 3, 7, 8, 9], 9));
    }

    #[test]
    fn replies_and_states_that_were_forgotten_count_no_more() {
        let state = |number: u64| Record::State { number, bytes: [number as u8].into() };
        let operation = |number: u64| {
            let (entries, objects, reply) = (Default::default(), Vec::new(), [number as u8].into());
            Record::Operation(Box::new(Operation { number, filesystem: 3, entries, objects, reply }))
        };
        let notes = [state(1), operation(2), state(3), Record::Forgotten { upto: 3 }, state(4), operation(5)];
        let notes: Vec<_> = notes.iter().map(Record::encode).collect();
        let read = |notes: &[Vec<u8>]| LogContents::read(notes.iter().map(Vec::as_slice)).unwrap();
        let replies = |found: &LogContents| found.replies().map(|(number, _)| number).collect::<Vec<_>>();
        let found = read(&notes);
        assert_eq!((replies(&found), found.of(3).0.len()), (vec![4, 5], 2), "operations count");
        // A lower number must not be given out once more.
        assert_eq!(read(&notes[3..4]).last(), 3);
        let mut found = read(&notes[..3]);
        assert_eq!(replies(&found), [1, 2, 3]);
        found.forget();
        assert_eq!((replies(&found), found.last()), (vec![], 3));
    }
}
