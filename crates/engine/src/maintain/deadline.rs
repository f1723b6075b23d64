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

use forebay_common::lock::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use crate::buffer::{BLOCK, Buffer, Slice};
use crate::engine::Engine;
use crate::event::Event;
use crate::io::{Device, DeviceError, Durability, Io};
use crate::plant;
use crate::wait::Gate;
use forebay_common::lock::Mutex;

/// The number of ticks in the deadline.
const TICKS: u32 = 4;
/// The highest number of operations of a device that are watched at once. An operation beyond that ends when the
/// device answers, or is given up because of another operation.
const SLOTS: usize = 128;

/// The clock of all devices of an engine, in ticks.
#[derive(Debug, Default)]
pub(crate) struct Ticks {
    now: AtomicU64,
    /// True if no operation is in flight. The next operation wakes the watch.
    idle: AtomicBool,
    begun: Gate,
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
    /// True if the device is given up: all operations in flight, and all later ones, fail.
    given_up: AtomicBool,
    told: AtomicBool,
}

#[derive(Debug)]
struct Slot {
    /// The tick at which the operation began.
    since: u64,
    waker: Option<Waker>,
}

/// An operation in flight; it has ended once this is dropped.
struct Ticket {
    operations: Arc<Operations>,
    slot: Option<usize>,
}

impl Operations {
    fn begin(self: &Arc<Self>) -> Ticket {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        if self.ticks.idle.load(Ordering::SeqCst) && self.ticks.idle.swap(false, Ordering::SeqCst) {
            self.ticks.begun.wake();
        }
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let since = self.ticks.now.load(Ordering::Relaxed);
        let slot = (0..SLOTS).map(|at| first.wrapping_add(at) % SLOTS).find(|at| {
            let slot = self.slots[*at].try_lock().filter(|slot| slot.is_none());
            slot.map(|mut slot| *slot = Some(Slot { since, waker: None })).is_some()
        });
        Ticket { operations: self.clone(), slot }
    }

    fn is_late(&self) -> bool {
        let now = self.ticks.now.load(Ordering::Relaxed);
        let is_late = |slot: &Slot| now - slot.since > u64::from(TICKS);
        self.slots.iter().any(|slot| slot.lock().as_ref().is_some_and(is_late))
    }

    fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
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
    /// Waits for the operation. Returns `None` if its device is given up.
    async fn wait<T>(self, mut operation: Io<T>) -> Option<T> {
        poll_fn(|context| {
            if let Poll::Ready(value) = operation.as_mut().poll(context) {
                return Poll::Ready(Some(value));
            }
            if let Some(slot) = self.slot
                && let Some(slot) = self.operations.slots[slot].lock().as_mut()
                && !slot.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker()))
            {
                slot.waker = Some(context.waker().clone());
            }
            // This check comes after the waker is stored.
            if self.operations.given_up.load(Ordering::SeqCst) { Poll::Ready(None) } else { Poll::Pending }
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
            given_up: AtomicBool::new(false),
            told: AtomicBool::new(false),
        };
        Arc::new(Watched { device, operations: Arc::new(operations) })
    }

    /// Returns the number of operations in flight.
    pub(crate) fn under_way(&self) -> usize {
        self.operations.under_way.load(Ordering::Relaxed)
    }

    fn run<T: Send + 'static>(
        &self,
        begin: impl FnOnce(&dyn Device) -> Io<T>,
        gone: impl FnOnce() -> T + Send + 'static,
    ) -> Io<T> {
        if self.operations.given_up.load(Ordering::SeqCst) {
            return Box::pin(std::future::ready(gone()));
        }
        let ticket = self.operations.begin();
        let operation = begin(self.device.as_ref());
        Box::pin(async move { ticket.wait(operation).await.unwrap_or_else(gone) })
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
        let gone = move || (Buffer::zeroed(blocks), Err(DeviceError::Gone));
        self.run(|device| device.read(offset, buffer), gone)
    }

    fn write(&self, offset: u64, data: Slice, durability: Durability) -> Io<Result<(), DeviceError>> {
        self.run(|device| device.write(offset, data, durability), || Err(DeviceError::Gone))
    }

    fn flush(&self) -> Io<Result<(), DeviceError>> {
        self.run(|device| device.flush(), || Err(DeviceError::Gone))
    }

    /// A discard is not watched: it may take long on a healthy device, and no request waits for it.
    fn discard(&self, offset: u64, len: u64) -> Io<Result<(), DeviceError>> {
        self.device.discard(offset, len)
    }
}

