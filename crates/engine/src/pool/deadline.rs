//! The deadline of cache devices. No frame is acknowledged and no change of the pool ends before all legs have
//! answered, so a silent device would stop the server. After the deadline the device is lost, as if it had failed.
//!
//! Time is counted in ticks of a fourth of the deadline, while any operation is in flight. A jump of the clock or a
//! suspended process counts as one tick. An operation that began more than four ticks ago is late, and so is its
//! device. A late device is lost only while another device answers. If all devices are late, they probably have one
//! common reason (a controller reset, a suspended host), and to drop one helps nothing.
//!
//! The kernel may carry out operations in flight on a lost device at any later time. That does no harm: an operation
//! owns its memory until it ends, and the pool does not use the device any more. The device can be added again only
//! once it is closed, and by then no operation is in flight.

use forebay_common::lock::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use crate::buffer::{BLOCK, Buffer, Slice};
use crate::io::{Device, DeviceError, Durability, Io};
use crate::wait::Gate;
use forebay_common::lock::Mutex;

/// The number of ticks in the deadline.
pub(crate) const TICKS: u32 = 4;
/// The highest number of operations of a device that are watched at once. An operation beyond that ends when the
/// device answers, or is given up because of another operation.
const SLOTS: usize = 128;
/// A tick that never comes.
const NEVER: u64 = u64::MAX;

/// The reason why a device is given up. The engine waits for none of its operations any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenUp {
    /// The device has not answered within the deadline, and another device has.
    Late = 1,
    /// The device is lost for another reason, or is not to become a member any more.
    Unused = 2,
}

impl GivenUp {
    /// Returns the error with which the device's operations end.
    fn error(self) -> DeviceError {
        match self {
            GivenUp::Late => DeviceError::Silent,
            GivenUp::Unused => DeviceError::Gone,
        }
    }
}

/// The clock of all devices of an engine, in ticks.
#[derive(Debug, Default)]
pub(crate) struct Ticks {
    now: AtomicU64,
    /// True if no operation is in flight. The next operation wakes the watch.
    pub(crate) idle: AtomicBool,
    pub(crate) begun: Gate,
}

/// A device in use, whose operations end even if the device does not answer. An operation must be polled until it
/// ends. Until then it counts as in flight, even if the device has answered.
pub(crate) struct Watched {
    device: Arc<dyn Device>,
    operations: Arc<Operations>,
}

/// The operations of a device that are in flight.
#[derive(Debug)]
struct Operations {
    ticks: Arc<Ticks>,
    under_way: AtomicUsize,
    next: AtomicUsize,
    slots: Vec<Mutex<Option<Slot>>>,
    /// A [`GivenUp`], or 0. If it is set, all operations in flight, and all later ones, fail.
    given_up: AtomicU8,
    told: AtomicBool,
}

#[derive(Debug)]
struct Slot {
    /// The tick at which the operation began; [`NEVER`] if it may take long on a healthy device.
    since: u64,
    waker: Option<Waker>,
}

/// An operation in flight; it has ended once this is dropped.
struct Ticket {
    operations: Arc<Operations>,
    slot: Option<usize>,
}

impl Ticks {
    /// Returns the current tick.
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Counts a tick: a fourth of the deadline has passed.
    pub(crate) fn advance(&self) {
        self.now.fetch_add(1, Ordering::Relaxed);
    }
}

impl Operations {
    /// Begins an operation, as of tick `since`.
    fn begin(self: &Arc<Self>, since: u64) -> Ticket {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        if self.ticks.idle.load(Ordering::SeqCst) && self.ticks.idle.swap(false, Ordering::SeqCst) {
            self.ticks.begun.wake();
        }
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let slot = (0..SLOTS).map(|at| first.wrapping_add(at) % SLOTS).find(|at| {
            let slot = self.slots[*at].try_lock().filter(|slot| slot.is_none());
            slot.map(|mut slot| *slot = Some(Slot { since, waker: None })).is_some()
        });
        Ticket { operations: self.clone(), slot }
    }

    /// Returns true if an operation has been in flight for more ticks than a device is given.
    fn is_late(&self) -> bool {
        let now = self.ticks.now();
        let is_late = |slot: &Slot| now.saturating_sub(slot.since) > u64::from(TICKS);
        self.slots.iter().any(|slot| slot.lock().as_ref().is_some_and(is_late))
    }

    /// Returns the reason why the device was given up; `None` while it is in use.
    fn given_up(&self) -> Option<GivenUp> {
        match self.given_up.load(Ordering::SeqCst) {
            0 => None,
            1 => Some(GivenUp::Late),
            _ => Some(GivenUp::Unused),
        }
    }

