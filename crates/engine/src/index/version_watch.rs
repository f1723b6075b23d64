//! The version of an object in the backing store, and announced changes of it.

use forebay_common::lock::atomic::{AtomicU64, Ordering};
use forebay_common::lock::{Mutex, MutexGuard};

/// No version was seen since the pool was opened.
pub(crate) const UNSEEN: u64 = 0;

/// An external change was seen: the cached contents may be older than the backing store's.
pub(crate) const SUSPECT: u64 = u64::MAX;

/// The version of an object in the backing store as its owner saw it last. The owner announces its changes. If the
/// version changed without an announced change, someone else modified the object. A version is any number except
/// [`UNSEEN`] and [`SUSPECT`].
#[derive(Debug, Default)]
pub(crate) struct VersionWatch {
    pub(super) seen: AtomicU64,
    /// The version shown to clients since the owner's last hidden change; 0 if no change was hidden since the last
    /// shown one.
    pub(super) shown: AtomicU64,
    pub(super) own: Mutex<Own>,
}

/// The owner's changes in progress.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub(super) all: u32,
    pub(super) hidden: u32,
    /// True if an owner's change may have hidden an external change since the object was last known to match the
    /// backing store.
    pub(super) may_hide: bool,
}

/// A version that was read from the backing store.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// A number that differs after every change.
    pub number: u64,
    /// True if the last change happened while no server watched. It counts if no version was seen before.
    pub unwatched: bool,
    /// True if the last change happened since service began. It counts if no version was seen before, unless a change
    /// of the owner may be the reason.
    pub since_start: bool,
}

impl VersionWatch {
    /// Compares the backing version with the last one seen. Another one makes the object suspect.
    ///
    /// If none was seen, contents may be from before the start. The owner announces its changes, and sets `may_hide`.
    pub(super) fn compare(&self, now: Option<Version>, own: &Own) {
        let Some(now) = now else { return };
        let seen = match self.seen.load(Ordering::Relaxed) {
            UNSEEN if now.unwatched || now.since_start && !own.may_hide => SUSPECT,
            UNSEEN => now.number,
            seen if seen == now.number => return,
            _ => SUSPECT,
        };
        self.seen.store(seen, Ordering::Relaxed);
        if seen == SUSPECT {
            self.shown.store(0, Ordering::Relaxed);
        }
    }

    /// Begins a change by the server itself. Compares the version first if no other change runs.
    pub(super) fn begin(&self, version: impl FnOnce() -> Option<Version>) -> MutexGuard<'_, Own> {
        let mut own = self.own.lock();
        if own.all == 0 && self.seen.load(Ordering::Relaxed) != SUSPECT {
            self.compare(version(), &own);
        }
        own.all += 1;
        own.may_hide = true;
        own
    }

    /// Takes over the contents of version `number`. Returns true if an external change was suspected.
    pub(crate) fn replace(&self, number: u64) -> bool {
        let mut own = self.own.lock();
        own.may_hide = own.all > 0;
        self.seen.swap(number, Ordering::Relaxed) == SUSPECT
    }

    /// Ends a change by the server itself. After the last one, `number` is the version seen.
    pub(super) fn end(&self, own: &mut Own, number: u64) {
        own.all -= 1;
        if own.all == 0 && self.seen.load(Ordering::Relaxed) != SUSPECT {
            self.seen.store(number, Ordering::Relaxed);
        }
    }
}
