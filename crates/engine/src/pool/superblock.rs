//! The superblock: a device's description of its pool.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::geometry::DEVICE_MAX;
use crate::buffer::{BLOCK, Buffer};
use crate::format::{DEVICES_MAX, SEGMENT_MAX, SEGMENT_MIN, VERSION, is_zero, seal, sealed};
use crate::segments::Reach;

pub(super) const MAGIC: [u8; 8] = *b"FOREBAY\0";

/// The log may have user records.
const NOTES: u64 = 1;
/// The superblock names the newest segment of the log, and a frame that was durable.
const NEWEST: u64 = 2;
/// The superblock names the owner of the pool. Set only if there is an owner. A version that does not know this
/// feature must not serve other directories with the pool.
const OWNER: u64 = 4;
/// The log may have records of destaged blocks.
const DESTAGED: u64 = 8;
/// Features that every superblock has from now on, since the log may use them.
const ALWAYS: u64 = NOTES | NEWEST | DESTAGED;
/// Features that must be understood to open a pool.
const REQUIRED_KNOWN: u64 = ALWAYS | OWNER;

/// The highest number of bytes of a pool's owner.
pub const OWNER_MAX: usize = BLOCK - size_of::<Raw>();

/// The state of a member of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The member is read and written.
    Active,
    /// The member failed or was missing: its contents are out of date.
    Lost,
    /// The administrator removed the member.
    Removed,
}

/// A member as the superblocks describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The device's UUID.
    pub uuid: u128,
    /// Number of segments of the device.
    pub segments: u32,
    /// The member's state.
    pub state: State,
    /// The epoch since which the member has its state. Data written to an active device in an earlier epoch does not
    /// count.
    pub since_epoch: u64,
}

/// A superblock. All devices of a pool have equal superblocks, except for `device` and `index`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The pool's UUID.
    pub pool: u128,
    /// The UUID of the device that this superblock is on.
    pub device: u128,
    /// The device's index: its own place in `members`.
    pub index: u16,
    /// Bytes of a segment: a power of two from 1 to 64 MiB.
    pub segment_size: u32,
    /// The epoch, which grows by every change of the members and every opening.
    pub epoch: u64,
    /// The newest epoch that all active members are known to carry; below `epoch` while a change is in progress.
    pub in_use: u64,
    /// The generation, which grows by every superblock written. Of a device's two copies the one with the higher
    /// generation counts.
    pub generation: u64,
    /// Features that need not be understood. They are preserved.
    pub optional: u64,
    /// How far back the pool reaches, at least. Frames of the log may have a later reach.
    pub reach: Reach,
    /// The `seq` of a log segment that was opened, or a lower one; 0 if perhaps none was.
    pub newest: u64,
    /// The number of a frame that was durable; 0 if perhaps none was.
    pub durable: u64,
    /// The owner of the pool, in the words of the engine's user: at most [`OWNER_MAX`] bytes, empty if it was never
    /// set.
    pub owner: Vec<u8>,
    /// The members by index; 1 to 16.
    pub members: Vec<Entry>,
}

