//! Inherited attributes: access control lists, security labels, flags and the project, which the kernel gives an inode.
//! Most of them come from the directory in which the inode is created.
//!
//! A power cut may remove the inode, and recovery recreates it from the log. Without these attributes it would grant
//! more than before. So the record of its creation holds them (docs/decisions/019-given.md).

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use forebay_oplog::{Flags, Given, Name};
use rustix::fs::{FileType, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::caches::inode::Inode;
use crate::error::{Error, Result};
use crate::sys;

/// The attribute with the access control list of an inode.
pub(crate) const ACL: &CStr = c"system.posix_acl_access";

/// The bits of `fsx_xflags` that a file system sets by itself (preallocated, real-time, has extended attributes).
const XFLAGS_OWN: u32 = 0x8000_0003;
/// The flags of FS_IOC_GETFLAGS that ext4 inherits from the directory: SECRM, UNRM, COMPR, SYNC, NODUMP, NOATIME,
/// JOURNAL_DATA, NOTAIL, DIRSYNC, PROJINHERIT.
const INHERITED: u32 = 0x2001_c0cf;

/// Returns the inherited attributes of a new inode. `has_inode_flags` says that FS_IOC_FSGETXATTR does not report all
/// flags.
pub(crate) fn of_new(dir: &Inode, object: &Inode, has_inode_flags: bool) -> Result<Given> {
    let mut path = [0; 32];
    let path = sys::proc_path(&mut path, object.path());
    let opened = match (object.kind(), object.made_with()) {
        (FileType::RegularFile, None) => Some(object.reopen(OFlags::RDONLY)?),
        (FileType::Directory, None) => Some(object.reopen(OFlags::RDONLY | OFlags::DIRECTORY)?),
        // They have no flags but the project, which a symbolic link cannot be without if its directory demands it.
        _ => None,
    };
    let data = opened.as_ref().map(AsFd::as_fd).or(object.made_with());
    let list = list(path, data)?;
    let mut given = Given { acl: None, xattrs: Vec::new(), flags: None };
    for name in list.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let c_name = CString::new(name).map_err(|_| Error::INVALID)?;
        let value = value(path, data, &c_name)?;
        match name {
            _ if name == ACL.to_bytes() => given.acl = value,
            // XFS lists its lists twice.
            _ if name.starts_with(b"trusted.SGI_ACL_") => {}
            _ => given.xattrs.extend(value.map(|value| (Name::from_slice(name), value))),
        }
    }
    if let Some(data) = data {
        given.flags = flags_of(data, has_inode_flags)?;
    }
    if object.kind() == FileType::Symlink {
        given.flags = project_from(dir.reopen(OFlags::RDONLY | OFlags::DIRECTORY)?.as_fd())?;
    }
    Ok(given)
}

/// Returns the inherited attributes that belong to the mode of an older inode.
pub(crate) fn of_old(object: &Inode) -> Result<Given> {
    let mut path = [0; 32];
    let path = sys::proc_path(&mut path, object.path());
    let acl = match object.kind() {
        FileType::Symlink => None,
        _ => value(path, object.made_with(), ACL)?,
    };
    Ok(Given { acl, ..Given::default() })
}

/// Returns true if an inode certainly has no access control list, on a file system whose lists are POSIX ones.
pub(crate) fn has_no_acl(object: &Inode) -> bool {
    let mut buffer = [0; 32];
    let found = match object.made_with() {
        Some(fd) => rustix::fs::fgetxattr(fd, ACL, &mut [0u8; 0]),
        None => rustix::fs::getxattr(sys::proc_path(&mut buffer, object.path()), ACL, &mut [0u8; 0]),
    };
    matches!(found, Err(Errno::NODATA | Errno::OPNOTSUPP))
}

/// Returns the names of all extended attributes, each ended by a NUL.
pub(crate) fn list(path: &CStr, data: Option<BorrowedFd<'_>>) -> Result<Vec<u8>> {
    let list = answer(|into| match data {
        Some(fd) => rustix::fs::flistxattr(fd, into),
        None => rustix::fs::listxattr(path, into),
    })?;
    Ok(list.unwrap_or_default().into_vec())
}

