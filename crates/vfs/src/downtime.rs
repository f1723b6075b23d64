//! When the directories were not owned by a server: files changed then may differ from their clean copies in the cache.
//!
//! A file in the state directory tells when a server was alive last; what lies between that and the next start is a
//! downtime. All of them are kept, since a copy may be asked for years later for the first time.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_lock::Mutex;

use crate::attr::Time;

/// Between two signs of life. After a crash, copies of files changed since the last one are dropped for nothing.
const SIGN: Duration = Duration::from_secs(1);
/// Change times lag by up to a clock tick.
const TICK: Duration = Duration::from_millis(10);
/// Beyond so many the oldest are taken for one.
const MOST: usize = 1000;

/// The downtimes so far, each from and to in nanoseconds since 1970.
#[derive(Debug)]
pub struct Downtime {
    spans: Vec<(u64, u64)>,
    alive: Arc<Mutex<Option<File>>>,
}

impl Downtime {
    /// Reads the downtimes of `state_dir`, adds the one that ends now, and begins to give signs of life. Nothing may have
    /// been served yet.
    pub fn end(state_dir: &Path) -> io::Result<Self> {
        let path = state_dir.join("downtimes");
        let mut spans: Vec<_> = match std::fs::read_to_string(&path) {
            Ok(text) => text.lines().filter_map(parse).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let alive = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(state_dir.join("alive"))?;
        let mut last = [0; 8];
        // An empty file: no server has run, and no copy can be older than that.
        let _ = alive.read_at(&mut last, 0)?;
        spans.push((u64::from_le_bytes(last), nanos(SystemTime::now())));
        if spans.len() > MOST {
            let (first, second) = (spans[0], spans.remove(1));
            spans[0] = (first.0.min(second.0), first.1.max(second.1));
        }
        crate::state::replace(&path, |file: &mut File| {
            spans.iter().try_for_each(|(from, to)| writeln!(file, "{from} {to}"))
        })?;
        let downtime = Downtime { spans, alive: Arc::new(Mutex::new(Some(alive))) };
        sign(&downtime.alive);
        // What is changed through this server must not look as if it was changed before.
        std::thread::sleep(TICK);
        let weak = Arc::downgrade(&downtime.alive);
        std::thread::Builder::new().name("forebay-alive".into()).spawn(move || keep_signing(&weak))?;
        Ok(downtime)
    }

    /// Whether a file that was changed last at `ctime` was changed while no server owned it.
    pub(crate) fn covers(&self, ctime: Time) -> bool {
        let at = ctime.sec.max(0) as u64 * 1_000_000_000 + u64::from(ctime.nsec);
        self.spans.iter().any(|(from, to)| *from < at && at <= *to)
    }

    /// The server is alive: whatever was changed until a moment ago was changed through it.
    pub(crate) fn sign(&self) {
        sign(&self.alive);
    }

    /// The last sign of life: whatever was changed until now was changed through this server, and nothing will be any
    /// more. What others change once this has returned has a later change time.
    pub(crate) fn begin(&self) {
        if let Some(alive) = self.alive.lock().take() {
            write(&alive, SystemTime::now());
        }
        std::thread::sleep(2 * TICK);
    }
}

fn parse(line: &str) -> Option<(u64, u64)> {
    let (from, to) = line.split_once(' ')?;
    Some((from.parse().ok()?, to.parse().ok()?))
}

fn nanos(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

/// A sign of life, so old that what others change after a crash right now has a later change time. False once there will
/// be none any more.
fn sign(alive: &Mutex<Option<File>>) -> bool {
    // Under the lock, so that no sign is replaced by an older one.
    let alive = alive.lock();
    if let Some(alive) = &*alive {
        write(alive, SystemTime::now() - 2 * TICK);
    }
    alive.is_some()
}

/// Not synced: it outlives the process, and after a power cut an older sign makes the downtime longer, nothing worse.
fn write(alive: &File, at: SystemTime) {
    let _ = alive.write_at(&nanos(at).to_le_bytes(), 0);
}

fn keep_signing(alive: &Weak<Mutex<Option<File>>>) {
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

    #[test]
    fn what_happened_between_two_runs_is_covered_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let first = Downtime::end(dir.path()).unwrap();
        assert!(first.covers(time(back(1))), "no server ran then");
        drop(first);
        let stopped = nanos(back(100)).to_le_bytes();
        std::fs::write(dir.path().join("downtimes"), "").unwrap();
        std::fs::write(dir.path().join("alive"), stopped).unwrap();
        let second = Downtime::end(dir.path()).unwrap();
        assert!(second.covers(time(back(50))) && !second.covers(time(back(101))));
        drop(second);
        let third = Downtime::end(dir.path()).unwrap();
        assert!(third.covers(time(back(50))), "of an earlier downtime");
    }
}
