//! Tests of a disk that fails or hangs: errors are reported, the write verifier changes, and other requests are
//! served.

use std::os::fd::AsFd;

use forebay_wire::xdr::Encode;

use crate::harness::*;

const BLOCK: usize = 64 * 1024;

struct Rig {
    // The fields are dropped in this order, because the server must not have the disk open when the array goes away.
    server: Server,
    array: Array,
}

/// Returns a server of a file system that can be made to fail; `None` if this machine cannot emulate an array.
fn rig() -> Option<Rig> {
    let array = Array::instant("ext4")?;
    Some(Rig { server: array.serve().plain().start(), array })
}

impl Rig {
    /// Makes a file of this many bytes, which is on the disk afterwards.
    fn file_on_disk(&self, name: &str, len: usize) -> FileHandle {
        let mut c = self.server.connect();
        let root = c.root();
        let file = c.new_file(&root, name.as_bytes(), 0o644);
        c.write(&file, 0, &vec![1; len], StableHow::FileSync).unwrap();
        file
    }

    /// Makes requests for the blocks of a file fail.
    fn break_file(&self, name: &str, hits: &str) {
        let path = self.server.data.join(name);
        self.array.ask(&["inject", "eio", "--hits", hits, "--file", path.to_str().unwrap()]);
    }

    fn heal(&self) {
        self.array.ask(&["inject", "clear"]);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // A process that waits for the disk cannot be killed.
        self.heal();
    }
}

#[test]
fn a_failed_commit_is_an_error_and_changes_the_verifier() {
    needs_root!();
    let Some(rig) = rig() else { return };
    let file = rig.file_on_disk("f", 4 * BLOCK);
    let mut c = rig.server.connect();
    rig.break_file("f", "write");
    let wrote = c.write(&file, 0, &[2; BLOCK], StableHow::Unstable).unwrap();
    assert_eq!(wrote.committed, StableHow::Unstable);
    assert_eq!(c.commit(&file, 0, 0).status(), Nfsstat3::Io);
    rig.heal();
    // A success now must tell the client by its verifier that its data is lost.
    let committed = c.commit(&file, 0, 0).unwrap();
    assert_ne!(committed.verf, wrote.verf);
    let again = c.write(&file, 0, &[2; BLOCK], StableHow::Unstable).unwrap();
    assert_eq!(again.verf, committed.verf);
    assert_eq!(c.commit(&file, 0, 0).unwrap().verf, again.verf);
    let status = rig.server.status();
    assert_eq!(status["durability"]["failures"], 1);
    assert_eq!(status["health"]["state"], "DEGRADED");
}

#[test]
fn a_failed_stable_write_is_an_error_for_it_alone() {
    needs_root!();
    let Some(rig) = rig() else { return };
    let (bad, good) = (rig.file_on_disk("bad", BLOCK), rig.file_on_disk("good", BLOCK));
    let mut c = rig.server.connect();
    let before = c.write(&good, 0, b"x", StableHow::FileSync).unwrap().verf;
    rig.break_file("bad", "write");
    for (len, stable) in [(1000, StableHow::FileSync), (BLOCK, StableHow::DataSync)] {
        assert_eq!(c.write(&bad, 0, &vec![2; len], stable).status(), Nfsstat3::Io);
        assert_eq!(c.write(&good, 0, &vec![2; len], stable).status(), Nfsstat3::Ok);
    }
    // The writes share one batch.
    std::thread::scope(|scope| {
        for (file, expected) in [(bad, Nfsstat3::Io), (good, Nfsstat3::Ok)] {
            for n in 0..8u64 {
                let mut c = rig.server.connect();
                scope.spawn(move || {
                    let status = c.write(&file, n * 4096, &[3; 4096], StableHow::FileSync).status();
                    assert_eq!(status, expected, "write {n}");
                });
            }
        }
    });
    rig.heal();
    let after = c.write(&bad, 0, &[2; BLOCK], StableHow::FileSync).unwrap().verf;
    assert_ne!(before, after);
}

