//! Clients, sessions and connections (RFC 8881, sections 18.33 to 18.37, 18.46, 18.47, 18.50 and 18.51).

use super::bitmap::Bitmap;
use super::types::{ClientOwner, ImplId, MAX_OPAQUE, ServerOwner, SessionId};
use crate::array::{Array, Opaque};
use crate::rpc::AuthSys;

/// Most security parameters of a callback; decoding fails above it.
pub const MAX_CALLBACK_SEC: usize = 16;
/// Most algorithms that a client offers for SSV; decoding fails above it.
pub const MAX_SSV_ALGORITHMS: usize = 64;
/// Most GSS handles of SSV; decoding fails above it.
pub const MAX_SSV_HANDLES: usize = 64;

/// Flags of EXCHANGE_ID, in the arguments and in the result.
pub mod exchange_id {
    /// The client understands NFS4ERR_MOVED for referrals.
    pub const SUPP_MOVED_REFER: u32 = 0x01;
    /// The client understands NFS4ERR_MOVED for migration.
    pub const SUPP_MOVED_MIGR: u32 = 0x02;
    /// The client supports fencing.
    pub const SUPP_FENCE_OPS: u32 = 0x04;
    /// State is bound to the principal that made it.
    pub const BIND_PRINC_STATEID: u32 = 0x100;
    /// The server is no pNFS server.
    pub const USE_NON_PNFS: u32 = 0x1_0000;
    /// The server is a pNFS metadata server.
    pub const USE_PNFS_MDS: u32 = 0x2_0000;
    /// The server is a pNFS data server.
    pub const USE_PNFS_DS: u32 = 0x4_0000;
    /// The three bits of the role.
    pub const MASK_PNFS: u32 = 0x7_0000;
    /// The request updates a confirmed record.
    pub const UPD_CONFIRMED_REC_A: u32 = 0x4000_0000;
    /// The record of the client is confirmed.
    pub const CONFIRMED_R: u32 = 0x8000_0000;
    /// Flags that are valid in the arguments.
    pub const MASK_A: u32 = 0x4007_0107;
}

/// Flags of CREATE_SESSION.
pub mod create_session {
    /// The reply cache survives a restart.
    pub const PERSIST: u32 = 0x01;
    /// The connection is used for the backchannel.
    pub const CONN_BACK_CHAN: u32 = 0x02;
    /// The connection becomes an RDMA connection.
    pub const CONN_RDMA: u32 = 0x04;
}

/// Status flags of the result of SEQUENCE.
pub mod seq_status {
    /// No backchannel of the client works.
    pub const CB_PATH_DOWN: u32 = 0x01;
    /// The GSS contexts of the backchannel expire soon.
    pub const CB_GSS_CONTEXTS_EXPIRING: u32 = 0x02;
    /// The GSS contexts of the backchannel have expired.
    pub const CB_GSS_CONTEXTS_EXPIRED: u32 = 0x04;
    /// All state was revoked, because the lease expired.
    pub const EXPIRED_ALL_STATE_REVOKED: u32 = 0x08;
    /// Some state was revoked, because the lease expired.
    pub const EXPIRED_SOME_STATE_REVOKED: u32 = 0x10;
    /// An administrator revoked state.
    pub const ADMIN_STATE_REVOKED: u32 = 0x20;
    /// Recallable state was revoked.
    pub const RECALLABLE_STATE_REVOKED: u32 = 0x40;
    /// State of a file system has moved to another server.
    pub const LEASE_MOVED: u32 = 0x80;
    /// The server has restarted, and the client must reclaim.
    pub const RESTART_RECLAIM_NEEDED: u32 = 0x100;
    /// The backchannel of this session does not work.
    pub const CB_PATH_DOWN_SESSION: u32 = 0x200;
    /// The backchannel of this session had an unexpected failure.
    pub const BACKCHANNEL_FAULT: u32 = 0x400;
    /// A device of pNFS has changed.
    pub const DEVID_CHANGED: u32 = 0x800;
    /// A device of pNFS was deleted.
    pub const DEVID_DELETED: u32 = 0x1000;
}

xdr_struct! {
    /// `state_protect_ops4`: operations that need, or may use, the machine credential.
    #[derive(Default)]
    pub struct StateProtectOps {
        /// Operations that the server refuses with another credential.
        pub must_enforce: Bitmap,
        /// Operations that the server accepts with the machine credential.
        pub must_allow: Bitmap,
    }
}

xdr_struct! {
    /// `ssv_sp_parms4`: what a client offers for protection by SSV.
    pub struct SsvParms<'a> {
        /// Protected operations.
        pub ops: StateProtectOps,
        /// Object identities of hash algorithms.
        pub hash_algs: Array<'a, &'a [u8], MAX_SSV_ALGORITHMS>,
        /// Object identities of encryption algorithms.
        pub encr_algs: Array<'a, &'a [u8], MAX_SSV_ALGORITHMS>,
        /// Number of SSV versions kept.
        pub window: u32,
        /// Number of GSS handles wanted.
        pub num_gss_handles: u32,
    }
}

