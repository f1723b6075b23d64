//! Access verdicts of the kernel, believed while the inode's ctime stands.
//!
//! For an inode without an access control list the kernel gives all callers of a class one answer. It looks only at
//! whether they are root, the owner, or in the group. So one answer serves them all, and it is the kernel's.

use std::os::fd::BorrowedFd;

use crate::attr::{Attr, Time};
use crate::cred::Cred;
use crate::error::Result;
use crate::sys;

/// Permission bits of a verdict, as access(2) numbers them.
pub(crate) mod want {
    pub(crate) const READ: u8 = libc::R_OK as u8;
    pub(crate) const WRITE: u8 = libc::W_OK as u8;
    pub(crate) const EXECUTE: u8 = libc::X_OK as u8;
}

/// A class of callers between whom the kernel does not distinguish, for an inode without an access control list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class(usize);

/// Root or not: owner, in the group, neither. Root need not have all capabilities.
const CLASSES: usize = 2 * 3;

impl Class {
    /// Returns the class of a caller: root or not, and its relation to the owner and the group.
    fn of(cred: &Cred, attr: &Attr) -> Self {
        let relation = match () {
            () if cred.uid() == attr.uid => 0,
            () if cred.is_in(attr.gid) => 1,
            () => 2,
        };
        Class(if cred.uid() == 0 { relation } else { 3 + relation })
    }
}

/// The kernel's answer for each class of callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Classes([Answer; CLASSES]);

/// The bits of [`want`] that were granted, and, shifted by [`ASKED`], the bits that were asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Answer(u8);

const ASKED: u32 = 4;

impl Answer {
    fn known_bits(self) -> u8 {
        self.0 >> ASKED
    }

    fn get(self, want: u8) -> Option<u8> {
        (self.known_bits() & want == want).then_some(self.0 & want)
    }

    /// Records that of the `asked` accesses the kernel granted these.
    fn learn(&mut self, asked: u8, granted: u8) {
        self.0 = self.0 & !asked | granted & asked | asked << ASKED;
    }
}

impl Classes {
    /// Returns the part of `want` that the caller has on an inode with these attributes. Returns `None` if that is not
    /// cached.
    pub(crate) fn find(&self, cred: &Cred, attr: &Attr, want: u8) -> Option<u8> {
        self.0[Class::of(cred, attr).0].get(want)
    }

    /// Adds the verdicts that were cached of the inode in exactly this state.
    pub(crate) fn add(&mut self, others: &Classes) {
        for (answer, other) in self.0.iter_mut().zip(others.0) {
            answer.learn(other.known_bits() & !answer.known_bits(), other.0);
        }
    }
}

/// The kernel's access verdicts for an inode, believed while `ctime` stands.
#[derive(Debug, Default)]
pub(crate) struct AccessCache {
    pub(crate) ctime: Time,
    pub(crate) classes: Classes,
    /// Verdicts of a few callers, for an inode with an access control list.
    slots: [Slot; 8],
    next: usize,
}

/// The kernel's answer to a caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessVerdict {
    pub(crate) granted: u8,
    /// True if the verdict holds for the caller's whole class.
    pub(crate) by_class: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    cred: u64,
    answer: Answer,
}

/// The age that a ctime must have before verdicts under it are cached. On kernels with coarse timestamps (one tick, at
/// most 10 ms) a younger change may share its ctime with the next change.
const TICK_NANOS: i64 = 20_000_000;

/// Returns true if a ctime is old enough that any later change shows a different one.
pub(crate) fn is_past_tick(ctime: Time) -> bool {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let nanos = |sec: i64, nsec: i64| sec.saturating_mul(1_000_000_000).saturating_add(nsec);
    nanos(now.tv_sec, now.tv_nsec).saturating_sub(nanos(ctime.sec, ctime.nsec.into())) > TICK_NANOS
}

impl AccessCache {
    /// Creates an empty cache under this ctime.
    pub(crate) fn under(ctime: Time) -> Self {
        AccessCache { ctime, ..AccessCache::default() }
    }