#[test]
fn a_failed_read_is_an_error() {
    needs_root!();
    let Some(rig) = rig() else { return };
    let file = rig.file_on_disk("f", BLOCK);
    let on_disk = std::fs::File::open(rig.server.data.join("f")).unwrap();
    rustix::fs::fadvise(on_disk.as_fd(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
    rig.break_file("f", "read");
    let mut c = rig.server.connect();
    assert_eq!(c.read(&file, 0, 1000).status(), Nfsstat3::Io);
    rig.heal();
    assert_eq!(c.read(&file, 0, 1000).unwrap().data, [1; 1000]);
}

/// Sends a call whose answer arrives once the disk continues.
fn send(c: &mut Client, procedure: Procedure, args: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    args.encode(&mut bytes);
    let record = c.call_bytes((PROGRAM, VERSION, procedure as u32), &bytes);
    c.send(&record);
    record
}

#[test]
fn a_hanging_disk_holds_up_nobody_who_needs_it_not() {
    needs_root!();
    let Some(rig) = rig() else { return };
    let file = rig.file_on_disk("f", BLOCK);
    let mut looking = rig.server.connect();
    let root = looking.root();
    looking.find(&root, b"f");
    rig.array.ask(&["inject", "hang"]);
    // The number of requests exceeds the number of workers, on several connections.
    let mut waiting: Vec<Client> = (0..4).map(|_| rig.server.connect()).collect();
    for n in 0..300u64 {
        let data = &[7; 512];
        let write =
            WriteArgs { file, offset: n * 512 % 65_536, count: 512, stable: StableHow::FileSync, data };
        send(&mut waiting[n as usize % 4], Procedure::Write, &write);
    }
    for _ in 0..100 {
        looking.attr(&file);
        assert_eq!(looking.find(&root, b"f"), file);
        assert_eq!(looking.access(&file, access::READ).unwrap().access, access::READ);
        looking.read(&file, 0, 100).unwrap();
        looking.fsstat(&root).unwrap();
    }
    rig.heal();
    for n in 0..300 {
        waiting[n % 4].receive().unwrap();
    }
}

#[test]
fn as_many_reads_are_with_the_disks_as_clients_have_sent() {
    needs_root!();
    let Some(array) = Array::instant("xfs") else { return };
    let serve = array.serve().cached().flags(&["--workers", "2"]);
    let rig = Rig { server: serve.start(), array };
    let path = rig.server.data.join("f");
    std::fs::write(&path, vec![1; 20 << 20]).unwrap();
    let on_disk = std::fs::File::open(path).unwrap();
    on_disk.sync_all().unwrap();
    rustix::fs::fadvise(on_disk.as_fd(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut c = rig.server.connect();
    let root = c.root();
    let file = c.find(&root, b"f");
    // The read fills the inode cache.
    c.read(&file, 0, 4096).unwrap();
    // Only reads that wait for disks are counted.
    rig.heal();
    rig.array.ask(&["inject", "hang"]);
    let before = rig.array.reads();
    let read = |n: u64| ReadArgs { file, offset: n << 20, count: 4096 };
    for n in 1..17 {
        send(&mut c, Procedure::Read, &read(n));
    }
    wait_for(|| rig.array.reads() >= before + 16);
    rig.heal();
    for _ in 1..17 {
        c.receive().unwrap();
    }
}

#[test]
fn a_retransmission_of_what_hangs_waits_for_it_and_gets_its_reply() {
    needs_root!();
    let Some(rig) = rig() else { return };
    let (mut c, mut other) = (rig.server.connect(), rig.server.connect());
    let root = c.root();
    rig.array.ask(&["inject", "hang"]);
    let create = CreateArgs { target: name(&root, b"new"), how: CreateHow::Guarded(mode(0o644)) };
    let record = send(&mut c, Procedure::Create, &create);
    wait_for(|| rig.server.status()["inflight"] == 1);
    other.send(&record);
    wait_for(|| rig.server.status()["reply_cache"]["in_progress_hits"] == 1);
    rig.heal();
    let reply = c.receive().unwrap();
    assert_eq!(other.receive().unwrap(), reply);
    assert_eq!(reply[24..28], [0; 4], "made once");
}