xdr_union! {
    /// `state_protect4_a`: the protection of state that a client asks for.
    pub enum StateProtectArgs<'a>("state_protect_how4") {
        /// No protection.
        None = 0,
        /// By the machine credential.
        MachCred(ops: StateProtectOps) = 1,
        /// By a secret state verifier.
        Ssv(parms: SsvParms<'a>) = 2,
    }
}

xdr_struct! {
    /// `EXCHANGE_ID4args`: the arguments of EXCHANGE_ID.
    pub struct ExchangeIdArgs<'a> {
        /// The client.
        pub client_owner: ClientOwner<'a>,
        /// Bits of [`exchange_id`].
        pub flags: u32,
        /// Protection of state.
        pub state_protect: StateProtectArgs<'a>,
        /// Implementation of the client.
        pub impl_id: Option<ImplId<'a>>,
    }
}

xdr_struct! {
    /// `ssv_prot_info4`: the protection by SSV that the server grants.
    pub struct SsvProtInfo<'a> {
        /// Protected operations.
        pub ops: StateProtectOps,
        /// Index of the hash algorithm.
        pub hash_alg: u32,
        /// Index of the encryption algorithm.
        pub encr_alg: u32,
        /// Length of the SSV in bytes.
        pub ssv_len: u32,
        /// Number of SSV versions kept.
        pub window: u32,
        /// GSS handles.
        pub handles: Array<'a, &'a [u8], MAX_SSV_HANDLES>,
    }
}

xdr_union! {
    /// `state_protect4_r`: the protection of state that the server grants.
    pub enum StateProtectRes<'a>("state_protect_how4") {
        /// No protection.
        None = 0,
        /// By the machine credential.
        MachCred(ops: StateProtectOps) = 1,
        /// By a secret state verifier.
        Ssv(info: SsvProtInfo<'a>) = 2,
    }
}

xdr_struct! {
    /// `EXCHANGE_ID4resok`: the successful result of EXCHANGE_ID.
    pub struct ExchangeIdOk<'a> {
        /// Identity of the client.
        pub clientid: u64,
        /// Sequence number that the first CREATE_SESSION must have.
        pub sequence: u32,
        /// Bits of [`exchange_id`].
        pub flags: u32,
        /// Protection of state.
        pub state_protect: StateProtectRes<'a>,
        /// The server.
        pub server_owner: ServerOwner<'a>,
        /// Scope in which server identities are unique.
        pub server_scope: Opaque<'a, MAX_OPAQUE>,
        /// Implementation of the server.
        pub impl_id: Option<ImplId<'a>>,
    }
}

xdr_struct! {
    /// `channel_attrs4`: the limits of a channel. Sizes are in bytes, with the RPC header.
    #[derive(Default)]
    pub struct ChannelAttrs {
        /// Padding of requests with RDMA.
        pub header_pad: u32,
        /// Largest request.
        pub max_request: u32,
        /// Largest reply.
        pub max_response: u32,
        /// Largest reply that the reply cache keeps.
        pub max_response_cached: u32,
        /// Most operations in a request.
        pub max_operations: u32,
        /// Slots: most requests at a time.
        pub max_requests: u32,
        /// RDMA read depth.
        pub rdma_ird: Option<u32>,
    }
}

xdr_struct! {
    /// `gss_cb_handles4`: GSS handles of a callback.
    pub struct GssCallbackHandles<'a> {
        /// Service: 1 none, 2 integrity, 3 privacy. Decoding does not check the number.
        pub service: u32,
        /// Handle that the server made.
        pub from_server: &'a [u8],
        /// Handle that the client made.
        pub from_client: &'a [u8],
    }
}

xdr_union! {
    /// `callback_sec_parms4`: a credential that the server may use in callbacks.
    pub enum CallbackSec<'a>("callback_sec_parms4") {
        /// AUTH_NONE.
        None = 0,
        /// AUTH_SYS.
        Sys(credential: AuthSys<'a>) = 1,
        /// RPCSEC_GSS.
        Gss(handles: GssCallbackHandles<'a>) = 6,
    }
}

xdr_struct! {
    /// `CREATE_SESSION4args`: the arguments of CREATE_SESSION.
    pub struct CreateSessionArgs<'a> {
        /// Identity of the client.
        pub clientid: u64,
        /// Sequence number of the request.
        pub sequence: u32,
        /// Bits of [`create_session`].
        pub flags: u32,
        /// Limits that the client asks for from client to server.
        pub fore_channel: ChannelAttrs,
        /// Limits that the client asks for from server to client.
        pub back_channel: ChannelAttrs,
        /// Program number of callbacks.
        pub cb_program: u32,
        /// Credentials for callbacks.
        pub sec_parms: Array<'a, CallbackSec<'a>, MAX_CALLBACK_SEC>,
    }
}

