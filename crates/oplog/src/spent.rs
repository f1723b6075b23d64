//! Spent identities: no object has them, and the file system may give them to other objects.
//!
//! XFS counts the generation of an inode number up with each removal, and a power cut takes the count back. So it may
//! give the identity of an object that was made and removed since the last checkpoint once more. A client may still
//! hold a handle with that identity. An identity is spent until one of these happens:
//!
//! - The file system has given its number a later generation. XFS has then counted past the identity. Identities of
//!   ext4 are random, and the same rule forgets them.
//! - [`SPENT_MAX`] later identities are spent.

use std::collections::{BTreeMap, BTreeSet};

use crate::identity::Identity;
use crate::operation::Operation;
use crate::planted_bugs;

/// The number of spent identities that are kept. Beyond it the oldest ones are forgotten.
pub const SPENT_MAX: usize = 1 << 16;

/// The spent identities of one file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// By inode number; each with its turn, which tells its age. Identities without a known number have none.
    numbers: BTreeMap<Option<u64>, Vec<(u64, Identity)>>,
    len: usize,
    last: u64,
}

impl Spent {
    /// Returns true if no identity is spent.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if the identity is spent.
    pub fn has(&self, identity: &Identity) -> bool {
        self.len > 0
            && self
                .numbers
                .get(&identity.number())
                .is_some_and(|all| all.iter().any(|(_, it)| it == identity))
    }

    /// Adds an identity that no object has any more.
    pub fn add(&mut self, identity: Identity) {
        if self.has(&identity) {
            return;
        }
        self.last += 1;
        self.numbers.entry(identity.number()).or_default().push((self.last, identity));
        self.len += 1;
        // A part at a time, since a look for the oldest ones takes a look at all.
        if self.len > SPENT_MAX + SPENT_MAX / 8 {
            let oldest = self.in_order()[self.len - SPENT_MAX].0;
            self.retain(|(turn, _)| *turn >= oldest);
        }
    }

    /// Returns true if the file system has counted past a spent identity when it has given this identity to an object.
    pub fn is_past_one(&self, given: &Identity) -> bool {
        self.len > 0
            && self
                .numbers
                .get(&given.number())
                .is_some_and(|all| all.iter().any(|(_, it)| is_past(given, it)))
    }

    /// Forgets the spent identities that the file system has counted past when it has given this identity to an object.
    pub fn see(&mut self, given: &Identity) {
        if let Some(all) = self.numbers.get_mut(&given.number()) {
            let before = all.len();
            all.retain(|(_, it)| !is_past(given, it));
            self.len -= before - all.len();
            if all.is_empty() {
                self.numbers.remove(&given.number());
            }
        }
    }

    /// Forgets the identities for which `keep` returns false.
    fn retain(&mut self, keep: impl Fn(&(u64, Identity)) -> bool) {
        self.numbers.values_mut().for_each(|all| all.retain(&keep));
        self.numbers.retain(|_, all| !all.is_empty());
        self.len = self.numbers.values().map(Vec::len).sum();
    }

    /// Returns the spent identities with their turns, oldest first.
    fn in_order(&self) -> Vec<(u64, Identity)> {
        let mut all: Vec<_> = self.numbers.values().flatten().copied().collect();
        all.sort_by_key(|(turn, _)| *turn);
        all
    }

    /// Returns the spent identities, oldest first.
    pub fn identities(&self) -> impl Iterator<Item = Identity> {
        self.in_order().into_iter().map(|(_, identity)| identity)
    }

    /// Returns the list as the bytes of a file: the name of each identity in a line of its own, oldest first.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for identity in self.identities() {
            bytes.extend_from_slice(identity.to_name().as_bytes());
            bytes.push(b'\n');
        }
        bytes
    }

    /// Returns the list in a file. Lines that are no identities are left out.
    pub fn decode(bytes: &[u8]) -> Self {
        let mut spent = Spent::default();
        bytes.split(|byte| *byte == b'\n').filter_map(Identity::from_name).for_each(|it| spent.add(it));
        spent
    }
}

/// Returns true if `given` is a later generation of the number of `spent`. Generations count up and wrap around.
fn is_past(given: &Identity, spent: &Identity) -> bool {
    if planted_bugs::active("an identity is spent only until its number is seen") {
        return given != spent;
    }
    match (given.generation(), spent.generation()) {
        (Some(given), Some(spent)) => (given.wrapping_sub(spent) as i32) > 0,
        _ => false,
    }
}

