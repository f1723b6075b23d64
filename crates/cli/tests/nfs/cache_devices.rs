//! Tests of cache devices that are added, removed, fail, or return wrong data.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::harness::*;

fn cached() -> Server {
    Serve::unsquashed().cached().start()
}

fn reasons(server: &Server) -> String {
    server.status()["health"].to_string()
}

fn events(server: &Server) -> String {
    server.ask(&["events"])
}

/// Writes until the server has noticed that a device fails. A server notices when it uses the device.
fn change_until(copies: &mut Copies, server: &Server, what: &str) {
    let mut c = server.connect();
    for _ in 0..100 {
        if events(server).contains(what) {
            return;
        }
        copies.change(&mut c, 10);
        copies.check(&mut c);
    }
    panic!("no event `{what}`: {}", events(server));
}

#[test]
fn a_single_device_is_write_through_and_says_why() {
    let home = tempfile::tempdir().unwrap();
    let one = home.path().join("one");
    let flags = ["--mode", "write-back", "--cache", one.to_str().unwrap(), "--cache-size", "64MiB"];
    let server = Serve::unsquashed().flags(&flags).start();
    let status = server.status();
    assert_eq!(
        (status["mode"].as_str(), status["effective_mode"].as_str()),
        (Some("write-back"), Some("write-through"))
    );
    assert!(events(&server).contains("one cache device only"), "{}", events(&server));
    let (mut c, mut copies) = (server.connect(), Copies::new(1));
    copies.change(&mut c, 100);
    copies.check(&mut c);
    copies.check_directory(&server.data);
    // A second device permits write-back.
    let two = home.path().join("two");
    let shown = server.ask(&["pool", "add", two.to_str().unwrap()]);
    assert!(shown.contains("two"), "{shown}");
    copies.change(&mut c, 20);
    wait_for(|| server.status()["effective_mode"] == "write-back");
    copies.change(&mut c, 50);
    copies.check(&mut c);
    server.flush();
    copies.check_directory(&server.data);
}

#[test]
fn a_device_leaves_in_service_and_another_takes_its_place() {
    let server = cached();
    let (mut c, mut copies) = (server.connect(), Copies::new(2));
    copies.change(&mut c, 100);
    let [first, second] = server.caches();
    let first = first.to_str().unwrap();
    server.ask(&["pool", "remove", first, "--wait"]);
    assert_eq!(server.status()["effective_mode"], "write-through");
    assert!(reasons(&server).contains("forebay pool add"), "{}", reasons(&server));
    copies.check(&mut c);
    copies.check_directory(&server.data);
    copies.change(&mut c, 30);
    let third = server.home().join("third");
    server.ask(&["pool", "add", third.to_str().unwrap()]);
    copies.change(&mut c, 30);
    wait_for(|| server.status()["effective_mode"] == "write-back");
    assert_eq!(server.status()["health"]["state"], "OK", "{}", reasons(&server));
    copies.change(&mut c, 100);
    copies.check(&mut c);
    let last = server.try_ask(&["pool", "remove", "/no/such/device", "--wait"]);
    assert_eq!(last.status.code(), Some(1));
    server.ask(&["pool", "remove", second.to_str().unwrap(), "--wait"]);
    copies.check(&mut c);
    let last = server.try_ask(&["pool", "remove", third.to_str().unwrap(), "--wait"]);
    assert_eq!(last.status.code(), Some(1), "the last one stays");
    let said = String::from_utf8_lossy(&last.stderr).into_owned();
    assert!(said.contains("is the last cache device; add another before removing it"), "{said}");
}

fn lose(seed: u64, how: impl Fn(&Path)) {
    let mut server = cached();
    let mut copies = Copies::new(seed);
    copies.change(&mut server.connect(), 100);
    how(&server.caches()[1]);
    change_until(&mut copies, &server, "device-lost");
    assert!(reasons(&server).contains("forebay pool add"), "{}", reasons(&server));
    copies.check(&mut server.connect());
    server.kill();
    server.start();
    copies.check(&mut server.connect());
    server.flush();
    copies.check_directory(&server.data);
}

#[test]
fn a_cache_file_removed_in_service_costs_nothing() {
    lose(3, |path| std::fs::remove_file(path).unwrap());
}

