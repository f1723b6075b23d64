//! One operation on a file, as the kernel sees it.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_engine::buffer::{Buffer, Slice};
use forebay_engine::io::Durability;
use io_uring::{opcode, squeue, types};
use rustix::fs::FlockOperation;
use rustix::io::{Errno, ReadWriteFlags};

/// The largest number of bytes handed to the kernel at once, below the kernel's limit for one call.
const CHUNK: usize = 1 << 30;

/// An open file, and the durability of its writes.
pub struct Target {
    /// The file.
    pub file: File,
    /// Writes that completed without being durable.
    written: AtomicU64,
    /// The number of those writes, the first ones, that have been made durable.
    flushed: AtomicU64,
    /// True if making writes durable failed. They may be lost, and a later flush that succeeds would not report that
    /// (ATC'20, "Can Applications Recover from fsync Failures?").
    flush_failed: AtomicBool,
}

impl Target {
    /// Returns the target of an open file, which is unlocked when the target is dropped.
    pub fn new(file: File) -> Self {
        // One write counts as not durable: the data of an earlier process may still be in the SSD's cache.
        let (written, flushed) = (AtomicU64::new(1), AtomicU64::new(0));
        Target { file, written, flushed, flush_failed: AtomicBool::new(false) }
    }

    /// Returns true if a write may not be durable.
    pub fn needs_flush(&self) -> bool {
        self.written.load(Ordering::SeqCst) > self.flushed.load(Ordering::SeqCst)
    }

    /// Returns true if making writes durable has failed once. Later flushes are no proof then.
    pub fn flush_failed(&self) -> bool {
        self.flush_failed.load(Ordering::SeqCst)
    }

    /// Returns how many writes a flush that begins now covers.
    fn written(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    /// Returns a flush that begins now.
    pub fn flush(self: &Arc<Self>) -> Request {
        Request::new(self.clone(), 0, Work::Flush { covers: self.written(), by: None })
    }

    /// Returns a flush that begins now and syncs `file` in place of the target's file. The caller knows that this sync
    /// makes the target's writes durable as well.
    pub fn flush_by(self: &Arc<Self>, file: Arc<File>) -> Request {
        Request::new(self.clone(), 0, Work::Flush { covers: self.written(), by: Some(file) })
    }

    /// Records that the first `covers` writes are durable.
    pub fn cover(&self, covers: u64) {
        self.flushed.fetch_max(covers, Ordering::SeqCst);
    }

    /// Updates the counts before the result is visible, even if no future waits for it.
    fn account(&self, work: &Work, done: bool) {
        match work {
            Work::Write(_, Durability::Later) => {
                self.written.fetch_add(1, Ordering::SeqCst);
            }
            Work::Flush { covers, .. } if done => self.cover(*covers),
            Work::Flush { .. } => self.flush_failed.store(true, Ordering::SeqCst),
            // The kernel reports a lost earlier write only once, to the first sync after it.
            Work::Write(_, Durability::Now) if !done && self.needs_flush() => {
                self.flush_failed.store(true, Ordering::SeqCst);
            }
            Work::Read(_) | Work::Write(..) => {}
        }
    }
}

impl Drop for Target {
    /// Unlocks the file. Closing alone is not enough: a child process that another thread is starting has a copy of the
    /// open file until it executes.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// The kind of an operation, with its memory.
pub enum Work {
    /// Fills the buffer.
    Read(Buffer),
    /// Writes the bytes.
    Write(Slice, Durability),
    /// Makes the first `covers` writes durable.
    Flush {
        /// The number of writes.
        covers: u64,
        /// The file to sync in place of the target's file.
        by: Option<Arc<File>>,
    },
}

/// The reason why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The kernel refused.
    Errno(Errno),
    /// The file ends before the end of the operation.
    End,
}

/// An observer of operations, for work that must not depend on an operation's future: the future may be dropped or not
/// polled.
pub trait Observer: Send + Sync {
    /// Records that the operation which the observer knows by `number` has ended. Returns the moment of the end, in the
    /// observer's own count. The thread on which the operation completes makes the call, which may wake any future.
    fn ended(&self, number: u64, succeeded: bool) -> u64;
}

/// The remaining part of an operation.
pub struct Request {
    target: Arc<Target>,
    offset: u64,
    done: usize,
    work: Work,
    observer: Option<(Arc<dyn Observer>, u64)>,
}

/// An operation that came to its end, with its memory.
pub struct Outcome {
    /// The operation's memory.
    pub work: Work,
    /// The result.
    pub result: Result<(), Fault>,
    /// The number of writes to the target that a flush covers if it begins now.
    pub written: u64,
    /// The moment of the end by the observer's count, or 0 without an observer.
    pub moment: u64,
    observer: Option<(Arc<dyn Observer>, u64)>,
}

impl Outcome {
    /// Reports the end to the observer, which may run any waker.
    pub(crate) fn told(mut self) -> Self {
        if let Some((observer, number)) = self.observer.take() {
            self.moment = observer.ended(number, self.result.is_ok());
        }
        self
    }
}

impl Request {
    /// Returns the operation `work` at byte `offset` of the target.
    pub fn new(target: Arc<Target>, offset: u64, work: Work) -> Self {
        Request { target, offset, done: 0, work, observer: None }
    }

