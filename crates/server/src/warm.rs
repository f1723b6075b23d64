//! Warming for the control socket: files are brought into the cache in the background of clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use forebay_control::WarmReport;
use forebay_nfs::Nfs;
use forebay_runtime::block_on;
use forebay_vfs::{Vfs, WalkProgress, Warming};

use crate::cache::Cache;
use crate::in_time::{real, walk_in_time};
use crate::usual_reads::UsualReads;

/// The longest pause for clients.
const PAUSE: Duration = Duration::from_secs(1);

/// The choice of files.
enum Chosen {
    /// The files at and below a path.
    Path(PathBuf),
    /// The files with these handles.
    Handles(Vec<Vec<u8>>),
}

/// Brings the files at and below `path`, or else those that clients usually read, into the cache until `progress`
/// returns false. While clients read and write, half of the time is left to them.
///
/// # Errors
/// A sentence: the path is not served, its file system does not answer, or nothing that is read is cached.
pub(crate) fn warm(
    (nfs, vfs, cache): (&Arc<Nfs>, &Arc<Vfs>, &Cache),
    reads: Option<&UsualReads>,
    path: Option<&Path>,
    progress: &mut dyn FnMut(WarmReport) -> bool,
) -> Result<WarmReport, String> {
    if cache.engine.mode() == forebay_engine::Mode::PassThrough {
        return Err("reads are not cached in mode pass-through; `forebay mode` changes that".to_owned());
    }
    let place =
        path.map_or_else(|| "a file that clients usually read".to_owned(), |path| path.display().to_string());
    let (chosen, total) = match path {
        Some(path) => measured(vfs, &place, path)?,
        None => {
            let handles = usual(nfs, reads)?;
            let total = Warming { files: handles.len() as u64, ..Warming::default() };
            (Chosen::Handles(handles), total)
        }
    };
    // Until all clean segments are loaded, the room is not known.
    block_on(cache.engine.warmed());
    let latest = Arc::new(Mutex::new(Warming::default()));
    let (nfs, vfs, reached) = (nfs.clone(), vfs.clone(), latest.clone());
    let work = move |walk: &WalkProgress| {
        let mut pause = pause_for_clients(nfs);
        let mut step = |warming: Warming| {
            *reached.lock() = warming;
            pause();
            walk.step()
        };
        match &chosen {
            Chosen::Path(path) => vfs.warm(path, walk, &mut step).map_err(|error| error.to_string()),
            Chosen::Handles(handles) => Ok(vfs.warm_handles(handles, walk, &mut step)),
        }
    };
    let mut told = Warming::default();
    let mut look = |walk: &WalkProgress| {
        let now = *latest.lock();
        if now != told && !progress(report(total, now)) {
            walk.give_up();
        }
        told = now;
    };
    Ok(report(total, walk_in_time(&place, &mut look, work)??))
}

/// Returns the files at and below `path`, and their number and bytes.
fn measured(vfs: &Arc<Vfs>, place: &str, path: &Path) -> Result<(Chosen, Warming), String> {
    let (vfs, path) = (vfs.clone(), path.to_owned());
    walk_in_time(
        place,
        |_| (),
        move |walk| {
            let path = real(&path)?;
            let total = vfs.measure(&path, walk).map_err(|error| error.to_string())?;
            Ok((Chosen::Path(path), total))
        },
    )?
}

/// Returns a function that pauses as long as the work since its last call took, if clients read or wrote meanwhile.
fn pause_for_clients(nfs: Arc<Nfs>) -> impl FnMut() {
    let served = move || {
        let stats = nfs.stats();
        stats.bytes_read.load(Relaxed) + stats.bytes_written.load(Relaxed)
    };
    let (mut before, mut begun) = (served(), Instant::now());
    move || {
        if served() != before {
            std::thread::sleep(begun.elapsed().min(PAUSE));
        }
        (before, begun) = (served(), Instant::now());
    }
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
