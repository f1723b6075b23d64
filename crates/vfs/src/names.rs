//! Names of a directory that were looked up, believed while the directory has not changed.

use std::collections::HashMap;

use crate::attr::Time;
use crate::sys::KernelHandle;
use crate::table::Budget;

/// The state of a directory under which names were learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The directory's ctime: shows changes made behind the server's back.
    pub(crate) ctime: Time,
    /// The directory's own change count: shows changes made through the server.
    pub(crate) changes: u64,
}

/// What a directory's names led to.
#[derive(Debug)]
pub(crate) struct Names {
    stamp: Option<Stamp>,
    known: HashMap<Box<[u8]>, KernelHandle, foldhash::fast::RandomState>,
    budget: Budget,
}

impl Names {
    pub(crate) fn new(budget: Budget) -> Self {
        Names { stamp: None, known: HashMap::default(), budget }
    }

    /// What `name` leads to, if that was learnt under `stamp`.
    pub(crate) fn get(&self, stamp: Stamp, name: &[u8]) -> Option<KernelHandle> {
        if self.stamp == Some(stamp) { self.known.get(name).copied() } else { None }
    }

    /// Remembers a name; what was learnt under another stamp is forgotten.
    pub(crate) fn learn(&mut self, stamp: Stamp, name: &[u8], child: KernelHandle) {
        if self.stamp != Some(stamp) {
            self.forget();
            self.stamp = Some(stamp);
        }
        self.add(name, child);
    }

    /// Carries the names over a change made by the server itself, whose holder knows that nothing
    /// else happened between the two stamps. `changed` lists the names that now lead elsewhere.
    pub(crate) fn carry(&mut self, from: Stamp, to: Stamp, changed: &[(&[u8], Option<KernelHandle>)]) {
        if self.stamp != Some(from) {
            self.forget();
        }
        self.stamp = Some(to);
        for (name, child) in changed {
            if self.known.remove(*name).is_some() {
                self.budget.give_names(1);
            }
            if let Some(child) = child {
                self.add(name, *child);
            }
        }
    }

    fn add(&mut self, name: &[u8], child: KernelHandle) {
        if let Some(known) = self.known.get_mut(name) {
            *known = child;
        } else if self.budget.take_name() {
            self.known.insert(name.into(), child);
        }
    }

    fn forget(&mut self) {
        self.budget.give_names(self.known.len());
        self.known.clear();
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(n: u8) -> KernelHandle {
        KernelHandle { kind: 1, len: 1, bytes: [n; crate::sys::KERNEL_HANDLE_MAX] }
    }

    fn stamp(sec: i64, changes: u64) -> Stamp {
        Stamp { ctime: Time { sec, nsec: 0 }, changes }
    }

    #[test]
    fn a_name_is_believed_only_under_its_stamp() {
        let mut names = Names::new(Budget::new(10, 1 << 20));
        names.learn(stamp(1, 0), b"a", child(1));
        assert_eq!(names.get(stamp(1, 0), b"a"), Some(child(1)));
        assert_eq!(names.get(stamp(2, 0), b"a"), None);
        assert_eq!(names.get(stamp(1, 1), b"a"), None);
        names.learn(stamp(2, 0), b"b", child(2));
        assert_eq!(names.get(stamp(2, 0), b"a"), None, "learnt under an older stamp");
    }

    #[test]
    fn own_changes_carry_the_other_names_over() {
        let mut names = Names::new(Budget::new(10, 1 << 20));
        names.learn(stamp(1, 0), b"a", child(1));
        names.learn(stamp(1, 0), b"b", child(2));
        names.carry(stamp(1, 0), stamp(2, 1), &[(b"a", None), (b"c", Some(child(3)))]);
        let at = stamp(2, 1);
        assert_eq!(
            [names.get(at, b"a"), names.get(at, b"b"), names.get(at, b"c")],
            [None, Some(child(2)), Some(child(3))]
        );
        names.carry(stamp(9, 9), stamp(9, 10), &[(b"d", Some(child(4)))]);
        assert_eq!(names.get(stamp(9, 10), b"b"), None, "a gap forgets everything");
    }

    #[test]
    fn all_directories_together_remember_no_more_than_the_budget() {
        let budget = Budget::new(1, 1 << 20);
        let mut names = Names::new(budget.clone());
        let most = budget.names_limit();
        for n in 0..most + 10 {
            names.learn(stamp(1, 0), &n.to_le_bytes(), child(1));
        }
        assert!(names.get(stamp(1, 0), &(most - 1).to_le_bytes()).is_some());
        assert!(names.get(stamp(1, 0), &most.to_le_bytes()).is_none());
        drop(names);
        assert!(budget.take_name(), "dropped names give their room back");
    }
}