    /// Ends all operations in flight, and every later one, with the error of `why`. The device itself may still carry
    /// them out.
    fn give_up(&self, why: GivenUp) {
        // If the device was given up before, the first reason stays.
        let _ = self.given_up.compare_exchange(0, why as u8, Ordering::SeqCst, Ordering::SeqCst);
        let wakers = self.slots.iter().filter_map(|slot| slot.lock().as_mut()?.waker.take());
        let wakers: Vec<_> = wakers.collect();
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            *self.operations.slots[slot].lock() = None;
        }
        self.operations.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Ticket {
    /// Waits for the operation.
    ///
    /// # Errors
    /// The error of [`GivenUp::error`] if the device is given up.
    async fn wait<T>(self, mut operation: Io<T>) -> Result<T, DeviceError> {
        poll_fn(|context| {
            if let Poll::Ready(value) = operation.as_mut().poll(context) {
                return Poll::Ready(Ok(value));
            }
            if let Some(slot) = self.slot
                && let Some(slot) = self.operations.slots[slot].lock().as_mut()
                && !slot.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker()))
            {
                slot.waker = Some(context.waker().clone());
            }
            // This check comes after the waker is stored.
            self.operations.given_up().map_or(Poll::Pending, |why| Poll::Ready(Err(why.error())))
        })
        .await
    }
}

impl Watched {
    /// Returns a device that is watched in the time of `ticks`.
    pub(crate) fn new(device: Arc<dyn Device>, ticks: &Arc<Ticks>) -> Arc<Self> {
        let operations = Operations {
            ticks: ticks.clone(),
            under_way: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            slots: (0..SLOTS).map(|_| Mutex::default()).collect(),
            given_up: AtomicU8::new(0),
            told: AtomicBool::new(false),
        };
        Arc::new(Watched { device, operations: Arc::new(operations) })
    }

    /// Returns the number of operations in flight.
    pub(crate) fn under_way(&self) -> usize {
        self.operations.under_way.load(Ordering::Relaxed)
    }

    /// Returns the reason if the device is given up.
    pub(crate) fn given_up(&self) -> Option<GivenUp> {
        self.operations.given_up()
    }

    /// Fails all operations in flight on the device, and all later ones. The device may still carry them out, which
    /// does no harm: an operation owns its memory until the device has answered.
    pub(crate) fn give_up(&self, why: GivenUp) {
        self.operations.give_up(why);
    }

    /// Returns true if an operation has been in flight for longer than the deadline.
    pub(crate) fn is_late(&self) -> bool {
        self.operations.is_late()
    }

    /// Returns true once after the device became late. The caller then reports it.
    pub(crate) fn is_untold(&self) -> bool {
        !self.operations.told.swap(true, Ordering::Relaxed)
    }

    /// Records that the device has answered. If it becomes late again, that is reported again.
    pub(crate) fn forget_told(&self) {
        self.operations.told.store(false, Ordering::Relaxed);
    }

    /// Runs an operation until it ends or the device is given up. `failed` makes the result of the second case.
    fn run<T: Send + 'static>(
        &self,
        since: u64,
        begin: impl FnOnce(&dyn Device) -> Io<T>,
        failed: impl FnOnce(DeviceError) -> T + Send + 'static,
    ) -> Io<T> {
        if let Some(why) = self.operations.given_up() {
            return Box::pin(std::future::ready(failed(why.error())));
        }
        let ticket = self.operations.begin(since);
        let operation = begin(self.device.as_ref());
        Box::pin(async move { ticket.wait(operation).await.unwrap_or_else(failed) })
    }
}

impl Device for Watched {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read(&self, offset: u64, buffer: Buffer) -> Io<(Buffer, Result<(), DeviceError>)> {
        let blocks = buffer.len() / BLOCK;
        let failed = move |error| (Buffer::zeroed(blocks), Err(error));
        self.run(self.operations.ticks.now(), |device| device.read(offset, buffer), failed)
    }

    fn write(&self, offset: u64, data: Slice, durability: Durability) -> Io<Result<(), DeviceError>> {
        self.run(self.operations.ticks.now(), |device| device.write(offset, data, durability), Err)
    }

    fn flush(&self) -> Io<Result<(), DeviceError>> {
        self.run(self.operations.ticks.now(), |device| device.flush(), Err)
    }

    /// A discard may take long on a healthy device, so it does not make the device late. It ends when the device is
    /// given up.
    fn discard(&self, offset: u64, len: u64) -> Io<Result<(), DeviceError>> {
        self.run(NEVER, |device| device.discard(offset, len), Err)
    }
}

#[cfg(test)]
mod tests;
