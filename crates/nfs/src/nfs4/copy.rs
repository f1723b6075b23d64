//! COPY, CLONE, OFFLOAD_STATUS and OFFLOAD_CANCEL within the server (RFC 7862 sections 15.2, 15.13, 15.9 and 15.8).
//!
//! | a COPY | then |
//! |---|---|
//! | of more than 64 MiB, of open files, and the client allows it | it goes on after the reply: `copier.rs` |
//! | else | it is synchronous. If it takes long, it is short, and the client asks for the rest |

use std::time::{Duration, Instant};

use forebay_clientstate::{BeginCopy, Changing, FileKey, READ};
use forebay_rpc::Reply;
use forebay_vfs::{CopyRange, DataCaller, DataCheck, Outcome};
use forebay_wire::nfs4::{
    CloneArgs, CopyArgs, CopyOk, CopyRequirements, Nfsstat4, OffloadStatusOk, Opcode, StableHow4, Stateid,
    WriteResponse,
};

use super::allocate::require_regular;
use super::compound::{Change, Compound, Context, InSlot, Stop, put};
use super::convert::{state_id, wire_id};
use super::copier::Job;
use super::io::check_after;
use super::place::may_wait;
use crate::caller::At;

/// The time after which a COPY begins no further piece. A worker serves no other request meanwhile.
const LONGEST: Duration = Duration::from_millis(250);
/// The most bytes of a COPY that is synchronous, which have to become durable before its reply. A longer COPY may go on
/// after the reply.
const MOST: u64 = 64 << 20;

/// A file of a COPY or CLONE, and the check of access that is left.
struct Opened<'a> {
    at: At,
    file: FileKey,
    check: DataCheck,
    /// The change of the destination.
    _changing: Option<Changing<'a>>,
}

