//! A cache device that is an NBD export.

use std::future::ready;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_common::nbd_url::NbdUrl;
use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{Device, DeviceError, Durability, Io};
use forebay_runtime::Completion;
use forebay_wire::nbd::transmission;

use super::connection::Connection;
use super::handshake::Export;
use super::pending::{Ended, Failure};
use crate::open::{MIN_SIZE, OpenError};
use crate::traffic::{Traffic, TrafficCounters};

/// An NBD export as a cache device, over one connection.
///
/// If the connection ends, every operation in flight and every later one returns [`DeviceError::Gone`], which is
/// permanent. The server may have lost writes that were not flushed, so the device has to be added again like any
/// device that failed.
pub struct NbdDevice {
    connection: Connection,
    size: u64,
    shared: Arc<Shared>,
    traffic: TrafficCounters,
}

struct Shared {
    name: String,
    /// True if a flush failed. Later flushes are no proof then.
    flush_failed: AtomicBool,
}

impl NbdDevice {
    /// Connects to the export. This takes ten seconds at most, and the time for looking up a name.
    ///
    /// # Errors
    /// A sentence: the server cannot be reached, or the export cannot be a cache device.
    pub fn open(url: &NbdUrl) -> Result<Self, OpenError> {
        let path = || PathBuf::from(url.as_str());
        let failed = |reason: String| OpenError::Server { path: path(), reason };
        let connection = Connection::open(url, || {}).map_err(failed)?;
        let export = *connection.export();
        if let Some(reason) = unsuitable(&export) {
            return Err(failed(reason.to_owned()));
        }
        let size = export.size - export.size % BLOCK as u64;
        if size < MIN_SIZE {
            return Err(OpenError::TooSmall { path: path(), size });
        }
        let shared = Shared { name: url.as_str().to_owned(), flush_failed: AtomicBool::new(false) };
        Ok(NbdDevice { connection, size, shared: Arc::new(shared), traffic: TrafficCounters::default() })
    }

    /// Returns the operations that the device was asked for since it was opened.
    pub fn traffic(&self) -> Traffic {
        self.traffic.now()
    }
}

impl NbdDevice {
    /// Ends the connection, because the device is lost. Every request in flight, and every later one, fails.
    pub(crate) fn leave(&self) {
        self.connection.leave();
    }
}

/// Returns why an export cannot be a cache device, as the end of a sentence about its server.
fn unsuitable(export: &Export) -> Option<&'static str> {
    if export.has(transmission::READ_ONLY) {
        Some("its export is read-only")
    } else if !export.has(transmission::SEND_FLUSH) {
        Some("it has no FLUSH, so it cannot say when writes are durable")
    } else if export.minimum > BLOCK as u32 {
        Some("its blocks are larger than 4096 bytes")
    } else {
        None
    }
}

