//! What was carried out since a known state, and what it would have come to had only some of it happened.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use forebay_oplog::{Identity, Operation};

use super::request::{Done, Request, carry_out};
use super::volume::{Refused, State, Volume};

/// Operations, one bit each in the order in which they were carried out.
pub type Set = u64;

/// An operation that was carried out.
#[derive(Clone, Debug)]
pub struct Step {
    /// It.
    pub done: Done,
    /// How many transactions there were before it, and with it.
    pub begin: usize,
    /// See `begin`.
    pub end: usize,
}

/// What it came to with only some of the operations, and which of them did then what they did in truth.
pub struct Replay {
    /// The file system then.
    pub volume: Volume,
    /// Operations with the same outcome.
    pub same: Set,
}

/// A history.
#[derive(Clone)]
pub struct History {
    /// Before it.
    pub initial: Volume,
    /// After it.
    pub volume: Volume,
    /// What was carried out.
    pub steps: Vec<Step>,
    /// The number before that of the first operation.
    pub before: u64,
    replays: RefCell<HashMap<Set, Rc<Replay>>>,
}

impl History {
    /// An empty one, from a state in which nothing is open.
    pub fn new(mut initial: Volume, before: u64) -> Self {
        initial.history.clear();
        let volume = initial.clone();
        History { initial, volume, steps: Vec::new(), before, replays: RefCell::default() }
    }

    /// What `steps` made of `initial`, with transactions counted from there.
    pub fn of(initial: Volume, steps: Vec<Step>, before: u64) -> Self {
        History { steps, ..History::new(initial, before) }
    }

    /// Carries out one more.
    pub fn carry_out(&mut self, request: &Request, slot: usize) -> Result<&Done, Refused> {
        let (begin, number) = (self.volume.history.len(), self.before + self.steps.len() as u64 + 1);
        let done = carry_out(&mut self.volume, request, number, Some(slot), None)?;
        self.steps.push(Step { done, begin, end: self.volume.history.len() });
        self.replays = RefCell::default();
        let index = self.steps.len() - 1;
        Ok(&self.steps[index].done)
    }

    /// The file system after so many transactions.
    pub fn crashed(&self, transactions: usize) -> Volume {
        self.volume.with(self.state(transactions))
    }

    fn state(&self, transactions: usize) -> &State {
        match transactions {
            0 => &self.initial.state,
            count => &self.volume.history[count - 1],
        }
    }

    /// Whether a log may have these operations and no others: what conflicts came into it in order.
    pub fn may_be_logged(&self, logged: Set) -> bool {
        (0..self.steps.len()).filter(|later| logged >> later & 1 == 1).all(|later| {
            (0..later).all(|earlier| {
                logged >> earlier & 1 == 1
                    || !self.steps[later].done.conflicts_with(&self.steps[earlier].done)
            })
        })
    }

    /// The records of these operations, in two orders that they may have in a log: that in which they were carried out,
    /// and one that is as far from it as may be.
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

    /// What these operations alone come to.
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

    /// Everything that ever was, by what it is called outside.
    pub fn identities(&self) -> impl Iterator<Item = Identity> {
        let before = self.initial.state.inodes.keys().map(|inner| self.initial.outer(*inner));
        before.chain(self.steps.iter().filter_map(|step| step.done.made()))
    }
}
