//! Tests of the cache: reads of clients, contents after a crash, and the plain directory after a flush.

use crate::harness::*;

fn cached() -> Server {
    Serve::unsquashed().cached().start()
}

#[test]
fn what_clients_did_is_what_they_read_and_what_a_flush_leaves_behind() {
    for seed in 0..4 {
        let server = cached();
        let (mut c, mut copies) = (server.connect(), Copies::new(seed));
        for _ in 0..3 {
            copies.change(&mut c, 150);
            copies.check(&mut c);
        }
        server.flush();
        copies.check_directory(&server.data);
        copies.check(&mut c);
        assert_eq!(server.status()["pool"]["dirty_bytes"], 0);
    }
}

#[test]
fn times_and_sizes_are_right_before_and_after_they_are_written_down() {
    let server = cached();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let before = c.attr(&file);
    c.write(&file, 0, &[7; 5000], StableHow::FileSync).unwrap();
    let wrote = c.attr(&file);
    assert_eq!(wrote.size, 5000);
    assert!(wrote.mtime > before.mtime && wrote.ctime >= wrote.mtime, "{before:?} {wrote:?}");
    let listed = c.readdirplus(&root, START, 8192, 32_768).unwrap().entries;
    let listed = listed.iter().find(|entry| entry.name == b"f").unwrap().attributes.unwrap();
    assert_eq!((listed.size, listed.mtime), (wrote.size, wrote.mtime));
    server.flush();
    let flushed = c.attr(&file);
    assert_eq!((flushed.size, flushed.mtime), (wrote.size, wrote.mtime));
    c.setattr(&file, Sattr3 { mtime: at(1234, 5678), ..Sattr3::default() }).unwrap();
    c.write(&file, 0, &[8; 100], StableHow::FileSync).unwrap();
    c.setattr(&file, Sattr3 { mtime: at(4321, 8765), ..Sattr3::default() }).unwrap();
    assert_eq!(c.attr(&file).mtime, Nfstime3 { seconds: 4321, nseconds: 8765 });
    server.flush();
    assert_eq!(c.attr(&file).mtime, Nfstime3 { seconds: 4321, nseconds: 8765 });
    let mtime = std::fs::metadata(server.data.join("f")).unwrap().modified().unwrap();
    let since = mtime.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!((since.as_secs(), since.subsec_nanos()), (4321, 8765));
}

/// Returns the attributes by which a client decides to drop its cached data of a file.
fn identity(attr: Fattr3) -> (u64, Nfstime3, Nfstime3) {
    (attr.size, attr.mtime, attr.ctime)
}

#[test]
fn destaging_moves_no_times() {
    let server = cached();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let mut last = identity(c.attr(&file));
    let change = |c: &mut Client, step: u32| match step % 6 {
        0 => drop(c.write(&file, 0, &[1; 9000], StableHow::FileSync).unwrap()),
        1 => drop(c.setattr(&file, mode(0o600 | step)).unwrap()),
        2 => drop(c.setattr(&file, size(5000 + u64::from(step))).unwrap()),
        // A time in the past, and one in the future.
        3 => drop(c.setattr(&file, Sattr3 { mtime: at(1000 + step, 5), ..Sattr3::default() }).unwrap()),
        4 => drop(c.write(&file, 6000, &[2; 9000], StableHow::Unstable).unwrap()),
        _ => drop(c.setattr(&file, Sattr3 { mtime: at(4_000_000_000, 5), ..Sattr3::default() }).unwrap()),
    };
    for step in 0..36 {
        change(&mut c, step);
        let before = identity(c.attr(&file));
        assert!(before.2 > last.2, "step {step}: a change moves the change time: {last:?} {before:?}");
        if step % 3 != 1 {
            server.flush();
        }
        let listed = c.readdirplus(&root, START, 8192, 32_768).unwrap().entries;
        let listed = listed.into_iter().find(|entry| entry.name == b"f").unwrap().attributes.unwrap();
        assert_eq!((identity(listed), identity(c.attr(&file))), (before, before), "step {step}");
        last = before;
    }
}

#[test]
fn times_never_go_back_while_clients_write_and_the_cache_destages() {
    let server = cached();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                server.flush();
            }
        });
        let watching = scope.spawn(|| {
            let mut c = server.connect();
            let mut last = identity(c.attr(&file));
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                let now = identity(c.attr(&file));
                if now.1 < last.1 || now.2 < last.2 {
                    return Some((last, now));
                }
                last = now;
            }
            None
        });
        {
            let _done = DoneAtEnd(&done);
            for n in 0..400u64 {
                c.write(&file, n % 50 * 5000, &[n as u8; 5000], StableHow::FileSync).unwrap();
            }
        }
        assert_eq!(watching.join().unwrap(), None);
    });
}

