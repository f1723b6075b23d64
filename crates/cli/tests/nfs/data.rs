//! Tests of READ, WRITE and COMMIT: every byte, every size, and the promised durability.

use std::os::unix::fs::FileExt;

use forebay_wire::rpc::ReplyHeader;
use forebay_wire::xdr::{Decode, Encode, Reader};

use crate::harness::*;

#[test]
fn reads_return_what_was_written_at_every_size() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let data: Vec<u8> =
        (0..(1 << 20) + 5).map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut end = 0;
    for len in [0, 1, 2, 3, 4, 5, 4095, 4096, 4097, 65_537, 1 << 20] {
        let wrote = c.write(&file, end, &data[..len], StableHow::FileSync).unwrap();
        assert_eq!((wrote.count as usize, wrote.committed), (len, StableHow::FileSync));
        end += len as u64;
        assert_eq!(c.attr(&file).size, end);
        let read = c.read(&file, end - len as u64, len as u32).unwrap();
        assert_eq!(read.data, &data[..len]);
        assert!(read.eof);
        assert_eq!(read.attributes.size, end);
    }
    server.flush();
    assert_eq!(std::fs::metadata(server.data.join("f")).unwrap().len(), end);
}

#[test]
fn eof_is_told_exactly() {
    let server = Serve::new().start_on(|data| std::fs::write(data.join("f"), "0123456789").unwrap());
    let mut c = server.connect();
    let root = c.root();
    let file = c.find(&root, b"f");
    let mut check = |offset, count, data: &[u8], eof| {
        let read = c.read(&file, offset, count).unwrap();
        assert_eq!((&read.data[..], read.eof), (data, eof), "{count} at {offset}");
    };
    check(0, 9, b"012345678", false);
    check(0, 10, b"0123456789", true);
    check(0, 11, b"0123456789", true);
    check(0, u32::MAX, b"0123456789", true);
    check(9, 1, b"9", true);
    check(10, 1, b"", true);
    check(0, 0, b"", false);
    check(10, 0, b"", true);
    check(1 << 40, 5, b"", true);
    check(u64::MAX, u32::MAX, b"", true);
}

/// Returns the byte at offset `at` in a file of [`streamed`].
fn streamed_byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Reads several places at one time on one connection.
fn read_all(c: &mut Client, file: &FileHandle, places: &[(u64, u32)]) -> Vec<ReadDone> {
    let mut sent = Vec::new();
    for (offset, count) in places {
        let mut args = Vec::new();
        ReadArgs { file: *file, offset: *offset, count: *count }.encode(&mut args);
        let call = c.call_bytes((PROGRAM, VERSION, Procedure::Read as u32), &args);
        sent.push(c.xid);
        c.send(&call);
    }
    let mut done: Vec<Option<ReadDone>> = places.iter().map(|_| None).collect();
    for _ in places {
        let reply = c.receive().unwrap();
        let mut reader = Reader::new(&reply);
        let header = ReplyHeader::decode(&mut reader).unwrap();
        let place = sent.iter().position(|xid| *xid == header.xid).unwrap();
        done[place] = Some(ReadDone::decode(reader.rest()).unwrap());
    }
    done.into_iter().map(Option::unwrap).collect()
}

#[test]
fn large_reads_are_right_whether_in_memory_or_not() {
    const SIZE: u64 = (5 << 20) + 70_002;
    let data: Vec<u8> = (0..SIZE).map(streamed_byte).collect();
    let server = Serve::new().plain().start_on(|dir| std::fs::write(dir.join("f"), &data).unwrap());
    let on_disk = std::fs::File::open(server.data.join("f")).unwrap();
    on_disk.sync_all().unwrap();
    let mut c = server.connect();
    let root = c.root();
    let file = c.find(&root, b"f");
    let mut places: Vec<_> = (0..6).map(|n| (n << 20, 1 << 20)).collect();
    places.extend([(1, 1 << 20), (4095, 200_000), (SIZE - 70_000, 70_000), (SIZE - 65_536, 1 << 20)]);
    for evicted in [0..0, 0..SIZE, 1 << 20..2 << 20, (2 << 20) + 4096..(2 << 20) + 8192] {
        if !evicted.is_empty() {
            let len = std::num::NonZeroU64::new(evicted.end - evicted.start);
            rustix::fs::fadvise(&on_disk, evicted.start, len, rustix::fs::Advice::DontNeed).unwrap();
        }
        for (read, (offset, count)) in read_all(&mut c, &file, &places).into_iter().zip(&places) {
            let end = (offset + u64::from(*count)).min(SIZE);
            assert_eq!(
                (read.data.len() as u64, read.eof),
                (end - offset, end == SIZE),
                "{count} at {offset}"
            );
            assert!(read.data == data[*offset as usize..end as usize], "{count} at {offset}");
            assert_eq!(read.attributes.size, SIZE);
        }
    }
}

