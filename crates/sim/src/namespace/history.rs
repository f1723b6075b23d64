//! The operations since a known state, and the state that a part of them leads to.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use forebay_oplog::{Identity, Operation};

use super::request::{Done, Request, carry_out};
use super::volume::{Refused, State, Volume};

/// A set of operations, one bit each in the order in which they were carried out.
pub type Set = u64;

/// An operation that was carried out.
#[derive(Clone, Debug)]
pub struct Step {
    /// The operation.
    pub done: Done,
    /// The number of transactions before the operation, and then the number after it.
    pub begin: usize,
    /// See `begin`.
    pub end: usize,
}

/// The result of only some of the operations, and the operations with the effect that they had in truth.
pub struct Replay {
    /// The resulting file system.
    pub volume: Volume,
    /// Operations with an unchanged effect.
    pub same: Set,
}

/// The operations since a known state.
#[derive(Clone)]
pub struct History {
    /// The file system before the operations.
    pub initial: Volume,
    /// The file system after the operations.
    pub volume: Volume,
    /// The operations.
    pub steps: Vec<Step>,
    /// The number before that of the first operation.
    pub before: u64,
    replays: RefCell<HashMap<Set, Rc<Replay>>>,
}

impl History {
    /// Makes an empty history, from a state in which no operation is open.
    pub fn new(mut initial: Volume, before: u64) -> Self {
        initial.history.clear();
        let volume = initial.clone();
        History { initial, volume, steps: Vec::new(), before, replays: RefCell::default() }
    }

    /// Makes the history of `steps` from `initial`, with transactions counted from there.
    pub fn of(initial: Volume, steps: Vec<Step>, before: u64) -> Self {
        History { steps, ..History::new(initial, before) }
    }

    /// Carries out one more request.
    pub fn carry_out(&mut self, request: &Request, slot: usize) -> Result<&Done, Refused> {
        let (begin, number) = (self.volume.history.len(), self.before + self.steps.len() as u64 + 1);
        let done = carry_out(&mut self.volume, request, number, Some(slot), None)?;
        self.steps.push(Step { done, begin, end: self.volume.history.len() });
        self.replays = RefCell::default();
        let index = self.steps.len() - 1;
        Ok(&self.steps[index].done)
    }

    /// Returns the file system after this number of transactions.
    pub fn crashed(&self, transactions: usize) -> Volume {
        self.volume.with(self.state(transactions))
    }

    /// Returns the names and attributes after this number of transactions since the known state.
    fn state(&self, transactions: usize) -> &State {
        match transactions {
            0 => &self.initial.state,
            count => &self.volume.history[count - 1],
        }
    }

    /// Returns true if a log may have exactly these operations, since conflicting operations enter the log in order.
    pub fn may_be_logged(&self, logged: Set) -> bool {
        (0..self.steps.len()).filter(|later| logged >> later & 1 == 1).all(|later| {
            (0..later).all(|earlier| {
                logged >> earlier & 1 == 1
                    || !self.steps[later].done.conflicts_with(&self.steps[earlier].done)
            })
        })
    }

    /// Returns the records of these operations in one of two orders that a log may have. The first is the order in
    /// which the operations were carried out. With `reverse`, the order is as far from that one as possible.
    pub fn records(&self, logged: Set, reverse: bool) -> Vec<Operation> {
        let mut left: Vec<&Done> = self.steps.iter().map(|step| &step.done).collect();
        let mut index = 0;
        left.retain(|_| {
            index += 1;
            logged >> (index - 1) & 1 == 1
        });
        let mut records = Vec::new();
        while !left.is_empty() {
            let free = |at: &usize| !left[..*at].iter().any(|before| before.conflicts_with(left[*at]));
            let next = if reverse { (0..left.len()).rfind(free).unwrap_or(0) } else { 0 };
            records.push(left.remove(next).operation.clone());
        }
        records
    }

    /// Returns the result of these operations alone.
    pub fn replay(&self, set: Set) -> Rc<Replay> {
        if let Some(replay) = self.replays.borrow().get(&set) {
            return replay.clone();
        }
        let mut replay = Replay { volume: self.initial.clone(), same: 0 };
        replay.volume.remembers = false;
        for (index, step) in self.steps.iter().enumerate().filter(|(index, _)| set >> index & 1 == 1) {
            let Done { request, operation, .. } = &step.done;
            let made = step.done.made();
            let again = carry_out(&mut replay.volume, request, operation.number, None, made);
            if again.is_ok_and(|again| again.operation.entries == operation.entries) {
                replay.same |= 1 << index;
            }
        }
        let replay = Rc::new(replay);
        self.replays.borrow_mut().insert(set, replay.clone());
        replay
    }

    /// Returns the identity that the file system gives to a file of an administrator. It is none of an object of the
    /// history: recovery cannot tell a file with the identity of a removed one from that file.
    pub fn identity_for_others(&self, volume: &Volume) -> Identity {
        let known: BTreeSet<Identity> = self.identities().collect();
        volume.fresh_but(|identity| known.contains(identity))
    }

    /// Returns all objects that ever existed, by the identity that clients know.
    pub fn identities(&self) -> impl Iterator<Item = Identity> {
        let before = self.initial.state.inodes.keys().map(|inner| self.initial.outer(*inner));
        before.chain(self.steps.iter().filter_map(|step| step.done.made()))
    }
}