#[test]
fn every_verb_shows_the_cache() {
    let server = cached();
    let (mut c, mut copies) = (server.connect(), Copies::new(12));
    copies.change(&mut c, 60);
    copies.check(&mut c);
    let shown = server.ask(&["status"]);
    for word in ["CACHE DEVICE", "healthy", "cache hits", "mode write-back"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    assert!(server.ask(&["pool", "status"]).contains("bytes for each block"));
    let line: serde_json::Value = serde_json::from_str(&server.ask(&["stat", "--json"])).unwrap();
    assert!(line["cache"]["spared"].as_f64().unwrap() > 0.0, "{line}");
    assert!(server.ask(&["stat", "--wide"]).contains("SPARED"));
    let metrics = server.ask(&["status", "--prometheus"]);
    let dirty = metrics.lines().find_map(|line| line.strip_prefix("forebay_cache_dirty_bytes ")).unwrap();
    assert_eq!(dirty.parse::<u64>().unwrap() % 4096, 0);
    for line in metrics.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("forebay_") && value.parse::<f64>().is_ok(), "{line}");
    }
    let report: serde_json::Value =
        serde_json::from_str(&server.ask(&["flush", "--wait", "--json"])).unwrap();
    assert_eq!(report["dirty_bytes"], 0);
    assert_eq!(server.status()["pool"]["counters"]["backing_errors"], 0);
}

/// The scenario of the README.
#[test]
fn a_crash_and_the_loss_of_one_cache_file_lose_nothing() {
    for lost in 0..2 {
        let mut server = Serve::unsquashed().cached().flags(&["--make-missing"]).start();
        let mut copies = Copies::new(lost);
        copies.change(&mut server.connect(), 200);
        server.kill();
        std::fs::remove_file(&server.caches()[lost as usize]).unwrap();
        server.start();
        copies.check(&mut server.connect());
        copies.change(&mut server.connect(), 50);
        copies.check(&mut server.connect());
        server.flush();
        copies.check_directory(&server.data);
        server.stop();
        // This time the second device is lost.
        std::fs::remove_file(&server.caches()[1 - lost as usize]).unwrap();
        server.start();
        copies.check(&mut server.connect());
    }
}

#[test]
fn a_stop_keeps_what_is_dirty_and_says_how_much() {
    let mut server = cached();
    let mut copies = Copies::new(7);
    copies.change(&mut server.connect(), 60);
    let file = server.connect().root();
    let dirty = server.connect().new_file(&file, b"dirty", 0o644);
    server.connect().write(&dirty, 0, &[1; 1000], StableHow::FileSync).unwrap();
    server.signal(rustix::process::Signal::TERM);
    let (status, said) = server.wait();
    assert!(status.success() && said.contains("stay on the cache devices"), "{said}");
    server.start();
    copies.check(&mut server.connect());
    assert_eq!(server.connect().read(&dirty, 0, 1000).unwrap().data, [1; 1000]);
    server.connect().remove(&file, b"dirty").unwrap();
    server.flush();
    copies.check_directory(&server.data);
    server.signal(rustix::process::Signal::TERM);
    let (status, said) = server.wait();
    assert!(status.success() && !said.contains("stay on the cache devices"), "{said}");
}

#[test]
fn the_directory_is_not_served_without_a_cache_that_may_hold_some_of_it() {
    let mut server = cached();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.write(&file, 0, b"only in the cache", StableHow::FileSync).unwrap();
    server.kill();
    let state = server.state.to_str().unwrap().to_owned();
    let refused = |flags: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("serve").arg(&server.data).args(["--listen", "127.0.0.1:0", "--state-dir", &state]);
        let output = command.args(flags).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("may hold data that the directory lacks"), "{said}");
    };
    refused(&["--mode", "pass-through"]);
    let other = server.home().join("other");
    refused(&["--cache", other.to_str().unwrap(), "--cache-size", "64MiB"]);
    assert!(!other.exists(), "nothing is made by a refused start");
    server.start();
    assert_eq!(server.connect().read(&file, 0, 100).unwrap().data, b"only in the cache");
    server.flush();
    server.stop();
    let served = Serve::new().plain().data_at(&server.data).start();
    assert_eq!(std::fs::read(served.data.join("f")).unwrap(), b"only in the cache");
}

#[test]
fn what_changed_while_the_server_was_down_is_seen() {
    let mut server = cached();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let kept = c.new_file(&root, b"kept", 0o644);
    for file in [&file, &kept] {
        c.write(file, 0, &[1; 20_000], StableHow::FileSync).unwrap();
    }
    server.flush();
    server.stop();
    std::fs::write(server.data.join("f"), [2; 20_000]).unwrap();
    server.start();
    let mut c = server.connect();
    assert_eq!(c.read(&file, 0, 20_000).unwrap().data, [2; 20_000]);
    assert_eq!(c.read(&kept, 0, 20_000).unwrap().data, [1; 20_000]);
    let counters = &server.status()["pool"]["counters"];
    assert_eq!(counters["blocks_read_ssd"], 5, "the other one is warm: {counters}");
}

