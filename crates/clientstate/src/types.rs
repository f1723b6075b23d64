//! Identifiers, bounded byte strings, ranges and shares.

use std::sync::Arc;

use crate::Error;

/// A time in nanoseconds on a clock that never goes back. The caller says the time in each call.
pub type Now = u64;

/// One second of [`Now`].
pub const SECOND: u64 = 1_000_000_000;

/// The server's name for a client record (`clientid4`): the epoch that gave it in the high half, a counter in the low.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// The name of a session (`sessionid4`): half a number, half random bytes, so that no client can guess it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub [u8; 16]);

/// The opaque part of a state id: the epoch that gave it, then a counter.
pub type Other = [u8; 12];

/// A transport connection, as the caller numbers it.
pub type Connection = u64;

/// A request in a slot of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// The session.
    pub session: SessionId,
    /// The slot.
    pub slot: u32,
    /// The sequence number.
    pub sequence: u32,
}

/// A state id (`stateid4`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId {
    /// The version of the state; 0 in a request means the current one.
    pub seqid: u32,
    /// The state.
    pub other: Other,
}

impl StateId {
    /// The special state id of a request without any state.
    pub const ANONYMOUS: StateId = StateId { seqid: 0, other: [0; 12] };
    /// The special state id of a READ that ignores locks and shares.
    pub const BYPASS: StateId = StateId { seqid: u32::MAX, other: [0xff; 12] };
    /// The state id in the answer to CLOSE: no request may use it.
    pub const INVALID: StateId = StateId { seqid: u32::MAX, other: [0; 12] };

    pub(crate) fn is_reserved(&self) -> bool {
        self.other == [0; 12] || self.other == [0xff; 12]
    }
}

/// Defines a byte string of bounded length that is cheap to clone.
macro_rules! bounded {
    ($name:ident, $max:literal, $doc:literal) => {
        #[doc = $doc]
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<[u8]>);

        impl $name {
            /// The longest length in bytes.
            pub const MAX: usize = $max;

            /// Returns `None` for a string that is too long.
            pub fn new(bytes: &[u8]) -> Option<Self> {
                (bytes.len() <= Self::MAX).then(|| Self(bytes.into()))
            }

            /// Returns the bytes.
            pub fn as_bytes(&self) -> &[u8] {
                &self.0
            }
        }

        impl std::ops::Deref for $name {
            type Target = [u8];

            fn deref(&self) -> &[u8] {
                &self.0
            }
        }

        // A table is searched for bytes without a value of this type, which would be an allocation.
        impl std::borrow::Borrow<[u8]> for $name {
            fn borrow(&self) -> &[u8] {
                &self.0
            }
        }
    };
}

bounded!(
    OwnerName,
    1024,
    "The name that a client gives itself, an open owner or a lock owner (`NFS4_OPAQUE_LIMIT`)."
);
bounded!(Principal, 512, "The authenticated caller of a request, in any form that can be compared.");
bounded!(HostName, 1024, "The caller name of an NLM host.");
bounded!(Address, 32, "The network address of an NLM host, without a port.");
bounded!(Cookie, 1024, "The cookie of an NLM request, which its GRANTED call-back repeats.");

/// The kind of a byte-range lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
}

/// The bytes that a lock covers, both ends included. A `last` of `u64::MAX` means the end of the file, wherever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    /// The first byte.
    pub first: u64,
    /// The last byte.
    pub last: u64,
}

impl Range {
    /// Returns the range of an NFSv4 request. A length of all ones reaches to the end of the file.
    pub fn v4(offset: u64, length: u64) -> Result<Range, Error> {
        match length {
            0 => Err(Error::Inval),
            u64::MAX => Ok(Range { first: offset, last: u64::MAX }),
            _ => offset.checked_add(length - 1).map(|last| Range { first: offset, last }).ok_or(Error::Inval),
        }
    }

    /// Returns the range of an NLM request. A length of 0, or one beyond the last offset, reaches to the end of the
    /// file.
    pub fn nlm(offset: u64, length: u64) -> Range {
        let last = if length == 0 { u64::MAX } else { offset.saturating_add(length - 1) };
        Range { first: offset, last }
    }

    /// Returns offset and length as NFSv4 writes them.
    pub fn to_v4(self) -> (u64, u64) {
        (self.first, if self.last == u64::MAX { u64::MAX } else { self.last - self.first + 1 })
    }

    /// Returns offset and length as NLM writes them.
    pub fn to_nlm(self) -> (u64, u64) {
        (self.first, if self.last == u64::MAX { 0 } else { self.last - self.first + 1 })
    }

    pub(crate) fn overlaps(self, range: Range) -> bool {
        self.first <= range.last && range.first <= self.last
    }
}

/// Access to a file and what an open denies to everybody else: bits [`READ`] and [`WRITE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Share {
    /// The access of the open.
    pub access: u8,
    /// The access that other opens may not have.
    pub deny: u8,
}

/// The bit of [`Share`] for reading.
pub const READ: u8 = 1;
/// The bit of [`Share`] for writing.
pub const WRITE: u8 = 2;

impl Share {
    /// Returns an error for an open without access, and for unknown bits.
    pub fn new(access: u32, deny: u32) -> Result<Share, Error> {
        match (access, deny) {
            (1..=3, 0..=3) => Ok(Share { access: access as u8, deny: deny as u8 }),
            _ => Err(Error::Inval),
        }
    }

    pub(crate) fn union(self, share: Share) -> Share {
        Share { access: self.access | share.access, deny: self.deny | share.deny }
    }
}

/// The holder of a lock that is in the way, for DENIED.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The range of the lock.
    pub range: Range,
    /// Its kind.
    pub kind: LockKind,
    /// Its owner.
    pub owner: LockOwner,
}

/// The owner of a lock: an NFSv4 lock owner, or an NLM owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockOwner {
    /// A lock owner of an NFSv4 client.
    V4(ClientId, OwnerName),
    /// A process on an NLM host.
    Nlm(NlmOwner),
}

/// The owner of NLM locks: a process on a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NlmOwner {
    /// The host.
    pub host: HostKey,
    /// The opaque owner handle.
    pub opaque: OwnerName,
    /// The number that tells processes apart.
    pub svid: i32,
}

/// An NLM host: the name that it says, at the address from which it calls. So a forged name at another address is
/// another host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostKey {
    /// The caller name.
    pub name: HostName,
    /// The address.
    pub address: Address,
}
