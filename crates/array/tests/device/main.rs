//! Tests of arrays with real FUSE, loop device and file system. Without root they are skipped with a message.

// A panic in a test or its helpers is a failed assertion, so `unwrap` is allowed here.
#![allow(clippy::unwrap_used)]

mod rig;

use rig::{Rig, content, direct, generation, read_block, write_block};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const BLOCKS: u64 = 256;

fn path(value: &serde_json::Value) -> PathBuf {
    PathBuf::from(value.as_str().unwrap())
}

/// Waits up to 20 seconds for a condition; panics if it does not come true.
fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn files_come_back_as_written_and_down_leaves_nothing() {
    let Some(rig) = Rig::new() else { return };
    let mount = path(&rig.up(&[])["mount"]);
    let whole: Vec<u8> = (0..2000).flat_map(|b| content(b, 1).0).collect();
    fs::write(mount.join("whole"), &whole).unwrap();
    let scattered = direct(&File::create(mount.join("scattered")).map(|_| mount.join("scattered")).unwrap());
    for block in (0..64u64).map(|i| i * 7919 % 5000) {
        write_block(&scattered, block, 2);
    }
    scattered.sync_all().unwrap();
    let file = File::open(mount.join("whole")).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert_eq!(fs::read(mount.join("whole")).unwrap(), whole);
    for block in (0..64u64).map(|i| i * 7919 % 5000) {
        assert_eq!(generation(&scattered, block, &[2]), Some(2), "block {block}");
    }
    let counters = rig.status()["status"]["counters"].clone();
    assert!(counters["reads"].as_u64() > Some(64) && counters["writes"].as_u64() > Some(64), "{counters}");
    drop((file, scattered));
    rig.run(&["down"]);
    rig.assert_gone();
    rig.run(&["down"]);
}

#[test]
fn other_file_systems_and_none() {
    let Some(rig) = Rig::new() else { return };
    let mount = rig.dir.path().join("own-mount-point");
    let state = rig.up(&["--fs", "ext4", "--mount", mount.to_str().unwrap()]);
    assert_eq!(path(&state["mount"]), mount);
    fs::write(mount.join("f"), b"x").unwrap();
    rig.run(&["down"]);
    rig.assert_gone();
    assert!(!mount.exists(), "the mount point was made for the array");
    assert_eq!(rig.up(&["--fs", "none"])["mount"], serde_json::Value::Null);
}

#[test]
fn up_twice_is_one_array_and_other_settings_are_refused() {
    let Some(rig) = Rig::new() else { return };
    let (first, second) = (rig.up(&[]), rig.up(&[]));
    assert_eq!(first, second);
    let other = rig.try_run(&["up", "--model", "nl-sas-48", "--size", "1G"]);
    assert_eq!(other.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&other.stderr).contains("exists with other settings (model nl-sas-8"));
}

#[test]
fn a_busy_array_stays_until_forced() {
    let Some(rig) = Rig::new() else { return };
    let mount = path(&rig.up(&[])["mount"]);
    let open = File::create(mount.join("open")).unwrap();
    let out = rig.try_run(&["down"]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("is in use"), "{out:?}");
    fs::write(mount.join("still"), b"works").unwrap();
    rig.run(&["down", "--force"]);
    drop(open);
    until("the loop device to go", || !losetup().contains(rig.dir.path().to_str().unwrap()));
    rig.assert_gone();
}

#[test]
fn a_search_for_a_loop_device_waits_until_that_of_another_process_ends() {
    let Some(rig) = Rig::new() else { return };
    let lock = File::open("/dev/loop-control").unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let inode = format!(":{} ", rustix::fs::fstat(&lock).unwrap().st_ino);
    let waits = || {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| line.contains("->") && line.contains("FLOCK") && line.contains(&inode))
    };
    std::thread::scope(|scope| {
        let up = scope.spawn(|| rig.up(&["--fs", "none"]));
        until("the array to wait for the lock", || waits() || up.is_finished());
        assert!(!up.is_finished(), "the array came up beside another search");
        drop(lock);
        up.join().unwrap();
    });
}

