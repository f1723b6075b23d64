//! The operations that the slots prove to have been carried out before the crash.
//!
//! The file system holds a prefix of all changes. So if it holds an intent, it holds all changes before that intent.
//! Those are all operations with a lower number, except RENAMEs, which get their numbers before they are carried out.
//!
//! A RENAME was carried out in either of two cases:
//!
//! - A later operation of one of its two directories, or one that set the attributes of one, is known to be carried
//!   out.
//! - One of its two directories has an intent with a higher number.
//!
//! Both follow from the lock of that directory, under which all of these changes are made.
//!
//! So recovery need not know if a RENAME without a record was carried out. If its intent is there, the log says nothing
//! of its two names, and they stay as they are.

use std::collections::BTreeMap;

use crate::identity::Identity;
use crate::intent::RenameIntent;
use crate::operation::Operation;
use crate::planted_bugs;

/// The operations that are known to have been carried out. Where such an operation changed something, the tree holds
/// its result or a newer one.
pub(super) struct CarriedOut {
    /// The highest number in a slot.
    horizon: u64,
    /// For each object, a number below which all its changes were carried out. RENAME needs the numbers of its
    /// directories.
    below: BTreeMap<Identity, u64>,
}

impl CarriedOut {
    /// Returns the operations up to which each directory is known to be, by the intents of renames and the log.
    pub(super) fn of(intents: &[RenameIntent], operations: &[Operation]) -> Self {
        let horizon = intents.iter().map(|intent| intent.number).max();
        let horizon = horizon.filter(|_| !planted_bugs::active("the horizon is the checkpoint")).unwrap_or(0);
        let mut known = CarriedOut { horizon, below: BTreeMap::new() };
        for intent in intents {
            known.raise(intent.dirs, intent.number);
        }
        let (mut renames, others): (Vec<_>, Vec<_>) = operations.iter().partition(|it| it.entries.len() > 1);
        renames.sort_by_key(|rename| std::cmp::Reverse(rename.number));
        for operation in others.into_iter().chain(renames) {
            if known.has(operation) {
                // The objects include the directories of the operation's names.
                known.raise(operation.objects.iter().map(|object| object.identity), operation.number);
            }
        }
        known
    }

    /// Records that these directories have all operations up to `number`.
    fn raise(&mut self, dirs: impl IntoIterator<Item = Identity>, number: u64) {
        for dir in dirs {
            let below = self.below.entry(dir).or_default();
            *below = number.max(*below);
        }
    }

    /// Returns true if an operation in the log was carried out.
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
