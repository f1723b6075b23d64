//! The members of the pool as the state directory knows them. `cache-epochs` has the epoch in use, and decides.
//! `cache-members` has each device's name, serial number and time of use. People read it; it decides nothing.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_common::lock::Mutex;
use forebay_disk::whereabouts;
use forebay_engine::io::{Io, Leg, Noted, Witness, WitnessError};
use forebay_engine::pool::{Pool, PoolError};
use forebay_runtime::unblock;

use crate::cache::written;
use crate::epochs::Epochs;
use crate::error::Error;
use crate::in_use::{failed, read, replace};

/// The number of devices that are remembered: those seen last.
const RECORDS: usize = 256;

/// The record of a device that is, or was, a member of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// The pool's UUID.
    pub(crate) pool: String,
    /// The device's UUID.
    pub(crate) uuid: String,
    /// True if the device is one of the members in use.
    pub(crate) active: bool,
    /// When the device was last in use, in seconds since 1970. For a device in use: a time since which it is in use.
    pub(crate) seen: u64,
    /// The administrator's name for the device.
    pub(crate) path: String,
    /// Its name in /dev/disk/by-id; empty if it has none.
    pub(crate) stable: String,
    /// The serial number of its disk; empty if it has none.
    pub(crate) serial: String,
    /// Where the file system of a file is mounted; empty for a block device.
    pub(crate) mount: String,
}

/// The two files. Clones share their contents.
#[derive(Clone, Debug)]
pub(crate) struct Roster(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    path: std::path::PathBuf,
    epochs: Mutex<Epochs>,
    /// Records in the order in which the devices were seen last.
    records: Mutex<Vec<Record>>,
}

impl Roster {
    /// Reads the files, if they exist.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, Error> {
        let (epochs, path) = (state_dir.join("cache-epochs"), state_dir.join("cache-members"));
        let epochs = Epochs::open(&epochs).map_err(|error| failed(&epochs, error))?;
        let text = read(&path)?.unwrap_or_default();
        let records = text.lines().filter_map(Record::parse).collect();
        Ok(Roster(Arc::new(Inner { path, epochs: Mutex::new(epochs), records: Mutex::new(records) })))
    }

    /// Fails if the cache was used without the present devices since they were last in use.
    pub(crate) fn require(&self, pool: &Pool) -> Result<(), Error> {
        let noted = self.0.epochs.lock().of(&written(pool.uuid)).in_use;
        if noted <= pool.in_use() {
            return Ok(());
        }
        let here: Vec<_> = pool.present().map(|(_, device)| self.describe(device.name())).collect();
        let records = self.0.records.lock();
        let active = records.iter().filter(|record| record.active && record.pool == written(pool.uuid));
        let expected: Vec<_> = active.clone().map(Record::describe).collect();
        let since = active.map(|record| record.seen).max().map_or_else(|| "later".to_owned(), utc);
        let expected = match &expected[..] {
            [] => "the other devices of its pool".to_owned(),
            some => some.join(" and "),
        };
        Err(Error::CacheOutOfDate { devices: here.join(" and "), expected, since })
    }

    /// Returns true if the epoch in use of a pool is recorded. Otherwise nothing tells if the present devices missed
    /// changes.
    pub(crate) fn knows(&self, pool: u128) -> bool {
        self.0.epochs.lock().of(&written(pool)).in_use > 0
    }

    /// Returns the record of the device that was a member of the pool used last and is called `path`.
    pub(crate) fn member(&self, path: &Path) -> Option<Record> {
        let name = clean(&path.display().to_string());
        let records = self.0.records.lock();
        let last = &records.last()?.pool;
        records.iter().rfind(|record| record.path == name && record.pool == *last).cloned()
    }

    /// Returns the record of a device by its UUID.
    pub(crate) fn known(&self, uuid: u128) -> Option<Record> {
        let uuid = written(uuid);
        self.0.records.lock().iter().rfind(|record| record.uuid == uuid).cloned()
    }

    /// Returns the name of the device with its lasting name, serial number and UUID, as far as they are known.
    pub(crate) fn describe(&self, name: &str) -> String {
        let record = self.member(Path::new(name));
        record.map_or_else(|| name.to_owned(), |record| record.describe())
    }

    /// Records that the administrator removed the device, so it is not a missing member.
    pub(crate) fn removed(&self, name: &str) {
        let name = clean(name);
        let mut records = self.0.records.lock();
        records.retain(|record| record.path != name);
        self.save(&records);
    }

    /// Forgets a pool that a failed start has created.
    pub(crate) fn forget(&self, pool: u128) {
        let pool = written(pool);
        if let Err(error) = self.0.epochs.lock().forget(&pool) {
            tracing::warn!("the epoch of a pool that is not used is kept: {error}");
        }
        let mut records = self.0.records.lock();
        records.retain(|record| record.pool != pool);
        self.save(&records);
    }

    /// Records the epoch in use durably, and for people the devices that have it.
    fn note(&self, pool: &str, epoch: u64, legs: &[Leg]) -> std::io::Result<()> {
        self.0.epochs.lock().set(pool, epoch)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut records = self.0.records.lock();
        for record in records.iter_mut().filter(|record| record.pool == pool && record.active) {
            (record.active, record.seen) = (false, now);
        }
        for leg in legs {
            let uuid = written(leg.uuid);
            let path = clean(&leg.name);
            let before = records.iter().position(|record| record.uuid == uuid && record.pool == pool);
            let before = before.map(|at| records.remove(at)).unwrap_or_default();
            // A device that had this name before is no longer present.
            records.retain(|record| record.path != path || record.pool != pool);
            let mut record = Record { pool: pool.into(), uuid, active: true, seen: now, path, ..before };
            if let Ok(place) = whereabouts(Path::new(&leg.name)) {
                let shown = |path: Option<std::path::PathBuf>| {
                    path.map_or_else(String::new, |path| clean(&path.display().to_string()))
                };
                record.stable = shown(place.stable);
                record.serial = clean(&place.serial.unwrap_or_default());
                record.mount = shown(place.mount);
            }
            records.push(record);
        }
        let surplus = records.len().saturating_sub(RECORDS);
        records.drain(..surplus);
        self.save(&records);
        Ok(())
    }

    /// Writes `cache-members`. Only people read the file, so a failure is logged and has no other effect.
    fn save(&self, records: &[Record]) {
        let text: String = records.iter().map(Record::line).collect();
        if let Err(error) = replace(&self.0.path, &text) {
            tracing::warn!("the names of the cache devices are not kept: {error}");
        }
    }
}

