//! External changes of an object of the backing store.

use forebay_common::lock::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::Result;
use crate::engine::Engine;
use crate::error::Error;
use crate::index::object::{Busy, Object};
use crate::io::{BackingError, Key};
use forebay_common::lock::{Mutex, MutexGuard};

/// No version was seen since the pool was opened.
const UNSEEN: u64 = 0;
/// An external change was seen: the cached contents may be older than the backing store's.
const SUSPECT: u64 = u64::MAX;

/// The version of an object in the backing store as its owner saw it last. The owner announces its changes. If the
/// version changed without an announced change, someone else modified the object. A version is any number except
/// [`UNSEEN`] and [`SUSPECT`].
#[derive(Debug, Default)]
pub(crate) struct VersionWatch {
    seen: AtomicU64,
    /// The version shown to clients since the owner's last hidden change; 0 if no change was hidden since the last
    /// shown one.
    shown: AtomicU64,
    own: Mutex<Own>,
}

/// The owner's changes in progress.
#[derive(Debug, Default)]
struct Own {
    all: u32,
    hidden: u32,
    /// True if an owner's change may have hidden an external change since the object was last known to match the
    /// backing store.
    may_hide: bool,
}

/// A version that was read from the backing store.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// A number that differs after every change.
    pub number: u64,
    /// True if the last change happened while no server watched. It counts if no version was seen before.
    pub unwatched: bool,
}

impl VersionWatch {
    fn compare(&self, now: Option<Version>) {
        let Some(now) = now else { return };
        let seen = match self.seen.load(Ordering::Relaxed) {
            UNSEEN if now.unwatched => SUSPECT,
            UNSEEN => now.number,
            seen if seen == now.number => return,
            _ => SUSPECT,
        };
        self.seen.store(seen, Ordering::Relaxed);
        if seen == SUSPECT {
            self.shown.store(0, Ordering::Relaxed);
        }
    }

    fn begin(&self, version: impl FnOnce() -> Option<Version>) -> MutexGuard<'_, Own> {
        let mut own = self.own.lock();
        if own.all == 0 && self.seen.load(Ordering::Relaxed) != SUSPECT {
            self.compare(version());
        }
        own.all += 1;
        own.may_hide = true;
        own
    }

    fn end(&self, own: &mut Own, number: u64) {
        own.all -= 1;
        if own.all == 0 && self.seen.load(Ordering::Relaxed) != SUSPECT {
            self.seen.store(number, Ordering::Relaxed);
        }
    }
}

impl Object {
    /// Returns true if `number` is the version that was seen last, and no external change is suspected.
    pub fn is_seen(&self, number: u64) -> bool {
        self.watch.seen.load(Ordering::Relaxed) == number
    }

    /// Returns true if an external change happened since the object was cached.
    pub fn is_suspect(&self) -> bool {
        self.is_seen(SUSPECT)
    }

    /// Compares the current version with the version seen last, unless the owner is about to change the object.
    pub fn look(&self, version: impl FnOnce() -> Option<Version>) {
        let own = self.watch.own.lock();
        if own.all == 0 && !self.is_suspect() {
            self.watch.compare(version());
        }
    }

    /// Announces that the owner begins to change the object; ended by [`Object::end_own`].
    pub fn begin_own(&self, version: impl FnOnce() -> Option<Version>) {
        drop(self.watch.begin(version));
    }

    /// Ends an owner's change. The version after the last of several concurrent changes becomes the version seen
    /// last. `from` is the version before the change, and `shown` the version that was shown then. If the version
    /// changed, but did not exceed `shown`, the shown version becomes `shown` + 1.
    pub fn end_own(&self, version: impl FnOnce() -> Option<Version>, from: u64, shown: u64) {
        let mut own = self.watch.own.lock();
        let number = version().map_or(UNSEEN, |version| version.number);
        self.watch.end(&mut own, number);
        if number != from {
            let shown = if number <= shown && !self.is_suspect() { shown + 1 } else { 0 };
            self.watch.shown.store(shown, Ordering::Relaxed);
        }
    }

    /// Announces a change of the owner that clients must not see in the version. Until the next visible change,
    /// [`Object::shown`] returns `shown`. Ended by [`Object::end_hidden`].
    pub fn begin_hidden(&self, version: impl FnOnce() -> Option<Version>, shown: u64) {
        let mut own = self.watch.begin(version);
        own.hidden += 1;
        if !self.is_suspect() {
            self.watch.shown.store(shown, Ordering::Relaxed);
        }
    }

