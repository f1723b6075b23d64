//! The figures behind the curves: one moment for each interval.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_config::format_size;
use forebay_control::{Figures, Point};

use crate::output::latency;
use crate::rates::Rates;
use crate::stat::{mebibytes, rate};

/// Most moments kept for the curves.
pub(super) const MOST: usize = 600;

/// The figures of one interval. Rates are per second, sizes are in bytes, and latencies are in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Moment {
    operations: f64,
    read: f64,
    written: f64,
    read_p50: f64,
    write_p50: f64,
    syncs: f64,
    dirty: f64,
    destaged: f64,
}

/// One curve: its name, its figure, and the text of the figure.
pub(super) struct Curve {
    pub(super) name: &'static str,
    pub(super) of: fn(&Moment) -> f64,
    pub(super) show: fn(f64) -> String,
    /// True if only a cache has this figure.
    pub(super) is_of_cache: bool,
}

const fn curve(name: &'static str, of: fn(&Moment) -> f64, show: fn(f64) -> String) -> Curve {
    Curve { name, of, show, is_of_cache: false }
}

/// The curves from top to bottom.
pub(super) const CURVES: [Curve; 8] = [
    curve("ops/s", |moment| moment.operations, rate),
    curve("read MiB/s", |moment| moment.read, mebibytes),
    curve("write MiB/s", |moment| moment.written, mebibytes),
    curve("read p50", |moment| moment.read_p50, nanos),
    curve("write p50", |moment| moment.write_p50, nanos),
    curve("syncs/s", |moment| moment.syncs, rate),
    Curve { is_of_cache: true, ..curve("dirty", |moment| moment.dirty, size) },
    Curve { is_of_cache: true, ..curve("destage MiB/s", |moment| moment.destaged, mebibytes) },
];

fn nanos(value: f64) -> String {
    latency(value as u64)
}

fn size(value: f64) -> String {
    format_size(value as u64)
}

impl From<&Rates> for Moment {
    fn from(rates: &Rates) -> Self {
        Moment {
            operations: rates.operations(),
            read: rates.read.bytes,
            written: rates.write.bytes,
            read_p50: rates.read.p50_ns as f64,
            write_p50: rates.write.p50_ns as f64,
            syncs: rates.syncs,
            dirty: rates.cache.map_or(0.0, |cache| cache.dirty_bytes as f64),
            destaged: rates.cache.map_or(0.0, |cache| cache.destaged),
        }
    }
}

impl From<&Point> for Moment {
    fn from(point: &Point) -> Self {
        let operations = point.reads + point.writes + point.commits + point.looks + point.changes;
        Moment {
            operations: f64::from(operations),
            read: f64::from(point.read_bytes),
            written: f64::from(point.written_bytes),
            read_p50: f64::from(point.read_p50) * 1e9,
            write_p50: f64::from(point.write_p50) * 1e9,
            syncs: f64::from(point.syncs),
            dirty: f64::from(point.dirty_bytes),
            destaged: f64::from(point.destaged_bytes),
        }
    }
}

/// Returns the moments of the last ten minutes that the server has kept, oldest first; none if this user may not read
/// them.
pub(super) fn kept(state_dir: &Path) -> Vec<Moment> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let Ok(figures) = Figures::kept_in(state_dir, now) else { return Vec::new() };
    let points = figures.last(Duration::from_secs(MOST as u64), MOST, now).points;
    points.iter().map(Moment::from).collect()
}