    /// Returns the part of `want` that the caller has; `attr` has this ctime. Returns `None` if that is not cached.
    pub(crate) fn find(&self, cred: &Cred, attr: &Attr, want: u8) -> Option<u8> {
        let own = || self.slots.iter().find(|slot| slot.cred == cred.id)?.answer.get(want);
        self.classes.find(cred, attr, want).or_else(own)
    }

    /// Records the answer of the kernel to a caller, or to its whole class.
    pub(crate) fn learn(&mut self, cred: &Cred, attr: &Attr, asked: u8, verdict: AccessVerdict) {
        if verdict.by_class {
            return self.classes.0[Class::of(cred, attr).0].learn(asked, verdict.granted);
        }
        let slot = match self.slots.iter_mut().find(|slot| slot.cred == cred.id) {
            Some(slot) => slot,
            None => {
                self.next = (self.next + 1) % self.slots.len();
                let slot = &mut self.slots[self.next];
                *slot = Slot { cred: cred.id, ..Slot::default() };
                slot
            }
        };
        slot.answer.learn(asked, verdict.granted);
    }
}

/// Asks the kernel which of `want` the thread's present identity has on the inode behind `path`.
pub(crate) fn ask_kernel(path: BorrowedFd<'_>, want: u8) -> Result<u8> {
    let mut granted = 0;
    for bit in [want::READ, want::WRITE, want::EXECUTE] {
        if want & bit != 0 && sys::may_access(path, i32::from(bit))? {
            granted |= bit;
        }
    }
    Ok(granted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cred::{Creds, Identity};

    impl Classes {
        /// Returns the verdicts of an inode for which all classes asked and got this answer.
        pub(crate) fn of_everybody(granted: u8) -> Self {
            Classes([Answer(7 << ASKED | granted); CLASSES])
        }
    }

    fn attr(uid: u32, gid: u32) -> Attr {
        Attr { uid, gid, ..Attr::from(&rustix::fs::stat("/").unwrap()) }
    }

    fn cred(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        let groups = groups.iter().copied().collect();
        Creds::default().intern(&Identity { uid, gid, groups })
    }

    #[test]
    fn callers_whom_the_kernel_may_tell_apart_are_of_different_classes() {
        let attr = attr(7, 8);
        let (owner, member, other) = (cred(7, 8, &[]), cred(9, 1, &[5, 8]), cred(9, 7, &[6]));
        let mut verdicts = AccessCache::under(attr.ctime);
        let say = |granted| AccessVerdict { granted, by_class: true };
        verdicts.learn(&member, &attr, want::READ | want::WRITE, say(want::READ));
        for unknown in [&owner, &other, &cred(0, 0, &[]), &cred(0, 8, &[]), &cred(0, 0, &[8])] {
            assert_eq!(verdicts.find(unknown, &attr, want::READ), None, "{unknown:?}");
        }
        for known in [&member, &cred(10, 8, &[]), &cred(11, 11, &[8])] {
            assert_eq!(verdicts.find(known, &attr, want::READ), Some(want::READ));
            assert_eq!(verdicts.find(known, &attr, want::WRITE), Some(0));
            assert_eq!(verdicts.find(known, &attr, want::EXECUTE), None, "not asked about");
        }
        verdicts.learn(&owner, &attr, want::WRITE, say(want::WRITE));
        assert_eq!(verdicts.find(&cred(7, 1, &[]), &attr, want::WRITE), Some(want::WRITE));
        assert_eq!(verdicts.find(&cred(10, 8, &[]), &attr, want::WRITE), Some(0));
    }

    #[test]
    fn what_is_said_of_one_caller_says_nothing_of_others() {
        let (attr, creds) = (attr(7, 8), Creds::default());
        let mut verdicts = AccessCache::under(attr.ctime);
        let cred = |uid| creds.intern(&Identity { uid, gid: 8, groups: Default::default() });
        let granted = AccessVerdict { granted: want::READ, by_class: false };
        verdicts.learn(&cred(1), &attr, want::READ, granted);
        assert_eq!(verdicts.find(&cred(1), &attr, want::READ), Some(want::READ));
        assert_eq!(verdicts.find(&cred(2), &attr, want::READ), None);
        assert_eq!(verdicts.classes, Classes::default());
    }
}
