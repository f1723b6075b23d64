//! Step 3: decides which entries of the fold hold. Nothing is written.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::fold::{Fold, Place};
use super::view::View;
use crate::identity::Identity;
use crate::planted_bugs;
use crate::tree::Tree;

#[derive(Debug, Default)]
pub(super) struct Decided {
    /// Directories of the fold that exist.
    pub(super) present: BTreeSet<Identity>,
    /// Entries that lead to an object and hold, with that object; parents first.
    pub(super) live: Vec<(Place, Identity)>,
    /// The objects of `live`.
    pub(super) wanted: BTreeSet<Identity>,
    /// The objects of `live` that no longer exist and have to be recreated.
    pub(super) missing: BTreeSet<Identity>,
    /// The objects of all entries of the fold, also of entries that do not hold.
    pub(super) bound: BTreeSet<Identity>,
}

/// Goes down from the directories that exist. Entries that are not reached fall under rows 7 and 9.
pub(super) fn decide<T: Tree>(view: &mut View<'_, T>, fold: &Fold) -> Result<Decided, T::Error> {
    let mut decided = Decided::default();
    let mut children = BTreeMap::<Identity, Vec<(&Place, Identity)>>::new();
    for (place, bound) in &fold.entries {
        let children = children.entry(place.0).or_default();
        children.extend(bound.now.map(|object| (place, object)));
        decided.bound.extend(bound.now);
    }
    let mut queue = VecDeque::new();
    for dir in children.keys() {
        if view.attributes(*dir)?.is_some() {
            decided.present.insert(*dir);
            queue.push_back(*dir);
        }
    }
    while let Some(dir) = queue.pop_front() {
        for (place, object) in children.remove(&dir).unwrap_or_default() {
            if !decided.wanted.contains(&object) {
                if view.attributes(object)?.is_none() {
                    if !is_new(fold, object) {
                        continue;
                    }
                    decided.missing.insert(object);
                    queue.push_back(object);
                }
                decided.wanted.insert(object);
            }
            decided.live.push((place.clone(), object));
        }
    }
    Ok(decided)
}

/// Returns true if the crash lost a missing object, that is, no client removed it.
fn is_new(fold: &Fold, object: Identity) -> bool {
    fold.objects.get(&object).is_some_and(|known| known.new.is_some())
        && !planted_bugs::active("5: what is gone is not made again")
}
