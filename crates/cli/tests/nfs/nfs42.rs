//! NFSv4.2's operations on data: SEEK, ALLOCATE, DEALLOCATE, COPY and CLONE, through the cache and without it.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forebay_wire::Array as List;
use forebay_wire::nfs4::{
    AllocateArgs, Bitmap, CloneArgs, CopyArgs, CopyRes, CreateHow, Fattr, GetDirDelegationArgs, GetattrArgs,
    IoAdviseArgs, NameArgs, Nfsstat4, Nfstime4, Op, OpResult, OpenArgs, OpenClaim, OpenHow, ReadArgs,
    SeekArgs, StableHow4, StateOwner, Stateid, WriteArgs, attr, content, share,
};

use crate::harness::{self, LoopDisk, Serve, Server};
use crate::nfs4::{Client4, putfh};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
pub(crate) const BLOCK: usize = 4096;

/// An open file.
pub(crate) struct File {
    pub(crate) handle: Vec<u8>,
    pub(crate) open: Stateid,
}

/// Connects a client by its name. A client that connects again after a restart ends the grace period.
pub(crate) fn connect(server: &Server, name: &[u8]) -> Client4 {
    Client4::connect_as(server.connect(), 2, name)
}

pub(crate) fn served() -> Server {
    Serve::unsquashed().start()
}

/// Opens a file in the root, and makes it if need be.
pub(crate) fn open(c: &mut Client4, name: &[u8]) -> File {
    let how = OpenHow::Create(CreateHow::Unchecked(Fattr::default()));
    let (open, handle) = c.open(name, how, 0).unwrap();
    File { handle, open }
}

impl File {
    pub(crate) fn write(&self, c: &mut Client4, offset: u64, data: &[u8]) {
        for (n, data) in data.chunks(256 << 10).enumerate() {
            let offset = offset + ((n * 256) << 10) as u64;
            let write = WriteArgs { stateid: self.open, offset, stable: StableHow4::FileSync, data };
            assert_eq!(c.status(&[putfh(&self.handle), Op::Write(write)]), Nfsstat4::Ok);
        }
    }

    pub(crate) fn read(&self, c: &mut Client4, mut offset: u64, len: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < len {
            let count = (len - all.len()).min(256 << 10) as u32;
            let read = Op::Read(ReadArgs { stateid: self.open, offset, count });
            let eof = c.run(&[putfh(&self.handle), read], |_, results| match results[1] {
                OpResult::Read(Ok(read)) => {
                    all.extend_from_slice(read.data);
                    offset += read.data.len() as u64;
                    read.eof
                }
                ref other => panic!("READ: {other:?}"),
            });
            if eof {
                break;
            }
        }
        all
    }

    fn seek(&self, c: &mut Client4, offset: u64, content: u32) -> Result<(u64, bool), Nfsstat4> {
        let seek = Op::Seek(SeekArgs { stateid: self.open, offset, content });
        c.run(&[putfh(&self.handle), seek], |status, results| match results[1] {
            OpResult::Seek(Ok(found)) => Ok((found.offset, found.eof)),
            _ => Err(status),
        })
    }

    fn args(&self, offset: u64, length: u64) -> AllocateArgs {
        AllocateArgs { stateid: self.open, offset, length }
    }

    fn allocate(&self, c: &mut Client4, offset: u64, length: u64) -> Nfsstat4 {
        c.status(&[putfh(&self.handle), Op::Allocate(self.args(offset, length))])
    }

    pub(crate) fn deallocate(&self, c: &mut Client4, offset: u64, length: u64) -> Nfsstat4 {
        c.status(&[putfh(&self.handle), Op::Deallocate(self.args(offset, length))])
    }

    /// Returns the attributes size, space_used and space_freed, and clone_blksize.
    fn attributes(&self, c: &mut Client4) -> (u64, u64, u64, u32) {
        let request = Bitmap::of(&[attr::SIZE, attr::SPACE_USED, attr::SPACE_FREED, attr::CLONE_BLKSIZE]);
        let getattr = Op::Getattr(GetattrArgs { request });
        c.run(&[putfh(&self.handle), getattr], |_, results| match results[1] {
            OpResult::Getattr(Ok(got)) => {
                let got = got.attributes.attributes().unwrap();
                let clone = got.clone_blksize.unwrap();
                (got.size.unwrap(), got.space_used.unwrap(), got.space_freed.unwrap(), clone)
            }
            ref other => panic!("GETATTR: {other:?}"),
        })
    }
}