    /// Ends a change announced by [`Object::begin_hidden`].
    pub fn end_hidden(&self, version: impl FnOnce() -> Option<Version>) {
        let mut own = self.watch.own.lock();
        own.hidden -= 1;
        let number = version().map_or(UNSEEN, |version| version.number);
        self.watch.end(&mut own, number);
    }

    /// Returns the version to show to clients for version `number`, which was looked up before. Versions grow.
    pub fn shown(&self, number: u64) -> u64 {
        if self.watch.shown.load(Ordering::Relaxed) == 0 {
            return number;
        }
        let own = self.watch.own.lock();
        match self.watch.shown.load(Ordering::Relaxed) {
            0 => number,
            shown if own.hidden > 0 || number <= self.watch.seen.load(Ordering::Relaxed) => shown,
            _ => number,
        }
    }

    /// Handles the kernel's report, perhaps a late one, that someone else changed the contents. An external change
    /// outside the owner's changes shows in the version already, so the report is no news. An external change during
    /// an owner's change does not show in the version.
    pub fn changed_by_others(&self) {
        let own = self.watch.own.lock();
        if own.may_hide {
            self.watch.seen.store(SUSPECT, Ordering::Relaxed);
            self.watch.shown.store(0, Ordering::Relaxed);
        }
    }

    /// Handles an owner's change whose version is unknown: the next look believes the version that it finds.
    pub fn changed_unseen(&self) {
        let mut own = self.watch.own.lock();
        own.may_hide = true;
        if !self.is_suspect() {
            self.watch.seen.store(UNSEEN, Ordering::Relaxed);
        }
    }
}

impl Engine {
    /// Returns the object of `key` if it is in the index. `size` is the backing store's size, as in
    /// [`Engine::object`].
    pub fn meet(&self, key: &Key, size: u64) -> Option<Arc<Object>> {
        let object = self.known(key)?;
        let mut state = object.lock();
        if !std::mem::replace(&mut state.sized, true) {
            state.size = size;
        }
        drop(state);
        Some(object)
    }

    /// Drops the clean copies of an object after an external change, durably when this returns. The object now has
    /// `size` bytes and version `number`. If the backing store lacks changes of the object, nothing is done and the
    /// result is false: they will be written over the external change.
    ///
    /// # Errors
    /// The object was removed, or no cache device is left.
    pub async fn changed_outside(&self, object: &Arc<Object>, size: u64, number: u64) -> Result<bool> {
        let (pages, copied) = {
            let mut state = object.lock();
            if state.gone {
                return Err(Error::Backing(BackingError::Gone));
            }
            let unsettled = state.dirty > 0 || state.mtime.is_some() || state.truncating.is_some();
            if unsettled || state.busy != Busy::No || state.directs > 0 {
                return Ok(false);
            }
            state.size = size;
            (state.drop_range(0..u64::MAX, &self.segments).0, state.may_be_copied(&self.segments))
        };
        self.ram.removed(pages);
        // This covers copies dropped from the index as well. A copy found again after a crash would be destaged again
        // if it is still in the log.
        if copied {
            self.void_durably(object, 0..u64::MAX).await?;
        }
        let before = {
            let mut own = object.watch.own.lock();
            own.may_hide = own.all > 0;
            object.watch.seen.swap(number, Ordering::Relaxed)
        };
        self.totals.changed_outside.add(u64::from(before == SUSPECT));
        Ok(true)
    }

    /// Destages the dirty blocks of one object, now.
    ///
    /// # Errors
    /// Errors of the backing store; destaging is tried again in the background. [`Error::Damaged`]: no copy of some
    /// block can be read.
    pub async fn destage_object(&self, object: &Arc<Object>) -> Result<()> {
        let errors = object.volume.errors();
        let ready = || {
            let state = object.lock();
            let settled = state.gone || state.dirty == 0 && state.mtime.is_none();
            let (dirty, damaged) = (state.dirty, state.damaged.len() as u64);
            drop(state);
            match settled {
                true => Some(Ok(())),
                false if self.closing() => Some(Err(Error::Closing)),
                false if dirty > 0 && dirty == damaged => Some(Err(Error::Damaged)),
                false => object.volume.trouble_since(errors).map(Err),
            }
        };
        let _flushing = self.flushing(vec![object.volume.clone()]);
        self.hurry(object);
        self.space.until(ready).await
    }

    /// Destages the blocks of this object's volume that are dirty now, until all are clean or `enough` returns true.
    ///
    /// # Errors
    /// The errors of [`Engine::destage_object`], and [`Error::Late`] if the volume does not answer.
    pub async fn destage_beside(&self, object: &Object, enough: impl Fn() -> bool) -> Result<()> {
        let volume = &object.volume;
        let (begun, errors) = (self.env.clock.now(), volume.errors());
        let ready = || match enough() || volume.is_past(begun) {
            true => Some(Ok(())),
            false if self.closing() => Some(Err(Error::Closing)),
            false => volume.trouble_since(errors).map(Err),
        };
        let _flushing = self.flushing(vec![volume.clone()]);
        self.space.until(ready).await
    }

