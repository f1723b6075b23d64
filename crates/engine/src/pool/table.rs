//! The table of members.

use std::sync::Arc;

use super::error::{Notice, Uuid};
use super::geometry::{Copy, segment_offset};
use super::superblock::{OWNER_MAX, State};
use super::watched::WitnessRecord;
use crate::buffer::BLOCK;
use crate::format::SegmentId;
use crate::io::Device;
use crate::segments::Reach;

/// A pool whose members are known.
#[derive(Debug)]
pub struct Pool {
    /// The pool's UUID.
    pub uuid: u128,
    /// The epoch, which [`Pool::open_epoch`] increases before anything is written.
    pub epoch: u64,
    /// Bytes of a segment, on all devices: a power of two from 1 to 64 MiB.
    pub segment_size: u32,
    /// The members; each is at its own index.
    pub members: Vec<Member>,
    /// Findings that did not prevent the opening.
    pub notices: Vec<Notice>,
    pub(super) in_use: u64,
    pub(super) generation: u64,
    pub(super) optional: u64,
    pub(super) reach: Reach,
    pub(super) newest: u64,
    pub(super) durable: u64,
    pub(super) owner: Vec<u8>,
    pub(super) watched: WitnessRecord,
    /// UUIDs of devices that could not be added. No data on them counts.
    pub(super) refused: Vec<u128>,
}

/// A member of a pool.
#[derive(Clone)]
pub struct Member {
    /// The device's UUID.
    pub uuid: u128,
    /// The member's place in [`Pool::members`], and in the headers of segments.
    pub index: u16,
    /// Number of segments of the device.
    pub segments: u32,
    /// The member's state.
    pub state: State,
    /// The epoch since which the member has its state. On an active device no segment with a lower epoch in its
    /// header counts.
    pub since_epoch: u64,
    /// The device; `None` for a missing member, and for a member that is not active.
    pub device: Option<Arc<dyn Device>>,
    /// The superblock copy that is older or perhaps not whole. It is written first, so that one copy is always whole.
    pub(super) write_first: Copy,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("uuid", &Uuid(self.uuid))
            .field("index", &self.index)
            .field("segments", &self.segments)
            .field("state", &self.state)
            .field("since_epoch", &self.since_epoch)
            .field("device", &self.device.as_ref().map(|device| device.name()))
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Returns the newest epoch that all active members are known to carry; 0 for a pool that was never opened.
    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    /// Returns the number of 4 KiB blocks of a segment.
    pub fn slots(&self) -> u16 {
        // A segment has at most 64 MiB, so the number fits.
        (self.segment_size as usize / BLOCK) as u16
    }

    /// Returns the pool's owner as given to [`Pool::set_owner`]; empty if it was never set.
    pub fn owner(&self) -> &[u8] {
        &self.owner
    }

    /// Sets the pool's owner, in at most [`OWNER_MAX`] bytes; the bytes beyond are left out. Durable on every active
    /// member with the next change of the pool: with [`Pool::open_epoch`] before anything else is written.
    pub fn set_owner(&mut self, mut owner: Vec<u8>) {
        owner.truncate(OWNER_MAX);
        self.owner = owner;
    }

    /// Returns how far back the pool reaches, at least.
    pub(crate) fn reach(&self) -> Reach {
        self.reach
    }

    /// Returns the `seq` of a log segment that was opened, or a lower one; 0 if perhaps none was.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// Returns the number of a frame that was durable; 0 if perhaps none was.
    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// Returns the identity of segment number `seq` of this pool, for the decoders of its contents.
    pub fn segment_id(&self, seq: u64) -> SegmentId {
        SegmentId { pool: self.uuid, seq, slots: self.slots() }
    }

    /// Returns the offset of segment number `segment` on its device, in bytes.
    pub fn offset(&self, segment: u32) -> u64 {
        segment_offset(segment, self.segment_size)
    }

    /// Returns the members that can be read and written.
    pub fn present(&self) -> impl Iterator<Item = (&Member, &Arc<dyn Device>)> {
        self.members
            .iter()
            .filter(|member| member.state == State::Active)
            .filter_map(|member| Some((member, member.device.as_ref()?)))
    }
}
