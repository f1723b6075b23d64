//! COPY and CLONE within the server (RFC 7862 sections 15.2 and 15.13). A COPY is synchronous. If it takes long, it is
//! short, and the client copies the rest with a further request.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_clientstate::{Changing, READ};
use forebay_rpc::Reply;
use forebay_vfs::{CopyRange, DataCaller, DataCheck, Outcome};
use forebay_wire::nfs4::{
    CloneArgs, CopyArgs, CopyOk, CopyRequirements, Nfsstat4, Opcode, StableHow4, Stateid, WriteResponse,
};

use super::allocate::require_regular;
use super::compound::{Change, Compound, Context, Stop, put};
use super::convert::{file_key, state_id};
use super::io::check_after;
use super::place::may_wait;
use crate::caller::At;

/// The time after which a COPY begins no further piece. A worker serves no other request meanwhile.
const LONGEST: Duration = Duration::from_millis(250);
/// The most bytes of one COPY, which have to become durable before its reply.
const MOST: u64 = 64 << 20;

/// A file of a COPY or CLONE, and the check of access that is left.
struct Opened<'a> {
    at: At,
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
        let file = file_key(saved.place.handle(cx).as_bytes())?;
        let mut state = cx.server.state();
        state.io(Some(client), state_id(stateid), &file, READ, cx.now, &mut self.effects)?;
        drop(state);
        Ok(Opened { at: saved.place.resolve(cx)?.clone(), check: check_after(stateid), _changing: None })
    }

    /// Checks that a state id allows to write the current file, and returns that file.
    fn destination<'a>(&mut self, cx: &Context<'a>, stateid: Stateid) -> Result<Opened<'a>, Stop> {
        require_regular(self.place()?, cx)?;
        let (check, changing) = self.begin_write(cx, stateid)?;
        let at = self.place()?.resolve(cx)?;
        if at.caller.read_only {
            Err(Stop::Fail(Nfsstat4::Rofs))
        } else {
            Ok(Opened { at: at.clone(), check, _changing: Some(changing) })
        }
    }

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
        let (from, to) = (self.source(cx, args.src_stateid)?, self.destination(cx, args.dst_stateid)?);
        let copy = range(&from, &to, (args.src_offset, args.dst_offset, args.count));
        let (from, to, begun) = (&from.at, &to.at, Instant::now());
        let changed = cx.shared.vfs.copy(&copy, |len| len < MOST && begun.elapsed() < LONGEST);
        let (copied, change) = Change::of(cx, &to.target.export, changed.result, changed.intent)?;
        cx.shared.stats.bytes_read.fetch_add(copied.len, Ordering::Relaxed);
        cx.shared.stats.bytes_written.fetch_add(copied.len, Ordering::Relaxed);
        from.caller.client.bytes_read.fetch_add(copied.len, Ordering::Relaxed);
        to.caller.client.bytes_written.fetch_add(copied.len, Ordering::Relaxed);
        let committed = if copied.stable { StableHow4::FileSync } else { StableHow4::Unstable };
        let (count, verifier) = (copied.len, copied.verifier);
        let response = WriteResponse { callback_id: None, count, committed, verifier };
        let requirements = CopyRequirements { consecutive: true, synchronous: true };
        put(&mut self.reply, reply.head(), Opcode::Copy, &CopyOk { response, requirements });
        Ok(change)
    }

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