/// Sends a COPY. Returns the bytes copied and their durability.
fn copy(
    c: &mut Client4,
    (from, src_offset): (&File, u64),
    (to, dst_offset): (&File, u64),
    count: u64,
) -> Result<(u64, StableHow4), Nfsstat4> {
    let args = CopyArgs {
        src_stateid: from.open,
        dst_stateid: to.open,
        src_offset,
        dst_offset,
        count,
        consecutive: false,
        synchronous: false,
        source_server: List::EMPTY,
    };
    let all = [putfh(&from.handle), Op::Savefh(()), putfh(&to.handle), Op::Copy(args)];
    c.run(&all, |status, results| match results.get(3) {
        Some(OpResult::Copy(CopyRes::Ok(done))) => {
            assert!(done.requirements.synchronous && done.response.callback_id.is_none());
            Ok((done.response.count, done.response.committed))
        }
        _ => Err(status),
    })
}

/// Copies all of a range, with as many requests as that takes.
fn copy_all(c: &mut Client4, (from, src): (&File, u64), (to, dst): (&File, u64), count: u64) {
    let mut done = 0;
    while done < count {
        let (len, _) = copy(c, (from, src + done), (to, dst + done), count - done).unwrap();
        assert!(len > 0);
        done += len;
    }
    assert_eq!(done, count);
}

fn clone(
    c: &mut Client4,
    (from, src_offset): (&File, u64),
    (to, dst_offset): (&File, u64),
    count: u64,
) -> Nfsstat4 {
    let args = CloneArgs { src_stateid: from.open, dst_stateid: to.open, src_offset, dst_offset, count };
    c.status(&[putfh(&from.handle), Op::Savefh(()), putfh(&to.handle), Op::Clone(args)])
}

/// Returns bytes of which no two neighbouring blocks are equal.
pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 512) as u8 ^ (n / 77_777) as u8 ^ seed | 1).collect()
}

fn allocated(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn seek_finds_data_that_only_the_cache_has() {
    let server = Serve::unsquashed().start_on(|data| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::create(data.join("file")).unwrap();
        file.set_len(4 * MIB).unwrap();
        file.write_all_at(&[1; 65_536], MIB).unwrap();
        file.sync_all().unwrap();
    });
    let mut c = connect(&server, b"one");
    let file = open(&mut c, b"file");
    file.write(&mut c, 2 * MIB + 100, &[2; BLOCK]);
    let (data, hole, k) = (content::DATA, content::HOLE, 1024);
    let check = |c: &mut Client4| {
        for (offset, content, found) in [
            (0, data, MIB),
            (0, hole, 0),
            (MIB, hole, MIB + 64 * k),
            (MIB + 5, data, MIB + 5),
            (MIB + 64 * k, data, 2 * MIB),
            (2 * MIB, hole, 2 * MIB + 8 * k),
            (2 * MIB + 4 * k, data, 2 * MIB + 4 * k),
            (3 * MIB, hole, 3 * MIB),
        ] {
            assert_eq!(file.seek(c, offset, content), Ok((found, false)), "{content} from {offset}");
        }
    };
    check(&mut c);
    assert_eq!(file.seek(&mut c, 2 * MIB + 8 * k, data), Ok((4 * MIB, true)));
    for offset in [4 * MIB, 4 * MIB + 1, u64::MAX] {
        assert_eq!(file.seek(&mut c, offset, data), Err(Nfsstat4::Nxio));
        assert_eq!(file.seek(&mut c, offset, hole), Err(Nfsstat4::Nxio));
    }
    assert_eq!(file.seek(&mut c, 0, 2), Err(Nfsstat4::UnionNotsupp));
    // The size grows with data in the cache. Neighbouring blocks are in the cache and in the file.
    file.write(&mut c, 5 * MIB, &[3; 2 * BLOCK]);
    file.write(&mut c, MIB + 64 * k, &[4; BLOCK]);
    let grown = |c: &mut Client4| {
        assert_eq!(file.seek(c, MIB, hole), Ok((MIB + 68 * k, false)));
        assert_eq!(file.seek(c, 3 * MIB, data), Ok((5 * MIB, false)));
        assert_eq!(file.seek(c, 5 * MIB, hole), Ok((5 * MIB + 8 * k, true)));
        assert_eq!(file.seek(c, 5 * MIB + 8 * k, data), Err(Nfsstat4::Nxio));
    };
    grown(&mut c);
    server.flush();
    grown(&mut c);
}