impl Witness for Roster {
    fn note(&self, pool: u128, epoch: u64, members: Vec<Leg>) -> Io<Result<(), WitnessError>> {
        let roster = self.clone();
        unblock("forebay-epoch", move || {
            let noted = roster.note(&written(pool), epoch, &members);
            noted.map_err(|error| WitnessError(format!("{}: {error}", roster.0.path.display())))
        })
    }

    fn give(&self, pool: u128, epoch: u64) -> Io<Result<(), WitnessError>> {
        let roster = self.clone();
        unblock("forebay-epoch", move || {
            let given = roster.0.epochs.lock().give(&written(pool), epoch);
            given.map_err(|error| WitnessError(format!("{}: {error}", roster.0.path.display())))
        })
    }

    fn noted(&self, pool: u128) -> Io<Result<Noted, WitnessError>> {
        Box::pin(std::future::ready(Ok(self.0.epochs.lock().of(&written(pool)))))
    }
}

impl Record {
    /// Returns the name of the device with its lasting name, serial number and UUID.
    pub(crate) fn describe(&self) -> String {
        let mut more = Vec::new();
        if !self.stable.is_empty() {
            more.push(self.stable.clone());
        }
        if !self.serial.is_empty() {
            more.push(format!("serial {}", self.serial));
        }
        if !self.uuid.is_empty() {
            more.push(format!("UUID {}", self.uuid));
        }
        if more.is_empty() { self.path.clone() } else { format!("{} ({})", self.path, more.join(", ")) }
    }

    /// Returns the time when the device was last in use.
    pub(crate) fn seen(&self) -> String {
        utc(self.seen)
    }

    /// Returns the record as a line of the file.
    fn line(&self) -> String {
        let Record { pool, uuid, active, seen, path, stable, serial, mount } = self;
        format!("{pool}\t{uuid}\t{active}\t{seen}\t{path}\t{stable}\t{serial}\t{mount}\n")
    }

    /// Parses a line of the file. Returns `None` for a line with other fields, which is then ignored.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<_> = line.split('\t').collect();
        let [pool, uuid, active, seen, path, stable, serial, mount] = fields[..] else { return None };
        let text = str::to_owned;
        Some(Record {
            pool: text(pool),
            uuid: text(uuid),
            active: active == "true",
            seen: seen.parse().ok()?,
            path: text(path),
            stable: text(stable),
            serial: text(serial),
            mount: text(mount),
        })
    }
}

/// Returns the text without tabs and line ends, as one word of a line of the file.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Formats a time in seconds since 1970 as date and time of day.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that a leap day is the last day of a year.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3600, rest % 3600 / 60)
}

/// Converts a pool's refusal to an error that names the devices as the administrator knows them.
pub(crate) fn refused(error: PoolError) -> Error {
    Error::Cache(match error {
        PoolError::InUse { device, what } => format!(
            "{device} holds {what}; name another device, or overwrite everything on all of them with --format-cache"
        ),
        error => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(utc(1_795_374_059), "2026-11-22 19:00 UTC");
    }

    #[test]
    fn members_are_known_by_path_and_uuid_also_after_a_restart() {
        let home = tempfile::tempdir().unwrap();
        let roster = Roster::open(home.path()).unwrap();
        let leg = |uuid, name: &str| Leg { uuid, name: name.into() };
        roster.note(&written(1), 5, &[leg(10, "/ssd1/c"), leg(11, "/ssd2/c")]).unwrap();
        roster.note(&written(1), 6, &[leg(10, "/ssd1/c")]).unwrap();
        let again = Roster::open(home.path()).unwrap();
        let lost = again.member(Path::new("/ssd2/c")).unwrap();
        assert!(!lost.active && lost.uuid == written(11), "{lost:?}");
        assert!(lost.describe().starts_with("/ssd2/c (UUID "), "{}", lost.describe());
        assert_eq!(again.known(10).unwrap().path, "/ssd1/c");
        again.removed("/ssd2/c");
        assert_eq!(Roster::open(home.path()).unwrap().member(Path::new("/ssd2/c")), None);
        again.forget(1);
        assert_eq!(Roster::open(home.path()).unwrap().member(Path::new("/ssd1/c")), None);
    }
}
