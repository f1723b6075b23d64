//! A user database for one test.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Shows the command the `passwd` and `group` of this directory in /etc. Other processes of the host do not see them.
pub(super) fn show(command: &mut Command, dir: &Path) {
    let files = [("passwd", c"/etc/passwd"), ("group", c"/etc/group")]
        .map(|(name, at)| (CString::new(dir.join(name).as_os_str().as_bytes()).unwrap(), at));
    let mount = |from: &CStr, at: &CStr, flags| {
        let none = std::ptr::null();
        // SAFETY: both paths are C strings; the other pointers may be null for such mounts.
        match unsafe { libc::mount(from.as_ptr(), at.as_ptr(), none, flags, none.cast()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let install = move || {
        // SAFETY: the call changes this process only, which has one thread.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
            return Err(io::Error::last_os_error());
        }
        mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE)?;
        files.iter().try_for_each(|(file, at)| mount(file, at, libc::MS_BIND))
    };
    // SAFETY: the closure allocates no memory and takes no lock.
    unsafe { command.pre_exec(install) };
}
