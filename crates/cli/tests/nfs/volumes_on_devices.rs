//! Tests of block volumes in front of block devices: loop devices with sectors of 512 and of 4096 bytes.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::*;
use crate::volumes::{FAST_ZERO, FUA, Nbd, TRIM, WRITE_ZEROES};

const BLOCK: usize = 4096;
const SIZE: usize = 32 << 20;

/// A loop device over a file. It ends with the value.
struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Returns `None`, and says so, if this process may not make one.
    fn new(image: &Path, sector: usize) -> Option<Self> {
        let _alone = LoopDevice::alone();
        let sector = sector.to_string();
        let made = Command::new("losetup").args(["--find", "--show", "-b", &sector]).arg(image).output();
        match made {
            Ok(output) if output.status.success() => {
                Some(LoopDevice(String::from_utf8(output.stdout).unwrap().trim().into()))
            }
            other => {
                eprintln!("skipped, no loop device: {other:?}");
                None
            }
        }
    }

    /// Holds off the other tests that make loop devices. A search for a free device may briefly claim a device that
    /// another process has just taken.
    fn alone() -> Option<File> {
        let search = File::open("/dev/loop-control").ok();
        search.iter().for_each(|search| search.lock().unwrap());
        search
    }

    /// Gives each of two devices the file of the other, as a restart of the host may.
    fn swap(one: &Self, one_image: &Path, other: &Self, other_image: &Path) {
        let _alone = LoopDevice::alone();
        assert!(succeeds("losetup", &["-d", one.path(), other.path()]));
        for (device, image) in [(one, other_image), (other, one_image)] {
            wait_for(|| succeeds("losetup", &[device.path(), image.to_str().unwrap()]));
        }
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // The kernel keeps the flag for the next file on the device.
        let _ = Command::new("blockdev").arg("--setrw").arg(&self.0).output();
        let _ = Command::new("losetup").arg("-d").arg(&self.0).output();
    }
}

