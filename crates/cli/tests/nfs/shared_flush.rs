//! Tests that cache files on one file system share a flush (crates/disk/src/barrier.rs). A power cut of the drive
//! under them must not lose acknowledged writes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::harness::*;

const CLIENTS: u8 = 4;
const BLOCK: u64 = 4096;

/// Writes block after block until there is no answer or a refusal. Returns the number of acknowledged blocks.
fn write_on(mut c: Client, file: FileHandle, byte: u8, done: &AtomicU64) -> u64 {
    for n in 0.. {
        let answer = c.answer_to_write(&file, n * BLOCK, &[byte; BLOCK as usize]);
        if answer.is_none_or(|answer| answer.is_err()) {
            return n;
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    unreachable!("there is no end to the numbers")
}

/// Makes the drive with both cache files, and the slow disks, lose their unflushed data, and kills the server.
fn cut(fs: &'static str, seed: &str) {
    let (Some(drive), Some(disks)) = (Array::new(fs), Array::new("ext4")) else { return };
    // The drive is as fast as an SSD, but slow enough that its cache is not empty at once.
    drive.ask(&["inject", "slow", "--factor", "0.1"]);
    let caches = ["a", "b"].map(|name| drive.at.join(name).to_str().unwrap().to_owned());
    let flags =
        ["--mode", "write-back", "--cache-size", "64MiB", "--cache", &caches[0], "--cache", &caches[1]];
    let mut server = disks.serve().flags(&flags).start();
    let root = server.connect().root();
    let files: Vec<_> = (0..CLIENTS)
        .map(|n| (server.connect().new_file(&root, &[b'a' + n], 0o644), n + 1, server.connect()))
        .collect();
    let done = AtomicU64::new(0);
    let acknowledged: Vec<_> = std::thread::scope(|scope| {
        let writing = files.into_iter().map(|(file, byte, client)| {
            let done = &done;
            scope.spawn(move || (file, byte, write_on(client, file, byte, done)))
        });
        let writing: Vec<_> = writing.collect();
        while done.load(Ordering::Relaxed) < 1000 && !writing.iter().all(|thread| thread.is_finished()) {
            // A wait that only yields would take the processor time that the server needs.
            std::thread::sleep(Duration::from_millis(1));
        }
        drive.cut_power(seed);
        disks.cut_power(seed);
        server.kill();
        writing.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(drive.power_on() && disks.power_on(), "{fs}, seed {seed}");
    server.start();
    assert!(done.into_inner() >= 1000, "{fs}, seed {seed}: writes were refused before the cut");
    let mut c = server.connect();
    for (file, byte, blocks) in acknowledged {
        for n in 0..blocks {
            let data = c.read(&file, n * BLOCK, BLOCK as u32).unwrap().data;
            assert!(data == [byte; BLOCK as usize], "{fs}, seed {seed}: block {n} of {blocks} is lost");
        }
    }
    server.stop();
}

#[test]
fn what_is_on_cache_files_of_one_drive_survives_a_power_cut() {
    for fs in ["ext4", "xfs"] {
        ["1", "2"].into_iter().for_each(|seed| cut(fs, seed));
    }
}
