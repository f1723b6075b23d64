//! The Linux system calls that no safe wrapper offers, one function each.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

pub(crate) use forebay_oplog::{IDENTITY_MAX as KERNEL_HANDLE_MAX, Identity as KernelHandle};

#[repr(C)]
struct RawHandle {
    len: u32,
    kind: i32,
    bytes: [u8; KERNEL_HANDLE_MAX],
}

/// Returns the result of a system call, or its error.
pub(crate) fn check(result: libc::c_long) -> Result<libc::c_long, Errno> {
    if result < 0 {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    } else {
        Ok(result)
    }
}

/// Returns the handle of `name` below `dir`, or of `dir` itself if `name` is empty.
pub(crate) fn name_to_handle(dir: impl AsFd, name: &CStr) -> Result<KernelHandle, Errno> {
    let mut raw = RawHandle { len: KERNEL_HANDLE_MAX as u32, kind: 0, bytes: [0; KERNEL_HANDLE_MAX] };
    let mut mount_id: libc::c_int = 0;
    let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
    // SAFETY: every pointer is to a live local of the layout the call expects; `len` states the room.
    check(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            dir.as_fd().as_raw_fd(),
            name.as_ptr(),
            &raw mut raw,
            &raw mut mount_id,
            flags,
        )
    })?;
    Ok(KernelHandle { kind: raw.kind, len: raw.len.min(KERNEL_HANDLE_MAX as u32) as u8, bytes: raw.bytes })
}

/// Opens the inode that `handle` names, on the mount that `mount` is on. Needs CAP_DAC_READ_SEARCH.
pub(crate) fn open_by_handle(mount: impl AsFd, handle: &KernelHandle, flags: i32) -> Result<OwnedFd, Errno> {
    let mut raw = RawHandle { len: u32::from(handle.len), kind: handle.kind, bytes: handle.bytes };
    // SAFETY: `raw` is a live local laid out as struct file_handle.
    let fd = check(unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_fd().as_raw_fd(),
            &raw mut raw,
            flags | libc::O_CLOEXEC,
        )
    })?;
    // SAFETY: the call just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Writes "/proc/self/fd/N" into `buf`.
pub(crate) fn proc_path(buf: &mut [u8; 32], fd: impl AsFd) -> &CStr {
    use std::io::Write;
    let mut rest = &mut buf[..];
    // 14 bytes of prefix, at most 10 digits, one NUL: always fits.
    let _ = write!(rest, "/proc/self/fd/{}\0", fd.as_fd().as_raw_fd());
    CStr::from_bytes_until_nul(buf).unwrap_or(c"/proc/self/fd")
}

/// Sets the permission bits of the inode behind a descriptor, O_PATH or not. Uses fchmodat2(2), which Linux has since
/// 6.6. An older kernel, or a filter of system calls that answers EPERM, makes this function use the path in /proc,
/// which takes twice the time.
pub(crate) fn chmod(fd: impl AsFd, mode: u32) -> Result<(), Errno> {
    static MISSING: AtomicBool = AtomicBool::new(false);
    if !MISSING.load(Ordering::Relaxed) {
        let (fd, flags) = (fd.as_fd().as_raw_fd(), libc::AT_EMPTY_PATH);
        // SAFETY: an empty C string and plain integers.
        match check(unsafe { libc::syscall(libc::SYS_fchmodat2, fd, c"".as_ptr(), mode, flags) }) {
            Err(Errno::NOSYS) => MISSING.store(true, Ordering::Relaxed),
            Err(Errno::PERM) => {}
            set => return set.map(drop),
        }
    }
    let mut path = [0; 32];
    rustix::fs::chmodat(CWD, proc_path(&mut path, fd), Mode::from_raw_mode(mode), AtFlags::empty())
}

/// Opens the inode behind a descriptor again, under whatever names it has now.
pub(crate) fn reopen(fd: impl AsFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut path = [0; 32];
    rustix::fs::open(proc_path(&mut path, fd), flags | OFlags::CLOEXEC, Mode::empty())
}

