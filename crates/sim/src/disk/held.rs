//! Operations that do not end until somebody lets them: a device that hangs, or a place and an order of a test's choosing.

use std::time::Duration;

use forebay_engine::buffer::BLOCK;
use forebay_engine::io::Io;

use super::{Disk, State};
use crate::executor::promise;

/// An operation as it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A read from this block on.
    Read(u64),
    /// A write from this block on.
    Write(u64),
    /// A flush.
    Flush,
    /// A discard.
    Discard,
}

impl Operation {
    /// Whether it writes the header of a segment (of 1 MiB).
    pub fn is_header(self) -> bool {
        matches!(self, Operation::Write(block) if block > 0 && block.is_multiple_of(256))
    }

    /// Whether it writes a superblock of a device of `size` bytes.
    pub fn is_superblock(self, size: u64) -> bool {
        self == Operation::Write(0) || self == Operation::Write(size / BLOCK as u64 - 1)
    }
}

type Chosen = Box<dyn Fn(Operation) -> bool + Send>;

/// What is held back.
#[derive(Default)]
pub(super) struct Held {
    chosen: Option<Chosen>,
    fails: Option<Chosen>,
    ends: Vec<Box<dyn FnOnce() + Send>>,
}

impl State {
    /// Whether the operation is one of those that are to fail once.
    pub(super) fn fails_once(&mut self, operation: Operation) -> bool {
        let fails = self.held.fails.as_ref().is_some_and(|is_chosen| is_chosen(operation));
        if fails {
            self.held.fails = None;
        }
        fails
    }
}

impl Disk {
    /// From now on operations that are `chosen` when they begin do not end before [`Disk::release`].
    pub fn hold(&self, chosen: impl Fn(Operation) -> bool + Send + 'static) {
        self.state.lock().held.chosen = Some(Box::new(chosen));
    }

    /// The next write that is `chosen` when it begins fails.
    pub fn fail_once(&self, chosen: impl Fn(Operation) -> bool + Send + 'static) {
        self.state.lock().held.fails = Some(Box::new(chosen));
    }

    /// How many operations are held back.
    pub fn holds(&self) -> usize {
        self.state.lock().held.ends.len()
    }

    /// Nothing more is held back, and all that was ends now, in the order in which it began.
    pub fn release(&self) {
        let held = std::mem::take(&mut self.state.lock().held);
        held.ends.into_iter().for_each(|end| end());
    }

    /// Forgets what is held back: the machine is off.
    pub(super) fn drop_held(&self) {
        // Dropped unlocked: whoever waits may do anything then.
        let held = std::mem::take(&mut self.state.lock().held);
        drop(held);
    }

    /// Runs `action` as the completion of an operation that takes `time`, or once it is released.
    pub(super) fn complete<T: Send + 'static>(
        &self,
        operation: Operation,
        time: Duration,
        action: impl FnOnce(&Disk) -> T + Send + 'static,
    ) -> Io<T> {
        let disk = self.clone();
        let end = move || {
            disk.executor.step().then(|| {
                disk.count(&mut disk.state.lock());
                action(&disk)
            })
        };
        let mut state = self.state.lock();
        if !state.held.chosen.as_ref().is_some_and(|is_chosen| is_chosen(operation)) {
            drop(state);
            return self.executor.after(time, end);
        }
        let (promise, completion) = promise();
        state.held.ends.push(Box::new(move || {
            // No result: the machine crashed at this very step, and nobody will ever hear of it.
            if let Some(value) = end() {
                promise.keep(value);
            }
        }));
        Box::pin(completion)
    }
}
