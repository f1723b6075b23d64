//! Warming for the control socket: files are brought into the cache in the background of clients.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use forebay_control::WarmReport;
use forebay_nfs::Nfs;
use forebay_runtime::block_on;
use forebay_vfs::{Vfs, Warming};

use crate::cache::Cache;
use crate::usual_reads::UsualReads;

/// The time between two reports.
const REPORT: Duration = Duration::from_millis(200);
/// The longest pause for clients.
const PAUSE: Duration = Duration::from_secs(1);

/// The choice of files.
enum Chosen<'a> {
    /// The files at and below a path.
    Path(&'a Path),
    /// The files with these handles.
    Handles(Vec<Vec<u8>>),
}

/// Brings the files at and below `path`, or else those that clients usually read, into the cache until `progress`
/// returns false. While clients read and write, half of the time is left to them.
///
/// # Errors
/// A sentence: the path is not served, or nothing that is read is cached.
pub(crate) fn warm(
    (nfs, vfs, cache): (&Nfs, &Vfs, &Cache),
    reads: Option<&UsualReads>,
    path: Option<&Path>,
    progress: &mut dyn FnMut(WarmReport) -> bool,
) -> Result<WarmReport, String> {
    if cache.engine.mode() == forebay_engine::Mode::PassThrough {
        return Err("reads are not cached in mode pass-through; `forebay mode` changes that".to_owned());
    }
    let served = || {
        let stats = nfs.stats();
        stats.bytes_read.load(Relaxed) + stats.bytes_written.load(Relaxed)
    };
    let chosen =
        path.map_or_else(|| usual(nfs, reads).map(Chosen::Handles), |path| Ok(Chosen::Path(path)))?;
    let total = match &chosen {
        Chosen::Path(path) => vfs.measure(path).map_err(|error| error.to_string())?,
        Chosen::Handles(handles) => Warming { files: handles.len() as u64, ..Warming::default() },
    };
    // Until all clean segments are loaded, the room is not known.
    block_on(cache.engine.warmed());
    let (mut before, mut begun) = (served(), Instant::now());
    let mut told = begun;
    let mut step = |warming: Warming| {
        let now = served();
        if now != before {
            std::thread::sleep(begun.elapsed().min(PAUSE));
        }
        (before, begun) = (served(), Instant::now());
        let due = told.elapsed() >= REPORT;
        if due {
            told = begun;
        }
        !due || progress(report(total, warming))
    };
    let warmed = match &chosen {
        Chosen::Path(path) => vfs.warm(path, &mut step).map_err(|error| error.to_string())?,
        Chosen::Handles(handles) => vfs.warm_handles(handles, &mut step),
    };
    Ok(report(total, warmed))
}

/// Returns the handles of the files that clients usually read, the most read ones first.
fn usual(nfs: &Nfs, reads: Option<&UsualReads>) -> Result<Vec<Vec<u8>>, String> {
    let handles = reads.map_or_else(Vec::new, UsualReads::handles);
    match (handles.is_empty(), nfs.has_profile()) {
        (false, _) => Ok(handles),
        (true, false) => {
            Err("nothing is counted: the configuration has `profile = false`; set it to true first"
                .to_owned())
        }
        (true, true) => {
            Err("the profile knows no file that clients have read yet; name a path instead".to_owned())
        }
    }
}

/// Returns the progress of warming the cache: the total found, and the part done, in files and bytes.
fn report(total: Warming, now: Warming) -> WarmReport {
    WarmReport {
        total_files: total.files,
        total_bytes: total.bytes,
        files: now.files,
        bytes: now.bytes,
        brought_bytes: now.brought,
        had_bytes: now.had,
        left_bytes: now.left,
        failed_files: now.failed,
    }
}
