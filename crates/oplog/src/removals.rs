//! Removals of names that are not durable yet.
//!
//! Two names of a file may be removed at once, in different directories. The thread that sees that the file has no name
//! left may have removed the first name. When that removal is durable, a crash may still lose the removal of the second
//! name, and then the file is still there. So the cache may forget the file only when no removal of any of its names is
//! in progress.

use std::collections::BTreeMap;

use crate::identity::Identity;

/// The removals in progress, by the object that loses a name. `T` is the cache's knowledge of the object.
#[derive(Debug)]
pub struct Removals<T>(BTreeMap<Identity, Removing<T>>);

#[derive(Debug)]
struct Removing<T> {
    count: usize,
    gone: Option<T>,
    /// One of the removals may not be durable, and it will never be known to be.
    unsure: bool,
}

impl<T> Default for Removals<T> {
    fn default() -> Self {
        Removals(BTreeMap::new())
    }
}

impl<T> Removals<T> {
    /// Notes that a name of the object is about to be removed.
    pub fn begin(&mut self, object: Identity) {
        let new = Removing { count: 0, gone: None, unsure: false };
        self.0.entry(object).or_insert(new).count += 1;
    }

    /// Returns true if a removal of a name of the object is in progress.
    pub fn is_under_way(&self, object: &Identity) -> bool {
        self.0.contains_key(object)
    }

    /// Notes, between [`Removals::begin`] and [`Removals::end`], that the object has no name left.
    pub fn gone(&mut self, object: Identity, known: T) {
        if let Some(removing) = self.0.get_mut(&object) {
            removing.gone = Some(known);
        }
    }

    /// Ends a removal. `sure`: the removal is durable, or was not carried out. Returns the knowledge that the cache
    /// must drop.
    pub fn end(&mut self, object: Identity, sure: bool) -> Option<T> {
        let removing = self.0.get_mut(&object)?;
        removing.count -= 1;
        removing.unsure |= !sure;
        if removing.count > 0 {
            return None;
        }
        self.0.remove(&object).filter(|removing| !removing.unsure)?.gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Identity = Identity { kind: 1, len: 1, bytes: [1; crate::IDENTITY_MAX] };

    #[test]
    fn a_file_is_forgotten_when_the_last_removal_of_a_name_is_durable() {
        let mut removals = Removals::default();
        removals.begin(FILE);
        removals.begin(FILE);
        assert!(removals.is_under_way(&FILE));
        // The first removal sees that no name is left, since the second has removed its name already.
        removals.gone(FILE, "known");
        assert_eq!(removals.end(FILE, true), None);
        assert_eq!(removals.end(FILE, true), Some("known"));
        removals.begin(FILE);
        assert_eq!(removals.end(FILE, true), None, "it has other names");
        assert!(!removals.is_under_way(&FILE));
    }

    #[test]
    fn a_file_is_not_forgotten_where_a_removal_may_be_lost() {
        let mut removals = Removals::default();
        removals.begin(FILE);
        removals.begin(FILE);
        removals.gone(FILE, "known");
        assert_eq!(removals.end(FILE, false), None);
        assert_eq!(removals.end(FILE, true), None);
    }
}
