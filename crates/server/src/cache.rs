//! Opens the cache from the settings, puts it into service and stops it: its devices, its pool and its engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;

use forebay_common::hidden::Hidden;
use forebay_common::lock::Mutex;
use forebay_config::{Export, Mode, Settings};
use forebay_control::{EventLog, Severity};
use forebay_disk::CacheDevice;
use forebay_engine::io::Device;
use forebay_engine::pool::{PoolError, Uuid};
use forebay_engine::{ChangeError, Engine};
use forebay_nfs::Nfs;
use forebay_runtime::{Threads, block_on, block_on_apart};
use forebay_vfs::{DirectoryLocks, Vfs};

use crate::busy_retry::BusyRetry;
use crate::cache_start::{Claimed, Context};
use crate::curve::CurveTask;
use crate::devices::{self, Missing, Start, is_missing, shared_disks};
use crate::error::Error;
use crate::health::{Asker, Known, Monitor};
use crate::identity::Identities;
use crate::in_time::{ASK_AGAIN, in_time};
use crate::in_use::InUse;
use crate::placement::Rules;
use crate::policies::Policies;
use crate::pool_work::Progress;
use crate::roster::Roster;
use crate::side_by_side::{make_beside_others, open_beside_others};
use crate::ublk_control::UblkDriver;
use crate::under_way::UnderWay;
use crate::volumes::Volumes;

/// The cache of a running server.
pub(crate) struct Cache {
    pub(crate) engine: Arc<Engine>,
    pub(crate) watch: Arc<CacheMonitor>,
    rules: Arc<Rules>,
    /// The UUID of the pool.
    pub(crate) pool: u128,
    /// Bytes of memory for cached blocks, at most.
    pub(crate) ram: u64,
    threads: Arc<Threads>,
    in_use: InUse,
    size: u64,
    /// Devices being removed in the background.
    removing: Mutex<Vec<JoinHandle<()>>>,
    /// The block volumes, which share the cache with the exports.
    pub(crate) volumes: Arc<Volumes>,
    /// Estimates the miss-ratio curve, if the settings want it.
    pub(crate) curve: Option<CurveTask>,
    /// The work on the pool that is in progress.
    pub(crate) progress: Progress,
    /// The policies of files and directories.
    pub(crate) policies: Arc<Policies>,
    /// Watches the health of the disks, if the process has the privileges for it.
    monitor: Option<Monitor>,
}

/// The facts about devices and backing store that the engine's events and the disks report.
pub(crate) struct CacheMonitor {
    devices: Mutex<Vec<Arc<CacheDevice>>>,
    /// The name of each device, and the epoch in use.
    pub(crate) roster: Roster,
    /// Devices that were not there at the start.
    missing: Mutex<Vec<Missing>>,
    /// The health that the disks of the devices report.
    pub(crate) health: Mutex<Known>,
    /// Devices that failed, by name.
    pub(crate) lost: Mutex<Vec<String>>,
    /// Blocks found damaged on every device.
    pub(crate) damaged: AtomicU64,
    /// The last judgement of `health` on whether destaging is behind.
    pub(crate) behind: Mutex<crate::space::Behind>,
}

impl CacheMonitor {
    /// Returns a monitor that knows no device yet. The roster keeps names and epochs in the state directory.
    pub(crate) fn new(roster: Roster) -> Self {
        CacheMonitor {
            devices: Mutex::default(),
            roster,
            missing: Mutex::default(),
            health: Mutex::default(),
            lost: Mutex::default(),
            damaged: AtomicU64::default(),
            behind: Mutex::default(),
        }
    }

    /// Adds a device in use. It takes the place of a lost or missing device, which the health names no more.
    fn add(&self, device: Arc<CacheDevice>) {
        self.replace(device.name());
        self.devices.lock().push(device);
    }

    /// Marks the added device as present: in its own place, or else in the place of the first lost or missing device.
    fn replace(&self, name: &str) {
        let (mut lost, mut missing) = (self.lost.lock(), self.missing.lock());
        if let Some(at) = lost.iter().position(|lost| lost == name) {
            lost.remove(at);
        } else if let Some(at) = missing.iter().position(|missing| missing.name == name) {
            missing.remove(at);
        } else if !lost.is_empty() {
            lost.remove(0);
        } else if !missing.is_empty() {
            missing.remove(0);
        }
    }