#[test]
fn a_cache_file_cut_short_in_service_costs_nothing() {
    lose(4, |path| File::options().write(true).open(path).unwrap().set_len(1 << 20).unwrap());
}

/// The end of the device is gone, the superblock at its front is whole.
#[test]
fn a_cache_file_cut_short_while_no_server_ran_is_a_lost_device() {
    let mut server = cached();
    let mut copies = Copies::new(6);
    copies.change(&mut server.connect(), 100);
    server.kill();
    let [_, cut] = server.caches();
    File::options().write(true).open(&cut).unwrap().set_len(48 << 20).unwrap();
    let before = std::fs::read(&cut).unwrap();
    server.start();
    assert_eq!(server.status()["effective_mode"], "write-through");
    assert!(events(&server).contains("has shrunk to 50331648 bytes"), "{}", events(&server));
    let faults = reasons(&server);
    assert!(faults.contains("caches/b") && faults.contains("was lost"), "{faults}");
    assert!(!faults.contains("is missing"), "{faults}");
    copies.check(&mut server.connect());
    copies.change(&mut server.connect(), 50);
    server.flush();
    copies.check_directory(&server.data);
    assert!(std::fs::read(&cut).unwrap() == before, "nothing is written to it");
    std::fs::remove_file(&cut).unwrap();
    server.ask(&["pool", "add", cut.to_str().unwrap()]);
    wait_for(|| server.status()["health"]["state"] == "OK");
    server.restart();
    copies.check(&mut server.connect());
}

#[test]
fn an_only_device_that_dies_is_done_without_and_what_comes_back_with_it_does_not_count() {
    let home = tempfile::tempdir().unwrap();
    let [one, kept] = ["one", "kept"].map(|name| home.path().join(name));
    let flags = ["--mode", "write-back", "--cache", one.to_str().unwrap(), "--cache-size", "64MiB"];
    let mut server = Serve::unsquashed().flags(&flags).start();
    let mut copies = Copies::new(9);
    copies.change(&mut server.connect(), 100);
    copies.check(&mut server.connect());
    std::fs::copy(&one, &kept).unwrap();
    File::options().write(true).open(&one).unwrap().set_len(1 << 20).unwrap();
    change_until(&mut copies, &server, "device-lost");
    copies.change(&mut server.connect(), 100);
    copies.check(&mut server.connect());
    copies.check_directory(&server.data);
    server.kill();
    std::fs::copy(&kept, &one).unwrap();
    for _ in 0..2 {
        server.start();
        copies.check(&mut server.connect());
        copies.change(&mut server.connect(), 10);
        server.kill();
    }
    server.start();
    server.flush();
    copies.check_directory(&server.data);
}

#[test]
fn a_lost_device_that_was_replaced_concerns_nobody_any_more() {
    let server = cached();
    let mut copies = Copies::new(8);
    copies.change(&mut server.connect(), 60);
    std::fs::remove_file(&server.caches()[1]).unwrap();
    change_until(&mut copies, &server, "device-lost");
    assert!(server.ask(&["pool", "status"]).contains("lost"));
    let new = server.home().join("new");
    let shown = server.ask(&["pool", "add", new.to_str().unwrap()]);
    assert!(!shown.contains("lost"), "{shown}");
    copies.change(&mut server.connect(), 20);
    wait_for(|| server.status()["health"]["state"] == "OK");
    copies.check(&mut server.connect());
}

#[test]
fn rot_is_found_and_repaired_from_the_other_copy() {
    let mut server = cached();
    let mut copies = Copies::new(5);
    copies.change(&mut server.connect(), 150);
    server.kill();
    // One byte is flipped in every block except those of the superblocks.
    let file = File::options().read(true).write(true).open(&server.caches()[0]).unwrap();
    for at in (2 << 20..file.metadata().unwrap().len() - (2 << 20)).step_by(4096) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at + 77).unwrap();
        file.write_all_at(&[byte[0] ^ 0x55], at + 77).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    server.start();
    copies.check(&mut server.connect());
    server.flush();
    copies.check_directory(&server.data);
    copies.check(&mut server.connect());
}

