//! The workload of one client: its requests and the check of each reply.

mod attributes;
mod contents;
mod data;
mod listing;
mod meta;
mod replay;
mod smallfile;
mod tree;

pub(crate) use attributes::Attributes;
pub(crate) use contents::Contents;
pub(crate) use data::{Access, Data, DataFile, DataPlan};
pub(crate) use listing::Listing;
pub(crate) use meta::{Meta, MetaPhase};
pub(crate) use replay::{Replay, ReplayPlan, ReplayStep};
pub(crate) use smallfile::Smallfile;
pub(crate) use tree::{Name, Tree};

use anyhow::Result;

use crate::protocol::{Answer, Link, Operation, Request};

/// The place for the next request of a slot.
pub(crate) struct Call<'a> {
    link: &'a mut Link,
    xid: u32,
    slot: u32,
    operation: Operation,
}

impl<'a> Call<'a> {
    pub(crate) fn new(link: &'a mut Link, xid: u32, slot: u32) -> Self {
        Self { link, xid, slot, operation: Operation::Null }
    }

    /// Appends the request. The caller appends the data of a WRITE to the returned buffer.
    #[inline]
    pub(crate) fn start(&mut self, request: &Request<'_>) -> &mut Vec<u8> {
        self.operation = request.operation(self.link.version());
        self.link.begin(self.xid, self.slot, request)
    }

    /// Returns the operation that carries the request out.
    pub(crate) fn operation(&self) -> Operation {
        self.operation
    }
}

/// The next action of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// An operation begins: its first request is ready.
    Begin,
    /// The next request of the operation is ready, or an additional request such as a COMMIT.
    GoOn,
    /// The slot has no request until a reply to another request arrives.
    Wait,
    /// The slot has no further requests.
    Finished,
}

/// The effect of a reply on its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The operation continues with another request in the slot.
    Continue,
    /// The operation is complete.
    Complete,
    /// The request was not part of an operation that counts, for example a COMMIT between WRITEs.
    Aside,
}

/// The result of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) outcome: Outcome,
    /// Payload bytes moved.
    pub(crate) bytes: u64,
    /// Directory entries listed.
    pub(crate) entries: u64,
}

impl Progress {
    pub(crate) const COMPLETE: Self = Self { outcome: Outcome::Complete, bytes: 0, entries: 0 };
    pub(crate) const CONTINUE: Self = Self { outcome: Outcome::Continue, bytes: 0, entries: 0 };
    pub(crate) const ASIDE: Self = Self { outcome: Outcome::Aside, bytes: 0, entries: 0 };

    pub(crate) const fn with_bytes(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }
}

/// The part of one client in a phase.
pub(crate) trait Workload: Send {
    /// Decides on the next request of an idle slot. With `stopping` no operation begins, but operations in progress
    /// continue.
    fn next(&mut self, slot: usize, stopping: bool) -> Next;

    /// Appends the request that [`Self::next`] decided on. Called again if the server puts the request off.
    fn send(&self, slot: usize, call: &mut Call<'_>);

    /// Handles the reply to the slot's request.
    ///
    /// # Errors
    /// One sentence, if the reply is not as required.
    fn reply(&mut self, slot: usize, answer: &Answer<'_>) -> Result<Progress>;

    /// Opens the files that the client needs, before the phase is measured.
    fn prepare(&mut self, _: &mut Link) -> Result<()> {
        Ok(())
    }

    /// Closes the files that [`Self::prepare`] opened.
    fn finish(&mut self, _: &mut Link) -> Result<()> {
        Ok(())
    }
}
