//! The log: one total order of all acknowledged changes.
//!
//! Requests append to the open frame. The writer task closes the frame, writes it to both legs at once, and opens the
//! next frame meanwhile. One frame is in flight at a time. So the existence of a frame proves that the frame before
//! it was durable.

mod append;
pub(crate) mod commit_leader;
pub(crate) mod footers;
pub(crate) mod gathered;
pub(crate) mod mirror_io;
pub(crate) mod notes;
pub(crate) mod reappend;
pub(crate) mod records;
mod reserve;
mod spread;
mod step;
pub(crate) mod undurable;
pub(crate) mod user_records;
pub(crate) mod writer;

pub(crate) use reserve::{AppendKind, LOG_RESERVE, Moving};

use forebay_common::lock::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

use forebay_common::lock::Mutex;
use smallvec::SmallVec;

use crate::buffer::Buffer;
use crate::log::gathered::Gathered;
use crate::planted_bugs::threads;
use crate::segments::{Opened, Reach, SegmentId};
use crate::wait::Gate;
use crate::{Completion, Error, Seq};

/// The frame that requests append to.
#[derive(Debug)]
struct Open {
    seq: Seq,
    start: u16,
    data: usize,
    gathered: Gathered,
    /// The head block, then data.
    buffer: Buffer,
}

/// The segment being written.
#[derive(Debug)]
struct Current {
    opened: Opened,
    /// The first slot that no closed frame uses.
    next: u16,
    gathered: Gathered,
}

#[derive(Default)]
struct State {
    current: Option<Current>,
    open: Option<Open>,
    next_seq: Seq,
    waiting: Vec<(Seq, Completion)>,
    spare: Vec<Buffer>,
    /// True if the segment is full or lost a leg, and the next segment is needed.
    roll: bool,
    /// True if a frame is wanted even if it is empty, since a task waits for space.
    frame_requested: bool,
    /// True if there is no next segment yet.
    full: bool,
    /// True if only movers may append to the current segment.
    reserved: bool,
    /// Number of tasks that move live data from the log tail to the log head.
    movers: usize,
    /// True if appended data will be on two devices for as long as it needs that.
    mirrored: bool,
    closing: bool,
    /// True if a frame is being written, or the next segment is looked for.
    stepping: bool,
    broken: Option<Error>,
}

impl State {
    fn wants_frame(&self) -> bool {
        self.open.as_ref().is_some_and(|open| self.frame_requested || !open.gathered.is_empty())
    }
}

/// A closed frame that is written to the legs.
#[derive(Debug)]
pub(crate) struct Closed {
    pub(crate) seq: Seq,
    pub(crate) segment: Opened,
    /// The frame's first slot.
    pub(crate) start: u16,
    /// The first slot behind the frame.
    pub(crate) end: u16,
    pub(crate) reach: Reach,
    pub(crate) buffer: Buffer,
}

/// The next step of the writer task.
pub(crate) enum Step {
    Write(Closed),
    Roll,
    Stop,
}

/// The place of appended blocks.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) seq: Seq,
    pub(crate) segment: SegmentId,
    pub(crate) slot: u16,
    pub(crate) checksums: SmallVec<[u32; 2]>,
}

/// The place of an appended record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Appended {
    pub(crate) seq: Seq,
    pub(crate) segment: SegmentId,
}

/// The log: the open frame, the segment being written, and the waiters for durability.
pub(crate) struct Log {
    pool: u128,
    epoch: AtomicU64,
    slots: usize,
    durable: AtomicU64,
    state: Mutex<State>,
    /// Wakes the writer task when there is work.
    pub(crate) work: Gate,
    /// Has the calling thread do the work as commit leader. Returns false if it cannot.
    lead: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    /// Wakes tasks that wait for room or for durability.
    pub(crate) changed: Gate,
}

impl Log {
    /// Returns a log whose next frame is `next_seq`, in segments of `slots` blocks.
    pub(crate) fn new(pool: u128, epoch: u64, slots: usize, next_seq: Seq) -> Self {
        Log {
            pool,
            epoch: AtomicU64::new(epoch),
            slots,
            durable: AtomicU64::new(next_seq - 1),
            state: Mutex::new(State { next_seq, roll: true, ..State::default() }),
            work: Gate::default(),
            lead: OnceLock::new(),
            changed: Gate::default(),
        }
    }

    /// Sets the function that an appender to an idle log calls before the writer task is woken.
    pub(crate) fn set_lead(&self, lead: impl Fn() -> bool + Send + Sync + 'static) {
        // The engine is started once, so the cell is empty.
        let _ = self.lead.set(Box::new(lead));
    }

    /// Sets the epoch that the following frames carry.
    pub(crate) fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Returns the highest frame that is durable, with all frames before it.
    pub(crate) fn durable(&self) -> Seq {
        self.durable.load(Ordering::Acquire)
    }

