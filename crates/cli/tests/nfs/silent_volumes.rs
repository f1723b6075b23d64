//! Tests of commands for volumes whose backing device, or its file system, does not answer.

use std::process::{Command, Output};
use std::thread::JoinHandle;

use rustix::process::Signal;

use crate::harness::*;
use crate::nbd_client;
use crate::volumes::{ESHUTDOWN, FUA, Rig, TRIM, WRITE};

const BLOCK: usize = 4096;

/// A file system that accepts no change as long as the value lives.
struct Frozen<'a>(&'a LoopDisk);

impl<'a> Frozen<'a> {
    fn new(disk: &'a LoopDisk) -> Self {
        assert!(Command::new("fsfreeze").arg("-f").arg(&disk.at).status().unwrap().success());
        Frozen(disk)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        assert!(Command::new("fsfreeze").arg("-u").arg(&self.0.at).status().unwrap().success());
    }
}

/// Checks that a command failed with this text.
#[track_caller]
fn failed(output: &Output, says: &str) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && told.contains(says), "{}: {told}", output.status);
}

/// Begins to create a volume on a file system that is silent, and has the request. `None` without FUSE.
fn creating_on_silent(rig: &Rig) -> Option<(Silent, JoinHandle<Output>)> {
    let silent = Silent::mount_answering(rig.server.home())?;
    silent.fall_silent();
    let asker = rig.server.asker();
    let there = silent.at.join("image").to_str().unwrap().to_owned();
    let create = move || asker.try_ask(&["volume", "create", "silent", "--backing", &there]);
    let creating = std::thread::spawn(create);
    wait_for(|| silent.is_awaited());
    Some((silent, creating))
}

/// The discard is answered, and went past the log. Only a sync of the device makes it durable.
#[test]
fn a_flush_and_a_removal_do_not_wait_for_the_sync_of_a_silent_device() {
    let mut rig = nbd_client::Rig::new(nbd_client::PLAIN);
    let mut nbd = rig.open();
    nbd.change(TRIM, 0, 0, BLOCK, &[]);
    rig.export.signal(Signal::STOP);
    failed(&rig.server.try_ask(&["volume", "flush", "far"]), "does not answer");
    assert!(rig.server.ask(&["events"]).contains("backing-late"));
    failed(&rig.server.try_ask(&["volume", "remove", "far"]), "--give-up");
    rig.export.signal(Signal::CONT);
    wait_for(|| rig.server.try_ask(&["volume", "flush", "far"]).status.success());
    rig.write(&mut nbd, FUA, 0, 1, BLOCK);
    rig.server.ask(&["volume", "remove", "far"]);
    rig.check_image();
}

/// The removal gave the sync in progress up. Later syncs must not wait for it for ever.
#[test]
fn a_removal_that_gave_up_and_cannot_be_recorded_leaves_a_volume_that_can_be_flushed() {
    let rig = nbd_client::Rig::new(nbd_client::PLAIN);
    let mut nbd = rig.open();
    nbd.change(TRIM, 0, 0, BLOCK, &[]);
    rig.export.signal(Signal::STOP);
    let asker = rig.server.asker();
    let removing = std::thread::spawn(move || asker.try_ask(&["volume", "remove", "far", "--give-up"]));
    wait_for(|| nbd.call(WRITE, 0, 0, BLOCK, &[1; BLOCK]).0 == ESHUTDOWN);
    std::fs::create_dir(rig.server.state.join("volumes.new")).unwrap();
    failed(&removing.join().unwrap(), "volume far stays: the state directory");
    rig.export.signal(Signal::CONT);
    nbd.flush();
    rig.server.ask(&["volume", "flush", "far"]);
}

#[test]
fn a_command_does_not_wait_for_a_silent_file_system_and_holds_up_no_other_one() {
    let rig = Rig::new();
    let Some((_silent, creating)) = creating_on_silent(&rig) else { return };
    drop(rig.create());
    rig.volume(&["mode", "scratch", "write-through"]);
    rig.volume(&["resize", "scratch", "8MiB"]);
    rig.volume(&["remove", "scratch"]);
    assert!(!creating.is_finished());
    failed(&creating.join().unwrap(), "does not answer within 20 seconds");
}

#[test]
fn a_stop_does_not_wait_for_a_command_that_waits_for_a_silent_file_system() {
    let mut rig = Rig::new();
    let Some((_silent, creating)) = creating_on_silent(&rig) else { return };
    rig.server.signal(Signal::TERM);
    let (status, said) = rig.server.wait();
    assert!(status.success(), "{status}: {said}");
    assert!(!creating.join().unwrap().status.success());
}

#[test]
fn a_resize_does_not_wait_for_a_silent_file_system() {
    let mut rig = Rig::new();
    let Some(disk) = LoopDisk::new(rig.server.home(), "xfs", 320 << 20) else { return };
    let image = disk.at.join("disk.img");
    std::fs::copy(&rig.image, &image).unwrap();
    rig.image = image;
    let mut nbd = rig.create();
    let frozen = Frozen::new(&disk);
    rig.refused(
        &["resize", "scratch", "8MiB"],
        "volume scratch keeps its size: its backing device does not answer",
    );
    assert_eq!(rig.open().unwrap().size, nbd.size);
    drop(frozen);
    // The file has room, and the volume gets it while its dirty data cannot be destaged.
    wait_for(|| std::fs::metadata(&rig.image).unwrap().len() == 8 << 20);
    nbd.write(FUA, 0, 1, BLOCK);
    let frozen = Frozen::new(&disk);
    let asker = rig.server.asker();
    let flush = std::thread::spawn(move || asker.try_ask(&["volume", "flush", "scratch"]));
    failed(&flush.join().unwrap(), "does not answer");
    rig.refused(
        &["resize", "scratch"],
        "volume scratch gets its size of 8 MiB when its backing device answers",
    );
    rig.refused(&["resize", "scratch"], "when its backing device answers");
    drop(frozen);
    wait_for(|| rig.open().unwrap().size == 8 << 20);
    wait_for(|| rig.server.ask(&["events"]).contains("volume-resized"));
    assert!(rig.open().unwrap().read(0, 2 * BLOCK) == [[1; BLOCK], [7; BLOCK]].concat());
    rig.volume(&["remove", "scratch"]);
}