    /// Returns the devices that were missing at the start and were not replaced since.
    pub(crate) fn missing(&self) -> Vec<Missing> {
        self.missing.lock().clone()
    }

    fn miss(&self, missing: Missing) {
        self.missing.lock().push(missing);
    }

    /// Returns the devices in use.
    pub(crate) fn devices(&self) -> Vec<Arc<CacheDevice>> {
        self.devices.lock().clone()
    }

    pub(crate) fn remove(&self, name: &str) {
        self.devices.lock().retain(|device| device.name() != name);
    }

    /// Moves a failed device from the devices in use to the lost ones. The health names it until a device is added.
    /// An NBD server of the device is left, so that it accepts another client.
    pub(crate) fn lose(&self, name: &str) {
        let lost = self.devices().into_iter().find(|device| device.name() == name);
        self.remove(name);
        lost.iter().for_each(|device| device.leave());
        self.lost.lock().push(name.to_owned());
    }
}

/// The cache part of the message that the server is ready.
#[derive(Debug, Clone, Default)]
pub struct CacheReady {
    /// The names of the devices; empty without a cache.
    pub devices: Vec<String>,
    /// Notices for the administrator, one sentence each.
    pub notices: Vec<String>,
}

/// Puts the cache into service in front of `vfs`, if the settings have a cache.
pub(crate) fn open(
    settings: &Settings,
    (vfs, nfs): (&Arc<Vfs>, &Nfs),
    identities: &mut Identities,
    events: &Arc<EventLog>,
    (asker, ublk): (Option<Asker>, Result<UblkDriver, String>),
    (retry, owner): (BusyRetry, &DirectoryLocks),
    under_way: &Arc<UnderWay>,
) -> Result<Option<(Cache, CacheReady)>, Error> {
    let in_use = InUse::new(&settings.state_dir);
    let Some((paths, mut notices)) = devices::paths(settings) else {
        in_use.require_none()?;
        if in_use.set_none()? {
            // The last pool may have had acknowledged data that the directories lack.
            vfs.verifier.lost();
        }
        return Ok(None);
    };
    let (roster, rules) = (Roster::open(&settings.state_dir)?, Arc::new(Rules::of(settings, owner)));
    let start = Start { settings, in_use: &in_use, roster: &roster, rules: &rules, events, under_way };
    let opened = start.open(&paths, retry)?;
    notices.extend(opened.notices);
    let (uuid, fresh, pool) = (opened.pool.uuid, opened.fresh, opened.pool);
    in_use.require(uuid, settings.cache.format)?;
    let volumes = Volumes::open(settings, events, ublk)?;
    let watch = Arc::new(CacheMonitor::new(roster.clone()));
    notices.extend(opened.missing.iter().map(Missing::reason));
    let is_used =
        |device: &Arc<CacheDevice>| pool.present().any(|(_, member)| member.name() == device.name());
    let new = fresh && opened.made.are_all(&opened.devices);
    let (used, unused): (Vec<_>, Vec<_>) = opened.devices.into_iter().partition(is_used);
    used.into_iter().for_each(|device| watch.add(device));
    // Unused devices are named in the status, but not used: see the notices.
    unused.iter().for_each(|device| watch.lose(device.name()));
    opened.missing.into_iter().for_each(|missing| watch.miss(missing));
    let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    let context = Context {
        settings,
        vfs,
        nfs,
        identities,
        events,
        under_way,
        watch: &watch,
        in_use: &in_use,
        volumes: &volumes,
    };
    let claimed = Claimed::new(context, pool, fresh);
    let started = claimed.and_then(|claimed| claimed.replay(&names)?.reconcile()?.serve());
    let (engine, threads) = match started {
        Ok(started) => started,
        Err(error) => {
            if new {
                // The files are removed, so no start may look for them.
                roster.forget(uuid);
                let _ = in_use.clear();
            } else {
                opened.made.keep();
            }
            return Err(error);
        }
    };
    opened.made.keep();
    let removing = Mutex::default();
    let (size, ram) = (settings.cache.size, settings.cache.ram);
    let monitor = asker.map(|asker| Monitor::start(asker, watch.clone(), events.clone())).transpose()?;
    let curve = settings.cache.curve.then(|| CurveTask::start(&engine)).transpose()?;
    let policies = Policies::open(settings, (vfs, &engine), events)
        .map_err(|source| Error::StateDir { path: settings.state_dir.clone(), source })?;
    let cache = Cache {
        engine,
        watch,
        rules,
        pool: uuid,
        ram,
        threads,
        in_use,
        size,
        removing,
        volumes,
        curve,
        progress: Progress::default(),
        policies,
        monitor,
    };
    for path in opened.to_make {
        notices.push(match cache.add(&path, false) {
            Ok(()) => format!("{} was not there: made anew and added to the cache", path.display()),
            Err(error) => error,
        });
    }
    notices.extend(cache.notes());
    for notice in &notices {
        // The administrator who starts the server reads the notices with the message that the server is ready.
        events.keep(Severity::Warning, "cache", notice.clone(), &[]);
    }
    let devices = cache.devices().iter().map(|device| device.name().to_owned()).collect();
    Ok(Some((cache, CacheReady { devices, notices })))
}

