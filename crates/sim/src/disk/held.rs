//! Operations that do not end until a task releases them. They model a hanging device, or an order that a test chooses.

use std::time::Duration;

use forebay_engine::buffer::BLOCK;
use forebay_engine::io::Io;

use super::{Disk, State};
use crate::executor::promise;

/// An operation at its beginning.
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
    /// Returns true if the operation writes the header of a segment (of 1 MiB).
    pub fn is_header(self) -> bool {
        matches!(self, Operation::Write(block) if block > 0 && block.is_multiple_of(256))
    }

    /// Returns true if the operation writes a superblock of a device of `size` bytes.
    pub fn is_superblock(self, size: u64) -> bool {
        self == Operation::Write(0) || self == Operation::Write(size / BLOCK as u64 - 1)
    }
}

type Chosen = Box<dyn Fn(Operation) -> bool + Send>;

/// The operations that are held back.
#[derive(Default)]
pub(super) struct Held {
    chosen: Option<Chosen>,
    fails: Option<Chosen>,
    ends: Vec<Box<dyn FnOnce() + Send>>,
}

impl State {
    /// Returns true if the operation is to fail once.
    pub(super) fn fails_once(&mut self, operation: Operation) -> bool {
        let fails = self.held.fails.as_ref().is_some_and(|is_chosen| is_chosen(operation));
        if fails {
            self.held.fails = None;
        }
        fails
    }
}

impl Disk {
    /// Holds back operations that are `chosen` at their beginning, until [`Disk::release`].
    pub fn hold(&self, chosen: impl Fn(Operation) -> bool + Send + 'static) {
        self.state.lock().held.chosen = Some(Box::new(chosen));
    }

    /// Lets the next write fail that is `chosen` at its beginning.
    pub fn fail_once(&self, chosen: impl Fn(Operation) -> bool + Send + 'static) {
        self.state.lock().held.fails = Some(Box::new(chosen));
    }

    /// Returns the number of operations that are held back.
    pub fn holds(&self) -> usize {
        self.state.lock().held.ends.len()
    }

    /// Stops holding back operations. All held operations end now, in the order in which they began.
    pub fn release(&self) {
        let held = std::mem::take(&mut self.state.lock().held);
        held.ends.into_iter().for_each(|end| end());
    }

    /// Forgets the held operations: the machine is off.
    pub(super) fn drop_held(&self) {
        // Dropped with the state unlocked, since a waiter may do anything when it is woken.
        let held = std::mem::take(&mut self.state.lock().held);
        drop(held);
    }

    /// Runs `action` as the completion of an operation that takes `time`, or when the operation is released.
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
            // Without a result, the machine crashed at this very step, and no task will ever learn of the operation.
            if let Some(value) = end() {
                promise.keep(value);
            }
        }));
        Box::pin(completion)
    }
}
