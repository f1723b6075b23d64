//! Deliberate bugs, one at a time, to prove that the simulator finds them. Without the feature `plant` there are none.

/// Every bug there is.
#[cfg(feature = "plant")]
pub const PLANTS: &[&str] = &[
    "late copies replace newer ones",
    "late copies count though they were dropped",
    "frames are not flushed",
    "one leg is enough",
    "checksums are not checked",
    "direct writes void nothing",
    "direct writes do not wait for dirty blocks",
    "the tail does not wait for dirty blocks",
    "only the sync is tried again",
    "destage does not sync",
    "a failed sync counts for its caller only",
    "the last frame is taken as it is",
    "the last frame is not counted",
    "cuts are not replayed",
    "cuts leave the last block as it was",
    "partial writes forget the old contents",
    "stale fetches are cached",
    "sizes are not logged",
    "modification times are not destaged",
    "counters drift",
    "segments are applied newest first",
    "destage cleans what was rewritten meanwhile",
    "reads do not wait for frames",
    "what is moved within the log is taken for clean",
    "a lost device is not recorded",
    "lone legs are taken for mirrored",
    "two write frames at once",
];

#[cfg(feature = "plant")]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// Plants one of [`PLANTS`] in what this thread runs, or none.
#[cfg(feature = "plant")]
pub fn plant(bug: Option<&'static str>) {
    ACTIVE.set(bug);
}

#[cfg(feature = "plant")]
pub(crate) fn active(bug: &'static str) -> bool {
    debug_assert!(PLANTS.contains(&bug), "{bug} is not listed");
    ACTIVE.get() == Some(bug)
}

#[cfg(not(feature = "plant"))]
pub(crate) const fn active(_bug: &'static str) -> bool {
    false
}
