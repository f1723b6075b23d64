//! A volume in memory, and a set of volumes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::task::{Poll, Waker};
use std::time::Duration;

use forebay_engine::io::Clock;
use forebay_runtime::SystemClock;
use forebay_volume::disk::{Disk, DiskError, DiskFuture, Disks, Extent, Shape, Stability};

const CHUNK: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// A volume in memory. Unwritten blocks are holes; written ones are dirty until a flush.
pub(crate) struct Memory {
    shape: Shape,
    pub(crate) size: AtomicU64,
    chunks: Vec<RwLock<Box<[u8]>>>,
    /// For each written block: true if it is dirty.
    written: Mutex<BTreeMap<u64, bool>>,
    pub(crate) flushes: AtomicUsize,
    /// Writes with FUA, and ranges brought into the cache.
    pub(crate) fua: AtomicUsize,
    pub(crate) prefetched: AtomicUsize,
    /// True if no read is answered from memory.
    pub(crate) is_slow: AtomicBool,
    /// True if zeros are no faster than writes.
    pub(crate) zeroes_slowly: AtomicBool,
    pub(crate) gate: Gate,
    /// The time that a flush sleeps on the engine's clock.
    pub(crate) delay: Mutex<Option<Duration>>,
    /// The error of every operation.
    pub(crate) fails: Mutex<Option<DiskError>>,
}

/// Holds operations until they are let through.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<(bool, Vec<Waker>)>,
    arrived: Condvar,
}

impl Gate {
    pub(crate) fn close(&self) {
        self.state.lock().unwrap().0 = true;
    }

    pub(crate) fn open(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 = false;
        state.1.drain(..).for_each(Waker::wake);
    }

    /// Waits until this many operations wait.
    pub(crate) fn await_waiting(&self, count: usize) {
        let state = self.state.lock().unwrap();
        drop(self.arrived.wait_while(state, |state| state.1.len() < count).unwrap());
    }

    /// Returns the number of operations that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.state.lock().unwrap().1.len()
    }

    async fn pass(&self) {
        std::future::poll_fn(|context| {
            let mut state = self.state.lock().unwrap();
            if !state.0 {
                return Poll::Ready(());
            }
            state.1.push(context.waker().clone());
            self.arrived.notify_all();
            Poll::Pending
        })
        .await;
    }
}

impl Memory {
    pub(crate) fn new(size: u64) -> Arc<Self> {
        Self::shaped(size, |_| {})
    }

    pub(crate) fn shaped(size: u64, change: impl FnOnce(&mut Shape)) -> Arc<Self> {
        let mut shape = Shape {
            size,
            read_only: false,
            minimum_block: 1,
            preferred_block: 4096,
            maximum_payload: 32 << 20,
            rotational: false,
        };
        change(&mut shape);
        let chunks = (0..size.div_ceil(CHUNK)).map(|_| RwLock::new(vec![0; CHUNK as usize].into())).collect();
        Arc::new(Self {
            shape,
            size: AtomicU64::new(size),
            chunks,
            written: Mutex::default(),
            flushes: AtomicUsize::new(0),
            fua: AtomicUsize::new(0),
            prefetched: AtomicUsize::new(0),
            is_slow: AtomicBool::new(false),
            zeroes_slowly: AtomicBool::new(false),
            gate: Gate::default(),
            delay: Mutex::new(None),
            fails: Mutex::new(None),
        })
    }

    /// Calls `act` with each chunk of the range: the chunk, the place in it, and the place in the range.
    fn each(&self, offset: u64, len: usize, mut act: impl FnMut(&RwLock<Box<[u8]>>, usize, usize, usize)) {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = (at % CHUNK) as usize;
            let part = (len - done).min(CHUNK as usize - within);
            act(&self.chunks[(at / CHUNK) as usize], within, done, part);
            done += part;
        }
    }

    fn load(&self, offset: u64, buf: &mut [u8]) {
        self.each(offset, buf.len(), |chunk, within, at, len| {
            buf[at..at + len].copy_from_slice(&chunk.read().unwrap()[within..within + len]);
        });
    }

    pub(crate) fn store(&self, offset: u64, data: &[u8]) {
        self.each(offset, data.len(), |chunk, within, at, len| {
            chunk.write().unwrap()[within..within + len].copy_from_slice(&data[at..at + len]);
        });
        let blocks = offset / BLOCK..(offset + data.len() as u64).div_ceil(BLOCK);
        self.written.lock().unwrap().extend(blocks.map(|block| (block, true)));
    }

    fn zero(&self, offset: u64, len: u64) {
        self.each(offset, len as usize, |chunk, within, _, len| {
            chunk.write().unwrap()[within..within + len].fill(0);
        });
        let blocks = offset.div_ceil(BLOCK)..(offset + len) / BLOCK;
        self.written.lock().unwrap().retain(|block, _| !blocks.contains(block));
    }

    fn check(&self) -> Result<(), DiskError> {
        self.fails.lock().unwrap().map_or(Ok(()), Err)
    }
}