    /// Returns the bytes of the object's volume that only the cache has.
    pub fn dirty_bytes_beside(&self, object: &Object) -> u64 {
        object.volume.dirty() * crate::buffer::BLOCK as u64
    }

    /// Returns the bytes that only the cache has.
    pub fn dirty_bytes(&self) -> u64 {
        self.segments.blocks().1 * crate::buffer::BLOCK as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object() -> Object {
        Object::new(0, Key::new(b"object").unwrap(), Default::default())
    }

    fn at(number: u64) -> impl Fn() -> Option<Version> {
        move || Some(Version { number, unwatched: false })
    }

    #[test]
    fn a_version_that_moved_unannounced_is_suspect() {
        let object = object();
        object.look(at(10));
        object.look(at(10));
        assert!(object.is_seen(10) && !object.is_suspect());
        object.begin_own(at(10));
        object.look(at(11));
        assert!(!object.is_suspect(), "one of the owner's own is under way");
        object.end_own(at(12), 10, 10);
        object.look(at(12));
        assert!(object.is_seen(12));
        object.begin_own(at(13));
        assert!(object.is_suspect(), "seen before the owner's own change hides it");
        object.end_own(at(14), 13, 13);
        assert!(object.is_suspect(), "and still so");
    }

    #[test]
    fn what_changed_while_nobody_watched_is_suspect_at_the_first_look_only() {
        let unwatched = || Some(Version { number: 5, unwatched: true });
        let first = object();
        first.look(unwatched);
        assert!(first.is_suspect());
        let later = object();
        later.look(at(5));
        later.look(unwatched);
        assert!(!later.is_suspect());
        later.changed_unseen();
        later.look(at(9));
        assert!(later.is_seen(9), "believed as it is");
    }

    #[test]
    fn a_change_by_others_that_an_own_one_may_have_hidden_is_suspect_when_it_is_told() {
        let object = object();
        object.look(at(10));
        object.changed_by_others();
        assert!(object.is_seen(10), "it shows, or was seen");
        object.begin_own(at(10));
        object.changed_by_others();
        object.end_own(at(11), 10, 10);
        assert!(object.is_suspect(), "told during the change");
        for hidden in [false, true] {
            let object = self::object();
            object.look(at(10));
            if hidden {
                object.begin_hidden(at(10), 10);
                object.end_hidden(at(12));
            } else {
                object.begin_own(at(10));
                object.end_own(at(12), 10, 10);
            }
            object.look(at(12));
            assert!(object.is_seen(12));
            object.changed_by_others();
            assert!(object.is_suspect(), "told after it");
            assert_eq!(object.shown(12), 12);
        }
    }

    #[test]
    fn of_several_changes_at_once_the_last_one_tells() {
        let object = object();
        object.look(at(1));
        object.begin_own(at(1));
        object.begin_own(at(2));
        object.end_own(at(3), 2, 2);
        assert!(object.is_seen(1));
        object.end_own(at(4), 1, 1);
        assert!(object.is_seen(4));
    }

    #[test]
    fn a_hidden_change_does_not_show_and_the_next_one_does() {
        let object = object();
        object.look(at(10));
        assert_eq!(object.shown(10), 10);
        object.begin_hidden(at(10), 10);
        assert_eq!(object.shown(15), 10, "on the way");
        object.end_hidden(at(20));
        assert_eq!([object.shown(15), object.shown(20), object.shown(21)], [10, 10, 21]);
        object.begin_own(at(20));
        object.end_own(at(30), 20, 10);
        assert_eq!(object.shown(30), 30);
    }

    #[test]
    fn what_is_shown_grows_even_where_the_version_lags_behind() {
        let object = object();
        object.look(at(10));
        object.begin_own(at(10));
        object.end_own(at(11), 10, 15);
        assert_eq!([object.shown(11), object.shown(17)], [16, 17]);
        object.begin_own(at(11));
        object.end_own(at(11), 11, 16);
        assert_eq!(object.shown(11), 16, "nothing was changed");
    }

    #[test]
    fn a_change_by_others_shows() {
        let object = object();
        object.begin_hidden(at(10), 10);
        object.end_hidden(at(20));
        object.look(at(25));
        assert!(object.is_suspect());
        assert_eq!(object.shown(25), 25);
    }
}
