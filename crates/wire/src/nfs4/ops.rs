//! The operations of COMPOUND (RFC 8881, section 18; RFC 7862, section 15; RFC 8276, section 8.4).

use super::copy::*;
use super::dir::*;
use super::io::*;
use super::layout::*;
use super::lock::*;
use super::objects::*;
use super::obsolete::*;
use super::open::*;
use super::results::*;
use super::session::*;
use super::status::Nfsstat4;
use super::types::Netaddr;
use super::xattr::*;

/// The result of LOCK. The failure with a body is NFS4ERR_DENIED.
pub type LockRes<'a> = ResultOr<StateidOk, LockDenied<'a>, { Nfsstat4::Denied as u32 }>;
/// The result of LOCKT. The failure with a body is NFS4ERR_DENIED.
pub type LocktRes<'a> = ResultOr<(), LockDenied<'a>, { Nfsstat4::Denied as u32 }>;
/// The result of SETCLIENTID. The failure with a body is NFS4ERR_CLID_INUSE.
pub type SetclientidRes<'a> = ResultOr<SetclientidConfirm, Netaddr<'a>, { Nfsstat4::ClidInuse as u32 }>;
/// The result of GETDEVICEINFO. The failure with a body, the bytes needed, is NFS4ERR_TOOSMALL.
pub type GetdeviceinfoRes<'a> = ResultOr<GetdeviceinfoOk<'a>, u32, { Nfsstat4::Toosmall as u32 }>;
/// The result of LAYOUTGET. The failure with a body is NFS4ERR_LAYOUTTRYLATER: true if the server will signal.
pub type LayoutgetRes<'a> = ResultOr<LayoutgetOk<'a>, bool, { Nfsstat4::Layouttrylater as u32 }>;
/// The result of COPY. The failure with a body is NFS4ERR_OFFLOAD_NO_REQS.
pub type CopyRes = ResultOr<CopyOk, CopyRequirements, { Nfsstat4::OffloadNoReqs as u32 }>;

