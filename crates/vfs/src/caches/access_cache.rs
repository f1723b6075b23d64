//! What the kernel said about who may do what with an object, believed while its ctime stands.
//!
//! Of an object without an access control list it says the same to all callers of a class: it looks at no more of them than
//! whether they are root, the owner, or in the group. So one answer serves them all, and it is the kernel's.

use rustix::io::Errno;

use crate::attr::{Attr, Time};
use crate::caches::inode::Inode;
use crate::cred::Cred;
use crate::error::Result;
use crate::sys;

/// Permission bits of a verdict, as access(2) numbers them.
pub(crate) mod want {
    pub(crate) const READ: u8 = libc::R_OK as u8;
    pub(crate) const WRITE: u8 = libc::W_OK as u8;
    pub(crate) const EXECUTE: u8 = libc::X_OK as u8;
}

/// Callers between whom the kernel does not tell, as far as an object without an access control list goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class(usize);

/// Root or not: owner, in the group, neither. Root need not have all capabilities.
const CLASSES: usize = 2 * 3;

impl Class {
    fn of(cred: &Cred, attr: &Attr) -> Self {
        let relation = match () {
            () if cred.uid() == attr.uid => 0,
            () if cred.is_in(attr.gid) => 1,
            () => 2,
        };
        Class(if cred.uid() == 0 { relation } else { 3 + relation })
    }
}

/// What the kernel said to each class of callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Classes([Answer; CLASSES]);

/// Bits of [`want`] that were granted, and, shifted by [`ASKED`], those that were asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Answer(u8);

const ASKED: u32 = 4;

impl Answer {
    fn asked(self) -> u8 {
        self.0 >> ASKED
    }

    fn get(self, want: u8) -> Option<u8> {
        (self.asked() & want == want).then_some(self.0 & want)
    }

    fn learn(&mut self, asked: u8, granted: u8) {
        self.0 = self.0 & !asked | granted & asked | asked << ASKED;
    }
}

impl Classes {
    /// Which of `want` the caller has on an object with these attributes; `None`: not known.
    pub(crate) fn find(&self, cred: &Cred, attr: &Attr, want: u8) -> Option<u8> {
        self.0[Class::of(cred, attr).0].get(want)
    }

    /// Adds what was known of the object in the very same state.
    pub(crate) fn add(&mut self, others: &Classes) {
        for (answer, other) in self.0.iter_mut().zip(others.0) {
            answer.learn(other.asked() & !answer.asked(), other.0);
        }
    }
}

/// What the kernel said about who may do what, believed while `ctime` stands.
#[derive(Debug, Default)]
pub(crate) struct AccessCache {
    pub(crate) ctime: Time,
    pub(crate) classes: Classes,
    /// Where there is an access control list: of a few callers.
    slots: [Slot; 8],
    next: usize,
}

/// What the kernel said to a caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessVerdict {
    pub(crate) granted: u8,
    /// Whether it is that of the caller's whole class.
    pub(crate) by_class: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    cred: u64,
    answer: Answer,
}

/// Changes younger than this may share their ctime with the next change on kernels with coarse
/// timestamps (one tick, at most 10 ms), so nothing learnt under so young a ctime is kept.
const SETTLED_NANOS: i64 = 20_000_000;

/// Whether a ctime is old enough that any later change shows a different one.
pub(crate) fn settled(ctime: Time) -> bool {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let nanos = |sec: i64, nsec: i64| sec.saturating_mul(1_000_000_000).saturating_add(nsec);
    nanos(now.tv_sec, now.tv_nsec).saturating_sub(nanos(ctime.sec, ctime.nsec.into())) > SETTLED_NANOS
}

impl AccessCache {
    /// None yet, under this ctime.
    pub(crate) fn under(ctime: Time) -> Self {
        AccessCache { ctime, ..AccessCache::default() }
    }

    /// Which of `want` the caller has; `attr` are of this ctime. `None`: not known.
    pub(crate) fn find(&self, cred: &Cred, attr: &Attr, want: u8) -> Option<u8> {
        let own = || self.slots.iter().find(|slot| slot.cred == cred.id)?.answer.get(want);
        self.classes.find(cred, attr, want).or_else(own)
    }

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

/// Asks the kernel which of `want` the thread's present identity has on the object.
pub(crate) fn ask_kernel(object: &Inode, want: u8) -> Result<u8> {
    let mut granted = 0;
    for bit in [want::READ, want::WRITE, want::EXECUTE] {
        if want & bit != 0 && sys::may_access(object.path(), i32::from(bit))? {
            granted |= bit;
        }
    }
    Ok(granted)
}

/// Whether the object certainly has no access control list, on a file system whose lists are POSIX ones.
pub(crate) fn has_no_acl(object: &Inode) -> bool {
    let mut path = [0; 32];
    let path = sys::proc_path(&mut path, object.path());
    let found = rustix::fs::getxattr(path, c"system.posix_acl_access", &mut [0u8; 0]);
    matches!(found, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cred::{Creds, Identity};

    impl Classes {
        /// All were asked about and granted the same.
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
