//! Byte-range locks (RFC 8881, sections 18.10 to 18.12).

use super::types::{StateOwner, Stateid};
use crate::xdr::{Decode, DecodeError, Encode, Reader};

xdr_enum! {
    /// `nfs_lock_type4`: the type of a lock.
    pub enum LockType("nfs_lock_type4") {
        /// Shared.
        Read = 1,
        /// Exclusive.
        Write = 2,
        /// Shared; the client will wait for it.
        ReadWait = 3,
        /// Exclusive; the client will wait for it.
        WriteWait = 4,
    }
}

impl LockType {
    /// Returns true for an exclusive lock.
    #[must_use]
    pub const fn is_exclusive(self) -> bool {
        matches!(self, LockType::Write | LockType::WriteWait)
    }

    /// Returns true if the client will wait for the lock.
    #[must_use]
    pub const fn waits(self) -> bool {
        matches!(self, LockType::ReadWait | LockType::WriteWait)
    }
}

xdr_struct! {
    /// `open_to_lock_owner4`: the first lock of an owner by an open.
    pub struct OpenToLockOwner<'a> {
        /// Sequence number of NFSv4.0; NFSv4.1 ignores it.
        pub open_seqid: u32,
        /// The open.
        pub open_stateid: Stateid,
        /// Sequence number of NFSv4.0; NFSv4.1 ignores it.
        pub lock_seqid: u32,
        /// Owner of the lock.
        pub lock_owner: StateOwner<'a>,
    }
}

xdr_struct! {
    /// `exist_lock_owner4`: a further lock of an owner.
    pub struct ExistLockOwner {
        /// The owner's locks.
        pub lock_stateid: Stateid,
        /// Sequence number of NFSv4.0; NFSv4.1 ignores it.
        pub lock_seqid: u32,
    }
}

/// `locker4`: the owner of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(test, derive(arbitrary::Arbitrary))]
pub enum Locker<'a> {
    /// The first lock of an owner by an open.
    New(OpenToLockOwner<'a>),
    /// A further lock of an owner.
    Existing(ExistLockOwner),
}

impl Encode for Locker<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Locker::New(owner) => {
                true.encode(out);
                owner.encode(out);
            }
            Locker::Existing(owner) => {
                false.encode(out);
                owner.encode(out);
            }
        }
    }
}

impl<'a> Decode<'a> for Locker<'a> {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        if input.bool()? {
            Decode::decode(input).map(Self::New)
        } else {
            Decode::decode(input).map(Self::Existing)
        }
    }
}

xdr_struct! {
    /// `LOCK4args`: the arguments of LOCK.
    pub struct LockArgs<'a> {
        /// Type of the lock.
        pub locktype: LockType,
        /// True if the client reclaims the lock after a restart of the server.
        pub reclaim: bool,
        /// First byte.
        pub offset: u64,
        /// Number of bytes; [`super::TO_END`] means to the end of the file.
        pub length: u64,
        /// Owner of the lock.
        pub locker: Locker<'a>,
    }
}

xdr_struct! {
    /// `LOCK4denied`: the lock that is in the way.
    pub struct LockDenied<'a> {
        /// First byte.
        pub offset: u64,
        /// Number of bytes.
        pub length: u64,
        /// Type of the lock.
        pub locktype: LockType,
        /// Owner of the lock.
        pub owner: StateOwner<'a>,
    }
}

xdr_struct! {
    /// `LOCKT4args`: the arguments of LOCKT.
    pub struct LocktArgs<'a> {
        /// Type of the lock.
        pub locktype: LockType,
        /// First byte.
        pub offset: u64,
        /// Number of bytes; [`super::TO_END`] means to the end of the file.
        pub length: u64,
        /// Owner that asks.
        pub owner: StateOwner<'a>,
    }
}

xdr_struct! {
    /// `LOCKU4args`: the arguments of LOCKU.
    pub struct LockuArgs {
        /// Type of the lock; the server ignores it.
        pub locktype: LockType,
        /// Sequence number of NFSv4.0; NFSv4.1 ignores it.
        pub seqid: u32,
        /// The owner's locks.
        pub lock_stateid: Stateid,
        /// First byte.
        pub offset: u64,
        /// Number of bytes; [`super::TO_END`] means to the end of the file.
        pub length: u64,
    }
}
