//! The bytes of a call-back.

use forebay_clientstate::RequestId;
use forebay_wire::nfs4::{
    CbGetattrArgs, CbNotifyLockArgs, CbOp, CbRecallArgs, CbSequenceArgs, MAX_REFERRING, ReferringCall,
    ReferringCallList, StateOwner,
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
            let (stateid, fh) = (wire_id(*stateid), Opaque(file.as_bytes()));
            CbOp::Recall(CbRecallArgs { stateid, truncate: false, fh }).encode(&mut out);
        }
        Message::Getattr { file, .. } => {
            CbOp::Getattr(CbGetattrArgs { fh: Opaque(file.as_bytes()), request: ASKED }).encode(&mut out);
        }
        Message::NotifyLock { owner, file } => {
            let clientid = sent.session.client().0;
            let lock_owner = StateOwner { clientid, owner: Opaque(owner.as_bytes()) };
            CbOp::NotifyLock(CbNotifyLockArgs { fh: Opaque(file.as_bytes()), lock_owner }).encode(&mut out);
        }
    }
    Some(out)
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