#[test]
fn a_block_whose_copies_are_all_bad_is_an_error_and_the_event_names_its_file() {
    let mut server = cached();
    let data: Vec<u8> = (0..4096).map(|at| (at % 251) as u8).collect();
    let mut c = server.connect();
    let root = c.root();
    let file = make(&mut c, &root, b"precious", 0o644);
    c.write(&file, 0, &data, StableHow::FileSync).unwrap();
    // A later record tells a restart that the write was acknowledged. The block is not destaged yet, and never will be.
    for _ in 0..2 {
        c.write(&file, 4096, b"later", StableHow::FileSync).unwrap();
    }
    server.kill();
    for path in server.caches() {
        let cache = File::options().read(true).write(true).open(&path).unwrap();
        let mut block = vec![0; data.len()];
        let is_copy = |at: &u64| {
            cache.read_exact_at(&mut block, *at).unwrap();
            block == data
        };
        let copies: Vec<_> = (0..cache.metadata().unwrap().len()).step_by(4096).filter(is_copy).collect();
        assert_eq!(copies.len(), 1, "{}", path.display());
        cache.write_all_at(&[!data[77]], copies[0] + 77).unwrap();
    }
    server.start();
    let failed = server.connect().read(&file, 0, 4096).unwrap_err();
    assert_eq!(failed.status, Nfsstat3::Io);
    let path = server.data.join("precious");
    let names = [format!("file {},", path.display()), format!("inode {} of", path.metadata().unwrap().ino())];
    let said = events(&server);
    let line =
        said.lines().find(|line| line.contains("every copy of a block that only the cache had")).unwrap();
    assert!(names.iter().any(|name| line.contains(name)) && line.contains("byte 0;"), "{line}");
}

#[test]
fn a_scrub_by_hand_finds_rot_and_says_what_became_of_it() {
    let server = cached();
    let mut copies = Copies::new(7);
    copies.change(&mut server.connect(), 150);
    server.flush();
    // A byte is flipped in every block of the segments (of 1 MiB), except headers and footers.
    let file = File::options().read(true).write(true).open(&server.caches()[0]).unwrap();
    let end = file.metadata().unwrap().len() - (2 << 20);
    for at in (1 << 20..end).step_by(4096).filter(|at| (1..128).contains(&(at / 4096 % 256))) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at + 77).unwrap();
        file.write_all_at(&[byte[0] ^ 0x55], at + 77).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    let scrub: serde_json::Value =
        serde_json::from_str(&server.ask(&["pool", "scrub", "--wait", "--json"])).unwrap();
    assert_eq!((scrub["number"].as_u64(), scrub["running"].as_bool()), (Some(1), Some(false)), "{scrub}");
    let count = |name: &str| scrub[name].as_u64().unwrap();
    assert!(count("blocks_checked") > 0 && count("blocks_lost") == 0, "{scrub}");
    assert!(count("blocks_repaired") + count("blocks_dropped") > 0, "{scrub}");
    let again: serde_json::Value =
        serde_json::from_str(&server.ask(&["pool", "scrub", "--wait", "--json"])).unwrap();
    assert_eq!((&again["blocks_repaired"], &again["blocks_dropped"]), (&0.into(), &0.into()), "{again}");
    let status: serde_json::Value = serde_json::from_str(&server.ask(&["pool", "status", "--json"])).unwrap();
    assert_eq!(status["scrub"]["number"], 2);
    copies.check(&mut server.connect());
}

#[test]
fn a_pool_belongs_to_one_server() {
    let server = cached();
    let [first, second] = server.caches();
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("data")).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.arg("serve").arg(home.path().join("data")).args(["--listen", "127.0.0.1:0", "--state-dir"]);
    let output = command
        .arg(home.path().join("state"))
        .arg("--cache")
        .arg(first)
        .arg("--cache")
        .arg(second)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("in use"), "{said}");
}

#[test]
fn what_holds_something_else_is_not_overwritten() {
    let home = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| home.path().join(name));
    let precious: Vec<u8> = (0..64 << 20).map(|n: u32| (n >> 7) as u8 | 1).collect();
    for path in [&a, &b] {
        std::fs::write(path, &precious).unwrap();
    }
    std::fs::create_dir(home.path().join("data")).unwrap();
    let serve = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("serve").arg(home.path().join("data")).args(["--listen", "127.0.0.1:0", "--state-dir"]);
        command.arg(home.path().join("state")).arg("--cache").arg(&a).arg("--cache").arg(&b).args(more);
        command.output().unwrap()
    };
    let output = serve(&[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("holds"), "{said}");
    assert!(std::fs::read(&a).unwrap() == precious && std::fs::read(&b).unwrap() == precious);
}

