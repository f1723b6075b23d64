//! The reserve of the backing store: space for the data that the cache accepts, so that an acknowledged write can
//! always be destaged.

use crate::sys::coarse_millis;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use forebay_common::lock::Mutex;

/// The time between two questions to the backing store, in milliseconds; the shorter one counts if space is short.
const REFRESH: u64 = 500;
const REFRESH_SHORT: u64 = 10;
/// The time to wait for the backing store's answer. A store that does not answer is not asked again until it does. So
/// it holds up one worker for this time, and no other. Before the first answer, other workers wait with that one.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// The part of all space that is kept free, at most [`MARGIN_MAX`] bytes. Destaging needs it besides the data itself,
/// and other programs may take space between two questions.
const MARGIN_PART: u64 = 64;
const MARGIN_MAX: u64 = 64 << 20;

/// The bytes that may be accepted before the backing store has to be asked again.
#[derive(Debug, Default)]
pub(crate) struct Reserve {
    /// Bytes; below zero when more was wanted than there is.
    left: AtomicI64,
    /// Bytes taken whose outcome is not known yet.
    pending: AtomicU64,
    /// The time of the next question, in milliseconds of the monotonic clock.
    due: AtomicU64,
    /// True once there was an answer.
    known: AtomicBool,
    /// Held by a thread that asks for the first answer.
    first: Mutex<()>,
}

/// The space of a file system, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FreeSpace {
    pub(crate) all: u64,
    pub(crate) free: u64,
}

/// Room that was taken. Its unused part is given back.
#[derive(Debug)]
pub(crate) struct Room<'a> {
    reserve: &'a Reserve,
    taken: u64,
    used: u64,
}

impl Reserve {
    /// Returns true if the backing store has to be asked before `len` bytes are taken. Until the first answer, every
    /// thread asks or waits for another one's answer: there is nothing to take yet.
    pub(crate) fn is_due(&self, len: u64) -> bool {
        if !self.known.load(Ordering::Acquire) {
            return true;
        }
        let (now, due) = (coarse_millis(), self.due.load(Ordering::Relaxed));
        let short = self.left.load(Ordering::Relaxed) < len as i64;
        now >= due || short && now + REFRESH >= due + REFRESH_SHORT
    }

    /// Takes room for `len` bytes. Returns `None` if there is none. If the backing store has to be asked, calls `dirty`
    /// for the bytes that are accepted and not destaged, and then `look` for the space. Bytes destaged in between, and
    /// bytes that other writers take, therefore count twice rather than not at all. Without an answer the last answer
    /// stands.
    pub(crate) fn take(
        &self,
        len: u64,
        dirty: impl FnOnce() -> u64,
        look: impl FnOnce() -> Option<FreeSpace>,
    ) -> Option<Room<'_>> {
        let (room, enough) = self.hold(len, dirty, look);
        enough.then_some(room)
    }

    /// Takes room for `len` bytes like [`Reserve::take`], also if there is not enough. Until the room is dropped, no
    /// other thread gets that space. Returns the room, and true if there was enough.
    pub(crate) fn hold(
        &self,
        len: u64,
        dirty: impl FnOnce() -> u64,
        look: impl FnOnce() -> Option<FreeSpace>,
    ) -> (Room<'_>, bool) {
        let _asking = (!self.known.load(Ordering::Acquire)).then(|| self.first.lock());
        // Another thread may have got the first answer meanwhile.
        if self.is_due(len) {
            self.due.store(coarse_millis() + REFRESH, Ordering::Relaxed);
            let left = self.left.load(Ordering::Acquire);
            let taken = self.pending.load(Ordering::Acquire) + dirty();
            if let Some(FreeSpace { all, free }) = look() {
                let margin = (all / MARGIN_PART).min(MARGIN_MAX);
                let there = free.min(i64::MAX as u64) as i64 - taken as i64 - margin as i64;
                // Bytes that other threads have taken since `left` was read stay taken.
                self.left.fetch_add(there - left, Ordering::Relaxed);
                self.known.store(true, Ordering::Release);
            }
        }
        self.pending.fetch_add(len, Ordering::AcqRel);
        let enough = self.left.fetch_sub(len as i64, Ordering::AcqRel) >= len as i64;
        (Room { reserve: self, taken: len, used: 0 }, enough)
    }
}

impl Room<'_> {
    /// Returns true if no other room is taken, so that no other thread is about to make blocks dirty.
    pub(crate) fn is_alone(&self) -> bool {
        self.reserve.pending.load(Ordering::Acquire) == self.taken
    }

    /// Records that `len` bytes of the reservation were used.
    pub(crate) fn used(mut self, len: u64) {
        self.used = len.min(self.taken);
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.reserve.left.fetch_add((self.taken - self.used) as i64, Ordering::AcqRel);
        self.reserve.pending.fetch_sub(self.taken, Ordering::AcqRel);
    }
}

