//! The log: one total order of everything acknowledged.
//!
//! Requests append to the open frame; the writer task closes it, writes it to both legs at once, and opens the next
//! one meanwhile. One frame is in flight at a time: that a frame exists proves that the one before it was durable.

mod append;
pub(crate) mod commit_leader;
pub(crate) mod gathered;
pub(crate) mod mirror_io;
pub(crate) mod reappend;
mod reserve;
mod step;
pub(crate) mod user_records;
pub(crate) mod writer;

pub(crate) use reserve::{Moving, RESERVE, Whose};

use forebay_common::lock::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

use forebay_common::lock::Mutex;
use smallvec::SmallVec;

use crate::buffer::Buffer;
use crate::index::leaf::SegmentId;
use crate::log::gathered::Gathered;
use crate::plant::threads;
use crate::segments::{Opened, Reach};
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
    /// The first slot no closed frame uses.
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
    /// The segment is full or lost a leg: the next one is needed.
    roll: bool,
    /// A frame is wanted though it may be empty: space waits for it.
    kick: bool,
    /// There is no next segment yet.
    full: bool,
    /// What is written now is for movers only.
    reserved: bool,
    /// How many move what counts from the tail to the head.
    movers: usize,
    /// What is appended will be on two devices for as long as it needs that.
    mirrored: bool,
    closing: bool,
    /// A frame is being written, or the next segment looked for.
    stepping: bool,
    broken: Option<Error>,
}

impl State {
    fn wants_frame(&self) -> bool {
        self.open.as_ref().is_some_and(|open| self.kick || !open.gathered.is_empty())
    }
}

/// A frame on its way to the legs.
#[derive(Debug)]
pub(crate) struct Closed {
    pub(crate) seq: Seq,
    pub(crate) segment: Opened,
    /// The frame's first slot.
    pub(crate) start: u16,
    /// The first slot behind it.
    pub(crate) end: u16,
    pub(crate) reach: Reach,
    pub(crate) buffer: Buffer,
}

/// What the writer task does next.
pub(crate) enum Step {
    Write(Closed),
    Roll,
    Stop,
}

/// Where blocks were put.
#[derive(Clone, Debug)]
pub(crate) struct Placed {
    pub(crate) seq: Seq,
    pub(crate) segment: SegmentId,
    pub(crate) slot: u16,
    pub(crate) checksums: SmallVec<[u32; 2]>,
}

/// Where a record was put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Appended {
    pub(crate) seq: Seq,
    pub(crate) segment: SegmentId,
}

/// See the file's comment.
pub(crate) struct Log {
    pool: u128,
    epoch: AtomicU64,
    slots: usize,
    durable: AtomicU64,
    state: Mutex<State>,
    /// The writer waits here for work.
    pub(crate) work: Gate,
    /// Has the calling thread do it; false if it cannot.
    lead: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
    /// Others wait here for room and for durability.
    pub(crate) changed: Gate,
}

impl Log {
    /// A log whose next frame is `next_seq`, in segments of `slots` blocks.
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

    /// Who appends to an idle log calls `lead` before the writer is woken.
    pub(crate) fn set_lead(&self, lead: impl Fn() -> bool + Send + Sync + 'static) {
        // The engine is started once.
        let _ = self.lead.set(Box::new(lead));
    }

    pub(crate) fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// The highest frame that is durable, with all before it.
    pub(crate) fn durable(&self) -> Seq {
        self.durable.load(Ordering::Acquire)
    }

    /// The frame that is being gathered or would be next: once it is durable, so is everything appended so far.
    pub(crate) fn last_appended(&self) -> Seq {
        let state = self.state.lock();
        let empty = state.open.as_ref().is_none_or(|open| open.gathered.is_empty());
        if empty { state.next_seq - 1 } else { state.next_seq }
    }

    /// Calls `done` once frame `seq` is durable or the log is broken; at once if that is so already.
    pub(crate) fn when_durable(&self, seq: Seq, done: Completion) {
        let early = threads::active("a frame is durable before it is waited for").then(|| self.durable());
        let before =
            u64::from(crate::plant::active("a frame is acknowledged when the one before it is durable"));
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

    /// Waits until `ready` gives something after a change of the log.
    pub(crate) async fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        if let Some(value) = ready() {
            return value;
        }
        // This may be the thread that is to write the frame which it waits for.
        self.work.wake();
        self.changed.until(ready).await
    }

    /// Waits until the first segment is there, and the pool's new epoch in a frame.
    pub(crate) async fn started(&self) -> Result<(), Error> {
        let ready = || {
            let state = self.state.lock();
            state.broken.map(Err).or_else(|| state.current.is_some().then_some(Ok(())))
        };
        self.until(ready).await?;
        self.committed(self.kick()).await
    }

    /// The segment being written, if anything was written to it.
    pub(crate) fn used_segment(&self) -> Option<SegmentId> {
        let state = self.state.lock();
        let used = |current: &&Current| !current.gathered.is_empty();
        state.current.as_ref().filter(used).map(|current| current.opened.id)
    }

    /// The segment being written.
    pub(crate) fn segment(&self) -> Option<SegmentId> {
        self.state.lock().current.as_ref().map(|current| current.opened.id)
    }

    /// Whether that segment is not written any more.
    pub(crate) fn has_left(&self, segment: SegmentId) -> bool {
        let state = self.state.lock();
        state.broken.is_some() || state.current.as_ref().is_some_and(|current| current.opened.id != segment)
    }

    /// Wants a frame soon, even an empty one; returns its number.
    pub(crate) fn kick(&self) -> Seq {
        let mut state = self.state.lock();
        state.kick = true;
        let seq = state.next_seq;
        drop(state);
        self.work.wake();
        seq
    }

    /// Wants the next segment: this one lost a leg.
    pub(crate) fn want_roll(&self) {
        self.state.lock().roll = true;
        self.work.wake();
    }

    /// The writer waits for a segment to become free, or does not any more.
    pub(crate) fn set_full(&self, full: bool) {
        if std::mem::replace(&mut self.state.lock().full, full) != full {
            self.changed.wake();
        }
    }

    /// Data of clients is taken, or not any more.
    pub(crate) fn set_mirrored(&self, mirrored: bool) {
        self.state.lock().mirrored = mirrored;
    }

    /// Whether nothing can be appended until a segment becomes free.
    pub(crate) fn is_full(&self) -> bool {
        self.state.lock().full
    }

    /// Lets the writer end once everything appended is written.
    pub(crate) fn close(&self) {
        self.state.lock().closing = true;
        self.work.wake();
    }

    /// Whether the writer is to end, and may: what was appended is in a segment.
    pub(crate) fn is_ending(&self) -> bool {
        let state = self.state.lock();
        state.closing && state.current.is_some()
    }

    /// Nothing is written any more: everybody waiting learns why.
    pub(crate) fn break_down(&self, error: Error) -> Vec<Completion> {
        let mut state = self.state.lock();
        state.broken.get_or_insert(error);
        state.waiting.drain(..).map(|(_, done)| done).collect()
    }

    /// Why nothing can be appended any more, if so.
    pub(crate) fn broken(&self) -> Option<Error> {
        self.state.lock().broken
    }
}

#[cfg(test)]
mod tests;
