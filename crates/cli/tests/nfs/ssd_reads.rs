//! Tests of READs that need the cache devices: many at once, in order or not, with good and bad copies.

use std::fs::File;
use std::os::unix::fs::FileExt;

use forebay_wire::nfs3;
use forebay_wire::nfs4::{self, Bitmap, GetattrArgs, HandleArgs, Nfsstat4, Op, OpResult, Stateid, attr};
use forebay_wire::rpc::ReplyHeader;
use forebay_wire::xdr::{Decode, Encode, Reader};

use crate::harness::*;
use crate::nfs4::Client4;

/// The file is larger than the 16 MiB of memory that `cached` permits.
const BLOCKS: u64 = 6 * 1024;
const BLOCK: u64 = 4096;

fn contents(block: u64) -> [u8; BLOCK as usize] {
    let mut contents = [0; BLOCK as usize];
    for (n, word) in contents.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(block << 16 | n as u64).to_le_bytes());
    }
    contents
}

/// Returns a server with a file that is on the cache devices and in the directory, but not in memory.
fn server_with_file() -> (Server, FileHandle) {
    let mut server = Serve::unsquashed().cached().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    for block in (0..BLOCKS).step_by(64) {
        let data: Vec<u8> = (block..block + 64).flat_map(contents).collect();
        c.write(&file, block * BLOCK, &data, StableHow::FileSync).unwrap();
    }
    server.flush();
    server.stop();
    server.start();
    (server, file)
}

/// Reads random places of the file, with `depth` calls of `len` bytes in flight, and checks the data.
fn read_all_over(server: &Server, file: &FileHandle, seed: u64, depth: usize, len: u64) {
    let mut c = server.connect();
    let call = (nfs3::PROGRAM, nfs3::VERSION, Procedure::Read as u32);
    let mut waiting = std::collections::HashMap::new();
    let mut at = seed;
    for n in 0..1000 + depth {
        if n < 1000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let offset = (at >> 30) % (BLOCKS * BLOCK - len);
            let args = ReadArgs { file: *file, offset, count: len as u32 };
            let mut bytes = Vec::new();
            args.encode(&mut bytes);
            let record = c.call_bytes(call, &bytes);
            waiting.insert(u32::from_be_bytes(record[..4].try_into().unwrap()), offset);
            c.send(&record);
        }
        if n >= depth {
            let reply = c.receive().unwrap();
            let mut reader = Reader::new(&reply);
            let header = ReplyHeader::decode(&mut reader).unwrap();
            let offset = waiting.remove(&header.xid).unwrap();
            let read = ReadRes::decode(&mut reader).unwrap().unwrap();
            let (first, end) = (offset / BLOCK, (offset + len).div_ceil(BLOCK));
            let all: Vec<u8> = (first..end).flat_map(contents).collect();
            let from = (offset - first * BLOCK) as usize;
            assert!(read.data == &all[from..from + len as usize], "{len} bytes at {offset}");
            assert_eq!(read.eof, offset + len == BLOCKS * BLOCK);
        }
    }
    assert!(waiting.is_empty());
}

/// Reads random places of the file by COMPOUNDs of NFSv4 and checks the data. In every fourth one, a result follows the
/// data.
fn read_all_over_by_compounds(server: &Server, file: &FileHandle, seed: u64, len: u64) {
    let mut c = Client4::connect(server, format!("reader {seed}").as_bytes());
    let handle = HandleArgs { object: forebay_wire::Opaque(file.as_bytes()) };
    let mut at = seed;
    for n in 0..500 {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let offset = (at >> 30) % (BLOCKS * BLOCK - len);
        let read = nfs4::ReadArgs { stateid: Stateid::ANONYMOUS, offset, count: len as u32 };
        let size = GetattrArgs { request: Bitmap::of(&[attr::SIZE]) };
        let all = [Op::Putfh(handle), Op::Read(read), Op::Getattr(size)];
        let operations = if n % 4 == 0 { &all[..] } else { &all[..2] };
        c.run(operations, |status, results| {
            assert_eq!((status, results.len()), (Nfsstat4::Ok, operations.len()));
            let OpResult::Read(Ok(read)) = results[1] else { panic!("{:?}", results[1]) };
            let (first, end) = (offset / BLOCK, (offset + len).div_ceil(BLOCK));
            let all: Vec<u8> = (first..end).flat_map(contents).collect();
            let from = (offset - first * BLOCK) as usize;
            assert!(read.data == &all[from..from + len as usize], "{len} bytes at {offset}");
            assert_eq!(read.eof, offset + len == BLOCKS * BLOCK);
        });
    }
}

fn from_ssd(server: &Server) -> u64 {
    server.status()["pool"]["counters"]["blocks_read_ssd"].as_u64().unwrap()
}

fn profiled_reads(server: &Server) -> u64 {
    let activity: serde_json::Value = serde_json::from_str(&server.ask(&["profile", "--json"])).unwrap();
    activity["total"]["operations"]["read"].as_u64().unwrap()
}

#[test]
fn many_reads_of_the_cache_devices_at_once_bring_what_was_written() {
    let (server, file) = server_with_file();
    std::thread::scope(|scope| {
        for (seed, (depth, len)) in
            [(1, 4096), (40, 4096), (40, 5000), (8, 60_000), (4, 300_000)].iter().enumerate()
        {
            let (server, file) = (&server, &file);
            scope.spawn(move || read_all_over(server, file, seed as u64, *depth, *len));
        }
    });
    assert!(from_ssd(&server) > 0, "they were not answered from memory");
    assert_eq!(
        profiled_reads(&server),
        5 * 1000,
        "every READ is in the profile once, wherever it was carried out"
    );
}

#[test]
fn compounds_read_the_cache_devices() {
    let (server, file) = server_with_file();
    std::thread::scope(|scope| {
        for (seed, len) in [4096, 5000, 60_000, 300_000].into_iter().enumerate() {
            let (server, file) = (&server, &file);
            scope.spawn(move || read_all_over_by_compounds(server, file, seed as u64, len));
        }
    });
    assert!(from_ssd(&server) > 0, "they were not answered from memory");
    let status = server.status();
    let procedures = status["procedures"].as_array().unwrap();
    let read = procedures.iter().find(|one| one["name"] == "NFS4.READ").unwrap();
    assert_eq!(read["count"], 4 * 500, "every READ is counted");
    assert_eq!(profiled_reads(&server), 4 * 500, "and is in the profile once");
}

#[test]
fn copies_that_rot_while_they_are_read_are_read_from_the_directory() {
    let (server, file) = server_with_file();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _done = DoneAtEnd(&done);
            // Every third block of both devices is damaged, except near the superblocks.
            for cache in server.caches() {
                let device = File::options().write(true).open(cache).unwrap();
                for block in (512..15 * 1024).step_by(3) {
                    device.write_all_at(b"rotten", block * BLOCK + 77).unwrap();
                }
            }
        });
        scope.spawn(|| read_all_over_by_compounds(&server, &file, 1000, 4096));
        for seed in 0..3 {
            let (server, file, done) = (&server, &file, &done);
            scope.spawn(move || {
                let mut rounds = 0;
                while rounds < 2 || !done.load(std::sync::atomic::Ordering::SeqCst) {
                    read_all_over(server, file, seed * 100 + rounds, 32, 4096);
                    rounds += 1;
                }
            });
        }
    });
    read_all_over(&server, &file, 7, 32, 4096);
}
