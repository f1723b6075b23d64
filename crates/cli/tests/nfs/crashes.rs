//! Tests with repeated `kill -9` under load, in which cache files are damaged while the server runs. No acknowledged
//! write may be lost.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::OFlags;

use crate::harness::*;

fn cached() -> Server {
    Serve::unsquashed().cached().start()
}

/// The blocks of a file that a client wrote until the server was killed.
struct Load {
    file: FileHandle,
    name: String,
    acknowledged: u64,
}

impl Load {
    /// Writes block after block, each after the previous reply. Calls `harm` after `before` blocks, and kills the
    /// server after as many further blocks.
    fn until_killed(server: &mut Server, name: String, before: u64, harm: impl FnOnce(&Server)) -> Self {
        let mut c = server.connect();
        let root = c.root();
        let file = c.new_file(&root, name.as_bytes(), 0o644);
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let (server, written) = (&*server, &written);
            scope.spawn(move || {
                while c.try_write(&file, written.load(Ordering::Relaxed) * 4096, &block(written)).is_some() {
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
            // The writer ends only with the server, so the server is killed even if this thread panics.
            let _killed = Killed(server);
            wait_for(|| written.load(Ordering::Relaxed) >= before);
            harm(server);
            let harmed = written.load(Ordering::Relaxed);
            wait_for(|| written.load(Ordering::Relaxed) >= harmed + before);
        });
        server.wait();
        server.start();
        Load { file, name, acknowledged: written.into_inner() }
    }

    /// Checks that every acknowledged block is there, and removes the file.
    #[track_caller]
    fn check_and_remove(self, c: &mut Client) {
        for n in 0..self.acknowledged {
            let read = c.read(&self.file, n * 4096, 4096).unwrap();
            assert_eq!(read.data, [n as u8; 4096], "block {n} of {}", self.acknowledged);
        }
        let root = c.root();
        c.remove(&root, self.name.as_bytes()).unwrap();
    }
}

fn block(number: &AtomicU64) -> [u8; 4096] {
    [number.load(Ordering::Relaxed) as u8; 4096]
}

#[test]
fn crashes_under_load_lose_nothing_that_was_acknowledged() {
    let mut server = cached();
    let mut copies: Vec<Copies> = (0..4).map(|client| Copies::new(100 + client)).collect();
    for round in 0..6 {
        copies[round % 4].change(&mut server.connect(), 80);
        let before = 20 << round;
        let load = Load::until_killed(&mut server, format!("load{round}"), before, |_| {});
        let mut c = server.connect();
        load.check_and_remove(&mut c);
        copies.iter().for_each(|copies| copies.check(&mut c));
    }
}

fn remove(path: &Path) {
    std::fs::remove_file(path).unwrap();
}

fn cut_short(path: &Path) {
    File::options().write(true).open(path).unwrap().set_len(1 << 20).unwrap();
}

#[repr(align(4096))]
struct Aligned([u8; 4096]);

/// Flips one byte of every fourth block, except near the superblocks. The write bypasses the page cache, as the
/// server's writes do. If both kinds of access met, the kernel would fail syncs through the page cache.
fn flip_bits(path: &Path) {
    let direct = OFlags::DIRECT.bits().cast_signed();
    let file = File::options().read(true).write(true).custom_flags(direct).open(path).unwrap();
    let mut block = Aligned([0; 4096]);
    for at in (2 << 20..file.metadata().unwrap().len() - (2 << 20)).step_by(4 * 4096) {
        file.read_exact_at(&mut block.0, at).unwrap();
        block.0[77] ^= 0x55;
        file.write_all_at(&block.0, at).unwrap();
    }
}

/// Replaces a cache file by a new one, if the server does not use the old one any more.
fn replace_if_lost(server: &Server, path: &Path) {
    if server.status()["effective_mode"] == "write-back" {
        return;
    }
    let _ = std::fs::remove_file(path);
    server.ask(&["pool", "add", path.to_str().unwrap()]);
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"some more", 0o644);
    c.write(&file, 0, &[1; 4096], StableHow::FileSync).unwrap();
    wait_for(|| server.status()["effective_mode"] == "write-back");
    c.remove(&root, b"some more").unwrap();
}

#[test]
fn crashes_under_load_with_a_cache_file_harmed_lose_nothing_that_was_acknowledged() {
    let mut server = cached();
    let mut copies = Copies::new(200);
    let harms: [fn(&Path); 3] = [remove, cut_short, flip_bits];
    for round in 0..6 {
        let path = server.caches()[round % 2].clone();
        copies.change(&mut server.connect(), 100);
        let harm = |server: &Server| {
            harms[round % 3](&path);
            let mut c = server.connect();
            copies.change(&mut c, 30);
            copies.check(&mut c);
        };
        let load = Load::until_killed(&mut server, format!("load{round}"), 200, harm);
        let mut c = server.connect();
        copies.check(&mut c);
        load.check_and_remove(&mut c);
        // The next damage affects the second file, so no data may be on this file only.
        server.flush();
        copies.check_directory(&server.data);
        replace_if_lost(&server, &path);
    }
}
