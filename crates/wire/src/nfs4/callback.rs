//! Callbacks from the server to the client (RFC 8881, section 20; RFC 7862, section 16).

use super::bitmap::Bitmap;
use super::io::WriteResponse;
use super::layout::LayoutIomode;
use super::objects::ObjectAttributes;
use super::open::Delegation;
use super::results::{OpRes, StatusRes};
use super::status::Nfsstat4;
use super::types::{Fsid4, Handle, SessionId, StateOwner, Stateid};
use crate::array::Array;
use crate::xdr::{Decode, DecodeError, Encode, Reader};

/// Version of the callback program. The client chooses the program number.
pub const CB_VERSION: u32 = 1;
/// Most lists of referring calls, and most calls in a list; decoding fails above it.
pub const MAX_REFERRING: usize = 1024;
/// Most changes in a notification; decoding fails above it.
pub const MAX_NOTIFICATIONS: usize = 1024;

xdr_struct! {
    /// `CB_GETATTR4args`: the arguments of CB_GETATTR.
    pub struct CbGetattrArgs<'a> {
        /// The delegated file.
        pub fh: Handle<'a>,
        /// Attributes wanted.
        pub request: Bitmap,
    }
}

xdr_struct! {
    /// `CB_RECALL4args`: the arguments of CB_RECALL.
    pub struct CbRecallArgs<'a> {
        /// The delegation.
        pub stateid: Stateid,
        /// True if the file will be truncated to 0 bytes.
        pub truncate: bool,
        /// The delegated file.
        pub fh: Handle<'a>,
    }
}

xdr_struct! {
    /// `layoutrecall_file4`: a range of a file.
    pub struct LayoutrecallFile<'a> {
        /// The file.
        pub fh: Handle<'a>,
        /// Offset of the first byte.
        pub offset: u64,
        /// Number of bytes.
        pub length: u64,
        /// The layouts.
        pub stateid: Stateid,
    }
}

xdr_union! {
    /// `layoutrecall4`: the layouts that the server recalls.
    pub enum Layoutrecall<'a>("layoutrecall_type4") {
        /// Layouts of a file.
        File(file: LayoutrecallFile<'a>) = 1,
        /// Layouts of a file system.
        Fsid(fsid: Fsid4) = 2,
        /// All layouts.
        All = 3,
    }
}

xdr_struct! {
    /// `CB_LAYOUTRECALL4args`: the arguments of CB_LAYOUTRECALL.
    pub struct CbLayoutrecallArgs<'a> {
        /// Number of the layout type.
        pub layout_type: u32,
        /// Purpose.
        pub iomode: LayoutIomode,
        /// True if the layouts have changed.
        pub changed: bool,
        /// The layouts.
        pub recall: Layoutrecall<'a>,
    }
}

xdr_struct! {
    /// `notify4`: changes of a directory or of devices.
    pub struct Notify<'a> {
        /// Kinds of change.
        pub mask: Bitmap,
        /// The encoded changes.
        pub values: &'a [u8],
    }
}

xdr_struct! {
    /// `CB_NOTIFY4args`: the arguments of CB_NOTIFY.
    pub struct CbNotifyArgs<'a> {
        /// The directory delegation.
        pub stateid: Stateid,
        /// The directory.
        pub fh: Handle<'a>,
        /// The changes.
        pub changes: Array<'a, Notify<'a>, MAX_NOTIFICATIONS>,
    }
}

xdr_struct! {
    /// `CB_NOTIFY_DEVICEID4args`: the arguments of CB_NOTIFY_DEVICEID.
    pub struct CbNotifyDeviceidArgs<'a> {
        /// The changes.
        pub changes: Array<'a, Notify<'a>, MAX_NOTIFICATIONS>,
    }
}

xdr_struct! {
    /// `CB_PUSH_DELEG4args`: the arguments of CB_PUSH_DELEG.
    pub struct CbPushDelegArgs<'a> {
        /// The file.
        pub fh: Handle<'a>,
        /// The delegation.
        pub delegation: Delegation<'a>,
    }
}

/// Bit numbers of the kinds of state in CB_RECALL_ANY.
pub mod recall_any {
    /// Read delegations.
    pub const READ_DELEGATIONS: u32 = 0;
    /// Write delegations.
    pub const WRITE_DELEGATIONS: u32 = 1;
    /// Directory delegations.
    pub const DIR_DELEGATIONS: u32 = 2;
    /// Layouts of files.
    pub const FILE_LAYOUTS: u32 = 3;
}

xdr_struct! {
    /// The arguments of CB_RECALL_ANY and CB_RECALLABLE_OBJ_AVAIL.
    pub struct CbRecallAnyArgs {
        /// Number of delegations and layouts that the client may keep.
        pub objects_to_keep: u32,
        /// Bits of [`recall_any`].
        pub type_mask: Bitmap,
    }
}

xdr_struct! {
    /// `CB_RECALL_SLOT4args`: the arguments of CB_RECALL_SLOT.
    pub struct CbRecallSlotArgs {
        /// Highest slot that the client shall use.
        pub target_highest_slot: u32,
    }
}

xdr_struct! {
    /// `referring_call4`: a request to which a callback refers.
    pub struct ReferringCall {
        /// Sequence number of the slot.
        pub sequence: u32,
        /// The slot.
        pub slot: u32,
    }
}

xdr_struct! {
    /// `referring_call_list4`: the requests of one session to which a callback refers.
    pub struct ReferringCallList<'a> {
        /// The session.
        pub sessionid: SessionId,
        /// The requests.
        pub calls: Array<'a, ReferringCall, MAX_REFERRING>,
    }
}

