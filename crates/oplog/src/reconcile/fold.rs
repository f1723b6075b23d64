//! Steps 1 and 2: what the log says, all told.

use std::collections::{BTreeMap, BTreeSet};

use crate::Name;
use crate::identity::Identity;
use crate::intent::Intent;
use crate::object::{Attributes, New};
use crate::operation::Operation;
use crate::plant;

/// A name in a directory, by its outer identity.
pub(super) type Place = (Identity, Name);

/// What the log says of a name.
#[derive(Debug, Default)]
pub(super) struct Bound {
    /// What it leads to in the end.
    pub(super) now: Option<Identity>,
    /// Everything that it has led to since the checkpoint.
    pub(super) known: BTreeSet<Identity>,
}

/// What the log says of an object.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) attributes: Attributes,
    /// An operation of the fold made it; what that took.
    pub(super) new: Option<New>,
}

/// A sequence of operations folded into one statement. Outer identities throughout.
#[derive(Debug, Default)]
pub(super) struct Fold {
    pub(super) entries: BTreeMap<Place, Bound>,
    pub(super) objects: BTreeMap<Identity, Known>,
}

impl Fold {
    /// `horizon`: the highest number of an intent found. What was carried out before it was written is in the file system,
    /// and what is there now is that or newer: such an operation takes back what the log said before and says nothing.
    /// RENAMEs have their numbers before they are carried out, so of them that is not known.
    pub(super) fn of<'a>(operations: impl Iterator<Item = &'a Operation>, horizon: u64) -> Self {
        let mut fold = Fold::default();
        for operation in operations {
            if operation.number > horizon || operation.entries.len() > 1 {
                fold.add(operation);
            } else {
                operation.entries.iter().for_each(|it| fold.forget(&(it.dir, it.name.clone())));
                operation.objects.iter().for_each(|it| drop(fold.objects.remove(&it.identity)));
            }
        }
        fold
    }

    fn add(&mut self, operation: &Operation) {
        for entry in &operation.entries {
            let bound = self.entries.entry((entry.dir, entry.name.clone())).or_default();
            bound.known.extend([entry.was, entry.now].into_iter().flatten());
            bound.now = entry.now;
        }
        for object in &operation.objects {
            let known = self.objects.entry(object.identity);
            let known = known.or_insert(Known { attributes: object.attributes, new: None });
            known.attributes = object.attributes;
            known.new = object.new.clone().or(known.new.take());
        }
    }

    /// What is under a name is newer than the log.
    pub(super) fn forget(&mut self, place: &Place) {
        self.entries.remove(place);
    }
}

/// The intents of RENAMEs that were never logged but happened. `leads_to`: whether a name leads to an object now.
pub(super) fn unlogged<E>(
    intents: &[Intent],
    logged: impl Fn(u64) -> bool,
    mut leads_to: impl FnMut(&Place, Identity) -> Result<bool, E>,
) -> Result<Vec<&Intent>, E> {
    let mut happened = Vec::new();
    // Of one object's two names neither goes away (rename(2)).
    let open = intents.iter().filter(|it| !logged(it.number) && Some(it.moved) != it.replaced);
    for intent in open {
        // A later one in the same directory was written under its lock: by then this one was through, or had been taken back.
        let overtaken = intents.iter().any(|later| later.number > intent.number && meet(intent, later));
        if overtaken && !plant::active("only the last intent is taken for done")
            || leads_to(&intent.to, intent.moved)?
        {
            happened.push(intent);
        }
    }
    Ok(happened)
}

/// Whether two intents have a directory in common.
fn meet(one: &Intent, other: &Intent) -> bool {
    [&one.from.0, &one.to.0].iter().any(|dir| **dir == other.from.0 || **dir == other.to.0)
}
