//! TLS by the kernel (kTLS). With the keys of a session, a socket seals and opens records by itself, so the connection
//! goes on as a plain one: replies from the page cache are spliced, and large requests are received into their buffers.
//!
//! The keys are given after the handshake, when no received byte is left in user space ([`crate::handshake`]).
//! A connection whose socket refuses the protocol itself goes on in user space. A connection whose socket refuses a key
//! is closed, because the session has given its keys up. [`probe`] finds out beforehand that the kernel takes the keys.

mod control;
mod probe;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_tls::{CryptoInfo, KernelKeys, Session};
use rustix::io::Errno;

pub(crate) use control::{Control, receive_control, say_farewell};
pub(crate) use probe::announce;

/// The largest number of plain bytes in a record (RFC 8446 section 5.1).
const RECORD: usize = 16 << 10;

/// A connection whose socket has the keys of its session.
pub(crate) struct InKernel {
    /// The number of records that were sent, or more.
    sent: AtomicU64,
    /// The number of records after which the connection needs new keys.
    limit: u64,
}

impl InKernel {
    fn new(limit: u64) -> Self {
        Self { sent: AtomicU64::new(0), limit }
    }

    /// Counts the records for `bytes` that the socket has taken at once.
    pub(crate) fn sent(&self, bytes: usize) {
        self.sent.fetch_add((bytes / RECORD + 1) as u64, Relaxed);
    }

    /// Returns true if the key for sending is used up. The kernel makes no new keys, so the connection has to end.
    pub(crate) fn is_used_up(&self) -> bool {
        self.sent.load(Relaxed) >= self.limit
    }
}

/// The result of an offer to the kernel.
pub(crate) enum Offered {
    /// The socket has the keys.
    Taken(InKernel),
    /// The session goes on in user space.
    Declined(Box<Session>),
}

/// Gives the keys of a session to the kernel, if that takes them. Every byte that the session has made is sent.
/// `most_records` bounds the records that are sent with one key, below the bound of the cipher.
///
/// # Errors
/// The reason why the connection has to be closed.
pub(crate) fn offer(fd: BorrowedFd<'_>, session: Box<Session>, most_records: u64) -> Result<Offered, String> {
    let is_known = session.cipher_for_kernel().is_some_and(probe::supports);
    // Fails for example if the peer has sent everything. Without keys, the protocol changes nothing.
    if !is_known || attach(fd).is_err() {
        return Ok(Offered::Declined(session));
    }
    let keys = session.into_keys().map_err(|error| error.to_string())?;
    let limit = keys.records.min(most_records);
    install(fd, &keys).map_err(|error| format!("the kernel does not take the keys of TLS ({error})"))?;
    Ok(Offered::Taken(InKernel::new(limit)))
}

/// Makes TLS the protocol above TCP of a connected socket.
fn attach(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    set(fd, libc::SOL_TCP, libc::TCP_ULP, b"tls")
}

/// Gives a socket the keys of both directions.
fn install(fd: BorrowedFd<'_>, keys: &KernelKeys) -> Result<(), Errno> {
    install_one(fd, libc::TLS_TX, &keys.send)?;
    install_one(fd, libc::TLS_RX, &keys.receive)
}

fn install_one(fd: BorrowedFd<'_>, direction: libc::c_int, key: &CryptoInfo) -> Result<(), Errno> {
    set(fd, libc::SOL_TLS, direction, key.as_bytes())
}

/// Sets an option of a socket.
fn set(fd: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: &[u8]) -> Result<(), Errno> {
    // SAFETY: the value is live, and the kernel reads `value.len()` bytes of it.
    let result = unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), value.len() as libc::socklen_t)
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Returns the error of the last call of libc.
fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// Returns true for an error with which the kernel's TLS refuses received bytes: they were changed, or are no record.
pub(crate) fn is_refusal(error: Errno) -> bool {
    matches!(error, Errno::BADMSG | Errno::MSGSIZE | Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_used_up_after_its_number_of_records() {
        let kernel = InKernel::new(6);
        kernel.sent(100);
        assert!(!kernel.is_used_up());
        // Five records at most, whatever the kernel has gathered before.
        kernel.sent(4 * RECORD);
        assert!(kernel.is_used_up());
    }
}
