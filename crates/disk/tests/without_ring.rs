//! Where io_uring is refused. Alone in its process, as it takes away the file descriptors a ring would need.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use forebay_disk::{FileDevice, MIN_SIZE};
use forebay_engine::buffer::{BLOCK, Buffer};
use forebay_engine::io::{Clock, Device, DeviceError, Durability};
use forebay_runtime::{SystemClock, block_on};
use futures_util::future::{join, join_all};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn everything_works_one_after_another() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    let device = FileDevice::open_or_create(&path, MIN_SIZE).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..before }).unwrap();
    block_on(async {
        let data = |byte| Buffer::from_bytes(&[byte; 2 * BLOCK]).into();
        let (a, b) =
            join(device.write(0, data(1), Durability::Now), device.write(8192, data(2), Durability::Later))
                .await;
        a.and(b).unwrap();
        device.flush().await.unwrap();
        let (buffer, result) = device.read(4096, Buffer::zeroed(2)).await;
        result.unwrap();
        assert_eq!((buffer[0], buffer[BLOCK]), (1, 2));
        let clock = SystemClock::new();
        join_all([2, 1].map(|ms| clock.sleep(Duration::from_millis(ms)))).await;
        let across = device.read(0, Buffer::zeroed(4));
        file.set_len(8192).unwrap();
        across.await.1.unwrap();
        assert_eq!(device.read(0, Buffer::zeroed(4)).await.1, Err(DeviceError::Gone));
    });
    setrlimit(Resource::Nofile, before).unwrap();
}
