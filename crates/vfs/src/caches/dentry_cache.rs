//! The dentry cache: names of a directory that were looked up, with negative entries, believed while the directory has
//! not changed.
//!
//! A change of the directory by this server moves its change time. That hides an external rename or removal of another
//! name in that moment. So after such a change a name is believed only if its inode has not changed since, as the
//! kernel reports ([`crate::coherence::watch`]). A file that loses or changes its name counts as changed. Without the
//! kernel's reports the name is looked up again.

use std::collections::{HashMap, HashSet};

use crate::caches::budget::Budget;
use crate::caches::stamp::Stamp;
use crate::caches::versions::Version;
use crate::sys::KernelHandle;

/// The inode that a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Child {
    pub(crate) kernel: KernelHandle,
    /// The version of the child, older than every external change of the child after the name was seen. `None` says
    /// that the kernel would not report such changes.
    pub(crate) version: Option<Version>,
}

/// The cached answer for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CachedName {
    /// The name leads to this inode.
    Here(KernelHandle),
    /// The name leads to this inode if the inode still has this version. A caller that finds it so may call
    /// [`DentryCache::prove`].
    HereIf(KernelHandle, Version),
    /// The name does not exist.
    Nowhere,
}

#[derive(Debug)]
struct CachedDentry {
    child: Child,
    /// [`Stamp::changes`] under which it was seen, or proven.
    changes: u64,
}

/// The inodes that a directory's names led to.
#[derive(Debug)]
pub(crate) struct DentryCache {
    stamp: Option<Stamp>,
    known: HashMap<Box<[u8]>, CachedDentry, foldhash::fast::RandomState>,
    /// Names that lead nowhere.
    absent: HashSet<Box<[u8]>, foldhash::fast::RandomState>,
    budget: Budget,
}

impl DentryCache {
    pub(crate) fn new(budget: Budget) -> Self {
        DentryCache { stamp: None, known: HashMap::default(), absent: HashSet::default(), budget }
    }

    /// Returns the inode that `name` leads to, or a negative entry, if the name is cached under `stamp`.
    pub(crate) fn get(&self, stamp: Stamp, name: &[u8]) -> Option<CachedName> {
        if self.stamp != Some(stamp) {
            return None;
        }
        match self.known.get(name) {
            Some(CachedDentry { child, changes }) if *changes == stamp.changes => {
                Some(CachedName::Here(child.kernel))
            }
            Some(CachedDentry { child, .. }) => {
                child.version.map(|version| CachedName::HereIf(child.kernel, version))
            }
            None => self.absent.contains(name).then_some(CachedName::Nowhere),
        }
    }

    /// Notes that the inode of `name` still had its version after `stamp` was seen.
    pub(crate) fn prove(&mut self, stamp: Stamp, name: &[u8], version: Version) {
        if self.stamp == Some(stamp)
            && let Some(known) = self.known.get_mut(name)
            && known.child.version == Some(version)
        {
            known.changes = stamp.changes;
        }
    }

    /// Remembers a name, or that it does not exist. Names that were cached under another stamp are forgotten.
    pub(crate) fn learn(&mut self, stamp: Stamp, name: &[u8], child: Option<Child>) {
        if self.stamp != Some(stamp) {
            self.forget();
            self.stamp = Some(stamp);
        }
        self.set(name, child, stamp.changes);
    }

    /// Carries the names over a change made by the server itself. `changed` lists the names that now lead elsewhere.
    /// External changes may have come between the two stamps. So negative entries are forgotten, and all other names
    /// have to be proven.
    pub(crate) fn carry(&mut self, from: Stamp, to: Stamp, changed: &[(&[u8], Option<Child>)]) {
        if self.stamp != Some(from) {
            self.forget();
        }
        self.forget_absent();
        self.stamp = Some(to);
        for (name, child) in changed {
            self.drop_name(name);
            if child.is_some_and(|child| child.version.is_some()) {
                self.set(name, *child, from.changes);
            }
        }
    }

    /// Sets the child of a name. `changes` is the count of changes of the directory under which it was seen.
    fn set(&mut self, name: &[u8], child: Option<Child>, changes: u64) {
        if let (Some(known), Some(child)) = (self.known.get_mut(name), child) {
            *known = CachedDentry { child, changes };
            return;
        }
        self.drop_name(name);
        if !self.budget.take_name() {
            return;
        }
        if let Some(child) = child {
            self.known.insert(name.into(), CachedDentry { child, changes });
        } else {
            self.absent.insert(name.into());
        }
    }

    /// Forgets a name, present or absent.
    fn drop_name(&mut self, name: &[u8]) {
        if self.known.remove(name).is_some() || self.absent.remove(name) {
            self.budget.give_names(1);
        }
    }

