//! Downtimes: periods in which no server with this cache owned the directories. Files changed then may differ from
//! their clean copies in the cache.
//!
//! A file in the state directory records when such a server was last alive. The time from then to the next start is a
//! downtime. All of them are kept, since a copy may be read for the first time years later. Each pool has its own
//! downtimes, for each file system, and for each set of exports that are served of it. Files that are served with
//! another pool, without a pool, or not for a while, change without the pool's copies.

use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_common::lock::Mutex;
use forebay_common::state_file;
use siphasher::sip::SipHasher24;

use crate::attr::Time;

/// Between two signs of life. After a crash, copies of files changed since the last one are dropped for nothing.
const SIGN: Duration = Duration::from_secs(1);
/// Change times lag by up to a clock tick.
const TICK: Duration = Duration::from_millis(10);
/// The number of downtimes that are kept apart. Beyond it the oldest are merged into one.
const MOST: usize = 1000;

/// The files that a server owns: one file system and some exports of it.
pub(crate) struct Owned {
    /// The file system's number in keys.
    pub(crate) filesystem: u32,
    /// Ids of the exports.
    pub(crate) exports: Vec<u32>,
}

impl Owned {
    /// Returns the name under which their downtimes with a pool are kept.
    fn name(&self, pool: u128) -> String {
        let mut exports = self.exports.clone();
        exports.sort_unstable();
        let mut hasher = SipHasher24::new();
        exports.iter().for_each(|id| hasher.write_u32(*id));
        format!("{pool:032x}-{:016x}", hasher.finish())
    }
}

/// Start and end, in nanoseconds since 1970.
type Span = (u64, u64);

/// The downtimes so far.
#[derive(Debug)]
pub struct Downtime {
    /// The downtimes, by the numbers of the file systems.
    spans: Vec<(u32, Vec<Span>)>,
    /// Emptied by the last sign.
    alive: Arc<Mutex<Vec<File>>>,
}

impl Downtime {
    /// Reads the downtimes of the files `owned` by a server with `pool`, adds those that end now, and begins to give
    /// signs of life. No file may have been served yet. `fresh` says that the pool holds no copies.
    pub(crate) fn end(state_dir: &Path, pool: u128, fresh: bool, owned: &[Owned]) -> io::Result<Self> {
        let (mut spans, mut files) = (Vec::new(), Vec::new());
        for owned in owned {
            let (since, alive) = end_one(state_dir, &owned.name(pool), fresh)?;
            spans.push((owned.filesystem, since));
            files.push(alive);
        }
        let alive = Arc::new(Mutex::new(files));
        let downtime = Downtime { spans, alive };
        sign(&downtime.alive);
        // A change through this server must not look older than the downtime's end.
        std::thread::sleep(TICK);
        let weak = Arc::downgrade(&downtime.alive);
        std::thread::Builder::new().name("forebay-alive".into()).spawn(move || keep_signing(&weak))?;
        Ok(downtime)
    }

    /// Returns true if a file of this file system that was last changed at `ctime` may have been changed while no
    /// server owned it. So it may if `ctime` is in the future: then the clock was set back, perhaps in a downtime.
    pub(crate) fn covers(&self, filesystem: u32, ctime: Time) -> bool {
        let at = ctime.sec.max(0) as u64 * 1_000_000_000 + u64::from(ctime.nsec);
        if at > nanos(SystemTime::now() + TICK) {
            return true;
        }
        let mut spans = self.spans.iter().filter(|(number, _)| *number == filesystem);
        spans.any(|(_, spans)| spans.iter().any(|(from, to)| *from < at && at <= *to))
    }

    /// Writes a sign of life: every change until a moment ago was made through this server.
    pub(crate) fn sign(&self) {
        sign(&self.alive);
    }

    /// Writes the last sign of life. All changes until now were made through this server, and no more follow. Any
    /// change after this function has returned has a later change time.
    pub(crate) fn begin(&self) {
        let now = SystemTime::now();
        std::mem::take(&mut *self.alive.lock()).iter().for_each(|alive| write(alive, now));
        std::thread::sleep(2 * TICK);
    }
}

/// Returns all downtimes and the file for signs of life.
fn end_one(state_dir: &Path, name: &str, fresh: bool) -> io::Result<(Vec<Span>, File)> {
    let path = state_dir.join(format!("downtimes-{name}"));
    let text = state_file::read(&path)?.unwrap_or_default();
    let mut spans: Vec<_> = text.lines().filter_map(parse).collect();
    let alive = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(state_dir.join(format!("alive-{name}")))?;
    let mut last = [0; 8];
    // An empty file: copies may be from anywhere.
    let _ = alive.read_at(&mut last, 0)?;
    if !fresh {
        spans.push(downtime(u64::from_le_bytes(last), nanos(SystemTime::now())));
    }
    if spans.len() > MOST {
        let (first, second) = (spans[0], spans.remove(1));
        spans[0] = (first.0.min(second.0), first.1.max(second.1));
    }
    let lines = spans.iter().map(|(from, to)| format!("{from} {to}\n"));
    state_file::replace(&path, lines.collect::<String>())?;
    Ok((spans, alive))
}

