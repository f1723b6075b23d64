//! Measures the storage of a directory: writes and reads a file there, without the page cache.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use memmap2::MmapMut;
use rand::rngs::SmallRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

/// Requests in flight at random places, as many clients produce.
const DEPTH: usize = 32;
/// Requests in flight from front to back.
const STREAM_DEPTH: usize = 4;
const BLOCK: usize = 4 << 10;
const RECORD: usize = 1 << 20;
/// Smallest size of the file in bytes. The results of a smaller file would not be meaningful.
const LEAST: u64 = 64 << 20;

/// The measured figures of one directory. Rates are per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// The directory.
    pub(crate) path: PathBuf,
    /// Device number of the file system. Directories with equal numbers share a device.
    pub(crate) device: u64,
    /// Size of the measured file in bytes.
    pub(crate) size: u64,
    /// True if the page cache was bypassed (O_DIRECT).
    pub(crate) direct: bool,
    /// Reads of 4 KiB at random places, 32 at once.
    pub(crate) random_reads: f64,
    /// Durable writes of 4 KiB at random places, 32 at once.
    pub(crate) random_writes: f64,
    /// Durable writes of 4 KiB, one at a time.
    pub(crate) single_writes: f64,
    /// Bytes per second read from front to back.
    pub(crate) sequential_read: f64,
    /// Bytes per second written from front to back, durable at the end.
    pub(crate) sequential_write: f64,
}

/// A file that is removed when this value is dropped.
struct Probe {
    path: PathBuf,
    direct: bool,
}

impl Drop for Probe {
    fn drop(&mut self) {
        // If the removal fails, there is no other remedy, so the error is ignored.
        let _ = fs::remove_file(&self.path);
    }
}

/// Measures the storage of `dir` for about five times `seconds`, with a file of up to `size` bytes.
///
/// # Errors
/// The directory cannot be written or has too little room.
pub(super) fn measure(dir: &Path, size: u64, seconds: f64) -> Result<Figures> {
    let what = || format!("the storage of {} cannot be measured", dir.display());
    let room = rustix::fs::statvfs(dir).map_err(std::io::Error::from).with_context(what)?;
    let size = size.min(room.f_bavail * room.f_frsize / 2) / RECORD as u64 * RECORD as u64;
    if size < LEAST {
        bail!("{} has too little room to be measured; {} MiB are needed", dir.display(), LEAST >> 19);
    }
    let mut probe = Probe { path: dir.join(format!(".forebay-probe-{}", std::process::id())), direct: true };
    File::create(&probe.path).with_context(what)?;
    probe.direct = probe.open(OFlags::DIRECT).is_ok();
    let limit = Duration::from_secs_f64(seconds);
    let run = || -> Result<Figures> {
        let (sequential_write, written) = probe.write_through(size, limit * 2)?;
        let sequential_read = probe.stream(written, limit)?;
        let random_reads = probe.random(written, limit, DEPTH, false)?;
        let random_writes = probe.random(written, limit, DEPTH, true)?;
        let single_writes = probe.random(written, limit, 1, true)?;
        Ok(Figures {
            path: dir.to_owned(),
            device: fs::metadata(dir)?.dev(),
            size: written,
            direct: probe.direct,
            random_reads,
            random_writes,
            single_writes,
            sequential_read,
            sequential_write,
        })
    };
    run().with_context(what)
}

impl Probe {
    /// Opens the file of the probe, past the page cache where the file system permits that.
    fn open(&self, flags: OFlags) -> std::io::Result<File> {
        let flags = if self.direct { flags | OFlags::DIRECT } else { flags };
        OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(&self.path)
    }

    /// Writes the file once, or until the time is over. Returns bytes per second and bytes.
    fn write_through(&self, size: u64, limit: Duration) -> Result<(f64, u64)> {
        let file = self.open(OFlags::empty())?;
        let start = Instant::now();
        let next = AtomicU64::new(0);
        let least = LEAST.min(size);
        at_once(STREAM_DEPTH, |number| {
            let buffer = noise(RECORD, number as u64)?;
            loop {
                let at = next.fetch_add(RECORD as u64, Ordering::Relaxed);
                if at >= size || (at >= least && start.elapsed() > limit) {
                    return Ok(0);
                }
                file.write_all_at(&buffer, at)?;
            }
        })?;
        file.sync_all()?;
        let written = file.metadata()?.len() / RECORD as u64 * RECORD as u64;
        Ok((written as f64 / start.elapsed().as_secs_f64(), written))
    }

    /// Reads the file from front to back repeatedly until the time is over.
    fn stream(&self, size: u64, limit: Duration) -> Result<f64> {
        let file = self.open(OFlags::empty())?;
        self.forget(&file);
        let (start, next) = (Instant::now(), AtomicU64::new(0));
        let count = at_once(STREAM_DEPTH, |_| {
            let mut buffer = MmapMut::map_anon(RECORD)?;
            let mut count = 0;
            while start.elapsed() < limit {
                let at = next.fetch_add(RECORD as u64, Ordering::Relaxed) % size;
                file.read_exact_at(&mut buffer, at)?;
                count += 1;
            }
            Ok(count)
        })?;
        Ok((count * RECORD as u64) as f64 / start.elapsed().as_secs_f64())
    }

    /// Reads or writes blocks at random places. Each write is durable when it returns.
    fn random(&self, size: u64, limit: Duration, depth: usize, write: bool) -> Result<f64> {
        let file = self.open(if write { OFlags::DSYNC } else { OFlags::empty() })?;
        self.forget(&file);
        let start = Instant::now();
        let count = at_once(depth, |number| {
            let mut rng = SmallRng::seed_from_u64(number as u64);
            let mut buffer = noise(BLOCK, number as u64)?;
            let mut count = 0;
            while start.elapsed() < limit {
                let at = rng.random_range(0..size / BLOCK as u64) * BLOCK as u64;
                if write {
                    file.write_all_at(&buffer, at)?
                } else {
                    file.read_exact_at(&mut buffer, at)?
                }
                count += 1;
            }
            Ok(count)
        })?;
        Ok(count as f64 / start.elapsed().as_secs_f64())
    }

    /// Empties the page cache of the file, if O_DIRECT is not possible.
    fn forget(&self, file: &File) {
        if !self.direct {
            // An error is ignored: a file system in memory has no other source to read from.
            let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }
}

/// Returns a page-aligned buffer with incompressible content.
fn noise(size: usize, seed: u64) -> std::io::Result<MmapMut> {
    let mut buffer = MmapMut::map_anon(size)?;
    SmallRng::seed_from_u64(seed).fill_bytes(&mut buffer);
    Ok(buffer)
}

/// Runs `work` in this many threads and adds up the results.
fn at_once(threads: usize, work: impl Fn(usize) -> std::io::Result<u64> + Sync) -> Result<u64> {
    let work = &work;
    let results: Vec<std::io::Result<u64>> = thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|number| scope.spawn(move || work(number))).collect();
        let joined = started
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(std::io::Error::other("a thread panicked"))));
        joined.collect()
    });
    let mut total = 0;
    for result in results {
        total += result?;
    }
    Ok(total)
}
