//! One operation on a file, as the kernel sees it.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_engine::buffer::{Buffer, Slice};
use forebay_engine::io::Durability;
use io_uring::{opcode, squeue, types};
use rustix::fs::FlockOperation;
use rustix::io::{Errno, ReadWriteFlags};

/// Most bytes handed to the kernel at once, below its own limit for one call.
const CHUNK: usize = 1 << 30;

/// An open file, and how many writes to it completed without being durable.
pub(crate) struct Target {
    pub(crate) file: File,
    pub(crate) written: AtomicU64,
}

impl Drop for Target {
    /// Closing is not enough: a child that another thread is just starting has a copy of the open file until it executes.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

pub(crate) enum Work {
    Read(Buffer),
    Write(Slice, Durability),
    Flush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Errno(Errno),
    /// The file ends before the end of the operation.
    End,
}

/// What is left to do of an operation.
pub(crate) struct Request {
    target: Arc<Target>,
    offset: u64,
    done: usize,
    work: Work,
}

/// An operation that came to its end, with its memory.
pub(crate) struct Outcome {
    pub(crate) work: Work,
    pub(crate) result: Result<(), Fault>,
}

impl Request {
    pub(crate) fn new(target: Arc<Target>, offset: u64, work: Work) -> Self {
        Request { target, offset, done: 0, work }
    }

    /// The operation for the ring. It points into the request's memory, which must outlive it.
    pub(crate) fn entry(&mut self) -> squeue::Entry {
        let fd = types::Fd(self.target.file.as_raw_fd());
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
            Work::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
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

    fn call(&mut self) -> Result<usize, Errno> {
        let file = &self.target.file;
        let at = self.offset + self.done as u64;
        match &mut self.work {
            Work::Read(buffer) => rustix::io::pread(file, &mut buffer[self.done..], at),
            Work::Write(data, durability) => {
                rustix::io::pwritev2(file, &[IoSlice::new(&data[self.done..])], at, write_flags(*durability))
            }
            Work::Flush => rustix::fs::fdatasync(file).map(|()| 0),
        }
    }

    /// Takes in what the kernel answered: the operation's result, or `None` if the rest has to be submitted.
    pub(crate) fn advance(&mut self, answer: Result<usize, Errno>) -> Option<Result<(), Fault>> {
        let len = match &self.work {
            Work::Read(buffer) => buffer.len(),
            Work::Write(data, _) => data.len(),
            Work::Flush => 0,
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

    /// The outcome, with a write that a flush has to make durable counted before anyone can learn of its success.
    pub(crate) fn end(self, result: Result<(), Fault>) -> Outcome {
        if matches!(self.work, Work::Write(_, Durability::Later)) {
            self.target.written.fetch_add(1, Ordering::SeqCst);
        }
        Outcome { work: self.work, result }
    }
}

fn write_flags(durability: Durability) -> ReadWriteFlags {
    match durability {
        Durability::Now => ReadWriteFlags::DSYNC,
        Durability::Later => ReadWriteFlags::empty(),
    }
}
