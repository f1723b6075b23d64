//! A filter of system calls around the server, as a service manager or a container installs one.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Runs the command under a filter that makes the `forbidden` calls fail with EPERM, as systemd's SystemCallFilter=
/// does.
pub(super) fn forbid(command: &mut Command, forbidden: &[libc::c_long]) {
    if forbidden.is_empty() {
        return;
    }
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = vec![step(0x20, 0, 0, 0)];
    for number in forbidden {
        program.push(step(0x15, 0, 1, u32::try_from(*number).unwrap()));
        program.push(step(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    }
    program.push(step(0x06, 0, 0, libc::SECCOMP_RET_ALLOW));
    let install = move || {
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
        // SAFETY: the program is live and only read. Both calls are system calls, which a child may make before exec.
        let done = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) == 0
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    };
    // SAFETY: the closure allocates no memory and takes no lock.
    unsafe { command.pre_exec(install) };
}
