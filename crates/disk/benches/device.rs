//! The operations per second of a pair of cache devices from one thread: `cargo bench -p forebay-disk -- [DIRECTORY
//! [SECONDS]]`. The figures depend on the directory's disk and vary with the disk's other load. Compare only the
//! figures of one run.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_disk::FileDevice;
use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{Device, Durability};
use forebay_runtime::block_on;
use futures_util::future::join;
use futures_util::stream::{FuturesUnordered, StreamExt};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rand::RngExt;
use rustix::io::ReadWriteFlags;

const SIZE: u64 = 1 << 30;
/// The length of a turn. The compared ways take turns, so that other load of the disk affects all of them.
const TURN: Duration = Duration::from_millis(50);

type Way<'a> = (&'static str, Box<dyn FnMut(u64) + 'a>);

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let root = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let turns = args.next().map_or(40, |turns| turns.parse().unwrap());
    let dir = tempfile::tempdir_in(root).unwrap();
    let legs = ["a", "b"].map(|name| FileDevice::open_or_create(&dir.path().join(name), SIZE).unwrap());
    println!("{:<50} {:>10} {:>10} {:>10}", "per second, one thread", "median", "best", "MB/s");
    for blocks in [1, 16, 32, 128] {
        let len = blocks * BLOCK;
        println!("mirrored write, {} KiB", len / 1024);
        let ways: Vec<Way<'_>> = vec![
            ("  Durability::Now", Box::new(mirrored(&legs, blocks))),
            ("  Durability::Later, then flush", Box::new(written_then_flushed(&legs, blocks))),
            ("  bare ring, RWF_DSYNC", Box::new(bare(dir.path(), blocks, false))),
            ("  bare ring, write linked to fdatasync", Box::new(bare(dir.path(), blocks, true))),
        ];
        compare(ways, len, turns);
    }
    for depth in [1, 32] {
        let mut rates: Vec<_> = (0..turns).map(|_| random_reads(&legs[0], depth)).collect();
        report(&format!("random read, 4 KiB, depth {depth}"), BLOCK, &mut rates);
    }
}

fn report(what: &str, len: usize, rates: &mut [f64]) {
    rates.sort_by(f64::total_cmp);
    let (median, best) = (rates[rates.len() / 2], rates[rates.len() - 1]);
    println!("{what:<50} {median:>10.0} {best:>10.0} {:>10.0}", median * len as f64 / 1e6);
}

/// Calls each way with consecutive offsets, as a log does.
fn compare(ways: Vec<Way<'_>>, len: usize, turns: usize) {
    let mut ways: Vec<_> = ways.into_iter().map(|(name, way)| (name, way, Vec::new())).collect();
    let places = SIZE / len as u64;
    let mut place = 0;
    for _ in 0..turns {
        for (_, way, rates) in &mut ways {
            let (start, first) = (Instant::now(), place);
            while start.elapsed() < TURN {
                way(place % places * len as u64);
                place += 1;
            }
            rates.push((place - first) as f64 / start.elapsed().as_secs_f64());
        }
    }
    for (name, _, mut rates) in ways {
        report(name, len, &mut rates);
    }
}

fn mirrored(legs: &[FileDevice; 2], blocks: usize) -> impl FnMut(u64) {
    let data = Slice::from(Buffer::zeroed(blocks));
    move |offset| {
        let write = |leg: &FileDevice| leg.write(offset, data.clone(), Durability::Now);
        let (a, b) = block_on(async { join(write(&legs[0]), write(&legs[1])).await });
        a.and(b).unwrap();
    }
}

fn written_then_flushed(legs: &[FileDevice; 2], blocks: usize) -> impl FnMut(u64) {
    let data = Slice::from(Buffer::zeroed(blocks));
    move |offset| {
        let write = async |leg: &FileDevice| {
            leg.write(offset, data.clone(), Durability::Later).await.unwrap();
            leg.flush().await.unwrap();
        };
        block_on(join(write(&legs[0]), write(&legs[1])));
    }
}

/// Measures the cost of the crate's own work, and a possible replacement of `Durability::Now`.
fn bare(dir: &Path, blocks: usize, link: bool) -> impl FnMut(u64) {
    let files = ["a", "b"].map(|name| open_direct(&dir.join(name)));
    let data = Buffer::zeroed(blocks);
    let mut uring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(8).unwrap();
    move |offset| {
        for file in &files {
            let fd = types::Fd(file.as_raw_fd());
            let write = opcode::Write::new(fd, data.as_ptr(), data.len() as u32).offset(offset);
            let sync = opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build();
            let entries = match link {
                true => vec![write.build().flags(squeue::Flags::IO_LINK), sync],
                false => vec![write.rw_flags(ReadWriteFlags::DSYNC.bits() as i32).build()],
            };
            // SAFETY: `data` lives as long as the closure, and every round waits for its completions.
            unsafe { uring.submission().push_multiple(&entries) }.unwrap();
        }
        let count = if link { 4 } else { 2 };
        uring.submit_and_wait(count).unwrap();
        let done = uring.completion().filter(|done: &cqueue::Entry| done.result() >= 0);
        assert_eq!(done.count(), count);
    }
}

fn open_direct(path: &Path) -> File {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(path, OFlags::RDWR | OFlags::DIRECT, Mode::empty()).unwrap().into()
}

fn random_reads(device: &FileDevice, depth: usize) -> f64 {
    let mut random = rand::rng();
    let mut next = |buffer| device.read(random.random_range(0..SIZE / BLOCK as u64) * BLOCK as u64, buffer);
    let start = Instant::now();
    let count = block_on(async {
        let mut reads: FuturesUnordered<_> = (0..depth).map(|_| next(Buffer::zeroed(1))).collect();
        let mut count = 0_u64;
        while let Some((buffer, result)) = reads.next().await {
            result.unwrap();
            count += 1;
            if start.elapsed() < TURN {
                reads.push(next(buffer));
            }
        }
        count
    });
    count as f64 / start.elapsed().as_secs_f64()
}
