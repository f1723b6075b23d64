//! Block requests: received from FUSE, timed by the model, answered when due.

use super::Daemon;
use super::abi::{self, Call};
use crate::model::BLOCK;
use crate::sim::{Nanos, Op, Output};
use std::io::{self, IoSlice};

/// A request that the model is working on.
#[derive(Debug, Clone, Copy)]
pub(super) enum Pending {
    Read { offset: u64, length: u64 },
    Write { length: u64, error: i32 },
    Flush,
}

impl Daemon {
    /// Handles one message of the kernel. Reads, writes and flushes are answered when the model says so, all other
    /// calls at once. After a power cut, calls for data fail with EIO.
    pub(super) fn request(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(abi::Request { unique, call }) = abi::parse(bytes) else {
            return Err(io::Error::other("the kernel sent a FUSE request shorter than it says"));
        };
        let size = self.array.size();
        match call {
            Call::Init => self.channel.reply(unique, &abi::init()),
            Call::Lookup { name } if name == abi::FILE_NAME.as_bytes() => {
                self.channel.reply(unique, &abi::entry(size))
            }
            Call::Lookup { .. } => self.channel.fail(unique, libc::ENOENT),
            Call::GetAttr { node } => self.channel.reply(unique, &abi::attr(node, size)),
            Call::Open => self.channel.reply(unique, &abi::open()),
            Call::OpenDir => self.channel.reply(unique, &abi::open_dir()),
            Call::ReadDir | Call::Nothing => self.channel.reply(unique, &[]),
            Call::StatFs => self.channel.reply(unique, &abi::stat_fs(size)),
            Call::Silent => Ok(()),
            Call::Unsupported => self.channel.fail(unique, libc::ENOSYS),
            _ if self.cut => self.channel.fail(unique, libc::EIO),
            Call::Read { offset, length } => self.read(unique, offset, length),
            Call::Write { offset, data } => self.write(unique, offset, data),
            Call::Fsync => self.submit(unique, Op::Flush, Pending::Flush),
            Call::Discard { offset, length } => {
                if offset.checked_add(length).is_none_or(|end| end > size) {
                    return self.channel.fail(unique, libc::EINVAL);
                }
                match self.image.discard(offset, length) {
                    Ok(()) => self.channel.reply(unique, &[]),
                    Err(e) => self.channel.fail(unique, e.raw_os_error().unwrap_or(libc::EIO)),
                }
            }
        }
    }

    /// Submits a READ to the model. The data are copied from the image at the end of the request.
    fn read(&mut self, unique: u64, offset: u64, length: u64) -> io::Result<()> {
        // If a reader's buffer extends beyond the end, the kernel asks for bytes there.
        let length = length.min(self.array.size().saturating_sub(offset));
        if length == 0 {
            return self.channel.reply(unique, &[]);
        }
        if !aligned(offset, length) {
            return self.channel.fail(unique, libc::EINVAL);
        }
        self.submit(unique, Op::Read { offset, length }, Pending::Read { offset, length })
    }

    /// Changes the image and submits the WRITE to the model. An injected error leaves the image unchanged, and
    /// reaches the kernel after the usual time.
    fn write(&mut self, unique: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        let length = data.len() as u64;
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.array.size());
        if !inside || length == 0 || !aligned(offset, length) {
            return self.channel.fail(unique, libc::EINVAL);
        }
        let error = if self.faults.hit(true, offset, length) {
            libc::EIO
        } else {
            match self.image.write(offset, data) {
                Ok(()) => 0,
                Err(e) => e.raw_os_error().unwrap_or(libc::EIO),
            }
        };
        self.submit(unique, Op::Write { offset, length }, Pending::Write { length, error })
    }

    /// Gives a request to the model, which decides when it ends. With the fault `instant`, answers at once and counts
    /// a write as durable.
    fn submit(&mut self, unique: u64, op: Op, pending: Pending) -> io::Result<()> {
        self.pending.insert(unique, pending);
        let now = self.now();
        if self.faults.instant {
            if let Op::Write { offset, length } = op {
                self.image.started(offset, length);
                self.image.durable(offset, length);
            }
            return self.complete(unique, now);
        }
        let arrived = self.credits.spend(now);
        self.array.submit(arrived, unique, op);
        Ok(())
    }

    /// Advances the model to the present and answers the requests that are complete.
    pub(super) fn progress(&mut self) -> io::Result<()> {
        let now = self.now();
        self.array.advance(now);
        while let Some(output) = self.array.output() {
            match output {
                Output::Done { tag, at } => self.complete(tag, at)?,
                Output::Started { offset, length } => self.image.started(offset, length),
                Output::Durable { offset, length } => self.image.durable(offset, length),
            }
        }
        Ok(())
    }

    /// Answers a request that was due at `due`, unless the array hangs or its power was cut.
    fn complete(&mut self, unique: u64, due: Nanos) -> io::Result<()> {
        if self.faults.hang {
            self.held.push((unique, due));
            return Ok(());
        }
        let Some(pending) = self.pending.remove(&unique) else { return Ok(()) };
        self.credits.earn(self.now(), due);
        match pending {
            Pending::Read { offset, length } if self.faults.hit(false, offset, length) => {
                self.channel.fail(unique, libc::EIO)
            }
            Pending::Read { offset, length } => {
                let header = abi::header(unique, 0, length as usize);
                let mut parts = vec![IoSlice::new(&header)];
                self.image.slices(offset, length, &mut parts);
                self.channel.send(&parts)
            }
            Pending::Write { length, error: 0 } => self.channel.reply(unique, &abi::written(length)),
            Pending::Write { error, .. } => self.channel.fail(unique, error),
            Pending::Flush => self.channel.reply(unique, &[]),
        }
    }

    /// Answers the requests that were held back.
    pub(super) fn release(&mut self) -> io::Result<()> {
        for (unique, due) in std::mem::take(&mut self.held) {
            self.complete(unique, due)?;
        }
        Ok(())
    }

    /// Fails every request in flight, because the power was cut.
    pub(super) fn fail_all(&mut self) -> io::Result<()> {
        self.held.clear();
        for (unique, _) in self.pending.drain() {
            self.channel.fail(unique, libc::EIO)?;
        }
        Ok(())
    }
}

fn aligned(offset: u64, length: u64) -> bool {
    offset.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK)
}