#[test]
fn modes_change_in_service_and_nobody_notices() {
    let server = cached();
    let mut copies = Copies::new(11);
    let mut c = server.connect();
    for mode in ["write-through", "write-around", "write-back", "pass-through", "write-back", "write-through"]
    {
        copies.change(&mut c, 60);
        assert_eq!(server.ask(&["mode", mode]), format!("{mode}\n"));
        copies.change(&mut c, 60);
        copies.check(&mut c);
        assert_eq!(server.status()["effective_mode"], mode);
    }
    // In write-through the directory has new data at once, but not the data that was dirty before.
    server.flush();
    copies.change(&mut c, 60);
    copies.check_directory(&server.data);
}

#[test]
fn a_full_directory_is_told_in_time() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext4", 32 << 20) else { return };
    let server = disk.serve().cached().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let data = vec![7; 64 << 10];
    let mut written = 0;
    let failed = loop {
        assert!(written < 64 << 20, "more than there is was taken");
        match c.write(&file, written, &data, StableHow::FileSync) {
            Ok(wrote) => written += u64::from(wrote.count),
            Err(error) => break error.status,
        }
    };
    assert_eq!(failed, Nfsstat3::Nospc);
    assert!(written > 20 << 20, "{written}");
    server.flush();
    assert_eq!(std::fs::metadata(disk.at.join("f")).unwrap().len(), written);
    for at in (0..written).step_by(1 << 20) {
        assert_eq!(c.read(&file, at, 4096).unwrap().data, [7; 4096]);
    }
}

#[test]
fn set_id_bits_go_with_the_first_write_of_another() {
    needs_root!();
    let server = cached();
    let mut root_client = server.connect();
    let root = root_client.root();
    let file = root_client.new_file(&root, b"f", 0o644);
    root_client.write(&file, 0, b"program", StableHow::FileSync).unwrap();
    root_client.setattr(&file, mode(0o6777)).unwrap();
    let mut other = server.connect().acting_as(user(1000, 1000, &[]));
    other.write(&file, 0, b"PRO", StableHow::FileSync).unwrap();
    assert_eq!(root_client.attr(&file).mode & 0o7000, 0);
    assert_eq!(root_client.read(&file, 0, 100).unwrap().data, b"PROgram");
}

#[test]
fn a_removed_file_is_gone_from_the_cache_and_its_handle_is_stale() {
    let mut server = cached();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.write(&file, 0, &[1; 100_000], StableHow::FileSync).unwrap();
    c.remove(&root, b"f").unwrap();
    assert_eq!(c.read(&file, 0, 10).status(), Nfsstat3::Stale);
    server.kill();
    server.start();
    let mut c = server.connect();
    assert_eq!(c.getattr(&file).status(), Nfsstat3::Stale);
    server.flush();
    assert_eq!(server.status()["pool"]["dirty_bytes"], 0);
}

/// Returns true if a read in this directory moves an access time. Some mounts have the option `noatime`.
fn moves_access_times(dir: &std::path::Path) -> bool {
    let path = dir.join("probe");
    std::fs::write(&path, b"x").unwrap();
    let old = std::fs::FileTimes::new().set_accessed(std::time::UNIX_EPOCH);
    std::fs::File::options().write(true).open(&path).unwrap().set_times(old).unwrap();
    std::fs::read(&path).unwrap();
    let moves = std::fs::metadata(&path).unwrap().accessed().unwrap() > std::time::UNIX_EPOCH;
    std::fs::remove_file(&path).unwrap();
    moves
}

#[test]
fn a_read_that_the_cache_serves_moves_the_access_time_as_relatime_does() {
    use std::os::unix::fs::MetadataExt;
    let server = cached();
    if !moves_access_times(&server.data) {
        println!("skipped: the file system keeps access times");
        return;
    }
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.write(&file, 0, &[7; 5000], StableHow::FileSync).unwrap();
    server.flush();
    c.setattr(&file, Sattr3 { atime: at(1000, 0), ..Sattr3::default() }).unwrap();
    let before = c.attr(&file);
    assert_eq!(before.atime.seconds, 1000);
    let read = c.read(&file, 0, 5000).unwrap();
    let after = c.attr(&file);
    assert!(after.atime > before.atime, "{before:?} {after:?}");
    let told = read.attributes.atime;
    assert!(told > before.atime && told <= after.atime, "{told:?} {after:?}");
    assert_eq!(identity(after), identity(before), "only the access time moves");
    let in_file_system = || std::fs::metadata(server.data.join("f")).unwrap().atime();
    while in_file_system() == 1000 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let settled = c.attr(&file);
    assert!(settled.atime >= after.atime && identity(settled) == identity(before), "{after:?} {settled:?}");
    // Longer than a tick of the clock of access times.
    std::thread::sleep(std::time::Duration::from_millis(20));
    c.read(&file, 0, 5000).unwrap();
    assert_eq!(c.attr(&file).atime, settled.atime, "it was read since its change");
}
