//! The changes that clients made to a file, and the contents that a read may therefore return.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_engine::buffer::BLOCK;

/// A change of some blocks: each holds `value` after it. 0 stands for a block that is missing or was never written.
#[derive(Clone, Debug)]
struct Change {
    blocks: Range<u64>,
    value: u8,
    begun: u64,
    /// The time of the acknowledgement.
    ended: Option<u64>,
    /// The time at which a reader first saw the change.
    seen: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct State {
    time: u64,
    changes: Vec<Change>,
}

/// All changes of one file, in the order in which they began.
#[derive(Debug, Default)]
pub struct History(Mutex<State>);

impl Clone for History {
    fn clone(&self) -> Self {
        History(Mutex::new(self.state().clone()))
    }
}

/// A change in progress.
#[derive(Clone, Copy, Debug)]
pub struct Begun(usize);

/// Returns a block's contents: each block of each change is different.
pub fn contents(block: u64, value: u8) -> [u8; BLOCK] {
    let mut contents = [value; BLOCK];
    if value != 0 {
        contents[..8].copy_from_slice(&block.to_le_bytes());
    }
    contents
}

impl Change {
    /// Returns the time at which the change became certain for clients. A client that has seen a value does not see an
    /// older one later.
    fn over(&self) -> Option<u64> {
        self.ended.into_iter().chain(self.seen).min()
    }
}

impl History {
    /// Locks the history for one observation, which gets a time of its own. A panic of another thread does not matter
    /// here.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.time += 1;
        state
    }

    /// Returns the time now: it advances with each call.
    pub fn now(&self) -> u64 {
        self.state().time
    }

    /// Returns the history after a power cut. A value that was seen and not acknowledged may be lost, if it was written
    /// past the log.
    pub fn after_power_cut(&self) -> History {
        let mut state = self.state().clone();
        state.changes.iter_mut().for_each(|change| change.seen = None);
        History(Mutex::new(state))
    }

    /// Begins a change.
    pub fn begin(&self, blocks: Range<u64>, value: u8) -> Begun {
        let mut state = self.state();
        let begun = state.time;
        state.changes.push(Change { blocks, value, begun, ended: None, seen: None });
        Begun(state.changes.len() - 1)
    }

    /// Marks the change as acknowledged.
    pub fn end(&self, Begun(at): Begun) {
        let mut state = self.state();
        let time = state.time;
        state.changes[at].ended.get_or_insert(time);
    }

    /// Checks `bytes` of a block, from a read that began at `since`. A client that reads a value may rely on it from
    /// then on.
    ///
    /// # Errors
    /// Fails if no order of the changes explains the bytes.
    pub fn saw(&self, since: u64, block: u64, bytes: &[u8]) -> Result<(), String> {
        let mut state = self.state();
        let time = state.time;
        let here = |change: &Change| change.blocks.contains(&block);
        let is_over = |change: &&Change| here(change) && change.over().is_some_and(|over| over < since);
        let later: Vec<u64> = state.changes.iter().filter(is_over).map(|change| change.begun).collect();
        let is_replaced =
            |over: Option<u64>| over.is_some_and(|over| later.iter().any(|begun| *begun > over));
        let matches = |value: u8| bytes == contents(block, value);
        let found = state
            .changes
            .iter()
            .position(|change| here(change) && matches(change.value) && !is_replaced(change.over()));
        match found {
            Some(at) => {
                // Zeros may also have been there before a truncation.
                if state.changes[at].value != 0 {
                    state.changes[at].seen.get_or_insert(time);
                }
                Ok(())
            }
            None if later.is_empty() && matches(0) => Ok(()),
            None => Err(format!(
                "block {block} reads {:?} (block {:?}), which is none of what it may be; changes: {:?}",
                bytes.last(),
                bytes.get(..8),
                state.changes.iter().filter(|change| here(change)).collect::<Vec<_>>()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_until_a_later_one_is_acknowledged_or_seen() {
        let history = History::default();
        let first = history.begin(0..2, 1);
        history.end(first);
        let second = history.begin(1..2, 2);
        let since = history.now();
        assert_eq!(history.saw(since, 1, &contents(1, 1)), Ok(()));
        assert_eq!(history.saw(since, 1, &contents(1, 2)), Ok(()));
        let since = history.now();
        assert!(history.saw(since, 1, &contents(1, 1)).is_err(), "somebody has seen the second");
        assert!(history.saw(since, 0, &contents(1, 1)).is_err(), "contents of another block");
        assert!(history.saw(since, 0, &contents(0, 0)).is_err());
        history.end(second);
        assert_eq!(history.saw(history.now(), 1, &contents(1, 2)), Ok(()));
    }
}
