//! Signatures that other programs leave on devices. Offsets and magic numbers are from libblkid and the programs'
//! headers.

use std::ops::Range;

use super::geometry::{Copy, MARGIN, whole_blocks};
use super::superblock::MAGIC;
use crate::buffer::{BLOCK, Buffer};

const KIB: u64 = 1024;

/// The data at both ends of a device.
pub struct Ends {
    /// The size of the device in bytes.
    size: u64,
    /// The data from the device's first byte on.
    front: Buffer,
    /// The offset of `end`, in bytes.
    end_start: u64,
    /// The data up to the device's last whole block.
    end: Buffer,
}

/// The owner of a device that is a part of something larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The device is a member of a pool of cache devices.
    OfPool {
        /// False if only the superblock at the end says so.
        is_whole: bool,
    },
    /// The device is a part of another program's array, pool or group, with the name of that part.
    Foreign(&'static str),
}

/// A magic number in a fixed place: its meaning, its offset, its bytes.
type Fixed = (&'static str, u64, &'static [u8]);

/// Signatures of parts of something larger.
const PARTS: &[Fixed] = &[
    ("a member of an MD RAID array", 0, MD),
    ("a member of an MD RAID array", 4 * KIB, MD),
    (
        "a bcache device",
        4 * KIB + 24,
        &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81],
    ),
];

const FIXED: &[Fixed] = &[
    ("an XFS file system", 0, b"XFSB"),
    ("an ext2, ext3 or ext4 file system", 0x438, &[0x53, 0xef]),
    ("a Btrfs file system", 64 * KIB + 0x40, b"_BHRfS_M"),
    ("an F2FS file system", 0x400, &[0x10, 0x20, 0xf5, 0xf2]),
    ("an encrypted volume (LUKS)", 0, b"LUKS\xba\xbe"),
    (
        "a bcachefs file system",
        4 * KIB + 24,
        &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9, 0xd9, 0x6a, 0x60, 0xcf, 0x80, 0x3d, 0xf7, 0xef],
    ),
    ("swap space", 4 * KIB - 10, SWAP),
    ("swap space", 8 * KIB - 10, SWAP),
    ("swap space", 16 * KIB - 10, SWAP),
    ("swap space", 64 * KIB - 10, SWAP),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 54, b"FAT1"),
    ("a FAT file system", 82, b"FAT32   "),
    ("a partition table (GPT)", 512, GPT),
    ("a partition table (GPT)", 4 * KIB, GPT),
];

/// This signature is checked after all other signatures, which may begin with a boot sector.
const BOOT_SECTOR: Fixed = ("a partition table or boot sector (MBR)", 510, &[0x55, 0xaa]);

const MD: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
const SWAP: &[u8] = b"SWAPSPACE2";
const GPT: &[u8] = b"EFI PART";

/// Returns the user of the device, if a signature names one.
pub(super) fn known(ends: &Ends) -> Option<&'static str> {
    foreign_part(ends)
        .or_else(|| ends.any(FIXED))
        .or_else(|| gpt_at_the_end(ends).then_some("a partition table (GPT)"))
        .or_else(|| ends.any(&[BOOT_SECTOR]))
}

/// Returns the owner of the device if the device is a part of something larger, whether that is in use or not. The
/// superblock of a pool at the end does not count if another signature says that the device was used since.
pub fn part(ends: &Ends) -> Option<Part> {
    if let Some(name) = foreign_part(ends) {
        return Some(Part::Foreign(name));
    }
    let has = |copy: Copy| ends.has(copy.offset(ends.size), &MAGIC);
    let is_whole = has(Copy::A);
    (is_whole || has(Copy::B) && known(ends).is_none()).then_some(Part::OfPool { is_whole })
}

/// Returns the name of a part of another program's array, pool or group.
fn foreign_part(ends: &Ends) -> Option<&'static str> {
    ends.any(PARTS)
        .or_else(|| lvm(ends).then_some("an LVM physical volume"))
        .or_else(|| md_at_the_end(ends).then_some("a member of an MD RAID array"))
        .or_else(|| zfs(ends).then_some("a member of a ZFS pool"))
}

