//! A backing device that is an NBD export. Its connection is renewed when it is lost.
//!
//! A request that is in flight when the connection ends is sent again on the next connection. That is right for reads,
//! and for changes of which no two in flight overlap. Changes that completed and were not flushed may be gone, however.
//! So the first sync after the loss fails, and the caller writes again what it still has ([`NbdLink::sync`]).

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use forebay_common::lock::{Condvar, Mutex};
use forebay_common::nbd_url::NbdUrl;
use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::wait::Gate;
use forebay_runtime::Completion;
use forebay_wire::nbd::{ErrorCode, transmission};

use super::connection::Connection;
use super::pending::{Ended, Failure};
use super::renewal::{Inner, Shape, Unconnected};

/// The number of connections on which a request is tried. A request that ends each of them must not be sent for ever.
const TRIES: usize = 3;

/// The reason why a request to a backing device failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// There is no connection, or the server may have lost changes that were not flushed.
    #[error("the connection to the NBD server is lost")]
    Lost,
    /// The server has no space left.
    #[error("the NBD server has no space left")]
    NoSpace,
    /// The server refused the request.
    #[error("the NBD server reports an error")]
    Refused,
}

impl From<Failure> for LinkError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Lost => LinkError::Lost,
            Failure::Refused(ErrorCode::NoSpc) => LinkError::NoSpace,
            Failure::Refused(_) => LinkError::Refused,
        }
    }
}

/// The properties of an export that was in use earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownExport {
    /// Size in bytes.
    pub size: u64,
    /// The unit of offsets and lengths in bytes.
    pub unit: u32,
}

/// An NBD export behind a volume. Clones share the connection, which ends with the last clone.
#[derive(Clone)]
pub struct NbdLink(Arc<Owner>);

/// Ends the thread that connects.
struct Owner(Arc<Inner>);

impl NbdLink {
    /// Connects to the export. This takes ten seconds at most, and the time for looking up a name. `tell` is called
    /// with false when the connection is lost, and with true when there is one again. If the server cannot be reached,
    /// and the export is `known` from earlier, there is a connection as soon as the server can be reached.
    ///
    /// # Errors
    /// A sentence: the server cannot be reached, or the export cannot be a backing device.
    pub fn open(
        url: &NbdUrl,
        read_only: bool,
        known: Option<KnownExport>,
        tell: impl Fn(bool) + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let failed = |reason: &str| format!("cannot use {url}: {reason}");
        let inner = Arc::new(Inner {
            url: url.clone(),
            read_only,
            shape: OnceLock::new(),
            state: Mutex::default(),
            changed: Gate::default(),
            wanted: Condvar::new(),
            tell: Box::new(tell),
        });
        match (Inner::connect(&inner, 1), known) {
            (Ok(()), _) => {}
            (Err(Unconnected::Unreachable(reason)), Some(KnownExport { size, unit })) => {
                tracing::warn!("{url}: no connection: {reason}; it is tried again");
                inner.shape.get_or_init(|| Shape { size, unit, rotational: false });
                inner.state.lock().lost_at = Some(Instant::now());
            }
            (Err(Unconnected::Unreachable(reason) | Unconnected::Unfit(reason)), _) => {
                return Err(failed(&reason));
            }
        }
        let link = NbdLink(Arc::new(Owner(inner.clone())));
        let thread = std::thread::Builder::new().name("forebay-nbd-link".into());
        let thread = thread.spawn(move || inner.keep_connected());
        thread.map_err(|error| failed(&format!("no thread can be started for it: {error}")))?;
        Ok(link)
    }

    fn inner(&self) -> &Arc<Inner> {
        &self.0.0
    }

    fn shape(&self) -> Shape {
        self.inner().shape.get().copied().unwrap_or_default()
    }

    /// Returns true if there is a connection.
    pub fn is_connected(&self) -> bool {
        self.inner().state.lock().connection.is_some()
    }

    /// Returns the size in bytes at the first connection.
    pub fn size(&self) -> u64 {
        self.shape().size
    }

    /// Returns the unit of offsets and lengths in bytes: a power of two, at most 4096.
    pub fn unit(&self) -> u32 {
        self.shape().unit
    }

    /// Returns true if the server says that the export is a rotating disk.
    pub fn is_rotational(&self) -> bool {
        self.shape().rotational
    }

    /// Returns the number of connections that were lost. If it changes during a change, the change may be lost after
    /// the first sync that fails for that.
    pub fn losses(&self) -> u64 {
        self.inner().state.lock().losses
    }

