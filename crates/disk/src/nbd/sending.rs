//! Sends the messages of a connection: by the threads that make requests, and by the thread of the connection.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use forebay_engine::buffer::Slice;
use rustix::io::Errno;

use super::connection::Shared;

/// The slices that one system call sends.
const SLICES: usize = 64;

/// The thread that sends at present.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sending {
    Nobody,
    /// A thread that made a request. It does not wait.
    Requester,
    /// The sending thread of the connection, because the socket took no more.
    Thread,
}

/// A part of the outgoing bytes. `from` is the number of bytes that are sent.
pub(super) struct Piece {
    bytes: Bytes,
    from: usize,
}

enum Bytes {
    Header(Vec<u8>),
    Data(Slice, Range<usize>),
}

impl Piece {
    pub(super) fn header(bytes: Vec<u8>) -> Self {
        Piece { bytes: Bytes::Header(bytes), from: 0 }
    }

    pub(super) fn data((slice, range): (Slice, Range<usize>)) -> Self {
        Piece { bytes: Bytes::Data(slice, range), from: 0 }
    }

    /// Returns the bytes that are not sent yet.
    fn rest(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Header(bytes) => &bytes[self.from..],
            Bytes::Data(slice, range) => &slice[range.start + self.from..range.end],
        }
    }
}

impl Shared {
    /// Sends as much as the socket takes without waiting, also what other threads add meanwhile. The sending thread
    /// gets the rest.
    pub(super) fn send_at_once(&self, mut batch: VecDeque<Piece>) {
        loop {
            match self.send_some(&mut batch, false) {
                Ok(()) if !batch.is_empty() => {}
                Ok(()) => {
                    let mut state = self.state.lock();
                    if state.outbox.is_empty() {
                        state.sending = Sending::Nobody;
                        return;
                    }
                    batch = std::mem::take(&mut state.outbox);
                }
                Err(Errno::AGAIN) => {
                    let mut state = self.state.lock();
                    batch.append(&mut state.outbox);
                    state.outbox = batch;
                    state.sending = Sending::Thread;
                    drop(state);
                    self.handed.notify_all();
                    return;
                }
                Err(errno) => return self.lose(&format!("sending fails: {errno}")),
            }
        }
    }

    /// Sends whenever a requester could not, until the connection ends.
    pub(super) fn send_on(&self) {
        loop {
            let mut state = self.state.lock();
            while state.sending != Sending::Thread && !state.is_lost {
                state = self.handed.wait(state);
            }
            if state.is_lost {
                return;
            }
            let mut batch = std::mem::take(&mut state.outbox);
            if batch.is_empty() {
                state.sending = Sending::Nobody;
            }
            drop(state);
            while !batch.is_empty() {
                if let Err(errno) = self.send_some(&mut batch, true) {
                    self.lose(&format!("sending fails: {errno}"));
                    return;
                }
            }
        }
    }

    /// Sends some bytes of the batch, and removes them.
    fn send_some(&self, batch: &mut VecDeque<Piece>, waits: bool) -> Result<(), Errno> {
        let slices: Vec<_> = batch.iter().take(SLICES).map(|piece| IoSlice::new(piece.rest())).collect();
        let mut sent = match self.stream.send(&slices, waits) {
            Err(Errno::INTR) => 0,
            sent => sent?,
        };
        while let Some(first) = batch.front_mut() {
            let rest = first.rest().len();
            if rest > sent {
                first.from += sent;
                break;
            }
            sent -= rest;
            batch.pop_front();
        }
        Ok(())
    }
}
