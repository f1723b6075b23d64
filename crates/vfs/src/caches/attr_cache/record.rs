//! An inode's identity and cached facts in few bytes.

use rustix::fs::FileType;

use crate::attr::{Attr, Time};
use crate::caches::access_cache::Classes;
use crate::sys::{KERNEL_HANDLE_MAX, KernelHandle};

/// The longest handle kept, in bytes: enough for ext4 and XFS.
const HANDLE: usize = 12;

/// The cached facts about an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedAttr {
    /// Its attributes.
    pub attr: Attr,
    /// The kernel's access verdicts for the inode's present state.
    pub(crate) verdicts: Classes,
}

/// An inode's identity and cached facts.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Record {
    size: u64,
    used: u64,
    ino: u64,
    times: [u64; 4],
    nlink: u32,
    uid: u32,
    gid: u32,
    rdev: (u32, u32),
    handle: [u8; HANDLE],
    verdicts: Classes,
    kind: i16,
    /// The file type and the mode.
    mode: u16,
    pub(crate) filesystem: u16,
    /// The length of the handle; 0 says that the record is free.
    pub(crate) len: u8,
    /// Requests answered from it, up to a few.
    pub(crate) uses: u8,
}

const _: () = assert!(size_of::<Record>() == 104);

/// The first second that a packed time can state, before 1970; it can state 2^34 of them.
const FIRST_SECOND: i64 = 1 << 31;

/// Packs a time into 64 bits; `None` if its year is out of range.
fn pack_time(time: Time) -> Option<u64> {
    let second =
        u64::try_from(time.sec.checked_add(FIRST_SECOND)?).ok().filter(|second| *second < 1 << 34)?;
    Some(second << 30 | u64::from(time.nsec))
}

fn unpack_time(packed: u64) -> Time {
    Time { sec: (packed >> 30) as i64 - FIRST_SECOND, nsec: (packed & ((1 << 30) - 1)) as u32 }
}

impl Record {
    /// Packs the facts about an inode. Returns `None` if they are too unusual to be kept.
    pub(crate) fn pack(filesystem: u16, kernel: &KernelHandle, known: CachedAttr) -> Option<Self> {
        let CachedAttr { attr, verdicts } = known;
        let mut handle = [0; HANDLE];
        handle.get_mut(..kernel.len.into())?.copy_from_slice(kernel.as_slice());
        let mut times = [0; 4];
        for (packed, time) in times.iter_mut().zip([attr.atime, attr.mtime, attr.ctime, attr.backing_ctime]) {
            *packed = pack_time(time)?;
        }
        Some(Record {
            size: attr.size,
            used: attr.used,
            ino: attr.ino,
            times,
            nlink: attr.nlink.try_into().ok()?,
            uid: attr.uid,
            gid: attr.gid,
            rdev: attr.rdev,
            handle,
            verdicts,
            kind: kernel.kind.try_into().ok()?,
            mode: (attr.kind.as_raw_mode() | attr.mode) as u16,
            filesystem,
            len: kernel.len,
            uses: 0,
        })
    }

    /// Takes over those facts of an older record of the inode that still hold.
    pub(crate) fn take_over(&mut self, older: &Record) {
        self.uses = older.uses;
        let [.., ctime] = self.times;
        if older.times.last() == Some(&ctime) {
            self.verdicts.add(&older.verdicts);
        }
    }

    /// Returns the attributes of the record.
    pub(crate) fn known(&self) -> CachedAttr {
        let [atime, mtime, ctime, backing_ctime] = self.times.map(unpack_time);
        let attr = Attr {
            kind: FileType::from_raw_mode(self.mode.into()),
            mode: u32::from(self.mode) & 0o7777,
            nlink: self.nlink.into(),
            uid: self.uid,
            gid: self.gid,
            size: self.size,
            used: self.used,
            rdev: self.rdev,
            ino: self.ino,
            atime,
            mtime,
            ctime,
            backing_ctime,
        };
        CachedAttr { attr, verdicts: self.verdicts }
    }

    /// Returns true if the record is of the inode with this handle.
    pub(crate) fn is(&self, filesystem: u16, kernel: &KernelHandle) -> bool {
        let same = self.filesystem == filesystem && i32::from(self.kind) == kernel.kind;
        same && self.len == kernel.len && self.handle[..self.len.into()] == *kernel.as_slice()
    }

    /// Returns the handle of the record's inode.
    pub(crate) fn kernel(&self) -> KernelHandle {
        let mut bytes = [0; KERNEL_HANDLE_MAX];
        bytes[..HANDLE].copy_from_slice(&self.handle);
        KernelHandle { kind: self.kind.into(), len: self.len, bytes }
    }
}
