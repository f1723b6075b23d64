//! A request in flight.

use std::ops::Range;
use std::sync::Arc;

use forebay_engine::buffer::Buffer;
use forebay_runtime::Slot;
use forebay_wire::nbd::{Command, ErrorCode};

/// The reason why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The connection is lost. The request may have been carried out, in part, now or later.
    Lost,
    /// The server refused the request.
    Refused(ErrorCode),
}

/// The result of a request, with the buffer of a READ.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) result: Result<(), Failure>,
    pub(super) buffer: Option<Buffer>,
}

/// A request in flight.
pub(super) struct Pending {
    pub(super) command: Command,
    pub(super) offset: u64,
    pub(super) len: usize,
    /// The memory of a READ.
    pub(super) buffer: Option<Buffer>,
    /// The parts of the buffer that the server has sent, ascending.
    pub(super) filled: Vec<Range<usize>>,
    /// The error of an earlier chunk.
    pub(super) error: Option<ErrorCode>,
    /// Of a FLUSH: the number of changes that it makes durable.
    pub(super) covers: u64,
    /// True if the change needs a FLUSH afterwards.
    pub(super) is_volatile: bool,
    pub(super) slot: Arc<Slot<Ended>>,
}

impl Pending {
    /// Returns a request without buffer, which covers no changes. `offset` and `len` are in bytes.
    pub(super) fn new(command: Command, offset: u64, len: usize) -> Self {
        let (filled, slot) = (Vec::new(), Slot::new());
        Pending {
            command,
            offset,
            len,
            buffer: None,
            filled,
            error: None,
            covers: 0,
            is_volatile: false,
            slot,
        }
    }

    pub(super) fn end(self, result: Result<(), Failure>) {
        self.slot.complete(Ended { result, buffer: self.buffer });
    }
}
