//! Space of the backing store kept for what the cache accepts: an acknowledged write can always be destaged.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use forebay_engine::{Engine, Object as Cached};

/// How often the backing store is asked, in milliseconds; more often when space is short.
const REFRESH: u64 = 500;
const REFRESH_SHORT: u64 = 10;
/// Kept for what destaging needs besides the data itself, and for what others take between two looks: this part of the
/// file system, at most [`MARGIN_MAX`] bytes.
const MARGIN_PART: u64 = 64;
const MARGIN_MAX: u64 = 64 << 20;

/// What may be accepted before the backing store has to be asked again.
#[derive(Debug, Default)]
pub(crate) struct Reserve {
    /// Bytes; below zero when more was wanted than there is.
    left: AtomicI64,
    /// When to ask again, in milliseconds of the monotonic clock.
    due: AtomicU64,
}

impl Reserve {
    /// Takes room for `len` bytes on the file system of `fd`, which has the file `cached`; false if there is none.
    pub(crate) fn take(&self, engine: &Engine, cached: &Cached, fd: impl AsFd, len: u64) -> bool {
        let now = now();
        let left = self.left.load(Ordering::Relaxed);
        let due = self.due.load(Ordering::Relaxed);
        let short = left < len as i64;
        if now >= due || short && now + REFRESH >= due + REFRESH_SHORT {
            self.refresh(engine.dirty_bytes_beside(cached), fd, now, left);
        }
        self.left.fetch_sub(len as i64, Ordering::Relaxed) >= len as i64 || {
            self.give_back(len);
            false
        }
    }

    /// Gives back room that was not used.
    pub(crate) fn give_back(&self, len: u64) {
        self.left.fetch_add(len as i64, Ordering::Relaxed);
    }

    /// `dirty` bytes were to be destaged a moment ago: what is destaged in between counts twice rather than not at all.
    fn refresh(&self, dirty: u64, fd: impl AsFd, now: u64, left: i64) {
        self.due.store(now + REFRESH, Ordering::Relaxed);
        let Ok(stat) = rustix::fs::fstatvfs(fd) else { return };
        let margin = (stat.f_blocks * stat.f_frsize / MARGIN_PART).min(MARGIN_MAX);
        let there = (stat.f_bavail * stat.f_frsize) as i64 - dirty as i64 - margin as i64;
        // What others have taken since `left` was looked at stays taken.
        self.left.fetch_add(there - left, Ordering::Relaxed);
    }
}

/// Milliseconds of the monotonic clock; never 0.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000 + 1
}
