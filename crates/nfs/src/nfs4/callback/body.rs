//! The bytes of a call-back.

use forebay_clientstate::{CopyEnd, RequestId};
use forebay_wire::nfs4::{
    CbGetattrArgs, CbNotifyLockArgs, CbOffloadArgs, CbOp, CbRecallArgs, CbSequenceArgs, MAX_REFERRING,
    Nfsstat4, OffloadInfo, ReferringCall, ReferringCallList, StableHow4, StateOwner, WriteResponse,
};
use forebay_wire::rpc::OpaqueAuth;
use forebay_wire::xdr::Encode;
use forebay_wire::{Array, Opaque};

use super::{Message, Sent};
use crate::nfs4::convert::wire_id;
use crate::nfs4::holder::ASKED;

/// Returns the record of a call-back after its transaction number.
pub(super) fn body(sent: &Sent) -> Option<Vec<u8>> {
    const CALL: u32 = 0;
    let (program, security) = sent.session.callback();
    let (minor, credential) = security.split_first_chunk::<4>()?;
    let mut out = Vec::with_capacity(512);
    for word in [CALL, forebay_wire::rpc::RPC_VERSION, program, 1, 1] {
        word.encode(&mut out);
    }
    out.extend_from_slice(credential);
    OpaqueAuth::NONE.encode(&mut out);
    // An empty tag, the minor version, a number that only NFSv4.0 uses, and the number of operations.
    for word in [0, u32::from_be_bytes(*minor), 0, 2] {
        word.encode(&mut out);
    }
    let referring = match &sent.job.message {
        Message::Recall { granted_in, .. } | Message::Getattr { granted_in, .. } => *granted_in,
        Message::Offload { asked_in, .. } => *asked_in,
        Message::NotifyLock { .. } => None,
    };
    let (mut calls, mut lists) = (Vec::new(), Vec::new());
    let sequence = CbSequenceArgs {
        sessionid: sent.session.id().0,
        sequence: sent.sequence,
        slot: sent.slot,
        highest_slot: sent.session.back().slots.saturating_sub(1),
        cache_this: false,
        referring: referring_lists(referring, &mut calls, &mut lists)?,
    };
    CbOp::Sequence(sequence).encode(&mut out);
    match &sent.job.message {
        Message::Recall { stateid, file, .. } => {
            let (stateid, fh) = (wire_id(*stateid), Opaque(file.handle()));
            CbOp::Recall(CbRecallArgs { stateid, truncate: false, fh }).encode(&mut out);
        }
        Message::Getattr { file, .. } => {
            CbOp::Getattr(CbGetattrArgs { fh: Opaque(file.handle()), request: ASKED }).encode(&mut out);
        }
        Message::NotifyLock { client, owner, file } => {
            let lock_owner = StateOwner { clientid: *client, owner: Opaque(owner.as_bytes()) };
            CbOp::NotifyLock(CbNotifyLockArgs { fh: Opaque(file.handle()), lock_owner }).encode(&mut out);
        }
        Message::Offload { stateid, file, end, progress, .. } => {
            let (fh, stateid) = (Opaque(file.handle()), wire_id(*stateid));
            let info = outcome(end, progress.copied());
            CbOp::Offload(CbOffloadArgs { fh, stateid, info }).encode(&mut out);
        }
    }
    Some(out)
}

/// Returns the outcome of a copy for its client.
fn outcome(end: &CopyEnd, copied: u64) -> OffloadInfo {
    match Nfsstat4::try_from(end.status).unwrap_or(Nfsstat4::Serverfault) {
        Nfsstat4::Ok => {
            let committed = if end.is_stable { StableHow4::FileSync } else { StableHow4::Unstable };
            // Linux reads no state id here.
            let (callback_id, verifier) = (None, end.verifier);
            OffloadInfo::Done(WriteResponse { callback_id, count: copied, committed, verifier })
        }
        status => OffloadInfo::Failed { status, bytes_copied: copied },
    }
}

/// Returns the list of one request, or of none.
fn referring_lists<'a>(
    request: Option<RequestId>,
    calls: &'a mut Vec<u8>,
    lists: &'a mut Vec<u8>,
) -> Option<Array<'a, ReferringCallList<'a>, MAX_REFERRING>> {
    let Some(RequestId { session, slot, sequence }) = request else { return Some(Array::EMPTY) };
    let calls = Array::encoded(calls, &[ReferringCall { sequence, slot }])?;
    Array::encoded(lists, &[ReferringCallList { sessionid: session.0, calls }])
}
