//! Attributes of an inode, as the backing file system states them.

use rustix::fs::{FileType, Stat};

pub use forebay_oplog::Time;

/// The attributes an NFS server reports (RFC 1813 fattr3) plus nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The type of the inode.
    pub kind: FileType,
    /// Permission bits with set-uid, set-gid and sticky: the low 12 bits of st_mode.
    pub mode: u32,
    /// Number of hard links.
    pub nlink: u64,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Bytes allocated on the backing file system.
    pub used: u64,
    /// Device number, major and minor, of a device node.
    pub rdev: (u32, u32),
    /// Inode number.
    pub ino: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change of the contents or attributes.
    pub ctime: Time,
    /// The last change of contents or attributes in the backing file system. Changes that only the cache knows do not
    /// count.
    pub(crate) backing_ctime: Time,
}

impl From<&Stat> for Attr {
    fn from(st: &Stat) -> Self {
        let time = |sec: i64, nsec: u64| Time { sec, nsec: nsec as u32 };
        let ctime = time(st.st_ctime, st.st_ctime_nsec);
        #[cfg(test)]
        let ctime = coarse::ctime().unwrap_or(ctime);
        Attr {
            kind: FileType::from_raw_mode(st.st_mode),
            mode: st.st_mode & 0o7777,
            nlink: st.st_nlink,
            uid: st.st_uid,
            gid: st.st_gid,
            size: st.st_size as u64,
            used: st.st_blocks as u64 * 512,
            rdev: (rustix::fs::major(st.st_rdev), rustix::fs::minor(st.st_rdev)),
            ino: st.st_ino,
            atime: time(st.st_atime, st.st_atime_nsec),
            mtime: time(st.st_mtime, st.st_mtime_nsec),
            ctime,
            backing_ctime: ctime,
        }
    }
}

/// Attributes before and after an operation (RFC 1813 wcc_data). `before` is there only if no other change of the inode
/// overlapped the operation, so a client may trust the pair as atomic.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wcc {
    /// The state just before the operation, if no other change overlapped it.
    pub before: Option<Attr>,
    /// The state just after the operation.
    pub after: Option<Attr>,
}

/// How a SETATTR sets a time (RFC 1813 time_how).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// Leave it as it is.
    #[default]
    Keep,
    /// Set it to the server's clock.
    Now,
    /// Set it to this value.
    To(Time),
}

/// The attributes a client asks to set (RFC 1813 sattr3); `None` leaves one as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits, low 12 bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes: truncates or extends with a hole.
    pub size: Option<u64>,
    /// Last access time.
    pub atime: SetTime,
    /// Last modification time.
    pub mtime: SetTime,
}

impl SetAttr {
    /// Returns true if the client asks for no change.
    pub fn is_empty(&self) -> bool {
        *self == SetAttr::default()
    }
}

/// A kernel with coarse change times, for the thread of a test.
#[cfg(test)]
pub(crate) mod coarse {
    use std::cell::Cell;

    use super::Time;

    thread_local! {
        static TIMES: Cell<Option<(Time, Time)>> = const { Cell::new(None) };
    }

    /// From now on all inodes have this change time, and the clock shows `now`.
    pub(crate) fn set(ctime: Time, now: Time) {
        TIMES.set(Some((ctime, now)));
    }

    pub(crate) fn ctime() -> Option<Time> {
        TIMES.get().map(|(ctime, _)| ctime)
    }

    pub(crate) fn now() -> Option<Time> {
        TIMES.get().map(|(_, now)| now)
    }
}
