//! The channels of a session: sizes, flags, directions.

use crate::{Error, Limits, REPLY_MAX};

/// The flag of CREATE_SESSION for a reply cache that survives a restart of the server.
pub const PERSIST: u32 = 1;
/// The flag of CREATE_SESSION for call-backs over the same connection.
pub const CONN_BACK_CHAN: u32 = 2;

/// Status flags of SEQUENCE (`SEQ4_STATUS_*`).
///
/// `RESTART_RECLAIM_NEEDED` is never set: a server that has lost its log has lost the sessions as well.
/// `EXPIRED_ALL_STATE_REVOKED` and `EXPIRED_SOME_STATE_REVOKED` are never set: an expired client loses its record and
/// its sessions with its state, and gets `BadSession`.
pub mod status {
    /// No session of the client has a working back channel.
    pub const CB_PATH_DOWN: u32 = 0x1;
    /// An administrator has revoked state.
    pub const ADMIN_STATE_REVOKED: u32 = 0x20;
    /// A delegation was revoked.
    pub const RECALLABLE_STATE_REVOKED: u32 = 0x40;
    /// This session has no working back channel.
    pub const CB_PATH_DOWN_SESSION: u32 = 0x200;
    /// The back channel of this session cannot work again: the client has to make a new session.
    pub const BACKCHANNEL_FAULT: u32 = 0x400;
}

/// The attributes of a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Channel {
    /// The longest request in bytes.
    pub max_request: u32,
    /// The longest reply in bytes.
    pub max_response: u32,
    /// The longest reply that is kept, in bytes.
    pub max_cached: u32,
    /// Operations of a request.
    pub operations: u32,
    /// Slots.
    pub slots: u32,
}

impl Channel {
    /// The smallest size that holds a request of SEQUENCE and one more operation, with a short credential.
    const SMALLEST: u32 = 256;

    /// Returns what the server grants of a fore channel that a client asks for.
    pub(crate) fn fore(self, limits: &Limits) -> Result<Channel, Error> {
        if self.max_request < Self::SMALLEST || self.max_response < Self::SMALLEST {
            return Err(Error::TooSmall);
        }
        if self.slots == 0 || self.operations == 0 {
            return Err(Error::Inval);
        }
        Ok(Channel {
            max_request: self.max_request.min(limits.message),
            max_response: self.max_response.min(limits.message),
            max_cached: self.max_cached.min(limits.cached_reply.min(REPLY_MAX as u32)),
            operations: self.operations.min(limits.operations),
            slots: self.slots.min(limits.slots.clamp(1, 1 << 16)),
        })
    }

    /// Returns the server's use of a back channel: call-backs are small, and 16 slots are enough.
    pub(crate) fn back(self) -> Result<Channel, Error> {
        if self.max_request < Self::SMALLEST || self.max_response < Self::SMALLEST {
            return Err(Error::TooSmall);
        }
        if self.slots == 0 || self.operations < 2 {
            return Err(Error::Inval);
        }
        Ok(Channel { slots: self.slots.min(16), operations: self.operations.min(16), ..self })
    }
}

/// The directions of a connection in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directions {
    /// Requests of the client.
    pub fore: bool,
    /// Call-backs of the server.
    pub back: bool,
}