fn succeeds(program: &str, words: &[&str]) -> bool {
    let output = Command::new(program).args(words).output().unwrap();
    if !output.status.success() {
        eprintln!("{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

fn server() -> Server {
    Serve::unsquashed().cached().flags(&["--nbd", "127.0.0.1:0"]).start()
}

fn open(server: &Server) -> Nbd {
    let shown: serde_json::Value =
        serde_json::from_str(&server.ask(&["volume", "show", "disk", "--json"])).unwrap();
    Nbd::open(shown["nbd"].as_str().unwrap(), "disk").unwrap()
}

#[track_caller]
fn equal(found: &[u8], expected: &[u8]) {
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    assert_eq!((differs, found.len()), (None, expected.len()));
}

/// A lock on a file does not keep the loop driver off.
#[test]
fn a_start_refuses_a_backing_file_that_another_program_uses_by_now() {
    let mut server = server();
    let image = server.home().join("image");
    std::fs::write(&image, vec![7; SIZE]).unwrap();
    server.ask(&["volume", "create", "disk", "--backing", image.to_str().unwrap()]);
    open(&server).write(0, 0, 1, BLOCK);
    server.stop();
    let Some(user) = LoopDevice::new(&image, 512) else { return };
    server.start();
    let shown = server.ask(&["volume", "show", "disk", "--json"]);
    assert!(shown.contains("refused") && shown.contains(&format!("is under {}", user.path())), "{shown}");
    assert!(server.ask(&["events"]).contains("volume-refused"));
    let refused = server.try_ask(&["volume", "flush", "disk"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is under"));
    server.stop();
    equal(&std::fs::read(user.path()).unwrap(), &vec![7; SIZE]);
    drop(user);
    server.start();
    assert_eq!(open(&server).read(0, BLOCK), [1; BLOCK]);
}

fn exercise(sector: usize) {
    let mut server = server();
    let image = server.home().join("image");
    let mut expected = vec![7; SIZE];
    std::fs::write(&image, &expected).unwrap();
    let Some(device) = LoopDevice::new(&image, sector) else { return };
    server.ask(&["volume", "create", "disk", "--backing", device.path()]);
    let mut nbd = open(&server);
    assert_eq!(nbd.size, SIZE as u64);
    nbd.holds(&expected);
    for (flags, offset, byte, len) in
        [(FUA, 0, 1, BLOCK), (0, 5000, 2, 513), (0, 40_960, 3, 20_000), (0, SIZE - 700, 4, 700)]
    {
        nbd.write(flags, offset, byte, len);
        expected[offset..offset + len].fill(byte);
    }
    // The device zeroes ranges without data.
    nbd.change(WRITE_ZEROES, FAST_ZERO, 1 << 20, 1 << 20, &[]);
    expected[1 << 20..2 << 20].fill(0);
    nbd.change(TRIM, 0, 8 << 20, 8 << 20, &[]);
    let trimmed = nbd.read(8 << 20, 8 << 20);
    assert!(trimmed.iter().all(|byte| [0, 7].contains(byte)));
    expected[8 << 20..16 << 20].copy_from_slice(&trimmed);
    nbd.flush();
    nbd.holds(&expected);
    drop(nbd);
    // Nobody else can claim the device.
    let again = server.try_ask(&["volume", "create", "other", "--backing", device.path()]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("volume disk already"));
    server.kill();
    server.start();
    let mut nbd = open(&server);
    nbd.holds(&expected);
    // Past the log.
    server.ask(&["volume", "mode", "disk", "write-through"]);
    nbd.write(0, 6000, 9, 30_001);
    expected[6000..36_001].fill(9);
    nbd.flush();
    nbd.holds(&expected);
    server.ask(&["volume", "flush", "disk"]);
    server.stop();
    equal(&std::fs::read(device.path()).unwrap(), &expected);
    server.start();
    open(&server).holds(&expected);
    server.ask(&["volume", "remove", "disk"]);
    drop(device);
    equal(&std::fs::read(&image).unwrap(), &expected);
    let trimmed = std::fs::metadata(&image).unwrap().blocks() * 512;
    assert!(trimmed <= SIZE as u64 - (8 << 20), "the discard reaches the disk: {trimmed} bytes are in use");
}

#[test]
fn a_block_device_is_a_backing_device_with_sectors_of_any_size() {
    exercise(512);
    exercise(4096);
}

#[test]
fn a_mounted_device_is_refused_and_a_volume_cannot_be_mounted() {
    let server = server();
    let image = server.home().join("image");
    File::create(&image).unwrap().set_len(SIZE as u64).unwrap();
    let Some(device) = LoopDevice::new(&image, 512) else { return };
    let at = server.home().join("mounted");
    std::fs::create_dir(&at).unwrap();
    let at = at.to_str().unwrap();
    if !succeeds("mkfs.ext4", &["-q", device.path()]) || !succeeds("mount", &[device.path(), at]) {
        eprintln!("skipped: no mount");
        return;
    }
    std::fs::write(Path::new(at).join("file"), "kept").unwrap();
    let create = || server.try_ask(&["volume", "create", "disk", "--backing", device.path()]);
    let refused = create();
    let unmounted = succeeds("umount", &[at]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(unmounted && !refused.status.success() && told.contains("is mounted at"), "{told}");
    // The file under the device is in use as well.
    let below = server.try_ask(&["volume", "create", "disk", "--backing", image.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&below.stderr).into_owned();
    assert!(!below.status.success() && told.contains("is under /dev/loop"), "{told}");

    assert!(create().status.success());
    assert!(!succeeds("mount", &[device.path(), at]), "the volume's device was mounted");
    server.ask(&["volume", "remove", "disk"]);
    assert!(succeeds("mount", &["-o", "ro", device.path(), at]));
    let kept = std::fs::read_to_string(Path::new(at).join("file"));
    assert!(succeeds("umount", &[at]));
    assert_eq!(kept.unwrap(), "kept");
}

/// Linux lets a program open such a device for writing, and refuses the writes.
#[test]
fn a_read_only_device_is_refused_until_the_volume_is_read_only_too() {
    needs_root!();
    let server = server();
    let image = server.home().join("image");
    std::fs::write(&image, vec![7; SIZE]).unwrap();
    let Some(device) = LoopDevice::new(&image, 512) else { return };
    assert!(succeeds("blockdev", &["--setro", device.path()]));
    let create = ["volume", "create", "disk", "--backing", device.path()];
    let output = server.try_ask(&create);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains(&format!("{} is a read-only device; end that (`blockdev --setrw`)", device.path())),
        "{said}"
    );
    server.ask(&[&create[..], &["--read-only"]].concat());
    equal(&open(&server).read(0, BLOCK), &[7; BLOCK]);
    server.ask(&["volume", "remove", "disk"]);
}

#[test]
fn a_loop_device_with_another_file_is_refused_and_keeps_its_contents() {
    needs_root!();
    let mut server = server();
    let images = ["image", "other"].map(|name| server.home().join(name));
    images.iter().zip([7, 8]).for_each(|(image, byte)| std::fs::write(image, vec![byte; SIZE]).unwrap());
    let [Some(device), Some(other)] = [0, 1].map(|n: usize| LoopDevice::new(&images[n], 512)) else { return };
    server.ask(&["volume", "create", "disk", "--backing", device.path()]);
    // The write is in the log only.
    open(&server).write(FUA, 0, 1, BLOCK);
    server.kill();
    // A record of an earlier version has no file of the loop device. A start adds it.
    let path = server.state.join("volumes.json");
    let read =
        || serde_json::from_str::<serde_json::Value>(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let mut record = read();
    let image = record["volumes"][0]["identity"].as_object_mut().unwrap().remove("image").unwrap();
    std::fs::write(&path, record.to_string()).unwrap();
    server.start();
    assert_eq!(read()["volumes"][0]["identity"]["image"], image);
    server.kill();
    LoopDevice::swap(&device, &images[0], &other, &images[1]);
    server.start();
    let shown = server.ask(&["volume", "show", "disk"]);
    let flushed = server.try_ask(&["volume", "flush", "disk"]).status.success();
    server.stop();
    equal(&std::fs::read(device.path()).unwrap(), &[8; SIZE]);
    assert!(!flushed && shown.contains("another file"), "{shown}");

    LoopDevice::swap(&device, &images[1], &other, &images[0]);
    server.start();
    let mut expected = vec![7; SIZE];
    expected[..BLOCK].fill(1);
    open(&server).holds(&expected);
    server.ask(&["volume", "remove", "disk"]);
    drop((device, other));
    equal(&std::fs::read(&images[0]).unwrap(), &expected);
    equal(&std::fs::read(&images[1]).unwrap(), &[8; SIZE]);
}

#[test]
fn a_device_that_another_one_of_its_size_cannot_be_told_from_comes_with_a_caution() {
    needs_root!();
    let server = server();
    let images = ["image", "gone"].map(|name| server.home().join(name));
    images.iter().for_each(|image| std::fs::write(image, vec![7; SIZE]).unwrap());
    let [Some(known), Some(unknown)] = [0, 1].map(|n: usize| LoopDevice::new(&images[n], 512)) else {
        return;
    };
    // The system does not tell any more which file is under the device.
    std::fs::remove_file(&images[1]).unwrap();
    let create = |name: &str, device: &LoopDevice| {
        let output = server.try_ask(&["volume", "create", name, "--backing", device.path()]);
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let said = create("known", &known);
    assert!(!said.contains("Caution"), "{said}");
    let said = create("unknown", &unknown);
    assert!(said.contains("Caution: /dev/loop") && said.contains("serial number"), "{said}");
    let events = server.ask(&["events"]);
    assert_eq!(events.matches("volume-ambiguous").count(), 1, "{events}");
    ["known", "unknown"].iter().for_each(|name| drop(server.ask(&["volume", "remove", name])));
}