/// The reason why a block is not a usable superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The block does not begin as a superblock.
    None,
    /// The block begins as a superblock, but its contents are damaged.
    Damaged,
    /// The block has nothing but the magic number, or a part of it: see `Superblock::unfinished`.
    Unfinished,
    /// The superblock has a later version of the format.
    Newer(u16),
    /// The superblock requires features that are unknown here.
    UnknownFeatures(u64),
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct RawEntry {
    uuid: U128,
    since_epoch: U64,
    segments: U32,
    state: U16,
    reserved: U16,
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Raw {
    magic: [u8; 8],
    checksum: U64,
    version: U16,
    index: U16,
    members: U16,
    reserved: U16,
    required: U64,
    optional: U64,
    pool: U128,
    device: U128,
    epoch: U64,
    in_use: U64,
    generation: U64,
    segment_size: U32,
    reserved_too: U32,
    tail: U64,
    oldest_position: U64,
    oldest_seq: U64,
    table: [RawEntry; DEVICES_MAX],
    newest: U64,
    durable: U64,
    owner: U16,
}

const _: () = {
    assert!(offset_of!(Raw, checksum) == 8);
    assert!(offset_of!(Raw, version) == 16);
    assert!(offset_of!(Raw, required) == 24);
    assert!(offset_of!(Raw, pool) == 40);
    assert!(offset_of!(Raw, device) == 56);
    assert!(offset_of!(Raw, epoch) == 72);
    assert!(offset_of!(Raw, generation) == 88);
    assert!(offset_of!(Raw, segment_size) == 96);
    assert!(offset_of!(Raw, table) == 128);
    assert!(size_of::<RawEntry>() == 32);
    assert!(offset_of!(Raw, newest) == 640);
    assert!(offset_of!(Raw, owner) == 656);
    assert!(size_of::<Raw>() == 658);
};

impl Superblock {
    /// Returns the superblock as a block.
    ///
    /// # Panics
    /// If a decoder would not accept the superblock.
    pub fn encode(&self) -> Buffer {
        assert!(self.is_consistent(), "superblocks agree with themselves: {self:?}");
        let mut entries = self.members.iter().map(to_raw);
        let raw = Raw {
            magic: MAGIC,
            checksum: U64::ZERO,
            version: VERSION.into(),
            index: self.index.into(),
            // The number of members is at most 16.
            members: (self.members.len() as u16).into(),
            reserved: U16::ZERO,
            required: (if self.owner.is_empty() { ALWAYS } else { REQUIRED_KNOWN }).into(),
            optional: self.optional.into(),
            pool: self.pool.into(),
            device: self.device.into(),
            epoch: self.epoch.into(),
            in_use: self.in_use.into(),
            generation: self.generation.into(),
            segment_size: self.segment_size.into(),
            reserved_too: U32::ZERO,
            tail: self.reach.tail.into(),
            oldest_position: self.reach.oldest.0.into(),
            oldest_seq: (if self.reach.oldest.1 { u64::MAX } else { self.reach.oldest.2 }).into(),
            table: std::array::from_fn(|_| entries.next().unwrap_or(EMPTY)),
            newest: self.newest.into(),
            durable: self.durable.into(),
            // The owner is shorter than a block.
            owner: (self.owner.len() as u16).into(),
        };
        let mut block = Buffer::zeroed(1);
        let (head, rest) = block.split_at_mut(size_of::<Raw>());
        head.copy_from_slice(raw.as_bytes());
        rest[..self.owner.len()].copy_from_slice(&self.owner);
        seal(MAGIC, &mut block);
        block
    }

    /// Returns the block that stands in the place of a superblock while a device is being formatted. It has the magic
    /// number alone. A superblock or a part of one under it or over it begins with the magic number as well. So a
    /// crash never leaves a device whose contents could be those of another program.
    pub(super) fn unfinished() -> Buffer {
        let mut block = Buffer::zeroed(1);
        block[..MAGIC.len()].copy_from_slice(&MAGIC);
        block
    }

    /// Returns the superblock in `block`.
    ///
    /// # Errors
    /// The reason why the block holds no usable superblock.
    pub fn decode(block: &[u8]) -> Result<Self, Unusable> {
        if is_unfinished(block) {
            return Err(Unusable::Unfinished);
        }
        if block.len() != BLOCK || !block.starts_with(&MAGIC) {
            return Err(Unusable::None);
        }
        // Magic, checksum and version are in one place in all versions.
        let (raw, rest) = Raw::ref_from_prefix(block).map_err(|_| Unusable::Damaged)?;
        if !sealed(MAGIC, block) || raw.version.get() == 0 {
            return Err(Unusable::Damaged);
        }
        if raw.version.get() > VERSION {
            return Err(Unusable::Newer(raw.version.get()));
        }
        match raw.required.get() & !REQUIRED_KNOWN {
            0 => {}
            unknown => return Err(Unusable::UnknownFeatures(unknown)),
        }
        from_raw(raw, rest).filter(Self::is_consistent).ok_or(Unusable::Damaged)
    }

    /// Returns true if the geometry and the members contradict neither each other nor the bounds.
    fn is_consistent(&self) -> bool {
        let count = self.members.len();
        let own = self.members.get(usize::from(self.index));
        let sizes = self.segment_size.is_power_of_two()
            && (SEGMENT_MIN..=SEGMENT_MAX).contains(&self.segment_size)
            && self.members.iter().all(|member| {
                let bytes = u64::from(member.segments) * u64::from(self.segment_size);
                (1..=DEVICE_MAX).contains(&bytes)
            });
        let distinct = (1..count)
            .all(|at| self.members[..at].iter().all(|earlier| earlier.uuid != self.members[at].uuid));
        (1..=DEVICES_MAX).contains(&count)
            && self.owner.len() <= OWNER_MAX
            && own.is_some_and(|own| own.uuid == self.device && own.state == State::Active)
            && sizes
            && distinct
            && self.in_use <= self.epoch
            && self.members.iter().all(|member| member.since_epoch <= self.epoch)
    }
}

const EMPTY: RawEntry = RawEntry {
    uuid: U128::ZERO,
    since_epoch: U64::ZERO,
    segments: U32::ZERO,
    state: U16::ZERO,
    reserved: U16::ZERO,
};

/// Returns true if a block has bytes of the magic number in their places, and zeros. A torn write may have left out
/// some of the bytes.
fn is_unfinished(block: &[u8]) -> bool {
    let Some((magic, rest)) = block.split_at_checked(MAGIC.len()) else { return false };
    let is_part = magic.iter().zip(MAGIC).all(|(found, byte)| *found == byte || *found == 0);
    is_part && !is_zero(magic) && is_zero(rest)
}

/// Returns a member in the format of the devices.
fn to_raw(entry: &Entry) -> RawEntry {
    let state: u16 = match entry.state {
        State::Active => 1,
        State::Lost => 2,
        State::Removed => 3,
    };
    RawEntry {
        uuid: entry.uuid.into(),
        since_epoch: entry.since_epoch.into(),
        segments: entry.segments.into(),
        state: state.into(),
        reserved: U16::ZERO,
    }
}

/// Returns a superblock; `None` if unknown or reserved fields are set, or fields contradict each other.
fn from_raw(raw: &Raw, rest: &[u8]) -> Option<Superblock> {
    let (owner, rest) = rest.split_at_checked(usize::from(raw.owner.get()))?;
    let (used, unused) = raw.table.split_at_checked(usize::from(raw.members.get()))?;
    let members = used.iter().map(entry_from_raw).collect::<Option<Vec<_>>>()?;
    let unnamed = raw.required.get() & NEWEST == 0;
    let reserved = raw.reserved.get() == 0
        && is_zero(rest)
        && owner.is_empty() == (raw.required.get() & OWNER == 0)
        && raw.reserved_too.get() == 0
        && is_zero(unused.as_bytes())
        && !(unnamed && (raw.newest.get(), raw.durable.get()) != (0, 0));
    reserved.then(|| Superblock {
        pool: raw.pool.get(),
        device: raw.device.get(),
        index: raw.index.get(),
        segment_size: raw.segment_size.get(),
        epoch: raw.epoch.get(),
        in_use: raw.in_use.get(),
        generation: raw.generation.get(),
        optional: raw.optional.get(),
        reach: Reach::new(raw.tail.get(), raw.oldest_position.get(), raw.oldest_seq.get()),
        newest: raw.newest.get(),
        durable: raw.durable.get(),
        owner: owner.to_vec(),
        members,
    })
}

/// Returns a member; `None` if its state is unknown.
fn entry_from_raw(raw: &RawEntry) -> Option<Entry> {
    let state = match raw.state.get() {
        1 => State::Active,
        2 => State::Lost,
        3 => State::Removed,
        _ => return None,
    };
    (raw.reserved.get() == 0).then(|| Entry {
        uuid: raw.uuid.get(),
        segments: raw.segments.get(),
        state,
        since_epoch: raw.since_epoch.get(),
    })
}
