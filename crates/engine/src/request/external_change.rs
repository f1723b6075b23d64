//! What others do to an object of the backing store, behind the cache's back.

use forebay_common::lock::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::Result;
use crate::engine::Engine;
use crate::error::Error;
use crate::index::object::{Busy, Object};
use crate::io::{BackingError, Key};
use forebay_common::lock::{Mutex, MutexGuard};

/// No version was seen yet, since the pool was opened.
const UNSEEN: u64 = 0;
/// Others have changed the object: what is cached of it may be older than what the backing store has.
const SUSPECT: u64 = u64::MAX;

/// The version of an object in the backing store as its owner saw it last. The owner's changes are announced, so that a
/// version that is another without one is the work of others. A version is any number but the two above.
#[derive(Debug, Default)]
pub(crate) struct VersionWatch {
    seen: AtomicU64,
    /// The version that stands for all from the owner's hidden changes; 0 if there were none since the last that shows.
    shown: AtomicU64,
    own: Mutex<Own>,
}

/// The owner's changes under way.
#[derive(Debug, Default)]
struct Own {
    all: u32,
    hidden: u32,
    /// One of them may have hidden a change by others since the object was last known to be as the backing store has it.
    may_hide: bool,
}

/// A version that was looked up.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// Any number that is another after every change.
    pub number: u64,
    /// Whether the change that led to it was made while nobody watched: counts if no version was seen before.
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
    /// Whether `number` is the version that was seen last, and nothing is suspect.
    pub fn is_seen(&self, number: u64) -> bool {
        self.watch.seen.load(Ordering::Relaxed) == number
    }

    /// Whether others have changed the object since it was cached.
    pub fn is_suspect(&self) -> bool {
        self.is_seen(SUSPECT)
    }

    /// Compares the version now with the one seen last, unless the owner is about to change it.
    pub fn look(&self, version: impl FnOnce() -> Option<Version>) {
        let own = self.watch.own.lock();
        if own.all == 0 && !self.is_suspect() {
            self.watch.compare(version());
        }
    }

    /// The owner begins to change the object; ended by [`Object::end_own`].
    pub fn begin_own(&self, version: impl FnOnce() -> Option<Version>) {
        drop(self.watch.begin(version));
    }

    /// The owner's change is made; the last of several at once says which version came of them. Before it the version was
    /// `from`, and `shown` was what was shown: should the version have grown, but not beyond that, what is shown does.
    pub fn end_own(&self, version: impl FnOnce() -> Option<Version>, from: u64, shown: u64) {
        let mut own = self.watch.own.lock();
        let number = version().map_or(UNSEEN, |version| version.number);
        self.watch.end(&mut own, number);
        if number != from {
            let shown = if number <= shown && !self.is_suspect() { shown + 1 } else { 0 };
            self.watch.shown.store(shown, Ordering::Relaxed);
        }
    }

    /// As [`Object::begin_own`] of a change that is not to show: until the next one that is, [`Object::shown`] gives
    /// `shown`. Ended by [`Object::end_hidden`].
    pub fn begin_hidden(&self, version: impl FnOnce() -> Option<Version>, shown: u64) {
        let mut own = self.watch.begin(version);
        own.hidden += 1;
        if !self.is_suspect() {
            self.watch.shown.store(shown, Ordering::Relaxed);
        }
    }

    /// See [`Object::begin_hidden`].
    pub fn end_hidden(&self, version: impl FnOnce() -> Option<Version>) {
        let mut own = self.watch.own.lock();
        own.hidden -= 1;
        let number = version().map_or(UNSEEN, |version| version.number);
        self.watch.end(&mut own, number);
    }

    /// What is to show for version `number`, which was looked up before: versions grow.
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

    /// Others have changed the contents: the kernel tells so, perhaps late. A change that came by itself shows in the version,
    /// and this is no news. One that came during a change of the owner's does not show.
    pub fn changed_by_others(&self) {
        let own = self.watch.own.lock();
        if own.may_hide {
            self.watch.seen.store(SUSPECT, Ordering::Relaxed);
            self.watch.shown.store(0, Ordering::Relaxed);
        }
    }

    /// The owner changed the object without knowing its version: the next look believes what it sees.
    pub fn changed_unseen(&self) {
        let mut own = self.watch.own.lock();
        own.may_hide = true;
        if !self.is_suspect() {
            self.watch.seen.store(UNSEEN, Ordering::Relaxed);
        }
    }
}

impl Engine {
    /// The object `key` names if the cache knows anything of it. `size` is the backing store's, as for
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

    /// Nothing clean of the object counts any more, durably when this returns: others may have changed it, and it has
    /// `size` bytes now and is of version `number`. What the backing store does not have yet stays and will be written
    /// over their change: then nothing is done, and the result is false.
    ///
    /// # Errors
    /// The object is gone, or no cache device is left.
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
        // Also for copies let go of: found again after a crash, those not yet out of the log would be destaged again.
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

    /// Destages what is dirty of one object, now.
    ///
    /// # Errors
    /// The backing store's; it is tried again in the background. [`Error::Damaged`]: no copy of some of it can be read.
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

    /// Destages what is dirty now of all objects of this one's volume, or as much of it as is `enough`.
    ///
    /// # Errors
    /// As [`Engine::destage_object`], and that the volume is late.
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

    /// Bytes of the object's volume that only the cache has.
    pub fn dirty_bytes_beside(&self, object: &Object) -> u64 {
        object.volume.dirty() * crate::buffer::BLOCK as u64
    }

    /// Bytes that only the cache has.
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
