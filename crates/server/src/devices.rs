//! The cache devices at a start: which are present, which are missing, and which may be created.
//!
//! A file is created only for a new pool, or if the administrator requests it (`--make-missing`, `pool add`). A path
//! that does not exist may be an SSD that is not mounted, or a device that has another name today.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_common::nbd_url::NbdUrl;
use forebay_config::{Mode, Settings, format_size};
use forebay_control::EventLog;
use forebay_disk::{CacheDevice, OpenError as DeviceError};
use forebay_engine::io::{Device, Witness};
use forebay_engine::pool::{Notice, Patience, Pool, PoolError};
use forebay_runtime::{SystemClock, block_on, block_on_apart};

use crate::busy_retry::BusyRetry;
use crate::cache::random;
use crate::error::Error;
use crate::event_report::tell_opening;
use crate::in_use::InUse;
use crate::placement::Rules;
use crate::roster::{Record, Roster, refused};
use crate::side_by_side::{deadline, open_side_by_side};
use crate::under_way::UnderWay;

/// Names of the cache files that are created if the settings name none.
const DEFAULT_FILES: [&str; 2] = ["cache-a", "cache-b"];

/// A pool that may be put into service.
pub(crate) struct Opened {
    pub(crate) pool: Pool,
    /// All devices that were opened, including those that the pool does not use.
    pub(crate) devices: Vec<Arc<CacheDevice>>,
    /// Paths that do not exist, to be created and added.
    pub(crate) to_make: Vec<PathBuf>,
    /// Devices that are missing.
    pub(crate) missing: Vec<Missing>,
    /// True if the pool was created by this start.
    pub(crate) fresh: bool,
    /// The files that were created for the pool.
    pub(crate) made: Made,
    /// Notices for the administrator, one sentence each.
    pub(crate) notices: Vec<String>,
}

/// A device that should be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    /// The administrator's name for the device.
    pub(crate) name: String,
    /// The name with the lasting name, serial number and UUID, as far as they are known.
    pub(crate) described: String,
    /// The time when the device was last in use, if that is known.
    pub(crate) seen: Option<String>,
}

impl Missing {
    /// Returns the missing device at a path, described as the state directory knows it from its last use.
    fn new(path: &Path, record: Option<Record>) -> Self {
        let name = path.display().to_string();
        match record {
            Some(record) => Missing { name, described: record.describe(), seen: Some(record.seen()) },
            None => Missing { described: name.clone(), name, seen: None },
        }
    }

    /// Returns a sentence that says which device is missing, and what to do.
    pub(crate) fn reason(&self) -> String {
        let seen = self.seen.as_ref().map_or_else(String::new, |seen| format!(", in use last at {seen}"));
        if NbdUrl::is_meant(Path::new(&self.name)) {
            return format!(
                "cache device {} is missing{seen}; when its NBD server answers, run `forebay pool add {}`",
                self.described, self.name
            );
        }
        format!(
            "cache device {} is missing{seen}; connect it, then run `forebay pool add {}` (a cache file is made anew by that); if it \
             has another name now, run that with the new name, and put it into the configuration",
            self.described, self.name
        )
    }
}

/// Files that a start has created. Dropping the value removes them, unless [`Made::keep`] was called.
#[derive(Debug, Default)]
pub(crate) struct Made(Vec<PathBuf>);

impl Made {
    /// Keeps the files, because they are in use from now on.
    pub(crate) fn keep(mut self) {
        self.0.clear();
    }

    /// Returns true if the devices are exactly the created files.
    pub(crate) fn are_all(&self, devices: &[Arc<CacheDevice>]) -> bool {
        self.0.len() == devices.len()
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in &self.0 {
            if let Err(error) = std::fs::remove_file(path) {
                tracing::warn!(
                    "{} was made by a start that failed, and cannot be removed: {error}",
                    path.display()
                );
            }
        }
    }
}

/// The settings and records that a start has before it opens the devices.
pub(crate) struct Start<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) in_use: &'a InUse,
    pub(crate) roster: &'a Roster,
    pub(crate) rules: &'a Rules,
    pub(crate) events: &'a Arc<EventLog>,
    pub(crate) under_way: &'a Arc<UnderWay>,
}

/// Returns the paths of the devices to use with notices about them; `None` means no cache.
pub(crate) fn paths(settings: &Settings) -> Option<(Vec<PathBuf>, Vec<String>)> {
    if !settings.cache.devices.is_empty() {
        return Some((settings.cache.devices.clone(), Vec::new()));
    }
    let files = DEFAULT_FILES.map(|name| settings.state_dir.join(name));
    if settings.mode == Mode::PassThrough {
        // Existing files may hold data that no other place has.
        let used = files.iter().any(|path| path.exists());
        let notice = "the cache files of earlier runs are in use; remove them after `forebay flush --wait` and a stop \
                      to serve without a cache";
        return used.then(|| (files.to_vec(), vec![notice.to_owned()]));
    }
    let notice = format!(
        "no --cache is given: two files of {} in {} are the cache; name devices on two SSDs for speed and safety",
        format_size(settings.cache.size),
        settings.state_dir.display()
    );
    Some((files.to_vec(), vec![notice]))
}