/// Returns the objects that some of these operations made, and that no name leads to after them, in their order. The
/// operations are all that are in the log since a checkpoint.
pub fn made_and_removed<'a>(operations: impl Iterator<Item = &'a Operation>) -> Vec<Identity> {
    let (mut made, mut names) = (Vec::new(), BTreeMap::new());
    for operation in operations {
        let new = operation.objects.iter().filter(|object| object.new.is_some());
        made.extend(new.map(|object| object.identity));
        for entry in &operation.entries {
            let name = (entry.dir, &entry.name);
            match entry.now {
                Some(now) => names.insert(name, now),
                None => names.remove(&name),
            };
        }
    }
    let named: BTreeSet<Identity> = names.into_values().collect();
    made.retain(|object| !named.contains(object));
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Binding, IDENTITY_MAX, Kind, LoggedObject, New};

    fn identity(number: u32, generation: u32) -> Identity {
        let mut bytes = [0; IDENTITY_MAX];
        bytes[..4].copy_from_slice(&number.to_ne_bytes());
        bytes[4..8].copy_from_slice(&generation.to_ne_bytes());
        Identity { kind: 1, len: 8, bytes }
    }

    #[test]
    fn an_identity_is_spent_until_its_number_has_a_later_generation() {
        let mut spent = Spent::default();
        [identity(10, 4), identity(10, u32::MAX), identity(11, 4)].into_iter().for_each(|it| spent.add(it));
        for given in [identity(10, 4), identity(12, 9), identity(11, 3)] {
            assert!(!spent.is_past_one(&given) || given == identity(10, 4));
        }
        spent.see(&identity(11, 3));
        assert!(spent.has(&identity(11, 4)));
        // The count has wrapped around.
        spent.see(&identity(10, 2));
        assert!(!spent.has(&identity(10, u32::MAX)) && spent.has(&identity(10, 4)));
        spent.see(&identity(10, 5));
        spent.see(&identity(11, 5));
        assert!(spent.is_empty());
    }

    #[test]
    fn a_list_is_read_as_it_was_written() {
        let mut spent = Spent::default();
        [identity(10, 4), identity(9, 7), identity(10, 3)].into_iter().for_each(|it| spent.add(it));
        let bytes = spent.encode();
        assert_eq!(Spent::decode(&bytes).encode(), bytes);
        let torn = Spent::decode(&bytes[..bytes.len() - 4]);
        assert!(torn.has(&identity(9, 7)) && !torn.has(&identity(10, 3)));
        assert!(Spent::decode(b"\n\xff\nno identity\n").is_empty());
    }

    #[test]
    fn the_newest_identities_are_kept() {
        let mut spent = Spent::default();
        let all = (SPENT_MAX + SPENT_MAX / 8 + 1) as u32;
        (0..all).for_each(|number| spent.add(identity(number, 1)));
        assert_eq!(spent.len, SPENT_MAX);
        assert!(!spent.has(&identity(0, 1)) && spent.has(&identity(all - 1, 1)));
        assert!(spent.has(&identity(all - SPENT_MAX as u32, 1)));
    }

    #[test]
    fn objects_without_a_name_at_the_end_are_made_and_removed() {
        let time = crate::Time::default();
        let attributes =
            crate::Attributes { kind: Kind::File, mode: 0, uid: 0, gid: 0, atime: time, mtime: time };
        let operation = |number, made: u32, entries: &[(&[u8], u32)]| {
            let new = |made| LoggedObject {
                identity: identity(made, 1),
                attributes,
                new: Some(New::Plain),
                access: crate::Access::Set,
            };
            let entry = |(name, now): &(&[u8], u32)| Binding {
                dir: identity(2, 0),
                name: (*name).into(),
                was: None,
                now: (*now > 0).then(|| identity(*now, 1)),
            };
            let entries = entries.iter().map(entry).collect();
            let objects = (made > 0).then(|| new(made)).into_iter().collect();
            Operation { number, filesystem: 0, entries, objects, reply: Box::default() }
        };
        let operations = [
            operation(1, 10, &[(b"a", 10)]),
            operation(2, 11, &[(b"b", 11)]),
            // The first object has two names, of which one goes. The second one is replaced by a third one.
            operation(3, 0, &[(b"c", 10)]),
            operation(4, 0, &[(b"a", 0)]),
            operation(5, 12, &[(b"d", 12)]),
            operation(6, 0, &[(b"d", 0), (b"b", 12)]),
            operation(7, 0, &[(b"old", 0)]),
        ];
        assert_eq!(made_and_removed(operations.iter()), [identity(11, 1)]);
        assert_eq!(made_and_removed(operations[..4].iter()), []);
    }
}
