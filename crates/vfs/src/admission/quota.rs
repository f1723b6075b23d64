//! Quotas of users and groups on the backing file system. Data that is accepted for a file counts for its owner before
//! it is destaged. Near a limit writes go to the backing file, as the caller, and the kernel decides.
//!
//! Destaging acts for no caller, but the kernel charges the file's owner. So data accepted beyond a quota could not be
//! destaged. Quotas of projects are not seen here, since the kernel reports them to administrators only. They show only
//! in statvfs(2) of the export.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_common::lock::RwLock;
use forebay_engine::Account;
use rustix::io::Errno;
use smallvec::SmallVec;

use crate::admission::mount::Mount;
use crate::admission::reserve::{FreeSpace, PATIENCE, Reserve, Room};
use crate::cred::Acting;
use crate::question::Question;
use crate::sys::coarse_millis;
use crate::sys::{self, Limits, QuotaKind};

/// The time between two checks for quotas, in milliseconds.
const REFRESH: u64 = 10_000;
/// The time before the end of a soft limit's grace period from which the limit counts, in seconds. Data that is
/// accepted earlier has this time to be destaged.
const AHEAD: u64 = 3600;
/// The number of charges beyond which those are forgotten that no file and no write needs.
const MOST: usize = 16_384;

/// A user or a group with the dirty blocks of its files.
#[derive(Debug)]
struct Owner {
    kind: QuotaKind,
    id: u32,
    reserve: Reserve,
    account: Arc<Account>,
    asked: Arc<Question<Option<FreeSpace>>>,
}

/// Whom the files of one user and one group are charged to.
#[derive(Debug)]
pub(crate) struct Charge {
    owners: SmallVec<[Arc<Owner>; 2]>,
    pub(crate) account: Arc<Account>,
    all: Arc<Account>,
}

/// The quotas of a file system.
#[derive(Debug, Default)]
pub(crate) struct Quotas {
    in_force: AtomicBool,
    /// True if the last answer of the kernel was an error other than "no quotas".
    unknown: AtomicBool,
    /// The time of the next check for quotas, in milliseconds of the monotonic clock.
    due: AtomicU64,
    asked: Arc<Question<rustix::io::Result<bool>>>,
    /// True if the kernel has answered.
    judged: AtomicBool,
    charges: RwLock<HashMap<(u32, u32), Arc<Charge>, foldhash::fast::RandomState>>,
    /// The bytes that are charged to anybody.
    all: Arc<Account>,
}

impl Quotas {
    /// Returns true if quotas count, by the kernel's answer. Only an error that says that there are no quotas is taken
    /// for that. After any other error limits may exist and cannot be read. Then no write of a user is accepted before
    /// the backing file has room for it.
    fn judge(&self, answer: rustix::io::Result<bool>) -> bool {
        match answer {
            // NOSYS: Linux before 5.14, or a file system without quotas. SRCH: quotas are off.
            Err(Errno::NOSYS | Errno::SRCH | Errno::NOTTY | Errno::OPNOTSUPP) => self.judge(Ok(false)),
            Err(errno) => {
                if !self.unknown.swap(true, Ordering::Relaxed) {
                    tracing::error!(
                        "cannot ask for quotas (quotactl_fd: {errno}): they are taken to be in force, and writes of all users but \
                         root go to the backing file. Allow quotactl_fd in the filter of the service manager or container, or \
                         see the kernel's log"
                    );
                }
                true
            }
            Ok(in_force) => {
                self.unknown.store(false, Ordering::Relaxed);
                in_force
            }
        }
    }

    /// Looks whether quotas have to be reckoned with. Where the kernel does not answer soon, it is as it was before;
    /// where it has never answered, they have to be.
    fn look(&self, mount: &Arc<Mount>) {
        let theirs = mount.clone();
        let answer = self.asked.anew(PATIENCE, move || sys::has_quotas(theirs.as_fd()));
        if answer.is_some() || !self.judged.load(Ordering::Relaxed) {
            self.judged.fetch_or(answer.is_some(), Ordering::Relaxed);
            self.in_force.store(self.judge(answer.unwrap_or(Err(Errno::TIMEDOUT))), Ordering::Relaxed);
        }
    }

