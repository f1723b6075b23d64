//! The changes of a COMPOUND, and the wait for their durability.

use std::sync::{Arc, mpsc};

use forebay_rpc::{OwnedReply, Reply};
use forebay_vfs::{CommitRequest, Error, Export, Target};
use forebay_wire::nfs4::{CompoundReply, Opcode};

use super::{Compound, Context, Stop};
use crate::nfs4::convert::status;
use crate::nfs4::durable::Passage;
use crate::nfs4::place::may_wait;
use crate::shared::Shared;

/// A change whose durability the reply waits for.
pub(in crate::nfs4) struct Change {
    pub(in crate::nfs4) export: Arc<Export>,
    pub(in crate::nfs4) request: CommitRequest,
    pub(in crate::nfs4) commit: Option<Commit>,
}

/// A COMMIT: its result gets the verifier in force after the sync.
pub(in crate::nfs4) struct Commit {
    pub(in crate::nfs4) target: Target,
    pub(in crate::nfs4) seen: u64,
    /// The position of the verifier in the reply.
    pub(in crate::nfs4) verifier_at: usize,
}

impl Change {
    /// Returns the result of a change, and the commit that its reply waits for. After a failure nobody waits, but a
    /// part of the change may have happened, and other changes in the log stand behind it.
    pub(in crate::nfs4) fn of<T>(
        cx: &Context<'_>,
        export: &Arc<Export>,
        result: Result<T, Error>,
        request: Option<CommitRequest>,
    ) -> Result<(T, Option<Self>), Stop> {
        let change = request.map(|request| Change { export: export.clone(), request, commit: None });
        match result {
            Ok(done) => Ok((done, change)),
            Err(error) => {
                change.into_iter().for_each(|change| change.abandon(cx));
                Err(error.into())
            }
        }
    }

    /// Makes a change durable of which no reply tells.
    pub(in crate::nfs4) fn abandon(self, cx: &Context<'_>) {
        cx.shared.vfs.commit(&self.export, self.request, &[], Box::new(drop));
    }

    /// Waits until the change is durable.
    pub(in crate::nfs4) fn wait(self, cx: &Context<'_>) -> Result<Option<Commit>, Error> {
        let (sender, receiver) = mpsc::channel();
        let done = Box::new(move |result| _ = sender.send(result));
        cx.shared.vfs.commit(&self.export, self.request, &[], done);
        receiver.recv().unwrap_or(Err(Error::Busy)).map(|()| self.commit)
    }
}

/// A change, and the reply as it was before.
pub(super) struct Pending {
    pub(super) change: Change,
    pub(super) number: Opcode,
    pub(super) before: CompoundReply,
    pub(super) len_before: usize,
}

impl Compound {
    /// Waits until the change before is durable.
    pub(super) fn wait_for_pending(&mut self, cx: &Context<'_>, reply: &mut Reply<'_>) -> Result<(), Stop> {
        if self.pending.is_none() {
            return Ok(());
        }
        may_wait(cx)?;
        let Some(Pending { change, number, before, len_before }) = self.pending.take() else { return Ok(()) };
        match change.wait(cx) {
            Ok(commit) => {
                confirm(cx.shared, commit, reply.head());
                Ok(())
            }
            Err(error) => {
                self.undo(reply.head(), number, before, len_before, error);
                self.measured.finish(&cx.shared.stats, true);
                Err(Stop::Appended)
            }
        }
    }

    /// Replaces the result of a change that did not become durable, and all later ones, by a failure.
    pub(super) fn undo(
        &mut self,
        out: &mut Vec<u8>,
        number: Opcode,
        before: CompoundReply,
        len_before: usize,
        error: Error,
    ) {
        out.truncate(len_before);
        self.reply = before;
        self.reply.push_failure(out, number, status(error));
    }

    /// Returns true if the reply has to wait for a change, or for the log.
    pub(crate) fn has_to_commit(&self, shared: &Shared) -> bool {
        self.pending.is_some() || self.has_records(shared)
    }

    /// Returns true if the reply has to wait for a change.
    pub(in crate::nfs4) fn has_change(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns true if the record of the last change keeps the reply.
    pub(in crate::nfs4) fn change_keeps_reply(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.change.request.keeps_answer())
    }

    /// Returns the number of the last change, if the changes are in the order of the log.
    pub(in crate::nfs4) fn change_number(&self) -> Option<u64> {
        self.pending.as_ref()?.change.request.number()
    }

    /// Makes the effects of the request durable, then answers. The request is off the event loop.
    pub(crate) fn commit_and_answer(self: Box<Self>, shared: Arc<Shared>, reply: OwnedReply) {
        self.log_and_commit(shared, reply);
    }

    /// Makes the last change durable, with `answer` in its record. Answers then, once the passage is open.
    pub(in crate::nfs4) fn commit_change(
        mut self: Box<Self>,
        shared: Arc<Shared>,
        mut reply: OwnedReply,
        answer: Vec<u8>,
        passage: Arc<Passage>,
    ) {
        let Some(Pending { change, number, before, len_before }) = self.pending.take() else {
            return passage.pass(move || self.answer(&shared, reply));
        };
        let Change { export, request, commit } = change;
        let after = shared.clone();
        let done = Box::new(move |result: Result<(), Error>| {
            match result {
                Ok(()) => confirm(&after, commit, reply.head()),
                Err(error) => {
                    self.is_logged = false;
                    self.undo(reply.head(), number, before, len_before, error);
                    self.measured.finish(&after.stats, true);
                }
            }
            passage.pass(move || self.answer(&after, reply));
        });
        shared.vfs.commit(&export, request, &answer, done);
    }
}

/// Completes the result of a COMMIT whose data is durable.
fn confirm(shared: &Shared, commit: Option<Commit>, out: &mut [u8]) {
    let Some(Commit { target, seen, verifier_at }) = commit else { return };
    shared.vfs.committed(&target, seen);
    let verifier = shared.vfs.verifier.get();
    if let Some(place) = out.get_mut(verifier_at..verifier_at + verifier.len()) {
        place.copy_from_slice(&verifier);
    }
}