#[test]
fn a_file_that_is_written_at_1_gib_stays_sparse() {
    let server = served();
    let mut c = connect(&server, b"one");
    let file = open(&mut c, b"file");
    file.write(&mut c, GIB, &[1; BLOCK]);
    server.flush();
    let path = server.data.join("file");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), GIB + BLOCK as u64);
    assert!(allocated(&path) < MIB, "{} bytes are allocated", allocated(&path));
    assert_eq!(file.seek(&mut c, 0, content::DATA), Ok((GIB, false)));
}

/// Deallocates ranges that begin and end within blocks, and checks all bytes after each.
#[test]
fn a_deallocated_range_reads_as_zeros_and_its_space_is_free() {
    let mut server = served();
    let mut c = connect(&server, b"one");
    let mut contents = pattern(1, 2 << 20);
    let file = open(&mut c, b"file");
    file.write(&mut c, 0, &contents);
    let path = server.data.join("file");
    server.flush();
    // Some file systems allocate more than they are asked for, behind the end.
    let before = allocated(&path);
    file.write(&mut c, 0, &contents);
    for (n, (offset, len)) in
        [(5000, 700_000), (800_000, 10), (1 << 20, 4096), (1_200_000, 100_000), (2_000_000, 10 * MIB)]
            .into_iter()
            .enumerate()
    {
        if n == 2 {
            // The rest is not dirty.
            server.flush();
        }
        assert_eq!(file.deallocate(&mut c, offset, len), Nfsstat4::Ok);
        let end = (offset.saturating_add(len) as usize).min(contents.len());
        contents[offset as usize..end].fill(0);
        assert!(file.read(&mut c, 0, 3 << 20) == contents, "{len} bytes at {offset}");
    }
    // A later write goes into the hole, and leaves the rest of it.
    file.write(&mut c, 9000, &[7; 100]);
    contents[9000..9100].fill(7);
    assert!(file.read(&mut c, 0, 3 << 20) == contents);
    assert_eq!(file.deallocate(&mut c, 3 * MIB, MIB), Nfsstat4::Ok, "behind the end");
    assert_eq!(file.attributes(&mut c).0, 2 * MIB, "the size stays");
    server.kill();
    server.start();
    let mut c = connect(&server, b"one");
    let file = open(&mut c, b"file");
    assert!(file.read(&mut c, 0, 3 << 20) == contents, "after a crash");
    server.flush();
    assert!(std::fs::read(&path).unwrap() == contents);
    assert!(allocated(&path) + 700_000 < before, "{} of {before} bytes are allocated", allocated(&path));
    for (offset, len) in [(0, 0), (1, u64::MAX), (u64::MAX, 1)] {
        assert_eq!(file.deallocate(&mut c, offset, len), Nfsstat4::Inval);
        assert_eq!(file.allocate(&mut c, offset, len), Nfsstat4::Inval);
    }
    server.stop();
    assert!(std::fs::read(&path).unwrap() == contents);
}

/// Neither memory, nor the cache devices, nor the log may bring the old bytes back.
#[test]
fn a_deallocated_range_stays_empty_over_eviction_and_the_loss_of_a_device() {
    let mut server = Serve::unsquashed().cached().start();
    let mut c = connect(&server, b"one");
    let file = open(&mut c, b"file");
    file.write(&mut c, 0, &pattern(1, 1 << 20));
    server.flush();
    // Clean copies are in memory and on the devices.
    file.read(&mut c, 0, 1 << 20);
    file.write(&mut c, 100_000, &[9; 50_000]);
    assert_eq!(file.deallocate(&mut c, 50_000, 900_000), Nfsstat4::Ok);
    let mut contents = pattern(1, 1 << 20);
    contents[50_000..950_000].fill(0);
    // More than memory and the devices hold.
    let other = open(&mut c, b"other");
    for n in 0..10 {
        other.write(&mut c, n * 8 * MIB, &pattern(n as u8, 8 << 20));
    }
    assert!(file.read(&mut c, 0, 1 << 20) == contents, "after eviction");
    file.write(&mut c, 60_000, &[5; 5000]);
    contents[60_000..65_000].fill(5);
    assert_eq!(file.deallocate(&mut c, 62_000, 1000), Nfsstat4::Ok);
    contents[62_000..63_000].fill(0);
    std::fs::remove_file(&server.caches()[0]).unwrap();
    server.kill();
    server.start();
    let mut c = connect(&server, b"one");
    let file = open(&mut c, b"file");
    assert!(file.read(&mut c, 0, 1 << 20) == contents, "after the loss of a device");
    server.flush();
    assert!(std::fs::read(server.data.join("file")).unwrap() == contents);
}