    /// Returns true if the kernel has to be asked before anything is charged. The kernel may have to wait for the disk.
    pub(crate) fn is_due(&self) -> bool {
        coarse_millis() >= self.due.load(Ordering::Relaxed)
    }

    /// Returns the account to which the files of `uid` and `gid` on a file system are charged, or `None` without
    /// quotas.
    pub(crate) fn charge(&self, mount: &Arc<Mount>, uid: u32, gid: u32) -> Option<Arc<Charge>> {
        if self.is_due() {
            self.due.store(coarse_millis() + REFRESH, Ordering::Relaxed);
            self.look(mount);
        }
        if !self.in_force.load(Ordering::Relaxed) {
            return None;
        }
        if let Some(charge) = self.charges.read().get(&(uid, gid)) {
            return Some(charge.clone());
        }
        let mut charges = self.charges.write();
        if charges.len() >= MOST {
            let in_use = |charge: &Arc<Charge>| {
                Arc::strong_count(charge) > 1 || Arc::strong_count(&charge.account) > 1
            };
            charges.retain(|_, charge| in_use(charge));
        }
        let owner = |kind: QuotaKind, id: u32| {
            let same = |owner: &&Arc<Owner>| (owner.kind, owner.id) == (kind, id);
            let known = charges.values().flat_map(|charge| &charge.owners).find(same);
            known.cloned().unwrap_or_else(|| Arc::new(Owner::new(kind, id)))
        };
        // Inodes of root have no limit. With XFS, the limits of number 0 are the defaults of all users.
        let owners = [(QuotaKind::User, uid), (QuotaKind::Group, gid)].into_iter().filter(|(_, id)| *id != 0);
        let owners: SmallVec<[_; 2]> = owners.map(|(kind, id)| owner(kind, id)).collect();
        let outer = owners.iter().map(|owner| owner.account.clone()).chain([self.all.clone()]).collect();
        let account = Arc::new(Account::within(outer));
        let charge = Arc::new(Charge { owners, account, all: self.all.clone() });
        Some(charges.entry((uid, gid)).or_insert(charge).clone())
    }
}

impl Charge {
    /// Returns true if the kernel has to be asked before `len` bytes are taken. The kernel may have to read from the
    /// disk.
    pub(crate) fn is_due(&self, len: u64) -> bool {
        self.owners.iter().any(|owner| owner.reserve.is_due(len))
    }

    /// Returns true if no dirty block may be charged to one of the owners. `dirty` is the number of dirty bytes of the
    /// whole file system. Blocks that recovery found are charged to nobody.
    pub(crate) fn is_clean(&self, dirty: u64) -> bool {
        self.owners.iter().all(|owner| owner.dirty(dirty, &self.all) == 0)
    }

    /// Takes room for `len` bytes of all quotas that count; `None` if one has not enough.
    pub(crate) fn take<'a>(
        &'a self,
        mount: &Arc<Mount>,
        len: u64,
        dirty: impl Fn() -> u64,
    ) -> Option<SmallVec<[Room<'a>; 2]>> {
        let take = |owner: &'a Arc<Owner>| {
            owner.reserve.take(len, || owner.dirty(dirty(), &self.all), || owner.ask(mount))
        };
        self.owners.iter().map(take).collect()
    }
}

impl Charge {
    /// Takes room for `len` bytes of all quotas that count, also where there is not enough. Returns true if there was
    /// enough in all of them.
    pub(crate) fn hold<'a>(
        &'a self,
        mount: &Arc<Mount>,
        len: u64,
        dirty: impl Fn() -> u64,
    ) -> (SmallVec<[Room<'a>; 2]>, bool) {
        let hold = |owner: &'a Arc<Owner>| {
            owner.reserve.hold(len, || owner.dirty(dirty(), &self.all), || owner.ask(mount))
        };
        let (rooms, enough): (SmallVec<_>, SmallVec<[bool; 2]>) = self.owners.iter().map(hold).unzip();
        (rooms, enough.iter().all(|enough| *enough))
    }
}

