//! An export as one connection has it: the device, and the results of the negotiation.

use std::sync::Arc;

use forebay_volume::disk::{Disk, Extent, Shape};
use forebay_wire::nbd::{BASE_ALLOCATION, MAX_PAYLOAD, Style, allocation, transmission};

/// The metadata context that says which blocks are in the cache. Bit 0: cached; bit 1: dirty.
pub const CACHE_CONTEXT: &str = "forebay:cache";

const CACHED: u64 = 1;
const DIRTY: u64 = 2;

/// A metadata context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Context {
    Allocation,
    Cache,
}

impl Context {
    pub(crate) const ALL: [Self; 2] = [Self::Allocation, Self::Cache];

    /// Returns the name by which clients select the context.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Allocation => BASE_ALLOCATION,
            Self::Cache => CACHE_CONTEXT,
        }
    }

    /// Returns the number of the context in replies.
    pub(crate) fn id(self) -> u32 {
        self as u32 + 1
    }

    /// Returns the status of an extent in this context.
    pub(crate) fn status(self, extent: &Extent) -> u64 {
        let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
        match self {
            Self::Allocation => flag(extent.hole, allocation::HOLE) | flag(extent.zero, allocation::ZERO),
            Self::Cache => flag(extent.cached, CACHED) | flag(extent.dirty, DIRTY),
        }
    }
}

/// A device with the forms of requests and replies that a client has negotiated.
pub(crate) struct Export {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) style: Style,
    /// The selected metadata contexts, in the order of [`Context::ALL`].
    pub(crate) contexts: Vec<Context>,
    /// The shape at the negotiation. Only the size may have changed since.
    pub(crate) shape: Shape,
}

impl Export {
    /// Returns an export for one connection. The connection uses the shape of this moment, apart from the size.
    pub(crate) fn new(disk: Arc<dyn Disk>, style: Style, contexts: Vec<Context>) -> Self {
        let shape = disk.shape();
        Self { disk, style, contexts, shape }
    }

    /// Returns the size now in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.disk.shape().size
    }

    /// Returns the largest payload in bytes.
    pub(crate) fn maximum(&self) -> u32 {
        maximum(&self.shape)
    }
}

/// Returns the largest payload in bytes for a device.
pub(crate) fn maximum(shape: &Shape) -> u32 {
    // The protocol demands at least the preferred block.
    shape.maximum_payload.min(MAX_PAYLOAD).max(shape.preferred_block)
}

/// Returns the transmission flags of a device.
pub(crate) fn flags(shape: &Shape, style: Style) -> u16 {
    use transmission::{
        CAN_MULTI_CONN, HAS_FLAGS, READ_ONLY, ROTATIONAL, SEND_CACHE, SEND_DF, SEND_FAST_ZERO, SEND_FLUSH,
        SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES,
    };
    let all = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_CACHE | CAN_MULTI_CONN;
    let changes = SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO;
    all | if shape.read_only { READ_ONLY } else { changes }
        | if shape.rotational { ROTATIONAL } else { 0 }
        | if style == Style::Simple { 0 } else { SEND_DF }
}
