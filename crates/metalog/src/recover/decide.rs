//! Decides which changes that the file system itself makes durable have happened; the table is in [the crate's
//! documentation](crate#a-change-that-the-file-system-itself-makes-durable).

use std::collections::{BTreeSet, HashSet};

use forebay_oplog::{Change, Entry, LogContents};

use super::Name;

/// Returns the changes that are not settled and did not happen.
pub(super) fn decide(
    found: &LogContents,
    mut looks_right: impl FnMut(&Name, &Entry) -> bool,
) -> BTreeSet<u64> {
    let mut proven = HashSet::<Name>::new();
    let mut void = BTreeSet::new();
    let open = || found.changes.range(found.settled + 1..).filter(|(number, _)| !found.void.contains(number));
    for (number, change) in open().rev() {
        let names: Vec<Name> = names(change).collect();
        let mut each = names.iter().zip(&change.entries);
        let happened =
            !names.is_empty() && each.all(|(name, entry)| proven.contains(name) || looks_right(name, entry));
        if happened {
            proven.extend(names);
        } else {
            void.insert(*number);
        }
    }
    let mut unchanged = HashSet::<Name>::new();
    for (number, change) in open() {
        if void.contains(number) || names(change).any(|name| unchanged.contains(&name)) {
            void.insert(*number);
            unchanged.extend(names(change));
        }
    }
    void
}

fn names(change: &Change) -> impl Iterator<Item = Name> {
    change.entries.iter().map(|entry| (change.filesystem, entry.dir, entry.name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_oplog::{IDENTITY_MAX, Identity, Record};

    fn handle(n: u8) -> Identity {
        Identity { kind: 1, len: 1, bytes: [n; IDENTITY_MAX] }
    }

    /// Returns changes 1, 2, ... of names in one directory; 0 is "gone".
    fn found(settled: u64, changes: &[&[(&str, u8)]]) -> LogContents {
        let change = |(number, entries): (u64, &&[(&str, u8)])| {
            let entry = |(name, object): &(&str, u8)| Entry {
                dir: handle(1),
                name: name.as_bytes().into(),
                object: (*object > 0).then(|| handle(*object)),
                made: None,
            };
            let entries = entries.iter().map(entry).collect();
            (number, Change { number, confirmed: 0, filesystem: 3, entries, answer: Box::default() })
        };
        LogContents { changes: (1..).zip(changes).map(change).collect(), settled, ..LogContents::default() }
    }

    /// Returns the changes that did not happen, given the names in the directory.
    fn void(found: &LogContents, there: &[(&str, u8)]) -> Vec<u64> {
        let void = decide(found, |(_, _, name), entry| {
            let object = there.iter().find(|(other, _)| other.as_bytes() == &name[..]);
            object.map(|(_, object)| handle(*object)) == entry.object
        });
        void.into_iter().collect()
    }

    #[test]
    fn what_is_settled_happened_whatever_is_there() {
        assert_eq!(void(&found(2, &[&[("a", 1)], &[("b", 2)]]), &[]), []);
    }

    #[test]
    fn a_creation_happened_if_its_very_object_is_there() {
        let created = found(0, &[&[("a", 1)]]);
        assert_eq!(void(&created, &[("a", 1)]), []);
        assert_eq!(void(&created, &[("a", 2)]), [1]);
        assert_eq!(void(&created, &[]), [1]);
    }

    #[test]
    fn a_removal_happened_if_nothing_is_there() {
        assert_eq!(void(&found(0, &[&[("a", 0)]]), &[]), []);
        assert_eq!(void(&found(0, &[&[("a", 0)]]), &[("a", 1)]), [1]);
    }

    #[test]
    fn a_rename_happened_if_both_names_say_so() {
        let renamed = found(0, &[&[("a", 0), ("b", 1)]]);
        assert_eq!(void(&renamed, &[("b", 1)]), []);
        assert_eq!(void(&renamed, &[("a", 1)]), [1]);
        assert_eq!(void(&renamed, &[("a", 2), ("b", 1)]), [1], "what is in the way may be another client's");
    }

    #[test]
    fn what_a_later_change_of_the_name_presupposes_happened() {
        let made_moved_removed = found(0, &[&[("a", 1)], &[("a", 0), ("b", 1)], &[("b", 0)]]);
        assert_eq!(void(&made_moved_removed, &[]), []);
        assert_eq!(void(&made_moved_removed, &[("b", 1)]), [3]);
        assert_eq!(
            void(&made_moved_removed, &[("a", 1)]),
            [2, 3],
            "without the rename there was nothing to remove"
        );
    }

    #[test]
    fn changes_of_other_names_prove_nothing() {
        assert_eq!(void(&found(0, &[&[("a", 1)], &[("b", 2)]]), &[("b", 2)]), [1]);
    }

    #[test]
    fn changes_of_attributes_are_void_unless_settled() {
        assert_eq!(void(&found(0, &[&[], &[("a", 1)]]), &[("a", 1)]), [1]);
    }

    #[test]
    fn what_was_void_stays_so() {
        let mut removed = found(0, &[&[("a", 0)]]);
        removed.void.insert(1);
        assert_eq!(void(&removed, &[]), []);
        let notes = [
            Record::Change(Box::new(removed.changes[&1].clone())),
            Record::Settled { upto: 9, void: vec![1] },
            Record::Change(Box::new(Change { number: 10, confirmed: 9, ..removed.changes[&1].clone() })),
        ];
        let notes = notes.map(|record| record.encode());
        let read = LogContents::read(notes.iter().map(Vec::as_slice)).unwrap();
        assert_eq!((read.settled, read.void.contains(&1), read.changes.len()), (9, true, 2));
    }
}
