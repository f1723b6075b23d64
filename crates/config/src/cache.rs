//! The settings of the cache.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use forebay_common::nbd_url::NbdUrl;

use crate::export::Export;
use crate::file::Draft;
use crate::problem::{Collector, Origin};
use crate::settings::Mode;
use crate::table::Located;
use crate::units::{format_size, parse_size};

/// The cache in front of the exports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSettings {
    /// Cache devices: block devices, files, paths where files are to be made, or URLs of NBD exports. The paths are
    /// absolute, and no two are equal. If empty, the server makes files in the state directory, or has no cache in mode
    /// pass-through.
    pub devices: Vec<PathBuf>,
    /// Size in bytes of each cache file that has to be made.
    pub size: u64,
    /// Most bytes of memory for cached blocks.
    pub ram: u64,
    /// True to estimate the miss-ratio curve from a sample of the requests.
    pub curve: bool,
    /// True if the administrator gave the size.
    pub size_given: bool,
    /// True to make a new pool of the devices, even if they hold data.
    pub format: bool,
    /// True to recreate cache files that are missing from their pool.
    pub make_missing: bool,
    /// True to accept cache files on file systems in memory.
    pub in_memory: bool,
}

/// Sizes of a cache device: 64 MiB to 16 TiB, both included.
const DEVICE_SIZES: RangeInclusive<u64> = 64 << 20..=16 << 40;
const DEFAULT_SIZE: u64 = 1 << 30;
/// Memory for cached blocks: 16 MiB to 64 TiB, both included.
const RAM_SIZES: RangeInclusive<u64> = 16 << 20..=64 << 40;

/// The cache settings that the file and the flags gave so far. A setting that was not given is absent.
#[derive(Default)]
pub(crate) struct CacheDraft {
    pub(crate) devices: Vec<Located<PathBuf>>,
    pub(crate) size: Option<Located<u64>>,
    pub(crate) ram: Option<Located<u64>>,
    pub(crate) curve: Option<bool>,
    pub(crate) format: bool,
    pub(crate) make_missing: bool,
    pub(crate) in_memory: bool,
}

/// Parses the size of a cache device and checks that it is within [`DEVICE_SIZES`].
pub(crate) fn parse_device_size(text: &str) -> Result<u64, String> {
    within(parse_size(text)?, DEVICE_SIZES)
}

/// Parses a size of memory and checks that the host has that much.
pub(crate) fn parse_ram(text: &str) -> Result<u64, String> {
    ram_size(parse_size(text)?)
}

/// Returns a size in bytes if it is within the range. The error names the range.
pub(crate) fn within(size: u64, range: RangeInclusive<u64>) -> Result<u64, String> {
    if range.contains(&size) {
        return Ok(size);
    }
    let (least, most) = (format_size(*range.start()), format_size(*range.end()));
    Err(format!("{} is not within {least} and {most}", format_size(size)))
}

/// Checks the size of a cache device that was given as a flag.
pub(crate) fn device_size(size: u64) -> Result<u64, String> {
    within(size, DEVICE_SIZES)
}

/// Checks a size of memory that was given as a flag.
pub(crate) fn ram_size(size: u64) -> Result<u64, String> {
    let size = within(size, RAM_SIZES)?;
    let memory = memory().unwrap_or(u64::MAX);
    if size > memory {
        return Err(format!(
            "{} is more than the {} of memory that this host has; leave some of it to the kernel and the index of the cache",
            format_size(size),
            format_size(memory)
        ));
    }
    Ok(size)
}

/// Returns the mode and the cache settings that result from the draft, and checks the devices.
pub(crate) fn complete(
    draft: &mut Draft,
    exports: &[Export],
    problems: &mut Collector<'_>,
) -> (Mode, CacheSettings) {
    let mode = draft.mode.as_ref().map_or(Mode::WriteBack, |mode| mode.value);
    let CacheDraft { devices, size, ram, curve, format, make_missing, in_memory } =
        std::mem::take(&mut draft.cache);
    for (index, device) in devices.iter().enumerate() {
        check_device(device, &devices[..index], exports, problems);
    }
    if devices.len() > 16 {
        let message =
            format!("{} cache devices are more than a pool can have; name at most 16", devices.len());
        problems.add(&devices[16].origin, message);
    }
    if format && devices.is_empty() {
        problems
            .add(&Origin::flag("--format-cache"), "--format-cache needs the devices; name them with --cache");
    }
    let cache = CacheSettings {
        devices: devices.into_iter().map(|device| device.value).collect(),
        size_given: size.is_some(),
        size: size.map_or(DEFAULT_SIZE, |size| size.value),
        ram: ram.map_or_else(eighth_of_memory, |ram| ram.value),
        curve: curve.unwrap_or(true),
        format,
        make_missing,
        in_memory,
    };
    (mode, cache)
}

/// Returns the path without symbolic links. If nothing exists at the path, only its directory is resolved.
fn real(path: &Path) -> PathBuf {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(real), ..) => real,
        (_, Some(parent), Some(name)) => {
            parent.canonicalize().map_or(path.to_owned(), |real| real.join(name))
        }
        _ => path.to_owned(),
    }
}

/// Returns the export whose directory contains `path`. The path need not exist.
pub fn inside_export<'a>(path: &Path, exports: &'a [Export]) -> Option<&'a Export> {
    let path = real(path);
    exports.iter().find(|export| path.starts_with(&export.path))
}

/// Adds a problem for a cache device that is named twice, or lies in an exported directory.
fn check_device(
    device: &Located<PathBuf>,
    earlier: &[Located<PathBuf>],
    exports: &[Export],
    problems: &mut Collector<'_>,
) {
    let (shown, path) = (device.value.display(), real(&device.value));
    if NbdUrl::is_meant(&device.value) {
        match NbdUrl::parse(&device.value.to_string_lossy()) {
            Err(error) => problems.add(&device.origin, error),
            Ok(url) if earlier.iter().any(|other| NbdUrl::of(&other.value).as_ref() == Some(&url)) => {
                let message = format!("{shown} is named twice; name each cache device once");
                problems.add(&device.origin, message);
            }
            Ok(_) => {}
        }
        return;
    }
    if earlier.iter().any(|other| real(&other.value) == path) {
        problems.add(&device.origin, format!("{shown} is named twice; name each cache device once"));
    }
    if let Some(export) = inside_export(&device.value, exports) {
        let message = format!(
            "the cache device {shown} lies inside the exported {}; name one outside, clients must not reach it",
            export.path.display()
        );
        problems.add(&device.origin, message);
    }
}

/// Returns an eighth of the host's memory, at least 64 MiB and at most 16 GiB. The rest is for the kernel's own cache
/// and other programs.
pub(crate) fn eighth_of_memory() -> u64 {
    (memory().unwrap_or(0) / 8).clamp(64 << 20, 16 << 30)
}

/// Returns the host's memory in bytes; `None` if the system does not report it.
fn memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"))?;
    Some(total.trim().parse::<u64>().ok()? * 1024)
}
