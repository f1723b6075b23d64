//! The pool: its devices, their states, and how the table of members survives crashes.
//!
//! Every device carries the table of all members in its superblock, in two copies. A change of the table, and every
//! opening, is a new *epoch*, written in two steps. First every active member gets the new epoch and table. Then
//! every active member is told that all have it (the epoch is *in use*). Nothing else is written in an epoch before
//! it is in use. So after a crash:
//!
//! - an active member that carries at least the newest epoch in use is complete. A newer epoch on another member did
//!   not come into use, so an interrupted change costs no redundancy;
//! - a member that carries less is out of date and is not used;
//! - a member that was declared lost cannot come back by itself, since all members that continued know of the loss.
//!
//! A device that fell back does not know it when it is present alone. So a [`Witness`](crate::io::Witness) outside of
//! the devices records the epoch in use as well, before anything is acknowledged in it (`watched.rs`). A pool whose
//! epoch in use is lower than the recorded one is not opened. The witness also gives out each epoch before a device
//! carries it. Otherwise a device that was alone at a start, cut short by a power failure, could carry the epoch in
//! which the other device continues.
//!
//! Without a witness, two devices that were each opened without the other both look right. This is detected when both
//! are present again, and refused.

mod candidate;
mod change;
pub(crate) mod deadline;
mod error;
mod geometry;
mod identify;
mod make;
pub(crate) mod membership;
mod open;
mod patience;
mod signature;
mod superblock;
mod watched;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use candidate::Candidate;
pub use change::AlsoLost;
pub use error::{Notice, PoolError, Uuid};
pub use geometry::{DEVICE_MAX, DEVICE_MIN, SEGMENTS_START, segment_offset};
pub use identify::{Contents, identify};
pub(crate) use make::discard;
pub use superblock::{Entry, OWNER_MAX, State, Superblock, Unusable};

use crate::buffer::BLOCK;
use crate::format::SegmentId;
use crate::io::Device;
use crate::segments::Reach;
use geometry::Copy;
use open::{Decision, Seen, decide};
pub use patience::Patience;
use patience::{Looked, look_at_all};
use watched::Watched;

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
    in_use: u64,
    generation: u64,
    optional: u64,
    reach: Reach,
    newest: u64,
    durable: u64,
    owner: Vec<u8>,
    watched: Watched,
    /// UUIDs of devices that could not be added. No data on them counts.
    refused: Vec<u128>,
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
    write_first: Copy,
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
    /// Opens the pool whose members `devices` are, in any order. Writes nothing, and its findings are durable.
    /// Missing or unusable members are in [`Pool::notices`]. A caller that wants to write calls [`Pool::open_epoch`]
    /// first.
    ///
    /// # Errors
    /// Every refusal of the table in `pool/open.rs`.
    pub async fn open(devices: Vec<Arc<dyn Device>>) -> Result<Pool, PoolError> {
        let looked = look_at_all(&devices).await;
        Pool::of(devices, looked)
    }

    /// Returns the pool that `devices` with these contents are the members of.
    fn of(devices: Vec<Arc<dyn Device>>, looked: Vec<Looked>) -> Result<Pool, PoolError> {
        let (contents, write_first): (Vec<_>, Vec<_>) = looked.into_iter().unzip();
        let seen = devices.iter().zip(contents).map(|(device, contents)| Seen {
            name: device.name().to_owned(),
            size: device.size(),
            contents,
        });
        let Decision { superblock, devices: places, notices } = decide(&seen.collect::<Vec<_>>())?;
        let member = |((index, entry), at): ((u16, &Entry), Option<usize>)| Member {
            uuid: entry.uuid,
            index,
            segments: entry.segments,
            state: entry.state,
            since_epoch: entry.since_epoch,
            device: at.map(|at| devices[at].clone()),
            write_first: at.map_or(Copy::A, |at| write_first[at]),
        };
        Ok(Pool {
            uuid: superblock.pool,
            epoch: superblock.epoch,
            segment_size: superblock.segment_size,
            members: (0..).zip(&superblock.members).zip(places).map(member).collect(),
            notices,
            in_use: superblock.in_use,
            generation: superblock.generation,
            optional: superblock.optional,
            reach: superblock.reach,
            newest: superblock.newest,
            durable: superblock.durable,
            owner: superblock.owner,
            watched: Watched::default(),
            refused: Vec::new(),
        })
    }

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
