//! READ: from memory on the event loop; from the cache devices also on the event loop, many at once on its io_uring. A
//! worker carries out all other READs.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_rpc::{Reply, Workers};
use forebay_runtime::tasks;
use forebay_vfs::{DataCaller, Outcome, ReadInto, ReadOut, SsdRead, Wait};
use forebay_wire::nfs3::{self, Fattr3, Nfsstat3, Procedure, ReadArgs, encode_read_header};

use crate::MAX_TRANSFER;
use crate::caller::At;
use crate::clients::ClientStats;
use crate::convert::fattr;
use crate::look::put;
use crate::request::{Call, Request};
use crate::result::{Stop, finish, success};
use crate::shared::Shared;

/// A READ whose data has to be read from the cache devices.
pub(crate) struct SsdReply {
    read: SsdRead,
    rest: Rest,
}

/// The reply without the data.
enum Rest {
    Nfs3(RestOfReply),
    /// The request has the COMPOUND. The client's counters count the data.
    Nfs4(Arc<ClientStats>),
}

impl SsdReply {
    /// Returns a READ that is the last operation of a COMPOUND, which the request has.
    pub(crate) fn of_compound(read: SsdRead, client: Arc<ClientStats>) -> Self {
        SsdReply { read, rest: Rest::Nfs4(client) }
    }
}

/// The reply to a READ of NFSv3 without the data.
struct RestOfReply {
    xid: u32,
    attributes: Fattr3,
    /// The length of the data.
    len: usize,
    eof: bool,
    client: Arc<ClientStats>,
}

/// A destination that puts READ's data straight into the reply.
pub(crate) struct IntoReply<'r, 'a>(pub(crate) &'r mut Reply<'a>);

impl ReadInto for IntoReply<'_, '_> {
    fn buffer(&mut self, len: usize) -> &mut [u8] {
        self.0.payload(len).spare_mut()
    }

    fn may_splice(&self, offset: u64, len: usize) -> bool {
        self.0.may_splice(offset, len)
    }

    fn splice(&mut self, file: BorrowedFd<'_>, offset: u64, len: usize) -> bool {
        self.0.splice(file, offset, len)
    }
}

impl Shared {
    /// Reads. With [`Wait::Yes`] the outcome is `Done`, with the status of the complete reply.
    pub(crate) fn read(
        &self,
        call: &Call<'_>,
        reply: &mut Reply<'_>,
        wait: Wait,
    ) -> Result<Outcome<Nfsstat3, SsdReply>, Stop> {
        let args: ReadArgs = call.args()?;
        let count = args.count.min(MAX_TRANSFER) as usize;
        self.announce_look_v3(call, &args.file, wait)?;
        let tried = self.at(call, &args.file, wait).and_then(|at| {
            let (fsid, At { target, caller }) = (at.fsid(), at);
            let into = &mut IntoReply(reply);
            let tried = self.vfs.read(
                &target,
                DataCaller::without_open(&caller.cred),
                args.offset,
                count,
                wait,
                into,
            )?;
            let rest = |ReadOut { len, eof, attr }, client| {
                let attributes = fattr(&attr, fsid);
                RestOfReply { xid: call.xid(), attributes, len, eof, client }
            };
            Ok::<Outcome<_, _>, Stop>(match tried {
                Outcome::Done(out) => {
                    call.has_moved(args.offset, out.len, false);
                    Outcome::Done(rest(out, caller.client))
                }
                Outcome::FromSsd(read) => {
                    call.has_moved(args.offset, read.out.len, false);
                    let rest = Rest::Nfs3(rest(read.out, caller.client));
                    Outcome::FromSsd(SsdReply { read, rest })
                }
                Outcome::Wait => {
                    call.keep(caller);
                    Outcome::Wait
                }
            })
        });
        match finish(tried, None::<Fattr3>)? {
            Ok(Outcome::Done(rest)) => {
                // A payload that was spliced has its length already, and a reply without data has none.
                if let Some(payload) = reply.payload_mut() {
                    payload.set_len(rest.len);
                }
                Ok(Outcome::Done(self.answer_read(reply, &rest)))
            }
            Ok(Outcome::FromSsd(read)) => Ok(Outcome::FromSsd(read)),
            Ok(Outcome::Wait) => Ok(Outcome::Wait),
            Err(failed) => {
                reply.clear();
                put::<nfs3::ReadOk<'_>, _>(reply, call.xid(), Ok(Err(failed))).map(Outcome::Done)
            }
        }
    }

    /// Reads on this event loop, and answers. A worker starts over if the READ needs one.
    pub(crate) fn read_on_loop(
        self: &Arc<Self>,
        SsdReply { read, rest }: SsdReply,
        request: Request,
        workers: &Arc<Workers<Request>>,
    ) {
        let (shared, workers) = (self.clone(), workers.clone());
        tasks::spawn(async move {
            let mut reply = request.ticket.reply();
            let len = read.out.len;
            let payload = reply.payload(len);
            // When memory is short the payload holds less; the worker then answers with less.
            let whole = payload.capacity() == len;
            if !(whole && read.fill(payload.spare_mut()).await) {
                drop(reply);
                return shared.hand_over(request, &workers);
            }
            payload.set_len(len);
            match rest {
                Rest::Nfs3(rest) => {
                    let status = shared.answer_read(&mut reply, &rest);
                    let failed = status != Nfsstat3::Ok;
                    shared.stats.answered(Procedure::Read, request.arrived.elapsed(), failed);
                    shared.profile_nfs3(&request.call(), Procedure::Read, failed, request.arrived);
                    shared.send(request.ticket, reply);
                }
                Rest::Nfs4(client) => {
                    if let Some(request) = shared.complete_read_nfs4(request, reply, &client, &read.out) {
                        shared.hand_over(request, &workers);
                    }
                }
            }
        });
    }

    /// Completes a reply that has its data.
    fn answer_read(&self, reply: &mut Reply<'_>, rest: &RestOfReply) -> Nfsstat3 {
        let len = rest.len as u64;
        self.stats.bytes_read.fetch_add(len, Ordering::Relaxed);
        rest.client.bytes_read.fetch_add(len, Ordering::Relaxed);
        let out = reply.head();
        success(out, rest.xid);
        encode_read_header(out, &Some(rest.attributes), rest.len as u32, rest.eof);
        Nfsstat3::Ok
    }
}
