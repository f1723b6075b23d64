//! Who may write a connection's socket, and what waits to be written.
//!
//! Any thread may have replies for a connection; exactly one at a time writes. Whoever queues a reply while
//! nobody writes becomes the writer and keeps on until the queue is empty or the socket is full; then the event
//! loop is the next writer, woken by the socket's edge-triggered readiness. An edge that arrives while somebody
//! writes is kept (`kick`), else the edge between a writer's EAGAIN and its note of it would be lost.
//!
//! This is the pure state, under a lock that belongs to the connection, so that a model checker can drive it.

use std::collections::VecDeque;

/// Something with a length in bytes that can be queued.
pub(crate) trait Weigh {
    /// Bytes left to write.
    fn weight(&self) -> usize;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing queued, nobody writing.
    Idle,
    /// One thread writes.
    Writing,
    /// The socket is full; the loop goes on when it is writable.
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
    /// The event loop asks to be told, once, of fewer bytes or requests with at most so many in flight.
    watched: Option<usize>,
    /// Bytes the socket ever took; a sweep compares two readings to find a stalled reader.
    written: u64,
}

impl<C: Weigh> Outlet<C> {
    pub(crate) fn new() -> Self {
        Self { state: State::Idle, kick: false, queue: VecDeque::new(), bytes: 0, watched: None, written: 0 }
    }

    /// Bytes waiting.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes the socket took so far.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Whether nothing waits and nobody writes.
    pub(crate) fn idle(&self) -> bool {
        matches!(self.state, State::Idle | State::Closed)
    }

    /// Claims the right to write something that is not queued; only while nobody writes and nothing waits.
    pub(crate) fn begin(&mut self) -> bool {
        let free = self.state == State::Idle;
        if free {
            self.state = State::Writing;
        }
        free
    }

    /// Queues; true makes the caller the writer. Dropped if closed.
    pub(crate) fn push(&mut self, chunk: C) -> bool {
        if self.state == State::Closed {
            return false;
        }
        self.bytes += chunk.weight();
        self.queue.push_back(chunk);
        self.begin()
    }

    /// The writer takes up to `max` chunks into the empty `batch`; false when there is nothing left, which ends
    /// its turn.
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

    /// The writer reports `bytes` written, `queued` of them from the queue.
    pub(crate) fn wrote(&mut self, bytes: usize, queued: usize) {
        self.written += bytes as u64;
        // After a close nothing is counted any more.
        self.bytes = self.bytes.saturating_sub(queued);
    }

    /// The socket is full: the unwritten rest of a batch goes back to the front. True if the socket became
    /// writable meanwhile, so the writer has to try again.
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

    /// Counts the rest of something that was not queued before it goes to [`blocked`](Self::blocked).
    pub(crate) fn count(&mut self, rest: &VecDeque<C>) {
        self.bytes += rest.iter().map(Weigh::weight).sum::<usize>();
    }

    /// The socket became writable; true makes the caller the writer.
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

    /// Drops what waits and refuses more. What a writer has in hand it drops by itself.
    pub(crate) fn close(&mut self) {
        self.state = State::Closed;
        self.queue.clear();
        self.bytes = 0;
    }

    /// Asks for one `true` from [`lessened`](Self::lessened), once at most this many requests are in flight.
    pub(crate) fn watch(&mut self, inflight: Option<usize>) {
        self.watched = inflight;
    }

    /// To be called after anything became fewer; true once if the loop asked to be told.
    pub(crate) fn lessened(&mut self, inflight: usize) -> bool {
        let tell = self.watched.is_some_and(|at_most| inflight <= at_most);
        if tell {
            self.watched = None;
        }
        tell
    }
}