/// Opens a device. A device that is in use may belong to a killed process for a moment, so the call tries again.
pub(crate) fn device(path: &Path, size: u64, retry: BusyRetry) -> Result<Arc<CacheDevice>, DeviceError> {
    let busy = |error: &DeviceError| matches!(error, DeviceError::InUse { .. });
    let open = || CacheDevice::open_or_create(path, size).map(Arc::new);
    retry.take(&path.display().to_string(), busy, open)
}

/// Makes the file of a device, with the retries of [`device`]. Calls `step` as long as the making goes on.
pub(crate) fn make(
    path: &Path,
    size: u64,
    retry: BusyRetry,
    step: &dyn Fn(),
) -> Result<Arc<CacheDevice>, DeviceError> {
    let busy = |error: &DeviceError| matches!(error, DeviceError::InUse { .. });
    let make = || CacheDevice::make(path, size, step).map(Arc::new);
    retry.take(&path.display().to_string(), busy, make)
}

fn dynamic(devices: &[Arc<CacheDevice>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| device.clone() as Arc<dyn Device>).collect()
}

impl Start<'_> {
    /// Opens the pool on the devices that are present, or creates a pool of all devices.
    ///
    /// # Errors
    /// One sentence. The contents of the devices are unchanged, and no created file is left.
    pub(crate) fn open(&self, paths: &[PathBuf], retry: BusyRetry) -> Result<Opened, Error> {
        for (at, path) in paths.iter().enumerate().filter(|(_, path)| !is_missing(path)) {
            self.check(path, &paths[..at])?;
        }
        let (opened, unusable) = self.devices_there(paths, retry)?;
        let missing: Vec<_> = paths.iter().filter(|path| is_missing(path)).cloned().collect();
        let format = self.settings.cache.format;
        if !format && !opened.is_empty() {
            match self.open_pool(dynamic(&opened)) {
                Ok(pool) => return self.old(pool, opened, &missing, &unusable),
                Err(PoolError::NoPool | PoolError::Unfinished(_)) => {}
                Err(error) => {
                    let silent = unusable.iter().find(|error| matches!(error, DeviceError::Silent { .. }));
                    return Err(match silent {
                        Some(silent) => Error::Cache(format!("{silent}; without it, {}", refused(error))),
                        None => refused(error),
                    });
                }
            }
        }
        if let Some(error) = unusable.first() {
            return Err(Error::Cache(error.to_string()));
        }
        if !format {
            self.in_use.require_none()?;
        }
        self.new_pool(opened, &missing, retry)
    }

    /// Opens the pool, without the silent devices if the other devices are enough.
    fn open_pool(&self, devices: Vec<Arc<dyn Device>>) -> Result<Pool, PoolError> {
        let (events, under_way) = (self.events.clone(), self.under_way.clone());
        let patience = Patience {
            clock: Arc::new(SystemClock::new()),
            deadline: deadline(),
            witness: Some(Arc::new(self.roster.clone()) as Arc<dyn Witness>),
            events: Arc::new(move |event| tell_opening(&events, &under_way, &event)),
        };
        block_on_apart(async move { Pool::open_within(devices, &patience).await })
    }

    /// Checks that a device may become a part of the cache, beside `others`. The device as the state directory knows
    /// it may come back.
    fn check(&self, path: &Path, others: &[PathBuf]) -> Result<(), Error> {
        let before = self.roster.member(path);
        self.rules.check(path, others, before.as_ref()).map_err(|error| Error::Cache(error.to_string()))
    }

    /// Opens the present devices. A device that cannot be used is skipped if the remaining devices are a pool.
    fn devices_there(
        &self,
        paths: &[PathBuf],
        retry: BusyRetry,
    ) -> Result<(Vec<Arc<CacheDevice>>, Vec<DeviceError>), Error> {
        let (mut opened, mut unusable) = (Vec::new(), Vec::new());
        let there: Vec<_> = paths.iter().filter(|path| !is_missing(path)).cloned().collect();
        let waits_for = |path: &Path| self.under_way.silent(&path.display().to_string());
        for answer in open_side_by_side(there, self.settings.cache.size, retry, waits_for) {
            match answer {
                Ok(device) => opened.push(device),
                Err(error @ DeviceError::InUse { .. }) => return Err(Error::Cache(error.to_string())),
                Err(error) => unusable.push(error),
            }
        }
        Ok((opened, unusable))
    }

    /// Opens a pool that was in use before.
    fn old(
        &self,
        pool: Pool,
        devices: Vec<Arc<CacheDevice>>,
        missing: &[PathBuf],
        unusable: &[DeviceError],
    ) -> Result<Opened, Error> {
        self.roster.require(&pool)?;
        let mut notices: Vec<_> = unusable.iter().map(ToString::to_string).collect();
        let is_used = |device: &&Arc<CacheDevice>| pool.present().any(|(_, it)| it.name() == device.name());
        notices.extend(devices.iter().filter(is_used).filter_map(|device| self.other_size(device)));
        let mut missed: Vec<_> = Vec::new();
        let mut to_make = Vec::new();
        for path in missing {
            if !self.settings.cache.make_missing {
                missed.push(Missing::new(path, self.roster.member(path)));
                continue;
            }
            match self.check(path, &[]) {
                Ok(()) => to_make.push(path.clone()),
                Err(error) => {
                    notices.push(error.to_string());
                    missed.push(Missing::new(path, self.roster.member(path)));
                }
            }
        }
        for notice in &pool.notices {
            match notice {
                // The missing member is known by a path that does not exist, or by its record.
                Notice::Missing { uuid, .. } => {
                    let record = self.roster.known(uuid.0);
                    let is_named = |path: &PathBuf| {
                        record.as_ref().is_some_and(|record| record.path == path.display().to_string())
                    };
                    let is_there =
                        || record.as_ref().is_some_and(|record| is_left_out(&record.path, &pool.notices));
                    if !missing.iter().any(is_named) && !is_there() {
                        let name = record
                            .as_ref()
                            .map_or_else(|| format!("UUID {uuid}"), |known| known.path.clone());
                        missed.push(Missing::new(Path::new(&name), record));
                    }
                }
                notice => notices.push(notice.to_string()),
            }
        }
        Ok(Opened { pool, devices, to_make, missing: missed, fresh: false, made: Made::default(), notices })
    }

    /// Returns a notice if an existing file does not have the size in the settings.
    fn other_size(&self, device: &CacheDevice) -> Option<String> {
        let cache = &self.settings.cache;
        let other = cache.size_given && device.is_file() && device.size() != cache.size;
        other.then(|| {
            format!(
                "{} has {}, and stays so: a cache size ({}) is for files that are made; for another size add a new file with \
                 `forebay pool add`, then remove this one",
                device.name(),
                format_size(device.size()),
                format_size(cache.size)
            )
        })
    }

    /// Creates the missing files, and a pool of all devices.
    fn new_pool(
        &self,
        mut devices: Vec<Arc<CacheDevice>>,
        missing: &[PathBuf],
        retry: BusyRetry,
    ) -> Result<Opened, Error> {
        let cache = &self.settings.cache;
        let mut others: Vec<_> = devices.iter().map(|device| PathBuf::from(device.name())).collect();
        for path in missing {
            self.check(path, &others)?;
            let member = self.roster.member(path).filter(|_| !cache.make_missing && !cache.format);
            if let Some(member) = member {
                return Err(Error::CacheMissing { device: member.describe(), seen: member.seen() });
            }
            others.push(path.clone());
        }
        let notices = devices.iter().filter_map(|device| self.other_size(device)).collect();
        let mut made = Made::default();
        for path in missing {
            let device = device(path, cache.size, retry).map_err(|error| Error::Cache(error.to_string()))?;
            made.0.push(path.clone());
            devices.push(device);
        }
        let pool = block_on(Pool::format(dynamic(&devices), &mut random, cache.format)).map_err(refused)?;
        let (to_make, missing) = Default::default();
        Ok(Opened { pool, devices, to_make, missing, fresh: true, made, notices })
    }
}