#[test]
fn allocated_space_is_there_and_the_file_grows() {
    let mut server = served();
    let mut c = connect(&server, b"one");
    let file = open(&mut c, b"file");
    file.write(&mut c, 1000, b"text");
    assert_eq!(file.allocate(&mut c, 100, 500), Nfsstat4::Ok, "within the file");
    assert_eq!(file.attributes(&mut c).0, 1004);
    assert_eq!(file.allocate(&mut c, 1000, 1000), Nfsstat4::Ok, "within the block");
    assert_eq!(file.attributes(&mut c).0, 2000);
    assert_eq!(file.allocate(&mut c, MIB, MIB), Nfsstat4::Ok);
    let (size, used, freed, _) = file.attributes(&mut c);
    assert_eq!(size, 2 * MIB);
    assert!((MIB..2 * MIB).contains(&used) && freed == used, "{used}, {freed}");
    file.write(&mut c, 2 * MIB - 10, &[1; 20]);
    let mut contents = vec![0; 2 << 20];
    contents[1000..1004].copy_from_slice(b"text");
    contents[(2 << 20) - 10..].fill(1);
    contents.extend([1; 10]);
    assert!(file.read(&mut c, 0, 3 << 20) == contents);
    server.kill();
    server.start();
    let mut c = connect(&server, b"one");
    let file = open(&mut c, b"file");
    assert!(file.read(&mut c, 0, 3 << 20) == contents, "after a crash");
    server.flush();
    let path = server.data.join("file");
    assert!(std::fs::read(&path).unwrap() == contents);
    assert!(allocated(&path) >= MIB);
    assert_eq!(file.allocate(&mut c, u64::MAX >> 1, 1), Nfsstat4::Fbig);
}

#[test]
fn space_that_is_not_there_is_refused_and_accepted_writes_keep_theirs() {
    needs_root!();
    for kind in ["ext4", "xfs"] {
        let home = tempfile::tempdir().unwrap();
        let Some(disk) = LoopDisk::new(home.path(), kind, 400 * MIB) else { return };
        let server = disk.serve().start();
        let mut c = connect(&server, b"one");
        let (file, large) = (open(&mut c, b"file"), open(&mut c, b"large"));
        let contents = pattern(9, 10 << 20);
        file.write(&mut c, 0, &contents);
        assert_eq!(large.allocate(&mut c, 0, GIB), Nfsstat4::Nospc);
        assert_eq!(
            large.allocate(&mut c, GIB, u64::MAX >> 3),
            if kind == "xfs" { Nfsstat4::Nospc } else { Nfsstat4::Fbig }
        );
        assert_eq!(large.attributes(&mut c).0, 0);
        // A failed ALLOCATE takes no space.
        assert_eq!(large.allocate(&mut c, 0, 100 * MIB), Nfsstat4::Ok);
        file.write(&mut c, 10 * MIB, &contents);
        server.flush();
        assert_eq!(large.deallocate(&mut c, 0, 100 * MIB), Nfsstat4::Ok);
        assert!(allocated(&disk.at.join("large")) < MIB);
        let found = std::fs::read(disk.at.join("file")).unwrap();
        assert!(found[..10 << 20] == contents && found[10 << 20..] == contents);
        // XFS prepares space for writes behind the end of a file, but none for holes.
        assert_eq!(file.allocate(&mut c, 20 * MIB, 20 * MIB), Nfsstat4::Ok);
        assert_eq!(file.deallocate(&mut c, 20 * MIB, 20 * MIB), Nfsstat4::Ok);
        // There is room for this, but not for the accepted writes beside it.
        let stat = rustix::fs::statvfs(&disk.at).unwrap();
        let free = stat.f_bfree * stat.f_frsize;
        for n in 0..2 {
            file.write(&mut c, (20 + 10 * n) * MIB, &contents);
        }
        assert_eq!(large.allocate(&mut c, 0, free - 10 * MIB), Nfsstat4::Nospc);
        server.flush();
        assert!(std::fs::read(disk.at.join("file")).unwrap()[30 << 20..] == contents);
    }
}

