//! Planted bugs, one at a time, to prove that the simulator finds them.

forebay_common::planted_bugs![
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
    "the last frame is taken as it is",
    "the last frame is not counted",
    "cuts are not replayed",
    "cuts leave the last block as it was",
    "partial writes forget the old contents",
    "stale fetches are cached",
    "sizes are not logged",
    "modification times are not destaged",
    "counters drift",
    "high priority stays counted",
    "segments are applied newest first",
    "destage cleans what was rewritten meanwhile",
    "reads do not wait for frames",
    "what is moved within the log is taken for clean",
    "a lost device is not recorded",
    "the end of the log is not recorded",
    "a log that is lost takes commits",
    "lone legs are taken for mirrored",
    "a device leaves with what only it and another have",
    "two write frames at once",
    "a device that does not answer is waited for",
    "what is noted of the epoch in use does not count",
    "a device of another pool is left out",
    "writers take the reserve of the log",
    "slots beyond 255 wrap at recovery",
    ; in scenarios:
    "a failed sync is noted once its caller knows",
    "a refused part is tried again as it was",
    "a write past the log waits for a refused block",
    "a volume works again though it refuses blocks",
    "a failed sync counts for its caller only",
    "a stale leg counts at recovery",
    "frames of an older epoch count",
    "segments from before a device came back count",
    "a segment of an older life counts",
    "frames behind the next segment's first one count",
    "the newest segment may be missing",
    "frames that were acknowledged may be missing",
    "the reach of the last frame does not count",
    "a log without a frame begins anywhere",
    "a dropped log leaves its clean copies",
    "a frame is acknowledged before a lost leg is recorded",
    "a frame is acknowledged when the one before it is durable",
    "a logged cut does not hold its segment",
    "what a power cut may take back of the backing file is cached",
    "a cut is carried out before its record is durable",
    "a cut waits for each batch of destaging",
    "a write past the log overtakes a cut that waits",
    "epochs are not given out",
    "blocks moved while they are destaged stay dirty",
    "a loss waits for a device that is being added",
    "a device that is being added is waited for",
    "a device that was not added leaves its epoch",
    "a device is waited for while the pool is opened",
    "a device is waited for while the pool is recovered",
    "a device is waited for while the engine stops",
    "a stop waits for a volume that does not answer",
    "a device that is needed is left out of the pool",
    "a device that owes no answer is taken for one that answers",
    "blocks that stay are dropped without a free segment",
    "priorities do not count",
    "high priority has no limit",
    "high priority stays for ever",
    ; in unit tests:
    "legs are used again before it is durable that they are given up",
];

/// Planted bugs between two threads. The simulator runs one task at a time and cannot find them; `crates/threads`
/// does.
pub mod threads {
    use forebay_common::lock::MutexGuard;

    forebay_common::planted_bugs![
        "facts are taken before the wait for room",
        "a repair does not ask whether its place is still a leg",
        "a place is used again before its repair has ended",
        "a cut is in the log before its object is locked",
        "a write is in the log before the index knows of it",
        "a fetch ends before its contents are in memory",
        "a frame is durable before it is waited for",
        "a change comes between the look and the wait",
        "a segment is sealed before the log leaves it",
    ];

    /// Unlocks a state for a moment if `bug` is planted.
    pub(crate) fn gap<'a, T>(
        bug: &'static str,
        lock: impl FnOnce() -> MutexGuard<'a, T>,
        state: MutexGuard<'a, T>,
    ) -> MutexGuard<'a, T> {
        if !active(bug) {
            return state;
        }
        drop(state);
        lock()
    }
}
