//! READ, WRITE and COMMIT.

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;

use rustix::fs::FileType;
use rustix::io::{Errno, ReadWriteFlags};

use crate::attr::{Attr, Wcc};
use crate::change::Changed;
use crate::cred::Cred;
use crate::error::{Error, Result};
use crate::export::{Target, Vfs, Wait};
use crate::journal::{Data, Intent};
use crate::verdicts::want;

/// What READ found.
#[derive(Clone, Copy, Debug)]
pub struct ReadOut {
    /// Bytes read, at the front of the buffer.
    pub len: usize,
    /// Whether they reach the end of the file.
    pub eof: bool,
    /// The file's attributes.
    pub attr: Attr,
}

/// What WRITE did.
#[derive(Clone, Copy, Debug)]
pub struct Wrote {
    /// Bytes written.
    pub len: usize,
    /// Whether the data is (or, with an intent, will be) on stable storage; possibly more than was asked.
    pub stable: bool,
    /// The verifier from before the write: it goes into the reply of an unstable write.
    pub verifier: [u8; 8],
}

/// The owner may read and write whatever the mode says: a file created read-only is still written by
/// its creator (RFC 1813 section 4.4).
fn permitted(vfs: &Vfs, target: &Target, cred: &Cred, attr: &Attr, want: u8, wait: Wait) -> Result<()> {
    match attr.kind {
        FileType::RegularFile => {}
        FileType::Directory => return Err(Error::Os(Errno::ISDIR)),
        _ => return Err(Error::INVALID),
    }
    if vfs.owns(cred, attr) {
        return Ok(());
    }
    match vfs.require(&target.object, cred, attr, want, wait) {
        // What may be executed must be read to be executed.
        Err(Error::Os(Errno::ACCESS)) if want == want::READ => {
            vfs.require(&target.object, cred, attr, want::EXECUTE, wait)
        }
        result => result,
    }
}

impl Vfs {
    /// Reads up to `count` bytes at `offset` into the front of what `buffer` gives, which is asked for no more
    /// than the file holds and may give less. With [`Wait::No`] it succeeds only if all of them are in memory.
    pub fn read<'b>(
        &self,
        target: &Target,
        cred: &Cred,
        offset: u64,
        count: usize,
        wait: Wait,
        buffer: impl FnOnce(usize) -> &'b mut [u8],
    ) -> Result<ReadOut> {
        let mut attr = self.attr_of(target)?;
        permitted(self, target, cred, &attr, want::READ, wait)?;
        let there = attr.size.saturating_sub(offset);
        if there == 0 {
            return Ok(ReadOut { len: 0, eof: true, attr });
        }
        let fd = target.object.reader(&self.budget, wait.allowed())?;
        let buf = buffer(count.min(usize::try_from(there).unwrap_or(usize::MAX)));
        let len = read_full(fd, buf, offset, wait)?;
        if len < buf.len() {
            if !wait.allowed() {
                return Err(Error::WouldBlock);
            }
            // The file shrank while it was read.
            attr = self.attr_of(target)?;
        }
        let eof = len < buf.len() || offset + len as u64 >= attr.size;
        Ok(ReadOut { len, eof, attr })
    }

    /// Writes `data` at `offset`. With `stable`, the intent must be made durable before the reply.
    pub fn write(
        &self,
        target: &Target,
        cred: &Cred,
        offset: u64,
        data: &[u8],
        stable: bool,
    ) -> Changed<Wrote> {
        let _side_by_side = target.object.changing.read();
        let change = target.object.begin_change();
        let errors = target.object.uncommitted.errors();
        let result = self.write_inner(target, cred, offset, data, stable, change.before);
        let wcc = change.end();
        let intent = match &result {
            Ok(wrote) if wrote.stable && wrote.len > 0 => Some(Intent {
                data: Some(Data { object: target.object.clone(), offset, len: wrote.len as u64, errors }),
                ..Intent::default()
            }),
            _ => None,
        };
        Changed { result, wcc, intent }
    }

    fn write_inner(
        &self,
        target: &Target,
        cred: &Cred,
        offset: u64,
        data: &[u8],
        stable: bool,
        attr: Option<Attr>,
    ) -> Result<Wrote> {
        let attr = attr.map_or_else(|| self.attr_of(target), Ok)?;
        permitted(self, target, cred, &attr, want::WRITE, Wait::Yes)?;
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Error::Os(Errno::FBIG));
        }
        let fd = target.object.writer(&self.budget, true)?;
        let verifier = self.verifier.get();
        let len = {
            // As the caller, so that quotas, reserved blocks and set-uid bits are treated as its own.
            let _acting = self.act_as(cred)?;
            write_full(fd, data, offset)?
        };
        // Counted only now: a COMMIT that counted it earlier could have synced before the data was there.
        let stable = stable || !target.object.uncommitted.wrote();
        if !stable {
            target.export.fs.writeback.wrote(&target.object, offset, len as u64);
        }
        Ok(Wrote { len, stable, verifier })
    }

    /// What must become durable for COMMIT: nothing if the file has no unstable data. The count is to be
    /// given to [`Vfs::committed`] once the intent is durable.
    pub fn commit_range(&self, target: &Target, cred: &Cred, offset: u64, count: u64) -> (Changed<()>, u64) {
        let errors = target.object.uncommitted.errors();
        let seen = target.object.uncommitted.writes();
        let attr = self.attr_of(target);
        let result = match &attr {
            Ok(attr) => permitted(self, target, cred, attr, want::WRITE, Wait::Yes),
            Err(error) => Err(*error),
        };
        let intent = (result.is_ok() && seen != 0).then(|| Intent {
            data: Some(Data { object: target.object.clone(), offset, len: count, errors }),
            ..Intent::default()
        });
        let wcc = Wcc { before: attr.ok(), after: attr.ok() };
        let whole = offset == 0 && count == 0;
        (Changed { result, wcc, intent }, if whole { seen } else { 0 })
    }

    /// A COMMIT of the whole file became durable.
    pub fn committed(&self, target: &Target, seen: u64) {
        target.object.uncommitted.committed(seen);
    }
}

fn read_full(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64, wait: Wait) -> Result<usize> {
    let flags = if wait.allowed() { ReadWriteFlags::empty() } else { ReadWriteFlags::NOWAIT };
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

fn write_full(fd: BorrowedFd<'_>, data: &[u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while done < data.len() {
        match rustix::io::pwrite(fd, &data[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            // What was written counts; the client sends the rest again and then learns the error.
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}
