//! What the slots prove to have been carried out before the crash.
//!
//! The file system holds a prefix of what was done. So if it holds an intent, it holds all that was done before that was
//! written: every operation with a lower number, but for RENAMEs, which have their numbers before they are carried out. A
//! RENAME was carried out if something known to have been carried out in one of its two directories, or to set the attributes of
//! one, has a higher number, or if an intent with a higher number is there for one of them: all come under that directory's lock.
//!
//! So whether a RENAME that was not logged was carried out need not be known: if its intent is there, the log says nothing
//! of its two names, and they are as they are.

use std::collections::BTreeMap;

use crate::identity::Identity;
use crate::intent::RenameIntent;
use crate::operation::Operation;
use crate::plant;

/// What is known to have been carried out. What is in the tree where it changed something is that, or newer.
pub(super) struct CarriedOut {
    /// The highest number in a slot.
    horizon: u64,
    /// For each object a number below which all its changes have been; RENAME needs those of its directories.
    below: BTreeMap<Identity, u64>,
}

impl CarriedOut {
    pub(super) fn of(intents: &[RenameIntent], operations: &[Operation]) -> Self {
        let horizon = intents.iter().map(|intent| intent.number).max();
        let horizon = horizon.filter(|_| !plant::active("the horizon is the checkpoint")).unwrap_or(0);
        let mut known = CarriedOut { horizon, below: BTreeMap::new() };
        for intent in intents {
            known.raise(intent.dirs, intent.number);
        }
        let (mut renames, others): (Vec<_>, Vec<_>) = operations.iter().partition(|it| it.entries.len() > 1);
        renames.sort_by_key(|rename| std::cmp::Reverse(rename.number));
        for operation in others.into_iter().chain(renames) {
            if known.has(operation) {
                // The directories of its names are among them.
                known.raise(operation.objects.iter().map(|object| object.identity), operation.number);
            }
        }
        known
    }

    fn raise(&mut self, dirs: impl IntoIterator<Item = Identity>, number: u64) {
        for dir in dirs {
            let below = self.below.entry(dir).or_default();
            *below = number.max(*below);
        }
    }

    /// Whether an operation in the log was carried out.
    pub(super) fn has(&self, operation: &Operation) -> bool {
        match &operation.entries[..] {
            [] | [_] => operation.number <= self.horizon,
            both => both.iter().any(|entry| self.overtook(entry.dir, operation.number)),
        }
    }

    fn overtook(&self, dir: Identity, number: u64) -> bool {
        self.below.get(&dir).is_some_and(|below| *below > number)
    }
}
