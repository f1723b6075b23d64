//! The file of the figures: a ring of records for each level, each record with a checksum.
//!
//! The place of a record follows from its time, so the file needs no head and no order of writes. A record that a
//! crash has torn has a wrong checksum, and is left out. Nothing is synced: a power cut may lose the last seconds.
//!
//! | bytes of a record | contents |
//! |---|---|
//! | 0 to 8 | time in milliseconds since 1970, little-endian; 0 if the place is empty |
//! | 8 to 120 | 28 figures, each an IEEE 754 number of 4 bytes, little-endian, in the order of `COLUMNS` |
//! | 120 to 124 | zero |
//! | 124 to 128 | the low half of the XXH3 hash of bytes 0 to 124, little-endian |

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::columns::{COLUMNS, Point};

/// The file in the state directory. Its name has the version of its format.
pub(super) const NAME: &str = "figures.1";
/// Length of a record in bytes.
const RECORD: usize = 128;
const FIGURES: usize = 8;
const CHECKSUM: usize = 124;
const _: () = assert!(FIGURES + 4 * COLUMNS.len() <= CHECKSUM);

/// A level of the history: how long an interval is, and how many intervals are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Level {
    /// Length of an interval in milliseconds.
    pub(super) step_ms: u64,
    /// Intervals that are kept.
    pub(super) kept: u64,
}

/// The levels: seconds for an hour, 10 seconds for a day, minutes for 30 days. The file has 7 MB at most.
pub(super) const LEVELS: [Level; 3] = [
    Level { step_ms: 1000, kept: 3600 },
    Level { step_ms: 10_000, kept: 8640 },
    Level { step_ms: 60_000, kept: 43_200 },
];

/// The open file.
#[derive(Debug)]
pub(super) struct RingFile(File);

impl RingFile {
    /// Opens the file of a server for reading only.
    pub(super) fn look(dir: &Path) -> io::Result<Self> {
        File::open(dir.join(NAME)).map(RingFile)
    }

    /// Opens the file, or makes it.
    pub(super) fn open(dir: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.open(dir.join(NAME)).map(RingFile)
    }

    /// Returns the points of a level that are whole and not older than the level keeps at `now_ms`, oldest first.
    pub(super) fn read(&self, level: usize, now_ms: u64) -> Vec<Point> {
        let Level { step_ms, kept } = LEVELS[level];
        let mut bytes = vec![0; kept as usize * RECORD];
        let mut filled = 0;
        // A short file is one whose later places were never written.
        while let Ok(count @ 1..) = self.0.read_at(&mut bytes[filled..], begin(level) + filled as u64) {
            filled += count;
        }
        let oldest = now_ms.saturating_sub(step_ms * kept);
        let records = bytes[..filled].chunks_exact(RECORD).enumerate();
        let is_kept = |place: usize, point: &Point| {
            point.time_ms > oldest
                && point.time_ms <= now_ms
                && place_of(level, point.time_ms) == place as u64
        };
        let whole =
            records.filter_map(|(place, record)| decoded(record).filter(|point| is_kept(place, point)));
        let mut points: Vec<_> = whole.collect();
        points.sort_by_key(|point| point.time_ms);
        points
    }

    /// Writes a point to its place.
    pub(super) fn write(&self, level: usize, point: &Point) -> io::Result<()> {
        let place = place_of(level, point.time_ms);
        self.0.write_all_at(&encoded(point), begin(level) + place * RECORD as u64)
    }
}

/// Returns the offset of a level in the file.
fn begin(level: usize) -> u64 {
    LEVELS[..level].iter().map(|level| level.kept * RECORD as u64).sum()
}

/// Returns the place of a time in the ring of a level, counted in records.
fn place_of(level: usize, time_ms: u64) -> u64 {
    let Level { step_ms, kept } = LEVELS[level];
    time_ms / step_ms % kept
}

/// Returns the record of a point, as the table above describes it.
fn encoded(point: &Point) -> [u8; RECORD] {
    let mut record = [0; RECORD];
    record[..FIGURES].copy_from_slice(&point.time_ms.to_le_bytes());
    for (place, value) in record[FIGURES..CHECKSUM].chunks_exact_mut(4).zip(point.values()) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    let checksum = checksum(&record);
    record[CHECKSUM..].copy_from_slice(&checksum);
    record
}

/// Returns the point of a record; `None` if the place is empty, or the record is damaged.
fn decoded(record: &[u8]) -> Option<Point> {
    let time_ms = u64::from_le_bytes(record[..FIGURES].try_into().ok()?);
    if time_ms == 0 || record[CHECKSUM..] != checksum(record) {
        return None;
    }
    let mut values = [0.0; COLUMNS.len()];
    for (value, bytes) in values.iter_mut().zip(record[FIGURES..CHECKSUM].chunks_exact(4)) {
        *value = f32::from_le_bytes(bytes.try_into().ok()?);
    }
    values.iter().all(|value| value.is_finite()).then(|| Point::from_values(time_ms, values))
}

fn checksum(record: &[u8]) -> [u8; 4] {
    (xxhash_rust::xxh3::xxh3_64(&record[..CHECKSUM]) as u32).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    fn point(time_ms: u64) -> Point {
        Point { time_ms, seconds: 1.0, reads: time_ms as f32, ..Point::default() }
    }

    #[test]
    fn records_of_each_level_are_read_again_and_old_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let file = RingFile::open(dir.path()).unwrap();
        let now = 1_000 * HOUR;
        for (level, Level { step_ms, kept }) in LEVELS.into_iter().enumerate() {
            let times = [now - step_ms * kept, now - step_ms, now];
            times.iter().for_each(|time| file.write(level, &point(*time)).unwrap());
            let file = RingFile::open(dir.path()).unwrap();
            assert_eq!(file.read(level, now), [point(now - step_ms), point(now)], "{level}");
            assert!(file.read(level, now + 31 * 24 * HOUR).is_empty());
            assert!(file.read(level, now - 2 * step_ms).is_empty(), "points of the future");
        }
        let most: u64 = LEVELS.iter().map(|level| level.kept * 128).sum();
        assert!(std::fs::metadata(dir.path().join(NAME)).unwrap().len() <= most);
    }

    #[test]
    fn a_torn_record_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let file = RingFile::open(dir.path()).unwrap();
        let now = 1_000 * HOUR;
        file.write(0, &point(now - 1000)).unwrap();
        file.write(0, &point(now)).unwrap();
        let whole = encoded(&point(now));
        for torn in [8, 9, 64, 120, 127] {
            let mut bytes = encoded(&point(now - 5000));
            bytes[..torn].copy_from_slice(&whole[..torn]);
            file.0.write_all_at(&bytes, place_of(0, now) * 128).unwrap();
            assert_eq!(file.read(0, now), [point(now - 1000)], "torn at byte {torn}");
        }
        // A file that was cut short has its first records.
        file.0.set_len((place_of(0, now - 1000) + 1) * 128 + 77).unwrap();
        assert_eq!(file.read(0, now), [point(now - 1000)]);
    }
}
