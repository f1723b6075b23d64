//! Opens and delegations (RFC 8881, sections 18.2, 18.5, 18.6, 18.16 to 18.18, 18.39 and 18.49).

use super::acl::Ace;
use super::attr::Fattr;
use super::bitmap::Bitmap;
use super::types::{ChangeInfo, Nfstime4, StateOwner, Stateid, Verifier};

/// Values and bits of `share_access` and `share_deny`.
pub mod share {
    /// Read, or deny to read.
    pub const READ: u32 = 0x01;
    /// Write, or deny to write.
    pub const WRITE: u32 = 0x02;
    /// Both.
    pub const BOTH: u32 = 0x03;
    /// The bits of the delegation that a client wants.
    pub const WANT_DELEG_MASK: u32 = 0xff00;
    /// The client has no preference.
    pub const WANT_NO_PREFERENCE: u32 = 0x0000;
    /// The client wants a read delegation.
    pub const WANT_READ_DELEG: u32 = 0x0100;
    /// The client wants a write delegation.
    pub const WANT_WRITE_DELEG: u32 = 0x0200;
    /// The client wants any delegation.
    pub const WANT_ANY_DELEG: u32 = 0x0300;
    /// The client wants no delegation.
    pub const WANT_NO_DELEG: u32 = 0x0400;
    /// The client no longer wants a delegation.
    pub const WANT_CANCEL: u32 = 0x0500;
    /// The server shall tell when resources for a delegation are available.
    pub const WANT_SIGNAL_DELEG_WHEN_RESRC_AVAIL: u32 = 0x1_0000;
    /// The server shall push a delegation when there is no contention.
    pub const WANT_PUSH_DELEG_WHEN_UNCONTENDED: u32 = 0x2_0000;
    /// The client wants a delegation of the times (RFC 9754).
    pub const WANT_DELEG_TIMESTAMPS: u32 = 0x10_0000;
    /// The client wants either an open or a delegation (RFC 9754).
    pub const WANT_OPEN_XOR_DELEGATION: u32 = 0x20_0000;
}

/// Bits of the result of OPEN.
pub mod open_result {
    /// NFSv4.0: the client must confirm the open.
    pub const CONFIRM: u32 = 0x02;
    /// Locks have the semantics of POSIX.
    pub const LOCKTYPE_POSIX: u32 = 0x04;
    /// The server keeps the file if it is removed while it is open.
    pub const PRESERVE_UNLINKED: u32 = 0x08;
    /// The result has no open, but a delegation (RFC 9754).
    pub const NO_OPEN_STATEID: u32 = 0x10;
    /// The server may call CB_NOTIFY_LOCK.
    pub const MAY_NOTIFY_LOCK: u32 = 0x20;
}

xdr_struct! {
    /// `creatverfattr`: a verifier and attributes of an exclusive create.
    pub struct CreateVerfAttr<'a> {
        /// Verifier of the create.
        pub verifier: Verifier,
        /// Attributes of the new file.
        pub attributes: Fattr<'a>,
    }
}

