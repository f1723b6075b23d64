//! READ: from memory on the event loop; from the cache devices also on the event loop, many at once on its io_uring. A
//! worker carries out all other READs.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_rpc::{Reply, Workers};
use forebay_runtime::tasks;
use forebay_vfs::{ReadInto, ReadOut, Reading, SsdRead, Wait};
use forebay_wire::nfs3::{self, Fattr3, Nfsstat3, Procedure, ReadArgs, encode_read_header};

use crate::MAX_TRANSFER;
use crate::clients::ClientStats;
use crate::convert::fattr;
use crate::dispatch::{Call, Stop, finish, success};
use crate::look::put;
use crate::service::{Job, Shared};

/// The result of trying a READ.
pub(crate) enum TriedRead {
    /// The reply is complete.
    Done(Nfsstat3),
    /// Its data has to be read from the cache devices.
    OnSsd(Pending),
}

/// A READ whose data has to be read from the cache devices. The rest of its reply is known.
pub(crate) struct Pending {
    read: SsdRead,
    len: usize,
    found: Found,
}

/// A destination that puts READ's data straight into the reply.
pub(crate) struct IntoReply<'r, 'a>(pub(crate) &'r mut Reply<'a>);

impl ReadInto for IntoReply<'_, '_> {
    fn buffer(&mut self, len: usize) -> &mut [u8] {
        self.0.payload(len).spare_mut()
    }

    fn may_splice(&self, offset: u64, len: usize) -> bool {
        Reply::may_splice(offset, len)
    }

    fn splice(&mut self, file: BorrowedFd<'_>, offset: u64, len: usize) -> bool {
        self.0.splice(file, offset, len)
    }
}

struct Found {
    xid: u32,
    attributes: Fattr3,
    eof: bool,
    client: Arc<ClientStats>,
}

impl Shared {
    pub(crate) fn read(&self, call: &Call<'_>, reply: &mut Reply<'_>, wait: Wait) -> Result<TriedRead, Stop> {
        let args: ReadArgs = call.args()?;
        let count = args.count.min(MAX_TRANSFER) as usize;
        let read = self.at(call, &args.file, wait).and_then(|at| {
            let (target, cred) = (&at.target, &at.caller.cred);
            let into = &mut IntoReply(reply);
            let reading = self.vfs.read(target, cred, args.offset, count, wait, into)?;
            let (ReadOut { len, eof, attr }, read) = match reading {
                Reading::Done(read) => (read, None),
                Reading::OnSsd(read, found) => (found, Some(read)),
            };
            let attributes = fattr(&attr, at.fsid());
            let found = Found { xid: call.xid(), attributes, eof, client: at.caller.client };
            match (read, reply.payload_mut()) {
                (Some(read), _) => return Ok(Err(Pending { read, len, found })),
                (None, Some(payload)) => payload.set_len(len),
                // The payload was spliced, or the reply has none.
                (None, None) => {}
            }
            Ok(Ok((len, found)))
        });
        match finish(read, None::<Fattr3>)? {
            Ok(Ok((len, found))) => Ok(TriedRead::Done(self.answer_read(reply, len, &found))),
            Ok(Err(pending)) => Ok(TriedRead::OnSsd(pending)),
            Err(failed) => {
                reply.clear();
                put::<nfs3::ReadOk<'_>, _>(reply, call.xid(), Ok(Err(failed))).map(TriedRead::Done)
            }
        }
    }

    /// Reads on this event loop, and answers. A worker starts over if the READ needs one.
    pub(crate) fn read_on_loop(self: &Arc<Self>, pending: Pending, job: Job, workers: &Arc<Workers<Job>>) {
        let (shared, workers) = (self.clone(), workers.clone());
        tasks::spawn(async move {
            let Pending { read, len, found } = pending;
            let mut reply = job.ticket.reply();
            let payload = reply.payload(len);
            // When memory is short the payload holds less; the worker then answers with less.
            let whole = payload.capacity() == len;
            if !(whole && read.fill(payload.spare_mut()).await) {
                drop(reply);
                return shared.hand_over(job, &workers);
            }
            payload.set_len(len);
            let status = shared.answer_read(&mut reply, len, &found);
            shared.stats.answered(Procedure::Read, job.arrived.elapsed(), status != Nfsstat3::Ok);
            shared.send(job.ticket, reply);
        });
    }

    /// Completes the reply with `len` bytes of payload.
    fn answer_read(&self, reply: &mut Reply<'_>, len: usize, found: &Found) -> Nfsstat3 {
        self.stats.bytes_read.fetch_add(len as u64, Ordering::Relaxed);
        found.client.bytes_read.fetch_add(len as u64, Ordering::Relaxed);
        let out = reply.head();
        success(out, found.xid);
        encode_read_header(out, &Some(found.attributes), len as u32, found.eof);
        Nfsstat3::Ok
    }
}