#[test]
fn the_space_that_is_said_to_be_available_can_be_allocated() {
    needs_root!();
    for kind in ["ext4", "xfs"] {
        let home = tempfile::tempdir().unwrap();
        let Some(disk) = LoopDisk::new(home.path(), kind, 400 * MIB) else { return };
        for serve in [disk.serve().plain(), disk.serve().cached()] {
            let server = serve.start();
            let mut c = connect(&server, b"one");
            let file = open(&mut c, b"file");
            let request = Bitmap::of(&[attr::SPACE_AVAIL]);
            let getattr = Op::Getattr(GetattrArgs { request });
            let available = c.run(&[putfh(&file.handle), getattr], |_, results| match results[1] {
                OpResult::Getattr(Ok(got)) => got.attributes.attributes().unwrap().space_avail.unwrap(),
                ref other => panic!("GETATTR: {other:?}"),
            });
            // The file system needs some for its own structures.
            assert_eq!(file.allocate(&mut c, 0, available - MIB), Nfsstat4::Ok, "{kind}");
            assert_eq!(file.deallocate(&mut c, 0, available - MIB), Nfsstat4::Ok);
        }
    }
}

#[test]
fn a_copy_within_the_server_has_the_same_contents() {
    let mut server = served();
    let mut c = connect(&server, b"one");
    let (from, to) = (open(&mut c, b"from"), open(&mut c, b"to"));
    let contents = pattern(5, 3 << 20);
    from.write(&mut c, 0, &contents);
    assert_eq!(copy(&mut c, (&from, 0), (&to, 0), 3 * MIB + 1), Err(Nfsstat4::Inval), "behind the end");
    assert_eq!(copy(&mut c, (&from, 3 * MIB + 1), (&to, 0), 0), Err(Nfsstat4::Inval));
    assert_eq!(copy(&mut c, (&from, 0), (&from, 4096), 8192), Err(Nfsstat4::Inval), "overlaps");
    assert_eq!(copy(&mut c, (&from, 0), (&to, u64::MAX - 5), 10), Err(Nfsstat4::Fbig));
    assert_eq!(copy(&mut c, (&from, 3 * MIB), (&to, 0), 0).map(|(len, _)| len), Ok(0));
    copy_all(&mut c, (&from, 0), (&to, 0), 3 * MIB);
    assert!(to.read(&mut c, 0, 4 << 20) == contents);
    // Within one file, with offsets that are no multiples of blocks; and behind the end.
    copy_all(&mut c, (&to, 100), (&to, 2 * MIB + 333), 1_000_000);
    copy_all(&mut c, (&from, 5000), (&to, 4 * MIB + 1), 5000);
    let mut expected = contents.clone();
    expected[(2 << 20) + 333..][..1_000_000].copy_from_slice(&contents[100..1_000_100]);
    expected.resize((4 << 20) + 1, 0);
    expected.extend_from_slice(&contents[5000..10_000]);
    assert!(to.read(&mut c, 0, 5 << 20) == expected);
    let (len, committed) = copy(&mut c, (&from, 7), (&to, 7), 0).unwrap();
    expected[7..7 + len as usize].copy_from_slice(&contents[7..7 + len as usize]);
    if server.status()["effective_mode"] == "write-back" {
        assert_eq!(committed, StableHow4::FileSync);
    }
    server.kill();
    server.start();
    let mut c = connect(&server, b"one");
    assert!(open(&mut c, b"to").read(&mut c, 0, 5 << 20) == expected, "after a kill");
    server.flush();
    assert!(std::fs::read(server.data.join("to")).unwrap() == expected);
}

#[test]
fn a_large_copy_is_short_and_goes_on() {
    let server = Serve::unsquashed().start_on(|data| {
        let file = std::fs::File::create(data.join("from")).unwrap();
        file.set_len(150 * MIB).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"end", 150 * MIB).unwrap();
    });
    let mut c = connect(&server, b"one");
    let (from, to) = (open(&mut c, b"from"), open(&mut c, b"to"));
    let (first, _) = copy(&mut c, (&from, 0), (&to, 0), 0).unwrap();
    assert!(first < 100 * MIB, "{first}");
    copy_all(&mut c, (&from, first), (&to, first), 150 * MIB + 3 - first);
    assert_eq!(to.attributes(&mut c).0, 150 * MIB + 3);
    assert_eq!(to.read(&mut c, 150 * MIB - 1, 10), b"\0end");
}