fn losetup() -> String {
    String::from_utf8(Command::new("losetup").args(["-n", "-O", "BACK-FILE"]).output().unwrap().stdout)
        .unwrap()
}

/// Writes generation 1, flushes, writes generation 2, and cuts the power. Returns the generation found in each block.
fn cut(rig: &Rig, seed: &str, prepare: impl Fn()) -> Vec<Option<u64>> {
    let model = rig.lazy_volatile();
    let up = || direct(&path(&rig.up(&["--fs", "none", "--model", model.to_str().unwrap()])["device"]));
    let device = up();
    prepare();
    // Only every second block is written, because a full stripe would go to the disks at once.
    let blocks = || (0..BLOCKS).map(|b| b * 2);
    blocks().for_each(|b| write_block(&device, b, 1));
    device.sync_all().unwrap();
    blocks().for_each(|b| write_block(&device, b, 2));
    assert!(rig.run(&["cut", "--seed", seed]).contains("blocks of 4 KiB lost"));
    assert!(read_block(&device, 0).is_err(), "a device without power answers nothing");
    drop(device);
    let device = up();
    blocks().map(|b| generation(&device, b, &[1, 2])).collect()
}

#[test]
fn a_power_cut_keeps_what_was_flushed_and_loses_some_of_the_rest() {
    let Some(rig) = Rig::new() else { return };
    let found = cut(&rig, "7", || {});
    assert!(found.iter().all(Option::is_some), "flushed blocks must survive: {found:?}");
    let kept = found.iter().filter(|g| **g == Some(2)).count() as u64;
    assert!((BLOCKS / 4..BLOCKS * 3 / 4).contains(&kept), "{kept} of {BLOCKS} unflushed blocks survived");
    rig.run(&["down"]);
    assert_eq!(found, cut(&rig, "7", || {}), "the seed decides");
}

#[test]
fn with_flushes_that_do_nothing_a_flushed_block_is_lost() {
    let Some(rig) = Rig::new() else { return };
    let found = cut(&rig, "7", || _ = rig.run(&["inject", "flush-noop"]));
    let lost = found.iter().filter(|g| g.is_none()).count();
    assert!(lost > 0, "the control must fail, or the test above proves nothing");
}

#[test]
fn a_file_system_survives_a_cut_with_its_synced_files() {
    let Some(rig) = Rig::new() else { return };
    let model = rig.lazy_volatile();
    let up = || path(&rig.up(&["--model", model.to_str().unwrap()])["mount"]);
    let mount = up();
    let synced: Vec<u8> = (0..300).flat_map(|b| content(b, 5).0).collect();
    fs::write(mount.join("synced"), &synced).unwrap();
    File::open(mount.join("synced")).unwrap().sync_all().unwrap();
    File::open(&mount).unwrap().sync_all().unwrap();
    // The file stays open over the cut, so the old instance of the file system lingers.
    let unsynced = File::create(mount.join("unsynced")).unwrap();
    unsynced.set_len(1 << 20).unwrap();
    rig.run(&["cut"]);
    assert!(!mount.join("synced").exists());
    let mount = up();
    assert_eq!(fs::read(mount.join("synced")).unwrap(), synced);
    drop(unsynced);
    rig.run(&["down"]);
}

