//! Names of a directory that were looked up, also in vain, believed while the directory has not changed.

use std::collections::{HashMap, HashSet};

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
    /// Names that lead nowhere.
    absent: HashSet<Box<[u8]>, foldhash::fast::RandomState>,
    budget: Budget,
}

impl Names {
    pub(crate) fn new(budget: Budget) -> Self {
        Names { stamp: None, known: HashMap::default(), absent: HashSet::default(), budget }
    }

    /// What `name` leads to, or that it leads nowhere, if that was learnt under `stamp`.
    pub(crate) fn get(&self, stamp: Stamp, name: &[u8]) -> Option<Option<KernelHandle>> {
        if self.stamp != Some(stamp) {
            return None;
        }
        let known = self.known.get(name).map(|kernel| Some(*kernel));
        known.or_else(|| self.absent.contains(name).then_some(None))
    }

    /// Remembers a name, or that there is none; what was learnt under another stamp is forgotten.
    pub(crate) fn learn(&mut self, stamp: Stamp, name: &[u8], child: Option<KernelHandle>) {
        if self.stamp != Some(stamp) {
            self.forget();
            self.stamp = Some(stamp);
        }
        self.set(name, child);
    }

    /// Carries the names over a change made by the server itself. `changed` lists the names that now lead elsewhere.
    /// Others may have made names between the two stamps: what led nowhere is forgotten.
    pub(crate) fn carry(&mut self, from: Stamp, to: Stamp, changed: &[(&[u8], Option<KernelHandle>)]) {
        if self.stamp != Some(from) {
            self.forget();
        }
        self.forget_absent();
        self.stamp = Some(to);
        for (name, child) in changed {
            self.drop_name(name);
            if child.is_some() {
                self.set(name, *child);
            }
        }
    }

    fn set(&mut self, name: &[u8], child: Option<KernelHandle>) {
        if let (Some(known), Some(child)) = (self.known.get_mut(name), child) {
            *known = child;
            return;
        }
        self.drop_name(name);
        if !self.budget.take_name() {
            return;
        }
        if let Some(child) = child {
            self.known.insert(name.into(), child);
        } else {
            self.absent.insert(name.into());
        }
    }

    fn drop_name(&mut self, name: &[u8]) {
        if self.known.remove(name).is_some() || self.absent.remove(name) {
            self.budget.give_names(1);
        }
    }

    fn forget_absent(&mut self) {
        self.budget.give_names(self.absent.len());
        self.absent = HashSet::default();
    }

    pub(crate) fn forget(&mut self) {
        self.forget_absent();
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
        names.learn(stamp(1, 0), b"a", Some(child(1)));
        assert_eq!(names.get(stamp(1, 0), b"a"), Some(Some(child(1))));
        assert_eq!(names.get(stamp(2, 0), b"a"), None);
        assert_eq!(names.get(stamp(1, 1), b"a"), None);
        names.learn(stamp(2, 0), b"b", Some(child(2)));
        assert_eq!(names.get(stamp(2, 0), b"a"), None, "learnt under an older stamp");
    }

    #[test]
    fn own_changes_carry_the_other_names_over() {
        let mut names = Names::new(Budget::new(10, 1 << 20));
        names.learn(stamp(1, 0), b"a", Some(child(1)));
        names.learn(stamp(1, 0), b"b", Some(child(2)));
        names.learn(stamp(1, 0), b"nowhere", None);
        assert_eq!(names.get(stamp(1, 0), b"nowhere"), Some(None));
        names.carry(stamp(1, 0), stamp(2, 1), &[(b"a", None), (b"c", Some(child(3)))]);
        let at = stamp(2, 1);
        assert_eq!(names.get(at, b"nowhere"), None, "others may have made it");
        assert_eq!(
            [names.get(at, b"a"), names.get(at, b"b"), names.get(at, b"c")],
            [None, Some(Some(child(2))), Some(Some(child(3)))]
        );
        names.carry(stamp(9, 9), stamp(9, 10), &[(b"d", Some(child(4)))]);
        assert_eq!(names.get(stamp(9, 10), b"b"), None, "a gap forgets everything");
    }

    #[test]
    fn all_directories_together_remember_no_more_than_the_budget() {
        let budget = Budget::new(1, 10_000);
        let mut names = Names::new(budget.clone());
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
