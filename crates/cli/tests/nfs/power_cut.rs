//! Tests that acknowledged changes survive a power cut on real file systems. An emulated disk array with a volatile
//! cache loses a random part of the unflushed data. The control, a disk whose flushes do nothing, must fail the test.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::harness::*;

/// The acknowledged state of one file.
struct Promise {
    dir: FileHandle,
    name: String,
    /// Handle and first byte of the file; `None` if it was removed.
    file: Option<(FileHandle, u8)>,
}

/// Creates, writes, renames, links and removes until the disk fails. Returns the acknowledged states.
fn work(mut c: Client, dir: FileHandle, done: &AtomicUsize) -> Vec<Promise> {
    let mut promises = Vec::new();
    for n in 0.. {
        let mut name = format!("f{n}");
        let Ok(made) = c.create(&dir, name.as_bytes(), CreateHow::Guarded(mode(0o644))) else { break };
        let file = made.object.unwrap();
        let byte = n as u8;
        let written = c.write(&file, 0, &[byte; 4096], StableHow::FileSync).is_ok();
        if !written {
            break;
        }
        if n % 3 == 1 {
            let to = format!("moved{n}");
            if c.rename((&dir, name.as_bytes()), (&dir, to.as_bytes())).is_err() {
                break;
            }
            promises.push(Promise { dir, name, file: None });
            name = to;
        }
        if n % 3 == 2 {
            let link = format!("link{n}");
            if c.link(&file, &dir, link.as_bytes()).is_err() {
                break;
            }
            promises.push(Promise { dir, name: link, file: Some((file, byte)) });
            if c.remove(&dir, name.as_bytes()).is_err() {
                break;
            }
            promises.push(Promise { dir, name, file: None });
        } else {
            promises.push(Promise { dir, name, file: Some((file, byte)) });
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    promises
}

/// Returns the first acknowledged state that is not there any more.
fn broken(c: &mut Client, promises: &[Promise]) -> Option<String> {
    promises.iter().find_map(|promise| {
        let found = c.lookup(&promise.dir, promise.name.as_bytes());
        let Some((file, byte)) = promise.file else {
            return found.is_ok().then(|| format!("{} is back", promise.name));
        };
        match found {
            Ok(found) if found.object == file => {}
            Ok(_) => return Some(format!("{} leads to another file", promise.name)),
            Err(failed) => return Some(format!("{} is lost: {}", promise.name, failed.status)),
        }
        // The handle is the one from before the cut.
        let kept = c.read(&file, 0, 4096).is_ok_and(|read| read.data == [byte; 4096]);
        (!kept).then(|| format!("the data of {} is lost", promise.name))
    })
}

/// The cache between clients and the array.
#[derive(Clone, Copy, PartialEq)]
enum Cached {
    No,
    Yes,
    /// A cache whose mode changes all the time.
    Switching,
}

/// Cuts the power under load and checks the acknowledged states. Returns `None` if this machine cannot emulate an
/// array.
fn cut(fs: &'static str, seed: &str, fault: Option<&str>, cached: Cached) -> Option<Result<usize, String>> {
    let array = Array::new(fs)?;
    let serve = if cached == Cached::No { array.serve().plain() } else { array.serve().cached() };
    let mut server = serve.start();
    let root = server.connect().root();
    let clients = 8;
    let dirs: Vec<_> =
        (0..clients).map(|n| server.connect().new_dir(&root, format!("d{n}").as_bytes(), 0o755)).collect();
    if let Some(fault) = fault {
        array.ask(&["inject", fault]);
    }
    let (done, start) = (AtomicUsize::new(0), Barrier::new(clients));
    let promises: Vec<Promise> = std::thread::scope(|scope| {
        let (server, done, start) = (&server, &done, &start);
        let working = dirs.iter().map(|dir| {
            scope.spawn(move || {
                start.wait();
                work(server.connect(), *dir, done)
            })
        });
        let working: Vec<_> = working.collect();
        // If all threads have ended early, one of them reports the reason below.
        let mut modes = ["pass-through", "write-back", "write-through", "write-back"].into_iter().cycle();
        while done.load(Ordering::Relaxed) < 200 && !working.iter().all(|thread| thread.is_finished()) {
            match modes.next().filter(|_| cached == Cached::Switching) {
                Some(mode) => _ = server.ask(&["mode", mode]),
                None => std::thread::yield_now(),
            }
        }
        array.cut_power(seed);
        working.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    server.kill();
    if !array.power_on() {
        return Some(Err("the file system cannot be mounted any more".into()));
    }
    server.start();
    let result = match broken(&mut server.connect(), &promises) {
        Some(what) => Err(what),
        None => Ok(promises.len()),
    };
    server.stop();
    Some(result)
}

/// After a kill and a restart, clients may have read data that only the page cache has. A power cut must not take
/// that data back.
#[test]
fn what_was_seen_after_a_crash_survives_a_power_cut() {
    for fs in ["xfs", "ext4"] {
        let Some(array) = Array::new(fs) else { return };
        let mut server = array.serve().plain().start();
        let mut c = server.connect();
        let root = c.root();
        let file = c.new_file(&root, b"file", 0o644);
        c.write(&file, 0, &[1; 4096], StableHow::FileSync).unwrap();
        c.write(&file, 0, &[2; 8192], StableHow::Unstable).unwrap();
        server.kill();
        server.start();
        let seen = server.connect().read(&file, 0, 8192).unwrap().data;
        assert_eq!(seen, [2; 8192]);
        array.cut_power("1");
        server.kill();
        assert!(array.power_on());
        server.start();
        assert_eq!(server.connect().read(&file, 0, 8192).unwrap().data, seen, "{fs}");
        server.stop();
    }
}

fn survives(fs: &'static str, cached: Cached) {
    for seed in ["1", "2"] {
        if let Some(result) = cut(fs, seed, None, cached) {
            assert!(result.as_ref().is_ok_and(|kept| *kept >= 200), "{fs}, seed {seed}: {result:?}");
        }
    }
}

#[test]
fn acknowledged_changes_survive_a_power_cut_on_xfs() {
    survives("xfs", Cached::No);
}

#[test]
fn acknowledged_changes_survive_a_power_cut_on_ext4() {
    survives("ext4", Cached::No);
}

/// The cache files are on another disk, whose page cache survives the cut. Only the array loses data.
#[test]
fn acknowledged_changes_survive_a_power_cut_behind_a_cache() {
    survives("xfs", Cached::Yes);
    survives("ext4", Cached::Yes);
}

/// A change that is being logged when the mode changes is as durable as any other change.
#[test]
fn acknowledged_changes_survive_a_power_cut_while_the_mode_changes() {
    survives("xfs", Cached::Switching);
    survives("ext4", Cached::Switching);
}

#[test]
fn a_disk_whose_flushes_do_nothing_is_found_out() {
    if let Some(result) = cut("ext4", "3", Some("flush-noop"), Cached::No) {
        assert!(result.is_err(), "the test cannot tell a loss from none: {result:?}");
    }
}

/// Checks that group commit uses the journal's order and not its fallback.
#[test]
fn one_commit_carries_many_changes_on_xfs_and_ext4() {
    for fs in ["xfs", "ext4"] {
        let Some(array) = Array::new(fs) else { return };
        // With a cache the journal would be committed for checkpoints only.
        let server = array.serve().plain().start();
        let root = server.connect().root();
        std::thread::scope(|scope| {
            for n in 0..16 {
                let server = &server;
                scope.spawn(move || {
                    let mut c = server.connect();
                    let dir = c.new_dir(&root, format!("d{n}").as_bytes(), 0o755);
                    for file in 0..5 {
                        c.new_file(&dir, format!("f{file}").as_bytes(), 0o644);
                    }
                });
            }
        });
        let durability = &server.status()["durability"];
        let (batches, operations) =
            (durability["batches"].as_u64().unwrap(), durability["operations"].as_u64().unwrap());
        assert!(
            operations >= 96 && batches * 2 <= operations,
            "{fs}: {batches} commits for {operations} changes"
        );
    }
}
