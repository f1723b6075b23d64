//! Whole reads and writes of a backing file, of which the kernel may do a part at a time.

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, ReadWriteFlags};

use crate::error::{Error, Result};
use crate::wait::Wait;

/// Reads until `buf` is full or the file ends. Without permission to wait it reads only pages that are in memory.
pub(crate) fn read_full(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64, wait: Wait) -> Result<usize> {
    let flags = if wait.allowed() { ReadWriteFlags::empty() } else { ReadWriteFlags::NOWAIT };
    // Linux refuses a read that could end behind its largest offset, also if the file ends before.
    let most = (i64::MAX as u64).saturating_sub(offset);
    let len = buf.len().min(usize::try_from(most).unwrap_or(usize::MAX));
    let buf = &mut buf[..len];
    let mut done = 0;
    while done < buf.len() {
        let mut rest = [IoSliceMut::new(&mut buf[done..])];
        match rustix::io::preadv2(fd, &mut rest, offset + done as u64, flags) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            // Not every file system knows RWF_NOWAIT.
            Err(Errno::AGAIN | Errno::OPNOTSUPP) if !wait.allowed() => return Err(Error::WouldBlock),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}

/// Writes until all of `data` is written, or an error ends the write. Returns the bytes written if there are any.
pub(crate) fn write_full(fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while done < data.len() {
        match rustix::io::pwrite(fd, &data[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            // The written part counts. The client sends the rest again and then gets the error.
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}
