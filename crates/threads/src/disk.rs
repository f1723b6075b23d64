//! Cache devices in memory. Another thread carries out each operation and wakes the thread that waits for it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{Device, DeviceError, Durability, Io};

/// The smallest device that a pool takes.
const SIZE: u64 = 64 << 20;
/// The device of this name has room for more segments. So the copy on the other one, which is read first, is given up when its
/// segment leaves the log.
pub const LARGER: &str = "larger";

/// What a device holds: blocks that were written, by number.
pub type Image = BTreeMap<u64, Arc<[u8]>>;

/// A device in memory. A completed write is durable: what power cuts do to the others is the simulator's part.
#[derive(Clone)]
pub struct Disk {
    name: String,
    image: Arc<Mutex<Image>>,
    /// Operations end before their call returns: for the start and the look at the end, which are not what is checked.
    pub quick: Arc<AtomicBool>,
}

/// Runs `action` on another thread, or at once if `quick`.
pub fn carry_out<T: Send + 'static>(quick: bool, action: impl FnOnce() -> T + Send + 'static) -> Io<T> {
    if quick {
        return Box::pin(std::future::ready(action()));
    }
    let (promise, kept) = crate::promise::promise();
    // Dropped: it goes on by itself.
    drop(shuttle::future::spawn(async move {
        shuttle::future::yield_now().await;
        promise.keep(action());
    }));
    Box::pin(kept)
}

impl Disk {
    /// A device that holds `image`.
    pub fn new(name: &str, image: Image, quick: &Arc<AtomicBool>) -> Self {
        Disk { name: name.to_owned(), image: Arc::new(Mutex::new(image)), quick: quick.clone() }
    }

    fn blocks(&self) -> MutexGuard<'_, Image> {
        self.image.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it holds now.
    pub fn image(&self) -> Image {
        self.blocks().clone()
    }

    /// Damages every block that `is_chosen` by its number and its contents.
    pub fn rot(&self, is_chosen: impl Fn(u64, &[u8]) -> bool) {
        for (_, block) in self.blocks().iter_mut().filter(|(number, block)| is_chosen(**number, block)) {
            let mut bytes = block.to_vec();
            bytes[BLOCK / 2] ^= 1;
            *block = bytes.into();
        }
    }

    fn run<T: Send + 'static>(&self, action: impl FnOnce(&mut Image) -> T + Send + 'static) -> Io<T> {
        let disk = self.clone();
        carry_out(self.quick.load(Relaxed), move || action(&mut disk.blocks()))
    }
}

impl Device for Disk {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        if self.name == LARGER { SIZE + (4 << 20) } else { SIZE }
    }

    fn read(&self, offset: u64, mut buffer: Buffer) -> Io<(Buffer, Result<(), DeviceError>)> {
        self.run(move |image| {
            for (number, part) in (offset / BLOCK as u64..).zip(buffer.chunks_exact_mut(BLOCK)) {
                match image.get(&number) {
                    Some(block) => part.copy_from_slice(block),
                    None => part.fill(0),
                }
            }
            (buffer, Ok(()))
        })
    }

    fn write(&self, offset: u64, data: Slice, _: Durability) -> Io<Result<(), DeviceError>> {
        self.run(move |image| {
            for (number, part) in (offset / BLOCK as u64..).zip(data.chunks_exact(BLOCK)) {
                image.insert(number, part.into());
            }
            Ok(())
        })
    }

    fn flush(&self) -> Io<Result<(), DeviceError>> {
        self.run(|_| Ok(()))
    }

    fn discard(&self, _: u64, _: u64) -> Io<Result<(), DeviceError>> {
        self.run(|_| Ok(()))
    }
}
