//! Payloads that go from a file's page cache to a socket without a copy: the pages wait in a pipe, by reference.
//!
//! The pages are in the pipe before the length of the reply is promised. Therefore the promised bytes can be sent
//! whatever happens to the file afterwards. Their contents are those of the file when the network takes them: a later
//! write may show in a reply that is still queued.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_common::lock::Mutex;
use rustix::io::{Errno, read};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use crate::pool::{Account, Charge, Free};

/// Bytes of whole pages a pipe holds: the most that a process without privileges may ask for (pipe(7)).
const CAPACITY: usize = 1 << 20;
/// Shorter payloads are copied: a copy that stays in the processor's caches costs no more than the system calls it
/// takes to go without (docs/decisions/008-splice.md).
const WORTH_IT: usize = 128 << 10;
const PAGE: u64 = 4096;
/// The largest number of pipes. With these, a user without privileges has as many pages in pipes as allowed (pipe(7)).
/// Connections that read fast need a pipe for a moment. Slow ones may take all pipes; all other connections get copies.
const MOST: usize = 64;

/// A pipe, empty while it is not in use.
#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipe {
    /// Returns a pipe with room for `CAPACITY` bytes, or `None` if the system does not give one.
    fn new() -> Option<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).ok()?;
        (fcntl_setpipe_size(&write, CAPACITY).ok()? >= CAPACITY).then_some(Self { read, write })
    }
}

/// The pipes of a server.
#[derive(Default)]
pub(crate) struct Pipes {
    made: AtomicUsize,
    free: Mutex<Free<Pipe>>,
}

impl Pipes {
    /// Returns an empty pipe, or `None` if `MOST` pipes are in use or the system gives none. The reply is then
    /// copied.
    pub(crate) fn lease(&self) -> Option<Pipe> {
        if let Some(pipe) = self.free.lock().pop() {
            return Some(pipe);
        }
        let pipe = if self.made.fetch_add(1, Relaxed) < MOST { Pipe::new() } else { None };
        if pipe.is_none() {
            self.made.fetch_sub(1, Relaxed);
        }
        pipe
    }

    /// Takes a pipe back for reuse. A pipe that is not empty is closed, so that no reply sends bytes of another.
    pub(crate) fn give_back(&self, pipe: Pipe, empty: bool) {
        if empty {
            self.free.lock().push(pipe);
        } else {
            self.made.fetch_sub(1, Relaxed);
        }
    }

    /// Closes pipes that were not needed since the last call.
    pub(crate) fn trim(&self) {
        let unneeded = self.free.lock().trim();
        self.made.fetch_sub(unneeded.len(), Relaxed);
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.lock().is_empty()
    }
}

/// Returns true if a payload may be sent by reference: it is worth it, fits a pipe, and needs no padding.
pub(crate) fn suits(offset: u64, len: usize) -> bool {
    let pages = (offset % PAGE) + len as u64;
    len >= WORTH_IT && len.is_multiple_of(4) && pages <= CAPACITY as u64
}

/// A payload in a pipe.
pub(crate) struct Spliced {
    /// Present until drop.
    pipe: Option<Pipe>,
    left: usize,
    account: Arc<Account>,
    /// The pages belong to the kernel, but are held in memory for this reply.
    _charge: Charge,
}

impl Spliced {
    /// Takes `len` bytes of `file` at `offset`, and reads them into memory if they are not there. Returns none if not
    /// all bytes are available this way; reading may still return them.
    pub(crate) fn new(
        account: &Arc<Account>,
        file: BorrowedFd<'_>,
        mut offset: u64,
        len: usize,
    ) -> Option<Self> {
        let pipe = account.lease_pipe(len)?;
        let mut taken = 0;
        while taken < len {
            match splice(file, Some(&mut offset), &pipe.write, None, len - taken, SpliceFlags::NONBLOCK) {
                Ok(n @ 1..) => taken += n,
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => {
                    account.give_back_pipe(pipe, taken == 0);
                    return None;
                }
            }
        }
        let charge = account.charge(len);
        Some(Self { pipe: Some(pipe), left: len, account: Arc::clone(account), _charge: charge })
    }

    /// Returns the number of bytes that are not sent yet.
    pub(crate) fn len(&self) -> usize {
        self.left
    }

    /// Sends once without blocking (the socket is non-blocking), and repeats an interrupted call.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        let Some(pipe) = &self.pipe else { return Ok(0) };
        let send = || splice(&pipe.read, None, socket, None, self.left, SpliceFlags::NONBLOCK);
        match rustix::io::retry_on_intr(send) {
            // The pipe holds the unsent bytes, so a result of zero means that the socket takes no more.
            Ok(0) => Err(Errno::PIPE),
            Ok(n) => {
                self.advance(n);
                Ok(n)
            }
            Err(errno) => Err(errno),
        }
    }

    /// Copies the next bytes into `buf`, which is not longer than the payload. They count as unsent until
    /// [`advance`](Self::advance), and must not be read again.
    pub(crate) fn read(&self, mut buf: &mut [u8]) -> Result<(), Errno> {
        while let (Some(pipe), false) = (&self.pipe, buf.is_empty()) {
            match read(&pipe.read, &mut *buf) {
                // The pipe holds the unsent bytes.
                Ok(0) => return Err(Errno::PIPE),
                Ok(n) => buf = &mut buf[n..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Counts bytes as sent.
    pub(crate) fn advance(&mut self, n: usize) {
        self.left -= n;
    }
}

impl Drop for Spliced {
    fn drop(&mut self) {
        if let Some(pipe) = self.pipe.take() {
            self.account.give_back_pipe(pipe, self.left == 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn payloads_that_cannot_go_this_way_use_up_no_pipe() {
        let account = Account::new(crate::pool::Pool::new(1 << 20, 64 << 20));
        let path = std::env::temp_dir().join(format!("forebay-splice-{}", std::process::id()));
        std::fs::write(&path, vec![1; 200 << 10]).unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for _ in 0..2 * MOST {
            assert!(Spliced::new(&account, file.as_fd(), 0, 256 << 10).is_none(), "the file is shorter");
            assert!(
                Spliced::new(&account, file.as_fd(), 1 << 20, 128 << 10).is_none(),
                "it ends before that"
            );
        }
        assert!(Spliced::new(&account, file.as_fd(), 0, 128 << 10).is_some());
    }
}