/// Detects a label in one of the first four sectors.
fn lvm(ends: &Ends) -> bool {
    (0..4)
        .map(|sector| sector * 512)
        .any(|label| ends.has(label, b"LABELONE") && ends.has(label + 24, b"LVM2 001"))
}

/// Detects metadata 1.0, at least 8 KiB from the end, and 0.90, in the last whole 64 KiB but one.
fn md_at_the_end(ends: &Ends) -> bool {
    let version_1 = (ends.size / 512).checked_sub(16).map(|sector| (sector & !7) * 512);
    let version_0 = (ends.size & !(64 * KIB - 1)).checked_sub(64 * KIB);
    version_1.is_some_and(|offset| ends.has(offset, MD))
        || version_0.is_some_and(|offset| ends.has(offset, MD))
}

/// Detects an uberblock in the ring of one of the four labels of 256 KiB, two at each end.
fn zfs(ends: &Ends) -> bool {
    const LABEL: u64 = 256 * KIB;
    const MAGIC: u64 = 0x00ba_b10c;
    let size = ends.size / LABEL * LABEL;
    let labels = [Some(0), Some(LABEL), size.checked_sub(2 * LABEL), size.checked_sub(LABEL)];
    labels.into_iter().flatten().any(|label| {
        let ring = (label + LABEL / 2..label + LABEL).step_by(1024);
        ring.into_iter()
            .any(|slot| ends.has(slot, &MAGIC.to_le_bytes()) || ends.has(slot, &MAGIC.to_be_bytes()))
    })
}

/// Detects the backup header in the last sector.
fn gpt_at_the_end(ends: &Ends) -> bool {
    [512, 4 * KIB]
        .iter()
        .any(|sector| (ends.size / sector).checked_sub(1).is_some_and(|last| ends.has(last * sector, GPT)))
}

impl Ends {
    /// Returns the ranges of bytes at both ends of a device of `size` bytes: the first and the last MiB, or less on a
    /// smaller device. They are whole blocks.
    pub fn ranges(size: u64) -> [Range<u64>; 2] {
        let (whole, len) = (whole_blocks(size), whole_blocks(size).min(MARGIN));
        [0..len, whole - len..whole]
    }

    /// Makes the value from the data in the [`Ends::ranges`] of a device of `size` bytes.
    pub fn new(size: u64, [front, end]: [Buffer; 2]) -> Self {
        let [_, Range { start: end_start, .. }] = Ends::ranges(size);
        Ends { size, front, end_start, end }
    }

    /// Returns the data from the device's first byte on.
    pub(super) fn front(&self) -> &Buffer {
        &self.front
    }

    /// Returns the meaning of the first of these signatures that the device has.
    fn any(&self, signatures: &[Fixed]) -> Option<&'static str> {
        signatures.iter().find(|(_, offset, magic)| self.has(*offset, magic)).map(|(what, ..)| *what)
    }

    /// Blanks Forebay's superblocks, so that nothing in them looks like a signature.
    pub(super) fn forget_own(&mut self, first: bool, last: bool) {
        if let Some(block) = self.front.first_chunk_mut::<BLOCK>().filter(|_| first) {
            block.fill(0);
        }
        if let Some(block) = self.end.last_chunk_mut::<BLOCK>().filter(|_| last) {
            block.fill(0);
        }
    }

    /// Returns true if the device has these bytes at an offset that was read.
    fn has(&self, offset: u64, magic: &[u8]) -> bool {
        let within = |bytes: &[u8], offset: u64| {
            let start = usize::try_from(offset).ok()?;
            bytes.get(start..start.checked_add(magic.len())?).map(|found| found == magic)
        };
        let in_end = || within(&self.end, offset.checked_sub(self.end_start)?);
        within(&self.front, offset).or_else(in_end).unwrap_or(false)
    }
}