xdr_union! {
    /// `createhow4`: the behaviour of OPEN if the file exists.
    pub enum CreateHow<'a>("createmode4") {
        /// The server takes the existing file.
        Unchecked(attributes: Fattr<'a>) = 0,
        /// The server answers NFS4ERR_EXIST.
        Guarded(attributes: Fattr<'a>) = 1,
        /// The server answers NFS4ERR_EXIST, unless a request with this verifier made the file.
        Exclusive(verifier: Verifier) = 2,
        /// Exclusive, with attributes.
        Exclusive41(both: CreateVerfAttr<'a>) = 3,
    }
}

xdr_union! {
    /// `openflag4`: tells whether OPEN makes the file.
    pub enum OpenHow<'a>("opentype4") {
        /// The file must exist.
        NoCreate = 0,
        /// The file is made if it does not exist.
        Create(how: CreateHow<'a>) = 1,
    }
}

xdr_enum! {
    /// `open_delegation_type4`: the type of a delegation.
    pub enum DelegationType("open_delegation_type4") {
        /// No delegation.
        None = 0,
        /// Read delegation.
        Read = 1,
        /// Write delegation.
        Write = 2,
        /// No delegation, with a reason.
        NoneExt = 3,
        /// Read delegation that includes the times (RFC 9754).
        ReadAttrs = 4,
        /// Write delegation that includes the times (RFC 9754).
        WriteAttrs = 5,
    }
}

xdr_struct! {
    /// `open_claim_delegate_cur4`: a delegation and a name.
    pub struct ClaimDelegateCur<'a> {
        /// The delegation.
        pub delegate_stateid: Stateid,
        /// Name of the file in the current directory.
        pub file: &'a [u8],
    }
}

xdr_union! {
    /// `open_claim4`: the file to open, and the right to open it.
    pub enum OpenClaim<'a>("open_claim_type4") {
        /// A name in the current directory.
        Null(file: &'a [u8]) = 0,
        /// Reclaim after a restart of the server. The current handle is the file.
        Previous(delegate_type: DelegationType) = 1,
        /// By a delegation, of a name in the current directory.
        DelegateCur(info: ClaimDelegateCur<'a>) = 2,
        /// By a delegation from before a restart of the client, of a name in the current directory.
        DelegatePrev(file: &'a [u8]) = 3,
        /// The current handle is the file.
        Fh = 4,
        /// By a delegation. The current handle is the file.
        DelegCurFh(delegate_stateid: Stateid) = 5,
        /// By a delegation from before a restart of the client. The current handle is the file.
        DelegPrevFh = 6,
    }
}

xdr_struct! {
    /// `OPEN4args`: the arguments of OPEN.
    pub struct OpenArgs<'a> {
        /// Sequence number of NFSv4.0; NFSv4.1 ignores it.
        pub seqid: u32,
        /// Bits of [`share`].
        pub share_access: u32,
        /// Bits of [`share`].
        pub share_deny: u32,
        /// Owner of the open.
        pub owner: StateOwner<'a>,
        /// Tells whether the file is made.
        pub how: OpenHow<'a>,
        /// The file.
        pub claim: OpenClaim<'a>,
    }
}

xdr_struct! {
    /// `nfs_modified_limit4`: a limit of modified data in blocks.
    pub struct ModifiedLimit {
        /// Number of blocks.
        pub num_blocks: u32,
        /// Bytes in a block.
        pub bytes_per_block: u32,
    }
}

xdr_union! {
    /// `nfs_space_limit4`: the data that a client may keep without asking.
    pub enum SpaceLimit("limit_by4") {
        /// Largest size of the file in bytes.
        Size(filesize: u64) = 1,
        /// Number of blocks.
        Blocks(limit: ModifiedLimit) = 2,
    }
}

xdr_struct! {
    /// `open_read_delegation4`: a read delegation.
    pub struct ReadDelegation<'a> {
        /// Identity of the delegation.
        pub stateid: Stateid,
        /// True if the delegation is already recalled.
        pub recall: bool,
        /// Users that may open the file without an ACCESS call.
        pub permissions: Ace<'a>,
    }
}

xdr_struct! {
    /// `open_write_delegation4`: a write delegation.
    pub struct WriteDelegation<'a> {
        /// Identity of the delegation.
        pub stateid: Stateid,
        /// True if the delegation is already recalled.
        pub recall: bool,
        /// Data that the client may keep until CLOSE.
        pub space_limit: SpaceLimit,
        /// Users that may open the file without an ACCESS call.
        pub permissions: Ace<'a>,
    }
}

xdr_union! {
    /// `open_none_delegation4`: the reason why there is no delegation.
    pub enum WhyNoDelegation("why_no_delegation4") {
        /// The client did not want one.
        NotWanted = 0,
        /// Contention. The boolean is true if the server will push a delegation later.
        Contention(will_push: bool) = 1,
        /// Lack of resources. The boolean is true if the server will signal that they are available.
        Resource(will_signal: bool) = 2,
        /// The type of file has no delegations.
        NotSuppFtype = 3,
        /// The type of file has no write delegations.
        WriteNotSuppFtype = 4,
        /// A delegation cannot be upgraded.
        NotSuppUpgrade = 5,
        /// A delegation cannot be downgraded.
        NotSuppDowngrade = 6,
        /// The client no longer wants one.
        Cancelled = 7,
        /// The object is a directory.
        IsDir = 8,
    }
}

