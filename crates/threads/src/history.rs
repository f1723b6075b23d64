//! What clients did to a file, and what may therefore be read of it.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_engine::buffer::BLOCK;

/// A change of some blocks: each holds `value` after it. 0 is a block that is not there or was never written.
#[derive(Clone, Debug)]
struct Change {
    blocks: Range<u64>,
    value: u8,
    begun: u64,
    /// Acknowledged, or seen by a reader.
    ended: Option<u64>,
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

/// A change that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Begun(usize);

/// A block's contents: each block of each change is different.
pub fn contents(block: u64, value: u8) -> [u8; BLOCK] {
    let mut contents = [value; BLOCK];
    if value != 0 {
        contents[..8].copy_from_slice(&block.to_le_bytes());
    }
    contents
}

impl History {
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.time += 1;
        state
    }

    /// The time now: it passes with each call.
    pub fn now(&self) -> u64 {
        self.state().time
    }

    /// A change begins.
    pub fn begin(&self, blocks: Range<u64>, value: u8) -> Begun {
        let mut state = self.state();
        let begun = state.time;
        state.changes.push(Change { blocks, value, begun, ended: None });
        Begun(state.changes.len() - 1)
    }

    /// It is acknowledged.
    pub fn end(&self, Begun(at): Begun) {
        let mut state = self.state();
        let time = state.time;
        state.changes[at].ended.get_or_insert(time);
    }

    /// A read that began at `since` brought `bytes` of a block. Whoever reads a value may rely on it from then on.
    ///
    /// # Errors
    /// No order of the changes explains it.
    pub fn saw(&self, since: u64, block: u64, bytes: &[u8]) -> Result<(), String> {
        let mut state = self.state();
        let time = state.time;
        let here = |change: &Change| change.blocks.contains(&block);
        let ends: Vec<(u64, u64)> = (state.changes.iter().filter(|change| here(change)))
            .filter_map(|change| Some((change.begun, change.ended.filter(|ended| *ended < since)?)))
            .collect();
        let is_replaced =
            |ended: Option<u64>| ended.is_some_and(|at| ends.iter().any(|(begun, _)| *begun > at));
        let matches = |value: u8| bytes == contents(block, value);
        let found = state
            .changes
            .iter()
            .position(|change| here(change) && matches(change.value) && !is_replaced(change.ended));
        match found {
            Some(at) => {
                // Zeros may have been there before a cut as well.
                if state.changes[at].value != 0 {
                    state.changes[at].ended.get_or_insert(time);
                }
                Ok(())
            }
            None if ends.is_empty() && matches(0) => Ok(()),
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
