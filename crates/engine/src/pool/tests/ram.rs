//! A device in memory, with a volatile cache and a power switch.

use std::collections::BTreeMap;
use std::future::{Future, ready};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};

use forebay_common::lock::Mutex;

use crate::buffer::{BLOCK, Buffer, Slice};
use crate::io::{Device, DeviceError, Durability, Io};

/// Runs a future that never has to wait.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("memory does not make anybody wait"),
    }
}

/// A power supply of several devices, which is cut at the write that brings `writes_left` to zero.
pub(super) struct Power {
    writes_left: AtomicI64,
    /// Bytes of the write in flight at the cut that still reach the medium.
    torn: usize,
}

impl Power {
    pub(super) fn cut_after(writes: i64, torn: usize) -> Arc<Self> {
        Arc::new(Power { writes_left: AtomicI64::new(writes), torn })
    }

    pub(super) fn is_cut(&self) -> bool {
        self.writes_left.load(Relaxed) < 0
    }
}

/// Bytes of a sector, which a device writes as a whole.
const SECTOR: usize = 512;

type Blocks = BTreeMap<u64, Vec<u8>>;

pub(super) struct Ram {
    name: String,
    size: u64,
    medium: Mutex<Blocks>,
    cache: Mutex<Blocks>,
    power: Mutex<Arc<Power>>,
    /// True if every write fails.
    pub(super) read_only: AtomicBool,
    /// True if every flush fails.
    pub(super) unflushable: AtomicBool,
    /// True if writes never end.
    pub(super) silent: AtomicBool,
    /// True if every request fails.
    pub(super) gone: AtomicBool,
    /// Offsets and lengths that were discarded.
    pub(super) discarded: Mutex<Vec<(u64, u64)>>,
}

impl Ram {
    pub(super) fn new(name: &str, size: u64) -> Arc<Self> {
        Arc::new(Ram {
            name: name.to_owned(),
            size,
            medium: Mutex::default(),
            cache: Mutex::default(),
            power: Mutex::new(Power::cut_after(i64::MAX, 0)),
            read_only: AtomicBool::new(false),
            unflushable: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            discarded: Mutex::default(),
        })
    }

    /// Returns another device with equal contents, and perhaps another size.
    pub(super) fn copy(&self, name: &str, size: u64) -> Arc<Self> {
        let copy = Ram::new(name, size);
        *copy.medium.lock() = self.medium.lock().clone();
        copy
    }

    pub(super) fn plug_into(&self, power: &Arc<Power>) {
        *self.power.lock() = power.clone();
    }

    /// Brings the power back. Data that was only in the cache is lost.
    pub(super) fn restart(&self) {
        self.cache.lock().clear();
        self.plug_into(&Power::cut_after(i64::MAX, 0));
    }

    /// Brings the power back. The given sectors of each cached block have reached the medium.
    pub(super) fn restart_with(&self, survives: impl Fn(usize) -> bool) {
        for (block, data) in std::mem::take(&mut *self.cache.lock()) {
            for (sector, bytes) in data.chunks(SECTOR).enumerate().filter(|(sector, _)| survives(*sector)) {
                self.poke(block * BLOCK as u64 + (sector * SECTOR) as u64, bytes);
            }
        }
        self.restart();
    }

    /// Writes bytes to the medium, unaligned.
    pub(super) fn poke(&self, offset: u64, bytes: &[u8]) {
        let mut medium = self.medium.lock();
        for (at, byte) in (offset..).zip(bytes) {
            let block = medium.entry(at / BLOCK as u64).or_insert_with(|| vec![0; BLOCK]);
            block[(at % BLOCK as u64) as usize] = *byte;
        }
    }

    /// Returns all blocks of the medium except zeros.
    pub(super) fn image(&self) -> Blocks {
        let mut image = self.medium.lock().clone();
        image.retain(|_, block| block.iter().any(|&byte| byte != 0));
        image
    }

    fn store(&self, offset: u64, data: &[u8], blocks: &Mutex<Blocks>) {
        let numbers = offset / BLOCK as u64..;
        blocks.lock().extend(numbers.zip(data.chunks(BLOCK).map(<[u8]>::to_vec)));
    }

    fn flush_now(&self) {
        self.medium.lock().append(&mut self.cache.lock());
    }

    fn write_now(&self, offset: u64, data: &[u8], durability: Durability) -> Result<(), DeviceError> {
        assert!(offset.is_multiple_of(BLOCK as u64) && data.len().is_multiple_of(BLOCK), "aligned");
        assert!(offset + data.len() as u64 <= self.size, "within the device");
        if self.gone.load(Relaxed) {
            return Err(DeviceError::Gone);
        }
        if self.read_only.load(Relaxed) {
            return Err(DeviceError::Io);
        }
        let power = self.power.lock().clone();
        match power.writes_left.fetch_sub(1, Relaxed) {
            left if left > 0 => self.store(offset, data, &self.cache),
            0 => {
                self.poke(offset, &data[..power.torn.min(data.len())]);
                return Err(DeviceError::Gone);
            }
            _ => return Err(DeviceError::Gone),
        }
        if durability == Durability::Now {
            self.flush_now();
        }
        Ok(())
    }

    fn check(&self) -> Result<(), DeviceError> {
        let dead = self.gone.load(Relaxed) || self.power.lock().is_cut();
        if dead { Err(DeviceError::Gone) } else { Ok(()) }
    }
}

impl Device for Ram {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, mut buffer: Buffer) -> Io<(Buffer, Result<(), DeviceError>)> {
        buffer.fill(0);
        let first = offset / BLOCK as u64;
        let last = first + (buffer.len() / BLOCK) as u64;
        for blocks in [&self.medium, &self.cache] {
            for (number, block) in blocks.lock().range(first..last) {
                let at = (number - first) as usize * BLOCK;
                buffer[at..at + BLOCK].copy_from_slice(block);
            }
        }
        Box::pin(ready((buffer, self.check())))
    }

    fn write(&self, offset: u64, data: Slice, durability: Durability) -> Io<Result<(), DeviceError>> {
        if self.silent.load(Relaxed) {
            return Box::pin(std::future::pending());
        }
        Box::pin(ready(self.write_now(offset, &data, durability)))
    }

    fn flush(&self) -> Io<Result<(), DeviceError>> {
        let result = match self.unflushable.load(Relaxed) {
            true => Err(DeviceError::Io),
            false => self.check(),
        };
        if result.is_ok() {
            self.flush_now();
        }
        Box::pin(ready(result))
    }

    fn discard(&self, offset: u64, len: u64) -> Io<Result<(), DeviceError>> {
        self.discarded.lock().push((offset, len));
        Box::pin(ready(Ok(())))
    }
}