#[test]
fn a_copy_goes_from_one_export_to_another() {
    let exports = "[[export]]\npath='@/data/a'\nname='/a'\n[[export]]\npath='@/data/b'\nname='/b'\n";
    let exports = exports.replace("\n[[", "\n[[export.client]]\nnetworks=['127.0.0.1']\nsquash='none'\n[[");
    let exports = exports + "[[export.client]]\nnetworks=['127.0.0.1']\nsquash='none'\naccess='ro'\n";
    let server = Serve::new().exports(&exports).start_on(|data| {
        ["a", "b"].iter().for_each(|name| std::fs::create_dir(data.join(name)).unwrap());
        std::fs::write(data.join("a/file"), "one").unwrap();
        std::fs::write(data.join("b/file"), "two").unwrap();
    });
    let mut c = connect(&server, b"one");
    let mut find = |dir: &'static [u8]| {
        let name = |name| Op::Lookup(NameArgs { name });
        let all = [Op::Putrootfh(()), name(dir), name(&b"file"[..]), Op::Getfh(())];
        c.run(&all, |_, results| match results.last() {
            Some(OpResult::Getfh(Ok(handle))) => {
                File { handle: handle.object.0.to_vec(), open: Stateid::ANONYMOUS }
            }
            other => panic!("{other:?}"),
        })
    };
    let (a, b) = (find(b"a"), find(b"b"));
    assert_eq!(copy(&mut c, (&b, 1), (&a, 0), 0).map(|(len, _)| len), Ok(2));
    assert_eq!(a.read(&mut c, 0, 10), b"woe");
    assert_eq!(copy(&mut c, (&a, 0), (&b, 0), 0), Err(Nfsstat4::Rofs));
    assert_eq!(b.deallocate(&mut c, 0, 1), Nfsstat4::Rofs);
    assert_eq!(b.allocate(&mut c, 0, 1), Nfsstat4::Rofs);
    assert_eq!(clone(&mut c, (&a, 0), (&b, 0), 0), Nfsstat4::Rofs);
}

#[test]
fn a_clone_shares_contents_that_only_the_cache_had() {
    needs_root!();
    for (kind, flags) in [("xfs", &["-m", "reflink=1"][..]), ("btrfs", &[])] {
        let home = tempfile::tempdir().unwrap();
        let Some(disk) = LoopDisk::with(home.path(), kind, 512 * MIB, flags) else { return };
        let mut server = disk.serve().start();
        let mut c = connect(&server, b"one");
        let (from, to) = (open(&mut c, b"from"), open(&mut c, b"to"));
        assert_eq!(from.attributes(&mut c).3, 4096);
        let contents = pattern(5, (1 << 20) + 100);
        from.write(&mut c, 0, &contents);
        let mut expected = pattern(6, 2 << 20);
        to.write(&mut c, 0, &expected);
        assert_eq!(clone(&mut c, (&from, 4096), (&to, 8192), 65_536), Nfsstat4::Ok);
        expected[8192..8192 + 65_536].copy_from_slice(&contents[4096..4096 + 65_536]);
        assert!(to.read(&mut c, 0, 3 << 20) == expected);
        for (source, target, len) in [(1, 0, 4096), (0, 1, 4096), (0, 0, 4097), (0, 0, 2 * MIB)] {
            assert_eq!(clone(&mut c, (&from, source), (&to, target), len), Nfsstat4::Inval);
        }
        assert_eq!(clone(&mut c, (&from, 0), (&from, 4096), 8192), Nfsstat4::Inval, "overlaps");
        // To the end of the source, and behind the end of the target.
        assert_eq!(clone(&mut c, (&from, 0), (&to, 3 * MIB), 0), Nfsstat4::Ok);
        expected.resize(3 << 20, 0);
        expected.extend_from_slice(&contents);
        assert!(to.read(&mut c, 0, 5 << 20) == expected);
        // The largest file, as a whole.
        let (whole, end) = (open(&mut c, b"whole"), i64::MAX as u64 - 1);
        whole.write(&mut c, end, &[9]);
        for (name, len) in [(&b"rest"[..], 0), (b"all", end + 1)] {
            let shares = open(&mut c, name);
            assert_eq!(clone(&mut c, (&whole, 0), (&shares, 0), len), Nfsstat4::Ok, "{kind}: {len}");
            assert_eq!(shares.attributes(&mut c).0, end + 1);
            assert_eq!(shares.read(&mut c, end, 1), [9]);
        }
        // Later writes to one file do not change the other.
        from.write(&mut c, 5000, &[1; 100]);
        to.write(&mut c, 9000, &[2; 100]);
        expected[9000..9100].fill(2);
        server.kill();
        server.start();
        let mut c = connect(&server, b"one");
        assert!(open(&mut c, b"to").read(&mut c, 0, 5 << 20) == expected, "after a kill");
        server.flush();
        assert!(std::fs::read(disk.at.join("to")).unwrap() == expected);
        server.stop();
    }
}

