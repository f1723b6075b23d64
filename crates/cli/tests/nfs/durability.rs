//! Tests of durability: acknowledged changes are on the device, one flush of the device covers many acknowledgements,
//! and the write verifier changes when unstable data may have been lost.

use std::path::Path;
use std::sync::Barrier;

use crate::harness::*;

#[test]
fn committed_is_at_least_what_was_asked_for() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let unstable = c.write(&file, 0, b"a", StableHow::Unstable).unwrap();
    assert_eq!(unstable.committed, StableHow::Unstable);
    for stable in [StableHow::DataSync, StableHow::FileSync] {
        let wrote = c.write(&file, 0, b"a", stable).unwrap();
        assert!(wrote.committed >= stable);
        assert_eq!(wrote.verf, unstable.verf);
    }
}

#[test]
fn the_verifier_stays_over_a_clean_stop_and_changes_after_a_crash() {
    let mut server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let mut last = c.write(&file, 0, b"unstable", StableHow::Unstable).unwrap().verf;
    for crash in [false, true, false, true, true] {
        if crash {
            server.kill()
        } else {
            server.stop()
        }
        server.start();
        let mut c = server.connect();
        let verifier = c.commit(&file, 0, 0).unwrap().verf;
        assert_eq!(verifier != last, crash, "crash {crash}");
        for stable in [StableHow::Unstable, StableHow::FileSync] {
            assert_eq!(c.write(&file, 0, b"unstable", stable).unwrap().verf, verifier);
        }
        let status = server.status()["write_verifier"].as_str().unwrap().to_owned();
        assert_eq!(status, format!("{:016x}", u64::from_be_bytes(verifier)));
        last = verifier;
    }
}

#[test]
fn creations_at_once_share_trips_to_the_device() {
    needs_root!();
    // The array is as slow as disks are, because there are no shared flushes on an instant device.
    let Some(array) = Array::new("ext4") else { return };
    let server = array.serve().plain().start();
    let root = server.connect().root();
    let (connections, each) = (64, 5);
    let barrier = Barrier::new(connections);
    std::thread::scope(|scope| {
        for n in 0..connections {
            let (server, barrier) = (&server, &barrier);
            scope.spawn(move || {
                let mut c = server.connect();
                barrier.wait();
                for k in 0..each {
                    c.new_file(&root, format!("{n}-{k}").as_bytes(), 0o644);
                }
            });
        }
    });
    let durability = &server.status()["durability"];
    let (batches, operations) =
        (durability["batches"].as_u64().unwrap(), durability["operations"].as_u64().unwrap());
    assert_eq!(operations, (connections * each) as u64);
    assert!(batches * 2 < operations, "{batches} trips for {operations} creations");
    assert_eq!(durability["failures"], 0);
}

/// Makes a hundred changes of every kind by one client in a directory of its own. Returns when all are acknowledged.
fn change_everything(c: &mut Client, root: &FileHandle, who: u8) {
    let dir = c.new_dir(root, &[b'd', who], 0o755);
    for n in 0..12u8 {
        let file = c.new_file(&dir, &[b'f', n + b'a'], 0o644);
        let data = vec![n; 10_000 + usize::from(n)];
        if n % 2 == 0 {
            c.write(&file, 0, &data, StableHow::FileSync).unwrap();
        } else {
            c.write(&file, 0, &data, StableHow::Unstable).unwrap();
            c.commit(&file, 0, 0).unwrap();
        }
    }
    let file = c.find(&dir, b"fa");
    c.setattr(&file, Sattr3 { mtime: at(1234, 5678), ..mode(0o600) }).unwrap();
    let file = c.find(&dir, b"fb");
    c.setattr(&file, size(5)).unwrap();
    c.symlink(&dir, b"link", b"target").unwrap();
    c.mknod(&dir, b"fifo", MknodData::Fifo(mode(0o600))).unwrap();
    c.link(&file, &dir, b"hard").unwrap();
    c.rename((&dir, b"fc"), (&dir, b"renamed")).unwrap();
    c.rename((&dir, b"fd"), (&dir, b"fe")).unwrap();
    c.remove(&dir, b"ff").unwrap();
    let sub = c.new_dir(&dir, b"sub", 0o700);
    c.rename((&dir, b"fg"), (&sub, b"moved")).unwrap();
    c.new_dir(&dir, b"gone", 0o700);
    c.rmdir(&dir, b"gone").unwrap();
    let exclusive = c.create(&sub, b"exclusive", CreateHow::Exclusive([who; 8])).unwrap();
    c.write(&exclusive.object.unwrap(), 4096, b"end", StableHow::DataSync).unwrap();
}