    /// Returns the operation with an observer of its end, which knows it by `number`.
    pub fn observed(self, observer: Arc<dyn Observer>, number: u64) -> Self {
        Request { observer: Some((observer, number)), ..self }
    }

    /// Returns the file that the request works on. A shared flush has one of its own.
    fn file(&self) -> &File {
        match &self.work {
            Work::Flush { by: Some(file), .. } => file,
            _ => &self.target.file,
        }
    }

    /// Returns the operation for the ring. It points into the request's memory, which must outlive it.
    pub(crate) fn entry(&mut self) -> squeue::Entry {
        let fd = types::Fd(self.file().as_raw_fd());
        let at = self.offset + self.done as u64;
        match &mut self.work {
            Work::Read(buffer) => {
                let rest = &mut buffer[self.done..];
                opcode::Read::new(fd, rest.as_mut_ptr(), rest.len().min(CHUNK) as u32).offset(at).build()
            }
            Work::Write(data, durability) => {
                let rest = &data[self.done..];
                let flags = write_flags(*durability).bits() as i32;
                let len = rest.len().min(CHUNK) as u32;
                opcode::Write::new(fd, rest.as_ptr(), len).offset(at).rw_flags(flags).build()
            }
            Work::Flush { .. } => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        }
    }

    /// Runs the operation to its end in this call.
    pub(crate) fn run(mut self) -> Outcome {
        loop {
            let result = self.call();
            if let Some(result) = self.advance(result) {
                return self.end(result);
            }
        }
    }

    /// Carries out the rest of the request by a system call. Returns the number of bytes that it moved.
    fn call(&mut self) -> Result<usize, Errno> {
        let file = &self.target.file;
        let at = self.offset + self.done as u64;
        match &mut self.work {
            Work::Read(buffer) => rustix::io::pread(file, &mut buffer[self.done..], at),
            Work::Write(data, durability) => {
                rustix::io::pwritev2(file, &[IoSlice::new(&data[self.done..])], at, write_flags(*durability))
            }
            Work::Flush { .. } => rustix::fs::fdatasync(self.file()).map(|()| 0),
        }
    }

    /// Takes the kernel's answer. Returns the operation's result, or `None` if the rest has to be submitted.
    pub(crate) fn advance(&mut self, answer: Result<usize, Errno>) -> Option<Result<(), Fault>> {
        let len = match &self.work {
            Work::Read(buffer) => buffer.len(),
            Work::Write(data, _) => data.len(),
            Work::Flush { .. } => 0,
        };
        match answer {
            Err(Errno::INTR | Errno::AGAIN) => None,
            Err(errno) => Some(Err(Fault::Errno(errno))),
            Ok(0) if self.done < len => Some(Err(Fault::End)),
            Ok(bytes) => {
                self.done += bytes;
                (self.done >= len).then_some(Ok(()))
            }
        }
    }

    /// Counts the request and returns its outcome.
    pub(crate) fn end(self, result: Result<(), Fault>) -> Outcome {
        self.target.account(&self.work, result.is_ok());
        Outcome {
            written: self.target.written(),
            work: self.work,
            result,
            moment: 0,
            observer: self.observer,
        }
    }
}

/// Returns the flags of pwritev2(2) for a durability.
fn write_flags(durability: Durability) -> ReadWriteFlags {
    match durability {
        Durability::Now => ReadWriteFlags::DSYNC,
        Durability::Later => ReadWriteFlags::empty(),
    }
}
