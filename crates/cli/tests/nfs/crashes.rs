//! `kill -9` under load, again and again, with cache files harmed while the server runs: nothing acknowledged is lost.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::OFlags;
use rustix::process::Signal;

use crate::harness::*;

fn cached() -> Server {
    Serve::unsquashed().cached().start()
}

/// Kills the server when it goes.
struct Killed<'a>(&'a Server);

impl Drop for Killed<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::KILL);
    }
}

/// Blocks of a file that a client wrote until the server was killed.
struct Load {
    file: FileHandle,
    name: String,
    acknowledged: u64,
}

impl Load {
    /// Writes block after block and waits for each; after `before` of them `harm` is done, and after as many more the
    /// server is killed.
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
            // The writer ends with the server only: also when something here panics.
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

    /// Every block is there; then the file goes.
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

/// One byte of every fourth block but those near the superblocks. Past the page cache, as the server writes: where both
/// meet, the kernel fails the syncs of the page cache's side.
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

/// Puts a new file in the place of one that the server does not use any more.
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
        // The next harm comes to the other file: nothing may be on this one alone.
        server.flush();
        copies.check_directory(&server.data);
        replace_if_lost(&server, &path);
    }
}
