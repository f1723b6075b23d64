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
fn operations_of_a_device_that_is_given_up_end() {
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
    device.give_up(GivenUp::Late);
    assert_eq!(flush.as_mut().poll(&mut context), Poll::Ready(Err(DeviceError::Silent)));
    drop(flush);
    let Poll::Ready((buffer, result)) = read.as_mut().poll(&mut context) else { panic!("it waits") };
    assert_eq!((buffer.len(), result), (2 * BLOCK, Err(DeviceError::Silent)));
    let mut later = device.flush();
    assert_eq!(later.as_mut().poll(&mut context), Poll::Ready(Err(DeviceError::Silent)));
    assert!(!device.operations.is_late());
}

#[test]
fn more_operations_than_are_watched_do_not_disturb_each_other() {
    let ticks = Arc::new(Ticks::default());
    let device = Watched::new(Arc::new(Silent), &ticks);
    let operations: Vec<_> = (0..2 * SLOTS).map(|_| device.flush()).collect();
    assert_eq!(device.under_way(), 2 * SLOTS);
    drop(operations);
    assert_eq!(device.under_way(), 0);
    assert!(device.operations.slots.iter().all(|slot| slot.lock().is_none()));
}