operations! {
    /// `nfs_opnum4`: the number of an operation.
    numbers Opcode("nfs_opnum4");
    /// `nfs_argop4`: the arguments of an operation.
    arguments Op<'a>;
    /// `nfs_resop4`: the result of an operation.
    results OpResult<'a>;

    /// Checks permissions.
    Access = 3 "ACCESS" AccessArgs => OpRes<AccessOk>,
    /// Closes an open.
    Close = 4 "CLOSE" CloseArgs => OpRes<StateidOk>,
    /// Commits cached data to stable storage.
    Commit = 5 "COMMIT" CommitArgs => OpRes<CommitOk>,
    /// Makes a directory, a symbolic link or a special file.
    Create = 6 "CREATE" CreateArgs<'a> => OpRes<CreateOk>,
    /// Drops delegations from before a restart of the client.
    Delegpurge = 7 "DELEGPURGE" ClientidArgs => StatusRes,
    /// Returns a delegation.
    Delegreturn = 8 "DELEGRETURN" StateidArgs => StatusRes,
    /// Returns attributes.
    Getattr = 9 "GETATTR" GetattrArgs => OpRes<ObjectAttributes<'a>>,
    /// Returns the current handle.
    Getfh = 10 "GETFH" () => OpRes<HandleArgs<'a>>,
    /// Creates a hard link.
    Link = 11 "LINK" NameArgs<'a> => OpRes<ChangeOk>,
    /// Sets a byte-range lock.
    Lock = 12 "LOCK" LockArgs<'a> => LockRes<'a>,
    /// Tests for a byte-range lock.
    Lockt = 13 "LOCKT" LocktArgs<'a> => LocktRes<'a>,
    /// Removes a byte-range lock.
    Locku = 14 "LOCKU" LockuArgs => OpRes<StateidOk>,
    /// Looks up a name.
    Lookup = 15 "LOOKUP" NameArgs<'a> => StatusRes,
    /// Looks up the parent directory.
    Lookupp = 16 "LOOKUPP" () => StatusRes,
    /// Goes on if attributes differ.
    Nverify = 17 "NVERIFY" ObjectAttributes<'a> => StatusRes,
    /// Opens a file.
    Open = 18 "OPEN" OpenArgs<'a> => OpRes<OpenOk<'a>>,
    /// Opens the directory of named attributes.
    Openattr = 19 "OPENATTR" OpenattrArgs => StatusRes,
    /// NFSv4.0: confirms an open.
    OpenConfirm = 20 "OPEN_CONFIRM" OpenConfirmArgs => OpRes<StateidOk>,
    /// Reduces the access of an open.
    OpenDowngrade = 21 "OPEN_DOWNGRADE" OpenDowngradeArgs => OpRes<StateidOk>,
    /// Sets the current handle.
    Putfh = 22 "PUTFH" HandleArgs<'a> => StatusRes,
    /// Sets the current handle to the public handle.
    Putpubfh = 23 "PUTPUBFH" () => StatusRes,
    /// Sets the current handle to the root.
    Putrootfh = 24 "PUTROOTFH" () => StatusRes,
    /// Reads from a file.
    Read = 25 "READ" ReadArgs => OpRes<ReadOk<'a>>,
    /// Reads from a directory.
    Readdir = 26 "READDIR" ReaddirArgs => OpRes<ReaddirOk<'a>>,
    /// Reads a symbolic link.
    Readlink = 27 "READLINK" () => OpRes<ReadlinkOk<'a>>,
    /// Removes an object.
    Remove = 28 "REMOVE" NameArgs<'a> => OpRes<ChangeOk>,
    /// Renames an object.
    Rename = 29 "RENAME" RenameArgs<'a> => OpRes<RenameOk>,
    /// NFSv4.0: renews a lease.
    Renew = 30 "RENEW" ClientidArgs => StatusRes,
    /// Sets the current handle to the saved handle.
    Restorefh = 31 "RESTOREFH" () => StatusRes,
    /// Saves the current handle.
    Savefh = 32 "SAVEFH" () => StatusRes,
    /// Returns the security flavours of a name.
    Secinfo = 33 "SECINFO" NameArgs<'a> => OpRes<SecinfoOk<'a>>,
    /// Sets attributes.
    Setattr = 34 "SETATTR" SetattrArgs<'a> => SetattrRes,
    /// NFSv4.0: makes a client identity.
    Setclientid = 35 "SETCLIENTID" SetclientidArgs<'a> => SetclientidRes<'a>,
    /// NFSv4.0: confirms a client identity.
    SetclientidConfirm = 36 "SETCLIENTID_CONFIRM" SetclientidConfirm => StatusRes,
    /// Goes on if attributes are equal.
    Verify = 37 "VERIFY" ObjectAttributes<'a> => StatusRes,
    /// Writes to a file.
    Write = 38 "WRITE" WriteArgs<'a> => OpRes<WriteOk>,
    /// NFSv4.0: releases the state of an owner.
    ReleaseLockowner = 39 "RELEASE_LOCKOWNER" ReleaseLockownerArgs<'a> => StatusRes,
    /// Changes the credentials of callbacks.
    BackchannelCtl = 40 "BACKCHANNEL_CTL" BackchannelCtlArgs<'a> => StatusRes,
    /// Binds a connection to a session.
    BindConnToSession = 41 "BIND_CONN_TO_SESSION" BindConnArgs => OpRes<BindConnOk>,
    /// Makes a client identity.
    ExchangeId = 42 "EXCHANGE_ID" ExchangeIdArgs<'a> => OpRes<ExchangeIdOk<'a>>,
    /// Makes a session, and confirms a client identity.
    CreateSession = 43 "CREATE_SESSION" CreateSessionArgs<'a> => OpRes<CreateSessionOk>,
    /// Ends a session.
    DestroySession = 44 "DESTROY_SESSION" DestroySessionArgs => StatusRes,
    /// Frees a state without locks.
    FreeStateid = 45 "FREE_STATEID" StateidArgs => StatusRes,
    /// Asks for a directory delegation.
    GetDirDelegation = 46 "GET_DIR_DELEGATION" GetDirDelegationArgs => OpRes<DirDelegation>,
    /// pNFS: returns a device.
    Getdeviceinfo = 47 "GETDEVICEINFO" GetdeviceinfoArgs => GetdeviceinfoRes<'a>,
    /// pNFS: lists devices.
    Getdevicelist = 48 "GETDEVICELIST" GetdevicelistArgs => OpRes<GetdevicelistOk<'a>>,
    /// pNFS: commits writes by a layout.
    Layoutcommit = 49 "LAYOUTCOMMIT" LayoutcommitArgs<'a> => OpRes<LayoutcommitOk>,
    /// pNFS: returns a layout to the client.
    Layoutget = 50 "LAYOUTGET" LayoutgetArgs => LayoutgetRes<'a>,
    /// pNFS: returns a layout to the server.
    Layoutreturn = 51 "LAYOUTRETURN" LayoutreturnArgs<'a> => OpRes<Option<super::Stateid>>,
    /// Returns the security flavours of the current handle or of its parent.
    SecinfoNoName = 52 "SECINFO_NO_NAME" SecinfoStyle => OpRes<SecinfoOk<'a>>,
    /// Names the session and the slot of a request.
    Sequence = 53 "SEQUENCE" SequenceArgs => OpRes<SequenceOk>,
    /// Changes the secret state verifier.
    SetSsv = 54 "SET_SSV" SetSsvArgs<'a> => OpRes<SetSsvOk<'a>>,
    /// Tests states.
    TestStateid = 55 "TEST_STATEID" TestStateidArgs<'a> => OpRes<TestStateidOk<'a>>,
    /// Asks for a delegation.
    WantDelegation = 56 "WANT_DELEGATION" WantDelegationArgs => OpRes<Delegation<'a>>,
    /// Ends a client identity.
    DestroyClientid = 57 "DESTROY_CLIENTID" DestroyClientidArgs => StatusRes,
    /// Tells that the client has reclaimed everything.
    ReclaimComplete = 58 "RECLAIM_COMPLETE" ReclaimCompleteArgs => StatusRes,
    /// NFSv4.2: reserves space.
    Allocate = 59 "ALLOCATE" AllocateArgs => StatusRes,
    /// NFSv4.2: copies data.
    Copy = 60 "COPY" CopyArgs<'a> => CopyRes,
    /// NFSv4.2: announces a copy between servers.
    CopyNotify = 61 "COPY_NOTIFY" CopyNotifyArgs<'a> => OpRes<CopyNotifyOk<'a>>,
    /// NFSv4.2: makes a hole.
    Deallocate = 62 "DEALLOCATE" AllocateArgs => StatusRes,
    /// NFSv4.2: gives hints about future I/O.
    IoAdvise = 63 "IO_ADVISE" IoAdviseArgs => OpRes<IoAdviseOk>,
    /// pNFS: reports errors of devices.
    Layouterror = 64 "LAYOUTERROR" LayouterrorArgs<'a> => StatusRes,
    /// pNFS: reports statistics of devices.
    Layoutstats = 65 "LAYOUTSTATS" LayoutstatsArgs<'a> => StatusRes,
    /// NFSv4.2: cancels a copy.
    OffloadCancel = 66 "OFFLOAD_CANCEL" StateidArgs => StatusRes,
    /// NFSv4.2: returns the progress of a copy.
    OffloadStatus = 67 "OFFLOAD_STATUS" StateidArgs => OpRes<OffloadStatusOk>,
    /// NFSv4.2: reads data and holes.
    ReadPlus = 68 "READ_PLUS" ReadArgs => OpRes<ReadPlusOk<'a>>,
    /// NFSv4.2: finds data or a hole.
    Seek = 69 "SEEK" SeekArgs => OpRes<SeekOk>,
    /// NFSv4.2: writes a pattern.
    WriteSame = 70 "WRITE_SAME" WriteSameArgs<'a> => OpRes<WriteResponse>,
    /// NFSv4.2: clones data.
    Clone = 71 "CLONE" CloneArgs => StatusRes,
    /// RFC 8276: returns an extended attribute.
    Getxattr = 72 "GETXATTR" XattrNameArgs<'a> => OpRes<GetxattrOk<'a>>,
    /// RFC 8276: sets an extended attribute.
    Setxattr = 73 "SETXATTR" SetxattrArgs<'a> => OpRes<ChangeOk>,
    /// RFC 8276: lists extended attributes.
    Listxattrs = 74 "LISTXATTRS" ListxattrsArgs => OpRes<ListxattrsOk<'a>>,
    /// RFC 8276: removes an extended attribute.
    Removexattr = 75 "REMOVEXATTR" XattrNameArgs<'a> => OpRes<ChangeOk>,
    /// Any number that the minor version does not define.
    Illegal = 10044 "ILLEGAL" () => StatusRes,
}

impl Opcode {
    /// Returns the lowest minor version, 1 or 2, that defines the operation.
    #[must_use]
    pub const fn minor_version(self) -> u32 {
        match self as u32 {
            59..=75 => 2,
            _ => 1,
        }
    }

    /// Returns true for the operations of NFSv4.0 that NFSv4.1 answers with NFS4ERR_NOTSUPP.
    #[must_use]
    pub const fn is_obsolete(self) -> bool {
        matches!(
            self,
            Opcode::OpenConfirm
                | Opcode::Renew
                | Opcode::Setclientid
                | Opcode::SetclientidConfirm
                | Opcode::ReleaseLockowner
        )
    }
}