    /// Returns the last frame with appended records, open or closed. Once it is durable, so is everything appended so
    /// far.
    pub(crate) fn last_appended(&self) -> Seq {
        let state = self.state.lock();
        let empty = state.open.as_ref().is_none_or(|open| open.gathered.is_empty());
        if empty { state.next_seq - 1 } else { state.next_seq }
    }

    /// Calls `done` once frame `seq` is durable or the log is broken; at once if either is already so.
    pub(crate) fn when_durable(&self, seq: Seq, done: Completion) {
        let early = threads::active("a frame is durable before it is waited for").then(|| self.durable());
        let before = u64::from(crate::planted_bugs::active(
            "a frame is acknowledged when the one before it is durable",
        ));
        let result = {
            let mut state = self.state.lock();
            match state.broken {
                _ if early.unwrap_or_else(|| self.durable()) + before >= seq => Ok(()),
                Some(error) => Err(error),
                None => {
                    state.waiting.push((seq, done));
                    return;
                }
            }
        };
        done(result);
    }

    /// Waits until frame `seq` is durable.
    pub(crate) async fn committed(&self, seq: Seq) -> Result<(), Error> {
        let ready = || match self.state.lock().broken {
            _ if self.durable() >= seq => Some(Ok(())),
            broken => broken.map(Err),
        };
        self.until(ready).await
    }

    /// Waits until `ready` returns a value after a change of the log.
    pub(crate) async fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        if let Some(value) = ready() {
            return value;
        }
        // The calling thread may be the one that has to write the awaited frame.
        self.work.wake();
        self.changed.until(ready).await
    }

    /// Waits until the first segment exists, and a frame holds the pool's new epoch.
    pub(crate) async fn started(&self) -> Result<(), Error> {
        let ready = || {
            let state = self.state.lock();
            state.broken.map(Err).or_else(|| state.current.is_some().then_some(Ok(())))
        };
        self.until(ready).await?;
        self.committed(self.request_frame()).await
    }

    /// Returns the segment being written, if a frame with records was written to it.
    pub(crate) fn used_segment(&self) -> Option<SegmentId> {
        let state = self.state.lock();
        let used = |current: &&Current| !current.gathered.is_empty();
        state.current.as_ref().filter(used).map(|current| current.opened.id)
    }

    /// Returns the segment being written.
    pub(crate) fn segment(&self) -> Option<SegmentId> {
        self.state.lock().current.as_ref().map(|current| current.opened.id)
    }

    /// Calls `look` with the segment that is written to. The log does not leave it meanwhile, so it is not sealed.
    pub(crate) fn with_segment<T>(&self, look: impl FnOnce(Option<SegmentId>) -> T) -> T {
        let state = self.state.lock();
        look(state.current.as_ref().map(|current| current.opened.id))
    }

    /// Returns true if the log does not write to `segment` any more.
    pub(crate) fn has_left(&self, segment: SegmentId) -> bool {
        let state = self.state.lock();
        state.broken.is_some() || state.current.as_ref().is_some_and(|current| current.opened.id != segment)
    }

    /// Requests a frame soon, even an empty one. Returns its number.
    pub(crate) fn request_frame(&self) -> Seq {
        let mut state = self.state.lock();
        state.frame_requested = true;
        let seq = state.next_seq;
        drop(state);
        self.work.wake();
        seq
    }

    /// Requests the next segment, since the current segment lost a leg.
    pub(crate) fn want_roll(&self) {
        self.state.lock().roll = true;
        self.work.wake();
    }

    /// Sets whether the writer task waits for a segment to become free.
    pub(crate) fn set_full(&self, full: bool) {
        if std::mem::replace(&mut self.state.lock().full, full) != full {
            self.changed.wake();
        }
    }

    /// Sets whether the log accepts new data of clients.
    pub(crate) fn set_mirrored(&self, mirrored: bool) {
        self.state.lock().mirrored = mirrored;
    }

    /// Returns true if nothing can be appended until a segment becomes free.
    pub(crate) fn is_full(&self) -> bool {
        self.state.lock().full
    }

    /// Ends the writer task once everything appended is written.
    pub(crate) fn close(&self) {
        self.state.lock().closing = true;
        self.work.wake();
    }

    /// Returns true if the writer task is to end, and may: all appended records are in a segment.
    pub(crate) fn is_ending(&self) -> bool {
        let state = self.state.lock();
        state.closing && state.current.is_some()
    }

    /// Breaks the log: no frame is written any more. Returns the completions of all waiters, for the caller to fail.
    pub(crate) fn fail_all(&self, error: Error) -> Vec<Completion> {
        let mut state = self.state.lock();
        state.broken.get_or_insert(error);
        state.waiting.drain(..).map(|(_, done)| done).collect()
    }

    /// Returns the reason why nothing can be appended any more, if the log is broken.
    pub(crate) fn broken(&self) -> Option<Error> {
        self.state.lock().broken
    }
}

#[cfg(test)]
mod tests;
