//! The header: the first block of every segment.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::{is_zero, seal, sealed};
use super::limits::{DEVICES_MAX, Invalid, VERSION};
use crate::buffer::BLOCK;

const MAGIC: [u8; 8] = *b"FBYSEGMT";
/// Stands for a device and a segment if there is no other leg.
const NO_DEVICE: u16 = u16::MAX;
const NO_SEGMENT: u32 = u32::MAX;

/// The kind of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SegmentKind {
    /// Frames of the log, on two devices if the pool has two.
    Log,
    /// Clean copies, on one device.
    Clean,
}

/// The place of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The member's index: below [`DEVICES_MAX`].
    pub device: u16,
    /// The segment's number on that device, from 0.
    pub segment: u32,
}

/// The first block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The pool's UUID.
    pub pool: u128,
    /// The pool's epoch when the segment was opened.
    pub epoch: u64,
    /// The segment's number, which grows by every segment opened, for the pool's whole life. Both legs have one
    /// number.
    pub seq: u64,
    /// The place in the order of eviction: the segment's own `seq`, or for a clean segment that of the log segment
    /// then open.
    pub position: u64,
    /// The kind of the segment.
    pub kind: SegmentKind,
    /// The place of this leg.
    pub here: Place,
    /// The place of the other leg, if there is one.
    pub peer: Option<Place>,
    /// For a log segment: the number of its first frame.
    pub first_frame: u64,
    /// For a log segment: the `seq` of the log segment before it; 0 if it is the first.
    pub previous: u64,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Raw {
    magic: [u8; 8],
    checksum: U64,
    version: U16,
    kind: U16,
    here_device: U16,
    peer_device: U16,
    here_segment: U32,
    peer_segment: U32,
    pool: U128,
    epoch: U64,
    seq: U64,
    position: U64,
    first_frame: U64,
    previous: U64,
}

const _: () = {
    assert!(offset_of!(Raw, checksum) == 8);
    assert!(offset_of!(Raw, version) == 16);
    assert!(offset_of!(Raw, here_segment) == 24);
    assert!(offset_of!(Raw, pool) == 32);
    assert!(offset_of!(Raw, epoch) == 48);
    assert!(offset_of!(Raw, first_frame) == 72);
    assert!(offset_of!(Raw, previous) == 80);
    assert!(size_of::<Raw>() == 88);
};

impl SegmentHeader {
    /// Makes `block` this header.
    ///
    /// # Errors
    /// A device index out of range, both legs on one device, or a clean segment with two legs.
    ///
    /// # Panics
    /// If `block` is not one block long.
    pub fn encode(&self, block: &mut [u8]) -> Result<(), Invalid> {
        self.check()?;
        assert_eq!(block.len(), BLOCK, "a header is one block");
        let peer = self.peer.unwrap_or(Place { device: NO_DEVICE, segment: NO_SEGMENT });
        let raw = Raw {
            magic: MAGIC,
            checksum: U64::ZERO,
            version: VERSION.into(),
            kind: kind_to_raw(self.kind).into(),
            here_device: self.here.device.into(),
            peer_device: peer.device.into(),
            here_segment: self.here.segment.into(),
            peer_segment: peer.segment.into(),
            pool: self.pool.into(),
            epoch: self.epoch.into(),
            seq: self.seq.into(),
            position: self.position.into(),
            first_frame: self.first_frame.into(),
            previous: self.previous.into(),
        };
        block.fill(0);
        block[..size_of::<Raw>()].copy_from_slice(raw.as_bytes());
        seal(MAGIC, block);
        Ok(())
    }

    /// Returns the header in `block`, which was read from the front of segment `here` of pool `pool`. Returns `None`
    /// if the block holds no header, a damaged one, or one that belongs somewhere else.
    pub fn decode(block: &[u8], pool: u128, here: Place) -> Option<Self> {
        if !sealed(MAGIC, block) {
            return None;
        }
        let (raw, rest) = Raw::ref_from_prefix(block).ok()?;
        let peer = match (raw.peer_device.get(), raw.peer_segment.get()) {
            (NO_DEVICE, NO_SEGMENT) => None,
            (device, segment) => Some(Place { device, segment }),
        };
        let header = SegmentHeader {
            pool: raw.pool.get(),
            epoch: raw.epoch.get(),
            seq: raw.seq.get(),
            position: raw.position.get(),
            kind: kind_from_raw(raw.kind.get())?,
            here: Place { device: raw.here_device.get(), segment: raw.here_segment.get() },
            peer,
            first_frame: raw.first_frame.get(),
            previous: raw.previous.get(),
        };
        let right =
            raw.version.get() == VERSION && header.pool == pool && header.here == here && is_zero(rest);
        (right && header.check().is_ok()).then_some(header)
    }

    /// Refuses a header whose places or kind contradict each other.
    fn check(&self) -> Result<(), Invalid> {
        let known = |place: Place| usize::from(place.device) < DEVICES_MAX && place.segment != NO_SEGMENT;
        if !known(self.here) || !self.peer.is_none_or(known) {
            return Err(Invalid("a segment on a device that no pool has"));
        }
        if self.peer.is_some_and(|peer| peer.device == self.here.device) {
            return Err(Invalid("both legs of a segment on one device"));
        }
        if self.kind == SegmentKind::Clean && self.peer.is_some() {
            return Err(Invalid("a clean segment with two legs"));
        }
        Ok(())
    }
}

/// Returns the number of a kind on the devices.
fn kind_to_raw(kind: SegmentKind) -> u16 {
    match kind {
        SegmentKind::Log => 1,
        SegmentKind::Clean => 2,
    }
}

/// Returns the kind with a number on the devices; `None` if there is none.
fn kind_from_raw(raw: u16) -> Option<SegmentKind> {
    match raw {
        1 => Some(SegmentKind::Log),
        2 => Some(SegmentKind::Clean),
        _ => None,
    }
}
