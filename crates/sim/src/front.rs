//! WRITE, READ and COMMIT as `vfs` carries them out. As an event loop does, the client first asks the engine without
//! waiting. Then it asks again as a worker that may wait. Bytes that the log does not take bypass the engine to the
//! backing file.
//!
//! The counterpart is in `vfs/src/ops/cached.rs` (`write_cached`, `write_direct`, `read_through_cache`), in
//! `vfs/src/ops/data.rs` (`commit_range`) and in `vfs/src/oplog/commit.rs` (`commit_in_journal`).

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::buffer::{Buffer, Slice};
use forebay_engine::io::{Backing, BackingError, BackingResult, Clock as _, Time};
use forebay_engine::{CachedObject, Engine, Error, Logged, Mode, Outcome, Seq};

use crate::client::Client;
use crate::executor::promise;
use crate::hits::{Fault, Hits};

/// The largest READ that an event loop begins itself, in bytes.
const SMALL_READ: usize = 64 << 10;

/// A WRITE request.
pub(crate) struct Writing<'a> {
    pub(crate) object: &'a Arc<CachedObject>,
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
    pub(crate) now: Time,
}

/// The state of a WRITE before its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wrote {
    /// The frame after which the bytes in the log are durable. `None` if the log took no bytes.
    pub(crate) frame: Option<Seq>,
    /// The frame that must be durable before any reply, also to an unstable WRITE.
    pub(crate) before: Option<Seq>,
    /// Set if some bytes are in the page cache of the backing file: the number of failed syncs of that file before they
    /// were written.
    pub(crate) unsynced: Option<u64>,
}

/// Puts as much of a write into the log as the log takes. If the request came `by_event_loop`, the event loop asks
/// before the worker.
pub(crate) async fn put_log(
    engine: &Engine,
    hits: &Hits,
    write: &Writing<'_>,
    by_event_loop: bool,
) -> Result<Logged, Error> {
    let Writing { object, offset, data, now } = *write;
    let mut tried = Outcome::Wait;
    for _ in 0..1 + u8::from(by_event_loop) {
        if tried == Outcome::Wait {
            tried = engine.try_write(object, offset, data, now)?;
        }
    }
    match tried {
        Outcome::Done(frame) => {
            hits.hit(Fault::WroteAtOnce);
            Ok(Logged { len: data.len(), frame })
        }
        Outcome::Wait => {
            hits.hit(Fault::WroteWaiting);
            engine.write_log(object, offset, data, now).await
        }
        Outcome::FromBacking(()) => Ok(Logged { len: 0, frame: 0 }),
    }
}

/// Waits until a frame is durable or the log is lost.
pub(crate) async fn durable(engine: &Engine, frame: Seq) -> Result<(), Error> {
    let (kept, durable) = promise();
    engine.when_durable(frame, Box::new(move |result| kept.keep(result)));
    durable.await
}

/// Writes to the backing file past the log. Calls `written` when the file has the bytes. Returns the frame that must be
/// durable before any reply.
pub(crate) async fn write_direct(
    engine: &Engine,
    store: &impl Backing,
    write: &Writing<'_>,
    written: impl FnOnce(),
) -> Result<Seq, Error> {
    let Writing { object, offset, data, now } = *write;
    let buffer = Slice::new(Arc::new(Buffer::from_bytes(data)), 0..data.len());
    let range = offset..offset + data.len() as u64;
    let bypass = Bypass { object, range: range.clone(), contents: data, end: range.end, now };
    let change = async {
        store.write(object.key(), offset, buffer).await?;
        written();
        Ok(())
    };
    change_direct(engine, store, bypass, change).await
}

/// A change of a backing file past the log.
pub(crate) struct Bypass<'a> {
    pub(crate) object: &'a Arc<CachedObject>,
    /// The bytes whose cached blocks do not count any more.
    pub(crate) range: Range<u64>,
    /// The new contents from the start of the range on, as far as they may be cached.
    pub(crate) contents: &'a [u8],
    /// The size that the file has at least after the change.
    pub(crate) end: u64,
    pub(crate) now: Time,
}

/// Changes the backing file past the log, as `Vfs::bypass` does. Returns the frame that must be durable before any
/// reply.
pub(crate) async fn change_direct(
    engine: &Engine,
    store: &impl Backing,
    bypass: Bypass<'_>,
    change: impl Future<Output = BackingResult<()>>,
) -> Result<Seq, Error> {
    let Bypass { object, range, contents, end, now } = bypass;
    let direct = engine.begin_bypass(object, range.start, range.end - range.start).await?;
    let result = change.await;
    let end = match result {
        Ok(()) => end,
        // A part of the failed change may have made the file longer.
        Err(_) => store.size(object.key()).await.unwrap_or(0),
    };
    let done = result.is_ok().then_some((range.start, contents));
    let frame = engine.end_bypass(object, direct, done, end, now).await;
    result?;
    frame
}

/// Makes `len` bytes of a file durable as far as the backing store has them; 0 stands for all bytes to its end. A
/// successful sync counts only if `is_sound` then.
pub(crate) async fn sync_file(
    store: &impl Backing,
    object: &Arc<CachedObject>,
    offset: u64,
    len: u64,
    is_sound: impl FnOnce() -> bool,
) -> Result<(), Error> {
    let syncing = object.begin_sync(offset, len);
    let synced = store.sync(vec![object.key().clone()]).await.pop().unwrap_or(Ok(()));
    let synced = if is_sound() { synced } else { synced.and(Err(BackingError::Io(5))) };
    if let Some(syncing) = syncing {
        syncing.end(synced.is_ok());
    }
    Ok(synced?)
}

