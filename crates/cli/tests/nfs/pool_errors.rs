//! Tests of starts with unsuitable cache devices: each start fails with one clear sentence and changes nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::harness::*;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The directories of a server that does not start.
struct Rig(tempfile::TempDir);

impl Rig {
    fn new() -> Self {
        let rig = Rig(tempfile::tempdir().unwrap());
        std::fs::create_dir(rig.path("data")).unwrap();
        rig
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Makes two devices of a pool that was used, flushed and stopped.
    fn pool(&self, names: [&str; 2]) -> [PathBuf; 2] {
        let paths = names.map(|name| self.path(name));
        let [a, b] = paths.each_ref().map(|path| path.to_str().unwrap());
        let flags = ["--mode", "write-back", "--cache", a, "--cache", b, "--cache-size", "64MiB"];
        let mut server = Serve::unsquashed().flags(&flags).start();
        let mut copies = Copies::new(5);
        copies.change(&mut server.connect(), 40);
        server.flush();
        server.stop();
        paths
    }

    fn serve(&self, caches: &[&Path], more: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("serve").arg(self.path("data")).args(["--listen", "127.0.0.1:0", "--state-dir"]);
        command.arg(self.path("state")).args(more);
        for cache in caches {
            command.arg("--cache").arg(cache);
        }
        command.output().unwrap()
    }

    /// Returns the message of a start that is refused. Asserts that the devices have not changed.
    #[track_caller]
    fn refusal(&self, caches: &[&Path]) -> String {
        let before: Vec<_> = caches.iter().map(|path| contents(path)).collect();
        let output = self.serve(caches, &[]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with("error: no cache: ") && said.lines().count() == 1, "{said}");
        assert_eq!(caches.iter().map(|path| contents(path)).collect::<Vec<_>>(), before, "{said}");
        said
    }
}

fn contents(path: &Path) -> u64 {
    xxh3_64(&std::fs::read(path).unwrap())
}

/// Changes both copies of the superblock, as a later version might write them.
fn change_superblock(path: &Path, offset: usize, bytes: &[u8]) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let end = file.metadata().unwrap().len();
    for at in [0, end - 4096] {
        let mut block = [0; 4096];
        file.read_exact_at(&mut block, at).unwrap();
        assert!(block.starts_with(b"FOREBAY\0"), "copy at {at}");
        block[offset..offset + bytes.len()].copy_from_slice(bytes);
        let sum = xxh3_64_with_seed(&block[16..], u64::from_le_bytes(*b"FOREBAY\0"));
        block[8..16].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&block, at).unwrap();
    }
}

#[test]
fn a_newer_format_is_refused() {
    let rig = Rig::new();
    let [a, b] = rig.pool(["a", "b"]);
    change_superblock(&b, 16, &9u16.to_le_bytes());
    let said = rig.refusal(&[&a, &b]);
    assert!(said.contains("b has pool format 9, newer than this version"), "{said}");
    // Adding the device is refused as well.
    let server = Serve::unsquashed().cached().start();
    let refused = server.try_ask(&["pool", "add", b.to_str().unwrap()]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && said.contains("format 9"), "{said}");
}

#[test]
fn unknown_features_are_refused() {
    let rig = Rig::new();
    let [a, b] = rig.pool(["a", "b"]);
    change_superblock(&a, 24, &(1u64 << 40).to_le_bytes());
    let said = rig.refusal(&[&a, &b]);
    assert!(said.contains("needs features") && said.contains("0x10000000000"), "{said}");
}

#[test]
fn devices_of_two_pools_are_refused() {
    let rig = Rig::new();
    let [a, b] = rig.pool(["a", "b"]);
    let [c, _] = rig.pool(["c", "d"]);
    let said = rig.refusal(&[&a, &c]);
    assert!(said.contains("belongs to pool") && said.contains("name the devices of one pool"), "{said}");
    // A copy of a device is given beside the device.
    let copy = rig.path("copy");
    std::fs::copy(&a, &copy).unwrap();
    let said = rig.refusal(&[&a, &b, &copy]);
    assert!(said.contains("copy of the other"), "{said}");
}

#[test]
fn a_file_system_is_refused_unless_forced() {
    let rig = Rig::new();
    let image = rig.path("image");
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    if !Command::new("mkfs.ext4").arg("-q").arg(&image).status().is_ok_and(|status| status.success()) {
        eprintln!("not run: needs mkfs.ext4");
        return;
    }
    let said = rig.refusal(&[&image]);
    assert!(said.contains("holds an ext2, ext3 or ext4 file system"), "{said}");
    let server = Serve::unsquashed().cached().start();
    let before = contents(&image);
    let refused = server.try_ask(&["pool", "add", image.to_str().unwrap()]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && said.contains("--force"), "{said}");
    assert_eq!(contents(&image), before);
    server.ask(&["pool", "add", image.to_str().unwrap(), "--force"]);
}

#[test]
fn what_is_no_device_is_refused() {
    let rig = Rig::new();
    let small = rig.path("small");
    std::fs::write(&small, [0; 4096]).unwrap();
    assert!(rig.refusal(&[&small]).contains("too few"));
    for (path, what) in [("/dev/null", "a character device"), ("/tmp", "a directory")] {
        let output = rig.serve(&[Path::new(path)], &[]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && said.contains(what), "{said}");
    }
}