#[test]
fn the_last_block_of_the_largest_file_is_read() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "xfs", 320 * MIB) else { return };
    let end = i64::MAX as u64;
    let file = std::fs::File::create(disk.at.join("file")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"x", end - 1).unwrap();
    file.sync_all().unwrap();
    for serve in [disk.serve().plain(), disk.serve().cached()] {
        let server = serve.start();
        let mut c = connect(&server, b"one");
        let file = open(&mut c, b"file");
        // More than there is: to a whole block, and behind all offsets that Linux has.
        for (offset, count) in [(end + 1 - 4096, 4096), (end - 1, 100_000)] {
            let read = file.read(&mut c, offset, count);
            assert_eq!((read.len() as u64, read.last()), (end - offset, Some(&b'x')));
        }
        file.write(&mut c, end - 2, b"y");
        server.flush();
        assert_eq!(file.read(&mut c, end - 2, 9), b"yx");
    }
}

#[test]
fn a_file_system_that_cannot_clone_says_so() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let disks = [("xfs", "-mreflink=0"), ("ext4", "-q")].map(|(kind, flag)| {
        let home = home.path().join(kind);
        std::fs::create_dir(&home).unwrap();
        LoopDisk::with(&home, kind, 400 * MIB, &[flag])
    });
    for disk in disks.iter().flatten() {
        let server = disk.serve().start();
        let mut c = connect(&server, b"one");
        let (from, to) = (open(&mut c, b"from"), open(&mut c, b"to"));
        from.write(&mut c, 0, &[1; BLOCK]);
        to.write(&mut c, 0, &[2; BLOCK]);
        assert_eq!(clone(&mut c, (&from, 0), (&to, 0), 0), Nfsstat4::Notsupp);
        assert_eq!(to.read(&mut c, 0, BLOCK), [2; BLOCK]);
    }
}

#[test]
fn a_file_system_that_cannot_reserve_space_says_so() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::with(home.path(), "ext4", 64 * MIB, &["-O", "^extent,^64bit"]) else { return };
    let server = disk.serve().start();
    let mut c = connect(&server, b"one");
    let file = open(&mut c, b"file");
    file.write(&mut c, 0, b"text");
    assert_eq!(file.allocate(&mut c, 0, MIB), Nfsstat4::Notsupp);
    assert_eq!(file.read(&mut c, 0, BLOCK), b"text");
    server.flush();
    assert_eq!(std::fs::read(disk.at.join("file")).unwrap(), b"text");
}

#[test]
fn state_ids_shares_and_access_modes_count() {
    let server = served();
    let (mut one, mut two) = (connect(&server, b"one"), connect(&server, b"two"));
    let how = OpenHow::Create(CreateHow::Unchecked(Fattr::default()));
    let (open, handle) = one.open(b"file", how, share::WRITE).unwrap();
    let writer = File { handle: handle.clone(), open };
    writer.write(&mut one, 0, &[1; 3 * BLOCK]);
    let reading = OpenArgs {
        seqid: 0,
        share_access: share::READ | share::WANT_NO_DELEG,
        share_deny: 0,
        owner: StateOwner { clientid: two.id, owner: forebay_wire::Opaque(b"reader") },
        how: OpenHow::NoCreate,
        claim: OpenClaim::Null(b"file"),
    };
    let open = two.run(&[Op::Putrootfh(()), Op::Open(reading)], |_, results| match results[1] {
        OpResult::Open(Ok(open)) => open.stateid,
        ref other => panic!("OPEN: {other:?}"),
    });
    let file = |open| File { handle: handle.clone(), open };
    let unknown = Stateid { seqid: 1, other: [9; 12] };
    for (open, status) in [
        (open, Nfsstat4::Openmode),
        (Stateid::ANONYMOUS, Nfsstat4::Locked),
        (Stateid::BYPASS, Nfsstat4::Locked),
        (unknown, Nfsstat4::BadStateid),
    ] {
        let file = file(open);
        assert_eq!(file.allocate(&mut two, 0, MIB), status);
        assert_eq!(file.deallocate(&mut two, 0, MIB), status);
        assert_eq!(copy(&mut two, (&file, 0), (&file, 8192), 4096), Err(status));
        assert_eq!(clone(&mut two, (&file, 0), (&file, 8192), 4096), status);
    }
    assert_eq!(file(open).seek(&mut two, 0, content::HOLE), Ok((3 * BLOCK as u64, true)));
    assert_eq!(file(unknown).seek(&mut two, 0, content::HOLE), Err(Nfsstat4::BadStateid));
    assert_eq!(writer.read(&mut one, 0, MIB as usize), [1; 3 * BLOCK]);
    // Neither does the mode of the file allow it.
    let user = Client4::connect_as(server.connect().acting_as(harness::user(7, 7, &[])), 2, b"user");
    let (mut user, free) = (user, self::open(&mut one, b"private"));
    free.write(&mut one, 0, &[1; 3 * BLOCK]);
    let private = File { handle: free.handle.clone(), open: Stateid::ANONYMOUS };
    assert_eq!(private.deallocate(&mut user, 0, MIB), Nfsstat4::Access);
    assert_eq!(private.allocate(&mut user, 0, MIB), Nfsstat4::Access);
    assert_eq!(copy(&mut user, (&private, 0), (&private, 8192), 4096), Err(Nfsstat4::Access));
    assert_eq!(one.status(&[Op::Putrootfh(()), Op::Deallocate(free.args(0, 1))]), Nfsstat4::WrongType);
    let root = [Op::Putrootfh(()), Op::Seek(SeekArgs { stateid: free.open, offset: 0, content: 0 })];
    assert_eq!(one.status(&root), Nfsstat4::Isdir);
    let read = free.read(&mut one, 0, MIB as usize);
    assert_eq!(read, [1; 3 * BLOCK]);
}

