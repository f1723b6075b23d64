//! Conversions between the file system's types and the protocol's.

use forebay_vfs::{Attr, Errno, Error, FileType, Handle, Time, Wcc};
use forebay_wire::nfs3::{Fattr3, FileHandle, Ftype3, Nfsstat3, Nfstime3, Specdata3, WccAttr, WccData};

/// Returns the status for an error (RFC 1813 section 2.6). Errors without a code of their own become NFS3ERR_IO.
pub(crate) fn status(error: Error) -> Nfsstat3 {
    match error {
        Error::Os(errno) => errno_status(errno),
        Error::Stale => Nfsstat3::Stale,
        Error::BadHandle => Nfsstat3::Badhandle,
        Error::NotSync => Nfsstat3::NotSync,
        Error::BadCookie => Nfsstat3::BadCookie,
        Error::ReadOnly => Nfsstat3::Rofs,
        Error::WouldBlock | Error::Busy => Nfsstat3::Jukebox,
    }
}

/// Returns the NFSv3 status for an error of the kernel. An error without a status of its own becomes NFS3ERR_IO.
fn errno_status(errno: Errno) -> Nfsstat3 {
    match errno {
        Errno::PERM => Nfsstat3::Perm,
        Errno::NOENT => Nfsstat3::Noent,
        Errno::NXIO => Nfsstat3::Nxio,
        Errno::ACCESS => Nfsstat3::Acces,
        Errno::EXIST => Nfsstat3::Exist,
        Errno::XDEV => Nfsstat3::Xdev,
        Errno::NODEV => Nfsstat3::Nodev,
        Errno::NOTDIR => Nfsstat3::Notdir,
        Errno::ISDIR => Nfsstat3::Isdir,
        Errno::INVAL => Nfsstat3::Inval,
        Errno::FBIG | Errno::OVERFLOW => Nfsstat3::Fbig,
        Errno::NOSPC => Nfsstat3::Nospc,
        Errno::ROFS => Nfsstat3::Rofs,
        Errno::MLINK => Nfsstat3::Mlink,
        Errno::NAMETOOLONG => Nfsstat3::Nametoolong,
        Errno::NOTEMPTY => Nfsstat3::Notempty,
        Errno::DQUOT => Nfsstat3::Dquot,
        Errno::STALE => Nfsstat3::Stale,
        Errno::OPNOTSUPP => Nfsstat3::Notsupp,
        // A mount point, or a program that runs: the client gets an error, because waiting would not help.
        Errno::BUSY | Errno::TXTBSY => Nfsstat3::Acces,
        // Descriptors or memory are short: the client tries again later.
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Nfsstat3::Jukebox,
        _ => Nfsstat3::Io,
    }
}

/// Returns a time as NFSv3 sends it. Times that do not fit become the nearest one that does.
fn time(time: Time) -> Nfstime3 {
    // The protocol's seconds are unsigned 32 bits: times beyond them show as the nearest that fits.
    Nfstime3 { seconds: time.sec.clamp(0, u32::MAX.into()) as u32, nseconds: time.nsec }
}

pub(crate) fn guard_time(time: Nfstime3) -> Time {
    Time { sec: time.seconds.into(), nsec: time.nseconds }
}

/// Returns the NFSv3 type of an inode. An unknown type counts as a regular file.
fn ftype(kind: FileType) -> Ftype3 {
    match kind {
        FileType::Directory => Ftype3::Dir,
        FileType::Symlink => Ftype3::Lnk,
        FileType::BlockDevice => Ftype3::Blk,
        FileType::CharacterDevice => Ftype3::Chr,
        FileType::Fifo => Ftype3::Fifo,
        FileType::Socket => Ftype3::Sock,
        FileType::RegularFile | FileType::Unknown => Ftype3::Reg,
    }
}

/// Returns attributes as NFSv3 sends them. `fsid` is the number under which clients know the export.
pub(crate) fn fattr(attr: &Attr, fsid: u64) -> Fattr3 {
    Fattr3 {
        ftype: ftype(attr.kind),
        mode: attr.mode,
        nlink: attr.nlink.min(u32::MAX.into()) as u32,
        uid: attr.uid,
        gid: attr.gid,
        size: attr.size,
        used: attr.used,
        rdev: Specdata3 { major: attr.rdev.0, minor: attr.rdev.1 },
        fsid,
        fileid: attr.ino,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
    }
}

/// Returns the weak cache consistency data of a reply from the attributes before and after the change.
pub(crate) fn wcc(wcc: &Wcc, fsid: u64) -> WccData {
    WccData {
        before: wcc.before.map(|attr| WccAttr {
            size: attr.size,
            mtime: time(attr.mtime),
            ctime: time(attr.ctime),
        }),
        after: wcc.after.map(|attr| fattr(&attr, fsid)),
    }
}

/// Returns the handle of an inode as NFSv3 and NFSv4 send it.
pub(crate) fn handle(handle: &Handle) -> FileHandle {
    // HANDLE_MAX is below NFS3_FHSIZE.
    FileHandle::new(handle.as_slice()).unwrap_or_else(|| unreachable!("handles fit the protocol"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_outside_the_protocol_show_as_the_nearest() {
        assert_eq!(time(Time { sec: -5, nsec: 7 }).seconds, 0);
        assert_eq!(time(Time { sec: 1 << 40, nsec: 7 }).seconds, u32::MAX);
    }
}
