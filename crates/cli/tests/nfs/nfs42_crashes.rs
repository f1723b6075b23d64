//! DEALLOCATE, COPY, CLONE and WRITE of NFSv4 when the server is killed, when the power of its disks is cut, and beside
//! each other.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_wire::Array as List;
use forebay_wire::nfs4::{
    AllocateArgs, CloneArgs, CommitArgs, CopyArgs, CopyRes, Nfsstat4, Op, OpResult, StableHow4, WriteArgs,
};
use rustix::process::Signal;

use crate::harness::{Array, Random, Serve, Server, wait_for};
use crate::nfs4::{Client4, putfh};
use crate::nfs42::{BLOCK, File, connect, open, pattern, served};

/// The contents of a file after the last acknowledged request, and the source of further requests.
struct Expected {
    contents: Vec<u8>,
    /// True if a COPY is followed by a COMMIT. With a write-back cache it is stable by itself.
    commits: bool,
    /// True if the backing file system can share blocks.
    clones: bool,
    random: Random,
}

/// The number of bytes of the file under test.
const LEN: usize = 512 << 10;
/// The kind of request that is a CLONE.
const CLONE: u64 = 4;

impl Expected {
    /// Sends one request. Returns the contents that it is to leave, and true if the server has acknowledged it.
    fn change(&mut self, c: &mut Client4, file: &File, source: &File) -> (Vec<u8>, bool) {
        let offset = self.random.below(LEN as u64 - 70_000);
        let kind = self.random.below(if self.clones { 5 } else { 4 });
        let aligned = kind == CLONE || self.random.below(2) == 0;
        let offset = if aligned { offset / 4096 * 4096 } else { offset };
        let len = 1 + self.random.below(70_000) as usize;
        let len = if kind == CLONE { len.next_multiple_of(BLOCK).min(16 * BLOCK) } else { len };
        let at = offset as usize..offset as usize + len;
        let mut after = self.contents.clone();
        let data = pattern(self.random.below(256) as u8, len);
        let (stateid, stable) = (file.open, StableHow4::FileSync);
        let from = self.random.below(64) * 4096;
        let request = match kind {
            0 => {
                after[at.clone()].copy_from_slice(&data);
                Op::Write(WriteArgs { stateid, offset, stable, data: &data })
            }
            1 => {
                after[at.clone()].copy_from_slice(&pattern(77, LEN)[from as usize..][..len]);
                Op::Copy(CopyArgs {
                    src_stateid: source.open,
                    dst_stateid: stateid,
                    src_offset: from,
                    dst_offset: offset,
                    count: len as u64,
                    consecutive: true,
                    synchronous: true,
                    source_server: List::EMPTY,
                })
            }
            CLONE => {
                after[at.clone()].copy_from_slice(&pattern(77, LEN)[from as usize..][..len]);
                let (src_stateid, dst_stateid) = (source.open, stateid);
                let (src_offset, dst_offset, count) = (from, offset, len as u64);
                Op::Clone(CloneArgs { src_stateid, dst_stateid, src_offset, dst_offset, count })
            }
            _ => {
                after[at].fill(0);
                Op::Deallocate(AllocateArgs { stateid, offset, length: len as u64 })
            }
        };
        let commit = Op::Commit(CommitArgs { offset: 0, count: 0 });
        let mut all = vec![putfh(&source.handle), Op::Savefh(()), putfh(&file.handle), request];
        all.extend(self.commits.then_some(commit));
        let answer = c.try_run(&all, |status, results| {
            if let Some(OpResult::Copy(CopyRes::Ok(done))) = results.get(3) {
                assert_eq!(done.response.count, len as u64);
                assert!(self.commits || done.response.committed == StableHow4::FileSync);
            }
            status
        });
        // An array without power fails requests, one of which may be half done.
        (after, answer == Some(Nfsstat4::Ok))
    }

    /// Checks every block of the file, and takes it as it is.
    #[track_caller]
    fn check(&mut self, found: Vec<u8>, asked: &[u8]) {
        assert_eq!(found.len(), LEN);
        for (n, block) in found.chunks(BLOCK).enumerate() {
            let at = n * BLOCK..(n + 1) * BLOCK;
            let known = block == &self.contents[at.clone()] || block == &asked[at];
            assert!(known, "block {n} is neither old nor new");
        }
        self.contents = found;
    }
}