/// Returns true if the thread's file system identity may access the inode behind `fd`. `mode` is made of R_OK, W_OK and
/// X_OK.
pub(crate) fn may_access(fd: impl AsFd, mode: i32) -> Result<bool, Errno> {
    // SAFETY: an empty C string and plain integers.
    let result = check(unsafe {
        libc::syscall(
            libc::SYS_faccessat2,
            fd.as_fd().as_raw_fd(),
            c"".as_ptr(),
            mode,
            libc::AT_EMPTY_PATH | libc::AT_EACCESS,
        )
    });
    match result {
        Ok(_) => Ok(true),
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Starts writing the dirty pages of a byte range (`wait` false) or makes them reach the device's
/// cache (`wait` true), reporting write errors. Says nothing about the device's cache or metadata.
/// `len` 0 means up to the end of the file.
pub(crate) fn sync_file_range(fd: impl AsFd, offset: u64, len: u64, wait: bool) -> Result<(), Errno> {
    let mut flags = libc::SYNC_FILE_RANGE_WRITE;
    if wait {
        flags |= libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    }
    // SAFETY: plain integers and a live descriptor.
    let result = unsafe { libc::sync_file_range(fd.as_fd().as_raw_fd(), offset as i64, len as i64, flags) };
    check(result.into()).map(drop)
}

/// Returns true if all of a byte range of a file is in memory, read and not still being read. `len` is at most 1 MiB.
/// Pages may leave memory at any time afterwards. To a caller who may not change the file, the kernel always answers
/// yes (mincore(2)).
pub(crate) fn resident(fd: impl AsFd, offset: u64, len: usize) -> bool {
    const PAGE: usize = 4096;
    const MOST: usize = (1 << 20) / PAGE + 1;
    let skew = (offset % PAGE as u64) as usize;
    let mut pages = [0u8; MOST];
    let Some(pages) = pages.get_mut(..(skew + len).div_ceil(PAGE)) else { return false };
    let (size, start) = (pages.len() * PAGE, offset - skew as u64);
    // SAFETY: a mapping at an address that the kernel picks aliases nothing. No code touches it before it is unmapped,
    // so the end of the file does not matter. The vector has a byte for each of its pages.
    unsafe {
        let flags = rustix::mm::MapFlags::SHARED;
        let Ok(map) = rustix::mm::mmap(std::ptr::null_mut(), size, ProtFlags::READ, flags, fd, start) else {
            return false;
        };
        let told = libc::mincore(map, size, pages.as_mut_ptr()) == 0;
        let unmapped = rustix::mm::munmap(map, size).is_ok();
        told && unmapped && pages.iter().all(|page| page & 1 == 1)
    }
}

/// Sets the calling thread's supplementary groups (the raw call: glibc's would set every thread's).
pub(crate) fn set_thread_groups(groups: &[u32]) -> Result<(), Errno> {
    // SAFETY: pointer and length describe `groups`.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) }).map(drop)
}

/// Sets the calling thread's effective user and group, and with them its file system identity. Makes the raw calls,
/// since glibc's would change every thread. Leaving user 0 drops all effective capabilities; returning to user 0
/// restores them (capabilities(7)).
pub(crate) fn set_thread_ids(uid: u32, gid: u32, returning: bool) -> Result<(), Errno> {
    const KEEP: u32 = u32::MAX;
    if uid == KEEP || gid == KEEP {
        return Err(Errno::INVAL);
    }
    // SAFETY: plain integers; both calls report failure and then change nothing.
    let set_gid = || check(unsafe { libc::syscall(libc::SYS_setresgid, KEEP, gid, KEEP) });
    // SAFETY: plain integers; the call reports failure and then changes nothing.
    let set_uid = || check(unsafe { libc::syscall(libc::SYS_setresuid, KEEP, uid, KEEP) });
    if returning {
        set_uid()?;
        set_gid()?;
    } else {
        set_gid()?;
        set_uid()?;
    }
    Ok(())
}

/// The kind of a quota: of a user or of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaKind {
    User = 0,
    Group = 1,
}

/// A quota of space; 0 for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Bytes that are never exceeded.
    pub(crate) hard: u64,
    /// Bytes that are exceeded only until [`Limits::grace_ends`].
    pub(crate) soft: u64,
    /// Bytes in use.
    pub(crate) used: u64,
    /// Seconds since 1970; 0 if the soft limit is not exceeded.
    pub(crate) grace_ends: u64,
}

/// Lets `into` share `len` bytes of `from` (FICLONERANGE); 0 means to the end of `from`.
pub(crate) fn clone_range(
    from: impl AsFd,
    from_offset: u64,
    len: u64,
    into: impl AsFd,
    offset: u64,
) -> Result<(), Errno> {
    let range = libc::file_clone_range {
        src_fd: from.as_fd().as_raw_fd().into(),
        src_offset: from_offset,
        src_length: len,
        dest_offset: offset,
    };
    // SAFETY: the argument is a live local of the layout that the call reads.
    let result = unsafe { libc::ioctl(into.as_fd().as_raw_fd(), libc::FICLONERANGE, &raw const range) };
    check(result.into()).map(drop)
}

