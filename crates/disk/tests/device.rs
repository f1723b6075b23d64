//! Cache devices: real files on the disk and in memory, and loop devices.

#![allow(clippy::unwrap_used)]

mod loop_device;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use forebay_disk::{FileDevice, MIN_SIZE, OpenError};
use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{Device, DeviceError, Durability};
use forebay_runtime::block_on;
use loop_device::LoopDevice;

fn open(path: &Path) -> FileDevice {
    FileDevice::open_or_create(path, MIN_SIZE).unwrap()
}

fn refusal(path: &Path, size: u64) -> OpenError {
    match FileDevice::open_or_create(path, size) {
        Ok(_) => panic!("{} is taken", path.display()),
        Err(error) => error,
    }
}

fn data(blocks: usize, byte: u8) -> Slice {
    Buffer::from_bytes(&vec![byte; blocks * BLOCK]).into()
}

fn read(device: &FileDevice, offset: u64, blocks: usize) -> Result<Vec<u8>, DeviceError> {
    let (buffer, result) = block_on(device.read(offset, Buffer::zeroed(blocks)));
    result.map(|()| buffer.to_vec())
}

fn write(device: &FileDevice, offset: u64, data: Slice, durability: Durability) -> Result<(), DeviceError> {
    block_on(device.write(offset, data, durability))
}

/// Checks the contract of every kind of device.
fn check_contract(device: &FileDevice) {
    let end = device.size() - 8 * BLOCK as u64;
    write(device, 0, data(2, 1), Durability::Later).unwrap();
    write(device, end, data(8, 2), Durability::Now).unwrap();
    block_on(device.flush()).unwrap();
    assert_eq!(read(device, 0, 2).unwrap(), vec![1; 2 * BLOCK]);
    assert_eq!(read(device, end, 8).unwrap(), vec![2; 8 * BLOCK]);
    block_on(device.discard(0, MIN_SIZE / 2)).unwrap();
    write(device, BLOCK as u64, data(1, 3), Durability::Now).unwrap();
    assert_eq!(read(device, BLOCK as u64, 1).unwrap(), vec![3; BLOCK]);
    // The ranges lie outside, are not whole blocks, or are empty.
    assert_eq!(write(device, end, data(9, 4), Durability::Now), Err(DeviceError::Io));
    assert_eq!(write(device, 512, data(1, 4), Durability::Now), Err(DeviceError::Io));
    assert_eq!(read(device, u64::MAX - 4095, 1), Err(DeviceError::Io));
    assert_eq!(read(device, 0, 0).unwrap(), []);
    assert_eq!(read(device, end, 8).unwrap(), vec![2; 8 * BLOCK]);
}

#[test]
fn a_new_file_is_whole_private_and_works() {
    for dir in [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()] {
        let path = dir.path().join("cache");
        let device = FileDevice::open_or_create(&path, MIN_SIZE + 5000).unwrap();
        assert_eq!(device.size(), MIN_SIZE + 4096);
        assert_eq!(device.name(), path.to_str().unwrap());
        let meta = fs::metadata(&path).unwrap();
        assert_eq!(meta.len(), device.size());
        assert!(meta.blocks() * 512 >= meta.len(), "no holes");
        assert_eq!(meta.mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
        check_contract(&device);
        assert!(fs::metadata(&path).unwrap().blocks() * 512 >= meta.len(), "no discard frees a block");
    }
}

/// Two files on one drive may share a flush. An operation continues whether its future is polled or not.
#[test]
fn durable_writes_to_two_files_may_be_waited_for_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| open(&dir.path().join(name)));
    check_contract(&a);
    for turn in 1..=4 {
        let write = |device: &FileDevice| device.write(0, data(2, turn), Durability::Now);
        block_on(async {
            let (first, second) = (write(&a), write(&b));
            if turn % 2 == 0 {
                assert_eq!((first.await, second.await), (Ok(()), Ok(())));
            } else {
                // The first future is not polled.
                assert_eq!(second.await, Ok(()));
                drop(first);
            }
        });
        assert_eq!(read(&b, 0, 2).unwrap(), vec![turn; 2 * BLOCK]);
    }
    drop(b);
    check_contract(&a);
}