impl Owner {
    fn new(kind: QuotaKind, id: u32) -> Self {
        Owner { kind, id, reserve: Reserve::default(), account: Arc::default(), asked: Arc::default() }
    }

    /// Asks the kernel as [`Owner::look`]; `None` also if there is no answer soon.
    fn ask(self: &Arc<Self>, mount: &Arc<Mount>) -> Option<FreeSpace> {
        let (owner, mount) = (self.clone(), mount.clone());
        self.asked.anew(PATIENCE, move || owner.look(mount.as_fd())).flatten()
    }

    fn dirty(&self, beside: u64, all: &Account) -> u64 {
        self.account.dirty_bytes() + beside.saturating_sub(all.dirty_bytes())
    }

    /// Asks the kernel, which answers each user about their own quota. Where this kind of quotas is off, or the server
    /// may not act as the owner, there is no limit. `None` after any other error.
    fn look(&self, mount: BorrowedFd<'_>) -> Option<FreeSpace> {
        let (limits, acted) = {
            let acting = match self.kind {
                QuotaKind::User => Acting::with_ids(Some(self.id), None),
                QuotaKind::Group => Acting::with_ids(None, Some(self.id)),
            };
            (sys::quota(mount, self.kind, self.id), acting.is_ok())
        };
        let limits = limits.or_else(|errno| match errno {
            // XFS has no entry for an owner without files. Its defaults apply then.
            Errno::NOENT => sys::quota(mount, self.kind, 0).map(|root| Limits { used: 0, ..root }),
            Errno::SRCH => Ok(Limits::default()),
            // As the owner the server would have been told: then a filter of system calls says so.
            Errno::PERM if !acted => Ok(Limits::default()),
            errno => Err(errno),
        });
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        Some(limits.ok()?.space(now))
    }
}

impl Limits {
    /// Returns the bytes that may be used, and the bytes left of them, at `now` seconds since 1970.
    fn space(&self, now: u64) -> FreeSpace {
        let over =
            self.soft > 0 && self.used > self.soft && self.grace_ends > 0 && now + AHEAD >= self.grace_ends;
        let limit = [(self.hard, true), (self.soft, over)].into_iter();
        let limit = limit.filter(|(limit, counts)| *limit > 0 && *counts).map(|(limit, _)| limit).min();
        match limit {
            None => FreeSpace { all: u64::MAX, free: u64::MAX },
            Some(limit) => FreeSpace { all: limit, free: limit.saturating_sub(self.used) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(hard: u64, soft: u64, used: u64, grace_ends: u64) -> u64 {
        Limits { hard, soft, used, grace_ends }.space(1000).free
    }

    #[test]
    fn only_an_error_that_says_so_is_taken_for_no_quotas() {
        let quotas = Quotas::default();
        for errno in [Errno::NOSYS, Errno::SRCH, Errno::NOTTY, Errno::OPNOTSUPP] {
            assert!(!quotas.judge(Err(errno)), "{errno}");
        }
        for errno in [Errno::PERM, Errno::ACCESS, Errno::IO, Errno::NOMEM] {
            assert!(quotas.judge(Err(errno)), "{errno}");
        }
        assert!(!quotas.judge(Ok(false)) && quotas.judge(Ok(true)));
    }

    #[test]
    fn the_soft_limit_counts_before_the_grace_is_over() {
        let none = u64::MAX;
        for (limits, left) in [
            ((0, 0, 70, 0), none),
            ((100, 0, 70, 0), 30),
            ((100, 0, 170, 0), 0),
            ((100, 50, 40, 0), 60),
            ((100, 50, 70, 1001 + AHEAD), 30),
            ((100, 50, 70, 1000 + AHEAD), 0),
            ((100, 50, 70, 1001), 0),
            ((0, 50, 70, 1001 + AHEAD), none),
            ((0, 50, 70, 999), 0),
        ] {
            let (hard, soft, used, grace_ends) = limits;
            assert_eq!(free(hard, soft, used, grace_ends), left, "{limits:?}");
        }
    }
}