/// Commands of quotactl(2), from linux/quota.h and linux/dqblk_xfs.h.
const Q_GETQUOTA: libc::c_int = 0x80_0007;
const Q_XGETQSTATV: libc::c_int = (b'X' as libc::c_int) << 8 | 8;

/// Returns true if the file system of `fd` enforces quotas of users or groups. Needs Linux 5.14.
pub(crate) fn has_quotas(fd: impl AsFd) -> Result<bool, Errno> {
    /// FS_QUOTA_UDQ_ENFD and FS_QUOTA_GDQ_ENFD.
    const ENFORCED: u16 = 1 << 1 | 1 << 3;
    // struct fs_quota_statv: its version, a byte of padding, flags; 160 bytes in all.
    let mut state = [0u64; 32];
    state[0] = u64::from_ne_bytes([1, 0, 0, 0, 0, 0, 0, 0]);
    // SAFETY: the buffer is a live local, aligned, and larger than what the call fills.
    unsafe { quotactl(fd, Q_XGETQSTATV, QuotaKind::User, 0, state.as_mut_ptr().cast())? };
    let [_, _, low, high, ..] = state[0].to_ne_bytes();
    Ok(u16::from_ne_bytes([low, high]) & ENFORCED != 0)
}

/// Returns the quota of a user or group on the file system of `fd`. Needs CAP_SYS_ADMIN, except for the caller's own
/// quota.
pub(crate) fn quota(fd: impl AsFd, kind: QuotaKind, id: u32) -> Result<Limits, Errno> {
    /// Unit of limits, in bytes (QIF_DQBLKSIZE).
    const UNIT: u64 = 1024;
    let mut found = std::mem::MaybeUninit::<libc::dqblk>::zeroed();
    // SAFETY: the buffer is a live local of the layout that the call fills.
    unsafe { quotactl(fd, Q_GETQUOTA, kind, id, found.as_mut_ptr().cast())? };
    // SAFETY: integers only, for which zeros are values.
    let found = unsafe { found.assume_init() };
    Ok(Limits {
        hard: found.dqb_bhardlimit.saturating_mul(UNIT),
        soft: found.dqb_bsoftlimit.saturating_mul(UNIT),
        used: found.dqb_curspace,
        grace_ends: found.dqb_btime,
    })
}

/// SAFETY: `into` must have the layout that `command` fills.
unsafe fn quotactl(
    fd: impl AsFd,
    command: libc::c_int,
    kind: QuotaKind,
    id: u32,
    into: *mut libc::c_void,
) -> Result<(), Errno> {
    let command = command << 8 | kind as libc::c_int;
    // SAFETY: the caller of this function promises the layout of `into`.
    check(unsafe { libc::syscall(libc::SYS_quotactl_fd, fd.as_fd().as_raw_fd(), command, id, into) })
        .map(drop)
}

/// Returns milliseconds of the coarse monotonic clock: a tick late at most, never 0.
pub(crate) fn coarse_millis() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000 + 1
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{Advice, fadvise};

    use super::*;

    #[test]
    fn what_was_written_is_resident_and_what_was_dropped_is_not() {
        const TMPFS: i64 = 0x0102_1994;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; (1 << 20) + 8192]).unwrap();
        file.sync_all().unwrap();
        for (offset, len) in [(0, 1 << 20), (4095, 1 << 20), (8192, 1), (8191, 2), (0, 1)] {
            assert!(resident(&file, offset, len), "{len} at {offset}");
        }
        assert!(!resident(&file, 1, 2 << 20), "more than is looked at");
        if rustix::fs::fstatfs(&file).unwrap().f_type == TMPFS {
            return;
        }
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        fadvise(&file, 0, None, Advice::Random).unwrap();
        assert!(!resident(&file, 0, 1 << 20));
        file.read_exact_at(&mut [0; 4096], 65_536).unwrap();
        assert!(resident(&file, 65_536, 4096));
        for (offset, len) in [(0, 1 << 20), (65_536, 1 << 20), (1 << 20, 8192)] {
            assert!(!resident(&file, offset, len), "{len} at {offset}");
        }
    }
}