#[test]
fn operations_that_the_server_does_not_have_are_answered_as_such() {
    let server = served();
    let mut c = connect(&server, b"one");
    let file = open(&mut c, b"file");
    let putfh = putfh(&file.handle);
    let read = ReadArgs { stateid: file.open, offset: 0, count: 1 };
    assert_eq!(c.status(&[putfh, Op::ReadPlus(read)]), Nfsstat4::Notsupp);
    let hints = Bitmap::of(&[0, 4]);
    let advise = IoAdviseArgs { stateid: file.open, offset: 0, count: 0, hints };
    c.run(&[putfh, Op::IoAdvise(advise)], |_, results| match results[1] {
        OpResult::IoAdvise(Ok(followed)) => assert!(followed.hints.is_empty()),
        ref other => panic!("IO_ADVISE: {other:?}"),
    });
    let request = Bitmap::of(&[attr::OPEN_ARGUMENTS]);
    c.run(&[putfh, Op::Getattr(GetattrArgs { request })], |_, results| match results[1] {
        OpResult::Getattr(Ok(got)) => {
            let accepted = got.attributes.attributes().unwrap().open_arguments.unwrap();
            assert!(accepted.share_access.contains(share::BOTH) && accepted.share_deny.contains(share::BOTH));
        }
        ref other => panic!("GETATTR: {other:?}"),
    });
    let mut old = Client4::connect_as(server.connect(), 1, b"old");
    for op in [
        Op::Seek(SeekArgs { stateid: file.open, offset: 0, content: 0 }),
        Op::Allocate(file.args(0, 1)),
        Op::Deallocate(file.args(0, 1)),
        Op::ReadPlus(read),
        Op::IoAdvise(advise),
    ] {
        old.run(&[putfh, op], |status, results| {
            assert_eq!(status, Nfsstat4::OpIllegal);
            assert_eq!(results[1], OpResult::Illegal(Err(Nfsstat4::OpIllegal)));
        });
    }
}

#[test]
fn delegations_of_directories_are_not_served_in_any_minor_version() {
    let server = served();
    for (minor, name) in [(1, b"one"), (2, b"two")] {
        let mut c = Client4::connect_as(server.connect(), minor, name);
        let none = Bitmap::of(&[]);
        let args = GetDirDelegationArgs {
            signal_available: false,
            notification_types: none,
            child_attr_delay: Nfstime4::default(),
            dir_attr_delay: Nfstime4::default(),
            child_attributes: none,
            dir_attributes: none,
        };
        // Not NFS4ERR_OP_ILLEGAL: the operation belongs to both versions, and clients ask for no more of them.
        c.run(&[Op::Putrootfh(()), Op::GetDirDelegation(args)], |status, results| {
            assert_eq!(status, Nfsstat4::Notsupp);
            assert_eq!(results[1], OpResult::GetDirDelegation(Err(Nfsstat4::Notsupp)));
        });
    }
}
