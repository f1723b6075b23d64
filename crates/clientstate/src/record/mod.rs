//! Durable records: the state that has to survive a crash.
//!
//! A record states a result in absolute terms. So replaying a sequence of records twice gives the same state as once.

mod decode;
mod encode;

use crate::session::Channel;
use crate::{
    Address, ClientId, FileKey, HostKey, LockKind, NlmOwner, Other, OwnerName, Principal, Range, SessionId,
    Share,
};

pub use decode::{KeyOf, decode_all};
pub use encode::encode_all;

/// The longest encoding of a record in bytes.
pub const RECORD_MAX: usize = 3_980;

/// One change of the state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Record {
    /// A client was confirmed, or its record was updated.
    Client {
        /// The client.
        id: ClientId,
        /// The client's name for itself.
        owner: OwnerName,
        /// The verifier, which changes when the client restarts.
        verifier: [u8; 8],
        /// The caller that made the record.
        principal: Principal,
        /// The sequence number of its last CREATE_SESSION.
        sequence: u32,
    },
    /// A client is gone, with its sessions and its state.
    ClientRemoved(ClientId),
    /// A client has said RECLAIM_COMPLETE.
    ReclaimComplete(ClientId),
    /// A session was created.
    Session {
        /// The session.
        id: SessionId,
        /// Its client.
        client: ClientId,
        /// The sequence number of CREATE_SESSION.
        sequence: u32,
        /// The granted flags.
        flags: u32,
        /// The fore channel.
        fore: Channel,
        /// The back channel.
        back: Channel,
    },
    /// A session is gone, with its slots.
    SessionDestroyed(SessionId),
    /// The last reply of a slot.
    Reply(SlotReply),
    /// A session has no slots from this one on.
    SlotsDropped(SessionId, u32),
    /// The sequence number of the last call-back in a slot of the back channel.
    Callback(SessionId, u32, u32),
    /// An open and its present share.
    Open {
        /// The state and its version.
        other: Other,
        /// The version.
        seqid: u32,
        /// The client.
        client: ClientId,
        /// The open owner.
        owner: OwnerName,
        /// The file.
        file: FileKey,
        /// The share.
        share: Share,
        /// The shares to which OPEN_DOWNGRADE may return: a bit for each value of access, and of deny.
        seen: (u8, u8),
    },
    /// An open is closed, and the lock states that began with it are gone.
    Close(Other),
    /// A lock of an NFSv4 owner.
    Lock {
        /// The lock state.
        other: Other,
        /// Its version.
        seqid: u32,
        /// The open that the lock state belongs to.
        open: Other,
        /// The lock owner.
        owner: OwnerName,
        /// The range; `None` for a lock state without a lock.
        range: Option<(Range, LockKind)>,
    },
    /// A range of a lock state is free.
    Unlock {
        /// The lock state.
        other: Other,
        /// Its version.
        seqid: u32,
        /// The range.
        range: Range,
    },
    /// A lock state is gone.
    LockStateFreed(Other),
    /// A delegation was granted.
    Delegation {
        /// The delegation.
        other: Other,
        /// Its version.
        seqid: u32,
        /// The client.
        client: ClientId,
        /// The file.
        file: FileKey,
        /// True for a write delegation.
        write: bool,
    },
    /// A delegation was returned or revoked.
    DelegationReturned(Other),
    /// A copy goes on after the reply to its COPY.
    Copy {
        /// The copy.
        other: Other,
        /// The client.
        client: ClientId,
        /// The file that is written.
        file: FileKey,
    },
    /// A copy was cancelled, or its client is told of the end.
    CopyEnded(Other),
    /// An NLM host and its state number.
    Host(HostKey, i32),
    /// An NLM host has no locks and shares left.
    HostFreed(HostKey),
    /// A lock of an NLM owner; `None` for a free range.
    NlmLock(NlmOwner, FileKey, Range, Option<LockKind>),
    /// The share of an NLM owner; `None` if it has none.
    NlmShare(NlmOwner, FileKey, Option<Share>),
}

/// The last reply of a slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotReply {
    /// The session.
    pub session: SessionId,
    /// The slot.
    pub slot: u32,
    /// The sequence number of the request.
    pub sequence: u32,
    /// The digest of the request.
    pub digest: u64,
    /// The answer to a retransmission.
    pub reply: Kept,
}

/// The answer to a retransmission of a slot's last request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// The request may be carried out again: it changes nothing, or was still running.
    Repeatable,
    /// The reply was not kept, and the request may not be carried out again.
    Not,
    /// This reply.
    Bytes(Vec<u8>),
}

impl HostKey {
    /// Returns `None` for a name or an address that is too long.
    pub fn new(name: &[u8], address: &[u8]) -> Option<HostKey> {
        Some(HostKey { name: crate::HostName::new(name)?, address: Address::new(address)? })
    }
}

impl Record {
    /// Returns the number of the instance that gave the client, session or state of this record its id; 0 if the record
    /// gives no id.
    pub fn epoch(&self) -> u32 {
        let of = |id: &[u8]| id.first_chunk().map_or(0, |epoch| u32::from_be_bytes(*epoch));
        match self {
            Record::Client { id, .. } => (id.0 >> 32) as u32,
            Record::Session { id, .. } => of(&id.0),
            Record::Open { other, .. } | Record::Lock { other, .. } => of(other),
            Record::Delegation { other, .. } | Record::Copy { other, .. } => of(other),
            _ => 0,
        }
    }
}
