//! Conversions between the types of the protocol, of clients' state, and of the file system.

use forebay_clientstate::{self as state, Refused, StateId};
use forebay_vfs::{Attr, Errno, Error, FileType, Time};
use forebay_wire::nfs4::{Ftype4, Nfsstat4, Nfstime4, Stateid};

use super::compound::Stop;

/// Returns the status for an error of the file system (RFC 8881 section 15.1). Errors without a status of their own
/// become NFS4ERR_IO.
pub(super) fn status(error: Error) -> Nfsstat4 {
    match error {
        Error::Os(errno) => errno_status(errno),
        Error::Stale => Nfsstat4::Stale,
        Error::BadHandle => Nfsstat4::Badhandle,
        Error::NotSync => Nfsstat4::Inval,
        Error::BadCookie => Nfsstat4::BadCookie,
        Error::ReadOnly => Nfsstat4::Rofs,
        Error::WouldBlock | Error::Busy => Nfsstat4::Delay,
    }
}

/// Returns the NFSv4 status for an error of the kernel. An error without a status of its own becomes NFS4ERR_IO.
fn errno_status(errno: Errno) -> Nfsstat4 {
    match errno {
        Errno::PERM => Nfsstat4::Perm,
        Errno::NOENT => Nfsstat4::Noent,
        Errno::NXIO => Nfsstat4::Nxio,
        Errno::ACCESS => Nfsstat4::Access,
        Errno::EXIST => Nfsstat4::Exist,
        Errno::XDEV => Nfsstat4::Xdev,
        Errno::NOTDIR => Nfsstat4::Notdir,
        Errno::ISDIR => Nfsstat4::Isdir,
        Errno::INVAL => Nfsstat4::Inval,
        Errno::FBIG | Errno::OVERFLOW => Nfsstat4::Fbig,
        Errno::NOSPC => Nfsstat4::Nospc,
        Errno::ROFS => Nfsstat4::Rofs,
        Errno::MLINK => Nfsstat4::Mlink,
        Errno::NAMETOOLONG => Nfsstat4::Nametoolong,
        Errno::NOTEMPTY => Nfsstat4::Notempty,
        Errno::DQUOT => Nfsstat4::Dquot,
        Errno::STALE => Nfsstat4::Stale,
        Errno::OPNOTSUPP => Nfsstat4::Notsupp,
        Errno::LOOP => Nfsstat4::Symlink,
        // A mount point, or a program that runs: waiting would not help.
        Errno::BUSY | Errno::TXTBSY => Nfsstat4::Access,
        // Descriptors or memory are short: the client tries again later.
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Nfsstat4::Delay,
        _ => Nfsstat4::Io,
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        match error {
            Error::WouldBlock => Stop::Later,
            error => Stop::Fail(status(error)),
        }
    }
}

impl From<crate::result::Stop> for Stop {
    fn from(stop: crate::result::Stop) -> Self {
        match stop {
            crate::result::Stop::Later => Stop::Later,
            crate::result::Stop::Garbage => Stop::Fail(Nfsstat4::Badxdr),
            // Up to NFS3ERR_JUKEBOX the numbers of both versions are equal, except for NFS3ERR_NODEV and
            // NFS3ERR_REMOTE, which no export rule returns.
            crate::result::Stop::Fail(status) => {
                Stop::Fail(Nfsstat4::try_from(status as u32).unwrap_or(Nfsstat4::Serverfault))
            }
        }
    }
}

impl From<state::Error> for Stop {
    fn from(error: state::Error) -> Self {
        Stop::Fail(state_status(error))
    }
}

/// Returns the status for an error of clients' state.
pub(super) fn state_status(error: state::Error) -> Nfsstat4 {
    Nfsstat4::try_from(error as u32).unwrap_or(Nfsstat4::Serverfault)
}

/// Returns the status of a refused lock, for requests whose reply has no place for the conflicting lock.
pub(super) fn refused(refused: &Refused) -> Nfsstat4 {
    match refused {
        Refused::Denied(_) => Nfsstat4::Denied,
        Refused::Error(error) => state_status(*error),
    }
}

pub(super) fn state_id(wire: Stateid) -> StateId {
    StateId { seqid: wire.seqid, other: wire.other }
}

pub(super) fn wire_id(id: StateId) -> Stateid {
    Stateid { seqid: id.seqid, other: id.other }
}

/// Returns the NFSv4 type of an inode. An unknown type counts as a regular file.
pub(super) fn ftype(kind: FileType) -> Ftype4 {
    match kind {
        FileType::Directory => Ftype4::Dir,
        FileType::Symlink => Ftype4::Lnk,
        FileType::BlockDevice => Ftype4::Blk,
        FileType::CharacterDevice => Ftype4::Chr,
        FileType::Fifo => Ftype4::Fifo,
        FileType::Socket => Ftype4::Sock,
        FileType::RegularFile | FileType::Unknown => Ftype4::Reg,
    }
}

/// Returns a time in its form in messages.
pub(super) fn wire_time(time: Time) -> Nfstime4 {
    Nfstime4 { seconds: time.sec, nseconds: time.nsec }
}

/// Returns the change attribute: the change time in nanoseconds (RFC 8881 section 5.8.1.4). The attribute
/// change_attr_type says so (RFC 7862 section 12.2.3). `vfs` shows a later change time after each change through this
/// server. The value is not advertised as a counter: if the host's clock is set back, it may go back at a restart.
pub(super) fn change(attr: &Attr) -> u64 {
    (attr.ctime.sec as u64).wrapping_mul(1_000_000_000).wrapping_add(attr.ctime.nsec.into())
}
