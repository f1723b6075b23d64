//! The accepted values of a call's arguments. A bad argument is the caller's error. The call is answered with a status
//! that blames the argument, before anything is changed or made durable.
//!
//! | argument | accepted | else |
//! |---|---|---|
//! | READ offset, count | every number; data ends with the file; a count above [`MAX_TRANSFER`] is lowered to it | |
//! | WRITE offset + count | up to the largest file of the file system (FSINFO `maxfilesize`) | NFS3ERR_FBIG |
//! | WRITE count | the length of the data | GARBAGE_ARGS |
//! | COMMIT offset, count | every number; an offset that no file can have means the whole file | |
//! | SETATTR, CREATE size | up to the largest file | NFS3ERR_FBIG |
//! | nanoseconds of times | below 10^9 | NFS3ERR_INVAL |
//! | uid, gid | all but 2^32 - 1, which chown(2) takes for "leave it" | NFS3ERR_INVAL |
//! | mode | the lower twelve bits count (RFC 1813 section 2.5); others are ignored | |
//! | guard of SETATTR | every number; a time that is not the change time | NFS3ERR_NOT_SYNC |
//! | MKNOD major, minor | below 2^12 and 2^20, as the kernel's device numbers | NFS3ERR_INVAL |
//! | names | 1 to 255 bytes without `/` and NUL | NFS3ERR_INVAL, NFS3ERR_NAMETOOLONG |
//! | `.` and `..` | for LOOKUP; not made, renamed or removed | NFS3ERR_EXIST, NFS3ERR_INVAL, NFS3ERR_NOTEMPTY |
//! | text of a symbolic link | 1 to 4095 bytes without NUL | NFS3ERR_INVAL, NFS3ERR_NAMETOOLONG |
//! | cookies | 0, and what a listing gave | NFS3ERR_BAD_COOKIE |
//! | count, maxcount | room for header and one entry; above [`MAX_TRANSFER`] it counts as that | NFS3ERR_TOOSMALL |
//! | dircount | every number: a hint | |
//! | ACCESS bits | every number; unknown bits are not granted | |
//!
//! Sizes, offsets and names are checked by `vfs`, which knows the file system; the rest here and in `convert.rs`.
//!
//! [`MAX_TRANSFER`]: crate::MAX_TRANSFER

use forebay_vfs::{SetAttr, SetTime, Special, Time};
use forebay_wire::nfs3::{self, Nfsstat3, Nfstime3, Sattr3};

use crate::result::Stop;

/// The bounds of the kernel's device numbers: 12 bits of major, 20 of minor. mknod(2) drops higher bits.
const MAJORS: u32 = 1 << 12;
const MINORS: u32 = 1 << 20;

/// Nanoseconds in a second.
const SECOND: u32 = 1_000_000_000;

/// Fails with NFS3ERR_INVAL for an invalid text of a symbolic link, or an invalid device number.
pub(crate) fn special(special: &Special<'_>) -> Result<(), Stop> {
    let valid = match special {
        Special::Symlink(text) => !text.is_empty() && !text.contains(&0),
        Special::Character(major, minor) | Special::Block(major, minor) => *major < MAJORS && *minor < MINORS,
        Special::Directory | Special::Fifo | Special::Socket => true,
    };
    if valid { Ok(()) } else { Err(Stop::Fail(Nfsstat3::Inval)) }
}

/// Returns a time from the wire; `None` if its nanoseconds are invalid.
fn time(time: Nfstime3) -> Option<Time> {
    (time.nseconds < SECOND).then_some(Time { sec: time.seconds.into(), nsec: time.nseconds })
}

/// Returns the attributes that a client asks to set; `None` if a time or an id is invalid.
pub(crate) fn set_attr(set: &Sattr3) -> Option<SetAttr> {
    // The largest number means "leave it" to chown(2).
    if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
        return None;
    }
    let time = |set| match set {
        nfs3::SetTime::DontChange => Some(SetTime::Keep),
        nfs3::SetTime::ServerTime => Some(SetTime::Now),
        nfs3::SetTime::ClientTime(wanted) => time(wanted).map(SetTime::To),
    };
    Some(SetAttr {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: time(set.atime)?,
        mtime: time(set.mtime)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_with_too_many_nanoseconds_is_refused() {
        let bad = nfs3::SetTime::ClientTime(Nfstime3 { seconds: 1, nseconds: SECOND });
        assert_eq!(set_attr(&Sattr3 { mtime: bad, ..Sattr3::default() }), None);
    }

    #[test]
    fn numbers_that_are_no_device_are_refused() {
        for (major, minor, valid) in [
            (0, 0, true),
            (MAJORS - 1, MINORS - 1, true),
            (MAJORS, 0, false),
            (0, MINORS, false),
            (u32::MAX, u32::MAX, false),
        ] {
            for device in [Special::Character(major, minor), Special::Block(major, minor)] {
                assert_eq!(special(&device).is_ok(), valid, "{major}:{minor}");
            }
        }
    }
}