/// Returns the space of the file system that `fd` is on, for users without privilege.
pub(crate) fn space(fd: impl AsFd) -> Option<FreeSpace> {
    let stat = rustix::fs::fstatvfs(fd).ok()?;
    Some(FreeSpace { all: stat.f_blocks * stat.f_frsize, free: stat.f_bavail * stat.f_frsize })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn space(free: u64) -> impl FnOnce() -> Option<FreeSpace> {
        move || Some(FreeSpace { all: 64 * MIB, free })
    }

    #[test]
    fn no_more_is_taken_than_there_is_beside_what_is_dirty() {
        let reserve = Reserve::default();
        // A margin of 1 MiB.
        reserve.take(4 * MIB, || 2 * MIB, space(8 * MIB)).unwrap().used(4 * MIB);
        assert!(reserve.take(2 * MIB, || 6 * MIB, space(8 * MIB)).is_none());
        let room = reserve.take(MIB, || 0, || panic!("asked again at once")).unwrap();
        assert!(reserve.take(MIB, || 0, || panic!("asked again at once")).is_none());
        drop(room);
        reserve.take(MIB, || 0, || panic!("asked again at once")).unwrap().used(0);
        assert_eq!(reserve.pending.into_inner(), 0);
    }

    /// After a restart the clients send their writes at once. A write that found no room would wait until all data of
    /// the last server is destaged.
    #[test]
    fn a_write_beside_the_first_question_gets_room() {
        let reserve = Reserve::default();
        std::thread::scope(|scope| {
            let room = reserve.take(
                MIB,
                || 0,
                || {
                    assert!(reserve.is_due(MIB), "another write takes nothing before the answer");
                    let (begun, begins) = std::sync::mpsc::channel();
                    let reserve = &reserve;
                    scope.spawn(move || {
                        begun.send(()).unwrap();
                        reserve.take(MIB, || 0, space(8 * MIB)).expect("there is room").used(MIB);
                    });
                    begins.recv().unwrap();
                    space(8 * MIB)()
                },
            );
            room.expect("there is room").used(MIB);
        });
        reserve.take(5 * MIB, || 0, || panic!("asked again at once")).unwrap().used(5 * MIB);
        assert!(reserve.take(MIB, || 7 * MIB, space(8 * MIB)).is_none(), "one of the answers counts");
    }

    #[test]
    fn what_others_are_about_to_make_dirty_is_not_given_away() {
        let reserve = Reserve::default();
        let theirs = reserve.take(5 * MIB, || 0, space(8 * MIB)).unwrap();
        reserve.due.store(0, Ordering::Relaxed);
        assert!(reserve.take(3 * MIB, || 0, space(8 * MIB)).is_none());
        theirs.used(5 * MIB);
        reserve.due.store(0, Ordering::Relaxed);
        assert!(reserve.take(3 * MIB, || 5 * MIB, space(8 * MIB)).is_none());
        reserve.due.store(0, Ordering::Relaxed);
        // Destaged, and then removed.
        assert!(reserve.take(3 * MIB, || 0, space(8 * MIB)).is_some());
    }

    #[test]
    fn room_that_is_held_is_not_given_away_although_it_is_not_there() {
        let reserve = Reserve::default();
        let (held, enough) = reserve.hold(20 * MIB, || 0, space(8 * MIB));
        assert!(!enough && held.is_alone());
        reserve.due.store(0, Ordering::Relaxed);
        assert!(reserve.take(1, || 0, space(8 * MIB)).is_none());
        drop(held);
        let theirs = reserve.take(7 * MIB, || 0, || panic!("asked again at once")).unwrap();
        let (held, enough) = reserve.hold(MIB, || 0, || panic!("asked again at once"));
        assert!(!enough && !held.is_alone());
        drop(theirs);
        assert!(held.is_alone());
    }

    #[test]
    fn without_an_answer_there_is_what_there_was() {
        let reserve = Reserve::default();
        assert!(reserve.take(1, || 0, || None).is_none());
        reserve.due.store(0, Ordering::Relaxed);
        drop(reserve.take(MIB, || 0, space(8 * MIB)));
        reserve.due.store(0, Ordering::Relaxed);
        reserve.take(7 * MIB, || 0, || None).unwrap().used(7 * MIB);
        assert!(reserve.take(1, || 0, || None).is_none());
    }

    #[test]
    fn no_limit_is_no_overflow() {
        let reserve = Reserve::default();
        assert!(reserve.take(MIB, || MIB, || Some(FreeSpace { all: u64::MAX, free: u64::MAX })).is_some());
    }
}
