//! A volume: the engine's object and the backing device of one block device.

use std::pin::Pin;
use std::sync::Arc;

use forebay_common::lock::Mutex;
use forebay_common::lock::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use forebay_engine::wait::Gate;
use forebay_engine::{CachedObject, Engine, Error, Mode, Outcome, Seq};

use crate::device::BackingDevice;
use crate::disk::{Disk, DiskError, DiskFuture, Extent, Shape, Stability};
use crate::key::key;

/// The longest request in bytes.
const PAYLOAD: u32 = 32 << 20;

/// A cached block device in service.
///
/// A write is accepted when it is in the open frame of the log, and durable when the frame is. [`Disk::flush`] waits
/// for the last frame that has a write of this volume, and syncs what went past the log. So any subset of unflushed
/// writes may be lost, and no flushed one.
pub struct Volume {
    pub(crate) engine: Arc<Engine>,
    pub(crate) object: Arc<CachedObject>,
    /// `None` after [`Volume::release`].
    device: Mutex<Option<Arc<dyn BackingDevice>>>,
    is_rotational: bool,
    read_only: bool,
    mode: Mutex<Option<Mode>>,
    /// The last frame with a change of this volume that was answered.
    frame: AtomicU64,
    pub(crate) counters: Counters,
    /// Number of requests in progress.
    running: AtomicU64,
    /// Number of stops that no [`Volume::resume`] has ended.
    stops: AtomicU32,
    /// Wakes the task that waits for the end of the requests in progress.
    left: Gate,
    /// True while [`Volume::grown`] takes a size over.
    growing: AtomicBool,
    /// Wakes the task that waits for the end of that.
    grew: Gate,
}

/// The requests since the volume is in service.
#[derive(Debug, Default)]
pub struct Counters {
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) discarded_bytes: AtomicU64,
    pub(crate) errors: AtomicU64,
}

/// A copy of [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes that were discarded, or zeroed past the log.
    pub discarded_bytes: u64,
    /// Requests that failed.
    pub errors: u64,
}

/// A request in progress.
struct Running<'a>(&'a Volume);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        if self.0.is_stopped() {
            self.0.left.wake();
        }
    }
}

/// A growth in progress.
struct Growing<'a>(&'a Volume);

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        self.0.growing.store(false, Ordering::SeqCst);
        self.0.grew.wake();
    }
}

impl Volume {
    /// Makes the volume with this UUID, whose key the engine's backing store leads to `device`. Without a `mode` of its
    /// own the volume has the engine's.
    pub fn new(
        engine: &Arc<Engine>,
        uuid: u128,
        device: Arc<dyn BackingDevice>,
        mode: Option<Mode>,
        read_only: bool,
    ) -> Arc<Self> {
        let object = engine.object(&key(uuid), device.size());
        Arc::new(Volume {
            engine: engine.clone(),
            object,
            is_rotational: device.is_rotational(),
            device: Mutex::new(Some(device)),
            read_only,
            mode: Mutex::new(mode),
            frame: AtomicU64::new(0),
            counters: Counters::default(),
            running: AtomicU64::new(0),
            stops: AtomicU32::new(0),
            left: Gate::default(),
            growing: AtomicBool::new(false),
            grew: Gate::default(),
        })
    }

    /// Returns the mode in force: the volume's own or the engine's, whichever uses the cache less.
    pub fn mode(&self) -> Mode {
        let engine = self.engine.effective_mode();
        self.own_mode().map_or(engine, |own| own.max(engine))
    }

    /// Returns the volume's own mode; `None` if it follows the engine's.
    pub fn own_mode(&self) -> Option<Mode> {
        *self.mode.lock()
    }

    /// Sets the volume's own mode. Data that was accepted earlier is destaged in any mode.
    pub fn set_mode(&self, mode: Option<Mode>) {
        *self.mode.lock() = mode;
    }

    /// Returns true if every change is refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns the bytes that the backing device does not have yet.
    pub fn dirty_bytes(&self) -> u64 {
        self.object.dirty_blocks() * forebay_engine::buffer::BLOCK as u64
    }

