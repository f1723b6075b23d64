//! A user database of a test's own.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Has the command see `passwd` and `group` of this directory in /etc: the rest of the host does not.
pub(super) fn show(command: &mut Command, dir: &Path) {
    let files = [("passwd", c"/etc/passwd"), ("group", c"/etc/group")]
        .map(|(name, at)| (CString::new(dir.join(name).as_os_str().as_bytes()).unwrap(), at));
    let mount = |from: &CStr, at: &CStr, flags| {
        let none = std::ptr::null();
        // SAFETY: both are C strings; the others may be null for such mounts.
        match unsafe { libc::mount(from.as_ptr(), at.as_ptr(), none, flags, none.cast()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let install = move || {
        // SAFETY: it changes this process only, which has one thread.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            return Err(io::Error::last_os_error());
        }
        mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE)?;
        files.iter().try_for_each(|(file, at)| mount(file, at, libc::MS_BIND))
    };
    // SAFETY: it allocates nothing and takes no lock.
    unsafe { command.pre_exec(install) };
}