#[test]
fn what_was_written_is_there_when_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    write(&open(&path), 4096, data(1, 6), Durability::Now).unwrap();
    let device = FileDevice::open_or_create(&path, 4 * MIN_SIZE).unwrap();
    assert_eq!(device.size(), MIN_SIZE, "the size of an existing file stays");
    assert_eq!(read(&device, 4096, 1).unwrap(), vec![6; BLOCK]);
}

#[test]
fn what_a_crash_left_of_an_unfinished_file_is_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(".cache.new"), b"half").unwrap();
    let device = open(&dir.path().join("cache"));
    assert_eq!(read(&device, 0, 1).unwrap(), vec![0; BLOCK]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn an_existing_sparse_file_gets_its_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    File::create(&path).unwrap().set_len(MIN_SIZE).unwrap();
    let _device = open(&path);
    assert!(fs::metadata(&path).unwrap().blocks() * 512 >= MIN_SIZE);
}

#[test]
fn what_cannot_hold_a_cache_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name| dir.path().join(name);
    let unsuitable = |path: &Path, what: &str| {
        let error = refusal(path, MIN_SIZE);
        assert!(matches!(error, OpenError::Unsuitable { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    unsuitable(dir.path(), "a directory");
    unsuitable(Path::new("/dev/null"), "a character device");
    unsuitable(Path::new("/nowhere/.."), "");
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    unsuitable(&at("socket"), "socket");
    fs::write(at("small"), [0; 4096]).unwrap();
    assert!(matches!(refusal(&at("small"), MIN_SIZE), OpenError::TooSmall { size: 4096, .. }));
    assert!(matches!(refusal(&at("none"), MIN_SIZE - 1), OpenError::TooSmall { .. }));
    assert!(matches!(refusal(&at("none/none"), MIN_SIZE), OpenError::System { .. }));
    symlink(at("target"), at("dangling")).unwrap();
    assert!(matches!(refusal(&at("dangling"), MIN_SIZE), OpenError::InUse { .. }));
    assert!(!at("none").exists());
}

#[test]
fn no_room_is_said_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let error = refusal(&dir.path().join("cache"), 1 << 50);
    assert!(matches!(error, OpenError::NoSpace { .. }), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_file_has_one_owner_under_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    let device = open(&path);
    fs::hard_link(&path, dir.path().join("other")).unwrap();
    assert!(matches!(refusal(&path, MIN_SIZE), OpenError::InUse { .. }));
    assert!(matches!(refusal(&dir.path().join("other"), MIN_SIZE), OpenError::InUse { .. }));
    drop(device);
    open(&path);
}

#[test]
fn a_killed_owner_leaves_no_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    drop(open(&path));
    // `flock` takes the same lock, and says so by making the file `held`.
    let held = dir.path().join("held");
    let mut owner = Command::new("flock")
        .args(["--no-fork".as_ref(), path.as_os_str(), "sh".as_ref(), "-c".as_ref()])
        .arg(format!(": > '{}'; exec sleep 100", held.display()))
        .spawn()
        .unwrap();
    while !held.exists() {
        assert!(owner.try_wait().unwrap().is_none(), "flock has failed");
        std::thread::yield_now();
    }
    assert!(matches!(refusal(&path, MIN_SIZE), OpenError::InUse { .. }));
    owner.kill().unwrap();
    owner.wait().unwrap();
    open(&path);
}

#[test]
fn a_file_cut_short_is_gone_and_stays_gone() {
    for dir in [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()] {
        let path = dir.path().join("cache");
        let device = open(&path);
        write(&device, 0, data(1, 1), Durability::Now).unwrap();
        let other = OpenOptions::new().write(true).open(&path).unwrap();
        other.set_len(MIN_SIZE / 2 + 100).unwrap();
        assert_eq!(write(&device, MIN_SIZE - 4096, data(1, 2), Durability::Now), Err(DeviceError::Gone));
        assert_eq!(other.metadata().unwrap().len(), MIN_SIZE / 2 + 100, "not grown again");
        other.set_len(MIN_SIZE).unwrap();
        assert_eq!(read(&device, MIN_SIZE / 2, 1), Err(DeviceError::Gone), "never the zeros of a hole");
        assert_eq!(block_on(device.flush()), Err(DeviceError::Gone));
    }
}

#[test]
fn a_file_cut_short_while_it_is_read_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    let device = open(&path);
    block_on(async {
        // The operation is queued, and submitted only when it is awaited.
        let inside = device.read(MIN_SIZE / 2, Buffer::zeroed(4));
        let across = device.read(MIN_SIZE / 2 - 4096, Buffer::zeroed(4));
        OpenOptions::new().write(true).open(&path).unwrap().set_len(MIN_SIZE / 2).unwrap();
        assert_eq!(inside.await.1, Err(DeviceError::Gone));
        assert_eq!(across.await.1, Err(DeviceError::Gone));
    });
}

#[test]
fn a_removed_file_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    let device = open(&path);
    fs::remove_file(&path).unwrap();
    assert_eq!(read(&device, 0, 1), Err(DeviceError::Gone));
    assert_eq!(write(&device, 0, data(1, 1), Durability::Later), Err(DeviceError::Gone));
}