/// Returns true if a member with this name is there, and the pool does without it. It counts as lost, not as missing.
fn is_left_out(name: &str, notices: &[Notice]) -> bool {
    notices.iter().any(|notice| match notice {
        Notice::Stale(device) | Notice::Damaged(device) | Notice::Silent(device) => device == name,
        Notice::Shrunk { device, .. } | Notice::Unreadable { device, .. } => device == name,
        Notice::Missing { .. } | Notice::NotMember(_) | Notice::Unfinished(_) => false,
    })
}

/// Returns true if the path does not exist. A path that cannot be examined, and an NBD server that cannot be reached,
/// fail when they are opened.
pub(crate) fn is_missing(path: &Path) -> bool {
    !NbdUrl::is_meant(path) && matches!(path.try_exists(), Ok(false))
}

/// Returns the devices that share a disk, one sentence for each pair of neighbours.
pub(crate) fn shared_disks(devices: &[Arc<CacheDevice>]) -> Vec<String> {
    let places: Vec<_> =
        devices.iter().filter_map(|device| Some((device.name(), place_of(device.name())?))).collect();
    let shares = |at: &usize| places[..*at].iter().find(|(_, disks)| !disks.is_disjoint(&places[*at].1));
    let pairs = (1..places.len()).filter_map(|at| Some((shares(&at)?.0, places[at].0)));
    let kind = |name: &str| if NbdUrl::is_meant(Path::new(name)) { "server" } else { "disk" };
    pairs
        .map(|(first, second)| {
            format!(
                "the cache devices {first} and {second} are on the same {}: they survive the loss of one of them, not of \
                 the {}, and each write goes to it twice",
                kind(first),
                kind(first)
            )
        })
        .collect()
}

/// Returns the disks that a device is on. For an NBD export, its server stands for them.
fn place_of(name: &str) -> Option<BTreeSet<String>> {
    match NbdUrl::of(Path::new(name)) {
        Some(url) => Some(BTreeSet::from([format!("{:?}", url.server())])),
        None => Some(forebay_disk::whereabouts(Path::new(name)).ok()?.disks),
    }
}
