//! The numbers of changes, and the proofs that follow from them.
//!
//! A change gets its number under its locks, after it was carried out. A RENAME gets its number before that, with its
//! [`crate::RenameIntent`]. Records go to the log in order of numbers.

use std::collections::{BTreeMap, BTreeSet};

/// The counter of changes. It knows the changes that are carried out and the changes that are durable.
#[derive(Debug, Default)]
pub struct Numbers {
    last: u64,
    open: BTreeSet<u64>,
    ahead: BTreeSet<u64>,
}

/// The changes that are known to be durable in a file system: all up to a number, except a few.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    /// The highest number that is known to be durable.
    pub upto: u64,
    but: BTreeSet<u64>,
}

impl Numbers {
    /// Continues after `last`: everything up to it is settled.
    pub fn mark_reconciled(&mut self, last: u64) {
        self.last = last;
    }

    /// Returns the number of a change that was just carried out.
    pub fn begin(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Returns the number of a change that was just carried out and is not durable before [`Numbers::durable`].
    pub fn begin_open(&mut self) -> u64 {
        let number = self.begin();
        self.open.insert(number);
        number
    }

    /// Notes that a change is durable; [`Numbers::begin_open`] gave its number.
    pub fn durable(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// Returns the number of a change that is still to be carried out, until [`Numbers::end_ahead`].
    pub fn begin_ahead(&mut self) -> u64 {
        let number = self.begin();
        self.ahead.insert(number);
        number
    }

    /// Notes that a change is carried out or never will be; [`Numbers::begin_ahead`] gave its number.
    pub fn end_ahead(&mut self, number: u64) {
        self.ahead.remove(&number);
    }

    /// Returns the number of the last change.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Returns the number up to which all changes are durable that [`Numbers::begin_open`] numbered.
    pub fn confirmed(&self) -> u64 {
        self.open.first().map_or(self.last, |first| first - 1)
    }

    /// Returns the number up to which all changes are carried out.
    pub fn carried_out(&self) -> u64 {
        self.ahead.first().map_or(self.last, |first| first - 1)
    }

    /// Returns the proof that a commit of the journal gives if it begins now.
    pub fn proof(&self) -> Proof {
        Proof { upto: self.last, but: self.ahead.clone() }
    }
}

impl Proof {
    /// Returns true if the change is known to be durable.
    pub fn covers(&self, number: u64) -> bool {
        number <= self.upto && !self.but.contains(&number)
    }
}

/// Work to be done in order of numbers. Each number has its turn, or is skipped.
#[derive(Debug)]
pub struct Turns<T> {
    next: u64,
    /// Holds no more entries than requests are in progress.
    ready: BTreeMap<u64, Option<T>>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Turns { next: 0, ready: BTreeMap::new() }
    }
}

impl<T> Turns<T> {
    /// Sets the first number.
    pub fn begin(&mut self, next: u64) {
        self.next = next;
    }

    /// Marks a number as ready. With `None` for `turn`, there is nothing to do for it.
    pub fn ready(&mut self, number: u64, turn: Option<T>) {
        self.ready.insert(number, turn);
    }

    /// Returns the next work; `None` if the next number is not ready.
    pub fn take(&mut self) -> Option<T> {
        while let Some(turn) = self.ready.remove(&self.next) {
            self.next += 1;
            if turn.is_some() {
                return turn;
            }
        }
        None
    }
}

/// Creations in progress. Clients can see the object that a creation makes before the log has a record of it.
///
/// A thread that finds such an object may change the object, or its contents, only after the record of the creation is
/// in the log. Otherwise recovery could find the change and not the object.
#[derive(Debug, Default)]
pub struct Creations {
    last: u64,
    open: BTreeSet<u64>,
}

impl Creations {
    /// Begins a creation and returns its number. The first number is 1.
    pub fn begin(&mut self) -> u64 {
        self.last += 1;
        self.open.insert(self.last);
        self.last
    }

    /// Ends a creation: its record is in the log, or never will be.
    pub fn end(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// Returns the number of the last creation that may have made an object that is visible now; 0 if there is none.
    pub fn latest(&self) -> u64 {
        self.open.last().copied().unwrap_or(0)
    }

    /// Returns true if the creation with this number has ended.
    pub fn has_ended(&self, number: u64) -> bool {
        !self.open.contains(&number)
    }

    /// Returns true if all creations up to this number have ended.
    pub fn have_ended(&self, upto: u64) -> bool {
        self.open.first().is_none_or(|first| *first > upto)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_proves_what_was_carried_out_before_it() {
        let mut numbers = Numbers::default();
        numbers.mark_reconciled(10);
        let (first, ahead, last) = (numbers.begin(), numbers.begin_ahead(), numbers.begin());
        assert_eq!((numbers.carried_out(), numbers.last()), (first, last));
        let proof = numbers.proof();
        assert!(proof.covers(first) && !proof.covers(ahead) && proof.covers(last) && !proof.covers(last + 1));
        numbers.end_ahead(ahead);
        assert_eq!(numbers.carried_out(), last);
        assert!(!proof.covers(ahead) && numbers.proof().covers(ahead));
    }

    #[test]
    fn turns_come_in_order_of_numbers() {
        let mut turns = Turns::default();
        turns.begin(1);
        turns.ready(3, Some('c'));
        assert_eq!(turns.take(), None);
        turns.ready(1, Some('a'));
        assert_eq!((turns.take(), turns.take()), (Some('a'), None));
        turns.ready(2, None);
        assert_eq!((turns.take(), turns.take()), (Some('c'), None));
    }
}