impl Client {
    /// Writes. No byte need be durable at the return.
    pub(crate) async fn put(&mut self, write: &Writing<'_>) -> Result<Wrote, Error> {
        let Writing { offset, data, .. } = *write;
        let by_event_loop = self.rng.chance(8000);
        let Logged { len, frame } = put_log(&self.engine, &self.shared.hits, write, by_event_loop).await?;
        let frame = (len > 0).then_some(frame);
        if len == data.len() {
            return Ok(Wrote { frame, ..Wrote::default() });
        }
        let rest = Writing { offset: offset + len as u64, data: &data[len..], ..*write };
        Ok(Wrote { frame, ..self.put_direct(&rest).await? })
    }

    /// Writes the bytes to the backing file that the log has not taken.
    async fn put_direct(&mut self, write: &Writing<'_>) -> Result<Wrote, Error> {
        let (key, store) = (write.object.key(), &self.shared.store);
        self.shared.hits.hit(Fault::WroteDirectly);
        let failures = store.failures(key);
        // The kernel sets the time with every write.
        let frame = write_direct(&self.engine, store, write, || store.stamp(key, write.now)).await?;
        Ok(Wrote { frame: None, before: Some(frame).filter(|frame| *frame > 0), unsynced: Some(failures) })
    }

    /// Makes the bytes of an object's backing file durable that were written when `failures` syncs of the file had
    /// failed.
    pub(crate) async fn sync(
        &self,
        object: &Arc<CachedObject>,
        offset: u64,
        len: u64,
        failures: u64,
    ) -> Result<(), Error> {
        let store = &self.shared.store;
        // A failed sync in between may have been about these bytes, and the kernel reports a failure only once.
        sync_file(store, object, offset, len, || store.failures(object.key()) == failures).await
    }

    /// Reads into `buffer`. Returns the number of bytes, which is less than the buffer holds only at the end of the
    /// object.
    pub(crate) async fn get(
        &mut self,
        number: u8,
        object: &Arc<CachedObject>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize, Error> {
        let hits = self.shared.hits.clone();
        let size = self.size_of(object);
        if self.rng.chance(8000) {
            // An event loop begins only reads that it need not wait for.
            match self.engine.try_read(object, offset, buffer) {
                Outcome::Done(len) if len == buffer.len() => {
                    hits.hit(Fault::ReadAtOnce);
                    return Ok(len);
                }
                Outcome::FromSsd(()) if buffer.len() <= SMALL_READ => {
                    if self.engine.read_cached(object, offset, buffer).await == Ok(Some(buffer.len())) {
                        hits.hit(Fault::ReadFromSsd);
                        return Ok(buffer.len());
                    }
                    hits.hit(Fault::ReadFromSsdInVain);
                }
                _ => {}
            }
        }
        match self.engine.try_read(object, offset, buffer) {
            Outcome::Done(len) if len == buffer.len() => return Ok(len),
            Outcome::FromBacking(()) if self.reads_past_the_cache() => {
                // As `vfs`, which looks at the size first. A truncation that began since may not be seen yet.
                let len = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
                let len = len.min(buffer.len());
                return self.get_plain(object, offset, &mut buffer[..len]).await;
            }
            _ => {}
        }
        let len = self.engine.read(object, offset, buffer).await?;
        let there = self.shared.store.size_of(object.key());
        if len == buffer.len() || object.undestaged_attributes().is_some() || there <= offset + len as u64 {
            return Ok(len);
        }
        // The file is longer than the engine knew. `vfs` reads its size when nobody is changing it, and reads again.
        while self.shared.objects.lock().is_claimed(number) {
            self.shared.executor.sleep(Duration::from_millis(1)).await;
        }
        self.engine.read(object, offset, buffer).await
    }

    /// Returns the size of an object as its attributes have it.
    pub(crate) fn size_of(&self, object: &CachedObject) -> u64 {
        let undestaged = object.undestaged_attributes().map(|(size, _)| size);
        undestaged.unwrap_or_else(|| self.shared.store.size_of(object.key()))
    }

    /// Returns true if the read goes to the file instead of the cache: in pass-through mode, and, in half of the
    /// cases, while the cache has no room.
    fn reads_past_the_cache(&mut self) -> bool {
        let keeps = self.engine.mode() != Mode::PassThrough;
        // The second condition is that of a stream.
        !keeps || (!self.engine.has_room() && self.rng.chance(5000))
    }

    /// Reads from the backing store, without the engine. Returns the number of bytes before the end of the file.
    async fn get_plain(&self, object: &CachedObject, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        use forebay_engine::buffer::BLOCK;
        self.shared.hits.hit(Fault::ReadPlain);
        if buffer.is_empty() {
            return Ok(0);
        }
        // The virtual store reads whole blocks.
        let first = offset / BLOCK as u64 * BLOCK as u64;
        let skipped = (offset - first) as usize;
        let blocks = (skipped + buffer.len()).div_ceil(BLOCK);
        let (read, result) = self.shared.store.read(object.key(), first, Buffer::zeroed(blocks)).await;
        let len = result?.saturating_sub(skipped).min(buffer.len());
        buffer[..len].copy_from_slice(&read[skipped..skipped + len]);
        Ok(len)
    }
}
