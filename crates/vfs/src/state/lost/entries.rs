//! The data that was set aside, for an administrator.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use forebay_common::state_file;

use super::{ABOUT, DATA, DIR, RANGES, WHYS, ranges};

/// Something that was set aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostFile {
    /// Its name in `forebay lost`.
    pub id: String,
    /// The last path that was known of it, within the export's directory as this host names it; empty if none was.
    pub path: String,
    /// The exported directories of its file system.
    pub exports: String,
    /// The identity that it had: file system, handle type and kernel handle, in hexadecimal digits.
    pub handle: String,
    /// Why it is here.
    pub why: &'static str,
    /// Since when, in nanoseconds since 1970.
    pub since_ns: u64,
    /// Bytes up to the end of the last range.
    pub size: u64,
    /// The ranges that are here: first byte, and the byte after the last one.
    pub ranges: Vec<(u64, u64)>,
}

/// Reads the description and the ranges of the data in `dir`. Returns `None` if the server is about to make them, or if
/// a power cut left nothing else. A description without data stays, so that it can be dropped.
pub(super) fn read(dir: &Path) -> io::Result<Option<LostFile>> {
    let about = state_file::read(&dir.join(ABOUT))?;
    let data = state_file::existing(File::open(dir.join(DATA)))?;
    if about.is_none() && data.is_none() {
        return Ok(None);
    }
    let about = about.unwrap_or_default();
    let field = |name: &str| {
        let line = about.lines().find_map(|line| line.split_once(' ').filter(|(field, _)| *field == name));
        line.map_or("", |(_, text)| text).to_owned()
    };
    let ranges = match &data {
        None => Vec::new(),
        Some(data) => match state_file::read(&dir.join(RANGES))? {
            Some(text) => ranges::parse(&text),
            None => ranges::parse(&ranges::text(&ranges::of_holes(data)?)),
        },
    };
    let why = field("why");
    Ok(Some(LostFile {
        id: dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        path: field("path"),
        exports: field("exports"),
        handle: field("handle"),
        why: WHYS.iter().find(|(_, name)| *name == why).map_or("", |(_, name)| name),
        since_ns: field("since").parse().unwrap_or(0),
        size: data.map_or(Ok(0), |data| data.metadata().map(|found| found.len()))?,
        ranges,
    }))
}

/// Returns all data that was set aside with this state directory, oldest first.
pub fn lost_files(state_dir: &Path) -> io::Result<Vec<LostFile>> {
    let entries = state_file::existing(std::fs::read_dir(state_dir.join(DIR)))?.into_iter().flatten();
    let found = entries.filter_map(|entry| entry.and_then(|entry| read(&entry.path())).transpose());
    let mut all = found.collect::<io::Result<Vec<_>>>()?;
    all.sort_by_key(|file| file.since_ns);
    Ok(all)
}

/// Returns the directory of one file that was set aside, by its id. The beginning of the id is enough if it is unique.
fn find(state_dir: &Path, id: &str) -> io::Result<PathBuf> {
    let mut found = lost_files(state_dir)?.into_iter().filter(|file| file.id.starts_with(id));
    match (found.next(), found.next()) {
        (Some(file), None) => Ok(state_dir.join(DIR).join(file.id)),
        (None, _) => Err(unknown()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "several ids begin so; write more of it")),
    }
}

fn unknown() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "nothing with this id was set aside")
}

/// Returns one file that was set aside.
pub fn lost_file(state_dir: &Path, id: &str) -> io::Result<LostFile> {
    read(&find(state_dir, id)?)?.ok_or_else(unknown)
}

/// Copies data that was set aside to `to`, durably. `to` is a new file of mode 0600; with `over`, the ranges go over an
/// existing file. Returns the number of bytes copied.
pub fn restore_lost(state_dir: &Path, id: &str, to: &Path, over: bool) -> io::Result<u64> {
    let dir = find(state_dir, id)?;
    let (from, about) = (File::open(dir.join(DATA))?, read(&dir)?.ok_or_else(unknown)?);
    let mut options = File::options();
    options.write(true).mode(0o600);
    // Never through a symbolic link that another user may have put there.
    options.custom_flags(libc::O_NOFOLLOW);
    let file = if over { options.open(to)? } else { options.create_new(true).open(to)? };
    let mut buffer = vec![0; 1 << 20];
    let mut copied = 0;
    for (mut at, end) in about.ranges {
        while at < end {
            let len = (end - at).min(buffer.len() as u64) as usize;
            let read = from.read_at(&mut buffer[..len], at)?;
            if read == 0 {
                break;
            }
            file.write_all_at(&buffer[..read], at)?;
            (at, copied) = (at + read as u64, copied + read as u64);
        }
    }
    if !over {
        file.set_len(about.size)?;
    }
    file.sync_all()?;
    Ok(copied)
}

/// Removes data that was set aside.
pub fn drop_lost(state_dir: &Path, id: &str) -> io::Result<()> {
    let dir = find(state_dir, id)?;
    // First, since without its ranges the data counts as that of an older version.
    state_file::existing(std::fs::remove_file(dir.join(DATA)))?;
    std::fs::remove_dir_all(dir)
}