#[test]
fn a_block_device_works_and_has_one_owner() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDevice::new(&dir.path().join("image"), MIN_SIZE + 512) else { return };
    let device = open(disk.path());
    assert_eq!(device.size(), MIN_SIZE);
    assert!(device.is_direct());
    check_contract(&device);
    assert!(matches!(refusal(disk.path(), MIN_SIZE), OpenError::InUse { .. }));
    drop(device);
    check_contract(&open(disk.path()));
}

#[test]
fn a_block_device_is_discarded() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let image = dir.path().join("image");
    let Some(disk) = LoopDevice::new(&image, MIN_SIZE) else { return };
    let device = open(disk.path());
    write(&device, 0, data(1024, 1), Durability::Now).unwrap();
    let before = fs::metadata(&image).unwrap().blocks();
    block_on(device.discard(0, 4 << 20)).unwrap();
    assert_eq!(fs::metadata(&image).unwrap().blocks(), before - (4 << 20) / 512);
}

#[test]
fn a_mounted_block_device_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDevice::new(&dir.path().join("image"), MIN_SIZE) else { return };
    assert!(Command::new("mkfs.ext4").arg("-q").arg(disk.path()).status().unwrap().success());
    let place = dir.path().join("mounted");
    fs::create_dir(&place).unwrap();
    assert!(Command::new("mount").args([disk.path(), &place]).status().unwrap().success());
    let error = refusal(disk.path(), MIN_SIZE);
    assert!(Command::new("umount").arg(&place).status().unwrap().success());
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
}

#[test]
fn a_block_device_that_shrinks_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let Some(disk) = LoopDevice::new(&image, 2 * MIN_SIZE) else { return };
    let device = open(disk.path());
    write(&device, MIN_SIZE, data(1, 1), Durability::Now).unwrap();
    OpenOptions::new().write(true).open(&image).unwrap().set_len(MIN_SIZE).unwrap();
    disk.take_over_size();
    assert_eq!(read(&device, MIN_SIZE, 1), Err(DeviceError::Gone));
    assert_eq!(write(&device, 0, data(1, 1), Durability::Now), Err(DeviceError::Gone));
}

#[test]
fn a_device_without_an_ssd_below_has_no_health() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    assert_eq!(open(&dir.path().join("cache")).disk(), None);
    let Some(disk) = LoopDevice::new(&dir.path().join("image"), MIN_SIZE) else { return };
    assert_eq!(open(disk.path()).disk(), None);
}