#[test]
fn a_device_that_missed_something_is_not_used() {
    let mut server = Serve::unsquashed().cached().flags(&["--make-missing"]).start();
    let mut copies = Copies::new(6);
    copies.change(&mut server.connect(), 60);
    server.flush();
    server.stop();
    let [first, second] = server.caches();
    let aside = server.home().join("aside");
    std::fs::rename(&second, &aside).unwrap();
    std::fs::copy(&aside, server.home().join("copy")).unwrap();
    // A new second device is made and filled.
    server.start();
    copies.change(&mut server.connect(), 60);
    server.kill();
    std::fs::rename(&aside, &second).unwrap();
    server.start();
    copies.check(&mut server.connect());
    assert!(
        events(&server).contains("no member") || events(&server).contains("out of date"),
        "{}",
        events(&server)
    );
    server.flush();
    copies.check_directory(&server.data);
    assert!(first.exists());
}

/// Returns the effective capabilities of a process, one bit each (capabilities(7)); `None` if the process is gone.
fn capabilities(pid: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let bits = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(bits.trim(), 16).ok()
}

/// The process that asks disks for their health may do only that, and the server may not do it. The process must not
/// outlive the server.
#[test]
fn the_privileges_to_ask_disks_are_kept_by_a_process_of_their_own() {
    needs_root!();
    const ASKING: u64 = 1 << 17 | 1 << 21;
    let mut server = cached();
    let pid = server.pid().to_string();
    if capabilities("self").is_none_or(|held| held & ASKING == 0) {
        eprintln!("not run: needs CAP_SYS_RAWIO or CAP_SYS_ADMIN");
        return;
    }
    let children = || std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    assert_eq!(capabilities(&pid).unwrap() & ASKING, 0);
    let child = children().trim().to_owned();
    wait_for(|| capabilities(&child).is_some_and(|held| held != 0 && held & !ASKING == 0));
    server.kill();
    wait_for(|| capabilities(&child).is_none_or(|held| held == 0));
    server.start();
    server.stop();
}

/// A file system that takes no writes until the value is dropped. An unmount waits for that.
struct Frozen<'a>(&'a Path);

impl<'a> Frozen<'a> {
    fn new(at: &'a Path) -> Self {
        assert!(std::process::Command::new("fsfreeze").arg("-f").arg(at).status().unwrap().success());
        Frozen(at)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("fsfreeze").arg("-u").arg(self.0).status();
    }
}

/// The directory takes no writes, so the removal cannot end before the status was seen.
#[test]
fn a_removal_shows_its_progress_until_it_ends() {
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "xfs", 320 << 20) else { return };
    let server = disk.serve().cached().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"file", 0o644);
    server.flush();
    let frozen = Frozen::new(&disk.at);
    let len = 256 << 10;
    c.write(&file, 0, &vec![1; len], StableHow::FileSync).unwrap();
    let [_, second] = server.caches();
    server.ask(&["pool", "remove", second.to_str().unwrap()]);
    let pool =
        || -> serde_json::Value { serde_json::from_str(&server.ask(&["pool", "status", "--json"])).unwrap() };
    let removal = || pool()["work"].as_array()?.iter().find(|work| work["kind"] == "removal").cloned();
    wait_for(|| removal().is_some());
    let work = removal().unwrap();
    assert_eq!((&work["done"], &work["total"]), (&0.into(), &len.into()), "{work}");
    let text = server.ask(&["pool", "status"]);
    assert!(text.contains(&format!("data leaves {}: 0 B of 256 KiB", second.display())), "{text}");
    assert_eq!(work["device"], second.to_str().unwrap(), "{work}");
    drop(frozen);
    wait_for(|| pool()["devices"].as_array().unwrap().len() == 1);
    assert_eq!(removal(), None);
    assert_eq!(std::fs::read(disk.at.join("file")).unwrap(), vec![1; len]);
}
