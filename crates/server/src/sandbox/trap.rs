//! The handler of refused system calls. A refused call fails as if the kernel lacked it, and its number is reported
//! once.
//!
//! Among the ways in which seccomp(2) refuses a call, only a signal tells the process without making the call wait for
//! another thread. For ENOSYS, the C library and this server have replacements.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::pipe::{PipeFlags, pipe_with};

/// True if a signal handler can set the result of a call on this architecture.
pub(crate) const SUPPORTED: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

/// The bound of call numbers: no kernel has as many calls.
const NUMBERS: usize = 1024;

/// A bit for each number that was reported.
static TOLD: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];
/// The pipe to which numbers are written; -1 before [`catch`].
static PIPE: AtomicI32 = AtomicI32::new(-1);

/// The beginning of `siginfo_t` for SIGSYS (sigaction(2)).
#[repr(C)]
struct SigSys {
    signal: i32,
    errno: i32,
    code: i32,
    padding: i32,
    address: *const libc::c_void,
    call: i32,
    architecture: u32,
}

/// Returns true if the refused call was not reported before.
pub(crate) fn is_new(number: u32) -> bool {
    let (word, bit) = (number as usize / 64, 1 << (number % 64));
    TOLD.get(word).is_some_and(|word| word.fetch_or(bit, Ordering::Relaxed) & bit == 0)
}

/// Handles SIGSYS from here on: refused calls fail with ENOSYS. Returns the end of a pipe from which their numbers are
/// read.
///
/// # Errors
/// The pipe cannot be created, or no handler can be set.
pub(crate) fn catch() -> io::Result<OwnedFd> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    // A signal handler must never block.
    rustix::fs::fcntl_setfl(&write, rustix::fs::OFlags::NONBLOCK)?;
    PIPE.store(write.as_raw_fd(), Ordering::Relaxed);
    // The handler uses this end of the pipe as long as the process lives.
    std::mem::forget(write);
    // SAFETY: zeros are a valid value of `sigaction`: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the handler makes only calls that are safe in a signal handler, and has the signature for SA_SIGINFO.
    match unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(read),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives the call its result. Uses only atomics and write(2), which are safe in a signal handler.
extern "C" fn handle(_signal: i32, info: *const SigSys, context: *mut libc::ucontext_t) {
    // SAFETY: the kernel passes both, filled, for SA_SIGINFO; nothing else refers to them.
    let (info, context) = unsafe { (&*info, &mut *context) };
    fail(context);
    let Ok(number) = u32::try_from(info.call) else { return };
    if is_new(number) {
        let bytes = number.to_ne_bytes();
        // SAFETY: errno belongs to this thread, and the buffer is live. Where the pipe is full, the kernel's log has
        // the number.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            let _ = libc::write(PIPE.load(Ordering::Relaxed), bytes.as_ptr().cast(), bytes.len());
            *errno = before;
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn fail(context: &mut libc::ucontext_t) {
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = i64::from(-libc::ENOSYS);
}

#[cfg(target_arch = "aarch64")]
fn fail(context: &mut libc::ucontext_t) {
    context.uc_mcontext.regs[0] = i64::from(-libc::ENOSYS) as u64;
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn fail(_: &mut libc::ucontext_t) {}

/// Iterates over the numbers of refused calls, each once. Waits for the next number.
pub(crate) struct Told(File);

impl Told {
    /// Reads from the pipe that [`catch`] returned.
    pub(crate) fn new(pipe: OwnedFd) -> Self {
        Told(pipe.into())
    }
}

impl Iterator for Told {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let mut bytes = [0; 4];
        self.0.read_exact(&mut bytes).ok()?;
        Some(u32::from_ne_bytes(bytes))
    }
}