/// Returns the bytes that the kernel answers, or `None` if there is nothing of the kind.
fn answer(ask: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> Result<Option<Box<[u8]>>> {
    // Most have none, or few.
    let mut few = [0; 256];
    match ask(&mut few) {
        Ok(len) => Ok(Some(few[..len].into())),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(Errno::RANGE) => {
            // The most that Linux allows.
            let mut all = vec![0; 1 << 16];
            let len = ask(&mut all)?;
            Ok(Some(all[..len].into()))
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the value of an extended attribute, or `None` if there is no such attribute. `data` saves the way through
/// /proc.
pub(crate) fn value(path: &CStr, data: Option<BorrowedFd<'_>>, name: &CStr) -> Result<Option<Box<[u8]>>> {
    answer(|into| match data {
        Some(fd) => rustix::fs::fgetxattr(fd, name, into),
        None => rustix::fs::getxattr(path, name, into),
    })
}

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FsXattr {
    xflags: u32,
    extsize: u32,
    nextents: u32,
    projid: u32,
    cowextsize: u32,
    pad: [u8; 8],
}

/// FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR.
const GET: libc::Ioctl = 0x801c_581f_u32 as libc::Ioctl;
const SET: libc::Ioctl = 0x401c_5820;

/// Returns the flags and the project of an inode (FS_IOC_FSGETXATTR).
fn fs_xattr(fd: BorrowedFd<'_>) -> std::result::Result<FsXattr, Errno> {
    let mut found = FsXattr::default();
    // SAFETY: a live descriptor, and a live local of the layout that the call fills.
    sys::check(unsafe { libc::ioctl(fd.as_raw_fd(), GET, &raw mut found) }.into())?;
    Ok(found)
}

/// Sets the flags and the project of an inode (FS_IOC_FSSETXATTR).
fn set_fs_xattr(fd: BorrowedFd<'_>, set: FsXattr) -> Result<()> {
    // SAFETY: a live descriptor, and a live local of the layout that the call reads.
    sys::check(unsafe { libc::ioctl(fd.as_raw_fd(), SET, &raw const set) }.into())?;
    Ok(())
}

/// Returns the flags of an inode, or `None` if it has none, or if the file system knows none.
fn flags_of(fd: BorrowedFd<'_>, has_inode_flags: bool) -> Result<Option<Flags>> {
    let found = match fs_xattr(fd) {
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::INVAL) => return Ok(None),
        found => found?,
    };
    let FsXattr { xflags, extsize, projid, cowextsize, .. } = found;
    let inode = match has_inode_flags {
        true => rustix::fs::ioctl_getflags(fd)?.bits() & INHERITED,
        false => 0,
    };
    let extended = xflags & !XFLAGS_OWN;
    let flags = Flags { extended, extent: extsize, shared_extent: cowextsize, project: projid, inode };
    Ok((flags != Flags::default()).then_some(flags))
}

/// The bit of `fsx_xflags` by which a directory gives its project to new inodes in it.
const PROJINHERIT: u32 = 0x200;

/// Returns the project that a directory gives to an inode without flags of its own.
fn project_from(dir: BorrowedFd<'_>) -> Result<Option<Flags>> {
    let given = flags_of(dir, false)?.filter(|flags| flags.extended & PROJINHERIT != 0 && flags.project != 0);
    Ok(given.map(|Flags { project, .. }| Flags { project, ..Flags::default() }))
}

/// Makes a directory give this project to new inodes in it.
pub(crate) fn pass_on_project(dir: BorrowedFd<'_>, project: u32) -> Result<()> {
    let is = project_from(dir)?.map_or(0, |flags| flags.project);
    if is == project {
        return Ok(());
    }
    let found = fs_xattr(dir)?;
    let xflags = if project == 0 { found.xflags & !PROJINHERIT } else { found.xflags | PROJINHERIT };
    set_fs_xattr(dir, FsXattr { xflags, projid: project, ..found })
}

/// Gives an inode that recovery created exactly the inherited attributes of its record. `path` and `fd` lead to it;
/// `fd` is `None` for an inode that has no flags.
pub(crate) fn give(path: &CStr, fd: Option<BorrowedFd<'_>>, given: &Given) -> Result<()> {
    for name in list(path, None)?.split(|byte| *byte == 0) {
        // From the directory that recovery has made it in.
        if name.starts_with(b"system.posix_acl_") {
            let name = CString::new(name).map_err(|_| Error::INVALID)?;
            rustix::fs::removexattr(path, &name)?;
        }
    }
    for (name, value) in &given.xattrs {
        let name = CString::new(&name[..]).map_err(|_| Error::INVALID)?;
        rustix::fs::setxattr(path, &name, value, XattrFlags::empty())?;
    }
    set_acl(path, given.acl.as_deref())?;
    let Some(fd) = fd else { return Ok(()) };
    let has_inode_flags = given.flags.is_some_and(|flags| flags.inode != 0);
    let (wanted, is) = (given.flags.unwrap_or_default(), flags_of(fd, has_inode_flags)?.unwrap_or_default());
    if wanted == is {
        return Ok(());
    }
    let Flags { extended, extent, shared_extent, project, inode } = wanted;
    if has_inode_flags {
        let others = rustix::fs::ioctl_getflags(fd)?.bits() & !INHERITED;
        rustix::fs::ioctl_setflags(fd, rustix::fs::IFlags::from_bits_retain(others | inode))?;
    }
    let (xflags, extsize, cowextsize) = (extended, extent, shared_extent);
    set_fs_xattr(fd, FsXattr { xflags, extsize, cowextsize, projid: project, ..FsXattr::default() })
}

/// Sets an access control list, or takes it away.
pub(crate) fn set_acl(path: &CStr, acl: Option<&[u8]>) -> Result<()> {
    let set = match acl {
        Some(acl) => rustix::fs::setxattr(path, ACL, acl, XattrFlags::empty()),
        None => rustix::fs::removexattr(path, ACL),
    };
    match set {
        // There is none, nor can there be one.
        Err(Errno::NODATA | Errno::OPNOTSUPP) if acl.is_none() => Ok(()),
        set => Ok(set?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_attributes_are_listed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = CString::new(file.path().to_str().unwrap()).unwrap();
        assert_eq!(list(&path, None), Ok(Vec::new()));
        for name in [c"user.one", c"user.two"] {
            // Not every file system has them.
            if rustix::fs::setxattr(&path, name, b"value", XattrFlags::empty()).is_err() {
                return;
            }
        }
        for data in [None, Some(file.as_fd())] {
            let mut names: Vec<_> =
                list(&path, data).unwrap().split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
            names.sort();
            assert_eq!(names, [&b""[..], b"user.one", b"user.two"]);
        }
        for data in [None, Some(file.as_fd())] {
            assert_eq!(value(&path, data, c"user.one"), Ok(Some(b"value"[..].into())));
            assert_eq!(value(&path, data, c"user.none"), Ok(None));
        }
    }
}
