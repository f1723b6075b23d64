//! Corrects the backing file's attributes for clients.
//!
//! Size and modification time cover the blocks that are not destaged yet. The change time does not move when a file is
//! destaged, since a Linux client drops its cached contents of a file whose change time moves.

use std::ops::Deref;

use forebay_engine::CachedObject as Cached;
use forebay_engine::buffer::BLOCK;

use crate::attr::{Attr, Time};

/// Size and times of a file as the engine knows them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Undestaged {
    size: u64,
    mtime: Option<Time>,
    dirty: u64,
}

impl Undestaged {
    /// Returns the corrections for a file, or `None` if the backing store knows all its changes.
    pub(crate) fn of(cached: &Cached) -> Option<Self> {
        let (size, mtime) = cached.undestaged_attributes()?;
        let mtime = mtime.map(|mtime| Time { sec: mtime.sec, nsec: mtime.nsec });
        Some(Undestaged { size, mtime, dirty: cached.dirty_blocks() * BLOCK as u64 })
    }
}

/// The corrections to the backing file's attributes.
pub(crate) struct Overlay<C> {
    cached: C,
    undestaged: Option<Undestaged>,
}

impl<C: Deref<Target = Cached>> Overlay<C> {
    /// Returns the corrections for a file, as they are now.
    pub(crate) fn new(cached: C) -> Self {
        let undestaged = Undestaged::of(&cached);
        Overlay { cached, undestaged }
    }

    /// Returns true if the backing store knows all changes of the file.
    pub(crate) fn is_destaged(&self) -> bool {
        self.undestaged.is_none()
    }

    /// Returns the attributes that clients are to see instead of the backing file's.
    pub(crate) fn over(&self, attr: Attr) -> Attr {
        let seen = number(attr.backing_ctime);
        let base = match self.cached.shown(seen) {
            shown if shown == seen => attr.backing_ctime,
            shown => Time { sec: (shown / SECOND) as i64, nsec: (shown % SECOND) as u32 },
        };
        let mtime = self.undestaged.and_then(|undestaged| undestaged.mtime).unwrap_or(attr.mtime);
        // A write changes both; a modification time from the future was set and says nothing of when.
        let past = if mtime == attr.mtime { mtime <= attr.backing_ctime } else { mtime <= file_time() };
        let ctime = if past { base.max(mtime) } else { base };
        let Some(Undestaged { size, dirty, .. }) = self.undestaged else { return Attr { ctime, ..attr } };
        // Programs take a file with less than its size allocated for one with holes.
        let used = attr.used.max((attr.used + dirty).min(size.next_multiple_of(BLOCK as u64)));
        Attr { size, used, mtime, ctime, ..attr }
    }
}

const SECOND: u64 = 1_000_000_000;

/// Returns a change time as the engine's version number. The result is never one of the two numbers that stand for
/// something else.
pub(crate) fn number(ctime: Time) -> u64 {
    (ctime.sec as u64).wrapping_mul(SECOND).wrapping_add(u64::from(ctime.nsec)).clamp(1, u64::MAX - 1)
}

/// Returns the time of the clock that file times come from.
pub(crate) fn file_time() -> Time {
    #[cfg(test)]
    if let Some(now) = crate::attr::coarse::now() {
        return now;
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Time { sec: now.tv_sec, nsec: now.tv_nsec as u32 }
}
