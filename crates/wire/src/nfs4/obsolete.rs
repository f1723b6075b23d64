//! Operations of NFSv4.0 that NFSv4.1 does not use. The server decodes their arguments to answer NFS4ERR_NOTSUPP.

use super::types::{MAX_OPAQUE, Netaddr, StateOwner, Stateid, Verifier};
use crate::array::Opaque;

xdr_struct! {
    /// `OPEN_CONFIRM4args`: the arguments of OPEN_CONFIRM.
    pub struct OpenConfirmArgs {
        /// The open.
        pub open_stateid: Stateid,
        /// Sequence number of the owner.
        pub seqid: u32,
    }
}

xdr_struct! {
    /// `SETCLIENTID4args`: the arguments of SETCLIENTID.
    pub struct SetclientidArgs<'a> {
        /// Verifier, which changes when the client restarts.
        pub verifier: Verifier,
        /// Identity, which does not change.
        pub id: Opaque<'a, MAX_OPAQUE>,
        /// Program number of callbacks.
        pub cb_program: u32,
        /// Address of callbacks.
        pub cb_location: Netaddr<'a>,
        /// Number in each callback.
        pub callback_ident: u32,
    }
}

xdr_struct! {
    /// `SETCLIENTID4resok` and `SETCLIENTID_CONFIRM4args`: a client identity and its verifier.
    pub struct SetclientidConfirm {
        /// Identity of the client.
        pub clientid: u64,
        /// Verifier of the confirmation.
        pub verifier: Verifier,
    }
}

xdr_struct! {
    /// `RELEASE_LOCKOWNER4args`: the arguments of RELEASE_LOCKOWNER.
    pub struct ReleaseLockownerArgs<'a> {
        /// Owner of the locks.
        pub lock_owner: StateOwner<'a>,
    }
}