xdr_union! {
    /// `open_delegation4`: the delegation in the result of OPEN and WANT_DELEGATION.
    pub enum Delegation<'a>("open_delegation_type4") {
        /// No delegation.
        None = 0,
        /// Read delegation.
        Read(delegation: ReadDelegation<'a>) = 1,
        /// Write delegation.
        Write(delegation: WriteDelegation<'a>) = 2,
        /// No delegation, with the reason.
        NoneExt(why: WhyNoDelegation) = 3,
        /// Read delegation that includes the times (RFC 9754).
        ReadAttrs(delegation: ReadDelegation<'a>) = 4,
        /// Write delegation that includes the times (RFC 9754).
        WriteAttrs(delegation: WriteDelegation<'a>) = 5,
    }
}

xdr_struct! {
    /// `OPEN4resok`: the successful result of OPEN.
    pub struct OpenOk<'a> {
        /// Identity of the open.
        pub stateid: Stateid,
        /// Change of the directory.
        pub cinfo: ChangeInfo,
        /// Bits of [`open_result`].
        pub rflags: u32,
        /// Attributes that the server has set.
        pub attrset: Bitmap,
        /// Delegation of the file.
        pub delegation: Delegation<'a>,
    }
}

xdr_struct! {
    /// `OPEN_DOWNGRADE4args`: the arguments of OPEN_DOWNGRADE.
    pub struct OpenDowngradeArgs {
        /// The open.
        pub open_stateid: Stateid,
        /// Sequence number of NFSv4.0; NFSv4.1 ignores it.
        pub seqid: u32,
        /// Bits of [`share`] that remain.
        pub share_access: u32,
        /// Bits of [`share`] that remain.
        pub share_deny: u32,
    }
}

xdr_struct! {
    /// `CLOSE4args`: the arguments of CLOSE.
    pub struct CloseArgs {
        /// Sequence number of NFSv4.0; NFSv4.1 ignores it.
        pub seqid: u32,
        /// The open.
        pub open_stateid: Stateid,
    }
}

xdr_struct! {
    /// Arguments with one state identity: DELEGRETURN, FREE_STATEID, OFFLOAD_CANCEL and OFFLOAD_STATUS.
    pub struct StateidArgs {
        /// The state.
        pub stateid: Stateid,
    }
}

xdr_struct! {
    /// Arguments with one client identity: DELEGPURGE and RENEW.
    pub struct ClientidArgs {
        /// The client.
        pub clientid: u64,
    }
}

xdr_struct! {
    /// `OPENATTR4args`: the arguments of OPENATTR.
    pub struct OpenattrArgs {
        /// True if the directory of named attributes shall be made.
        pub createdir: bool,
    }
}

xdr_union! {
    /// `deleg_claim4`: the right to a delegation. The current handle is the object.
    pub enum DelegationClaim("open_claim_type4 of deleg_claim4") {
        /// Reclaim after a restart of the server.
        Previous(delegate_type: DelegationType) = 1,
        /// A new delegation.
        Fh = 4,
        /// A delegation from before a restart of the client.
        DelegPrevFh = 6,
    }
}

xdr_struct! {
    /// `WANT_DELEGATION4args`: the arguments of WANT_DELEGATION.
    pub struct WantDelegationArgs {
        /// Bits of [`share`].
        pub want: u32,
        /// Right to the delegation.
        pub claim: DelegationClaim,
    }
}

xdr_struct! {
    /// `GET_DIR_DELEGATION4args`: the arguments of GET_DIR_DELEGATION.
    pub struct GetDirDelegationArgs {
        /// True if the server shall signal that a delegation is available.
        pub signal_available: bool,
        /// Notifications wanted.
        pub notification_types: Bitmap,
        /// Longest delay of notifications of attributes of entries.
        pub child_attr_delay: Nfstime4,
        /// Longest delay of notifications of attributes of the directory.
        pub dir_attr_delay: Nfstime4,
        /// Attributes of entries of interest.
        pub child_attributes: Bitmap,
        /// Attributes of the directory of interest.
        pub dir_attributes: Bitmap,
    }
}

xdr_struct! {
    /// `GET_DIR_DELEGATION4resok`: a directory delegation.
    pub struct GetDirDelegationOk {
        /// Verifier of the cookies of READDIR.
        pub cookieverf: Verifier,
        /// Identity of the delegation.
        pub stateid: Stateid,
        /// Notifications that the server sends.
        pub notification: Bitmap,
        /// Attributes of entries with notifications.
        pub child_attributes: Bitmap,
        /// Attributes of the directory with notifications.
        pub dir_attributes: Bitmap,
    }
}

xdr_union! {
    /// `GET_DIR_DELEGATION4res_non_fatal`: a directory delegation, or the answer that there is none.
    pub enum DirDelegation("gddrnf4_status") {
        /// The delegation.
        Granted(delegation: GetDirDelegationOk) = 0,
        /// No delegation. The boolean is true if the server will signal that one is available.
        Unavailable(will_signal: bool) = 1,
    }
}
