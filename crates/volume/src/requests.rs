//! The requests of a volume, as the engine carries them out.

use std::ops::Range;

use forebay_common::lock::atomic::Ordering;
use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{BackingError, BackingResult, Io, Time};
use forebay_engine::{Error, Logged, Mode, Outcome, Seq};

use crate::device::BackingDevice;
use crate::disk::{LOGGED_ZEROS, PREFETCH, Stability};
use crate::planted_bugs;
use crate::volume::Volume;

type Result<T> = std::result::Result<T, Error>;

/// The most bytes that one change past the log covers: writes to the range wait meanwhile.
const PIECE: u64 = 1 << 30;
/// The number of times that a change is made on a device that loses it meanwhile.
const TRIES: usize = 3;
const EIO: i32 = 5;

/// A part of a change that went past the log, or of one that did not.
#[derive(Clone, Copy, Default)]
struct Changed {
    frame: Seq,
    /// True if the backing device has the change, perhaps only in its own cache.
    bypassed: bool,
}

/// The contents of a range after a change past the log.
#[derive(Clone, Copy)]
enum Contents<'a> {
    /// Data that is cached in any mode.
    Cached(&'a [u8]),
    /// Data that is cached if the engine's mode says so.
    MayBeCached(&'a [u8]),
    /// Data or zeros that are not cached.
    NotCached,
    /// Zeros or the older contents, as the device decides.
    Discarded,
}

impl Changed {
    fn and(self, other: Changed) -> Changed {
        Changed { frame: self.frame.max(other.frame), bypassed: self.bypassed || other.bypassed }
    }
}

impl Volume {
    /// Reads from the cache, and past it in pass-through mode if the cache has no block of the range. Bytes behind
    /// the end of the device are zeros.
    pub(crate) async fn read_now(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.counters.read_bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        let is_uncached = |buf: &mut [u8]| {
            planted_bugs::active("a read past the cache finds no dirty blocks")
                || matches!(self.engine.try_read(&self.object, offset, buf), Outcome::FromBacking(()))
        };
        if self.mode() == Mode::PassThrough && is_uncached(&mut *buf) {
            return self.read_device(offset, buf).await;
        }
        let read = self.engine.read(&self.object, offset, buf).await?;
        // The device cannot become shorter. Bytes behind its end would be zeros.
        buf[read..].fill(0);
        Ok(())
    }

    /// Reads without the cache, which has no block of the range.
    async fn read_device(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let start = offset / BLOCK as u64 * BLOCK as u64;
        let skipped = (offset - start) as usize;
        let blocks = (skipped + buf.len()).div_ceil(BLOCK);
        let (mut buffer, read) = self.device()?.read(start, Buffer::zeroed(blocks)).await;
        let read = read?;
        buffer[read..].fill(0);
        buf.copy_from_slice(&buffer[skipped..][..buf.len()]);
        Ok(())
    }

    /// Writes to the cache or past it, as the engine decides, and waits as `stability` asks.
    pub(crate) async fn write_now(&self, offset: u64, data: &[u8], stability: Stability) -> Result<()> {
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        self.counters.written_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        let changed = self.put(offset, data).await?;
        self.settle(changed, stability).await
    }

    /// Writes into the log or to the device, as the mode and the engine decide.
    async fn put(&self, offset: u64, data: &[u8]) -> Result<Changed> {
        let mode = self.mode();
        let mut logged = Logged { len: 0, frame: 0 };
        if mode == Mode::WriteBack && !data.is_empty() {
            let (engine, object) = (&self.engine, &self.object);
            logged = match engine.try_write(object, offset, data, Time::default())? {
                Outcome::Done(frame) => Logged { len: data.len(), frame },
                Outcome::Wait => engine.write_log(object, offset, data, Time::default()).await?,
                Outcome::FromBacking(()) => logged,
            };
        }
        let done = Changed { frame: logged.frame, bypassed: false };
        let rest = &data[logged.len..];
        if rest.is_empty() {
            return Ok(done);
        }
        let offset = offset + logged.len as u64;
        let slice = Slice::new(std::sync::Arc::new(Buffer::from_bytes(rest)), 0..rest.len());
        let write = |device: &dyn BackingDevice| device.write(offset, slice.clone());
        let contents = match mode {
            Mode::WriteThrough => Contents::Cached(rest),
            Mode::WriteBack => Contents::MayBeCached(rest),
            Mode::WriteAround | Mode::PassThrough => Contents::NotCached,
        };
        let range = offset..offset + rest.len() as u64;
        Ok(done.and(self.bypass(range, contents, write).await?))
    }

    /// Changes the device past the log. No dirty block of the range is left before that, and no older copy counts.
    async fn bypass(
        &self,
        range: Range<u64>,
        contents: Contents<'_>,
        change: impl Fn(&dyn BackingDevice) -> Io<BackingResult<()>>,
    ) -> Result<Changed> {
        let (engine, object, device) = (&self.engine, &self.object, self.device()?);
        let direct = engine.begin_bypass(object, range.start, range.end - range.start).await?.timeless();
        let (direct, bytes) = match contents {
            Contents::Cached(bytes) => (direct.caching(), bytes),
            Contents::MayBeCached(bytes) => (direct, bytes),
            Contents::NotCached => (direct, &[][..]),
            Contents::Discarded => (direct.discarding(), &[][..]),
        };
        let (losses, result) = on_device(&*device, change).await;
        let written = result.is_ok().then_some((range.start, bytes));
        let frame = engine.end_bypass(object, direct, written, range.end, Time::default()).await?;
        // A record that unreadable copies are mended is durable before the answer: a later flush of another range must
        // not depend on it.
        engine.commit(frame).await?;
        result?;
        if device.losses() != losses {
            // The sync that failed for the loss may have been before the engine knew of this change.
            return Err(BackingError::Io(EIO).into());
        }
        Ok(Changed { frame, bypassed: true })
    }

    /// Ends a change, which has this stability then. A change that went past the log survives a crash of the server,
    /// because the kernel has it. A remote device may lose it in that time.
    async fn settle(&self, changed: Changed, stability: Stability) -> Result<()> {
        self.answered(changed.frame);
        let is_answered_early = match stability {
            Stability::Unstable => true,
            Stability::Logged => planted_bugs::active("a logged write is answered before its frame"),
            Stability::Durable => {
                planted_bugs::active("a write with FUA is answered before the frame is durable")
            }
        };
        if is_answered_early {
            return Ok(());
        }
        self.engine.commit(changed.frame).await?;
        let is_synced = match stability {
            Stability::Durable => {
                !planted_bugs::active("a write with FUA does not sync what went past the log")
            }
            Stability::Logged | Stability::Unstable => self.device()?.is_remote(),
        };
        let is_wide = planted_bugs::active("a write with FUA flushes the volume");
        if (changed.bypassed || is_wide) && is_synced {
            return self.engine.sync_bypassed(&self.object).await;
        }
        Ok(())
    }

    /// Waits until every answered change is durable, in the log or on the backing device.
    pub(crate) async fn flush_now(&self) -> Result<()> {
        if !planted_bugs::active("a flush is answered before the frame is durable") {
            self.engine.commit(self.last_frame()).await?;
        }
        if planted_bugs::active("a flush does not sync what went past the log") {
            return Ok(());
        }
        self.engine.sync_bypassed(&self.object).await
    }

    /// Discards the whole blocks of the range. Bytes of other blocks keep their contents.
    pub(crate) async fn discard_now(&self, offset: u64, len: u64, stability: Stability) -> Result<()> {
        let mut all = Changed::default();
        for piece in pieces(self.whole_blocks(offset, len)) {
            self.go_on()?;
            let (at, len) = (piece.start, piece.end - piece.start);
            if planted_bugs::active("a discard drops what only the log has") {
                self.engine.forget(&self.object).await;
            }
            let discard = |device: &dyn BackingDevice| device.discard(at, len);
            all = all.and(self.bypass(piece, Contents::Discarded, discard).await?);
            self.counters.discarded_bytes.fetch_add(len, Ordering::Relaxed);
        }
        self.settle(all, stability).await
    }

    /// Makes a range of bytes read as zeros. A short range is written to the log; the whole blocks of a longer one
    /// are zeroed on the backing device. With `keep` they stay reserved there.
    pub(crate) async fn write_zeroes_now(
        &self,
        offset: u64,
        len: u64,
        keep: bool,
        stability: Stability,
    ) -> Result<()> {
        let whole = self.whole_blocks(offset, len);
        let end = offset + len;
        // A run of up to `LOGGED_ZEROS` goes through the log, and a longer one past it.
        if len <= LOGGED_ZEROS || whole.is_empty() {
            let changed = if !keep && self.is_hole(&whole).await? {
                // Blocks with zeros would fill a sparse file. An earlier change may have made the hole, so a sync
                // covers it.
                let before = Changed { frame: 0, bypassed: true };
                let ends =
                    self.put_zeros(offset..whole.start).await?.and(self.put_zeros(whole.end..end).await?);
                before.and(ends)
            } else {
                self.put_zeros(offset..end).await?
            };
            return self.settle(changed, stability).await;
        }
        let mut all = self.put_zeros(offset..whole.start).await?;
        for piece in pieces(whole.clone()) {
            self.go_on()?;
            let (at, len) = (piece.start, piece.end - piece.start);
            if planted_bugs::active("zeros past the log leave older copies") {
                self.device()?.write_zeroes(at, len, keep).await?;
                continue;
            }
            let zero = |device: &dyn BackingDevice| device.write_zeroes(at, len, keep);
            all = all.and(self.bypass(piece, Contents::NotCached, zero).await?);
            self.counters.discarded_bytes.fetch_add(len, Ordering::Relaxed);
        }
        all = all.and(self.put_zeros(whole.end..end).await?);
        self.settle(all, stability).await
    }

    /// Writes zeros into a short range of bytes, like data.
    async fn put_zeros(&self, range: Range<u64>) -> Result<Changed> {
        let zeros = vec![0; (range.end - range.start) as usize];
        self.put(range.start, &zeros).await
    }

    /// Reads a range into the cache, 1 MiB at a time. Does nothing in pass-through mode.
    pub(crate) async fn prefetch_now(&self, offset: u64, len: u64) -> Result<()> {
        if self.mode() == Mode::PassThrough {
            return Ok(());
        }
        let (mut at, end) = (offset, offset + len);
        let mut buffer = vec![0; PREFETCH.min(len) as usize];
        while at < end {
            self.go_on()?;
            let part = PREFETCH.min(end - at) as usize;
            self.engine.read(&self.object, at, &mut buffer[..part]).await?;
            at += part as u64;
        }
        Ok(())
    }

    /// Returns the whole blocks of a range, in bytes. The last block of the device counts as whole at the device's end.
    fn whole_blocks(&self, offset: u64, len: u64) -> Range<u64> {
        let block = BLOCK as u64;
        let end = offset + len;
        let start = offset.next_multiple_of(block);
        let end = if end == self.object.size() { end } else { end / block * block };
        start..end.max(start)
    }
}

/// Makes a change on the device, again if the device loses what it accepted meanwhile. Returns the number of losses
/// before the change as well.
async fn on_device(
    device: &dyn BackingDevice,
    change: impl Fn(&dyn BackingDevice) -> Io<BackingResult<()>>,
) -> (u64, BackingResult<()>) {
    let mut losses = device.losses();
    for _ in 0..TRIES {
        let result = change(device).await;
        let before = std::mem::replace(&mut losses, device.losses());
        if result.is_err() || losses == before {
            return (before, result);
        }
    }
    (losses, Err(BackingError::Io(EIO)))
}

fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    range.clone().step_by(PIECE as usize).map(move |start| start..(start + PIECE).min(range.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_range_is_changed_in_pieces() {
        assert_eq!(pieces(5..5).count(), 0);
        assert_eq!(pieces(0..PIECE + 1).collect::<Vec<_>>(), [0..PIECE, PIECE..PIECE + 1]);
    }
}
