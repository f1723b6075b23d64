//! The filter of system calls (seccomp(2)): a program for the kernel, and its installation.
//!
//! The program examines only the number of a call, never its arguments. Therefore Linux since 5.11 runs it once for
//! each number, at installation, and an allowed call costs one bitmap lookup. Older kernels run a binary search of
//! eight steps.

use std::io;

use libc::{sock_filter, sock_fprog};

use crate::sandbox::calls;

/// The effect of a call that is not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The call fails with the error that the handler of SIGSYS gives it (`trap.rs`).
    Trap,
    /// The kernel kills the process.
    Kill,
}

impl Refusal {
    /// Returns the return value of the kernel's filter program. Where no signal handler can set a call's result, the
    /// call fails with ENOSYS and is not reported.
    fn action(self) -> u32 {
        match self {
            Refusal::Trap if crate::sandbox::trap::SUPPORTED => libc::SECCOMP_RET_TRAP,
            Refusal::Trap => libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
            Refusal::Kill => libc::SECCOMP_RET_KILL_PROCESS,
        }
    }
}

/// `AUDIT_ARCH_...` of linux/audit.h: machine, 64 bits, little endian. `None`: the server has no filter on this
/// architecture.
const ARCHITECTURE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xc000_003e)
} else if cfg!(target_arch = "aarch64") {
    Some(0xc000_00b7)
} else {
    None
};

/// The offset of the number in `struct seccomp_data`; the architecture has an offset of its own.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;

const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const JUMP: u16 = 0x05;
const RETURN: u16 = 0x06;

fn step(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// Allows the calls of `allowed` (ascending) on `architecture`, and refuses all others with `refusal`.
fn program(architecture: u32, allowed: &[u32], refusal: u32) -> Vec<sock_filter> {
    // Numbers at which the answer changes. Below the first of them, calls are refused.
    let mut edges = Vec::new();
    for number in allowed {
        match edges.last() {
            Some(end) if end == number => *edges.last_mut().unwrap_or(&mut 0) = number + 1,
            _ => edges.extend([*number, number + 1]),
        }
    }
    let mut program = vec![
        step(LOAD, ARCH),
        sock_filter { code: JUMP_IF_EQUAL, jt: 1, jf: 0, k: architecture },
        step(RETURN, refusal),
        step(LOAD, NUMBER),
    ];
    program.extend(search(&edges, false, refusal));
    program
}

/// Returns the program part for the numbers between two edges; `allows` tells if numbers below the first are allowed.
fn search(edges: &[u32], allows: bool, refusal: u32) -> Vec<sock_filter> {
    if edges.is_empty() {
        return vec![step(RETURN, if allows { libc::SECCOMP_RET_ALLOW } else { refusal })];
    }
    let middle = edges.len() / 2;
    let below = search(&edges[..middle], allows, refusal);
    let above = search(&edges[middle + 1..], allows == (middle % 2 == 1), refusal);
    // A conditional jump reaches only 255 steps; an unconditional jump reaches all.
    let head = [
        sock_filter { code: JUMP_IF_AT_LEAST, jt: 0, jf: 1, k: edges[middle] },
        step(JUMP, below.len() as u32),
    ];
    [&head[..], &below, &above].concat()
}

/// Filters the system calls of all threads of this process permanently. The kernel logs refused calls.
///
/// # Errors
/// The architecture has no filter, or the kernel does not install it; nothing is filtered then.
pub(crate) fn install(refusal: Refusal) -> io::Result<()> {
    let architecture = ARCHITECTURE.ok_or(io::ErrorKind::Unsupported)?;
    load(&program(architecture, &calls::allowed(), refusal.action()), libc::SECCOMP_FILTER_FLAG_TSYNC)
}

/// Installs a filter program in the kernel. Fails if a thread of the process has a filter of its own, or the kernel
/// has no seccomp.
fn load(program: &[sock_filter], flags: libc::c_ulong) -> io::Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = sock_fprog { len, filter: program.as_ptr().cast_mut() };
    let flags = flags | libc::SECCOMP_FILTER_FLAG_LOG;
    // SAFETY: the program is live, `len` steps long, and only read.
    let result = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, std::ptr::from_ref(&program))
    };
    match result {
        0 => Ok(()),
        // A positive result is a thread that could not be given the filter.
        1.. => Err(io::Error::other(format!("thread {result} has a filter of its own"))),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the program as the kernel would.
    fn run(program: &[sock_filter], architecture: u32, number: u32) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match code {
                LOAD => value = if k == ARCH { architecture } else { number },
                JUMP => at += k as usize,
                JUMP_IF_EQUAL => at += usize::from(if value == k { jt } else { jf }),
                JUMP_IF_AT_LEAST => at += usize::from(if value >= k { jt } else { jf }),
                RETURN => return k,
                _ => panic!("no such step"),
            }
        }
    }

    #[test]
    fn exactly_the_listed_calls_of_this_architecture_are_allowed() {
        let refusal = Refusal::Kill.action();
        let listed = calls::allowed();
        for allowed in [&listed[..], &[0], &[3, 4, 5, 9], &[]] {
            let program = program(ARCHITECTURE.unwrap(), allowed, refusal);
            for number in (0..1200).chain([0x4000_0000, u32::MAX]) {
                let expected = if allowed.contains(&number) { libc::SECCOMP_RET_ALLOW } else { refusal };
                assert_eq!(run(&program, ARCHITECTURE.unwrap(), number), expected, "{number}");
                assert_eq!(run(&program, 0x4000_0003, number), refusal, "{number} of 32 bits");
            }
        }
        assert!(program(ARCHITECTURE.unwrap(), &listed, refusal).len() < 1000, "the kernel takes 4096 steps");
    }

    #[test]
    fn a_call_that_is_not_listed_fails_and_is_told_once() {
        let told = crate::sandbox::trap::catch().unwrap();
        // A filter belongs to one thread unless it is installed for all threads.
        let thread = std::thread::spawn(|| {
            let listed = program(ARCHITECTURE.unwrap(), &calls::allowed(), Refusal::Trap.action());
            load(&listed, 0).unwrap();
            let call = || {
                // SAFETY: integers only, and it is not carried out.
                let result = unsafe { libc::syscall(libc::SYS_personality, 0xffff_ffffu32) };
                (result, io::Error::last_os_error().raw_os_error())
            };
            assert_eq!((call(), call()), ((-1, Some(libc::ENOSYS)), (-1, Some(libc::ENOSYS))));
            assert!(std::fs::metadata("/").is_ok());
        });
        thread.join().unwrap();
        let numbers = crate::sandbox::trap::Told::new(told);
        assert_eq!(numbers.into_iter().next(), Some(libc::SYS_personality as u32));
        assert!(!crate::sandbox::trap::is_new(libc::SYS_personality as u32));
    }
}