fn check_everything(dir: &Path) {
    let of = |n: u8| vec![n; 10_000 + usize::from(n)];
    let read = |name: &str| std::fs::read(dir.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let meta = |name: &str| std::fs::symlink_metadata(dir.join(name)).unwrap();
    assert_eq!(read("fa"), of(0));
    let fa = std::os::unix::fs::MetadataExt::mode(&meta("fa"));
    assert_eq!(fa & 0o7777, 0o600);
    assert_eq!(std::os::unix::fs::MetadataExt::mtime_nsec(&meta("fa")), 5678);
    assert_eq!((read("fb"), read("hard")), (vec![1; 5], vec![1; 5]));
    assert_eq!((read("renamed"), read("fe"), read("sub/moved")), (of(2), of(3), of(6)));
    for (n, name) in [(7, "fh"), (8, "fi"), (9, "fj"), (10, "fk"), (11, "fl")] {
        assert_eq!(read(name), of(n), "{name}");
    }
    assert_eq!(std::fs::read_link(dir.join("link")).unwrap().to_str(), Some("target"));
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&meta("fifo").file_type()));
    assert_eq!(read("sub/exclusive")[4096..], *b"end");
    for name in ["fc", "fd", "ff", "fg", "gone"] {
        assert!(!dir.join(name).exists(), "{name} is back");
    }
}

/// Lets six clients make all kinds of changes at once.
fn change_at_once(server: &Server) {
    let root = server.connect().root();
    std::thread::scope(|scope| {
        for who in b'a'..b'g' {
            scope.spawn(move || change_everything(&mut server.connect(), &root, who));
        }
    });
}

fn check_all(root: &Path) {
    for who in 'a'..'g' {
        check_everything(&root.join(format!("d{who}")));
    }
}

/// Cuts the power right after the last acknowledgement. Unflushed data in the device's cache is lost.
fn power_cut(kind: &'static str) {
    let Some(array) = Array::instant(kind) else { return };
    let mut server = array.serve().plain().start();
    change_at_once(&server);
    array.cut_power("7");
    server.kill();
    assert!(array.power_on(), "the array does not come up again");
    check_all(&array.at);
}

#[test]
fn what_was_acknowledged_survives_a_power_cut_on_ext4() {
    needs_root!();
    power_cut("ext4");
}

#[test]
fn what_was_acknowledged_survives_a_power_cut_on_xfs() {
    needs_root!();
    power_cut("xfs");
}

/// Without a journal no order exists, so every object is synced by itself. The device is copied right after the last
/// acknowledgement, so data that the file system has only in memory is lost.
#[test]
fn what_was_acknowledged_survives_a_power_cut_on_ext2() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext2", 64 << 20) else { return };
    let server = disk.serve().plain().start();
    change_at_once(&server);
    check_all(&disk.after_power_cut(home.path()).at);
}

/// Fast commits make some objects durable before older changes of other objects.
#[test]
fn one_journal_is_relied_on_only_where_it_orders_everything() {
    needs_root!();
    let fast: &[&str] = &["-O", "fast_commit"];
    let cases = [
        ("ext4", &[][..], true),
        ("ext4", fast, false),
        ("ext4", &["-O", "^has_journal"], false),
        ("xfs", &[], true),
    ];
    for (kind, flags, ordered) in cases {
        let home = tempfile::tempdir().unwrap();
        let Some(disk) = LoopDisk::with(home.path(), kind, 320 << 20, flags) else { return };
        let server = disk.serve().start();
        assert_eq!(server.status()["exports"][0]["ordered"], ordered, "{kind} {flags:?}");
    }
}