xdr_struct! {
    /// `CB_SEQUENCE4args`: the arguments of CB_SEQUENCE.
    pub struct CbSequenceArgs<'a> {
        /// The session.
        pub sessionid: SessionId,
        /// Sequence number of the slot.
        pub sequence: u32,
        /// The slot.
        pub slot: u32,
        /// Highest slot that the server uses.
        pub highest_slot: u32,
        /// True if the client shall keep the reply for a retry.
        pub cache_this: bool,
        /// Requests that the client must have finished before it executes the callback.
        pub referring: Array<'a, ReferringCallList<'a>, MAX_REFERRING>,
    }
}

xdr_struct! {
    /// `CB_SEQUENCE4resok`: the successful result of CB_SEQUENCE.
    pub struct CbSequenceOk {
        /// The session.
        pub sessionid: SessionId,
        /// Sequence number of the slot.
        pub sequence: u32,
        /// The slot.
        pub slot: u32,
        /// Highest slot that the client accepts.
        pub highest_slot: u32,
        /// Highest slot that the server should use.
        pub target_highest_slot: u32,
    }
}

xdr_struct! {
    /// `CB_WANTS_CANCELLED4args`: the arguments of CB_WANTS_CANCELLED.
    pub struct CbWantsCancelledArgs {
        /// True if the server forgets wants that failed for contention.
        pub contended: bool,
        /// True if the server forgets wants that failed for resources.
        pub resourced: bool,
    }
}

xdr_struct! {
    /// `CB_NOTIFY_LOCK4args`: the arguments of CB_NOTIFY_LOCK.
    pub struct CbNotifyLockArgs<'a> {
        /// The file.
        pub fh: Handle<'a>,
        /// Owner that waits for the lock.
        pub lock_owner: StateOwner<'a>,
    }
}

/// `offload_info4`: the outcome of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(arbitrary::Arbitrary))]
pub enum OffloadInfo {
    /// The copy has succeeded.
    Done(WriteResponse),
    /// The copy has failed.
    Failed {
        /// Any status except [`Nfsstat4::Ok`].
        status: Nfsstat4,
        /// Bytes copied before the failure.
        bytes_copied: u64,
    },
}

impl Encode for OffloadInfo {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            OffloadInfo::Done(response) => {
                Nfsstat4::Ok.encode(out);
                response.encode(out);
            }
            OffloadInfo::Failed { status, bytes_copied } => {
                status.encode(out);
                bytes_copied.encode(out);
            }
        }
    }
}

impl<'a> Decode<'a> for OffloadInfo {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match Nfsstat4::decode(input)? {
            Nfsstat4::Ok => Decode::decode(input).map(Self::Done),
            status => Ok(Self::Failed { status, bytes_copied: input.u64()? }),
        }
    }
}

xdr_struct! {
    /// `CB_OFFLOAD4args`: the arguments of CB_OFFLOAD.
    pub struct CbOffloadArgs<'a> {
        /// Destination of the copy.
        pub fh: Handle<'a>,
        /// Identity of the copy.
        pub stateid: Stateid,
        /// Outcome of the copy.
        pub info: OffloadInfo,
    }
}

operations! {
    /// `nfs_cb_opnum4`: the number of a callback operation.
    numbers CbOpcode("nfs_cb_opnum4");
    /// `nfs_cb_argop4`: the arguments of a callback operation.
    arguments CbOp<'a>;
    /// `nfs_cb_resop4`: the result of a callback operation.
    results CbResult<'a>;

    /// Returns attributes of a delegated file.
    Getattr = 3 "CB_GETATTR" CbGetattrArgs<'a> => OpRes<ObjectAttributes<'a>>,
    /// Recalls a delegation.
    Recall = 4 "CB_RECALL" CbRecallArgs<'a> => StatusRes,
    /// Recalls layouts.
    Layoutrecall = 5 "CB_LAYOUTRECALL" CbLayoutrecallArgs<'a> => StatusRes,
    /// Tells changes of a directory.
    Notify = 6 "CB_NOTIFY" CbNotifyArgs<'a> => StatusRes,
    /// Grants a delegation.
    PushDeleg = 7 "CB_PUSH_DELEG" CbPushDelegArgs<'a> => StatusRes,
    /// Asks for the return of some delegations or layouts.
    RecallAny = 8 "CB_RECALL_ANY" CbRecallAnyArgs => StatusRes,
    /// Tells that resources are available.
    RecallableObjAvail = 9 "CB_RECALLABLE_OBJ_AVAIL" CbRecallAnyArgs => StatusRes,
    /// Asks for the return of slots.
    RecallSlot = 10 "CB_RECALL_SLOT" CbRecallSlotArgs => StatusRes,
    /// Names the session and the slot of a callback.
    Sequence = 11 "CB_SEQUENCE" CbSequenceArgs<'a> => OpRes<CbSequenceOk>,
    /// Tells that wants are forgotten.
    WantsCancelled = 12 "CB_WANTS_CANCELLED" CbWantsCancelledArgs => StatusRes,
    /// Tells that a lock may be available.
    NotifyLock = 13 "CB_NOTIFY_LOCK" CbNotifyLockArgs<'a> => StatusRes,
    /// Tells changes of devices.
    NotifyDeviceid = 14 "CB_NOTIFY_DEVICEID" CbNotifyDeviceidArgs<'a> => StatusRes,
    /// NFSv4.2: tells the outcome of a copy.
    Offload = 15 "CB_OFFLOAD" CbOffloadArgs<'a> => StatusRes,
    /// Any number that is not defined.
    Illegal = 10044 "CB_ILLEGAL" () => StatusRes,
}

impl CbOpcode {
    /// Returns the lowest minor version, 1 or 2, that defines the operation.
    #[must_use]
    pub const fn minor_version(self) -> u32 {
        if matches!(self, CbOpcode::Offload) { 2 } else { 1 }
    }
}
