//! READ, WRITE, COMMIT (RFC 8881 sections 18.22, 18.32, 18.3).

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use forebay_clientstate::{Changing, READ, WRITE};
use forebay_profile::Moved;
use forebay_rpc::Reply;
use forebay_vfs::{DataCaller, DataCheck, Outcome, ReadInto, ReadOut, Wait};
use forebay_wire::nfs4::{
    CommitArgs, CommitOk, Nfsstat4, Opcode, ReadArgs, StableHow4, Stateid, WriteArgs, WriteOk,
    encode_read_header,
};
use forebay_wire::xdr::padding;

use super::compound::{Change, Commit, Compound, Context, Stop, put};
use super::convert::state_id;
use super::place::{Place, may_wait};
use super::recent::Grant;
use crate::MAX_TRANSFER;
use crate::clients::ClientStats;
use crate::request::Call;
use crate::shared::Shared;

/// A destination that keeps READ's data in a buffer of its own.
struct IntoBuffer(Vec<u8>);

impl ReadInto for IntoBuffer {
    fn buffer(&mut self, len: usize) -> &mut [u8] {
        self.0.resize(len, 0);
        &mut self.0
    }

    fn may_splice(&self, _: u64, _: usize) -> bool {
        false
    }

    fn splice(&mut self, _: BorrowedFd<'_>, _: u64, _: usize) -> bool {
        false
    }
}

/// Returns the check that is left after that of a state id: an open has decided about the access, and without one the
/// mode decides, also for the owner.
pub(super) fn check_after(stateid: Stateid) -> DataCheck {
    match stateid {
        Stateid::ANONYMOUS | Stateid::BYPASS => DataCheck::Mode,
        _ => DataCheck::Granted,
    }
}

impl Compound {
    /// Returns the state id that a request means: the current one for the special value (RFC 8881 section 16.2.3.1.2).
    pub(super) fn resolve_stateid(&self, wire: Stateid) -> Result<Stateid, Stop> {
        if wire != Stateid::CURRENT {
            return Ok(wire);
        }
        let current = self.current.as_ref().and_then(|current| current.stateid);
        current.ok_or(Stop::Fail(Nfsstat4::BadStateid))
    }

    /// Makes a state id the current one, for later operations of the COMPOUND. Does nothing without a current file
    /// handle.
    pub(super) fn set_stateid(&mut self, stateid: Stateid) {
        if let Some(current) = &mut self.current {
            current.stateid = Some(stateid);
        }
    }

    /// Checks that a state id allows to read or write the current file. Returns the check that is left to do.
    pub(super) fn check_io(
        &mut self,
        cx: &Context<'_>,
        stateid: Stateid,
        access: u8,
    ) -> Result<DataCheck, Stop> {
        let stateid = self.resolve_stateid(stateid)?;
        let client = self.client()?;
        let current = self.current.as_ref().ok_or(Stop::Fail(Nfsstat4::Nofilehandle))?;
        let above;
        let file = match &current.place {
            Place::Inode(file, _) => file,
            place @ Place::Above(_) => {
                above = place.handle(cx);
                &above
            }
        };
        let grant = Grant { client, stateid: state_id(stateid), file, access };
        cx.server.io(&cx.shared.vfs, grant, cx.now, &mut self.effects)?;
        Ok(check_after(stateid))
    }