    /// Returns the counters since the volume is in service.
    pub fn counted(&self) -> Counted {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counted {
            reads: count(&self.counters.reads),
            read_bytes: count(&self.counters.read_bytes),
            writes: count(&self.counters.writes),
            written_bytes: count(&self.counters.written_bytes),
            flushes: count(&self.counters.flushes),
            discarded_bytes: count(&self.counters.discarded_bytes),
            errors: count(&self.counters.errors),
        }
    }

    /// Drops clean copies, durably, because another program may have changed the backing device. Returns false, and
    /// does nothing, if the device lacks changes that the log has.
    ///
    /// # Errors
    /// No cache device is left.
    pub async fn changed_outside(&self) -> Result<bool, Error> {
        self.engine.changed_outside(&self.object, self.device()?.size(), 0).await
    }

    /// Takes over a larger size of the backing device. Returns the sizes before and after that; `None` if the volume
    /// has the size already. Must not be given up before its end.
    ///
    /// # Errors
    /// The log takes no records.
    pub async fn grown(&self) -> Result<Option<(u64, u64)>, Error> {
        // Of two at once, the later one to be carried out could have the smaller size, and cut the volume.
        let is_free = || (!self.growing.swap(true, Ordering::SeqCst)).then_some(());
        self.grew.until(is_free).await;
        let _growing = Growing(self);
        let (before, device) = (self.object.size(), self.device()?);
        if device.size() <= before {
            return Ok(None);
        }
        loop {
            let size = device.size();
            let grown = self.engine.truncate(&self.object, size, forebay_engine::io::Time::default()).await;
            // The device may have become longer while the growth waited. It has no other size then.
            if device.size() == size {
                return grown.map(|()| Some((before, size)));
            }
        }
    }

    /// Waits until the backing device has not answered a request for ten seconds, which may be never.
    pub async fn until_late(&self) {
        self.engine.until_late(&self.object).await;
    }

    /// Destages everything that is dirty now, durably. Must not be given up before its end while the volume stays in
    /// service: later syncs wait for the one in progress.
    ///
    /// # Errors
    /// The backing device or the cache fails. Destaging is tried again in the background.
    pub async fn destage(&self) -> Result<(), Error> {
        self.flush_now().await?;
        if self.object.dirty_blocks() > 0 {
            self.engine.destage_object(&self.object).await?;
        }
        self.engine.sync_bypassed(&self.object).await
    }

    /// Refuses all further requests with [`DiskError::Stopping`], and waits until no request is in progress. The
    /// refusal begins with the first poll. It lasts until [`Volume::resume`], even if the caller does not wait.
    pub async fn stop(&self) {
        self.stops.fetch_add(1, Ordering::SeqCst);
        self.left.until(|| (self.running.load(Ordering::SeqCst) == 0).then_some(())).await;
    }

    /// Ends one [`Volume::stop`]. After the end of all stops the volume accepts requests again.
    pub fn resume(&self) {
        self.stops.fetch_sub(1, Ordering::SeqCst);
    }

    /// Makes every answered change durable, in the log or on the backing device. A stopped volume does so as well.
    ///
    /// # Errors
    /// The backing device or the cache fails.
    pub async fn make_durable(&self) -> Result<(), Error> {
        self.flush_now().await
    }

    /// Gives the backing device back after a [`Volume::stop`] that no [`Volume::resume`] follows. A client may keep the
    /// volume open for ever. A request in progress keeps the device until the request ends.
    pub fn release(&self) {
        self.device.lock().take();
    }

    /// Returns the backing device. Fails after [`Volume::release`].
    pub(crate) fn device(&self) -> Result<Arc<dyn BackingDevice>, Error> {
        self.device.lock().clone().ok_or(Error::Closing)
    }

    /// Fails while the volume is stopped. A long request looks before each of its pieces, so a stop waits for one
    /// piece only.
    pub(crate) fn go_on(&self) -> Result<(), Error> {
        if self.is_stopped() { Err(Error::Closing) } else { Ok(()) }
    }

    fn is_stopped(&self) -> bool {
        self.stops.load(Ordering::SeqCst) > 0
    }

    /// Records that a change of this frame was answered.
    pub(crate) fn answered(&self, frame: Seq) {
        self.frame.fetch_max(frame, Ordering::AcqRel);
    }

    /// Returns the last frame with an answered change.
    pub(crate) fn last_frame(&self) -> Seq {
        self.frame.load(Ordering::Acquire)
    }