/// Changes a file until `end` has ended the server, starts the server again, and checks the file.
fn crash(server: &mut Server, expected: &mut Expected, before: u64, end: impl FnOnce(&mut Server)) {
    let mut c = connect(server, b"one");
    let (file, source) = (open(&mut c, b"file"), open(&mut c, b"source"));
    let done = AtomicU64::new(0);
    let (pid, done) = (server.pid(), &done);
    let asked = std::thread::scope(|scope| {
        let expected = &mut *expected;
        let worker = scope.spawn(move || {
            loop {
                let (after, acknowledged) = expected.change(&mut c, &file, &source);
                if !acknowledged {
                    return after;
                }
                expected.contents = after;
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
        wait_for(|| done.load(Ordering::Relaxed) >= before || worker.is_finished());
        assert!(server.pid() == pid && done.load(Ordering::Relaxed) >= before, "a request failed");
        end(server);
        worker.join().unwrap()
    });
    server.start();
    let mut c = connect(server, b"one");
    let found = open(&mut c, b"file").read(&mut c, 0, 2 * LEN);
    expected.check(found, &asked);
    // A client has a bounded number of sessions.
    c.leave();
}

/// Makes the files of [`crash`].
fn prepare(server: &Server, seed: u64, commits: bool, clones: bool) -> Expected {
    let mut c = connect(server, b"one");
    let (file, source) = (open(&mut c, b"file"), open(&mut c, b"source"));
    let contents = pattern(3, LEN);
    file.write(&mut c, 0, &contents);
    source.write(&mut c, 0, &pattern(77, LEN));
    Expected { contents, commits, clones, random: Random(seed) }
}

/// Two clients work on two halves of a file whose border is within a block.
#[test]
fn bytes_beside_a_deallocated_range_stay_as_they_are() {
    const BORDER: usize = 8 * BLOCK + 2000;
    let server = served();
    std::thread::scope(|scope| {
        for (half, at) in [0..BORDER, BORDER..16 * BLOCK].into_iter().enumerate() {
            let server = &server;
            scope.spawn(move || {
                let mut c = connect(server, format!("half{half}").as_bytes());
                let file = open(&mut c, b"file");
                let contents = pattern(9, at.len());
                let random = Random(half as u64);
                let mut own = Expected { contents, commits: false, clones: false, random };
                file.write(&mut c, at.start as u64, &own.contents);
                for n in 0..200 {
                    let from = own.random.below(at.len() as u64) as usize;
                    let len = 1 + own.random.below((at.len() - from) as u64) as usize;
                    // Both halves touch the block of the border often.
                    let from = if n % 2 == half { from } else { [at.len() - len, 0][half] };
                    let offset = (at.start + from) as u64;
                    if n % 3 == 0 {
                        own.contents[from..from + len].fill(0);
                        assert_eq!(file.deallocate(&mut c, offset, len as u64), Nfsstat4::Ok);
                    } else {
                        let data = pattern(n as u8, len);
                        own.contents[from..from + len].copy_from_slice(&data);
                        file.write(&mut c, offset, &data);
                    }
                    let found = file.read(&mut c, at.start as u64, at.len());
                    assert!(found == own.contents, "half {half}, after request {n}");
                }
            });
        }
    });
}

#[test]
fn after_a_kill_each_block_is_as_before_or_as_after_the_last_request() {
    let mut server = Serve::unsquashed().cached().start();
    let mut expected = prepare(&server, 1, false, false);
    for round in 0..12 {
        crash(&mut server, &mut expected, 5 + 3 * round, |server| {
            server.signal(Signal::KILL);
            server.wait();
        });
        if round % 3 == 0 {
            server.flush();
            let found = std::fs::read(server.data.join("file")).unwrap();
            assert!(found == expected.contents, "round {round}");
        }
    }
}

#[test]
fn after_a_power_cut_each_block_is_as_before_or_as_after_the_last_request() {
    needs_root!();
    for (kind, cached) in [("xfs", true), ("ext4", true), ("xfs", false)] {
        let Some(array) = Array::instant(kind) else { return };
        let serve = array.serve();
        let mut server = if cached { serve.cached() } else { serve.plain() }.start();
        let mut expected = prepare(&server, 5, !cached, kind == "xfs");
        for round in 0..3 {
            crash(&mut server, &mut expected, 10 + round, |server| {
                array.cut_power(&format!("{round}"));
                server.kill();
                assert!(array.power_on());
                array.ask(&["inject", "instant"]);
            });
        }
        server.stop();
    }
}