impl Engine {
    /// Detects devices that do not answer, until the engine closes.
    pub(crate) async fn run_device_watch(self: Arc<Self>) {
        let ticks = &self.ticks;
        let is_busy = || self.devices.read().iter().flatten().any(|device| device.under_way() > 0);
        while !self.closing() {
            let ready = || {
                ticks.idle.store(true, Ordering::SeqCst);
                (self.closing() || is_busy()).then_some(())
            };
            ticks.begun.until(ready).await;
            ticks.idle.store(false, Ordering::SeqCst);
            self.rest(self.settings.device_deadline / TICKS).await;
            ticks.now.fetch_add(1, Ordering::Relaxed);
            self.give_up_late().await;
        }
    }

    /// Gives up the late devices, if another device is not late.
    async fn give_up_late(&self) {
        let devices: Vec<_> = self.devices.read().iter().cloned().enumerate().collect();
        let devices = devices.into_iter().filter_map(|(index, device)| Some((index as u16, device?)));
        let (late, well): (Vec<_>, Vec<_>) = devices.partition(|(_, device)| device.operations.is_late());
        for (_, device) in &well {
            device.operations.told.store(false, Ordering::Relaxed);
        }
        for (index, device) in late {
            if !device.operations.told.swap(true, Ordering::Relaxed) {
                let after = self.settings.device_deadline;
                self.event(Event::DeviceLate { device: device.name().to_owned(), after });
            }
            if !well.is_empty() && !plant::active("a device that does not answer is waited for") {
                device.operations.give_up();
                self.lose(index).await;
            }
        }
    }

    /// Wakes the watch, so that it ends.
    pub(crate) fn wake_device_watch(&self) {
        self.ticks.begun.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    /// A device that never answers.
    struct Silent;

    impl Device for Silent {
        fn name(&self) -> &str {
            "silent"
        }
        fn size(&self) -> u64 {
            1 << 30
        }
        fn read(&self, _: u64, _: Buffer) -> Io<(Buffer, Result<(), DeviceError>)> {
            Box::pin(std::future::pending())
        }
        fn write(&self, _: u64, _: Slice, _: Durability) -> Io<Result<(), DeviceError>> {
            Box::pin(std::future::pending())
        }
        fn flush(&self) -> Io<Result<(), DeviceError>> {
            Box::pin(std::future::pending())
        }
        fn discard(&self, _: u64, _: u64) -> Io<Result<(), DeviceError>> {
            Box::pin(std::future::pending())
        }
    }

    #[test]
    fn what_is_under_way_on_a_device_that_is_given_up_ends() {
        let ticks = Arc::new(Ticks::default());
        let device = Watched::new(Arc::new(Silent), &ticks);
        let mut context = Context::from_waker(Waker::noop());
        let mut flush = device.flush();
        assert!(flush.as_mut().poll(&mut context).is_pending());
        ticks.now.fetch_add(u64::from(TICKS), Ordering::Relaxed);
        let mut read = pin!(device.read(0, Buffer::zeroed(2)));
        assert!(!device.operations.is_late() && device.under_way() == 2);
        ticks.now.fetch_add(1, Ordering::Relaxed);
        assert!(device.operations.is_late());
        device.operations.give_up();
        assert_eq!(flush.as_mut().poll(&mut context), Poll::Ready(Err(DeviceError::Gone)));
        drop(flush);
        let Poll::Ready((buffer, result)) = read.as_mut().poll(&mut context) else { panic!("it waits") };
        assert_eq!((buffer.len(), result), (2 * BLOCK, Err(DeviceError::Gone)));
        let mut later = device.flush();
        assert_eq!(later.as_mut().poll(&mut context), Poll::Ready(Err(DeviceError::Gone)));
        assert!(!device.operations.is_late());
    }

    #[test]
    fn more_operations_than_are_looked_after_are_not_in_each_others_way() {
        let ticks = Arc::new(Ticks::default());
        let device = Watched::new(Arc::new(Silent), &ticks);
        let operations: Vec<_> = (0..2 * SLOTS).map(|_| device.flush()).collect();
        assert_eq!(device.under_way(), 2 * SLOTS);
        drop(operations);
        assert_eq!(device.under_way(), 0);
        assert!(device.operations.slots.iter().all(|slot| slot.lock().is_none()));
    }
}