    /// Counts a request in progress until the result is dropped, so that a stop waits for it. Fails once the volume
    /// is stopping.
    fn enter(&self) -> Result<Running<'_>, DiskError> {
        // Each side writes its own flag before it looks at the other's: either the request sees the stop, or the stop
        // sees the request. Weaker orders allow that neither does.
        self.running.fetch_add(1, Ordering::SeqCst);
        let running = Running(self);
        if self.is_stopped() { Err(DiskError::Stopping) } else { Ok(running) }
    }

    /// Fails if a range of bytes passes the end of the volume, or changes a read-only one.
    fn check(&self, offset: u64, len: u64, changes: bool) -> Result<(), DiskError> {
        if changes && self.read_only {
            return Err(DiskError::ReadOnly);
        }
        let end = offset.checked_add(len).ok_or(DiskError::Invalid)?;
        if end > self.object.size() { Err(DiskError::Invalid) } else { Ok(()) }
    }

    /// Carries out a request of `len` bytes at `offset`.
    fn request<'a, T: Send + 'a>(
        &'a self,
        (offset, len, changes): (u64, u64, bool),
        work: impl Future<Output = Result<T, Error>> + Send + 'a,
    ) -> DiskFuture<'a, T> {
        Box::pin(async move {
            let _running = self.enter()?;
            self.check(offset, len, changes)?;
            let work: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(work);
            work.await.map_err(|error| {
                self.counters.errors.fetch_add(1, Ordering::Relaxed);
                disk_error(error)
            })
        })
    }
}

/// Returns the error that doors pass on to clients for an error of the engine.
fn disk_error(error: Error) -> DiskError {
    use forebay_engine::io::BackingError;
    match error {
        Error::Backing(BackingError::NoSpace | BackingError::Quota) => DiskError::NoSpace,
        Error::Closing => DiskError::Stopping,
        Error::Backing(BackingError::Gone | BackingError::Io(_)) => DiskError::Io,
        Error::Late | Error::Damaged | Error::NoDevice => DiskError::Io,
    }
}

impl Disk for Volume {
    fn shape(&self) -> Shape {
        Shape {
            size: self.object.size(),
            read_only: self.read_only,
            minimum_block: 1,
            preferred_block: forebay_engine::buffer::BLOCK as u32,
            maximum_payload: PAYLOAD,
            rotational: self.is_rotational,
        }
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<bool, DiskError> {
        let _running = self.enter()?;
        self.check(offset, buf.len() as u64, false)?;
        let whole = buf.len();
        let read =
            matches!(self.engine.try_read(&self.object, offset, buf), Outcome::Done(len) if len == whole);
        if read {
            self.counters.reads.fetch_add(1, Ordering::Relaxed);
            self.counters.read_bytes.fetch_add(whole as u64, Ordering::Relaxed);
        }
        Ok(read)
    }

    fn read<'a>(&'a self, offset: u64, buf: &'a mut [u8]) -> DiskFuture<'a, ()> {
        self.request((offset, buf.len() as u64, false), self.read_now(offset, buf))
    }

    fn write<'a>(&'a self, offset: u64, data: &'a [u8], stability: Stability) -> DiskFuture<'a, ()> {
        self.request((offset, data.len() as u64, true), self.write_now(offset, data, stability))
    }

    fn flush(&self) -> DiskFuture<'_, ()> {
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.request((0, 0, false), self.flush_now())
    }

    fn discard(&self, offset: u64, len: u64, stability: Stability) -> DiskFuture<'_, ()> {
        self.request((offset, len, true), self.discard_now(offset, len, stability))
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep: bool, stability: Stability) -> DiskFuture<'_, ()> {
        self.request((offset, len, true), self.write_zeroes_now(offset, len, keep, stability))
    }

    fn zeroes_fast(&self) -> DiskFuture<'_, bool> {
        self.request((0, 0, false), async { Ok(self.device()?.zeroes_fast().await) })
    }

    fn prefetch(&self, offset: u64, len: u64) -> DiskFuture<'_, ()> {
        self.request((offset, len, false), self.prefetch_now(offset, len))
    }

    fn extents(&self, offset: u64, len: u64, most: usize) -> DiskFuture<'_, Vec<Extent>> {
        self.request((offset, len, false), self.extents_now(offset, len, most))
    }
}