    /// Forgets the names that are known to be absent.
    fn forget_absent(&mut self) {
        self.budget.give_names(self.absent.len());
        self.absent = HashSet::default();
    }

    /// Forgets all names.
    pub(crate) fn forget(&mut self) {
        self.forget_absent();
        self.budget.give_names(self.known.len());
        self.known.clear();
    }
}

impl Drop for DentryCache {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::Time;
    use crate::caches::versions::Versions;

    fn kernel(n: u8) -> KernelHandle {
        KernelHandle { kind: 1, len: 1, bytes: [n; crate::sys::KERNEL_HANDLE_MAX] }
    }

    fn version(n: u8) -> Version {
        Versions::new(Budget::new(1, 0).known().clone(), 0).of(&kernel(n)).unwrap()
    }

    /// Returns a child whose external changes are reported.
    fn child(n: u8) -> Child {
        Child { kernel: kernel(n), version: Some(version(n)) }
    }

    fn here(n: u8) -> Option<CachedName> {
        Some(CachedName::Here(kernel(n)))
    }

    fn stamp(sec: i64, changes: u64) -> Stamp {
        Stamp { ctime: Time { sec, nsec: 0 }, changes }
    }

    #[test]
    fn a_name_is_believed_only_under_its_stamp() {
        let mut names = DentryCache::new(Budget::new(10, 1 << 20));
        names.learn(stamp(1, 0), b"a", Some(child(1)));
        assert_eq!(names.get(stamp(1, 0), b"a"), here(1));
        assert_eq!(names.get(stamp(2, 0), b"a"), None);
        assert_eq!(names.get(stamp(1, 1), b"a"), None);
        names.learn(stamp(2, 0), b"b", Some(child(2)));
        assert_eq!(names.get(stamp(2, 0), b"a"), None, "learnt under an older stamp");
    }

    #[test]
    fn own_changes_carry_the_other_names_over() {
        let mut names = DentryCache::new(Budget::new(10, 1 << 20));
        names.learn(stamp(1, 0), b"a", Some(child(1)));
        names.learn(stamp(1, 0), b"b", Some(child(2)));
        names.learn(stamp(1, 0), b"nowhere", None);
        assert_eq!(names.get(stamp(1, 0), b"nowhere"), Some(CachedName::Nowhere));
        names.carry(stamp(1, 0), stamp(2, 1), &[(b"a", None), (b"c", Some(child(3)))]);
        let at = stamp(2, 1);
        assert_eq!(names.get(at, b"nowhere"), None, "others may have made it");
        let found = [names.get(at, b"a"), names.get(at, b"b"), names.get(at, b"c")];
        let [Some(CachedName::HereIf(b, of_b)), Some(CachedName::HereIf(c, _))] = [found[1], found[2]] else {
            panic!("{found:?}: others may have renamed them")
        };
        assert_eq!((found[0], b, c), (None, kernel(2), kernel(3)));
        names.prove(at, b"b", of_b);
        assert_eq!(names.get(at, b"b"), here(2));
        names.prove(stamp(1, 0), b"c", version(3));
        assert_ne!(names.get(at, b"c"), here(3), "that was another state of the directory");
        // External changes of these inodes would not be reported.
        let untold = Child { version: None, ..child(5) };
        names.learn(at, b"e", Some(untold));
        assert_eq!(names.get(at, b"e"), here(5));
        names.carry(at, stamp(3, 2), &[(b"f", Some(untold))]);
        assert_eq!([&b"e"[..], b"f"].map(|name| names.get(stamp(3, 2), name)), [None, None]);
        names.carry(stamp(9, 9), stamp(9, 10), &[(b"d", Some(child(4)))]);
        assert_eq!(names.get(stamp(9, 10), b"b"), None, "a gap forgets everything");
    }

    #[test]
    fn all_directories_together_remember_no_more_than_the_budget() {
        let budget = Budget::new(1, 10_000);
        let mut names = DentryCache::new(budget.clone());
        let most = budget.names_limit();
        for n in 0..most + 10 {
            names.learn(stamp(1, 0), &n.to_le_bytes(), (n % 2 == 0).then_some(child(1)));
        }
        assert!(names.get(stamp(1, 0), &(most - 1).to_le_bytes()).is_some());
        assert!(names.get(stamp(1, 0), &most.to_le_bytes()).is_none());
        names.learn(stamp(1, 0), &0usize.to_le_bytes(), None);
        names.learn(stamp(1, 0), &1usize.to_le_bytes(), Some(child(1)));
        assert_eq!(budget.names(), most);
        names.carry(stamp(1, 0), stamp(2, 0), &[]);
        assert_eq!(budget.names(), most.div_ceil(2));
        drop(names);
        assert_eq!(budget.names(), 0, "dropped names give their room back");
    }
}
