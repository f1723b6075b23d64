//! Which changes have numbers, and what that says of them.
//!
//! A change gets its number under its locks, once it was carried out; a RENAME before that, with its [`crate::RenameIntent`].
//! Records go to the log in order of numbers.

use std::collections::{BTreeMap, BTreeSet};

/// Numbers changes, and knows which are carried out and which are durable.
#[derive(Debug, Default)]
pub struct Numbers {
    last: u64,
    open: BTreeSet<u64>,
    ahead: BTreeSet<u64>,
}

/// What is known to be in a file system, durably: all changes up to a number, but for a few.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    /// The last of them.
    pub upto: u64,
    but: BTreeSet<u64>,
}

impl Numbers {
    /// Everything up to `last` is settled.
    pub fn settled(&mut self, last: u64) {
        self.last = last;
    }

    /// The number of a change that was just carried out.
    pub fn begin(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The same; it is not durable before [`Numbers::durable`].
    pub fn begin_open(&mut self) -> u64 {
        let number = self.begin();
        self.open.insert(number);
        number
    }

    /// A change that [`Numbers::begin_open`] numbered is durable.
    pub fn durable(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// The number of a change that is still to be carried out, until [`Numbers::through`].
    pub fn begin_ahead(&mut self) -> u64 {
        let number = self.begin();
        self.ahead.insert(number);
        number
    }

    /// A change that [`Numbers::begin_ahead`] numbered is carried out, or never will be.
    pub fn through(&mut self, number: u64) {
        self.ahead.remove(&number);
    }

    /// The number of the last change.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// All changes up to this one are durable, of those that [`Numbers::begin_open`] numbered.
    pub fn confirmed(&self) -> u64 {
        self.open.first().map_or(self.last, |first| first - 1)
    }

    /// All changes up to this one are carried out.
    pub fn carried_out(&self) -> u64 {
        self.ahead.first().map_or(self.last, |first| first - 1)
    }

    /// What a commit of the journal that begins now will prove.
    pub fn proof(&self) -> Proof {
        Proof { upto: self.last, but: self.ahead.clone() }
    }
}

impl Proof {
    /// Whether a change is among what is known.
    pub fn covers(&self, number: u64) -> bool {
        number <= self.upto && !self.but.contains(&number)
    }
}

/// What is to be done in order of numbers: each has its turn, or is skipped.
#[derive(Debug)]
pub struct Turns<T> {
    next: u64,
    /// No more than there are requests under way.
    ready: BTreeMap<u64, Option<T>>,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Turns { next: 0, ready: BTreeMap::new() }
    }
}

impl<T> Turns<T> {
    /// The first number is `next`.
    pub fn begin(&mut self, next: u64) {
        self.next = next;
    }

    /// A number has come; without `turn` there is nothing to be done for it.
    pub fn ready(&mut self, number: u64, turn: Option<T>) {
        self.ready.insert(number, turn);
    }

    /// The next thing to be done; `None`: that has not come.
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

/// Creations under way: what they make can be seen, and has no place in the log yet. Whoever finds such an object may not
/// change it, or what is in it, before the record of its creation is in the log: else recovery could find the change and not
/// the object.
#[derive(Debug, Default)]
pub struct Creations {
    last: u64,
    open: BTreeSet<u64>,
}

impl Creations {
    /// One begins; they are numbered from 1.
    pub fn begin(&mut self) -> u64 {
        self.last += 1;
        self.open.insert(self.last);
        self.last
    }

    /// Its record is in the log, or never will be.
    pub fn end(&mut self, number: u64) {
        self.open.remove(&number);
    }

    /// The last one that may have made what is seen now; 0: none.
    pub fn latest(&self) -> u64 {
        self.open.last().copied().unwrap_or(0)
    }

    /// Whether all up to this one have ended.
    pub fn is_through(&self, upto: u64) -> bool {
        self.open.first().is_none_or(|first| *first > upto)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_proves_what_was_carried_out_before_it() {
        let mut numbers = Numbers::default();
        numbers.settled(10);
        let (first, ahead, last) = (numbers.begin(), numbers.begin_ahead(), numbers.begin());
        assert_eq!((numbers.carried_out(), numbers.last()), (first, last));
        let proof = numbers.proof();
        assert!(proof.covers(first) && !proof.covers(ahead) && proof.covers(last) && !proof.covers(last + 1));
        numbers.through(ahead);
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
