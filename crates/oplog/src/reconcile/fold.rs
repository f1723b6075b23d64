//! Steps 1 and 2: the combined statement of all operations in the log.

use std::collections::{BTreeMap, BTreeSet};

use crate::Name;
use crate::given::{Access, Given};
use crate::identity::Identity;
use crate::object::{Attributes, New};
use crate::operation::Operation;

/// A name in a directory, by the directory's outer identity.
pub(super) type Place = (Identity, Name);

/// The statement of the log about a name.
#[derive(Debug, Default)]
pub(super) struct Bound {
    /// The object that the name leads to in the end.
    pub(super) now: Option<Identity>,
    /// All objects that the name has led to since the checkpoint.
    pub(super) known: BTreeSet<Identity>,
}

/// The statement of the log about an object.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) attributes: Attributes,
    /// The properties needed to recreate the object, if an operation of the fold made it.
    pub(super) new: Option<New>,
    /// An operation of the fold set the mode, owner or group: the values in [`Known::attributes`] count.
    pub(super) set: bool,
    /// The properties of the object besides its attributes, if they are known.
    pub(super) given: Option<Given>,
}

impl Known {
    /// Applies the statement of a later operation about mode, owner and group.
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
                    // The object existed before this operation, so only its list counts.
                    Some(known) => known.acl = given.acl.clone(),
                    None => self.given = Some(Given::clone(given)),
                }
            }
        }
    }
}

/// A sequence of operations folded into one statement. All identities are outer ones.
#[derive(Debug, Default)]
pub(super) struct Fold {
    pub(super) entries: BTreeMap<Place, Bound>,
    pub(super) objects: BTreeMap<Identity, Known>,
}

impl Fold {
    /// Folds the operations in order. An operation that was carried out removes the earlier statements about its names
    /// and objects, and adds none.
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

    /// Adds an operation that is newer than all before.
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
