//! What one client does: which request comes next, and what its reply has to be.

mod attributes;
mod contents;
mod data;
mod listing;
mod meta;
mod smallfile;
mod tree;

pub(crate) use attributes::Attributes;
pub(crate) use contents::Contents;
pub(crate) use data::{Access, Data, DataFile, DataPlan};
pub(crate) use listing::Listing;
pub(crate) use meta::{Meta, MetaPhase};
pub(crate) use smallfile::Smallfile;
pub(crate) use tree::{Name, Tree};

use anyhow::{Result, anyhow};
use forebay_wire::nfs3::{Failed, Procedure};
use forebay_wire::{Decode, Reader};

use crate::connection::Connection;

/// Where the next request of a slot goes.
pub(crate) struct Call<'a> {
    pub(crate) connection: &'a mut Connection,
    pub(crate) xid: u32,
}

impl Call<'_> {
    /// Starts the record; the arguments are to be appended to the buffer returned.
    #[inline]
    pub(crate) fn start(&mut self, procedure: Procedure) -> &mut Vec<u8> {
        self.connection.begin_call(self.xid, procedure as u32)
    }
}

/// What a slot does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// An operation begins: its first request is ready.
    Begin,
    /// The next request of the operation is ready, or one on the side.
    GoOn,
    /// Nothing until a reply to another request has come.
    Wait,
    /// Nothing any more.
    Finished,
}

/// What a reply means for its operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Another request of the same operation follows in the same slot.
    Continue,
    /// The operation is complete.
    Complete,
    /// The request was not part of an operation that counts, such as a COMMIT between WRITEs.
    Aside,
}

/// What a reply has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) outcome: Outcome,
    /// Payload moved.
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

/// One client's part in a phase.
pub(crate) trait Workload: Send {
    /// Decides on the next request of an idle slot. With `stopping` nothing new begins, but what was begun is completed.
    fn next(&mut self, slot: usize, stopping: bool) -> Next;

    /// Writes the request decided on; once more where the server has said "later" to it.
    fn send(&self, slot: usize, call: &mut Call<'_>) -> Procedure;

    /// Takes the reply to the slot's request; `body` is the procedure's result.
    ///
    /// # Errors
    /// One sentence where the reply is not what it has to be.
    fn reply(&mut self, slot: usize, body: &mut Reader<'_>) -> Result<Progress>;
}

/// Decodes the result of `procedure`; a refusal becomes one sentence about the thing that `what` names.
#[inline]
pub(crate) fn result<'a, T: Decode<'a>, F: Decode<'a>>(
    body: &mut Reader<'a>,
    procedure: Procedure,
    what: impl FnOnce() -> String,
) -> Result<T> {
    match <Result<T, Failed<F>>>::decode(body) {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(failed)) => Err(anyhow!("{} of {} failed: {}", procedure.name(), what(), failed.status)),
        Err(error) => {
            Err(anyhow!("the reply to {} of {} cannot be decoded: {error}", procedure.name(), what()))
        }
    }
}
