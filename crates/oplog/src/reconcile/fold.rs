//! Steps 1 and 2: what the log says, all told.

use std::collections::{BTreeMap, BTreeSet};

use crate::Name;
use crate::given::{Access, Given};
use crate::identity::Identity;
use crate::object::{Attributes, New};
use crate::operation::Operation;

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
    /// An operation of the fold set its mode, owner or group: those of [`Known::attributes`] count.
    pub(super) set: bool,
    /// What it has besides its attributes, if that is known.
    pub(super) given: Option<Given>,
}

impl Known {
    /// A later operation says this of its mode, owner and group.
    fn set(&mut self, access: &Access, attributes: Attributes) {
        let before = std::mem::replace(&mut self.attributes, attributes);
        match access {
            Access::Kept if self.set => {
                let Attributes { mode, uid, gid, .. } = before;
                self.attributes = Attributes { mode, uid, gid, ..attributes };
            }
            Access::Kept => {}
            Access::Set => self.set = true,
            Access::Given(given) => {
                self.set = true;
                match &mut self.given {
                    // Of an object that was there before: its list only.
                    Some(known) => known.acl = given.acl.clone(),
                    None => self.given = Some(Given::clone(given)),
                }
            }
        }
    }
}

/// A sequence of operations folded into one statement. Outer identities throughout.
#[derive(Debug, Default)]
pub(super) struct Fold {
    pub(super) entries: BTreeMap<Place, Bound>,
    pub(super) objects: BTreeMap<Identity, Known>,
}

impl Fold {
    /// An operation that is known to be in the file system takes back what the log said before, and says nothing.
    pub(super) fn of<'a>(
        operations: impl Iterator<Item = &'a Operation>,
        carried_out: impl Fn(&Operation) -> bool,
    ) -> Self {
        let mut fold = Fold::default();
        for operation in operations {
            if !carried_out(operation) {
                fold.add(operation);
                continue;
            }
            operation.entries.iter().for_each(|it| drop(fold.entries.remove(&(it.dir, it.name.clone()))));
            operation.objects.iter().for_each(|it| drop(fold.objects.remove(&it.identity)));
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
            let (attributes, set, given) = (object.attributes, false, None);
            let known = known.or_insert(Known { attributes, new: None, set, given });
            known.set(&object.access, attributes);
            known.new = object.new.clone().or(known.new.take());
        }
    }
}