/// Returns 128 random bits of the kernel, for UUIDs of pools, devices and volumes.
pub(crate) fn random() -> u128 {
    let mut bytes = [0; 16];
    // The kernel's generator never returns fewer bytes than requested, up to 256 bytes.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u128::from_le_bytes(bytes)
}

/// Removes the file of a device that was made and not added. The removal may fail without harm: the returned error says
/// that the device was not added.
fn remove_file(path: PathBuf, error: &ChangeError) {
    let remove = move || drop(std::fs::remove_file(path));
    if matches!(error, ChangeError::Silent { .. }) {
        // The file's file system may not answer either.
        drop(std::thread::Builder::new().name("forebay-remove-file".into()).spawn(remove));
    } else {
        remove();
    }
}

/// Returns the engine's mode for a mode of the configuration.
pub(crate) fn engine_mode(mode: Mode) -> forebay_engine::Mode {
    match mode {
        Mode::WriteBack => forebay_engine::Mode::WriteBack,
        Mode::WriteThrough => forebay_engine::Mode::WriteThrough,
        Mode::WriteAround => forebay_engine::Mode::WriteAround,
        Mode::PassThrough => forebay_engine::Mode::PassThrough,
    }
}

/// Returns the mode by its name in the settings.
pub(crate) fn config_mode(mode: forebay_engine::Mode) -> Mode {
    match mode {
        forebay_engine::Mode::WriteBack => Mode::WriteBack,
        forebay_engine::Mode::WriteThrough => Mode::WriteThrough,
        forebay_engine::Mode::WriteAround => Mode::WriteAround,
        forebay_engine::Mode::PassThrough => Mode::PassThrough,
    }
}

impl Cache {
    /// Returns the devices in use.
    pub(crate) fn devices(&self) -> Vec<Arc<CacheDevice>> {
        self.watch.devices()
    }

    /// Records the served exports: no cache device and no volume may be in their directories.
    pub(crate) fn set_exports(&self, exports: &[Export]) {
        *self.rules.exports.write() = exports.to_vec();
        self.volumes.set_exports(exports);
    }

    /// Returns the paths of the cache devices and of the backing devices of volumes.
    pub(crate) fn storage(&self) -> Vec<PathBuf> {
        let volumes = self.volumes.statuses().into_iter().map(|volume| volume.backing);
        self.devices().iter().map(|device| PathBuf::from(device.name())).chain(volumes).collect()
    }

    /// Adds a device, and creates its file if that is missing. After an error no created file is left.
    pub(crate) fn add(&self, path: &Path, force: bool) -> Result<(), String> {
        if let Some(refusal) = Hidden::of_this_process().refusal(path) {
            return Err(refusal);
        }
        let others: Vec<_> = self.devices().iter().map(|device| PathBuf::from(device.name())).collect();
        if others.iter().any(|other| other == path) {
            return Err(format!("{} is a cache device already", path.display()));
        }
        let make = self.check_new(path, others)?;
        let opened = match make {
            true => make_beside_others(path, self.size, BusyRetry::new()),
            false => open_beside_others(path, self.size, BusyRetry::new()),
        };
        let device = opened.map_err(|error| error.to_string())?;
        let (engine, newcomer) = (self.engine.clone(), device.clone());
        let added = block_on_apart(async move { engine.add_device(newcomer, force).await });
        added.map_err(|error| {
            if make && !matches!(error, ChangeError::Pool(PoolError::Unnoted(_))) {
                remove_file(path.to_owned(), &error);
            }
            match error {
                ChangeError::Pool(PoolError::InUse { device, what }) => {
                    format!("{device} holds {what}; name another device, or overwrite this one with --force")
                }
                error => error.to_string(),
            }
        })?;
        self.watch.add(device);
        self.monitor.iter().for_each(Monitor::look);
        Ok(())
    }