    /// Reads `len` bytes into the front of `buffer`.
    ///
    /// # Errors
    /// [`LinkError`]. The contents of the buffer are undefined then.
    pub async fn read(&self, offset: u64, mut buffer: Buffer, len: usize) -> (Buffer, Result<(), LinkError>) {
        if len == 0 {
            return (buffer, Ok(()));
        }
        for _ in 0..TRIES {
            let connection = match self.inner().connection().await {
                Ok(connection) => connection,
                Err(error) => return (buffer, Err(error)),
            };
            let blocks = buffer.len() / BLOCK;
            let (read, result) = read_on(&connection, offset, buffer, len).await;
            buffer = read.unwrap_or_else(|| Buffer::zeroed(blocks));
            match result {
                Err(Failure::Lost) => {}
                result => return (buffer, result.map_err(LinkError::from)),
            }
        }
        (buffer, Err(LinkError::Lost))
    }

    /// Writes the data. It is durable after [`NbdLink::sync`].
    ///
    /// # Errors
    /// [`LinkError`]. Any part of the data may have been written.
    pub async fn write(&self, offset: u64, data: Slice) -> Result<(), LinkError> {
        self.change(|connection| {
            let write = |part: std::ops::Range<usize>| {
                connection.write(offset + part.start as u64, &data, part, false)
            };
            Some(connection.parts(data.len()).map(write).collect())
        })
        .await
        .map(drop)
    }

    /// Discards a range. Does nothing if the server has no TRIM. Durable after [`NbdLink::sync`].
    ///
    /// # Errors
    /// [`LinkError`]
    pub async fn discard(&self, offset: u64, len: u64) -> Result<(), LinkError> {
        self.change(|connection| Some(connection.trim(offset, len))).await.map(drop)
    }

    /// Zeros a range of whole units. With `keep`, its space stays allocated. Durable after [`NbdLink::sync`]. Returns
    /// false, and does nothing, if the server has no WRITE_ZEROES.
    ///
    /// # Errors
    /// [`LinkError`]
    pub async fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Result<bool, LinkError> {
        self.change(|connection| connection.zero(offset..offset + len, keep)).await
    }

    /// Makes every change durable that completed before this call.
    ///
    /// # Errors
    /// [`LinkError::Lost`] if a connection has ended since the last sync and had changes that were not flushed. This
    /// error comes once for each such connection, to a sync that began after the end. Whatever was not synced before
    /// has to be written again.
    pub async fn sync(&self) -> Result<(), LinkError> {
        loop {
            let connection = self.inner().connection().await?;
            {
                let mut state = self.inner().state.lock();
                let is_current =
                    state.connection.as_ref().is_some_and(|current| Arc::ptr_eq(current, &connection));
                if !is_current {
                    continue;
                }
                // A connection that is lost now, but not seen yet, fails the FLUSH.
                if std::mem::take(&mut state.doubtful) {
                    return Err(LinkError::Lost);
                }
            }
            if !connection.export().has(transmission::SEND_FLUSH) || !connection.needs_flush() {
                return if connection.is_lost() { Err(LinkError::Lost) } else { Ok(()) };
            }
            return connection.flush().await.result.map_err(LinkError::from);
        }
    }

    /// Carries out a change, again if its connection is lost. Returns false if the server lacks the operation.
    async fn change(
        &self,
        begin: impl Fn(&Connection) -> Option<Vec<Completion<Ended>>>,
    ) -> Result<bool, LinkError> {
        for _ in 0..TRIES {
            let connection = self.inner().connection().await?;
            let Some(parts) = begin(&connection) else { return Ok(false) };
            let mut all = Ok(());
            for part in parts {
                all = all.and(part.await.result);
            }
            match all {
                Err(Failure::Lost) => {}
                all => return all.map(|()| true).map_err(LinkError::from),
            }
        }
        Err(LinkError::Lost)
    }
}

/// Reads on one connection. The buffer may be lost with an error.
async fn read_on(
    connection: &Connection,
    offset: u64,
    buffer: Buffer,
    len: usize,
) -> (Option<Buffer>, Result<(), Failure>) {
    if len <= connection.export().maximum as usize {
        let ended = connection.read(offset, len, buffer).await;
        return (ended.buffer, ended.result);
    }
    let mut buffer = buffer;
    for part in connection.parts(len) {
        let own = Buffer::zeroed(part.len().div_ceil(BLOCK));
        let ended = connection.read(offset + part.start as u64, part.len(), own).await;
        match (ended.result, ended.buffer) {
            (Ok(()), Some(own)) => {
                let len = part.len();
                buffer[part].copy_from_slice(&own[..len]);
            }
            (Ok(()), None) => return (Some(buffer), Err(Failure::Lost)),
            (Err(failure), _) => return (Some(buffer), Err(failure)),
        }
    }
    (Some(buffer), Ok(()))
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.closed = true;
        let connection = state.connection.take();
        drop(state);
        drop(connection);
        self.0.wanted.notify_all();
        self.0.changed.wake();
    }
}