xdr_struct! {
    /// `CREATE_SESSION4resok`: the successful result of CREATE_SESSION.
    pub struct CreateSessionOk {
        /// Identity of the session.
        pub sessionid: SessionId,
        /// Sequence number of the request.
        pub sequence: u32,
        /// Bits of [`create_session`].
        pub flags: u32,
        /// Limits from client to server.
        pub fore_channel: ChannelAttrs,
        /// Limits from server to client.
        pub back_channel: ChannelAttrs,
    }
}

xdr_struct! {
    /// `BACKCHANNEL_CTL4args`: the arguments of BACKCHANNEL_CTL.
    pub struct BackchannelCtlArgs<'a> {
        /// Program number of callbacks.
        pub cb_program: u32,
        /// Credentials for callbacks.
        pub sec_parms: Array<'a, CallbackSec<'a>, MAX_CALLBACK_SEC>,
    }
}

xdr_enum! {
    /// `channel_dir_from_client4`: the channels that a client asks for on a connection.
    pub enum ChannelDirFromClient("channel_dir_from_client4") {
        /// Client to server.
        Fore = 1,
        /// Server to client.
        Back = 2,
        /// Client to server, and both if the server likes.
        ForeOrBoth = 3,
        /// Server to client, and both if the server likes.
        BackOrBoth = 7,
    }
}

xdr_enum! {
    /// `channel_dir_from_server4`: the channels that a connection carries.
    pub enum ChannelDirFromServer("channel_dir_from_server4") {
        /// Client to server.
        Fore = 1,
        /// Server to client.
        Back = 2,
        /// Both.
        Both = 3,
    }
}

xdr_struct! {
    /// `BIND_CONN_TO_SESSION4args`: the arguments of BIND_CONN_TO_SESSION.
    pub struct BindConnArgs {
        /// The session.
        pub sessionid: SessionId,
        /// Channels for the connection.
        pub direction: ChannelDirFromClient,
        /// True if the connection shall become an RDMA connection.
        pub rdma: bool,
    }
}

xdr_struct! {
    /// `BIND_CONN_TO_SESSION4resok`: the successful result of BIND_CONN_TO_SESSION.
    pub struct BindConnOk {
        /// The session.
        pub sessionid: SessionId,
        /// Channels of the connection.
        pub direction: ChannelDirFromServer,
        /// True if the connection becomes an RDMA connection.
        pub rdma: bool,
    }
}

xdr_struct! {
    /// `DESTROY_SESSION4args`: the arguments of DESTROY_SESSION.
    pub struct DestroySessionArgs {
        /// The session.
        pub sessionid: SessionId,
    }
}

xdr_struct! {
    /// `DESTROY_CLIENTID4args`: the arguments of DESTROY_CLIENTID.
    pub struct DestroyClientidArgs {
        /// The client.
        pub clientid: u64,
    }
}

xdr_struct! {
    /// `RECLAIM_COMPLETE4args`: the arguments of RECLAIM_COMPLETE.
    pub struct ReclaimCompleteArgs {
        /// True if only the reclaims in the file system of the current handle are complete.
        pub one_fs: bool,
    }
}

xdr_struct! {
    fixed
    /// `SEQUENCE4args`: the arguments of SEQUENCE.
    pub struct SequenceArgs {
        /// The session.
        pub sessionid: SessionId,
        /// Sequence number of the slot.
        pub sequence: u32,
        /// The slot.
        pub slot: u32,
        /// Highest slot that the client uses.
        pub highest_slot: u32,
        /// True if the server shall keep the reply for a retry.
        pub cache_this: bool,
    }
}

xdr_struct! {
    fixed
    /// `SEQUENCE4resok`: the successful result of SEQUENCE.
    pub struct SequenceOk {
        /// The session.
        pub sessionid: SessionId,
        /// Sequence number of the slot.
        pub sequence: u32,
        /// The slot.
        pub slot: u32,
        /// Highest slot that the server accepts.
        pub highest_slot: u32,
        /// Highest slot that the client should use.
        pub target_highest_slot: u32,
        /// Bits of [`seq_status`].
        pub status_flags: u32,
    }
}

xdr_struct! {
    /// `SET_SSV4args`: the arguments of SET_SSV.
    pub struct SetSsvArgs<'a> {
        /// Value that changes the SSV.
        pub ssv: &'a [u8],
        /// Digest of the arguments of SEQUENCE.
        pub digest: &'a [u8],
    }
}

xdr_struct! {
    /// `SET_SSV4resok`: the successful result of SET_SSV.
    pub struct SetSsvOk<'a> {
        /// Digest of the result of SEQUENCE.
        pub digest: &'a [u8],
    }
}
