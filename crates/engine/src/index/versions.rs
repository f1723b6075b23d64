//! External changes of an object are detected by its version.

use forebay_common::lock::atomic::Ordering;

use crate::index::object::CachedObject;
use crate::index::version_watch::{SUSPECT, UNSEEN, Version};

impl CachedObject {
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
            self.watch.compare(version(), &own);
        }
    }

    /// Takes `number` as the version seen, if none was seen. The caller has read it before the object could have
    /// contents.
    pub fn begin_to_look(&self, number: u64) {
        let own = self.watch.own.lock();
        if own.all == 0 && self.is_seen(UNSEEN) {
            self.watch.seen.store(number, Ordering::Relaxed);
        }
    }

    /// Announces that the owner begins to change the object; ended by [`CachedObject::end_own`].
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
    /// [`CachedObject::shown`] returns `shown`. Ended by [`CachedObject::end_hidden`].
    pub fn begin_hidden(&self, version: impl FnOnce() -> Option<Version>, shown: u64) {
        let mut own = self.watch.begin(version);
        own.hidden += 1;
        if !self.is_suspect() {
            self.watch.shown.store(shown, Ordering::Relaxed);
        }
    }

    /// Ends a change announced by [`CachedObject::begin_hidden`].
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
    /// an owner's change does not show in the version, nor does a change before the first look.
    pub fn changed_by_others(&self) {
        let own = self.watch.own.lock();
        if own.may_hide || self.is_seen(UNSEEN) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::Key;

    fn object() -> CachedObject {
        CachedObject::new(0, Key::new(b"object").unwrap(), Default::default())
    }

    fn at(number: u64) -> impl Fn() -> Option<Version> {
        move || Some(Version { number, unwatched: false, since_start: false })
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
        let unwatched = || Some(Version { number: 5, unwatched: true, since_start: false });
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
    fn what_changed_between_the_start_and_the_first_look_is_suspect_unless_the_owner_did_it() {
        let since_start = || Some(Version { number: 5, unwatched: false, since_start: true });
        let ways: [fn(&CachedObject); 3] = [|_| {}, CachedObject::changed_unseen, |new| new.begin_to_look(5)];
        for (way, is_suspect) in ways.into_iter().zip([true, false, false]) {
            let object = object();
            way(&object);
            object.look(since_start);
            assert_eq!(object.is_suspect(), is_suspect);
        }
        let looked = object();
        looked.begin_to_look(4);
        looked.begin_to_look(5);
        assert!(looked.is_seen(4), "the first one counts");
        looked.look(since_start);
        assert!(looked.is_suspect());
        let told = object();
        told.changed_by_others();
        assert!(told.is_suspect(), "nobody has looked");
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
