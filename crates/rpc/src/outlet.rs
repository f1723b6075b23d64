//! The right to write a connection's socket, and the output that waits to be written.
//!
//! Any thread may have replies for a connection; exactly one at a time writes. A thread that queues a reply while no
//! thread writes becomes the writer. The writer continues until the queue is empty or the socket is full. Then the
//! event loop is the next writer, woken by the socket's edge-triggered readiness. An edge that arrives while a thread
//! writes is kept (`kick`). Otherwise the edge between a writer's EAGAIN and its record of that would be lost.
//!
//! This module has the pure state, under a lock that belongs to the connection, so that a model checker can drive it.

use std::collections::VecDeque;

/// Something with a length in bytes that can be queued.
pub(crate) trait Weigh {
    /// Returns the bytes left to write.
    fn weight(&self) -> usize;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is queued, and no thread writes.
    Idle,
    /// One thread writes.
    Writing,
    /// The socket is full; the loop continues when the socket is writable.
    Blocked,
    /// No more is accepted or written.
    Closed,
}

/// A connection's output.
#[derive(Debug)]
pub(crate) struct Outlet<C> {
    state: State,
    kick: bool,
    queue: VecDeque<C>,
    /// Bytes queued or being written from the queue.
    bytes: usize,
    /// The requests in flight at which the loop asks to be woken. The loop is also woken once when bytes become fewer.
    watched: Option<usize>,
    /// Bytes that the socket took in all; a sweep compares two readings to find a stalled reader.
    written: u64,
}

impl<C: Weigh> Outlet<C> {
    pub(crate) fn new() -> Self {
        Self { state: State::Idle, kick: false, queue: VecDeque::new(), bytes: 0, watched: None, written: 0 }
    }

    /// Returns the number of waiting bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of bytes that the socket took so far.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Returns true if nothing waits and no thread writes.
    pub(crate) fn idle(&self) -> bool {
        matches!(self.state, State::Idle | State::Closed)
    }

    /// Returns true until the outlet is closed.
    pub(crate) fn is_open(&self) -> bool {
        self.state != State::Closed
    }

    /// Claims the right to write output that is not queued. Succeeds only while no thread writes and nothing waits.
    pub(crate) fn begin(&mut self) -> bool {
        let free = self.state == State::Idle;
        if free {
            self.state = State::Writing;
        }
        free
    }

    /// Queues the chunk; returns true if the caller is now the writer. A closed outlet drops the chunk.
    pub(crate) fn push(&mut self, chunk: C) -> bool {
        if self.state == State::Closed {
            return false;
        }
        self.bytes += chunk.weight();
        self.queue.push_back(chunk);
        self.begin()
    }

    /// Moves up to `max` chunks into the writer's empty `batch`. Returns false if nothing is left, which ends the
    /// writer's turn.
    pub(crate) fn take(&mut self, batch: &mut VecDeque<C>, max: usize) -> bool {
        if self.state == State::Closed {
            return false;
        }
        if self.queue.len() <= max {
            std::mem::swap(&mut self.queue, batch);
        } else {
            batch.extend(self.queue.drain(..max));
        }
        if batch.is_empty() {
            self.state = State::Idle;
            self.kick = false;
        }
        !batch.is_empty()
    }

    /// Records that the writer wrote `bytes`, `queued` of them from the queue.
    pub(crate) fn wrote(&mut self, bytes: usize, queued: usize) {
        self.written += bytes as u64;
        // After a close nothing is counted any more.
        self.bytes = self.bytes.saturating_sub(queued);
    }

    /// Records that the socket is full: the unwritten rest of a batch returns to the front. Returns true if the socket
    /// became writable meanwhile, so the writer has to try again.
    pub(crate) fn blocked(&mut self, rest: &mut VecDeque<C>) -> bool {
        if self.state == State::Closed {
            rest.clear();
            return false;
        }
        rest.append(&mut self.queue);
        std::mem::swap(&mut self.queue, rest);
        let again = std::mem::take(&mut self.kick);
        if !again {
            self.state = State::Blocked;
        }
        again
    }

    /// Counts the rest of unqueued output before that goes to [`blocked`](Self::blocked).
    pub(crate) fn count(&mut self, rest: &VecDeque<C>) {
        self.bytes += rest.iter().map(Weigh::weight).sum::<usize>();
    }

    /// Records that the socket became writable; returns true if the caller is now the writer.
    pub(crate) fn writable(&mut self) -> bool {
        match self.state {
            State::Blocked => {
                self.state = State::Writing;
                true
            }
            State::Writing => {
                self.kick = true;
                false
            }
            State::Idle | State::Closed => false,
        }
    }

    /// Drops the waiting output and refuses more. A writer drops the chunks of its own batch.
    pub(crate) fn close(&mut self) {
        self.state = State::Closed;
        self.queue.clear();
        self.bytes = 0;
    }

    /// Asks for one `true` from [`lessened`](Self::lessened), once at most this many requests are in flight.
    pub(crate) fn watch(&mut self, inflight: Option<usize>) {
        self.watched = inflight;
    }

    /// Returns true once if the loop asked to be woken. Must be called after bytes or requests became fewer.
    pub(crate) fn lessened(&mut self, inflight: usize) -> bool {
        let tell = self.watched.is_some_and(|at_most| inflight <= at_most);
        if tell {
            self.watched = None;
        }
        tell
    }
}