impl Disk for Memory {
    fn shape(&self) -> Shape {
        Shape { size: self.size.load(SeqCst), ..self.shape }
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<bool, DiskError> {
        if self.is_slow.load(SeqCst) {
            return Ok(false);
        }
        self.load(offset, buf);
        Ok(true)
    }

    fn read<'a>(&'a self, offset: u64, buf: &'a mut [u8]) -> DiskFuture<'a, ()> {
        Box::pin(async move {
            self.gate.pass().await;
            self.check()?;
            self.load(offset, buf);
            Ok(())
        })
    }

    fn write<'a>(&'a self, offset: u64, data: &'a [u8], stability: Stability) -> DiskFuture<'a, ()> {
        Box::pin(async move {
            self.gate.pass().await;
            self.check()?;
            self.store(offset, data);
            self.fua.fetch_add(usize::from(stability == Stability::Durable), SeqCst);
            Ok(())
        })
    }

    fn flush(&self) -> DiskFuture<'_, ()> {
        let delay = self.delay.lock().unwrap().map(|delay| SystemClock::new().sleep(delay));
        Box::pin(async move {
            if let Some(delay) = delay {
                delay.await;
            }
            self.check()?;
            self.written.lock().unwrap().values_mut().for_each(|is_dirty| *is_dirty = false);
            self.flushes.fetch_add(1, SeqCst);
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64, _: Stability) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.check()?;
            self.zero(offset, len);
            Ok(())
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep: bool, stability: Stability) -> DiskFuture<'_, ()> {
        Box::pin(async move {
            self.gate.pass().await;
            self.check()?;
            self.fua.fetch_add(usize::from(stability == Stability::Durable), SeqCst);
            match keep {
                true => self.store(offset, &vec![0; len as usize]),
                false => self.zero(offset, len),
            }
            Ok(())
        })
    }

    fn zeroes_fast(&self) -> DiskFuture<'_, bool> {
        Box::pin(async { Ok(!self.zeroes_slowly.load(SeqCst)) })
    }

    fn prefetch(&self, _: u64, _: u64) -> DiskFuture<'_, ()> {
        self.prefetched.fetch_add(1, SeqCst);
        Box::pin(async {
            self.gate.pass().await;
            Ok(())
        })
    }

    fn extents(&self, offset: u64, len: u64, most: usize) -> DiskFuture<'_, Vec<Extent>> {
        Box::pin(async move {
            self.gate.pass().await;
            self.check()?;
            let written = self.written.lock().unwrap();
            let (mut extents, end, mut at) = (Vec::<Extent>::new(), offset + len, offset);
            while at < end && extents.len() < most {
                let state = written.get(&(at / BLOCK)).copied();
                let next = ((at / BLOCK + 1) * BLOCK).min(end);
                let (hole, dirty) = (state.is_none(), state == Some(true));
                extents.push(Extent { len: next - at, hole, zero: hole, cached: !hole, dirty });
                at = next;
            }
            Ok(extents)
        })
    }
}

/// Volumes by name.
pub(crate) struct Set(pub(crate) BTreeMap<String, Arc<Memory>>);

impl Set {
    pub(crate) fn one(disk: &Arc<Memory>) -> Arc<Self> {
        Arc::new(Self(BTreeMap::from([("disk".to_owned(), disk.clone())])))
    }
}

impl Disks for Set {
    fn list(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    fn open(&self, name: &str) -> Option<Arc<dyn Disk>> {
        self.0.get(name).map(|disk| disk.clone() as Arc<dyn Disk>)
    }
}