impl Device for NbdDevice {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, buffer: Buffer) -> Io<(Buffer, Result<(), DeviceError>)> {
        let len = buffer.len();
        let checked = self.check(offset, len as u64);
        if len == 0 || checked.is_err() {
            return Box::pin(ready((buffer, checked)));
        }
        self.traffic.read(len);
        let shared = self.shared.clone();
        if len <= self.connection.export().maximum as usize {
            let read = self.connection.read(offset, len, buffer);
            return Box::pin(async move {
                let Ended { result, buffer } = read.await;
                let buffer = buffer.unwrap_or_else(|| Buffer::zeroed(len / BLOCK));
                (buffer, shared.judge("READ", offset, result))
            });
        }
        let mut buffer = buffer;
        let begin = |part: std::ops::Range<usize>| {
            let own = Buffer::zeroed(part.len().div_ceil(BLOCK));
            (part.clone(), self.connection.read(offset + part.start as u64, part.len(), own))
        };
        let reads: Vec<_> = self.connection.parts(len).map(begin).collect();
        Box::pin(async move {
            let mut all = Ok(());
            for (part, read) in reads {
                let Ended { result, buffer: own } = read.await;
                if let (Ok(()), Some(own)) = (result, own) {
                    let len = part.len();
                    buffer[part].copy_from_slice(&own[..len]);
                }
                all = all.and(shared.judge("READ", offset, result));
            }
            (buffer, all)
        })
    }

    /// Writes `data`. [`Durability::Now`] is a WRITE with FUA, and a FLUSH beside it if earlier writes still need one.
    /// A server without FUA gets a FLUSH after the WRITE.
    fn write(&self, offset: u64, data: Slice, durability: Durability) -> Io<Result<(), DeviceError>> {
        if let Err(error) = self.check(offset, data.len() as u64) {
            return Box::pin(ready(Err(error)));
        }
        let now = durability == Durability::Now;
        if now && self.shared.flush_failed() {
            return Box::pin(ready(Err(DeviceError::Io)));
        }
        self.traffic.write(data.len(), now);
        let fua = now && self.connection.export().has(transmission::SEND_FUA);
        let write = |part: std::ops::Range<usize>| {
            self.connection.write(offset + part.start as u64, &data, part, fua)
        };
        let writes: Vec<_> = self.connection.parts(data.len()).map(write).collect();
        // FLUSH covers the writes that have completed before it is sent. Those in flight are durable by themselves.
        let flush = (fua && self.connection.needs_flush()).then(|| self.connection.flush());
        let (shared, after) = (self.shared.clone(), (now && !fua).then(|| self.connection.flusher()));
        Box::pin(async move {
            shared.all("WRITE", offset, writes).await?;
            let flush = match after {
                Some(flusher) => Some(flusher.flush()),
                None => flush,
            };
            match flush {
                Some(flush) => shared.judge_flush(flush.await.result),
                None => Ok(()),
            }
        })
    }

    /// Flushes. After a flush that failed, every later flush and every durable write fails: the device has to be left.
    fn flush(&self) -> Io<Result<(), DeviceError>> {
        if self.shared.flush_failed() {
            return Box::pin(ready(Err(DeviceError::Io)));
        }
        self.traffic.flush();
        let (flush, shared) = (self.connection.flush(), self.shared.clone());
        Box::pin(async move { shared.judge_flush(flush.await.result) })
    }

    /// Sends TRIM, if the server has it.
    fn discard(&self, offset: u64, len: u64) -> Io<Result<(), DeviceError>> {
        if let Err(error) = self.check(offset, len) {
            return Box::pin(ready(Err(error)));
        }
        let (trims, shared) = (self.connection.trim(offset, len), self.shared.clone());
        Box::pin(async move { shared.all("TRIM", offset, trims).await })
    }
}

impl NbdDevice {
    /// Refuses ranges outside the device, and parts of blocks.
    fn check(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let block = BLOCK as u64;
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size);
        if !inside || !offset.is_multiple_of(block) || !len.is_multiple_of(block) {
            tracing::error!("{}: {len} bytes at {offset} are not whole blocks of it", self.shared.name);
            return Err(DeviceError::Io);
        }
        Ok(())
    }
}

impl Shared {
    fn flush_failed(&self) -> bool {
        self.flush_failed.load(Ordering::SeqCst)
    }

    /// Waits for the parts of an operation.
    async fn all(&self, what: &str, offset: u64, parts: Vec<Completion<Ended>>) -> Result<(), DeviceError> {
        let mut all = Ok(());
        for part in parts {
            all = all.and(self.judge(what, offset, part.await.result));
        }
        all
    }

    /// Returns the result of a flush. A flush is good only if no other flush has failed: the server may report a loss
    /// only once, perhaps to the other flush.
    fn judge_flush(&self, result: Result<(), Failure>) -> Result<(), DeviceError> {
        if result.is_err() {
            self.flush_failed.store(true, Ordering::SeqCst);
        }
        self.judge("FLUSH", 0, result)?;
        if self.flush_failed() { Err(DeviceError::Io) } else { Ok(()) }
    }

    /// Returns the engine's error for an operation that failed: `Gone` if the connection was lost, `Io` if the server
    /// refused. `what` and `offset` are for the log.
    fn judge(&self, what: &str, offset: u64, result: Result<(), Failure>) -> Result<(), DeviceError> {
        match result {
            Ok(()) => Ok(()),
            Err(Failure::Lost) => Err(DeviceError::Gone),
            Err(Failure::Refused(code)) => {
                tracing::error!("{}: {what} at {offset} fails: {code:?}", self.name);
                Err(DeviceError::Io)
            }
        }
    }
}