/// Every reply must have its stated length, and contain bytes of the file or, behind the new end, zeros.
#[test]
fn a_file_cut_off_while_its_data_is_on_the_way() {
    const SIZE: u64 = 4 << 20;
    let data: Vec<u8> = (0..SIZE).map(streamed_byte).collect();
    let server = Serve::unsquashed().plain().start_on(|dir| std::fs::write(dir.join("f"), &data).unwrap());
    let (mut c, mut other) = (server.connect(), server.connect());
    let root = c.root();
    let file = c.find(&root, b"f");
    for cut in [0, 4096, (1 << 20) + 5] {
        other.setattr(&file, size(SIZE)).unwrap();
        assert_eq!(other.write(&file, 0, &data[..1 << 20], StableHow::FileSync).unwrap().count, 1 << 20);
        std::thread::scope(|scope| {
            scope.spawn(|| other.setattr(&file, size(cut)).unwrap());
            let places: Vec<_> = (0..40).map(|n| ((n % 4) << 20, 1 << 20)).collect();
            for (read, (offset, _)) in read_all(&mut c, &file, &places).into_iter().zip(&places) {
                let end = offset + read.data.len() as u64;
                assert!(end <= SIZE && end <= read.attributes.size.max(*offset));
                let right = |(at, byte): (u64, &u8)| *byte == 0 || *byte == streamed_byte(at);
                assert!((*offset..).zip(&read.data).all(right), "at {offset}");
            }
        });
        assert_eq!(c.attr(&file).size, cut);
    }
}

#[test]
fn no_reply_is_larger_than_promised() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.setattr(&file, size(5 << 20)).unwrap();
    let max = c.fsinfo(&root).unwrap().rtmax;
    let read = c.read(&file, 0, u32::MAX).unwrap();
    assert_eq!((read.data.len() as u32, read.eof), (max, false));
}

#[test]
fn sparse_files_beyond_four_gibibytes() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let places = [0u64, (4 << 30) - 2, (4 << 30) + 4096, 1 << 40, (1 << 43) + 12345];
    for (n, place) in places.into_iter().enumerate() {
        c.write(&file, place, &[n as u8 + 1; 4], StableHow::FileSync).unwrap();
        assert_eq!(c.attr(&file).size, place + 4);
    }
    for (n, place) in places.into_iter().enumerate() {
        assert_eq!(c.read(&file, place, 4).unwrap().data, [n as u8 + 1; 4]);
    }
    assert_eq!(c.read(&file, 4, 100).unwrap().data, [0; 100]);
    assert!(c.attr(&file).used < 1 << 20);
    let last = i64::MAX as u64;
    for (offset, len) in [(last, 1), (last - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 8)] {
        let status = c.write(&file, offset, &vec![1; len], StableHow::FileSync).status();
        assert_eq!(status, Nfsstat3::Fbig, "{len} at {offset}");
    }
}

#[test]
fn writes_report_the_attributes_around_them() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    for stable in [StableHow::Unstable, StableHow::DataSync, StableHow::FileSync] {
        let before = c.attr(&file);
        let wrote = c.write(&file, before.size, b"more", stable).unwrap();
        let after = c.attr(&file);
        assert_wcc(&wrote.file_wcc, &before, &after);
        assert_eq!(after.size, before.size + 4);
        assert!(wrote.committed >= stable, "at least what was asked for");
        let committed = c.commit(&file, 0, 0).unwrap();
        let now = c.attr(&file);
        assert_wcc(&committed.file_wcc, &after, &now);
        assert_eq!(committed.verf, wrote.verf, "one verifier in every reply");
    }
}

#[test]
fn wrong_kinds_of_objects() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o777);
    assert_eq!(c.read(&dir, 0, 1).status(), Nfsstat3::Isdir);
    assert_eq!(c.write(&dir, 0, b"x", StableHow::FileSync).status(), Nfsstat3::Isdir);
    assert_eq!(c.commit(&dir, 0, 0).status(), Nfsstat3::Isdir);
}

