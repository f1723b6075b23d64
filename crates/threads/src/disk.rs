//! Cache devices in memory. Another thread carries out each operation and wakes the thread that waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{Device, DeviceError, Durability, Io};

use crate::reach::reach;
use crate::scheduler::may_stand_still;

/// The smallest device that a pool takes.
const SIZE: u64 = 64 << 20;
/// The name of the device with room for more segments. Because of it, the engine gives up the copy on the other device
/// when a segment leaves the log. The engine reads the copy on the other device first.
pub const LARGER: &str = "larger";
/// Blocks of a segment, if a pool has two small devices. A device block whose number is a multiple of it is a header.
pub const SEGMENT: u64 = 256;

/// A read returned a damaged block.
pub const READ_BAD: &str = "a bad copy is read";
/// The segment of a damaged block holds another segment now.
pub const REUSED: &str = "the place of a bad copy is used again";

/// The contents of a device: the written blocks, by number.
pub type Image = BTreeMap<u64, Arc<[u8]>>;

#[derive(Default)]
struct State {
    image: Image,
    /// Segments in which blocks were damaged, until their places are used again.
    rotten: BTreeSet<u64>,
    /// Damaged blocks that have not been written since.
    bad: BTreeSet<u64>,
}

/// A device in memory. A completed write is durable; the simulator covers power cuts during writes.
#[derive(Clone)]
pub struct Disk {
    name: String,
    state: Arc<Mutex<State>>,
    /// True while operations end before their call returns. This holds for the start and the check at the end, which
    /// are not under test.
    pub quick: Arc<AtomicBool>,
}

/// Runs `action` on another thread, or at once if `quick`.
pub fn carry_out<T: Send + 'static>(quick: bool, action: impl FnOnce() -> T + Send + 'static) -> Io<T> {
    if quick {
        return Box::pin(std::future::ready(action()));
    }
    let (promise, kept) = crate::promise::promise();
    // The handle is dropped: the task goes on by itself.
    drop(shuttle::future::spawn(async move {
        shuttle::future::yield_now().await;
        may_stand_still().await;
        promise.keep(action());
    }));
    Box::pin(kept)
}

impl Disk {
    /// Makes a device that holds `image`.
    pub fn new(name: &str, image: Image, quick: &Arc<AtomicBool>) -> Self {
        let state = State { image, ..State::default() };
        Disk { name: name.to_owned(), state: Arc::new(Mutex::new(state)), quick: quick.clone() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the present contents.
    pub fn image(&self) -> Image {
        self.state().image.clone()
    }

    /// Damages every block that `is_chosen` accepts by its number and contents.
    pub fn rot(&self, is_chosen: impl Fn(u64, &[u8]) -> bool) {
        let state = &mut *self.state();
        for (number, block) in state.image.iter_mut().filter(|(number, block)| is_chosen(**number, block)) {
            let mut bytes = block.to_vec();
            bytes[BLOCK / 2] ^= 1;
            *block = bytes.into();
            state.bad.insert(*number);
            state.rotten.insert(*number / SEGMENT);
        }
    }

    /// Has another thread carry out an action on the contents of the device. While the device is quick, this thread
    /// does so at once.
    fn run<T: Send + 'static>(&self, action: impl FnOnce(&mut State) -> T + Send + 'static) -> Io<T> {
        let disk = self.clone();
        carry_out(self.quick.load(Relaxed), move || action(&mut disk.state()))
    }
}

impl State {
    /// Copies blocks from the image to the buffer; a block that was never written is zeros. Notes that a scenario has
    /// reached a bad block.
    fn read(&self, first: u64, buffer: &mut Buffer) {
        for (number, part) in (first..).zip(buffer.chunks_exact_mut(BLOCK)) {
            match self.image.get(&number) {
                Some(block) => part.copy_from_slice(block),
                None => part.fill(0),
            }
            if self.bad.contains(&number) {
                reach(READ_BAD);
            }
        }
    }

    /// Copies blocks from `data` into the image. A written block is good again.
    fn write(&mut self, first: u64, data: &[u8]) {
        for (number, part) in (first..).zip(data.chunks_exact(BLOCK)) {
            self.image.insert(number, part.into());
            self.bad.remove(&number);
            if number.is_multiple_of(SEGMENT) && self.rotten.remove(&(number / SEGMENT)) {
                reach(REUSED);
            }
        }
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
        self.run(move |state| {
            state.read(offset / BLOCK as u64, &mut buffer);
            (buffer, Ok(()))
        })
    }

    fn write(&self, offset: u64, data: Slice, _: Durability) -> Io<Result<(), DeviceError>> {
        self.run(move |state| {
            state.write(offset / BLOCK as u64, &data);
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