    /// Begins a write to the current file, if a state id allows it. Returns the check that is left to do.
    ///
    /// The open behind the state id keeps delegations of other clients away. The result does so if the open is revoked
    /// meanwhile.
    pub(super) fn begin_write<'a>(
        &mut self,
        cx: &Context<'a>,
        stateid: Stateid,
    ) -> Result<(DataCheck, Changing<'a>), Stop> {
        let handle = self.place()?.handle(cx);
        let changing = cx.server.counters.begin_change(cx.shared.vfs.file_key(handle.as_bytes()).as_slice());
        Ok((self.check_io(cx, stateid, WRITE)?, changing))
    }

    /// Executes READ. Data from the cache devices is left to the event loop if READ is the last operation.
    pub(super) fn read(
        &mut self,
        cx: &Context<'_>,
        args: &ReadArgs,
        is_last: bool,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        require_file(self.place()?, cx)?;
        let check = self.check_io(cx, args.stateid, READ)?;
        let room = self.reply.room(reply.head()).saturating_sub(64);
        let count = (args.count.min(MAX_TRANSFER) as usize).min(room);
        let has_payload = self.may_have_payload(is_last);
        // The length follows with the result.
        self.moved = Some(Moved { offset: args.offset, len: 0, stable: false });
        let at = self.place()?.resolve(cx)?;
        let (target, by) = (&at.target, DataCaller::new(&at.caller.cred, check));
        let by = if at.caller.delegations { by.with_recent(cx.now) } else { by };
        let (out, data) = if has_payload {
            let into = &mut crate::read::IntoReply(reply);
            (cx.shared.vfs.read(target, by, args.offset, count, cx.wait, into)?, None)
        } else {
            let mut into = IntoBuffer(Vec::new());
            let out = cx.shared.vfs.read(target, by, args.offset, count, cx.wait, &mut into)?;
            (out, Some(into.0))
        };
        let out = match out {
            Outcome::Done(out) => out,
            Outcome::FromSsd(read) => {
                let client = at.caller.client.clone();
                // Data in front of other results is not a payload, so a worker reads it.
                self.from_ssd = has_payload.then_some((read, client));
                return Err(Stop::Later);
            }
            Outcome::Wait => return Err(Stop::Later),
        };
        count_read(cx.shared, &at.caller.client, out.len);
        match data {
            Some(mut data) => {
                data.truncate(out.len);
                data.resize(out.len + padding(out.len), 0);
                self.put_read_header(reply, &out);
                reply.head().extend_from_slice(&data);
            }
            None => {
                // A payload that was spliced has its length already, and a result without data has none.
                if let Some(payload) = reply.payload_mut() {
                    payload.set_len(out.len);
                }
                self.put_read_of_payload(reply, &out);
            }
        }
        Ok(())
    }

    /// Appends the result of a READ, the last operation, whose data the event loop has read from the cache devices.
    pub(super) fn end_read(
        &mut self,
        shared: &Shared,
        call: &Call<'_>,
        client: &ClientStats,
        reply: &mut Reply<'_>,
        out: &ReadOut,
    ) {
        count_read(shared, client, out.len);
        self.put_read_of_payload(reply, out);
        self.measured.ended(&shared.stats, Opcode::Read, false);
        self.profile(shared, call, Opcode::Read);
    }

    /// Appends the result of a READ, the last operation, whose data is the payload of the reply.
    fn put_read_of_payload(&mut self, reply: &mut Reply<'_>, out: &ReadOut) {
        self.put_read_header(reply, out);
        self.set_payload(out.len + padding(out.len));
    }

    /// Appends the result of a READ up to its data.
    fn put_read_header(&mut self, reply: &mut Reply<'_>, out: &ReadOut) {
        if let Some(moved) = &mut self.moved {
            moved.len = out.len as u32;
        }
        self.reply.start(reply.head(), Opcode::Read);
        encode_read_header(reply.head(), out.len as u32, out.eof);
    }

    /// Executes WRITE, on an event loop only if the cache takes the data without waiting.
    pub(super) fn write(
        &mut self,
        cx: &Context<'_>,
        args: &WriteArgs<'_>,
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        if cx.wait == Wait::No && !cx.shared.vfs.writes_in_memory() {
            return Err(Stop::Later);
        }
        require_file(self.place()?, cx)?;
        let (check, _changing) = self.begin_write(cx, args.stateid)?;
        let at = self.place()?.resolve(cx)?;
        if at.caller.read_only {
            return Err(Stop::Fail(Nfsstat4::Rofs));
        }
        let stable = args.stable != StableHow4::Unstable;
        let (target, by) = (&at.target, DataCaller::new(&at.caller.cred, check));
        let written = cx.shared.vfs.write(target, by, args.offset, args.data, stable, cx.wait);
        let Outcome::Done(changed) = written else { return Err(Stop::Later) };
        let (wrote, change) = Change::of(cx, &target.export, changed.result, changed.intent)?;
        let bytes = wrote.len as u64;
        cx.shared.stats.bytes_written.fetch_add(bytes, Ordering::Relaxed);
        at.caller.client.bytes_written.fetch_add(bytes, Ordering::Relaxed);
        self.moved = Some(Moved { offset: args.offset, len: wrote.len as u32, stable });
        let committed = if wrote.stable { StableHow4::FileSync } else { StableHow4::Unstable };
        let body = WriteOk { count: wrote.len as u32, committed, verifier: wrote.verifier };
        put(&mut self.reply, reply.head(), Opcode::Write, &body);
        Ok(change)
    }

    /// Carries out COMMIT. If some data is not durable yet, the returned change names the place in the reply where the
    /// verifier goes after the sync.
    pub(super) fn commit(
        &mut self,
        cx: &Context<'_>,
        args: &CommitArgs,
        reply: &mut Reply<'_>,
    ) -> Result<Option<Change>, Stop> {
        may_wait(cx)?;
        require_file(self.place()?, cx)?;
        let at = self.place()?.resolve(cx)?;
        let (changed, seen) = cx.shared.vfs.commit_range(
            &at.target,
            DataCaller::without_open(&at.caller.cred),
            args.offset,
            args.count.into(),
        );
        let ((), change) = Change::of(cx, &at.target.export, changed.result, changed.intent)?;
        let target = at.target.clone();
        let body = CommitOk { verifier: cx.shared.vfs.verifier.get() };
        put(&mut self.reply, reply.head(), Opcode::Commit, &body);
        let verifier_at = reply.head().len() - body.verifier.len();
        let Some(change) = change else {
            cx.shared.vfs.committed(&target, seen);
            return Ok(None);
        };
        Ok(Some(Change { commit: Some(Commit { target, seen, verifier_at }), ..change }))
    }
}

/// Counts the data of a READ.
fn count_read(shared: &Shared, client: &ClientStats, bytes: usize) {
    shared.stats.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
    client.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// Fails for an object that is no regular file (RFC 8881 section 18.22.3).
pub(super) fn require_file(place: &mut Place, cx: &Context<'_>) -> Result<(), Stop> {
    use forebay_vfs::FileType;
    let kind = match place {
        Place::Above(_) => FileType::Directory,
        place => place.resolve(cx)?.target.object.kind(),
    };
    match kind {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Stop::Fail(Nfsstat4::Isdir)),
        FileType::Symlink => Err(Stop::Fail(Nfsstat4::Symlink)),
        _ => Err(Stop::Fail(Nfsstat4::WrongType)),
    }
}