impl Compound {
    /// Checks that a state id allows to read the saved file, and returns that file.
    fn source<'a>(&mut self, cx: &Context<'a>, stateid: Stateid) -> Result<Opened<'a>, Stop> {
        let client = self.client()?;
        let saved = self.saved.as_mut().ok_or(Stop::Fail(Nfsstat4::Nofilehandle))?;
        require_regular(&mut saved.place, cx)?;
        let current = if stateid == Stateid::CURRENT { saved.stateid } else { Some(stateid) };
        let stateid = current.ok_or(Stop::Fail(Nfsstat4::BadStateid))?;
        let file = cx.file_key(saved.place.handle(cx).as_bytes())?;
        let mut state = cx.server.state();
        state.io(Some(client), state_id(stateid), file.borrowed(), READ, cx.now, &mut self.effects)?;
        drop(state);
        Ok(Opened {
            at: saved.place.resolve(cx)?.clone(),
            file,
            check: check_after(stateid),
            _changing: None,
        })
    }

    /// Checks that a state id allows to write the current file, and returns that file.
    fn destination<'a>(&mut self, cx: &Context<'a>, stateid: Stateid) -> Result<Opened<'a>, Stop> {
        require_regular(self.place()?, cx)?;
        let (check, changing) = self.begin_write(cx, stateid)?;
        let file = self.file(cx)?;
        let at = self.place()?.resolve(cx)?;
        if at.caller.read_only {
            Err(Stop::Fail(Nfsstat4::Rofs))
        } else {
            Ok(Opened { at: at.clone(), file, check, _changing: Some(changing) })
        }
    }

    /// Carries out COPY within this server. If the client allows it, a copy over 64 MiB between open files goes to
    /// the copier, and the reply names its state id. Any other copy is made here, stops after 64 MiB or 250 ms, and
    /// the reply has the number of bytes copied.
    pub(super) fn copy(
        &mut self,
        cx: &Context<'_>,
        args: &CopyArgs<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        may_wait(cx)?;
        if !args.source_server.is_empty() {
            // From another server.
            return Err(Stop::Fail(Nfsstat4::Notsupp));
        }
        let rules = cx.shared.rules.generation();
        let (from, to) = (self.source(cx, args.src_stateid)?, self.destination(cx, args.dst_stateid)?);
        let copy = range(&from, &to, (args.src_offset, args.dst_offset, args.count));
        if !args.synchronous && self.copy_later(cx, &from, &to, &copy, rules, reply)? {
            return Ok(None);
        }
        let (from, to, begun) = (&from.at, &to.at, Instant::now());
        let changed = cx.shared.vfs.copy(&copy, |len| len < MOST && begun.elapsed() < LONGEST);
        let (copied, change) = Change::of(cx, &to.target.export, changed.result, changed.intent)?;
        cx.shared.count_copied(from, to, copied.len);
        let committed = if copied.stable { StableHow4::FileSync } else { StableHow4::Unstable };
        let (count, verifier) = (copied.len, copied.verifier);
        let response = WriteResponse { callback_id: None, count, committed, verifier };
        let requirements = CopyRequirements { consecutive: true, synchronous: true };
        put(&mut self.reply, reply.head(), Opcode::Copy, &CopyOk { response, requirements });
        Ok(change)
    }

    /// Begins a long copy, and appends the reply to its COPY. Returns false if the copy has to be synchronous.
    fn copy_later(
        &mut self,
        cx: &Context<'_>,
        from: &Opened<'_>,
        to: &Opened<'_>,
        copy: &CopyRange<'_>,
        rules: u64,
        reply: &mut Reply<'_>,
    ) -> Result<bool, Stop> {
        let len = cx.shared.vfs.copy_len(copy)?;
        // Without an open nothing says how long the client wants the copy.
        let is_open = [from.check, to.check] == [DataCheck::Granted; 2];
        if len <= MOST || !is_open {
            return Ok(false);
        }
        let begin = BeginCopy {
            client: self.client()?,
            request: self.slot.as_ref().map(InSlot::id),
            source: from.file.clone(),
            target: to.file.clone(),
        };
        let begun = cx.server.state().begin_copy(&begin, &mut self.effects);
        let Some((stateid, progress)) = begun else { return Ok(false) };
        let verifier = cx.shared.vfs.verifier.get();
        cx.server.copier.begin(Job {
            stateid,
            progress,
            from: from.at.clone(),
            to: to.at.clone(),
            source_offset: copy.source_offset,
            target: begin.target,
            offset: copy.offset,
            len,
            verifier,
            rules,
            is_stable: true,
        });
        let callback_id = Some(wire_id(stateid));
        let response = WriteResponse { callback_id, count: 0, committed: StableHow4::Unstable, verifier };
        let requirements = CopyRequirements { consecutive: true, synchronous: false };
        put(&mut self.reply, reply.head(), Opcode::Copy, &CopyOk { response, requirements });
        Ok(true)
    }

    /// Carries out OFFLOAD_STATUS: appends the number of bytes copied so far, and the status of a copy that has
    /// ended.
    pub(super) fn offload_status(
        &mut self,
        cx: &Context<'_>,
        stateid: Stateid,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        let (client, file) = (self.client()?, self.file(cx)?);
        let (count, end) = cx.server.state().offload_status(client, state_id(stateid), &file)?;
        let complete = end.map(|status| Nfsstat4::try_from(status).unwrap_or(Nfsstat4::Serverfault));
        put(&mut self.reply, reply.head(), Opcode::OffloadStatus, &OffloadStatusOk { count, complete });
        Ok(())
    }

    /// Ends a copy. No byte is copied after the reply.
    pub(super) fn offload_cancel(
        &mut self,
        cx: &Context<'_>,
        stateid: Stateid,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        may_wait(cx)?;
        let (client, file) = (self.client()?, self.file(cx)?);
        let stateid = state_id(stateid);
        cx.server.state().offload_cancel(client, stateid, &file, &mut self.effects)?;
        cx.server.copier.wait_for_end(stateid);
        self.reply.start(reply.head(), Opcode::OffloadCancel);
        Ok(())
    }

    /// Carries out CLONE: lets the current file share a range of the saved file. Fails with [`Stop::Later`] on an
    /// event loop.
    pub(super) fn clone_data(
        &mut self,
        cx: &Context<'_>,
        args: &CloneArgs,
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        may_wait(cx)?;
        let (from, to) = (self.source(cx, args.src_stateid)?, self.destination(cx, args.dst_stateid)?);
        let copy = range(&from, &to, (args.src_offset, args.dst_offset, args.count));
        let Outcome::Done(changed) = cx.shared.vfs.clone_range(&copy) else { return Err(Stop::Later) };
        let ((), change) = Change::of(cx, &to.at.target.export, changed.result, changed.intent)?;
        self.reply.start(reply.head(), Opcode::Clone);
        Ok(change)
    }
}

/// Returns the range of a COPY or CLONE: offset in the source, offset in the destination, and number of bytes.
fn range<'a>(
    from: &'a Opened<'_>,
    to: &'a Opened<'_>,
    (source_offset, offset, len): (u64, u64, u64),
) -> CopyRange<'a> {
    let caller = |opened: &'a Opened<'_>| DataCaller::new(&opened.at.caller.cred, opened.check);
    let (reader, writer) = (caller(from), caller(to));
    let (source, target) = (&from.at.target, &to.at.target);
    CopyRange { source, reader, source_offset, target, writer, offset, len }
}