    /// Checks that a path may become a cache device beside `others`. Returns true if its file has to be made.
    ///
    /// # Errors
    /// A sentence: the rules refuse the path, or its file system does not answer.
    fn check_new(&self, path: &Path, others: Vec<PathBuf>) -> Result<bool, String> {
        let before = self.watch.roster.member(path);
        let (rules, place) = (self.rules.clone(), path.to_owned());
        in_time(&path.display().to_string(), ASK_AGAIN, move || {
            rules.check(&place, &others, before.as_ref()).map_err(|error| error.to_string())?;
            Ok(is_missing(&place))
        })?
    }

    /// Takes a device out of use. Data that only this device and its mirror have is destaged first.
    pub(crate) fn remove(&self, path: &Path) -> Result<(), String> {
        let (engine, name) = (self.engine.clone(), path.display().to_string());
        let removed = block_on_apart(async move { engine.remove_device(&name).await });
        removed.map_err(|error| error.to_string())
    }

    /// Begins to take a device out of use; an event reports the result.
    pub(crate) fn start_remove(&self, path: PathBuf, events: &Arc<EventLog>) -> Result<(), String> {
        self.engine.may_remove(&path.display().to_string()).map_err(|error| error.to_string())?;
        let (engine, events) = (self.engine.clone(), events.clone());
        let thread = std::thread::Builder::new().name("forebay-remove".into()).spawn(move || {
            if let Err(error) = block_on(engine.remove_device(&path.display().to_string())) {
                events.add(Severity::Error, "remove-failed", format!("{}: {error}", path.display()), &[]);
            }
        });
        self.removing.lock().push(thread.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Reads every copy of every block and repairs the bad copies. Runs in the background unless `wait` is set.
    pub(crate) fn scrub(&self, wait: bool) -> Result<(), String> {
        if wait {
            let engine = self.engine.clone();
            block_on_apart(async move { engine.scrub().await }).map_err(|error| error.to_string())?;
        } else {
            self.engine.start_scrub();
        }
        Ok(())
    }

    /// Returns the served file systems that have not answered the engine for ten seconds. Block volumes are left out.
    pub(crate) fn silent_file_systems(&self) -> Vec<String> {
        let is_late = |trouble| trouble == Some(forebay_engine::Error::Late);
        let late = self.engine.volumes().into_iter().filter(|volume| is_late(volume.trouble));
        late.map(|volume| volume.name).filter(|name| !self.volumes.has_in_engine(name)).collect()
    }

    /// Returns remarks on the number and the places of the devices; none of them is a fault.
    pub(crate) fn notes(&self) -> Vec<String> {
        let devices = self.devices();
        let mut notes = shared_disks(&devices);
        if devices.len() < 2 && self.engine.mode() == forebay_engine::Mode::WriteBack {
            notes.insert(
                0,
                "there is one cache device only: the mode in force is write-through, because write-back keeps every \
                 change on two devices; name a second one with --cache, or add it with `forebay pool add`"
                    .to_owned(),
            );
        }
        notes
    }

    /// Waits for the threads of the closed engine, and records which data stays on the devices.
    pub(crate) fn stopped(&self, dirty: u64) -> Result<(), Error> {
        for thread in std::mem::take(&mut *self.removing.lock()) {
            // A thread that panicked has already reported the panic.
            let _ = thread.join();
        }
        self.threads.join();
        if dirty == 0 { self.in_use.clear() } else { Ok(()) }
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").finish_non_exhaustive()
    }
}

/// Returns a pool's UUID in its text form.
pub(crate) fn written(uuid: u128) -> String {
    Uuid(uuid).to_string()
}
