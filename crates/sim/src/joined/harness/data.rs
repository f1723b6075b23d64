//! Contents and sizes of files.

use std::ops::Range;

use forebay_engine::io::{Backing as _, BackingError, Time};

use super::*;
use crate::front::{Bypass, Writing, change_direct, durable, put_log, sync_file, write_direct};
use crate::joined::planted_bugs;

impl Harness {
    /// Returns the engine's object of a file. `None` if the handle is stale.
    pub(in crate::joined) fn object(&self, file: Identity) -> Option<Arc<CachedObject>> {
        let size = self.store.lock().content(file)?.size;
        let mut inner = self.inner.lock();
        Some(inner.objects.entry(file).or_insert_with(|| self.engine.object(&key(file), size)).clone())
    }

    /// Writes. The frame makes durable the bytes that the log has taken, and [`Harness::commit`] the rest. If the write
    /// is `stable`, the rest is durable at the return.
    pub(in crate::joined) async fn write(
        &self,
        file: Identity,
        offset: u64,
        data: &[u8],
        stable: bool,
    ) -> Result<Seq, Error> {
        let _writing = self.share(file).await;
        let gone = Error::Backing(BackingError::Gone);
        let object = self.object(file).ok_or(gone)?;
        let write = Writing { object: &object, offset, data, now: self.now() };
        let accepted = put_log(&self.engine, &self.hits, &write, true).await?;
        if accepted.len == data.len() {
            return Ok(accepted.frame);
        }
        let (offset, data) = (offset + accepted.len as u64, &data[accepted.len..]);
        self.hits.hit(Fault::JoinedDirect);
        if !planted_bugs::active("a write past the log does not wait for a checkpoint")
            && self.checkpoint_touched(file).await.map_err(Self::io_error)?
        {
            self.hits.hit(Fault::JoinedDirectOfNew);
        }
        let rest = Writing { offset, data, ..write };
        let frame = write_direct(&self.engine, &self.store, &rest, || ()).await?;
        if stable {
            self.sync(file, offset, data.len() as u64).await?;
        } else {
            self.hits.hit(Fault::JoinedDirectUnstable);
            self.inner.lock().uncommitted.entry(file).or_default().made += 1;
        }
        Ok(frame.max(accepted.frame))
    }

    /// Makes a hole. It is durable at the return, as soon as the frame is.
    pub(in crate::joined) async fn punch(&self, file: Identity, range: Range<u64>) -> Result<Seq, Error> {
        let sharing = self.share(file).await;
        let object = self.object(file).ok_or(Error::Backing(BackingError::Gone))?;
        self.checkpoint_for_hole(file).await?;
        let bypass = Bypass { object: &object, range: range.clone(), contents: &[], end: 0, now: self.now() };
        let change = async { self.store.punch(&key(file), range.clone()).await };
        let frame = change_direct(&self.engine, &self.store, bypass, change).await?;
        drop(sharing);
        self.sync(file, range.start, range.end - range.start).await?;
        Ok(frame)
    }

    /// Clones the blocks of `range` of a file to a place that begins at `offset`. Calls `taken` with the contents when
    /// the target has them. The clone is durable at the return, as soon as the frame is.
    pub(in crate::joined) async fn clone_range(
        &self,
        source: (Identity, Range<u64>),
        (target, offset): (Identity, u64),
        taken: impl FnOnce(&[u8]) + Send + 'static,
    ) -> Result<Seq, Error> {
        let gone = Error::Backing(BackingError::Gone);
        let (from, range) = source;
        let object = self.object(from).ok_or(gone)?;
        if !planted_bugs::active("a clone leaves out what is dirty in its source") {
            let _alone = self.lock(&Request::Chmod(from)).await;
            self.engine.destage_object(&object).await?;
        }
        let sharing = self.share(target).await;
        let object = self.object(target).ok_or(gone)?;
        self.checkpoint_for_hole(target).await?;
        let end = offset + (range.end - range.start);
        let bypass = Bypass { object: &object, range: offset..end, contents: &[], end, now: self.now() };
        let change = async { self.store.share(&key(from), range, &key(target), offset, taken).await };
        let frame = change_direct(&self.engine, &self.store, bypass, change).await?;
        drop(sharing);
        self.sync(target, offset, end - offset).await?;
        Ok(frame)
    }

    /// Makes a checkpoint of a file that was touched since the last one. Recovery might make the file again, and would
    /// find nothing of a hole or a clone in the log.
    async fn checkpoint_for_hole(&self, file: Identity) -> Result<(), Error> {
        if self.checkpoint_touched(file).await.map_err(Self::io_error)? {
            self.hits.hit(Fault::JoinedHoleOfNew);
        }
        Ok(())
    }

    /// Carries out COMMIT: every answered write of the file is durable at the return, and so is the frame.
    pub(in crate::joined) async fn commit(&self, file: Identity, frame: Seq) -> Result<(), Error> {
        let uncommitted = self.inner.lock().uncommitted.get(&file).copied().unwrap_or_default();
        if uncommitted.made > uncommitted.stable && !planted_bugs::active("COMMIT does not sync") {
            self.sync(file, 0, 0).await?;
            self.hits.hit(Fault::JoinedCommit);
            let mut inner = self.inner.lock();
            let known = inner.uncommitted.entry(file).or_default();
            known.stable = known.stable.max(uncommitted.made);
        }
        durable(&self.engine, frame).await
    }

    /// Makes `len` bytes of a file durable as far as the file system has them; 0 stands for all bytes to its end.
    async fn sync(&self, file: Identity, offset: u64, len: u64) -> Result<(), Error> {
        let object = self.object(file).ok_or(Error::Backing(BackingError::Gone))?;
        sync_file(&self.store, &object, offset, len, || true).await
    }

    /// Carries out a SETATTR of a size, and of the mode. It is durable at the return. `begin` is called while no other
    /// request changes the file.
    pub(in crate::joined) async fn resize(
        &self,
        xid: Xid,
        file: Identity,
        size: u64,
        begin: impl FnOnce() + Send,
    ) -> Result<(), Error> {
        let request = Request::Chmod(file);
        let locked = self.lock(&request).await;
        let object = self.object(file).ok_or(Error::Backing(BackingError::Gone))?;
        begin();
        let backing = self.store.lock().content(file).map_or(0, |content| content.size);
        if object.size() != size || object.undestaged_attributes().is_some() || backing != size {
            if planted_bugs::active("a cut goes past the cache") {
                self.store.truncate(&key(file), size).await?;
            } else {
                self.engine.truncate(&object, size, self.now()).await?;
            }
        }
        let made = match planted_bugs::active("a change of size does not wait for a checkpoint") {
            true => Ok(false),
            false => self.checkpoint_touched(file).await,
        };
        if made != Ok(false) {
            self.hits.hit(Fault::JoinedCutOfNew);
        }
        let changed = self.change_locked(xid, request, locked, true).await;
        // That commit may succeed though the checkpoint's commit was late, and recovery may still make the file.
        if !planted_bugs::active("a change of size is answered though its checkpoint was late") {
            made.map_err(Self::io_error)?;
        }
        changed.map(drop).map_err(|refused| match refused {
            Refused::Io | Refused::Busy => Self::io_error(refused),
            _ => Error::Backing(BackingError::Gone),
        })
    }

    /// Returns the time of a client's request, from the virtual clock.
    fn now(&self) -> Time {
        let time = self.executor.time();
        Time { sec: time.as_secs() as i64, nsec: time.subsec_nanos() }
    }
}