#[test]
fn an_injected_error_reaches_the_reader_and_ends() {
    let Some(rig) = Rig::new() else { return };
    let mount = path(&rig.up(&[])["mount"]);
    for name in ["bad", "good"] {
        fs::write(mount.join(name), content(1, 1).0).unwrap();
    }
    let bad = mount.join("bad");
    rig.run(&["inject", "eio", "--file", bad.to_str().unwrap(), "--hits", "read"]);
    assert_eq!(read_block(&direct(&bad), 0).map(drop).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert!(read_block(&direct(&mount.join("good")), 0).is_ok());
    rig.run(&["inject", "clear"]);
    assert!(read_block(&direct(&bad), 0).is_ok());
}

#[test]
fn a_failed_write_leaves_the_old_content() {
    let Some(rig) = Rig::new() else { return };
    let device = direct(&path(&rig.up(&["--fs", "none"])["device"]));
    write_block(&device, 3, 1);
    rig.run(&["inject", "eio", "--offset", "12288", "--length", "4K", "--hits", "write", "--count", "1"]);
    let failed = std::os::unix::fs::FileExt::write_all_at(&device, &content(3, 2).0, 12288);
    assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(generation(&device, 3, &[1, 2]), Some(1));
    write_block(&device, 3, 2);
    assert_eq!(generation(&device, 3, &[1, 2]), Some(2));
}

#[test]
fn a_hanging_array_goes_on_where_it_was() {
    let Some(rig) = Rig::new() else { return };
    let device = direct(&path(&rig.up(&["--fs", "none"])["device"]));
    write_block(&device, 9, 1);
    rig.run(&["inject", "hang"]);
    let before = rig.status()["status"]["counters"]["reads"].as_u64();
    let reader = std::thread::spawn(move || generation(&device, 9, &[1]));
    until("the read to arrive", || rig.status()["status"]["counters"]["reads"].as_u64() > before);
    assert!(!reader.is_finished());
    rig.run(&["inject", "clear"]);
    assert_eq!(reader.join().unwrap(), Some(1));
}

#[test]
fn after_kill_the_array_can_be_powered_on_or_taken_down() {
    let Some(rig) = Rig::new() else { return };
    let kill = |state: &serde_json::Value| {
        let pid = state["pid"].as_i64().unwrap() as i32;
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        until("the daemon to die", || rig.run(&["list"]).contains("dead"));
    };
    let state = rig.up(&[]);
    let file = path(&state["mount"]).join("f");
    fs::write(&file, b"before").unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    kill(&state);
    let state = rig.up(&[]);
    assert_eq!(fs::read(&file).unwrap(), b"before");
    kill(&state);
    rig.run(&["down"]);
    rig.assert_gone();
}

#[test]
fn a_stopped_daemon_is_taken_down_too() {
    let Some(rig) = Rig::new() else { return };
    let state = rig.up(&["--fs", "none"]);
    let pid = rustix::process::Pid::from_raw(state["pid"].as_i64().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    rig.run(&["down"]);
    rig.assert_gone();
}

#[test]
fn deleted_files_give_their_memory_back() {
    let Some(rig) = Rig::new() else { return };
    let state = rig.up(&[]);
    let (mount, image) = (path(&state["mount"]), path(&state["image"]));
    let used = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&image).unwrap()) * 512;
    let before = used();
    rig.run(&["inject", "instant"]);
    let file = File::create(mount.join("f")).unwrap();
    std::io::Write::write_all(&mut &file, &vec![7; 64 << 20]).unwrap();
    file.sync_all().unwrap();
    assert!(used() > before + (60 << 20));
    drop(file);
    fs::remove_file(mount.join("f")).unwrap();
    let dir = File::open(&mount).unwrap();
    until("the blocks to be discarded", || {
        rustix::fs::syncfs(&dir).unwrap();
        used() < before + (8 << 20)
    });
}

#[test]
fn without_root_one_sentence_says_so() {
    let Some(_) = Rig::new() else { return };
    // Only root can read the directory of the binary, so the test runs a copy.
    let dir = tempfile::tempdir().unwrap();
    let open = |mode| std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs::set_permissions(dir.path(), open(0o755)).unwrap();
    let binary = dir.path().join("forebay-array");
    fs::copy(env!("CARGO_BIN_EXE_forebay-array"), &binary).unwrap();
    let out =
        Command::new(&binary).args(["up", "--model", "nl-sas-8"]).uid(65534).gid(65534).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    let text = String::from_utf8(out.stderr).unwrap();
    assert!(text.contains("`array up` needs root") && text.lines().count() == 1, "{text}");
}
