//! The workload of one client: its requests and the check of each reply.

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

/// The place for the next request of a slot.
pub(crate) struct Call<'a> {
    pub(crate) connection: &'a mut Connection,
    pub(crate) xid: u32,
}

impl Call<'_> {
    /// Starts the record. The caller appends the arguments to the returned buffer.
    #[inline]
    pub(crate) fn start(&mut self, procedure: Procedure) -> &mut Vec<u8> {
        self.connection.begin_call(self.xid, procedure as u32)
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

    /// Writes the request that [`Self::next`] decided on. Called again if the server answers NFS3ERR_JUKEBOX.
    fn send(&self, slot: usize, call: &mut Call<'_>) -> Procedure;

    /// Handles the reply to the slot's request. `body` is the procedure's result.
    ///
    /// # Errors
    /// One sentence, if the reply is not as required.
    fn reply(&mut self, slot: usize, body: &mut Reader<'_>) -> Result<Progress>;
}

/// Decodes the result of `procedure`. A failure becomes one sentence about the object that `what` names.
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