/// Returns the downtime between the last sign of life and now. If the clock was set back, a change in the downtime may
/// have any time.
fn downtime(last: u64, now: u64) -> Span {
    if last <= now { (last, now) } else { (0, last) }
}

/// Returns when the downtime in a line began and ended, in nanoseconds; `None` if the line has none.
fn parse(line: &str) -> Option<(u64, u64)> {
    let (from, to) = line.split_once(' ')?;
    Some((from.parse().ok()?, to.parse().ok()?))
}

fn nanos(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

/// Writes a sign of life with a time so old that an external change after a crash right now has a later change time.
/// Returns false once no more signs will follow.
fn sign(alive: &Mutex<Vec<File>>) -> bool {
    // Under the lock, so that no sign is replaced by an older one.
    let alive = alive.lock();
    alive.iter().for_each(|alive| write(alive, SystemTime::now() - 2 * TICK));
    !alive.is_empty()
}

/// Writes a sign of life without a sync. The sign outlives the process. After a power cut an older sign makes the
/// downtime longer, and nothing worse.
fn write(alive: &File, at: SystemTime) {
    let _ = alive.write_at(&nanos(at).to_le_bytes(), 0);
}

/// Writes the time of ownership again and again, until the server stops.
fn keep_signing(alive: &Weak<Mutex<Vec<File>>>) {
    loop {
        std::thread::sleep(SIGN);
        let Some(alive) = alive.upgrade() else { return };
        if !sign(&alive) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(seconds: u64) -> SystemTime {
        SystemTime::now() - Duration::from_secs(seconds)
    }

    fn time(at: SystemTime) -> Time {
        let nanos = nanos(at);
        Time { sec: (nanos / 1_000_000_000) as i64, nsec: (nanos % 1_000_000_000) as u32 }
    }

    fn end(state_dir: &Path, pool: u128, fresh: bool, exports: &[u32]) -> Downtime {
        let owned = [Owned { filesystem: 7, exports: exports.to_vec() }];
        Downtime::end(state_dir, pool, fresh, &owned).unwrap()
    }

    /// Moves the last sign of life of every owner `seconds` into the past.
    fn stopped(state_dir: &Path, seconds: u64) {
        for entry in std::fs::read_dir(state_dir).unwrap().map(Result::unwrap) {
            let sign = nanos(back(seconds)).to_le_bytes();
            if entry.file_name().to_str().unwrap().starts_with("alive-") {
                std::fs::write(entry.path(), sign).unwrap();
            }
        }
    }

    #[test]
    fn what_happened_between_two_runs_is_covered_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let first = end(dir.path(), 1, true, &[3]);
        assert!(!first.covers(7, time(back(1))), "there were no copies then");
        drop(first);
        stopped(dir.path(), 100);
        let second = end(dir.path(), 1, false, &[3]);
        assert!(second.covers(7, time(back(50))) && !second.covers(7, time(back(101))));
        assert!(!second.covers(8, time(back(50))), "another file system");
        drop(second);
        let third = end(dir.path(), 1, false, &[3]);
        assert!(third.covers(7, time(back(50))), "of an earlier downtime");
    }

    #[test]
    fn what_is_owned_with_another_pool_or_not_at_all_for_a_while_was_not_owned() {
        let dir = tempfile::tempdir().unwrap();
        drop(end(dir.path(), 1, true, &[3, 4]));
        stopped(dir.path(), 100);
        for (pool, exports) in [(2, [3, 4]), (1, [3, 5])] {
            let other = end(dir.path(), pool, false, &exports);
            assert!(other.covers(7, time(back(1000))), "nothing is known of its copies");
        }
        assert!(end(dir.path(), 1, false, &[4, 3]).covers(7, time(back(50))));
    }

    /// The clock ran ahead when the last server stopped, and was set back before this start.
    #[test]
    fn a_clock_that_was_set_back_between_two_runs_hides_no_change() {
        let dir = tempfile::tempdir().unwrap();
        drop(end(dir.path(), 1, true, &[3]));
        let ahead = SystemTime::now() + Duration::from_secs(1000);
        for entry in std::fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
            if entry.file_name().to_str().unwrap().starts_with("alive-") {
                std::fs::write(entry.path(), nanos(ahead).to_le_bytes()).unwrap();
            }
        }
        let second = end(dir.path(), 1, false, &[3]);
        assert!(second.covers(7, time(back(1))), "changed after the clock was set back");
        let later = ahead + Duration::from_secs(1);
        assert!(second.covers(7, time(later)), "changed before the clock was set back");
        drop(second);
        let third = end(dir.path(), 1, false, &[3]);
        assert!(third.covers(7, time(back(1))) && third.covers(7, time(ahead - Duration::from_secs(1))));
    }
}