#[test]
fn refused_writes_change_nothing() {
    needs_root!();
    let server = Serve::new().flags(&["--squash", "none"]).start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.write(&file, 0, b"data", StableHow::FileSync).unwrap();
    let before = c.attr(&file);
    c.user = user(1000, 1000, &[]);
    for stable in [StableHow::Unstable, StableHow::FileSync] {
        let failed = c.write(&file, 0, b"x", stable).unwrap_err();
        assert_eq!(failed.status, Nfsstat3::Acces);
        assert_wcc(&failed.attributes, &before, &before);
    }
    assert_eq!(c.commit(&file, 0, 0).status(), Nfsstat3::Acces);
    assert_eq!(c.attr(&file), before);
    let secret = {
        c.user = user(0, 0, &[]);
        c.new_file(&root, b"s", 0o600)
    };
    c.user = user(1000, 1000, &[]);
    let failed = c.read(&secret, 0, 1).unwrap_err();
    assert_eq!(failed.status, Nfsstat3::Acces);
}

#[test]
fn a_full_file_system_is_told_in_time() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext4", 16 << 20) else { return };
    let server = disk.serve().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let chunk = vec![7; 1 << 20];
    let (mut at, mut failed) = (0u64, None);
    // 64 MiB exceed the free space.
    for _ in 0..64 {
        match c.write(&file, at, &chunk, StableHow::FileSync) {
            Ok(wrote) => at += u64::from(wrote.count),
            Err(error) => {
                failed = Some(error.status);
                break;
            }
        }
    }
    assert_eq!(failed, Some(Nfsstat3::Nospc));
    assert_eq!(c.attr(&file).size, at, "what was acknowledged is there");
    let last = c.read(&file, at - 4, 4).unwrap();
    assert_eq!((last.data, last.eof), (vec![7; 4], true));
    // The file system must work normally afterwards.
    c.remove(&root, b"f").unwrap();
    let file = c.new_file(&root, b"g", 0o644);
    c.write(&file, 0, &chunk, StableHow::FileSync).unwrap();
}

/// A limit on the size of files (setrlimit(2)) is reported to the client. By default its signal would end the
/// process.
#[test]
fn a_limit_on_file_sizes_does_not_end_the_server() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let server = Serve::new().plain().start();
    let pid = Pid::from_raw(server.pid() as i32);
    let limit = Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
    prlimit(pid, Resource::Fsize, limit).unwrap();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.write(&file, 0, b"data", StableHow::FileSync).unwrap();
    assert_eq!(c.write(&file, 1 << 20, b"data", StableHow::FileSync).status(), Nfsstat3::Fbig);
    assert_eq!(c.setattr(&file, size(2 << 20)).status(), Nfsstat3::Fbig);
    assert_eq!(c.attr(&file).size, 4);
}

#[test]
fn many_connections_write_one_file_side_by_side() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    const WRITERS: u64 = 8;
    const BLOCKS: u64 = 40;
    const BLOCK: u64 = 3000;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let mut c = server.connect();
            scope.spawn(move || {
                for block in 0..BLOCKS {
                    let stable = if block % 3 == 0 { StableHow::FileSync } else { StableHow::Unstable };
                    let data = vec![(writer * BLOCKS + block) as u8; BLOCK as usize];
                    let wrote = c.write(&file, (block * WRITERS + writer) * BLOCK, &data, stable).unwrap();
                    // The reply has attributes before the write only if no other client wrote meanwhile.
                    let wcc = wrote.file_wcc;
                    if let (Some(before), Some(after)) = (wcc.before, wcc.after) {
                        assert!(before.size <= after.size && before.ctime <= after.ctime);
                    }
                }
                c.commit(&file, 0, 0).unwrap();
            });
        }
    });
    server.flush();
    let on_disk = std::fs::File::open(server.data.join("f")).unwrap();
    assert_eq!(on_disk.metadata().unwrap().len(), WRITERS * BLOCKS * BLOCK);
    for writer in 0..WRITERS {
        for block in 0..BLOCKS {
            let mut data = vec![0; BLOCK as usize];
            on_disk.read_exact_at(&mut data, (block * WRITERS + writer) * BLOCK).unwrap();
            assert!(data.iter().all(|byte| *byte == (writer * BLOCKS + block) as u8));
        }
    }
}
