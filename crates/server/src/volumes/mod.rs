//! The block volumes of a server: their record in the state directory, their identity, and their service.
//!
//! A volume whose backing device is missing, or is another one than recorded, is *refused*. The server starts without
//! it, writes nothing to the device, and keeps the volume's dirty data in the log.

mod attach;
mod changes;
mod changing;
mod device;
pub(crate) mod door;
mod identity;
mod open;
mod patience;
mod record;
mod refusal;
mod remote;
mod removal;
mod report;
mod unopened;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use forebay_common::lock::{Mutex, RwLock};
use forebay_config::Settings;
use forebay_control::{EventLog, Severity};
use forebay_engine::Engine;
use forebay_engine::io::Clock as _;
use forebay_engine::wait::before;
use forebay_runtime::{SystemClock, block_on_apart};
use forebay_volume::device::BackingDevice;
use forebay_volume::disk::{Disk, Disks};
use forebay_volume::store::Store;
use forebay_volume::volume::Volume;

use crate::cache::engine_mode;
use crate::error::Error;
use crate::ublk_control::UblkDriver;
use attach::Devices;
use changing::Changing;
use identity::Sign;
use open::{OpenDevice, Told};
use patience::{PATIENCE, in_time};
use record::{Record, Records, Removed, Rest};

/// The name of a removed volume in the engine.
const REMOVED: &str = "a removed volume";

/// The volumes of a server.
pub(crate) struct Volumes {
    settings: Settings,
    /// The directories that clients are served.
    exports: RwLock<Vec<PathBuf>>,
    events: Arc<EventLog>,
    all: Mutex<Vec<Entry>>,
    /// The removed volumes of which the log may still have data.
    removed: Mutex<Vec<Removed>>,
    changing: Changing,
    /// Held while the record is written, from the look at the volumes to the change of them in memory. Nothing waits
    /// for a backing device under it.
    recording: Mutex<()>,
    /// Set once the engine serves.
    serving: OnceLock<Serving>,
    /// The address of the NBD door.
    door: OnceLock<String>,
    /// The reason why the NBD door is shut.
    door_trouble: Mutex<Option<String>>,
    /// The block devices of attached volumes.
    devices: Devices,
}

struct Serving {
    engine: Arc<Engine>,
    store: Store,
}

/// An open backing device, or the reason why there is none.
type Opened = Result<Arc<dyn OpenDevice>, String>;

/// A volume that the record has.
#[derive(Clone)]
struct Entry {
    record: Record,
    device: Opened,
    volume: Option<Arc<Volume>>,
}

/// A volume in service.
struct Served {
    entry: Entry,
    volume: Arc<Volume>,
    device: Arc<dyn OpenDevice>,
}

impl Volumes {
    /// Opens the backing devices of all recorded volumes, and makes those that are new in the settings. Writes to no
    /// device.
    ///
    /// # Errors
    /// The record cannot be read or written, or the settings name a device that must not be a volume's.
    pub(crate) fn open(
        settings: &Settings,
        events: &Arc<EventLog>,
        ublk: Result<UblkDriver, String>,
    ) -> Result<Arc<Self>, Error> {
        let failed = |source| Error::StateDir { path: settings.state_dir.clone(), source };
        let records = record::read(&settings.state_dir).map_err(failed)?;
        let volumes = Volumes {
            settings: settings.clone(),
            exports: RwLock::new(settings.exports.iter().map(|export| export.path.clone()).collect()),
            events: events.clone(),
            all: Mutex::default(),
            removed: Mutex::new(records.removed),
            changing: Changing::default(),
            recording: Mutex::default(),
            serving: OnceLock::new(),
            door: OnceLock::new(),
            door_trouble: Mutex::default(),
            devices: Devices::new(ublk),
        };
        for mut record in records.volumes {
            if let Some(configured) = settings.volumes.iter().find(|volume| volume.name == record.name) {
                record.backing.clone_from(&configured.backing);
                (record.mode, record.read_only) = (configured.mode, configured.read_only);
            }
            let device = match volumes.other_use(&record) {
                Some(reason) => Err(format!("{reason}; nothing was changed: end that use, and start again")),
                None => open_recorded(&mut record, events),
            };
            if let Err(reason) = &device {
                let message = format!("volume {} is not served: {reason}", record.name);
                events.add(Severity::Error, "volume-refused", message, &[("volume", &record.name)]);
            }
            volumes.all.lock().push(Entry { record, device, volume: None });
        }
        for configured in &settings.volumes {
            if volumes.find(&configured.name).is_none() {
                let forebay_config::Volume { name, backing, mode, read_only } = configured.clone();
                let failed = |reason| Error::Volume { name: configured.name.clone(), reason };
                let entry = volumes.examine(name, &backing, mode, read_only).map_err(failed)?;
                volumes.all.lock().push(entry);
            }
        }
        volumes.keep().map_err(failed)?;
        Ok(Arc::new(volumes))
    }

    /// Makes the backing store of the engine know the volumes.
    pub(crate) fn register(&self, store: &Store) {
        for Entry { record, device, .. } in &*self.all.lock() {
            let device = device.as_ref().ok().map(|device| device.clone() as Arc<dyn BackingDevice>);
            store.add(record.uuid, &shown(record), record.identity.size, device);
        }
        for Removed { uuid, size } in &*self.removed.lock() {
            store.add(*uuid, REMOVED, *size, None);
        }
    }

    /// Puts the volumes into service, and ends the removals that a crash interrupted. Drops the copies of their data
    /// if the pool `is_outdated`: the volumes were served without it since.
    ///
    /// # Errors
    /// The state directory cannot be written, or no cache device is left.
    pub(crate) fn serve(&self, engine: &Arc<Engine>, store: &Store, is_outdated: bool) -> Result<(), Error> {
        for removed in std::mem::take(&mut *self.removed.lock()) {
            let forgotten = forget_removed(engine, store, &removed);
            forgotten.map_err(|error| Error::Cache(error.to_string()))?;
        }
        let entries = self.all.lock().clone();
        let mut served = Vec::new();
        for mut entry in entries {
            if let Ok(device) = &entry.device {
                let volume = new_volume(engine, &entry.record, device);
                let rest = entry.record.rest.take();
                let is_same =
                    |rest: &Rest| rest.sign.is_some() && rest.sign == Sign::of(&entry.record.backing);
                if is_outdated || rest.is_some_and(|rest| !is_same(&rest)) {
                    let dropping = volume.clone();
                    let dropped = block_on_apart(async move { dropping.changed_outside().await });
                    dropped.map_err(|error| Error::Cache(error.to_string()))?;
                }
                entry.volume = Some(volume);
            } else if is_outdated {
                // The start that finds the device drops the copies.
                entry.record.rest = Some(Rest { sign: None });
            }
            served.push(entry);
        }
        *self.all.lock() = served;
        let _ = self.serving.set(Serving { engine: engine.clone(), store: store.clone() });
        // A crash from here on is no clean stop.
        self.keep().map_err(|source| Error::StateDir { path: self.settings.state_dir.clone(), source })
    }

    /// Records that NBD clients reach the volumes at `address`.
    pub(crate) fn has_door(&self, address: String) {
        let _ = self.door.set(address);
    }

    /// Ends the service of clients, and makes all answered writes durable. A backing device that does not answer is
    /// left after [`PATIENCE`]. Sentences tell what could not be done.
    pub(crate) fn stop(&self) -> Vec<String> {
        let entries = self.all.lock().clone();
        let served = entries.into_iter().filter_map(|entry| Some((entry.record.name, entry.volume?)));
        std::thread::scope(|scope| {
            let stops: Vec<_> =
                served.map(|(name, volume)| scope.spawn(move || end(&name, volume).err())).collect();
            stops.into_iter().filter_map(|stop| stop.join().ok().flatten()).collect()
        })
    }

    /// Records, after the engine was closed, which backing devices have everything.
    ///
    /// # Errors
    /// The state directory cannot be written. The next start then takes this stop for a crash, which is harmless as
    /// long as no other program writes to the devices.
    pub(crate) fn rest(&self) -> std::io::Result<()> {
        for Entry { record, volume, .. } in self.all.lock().iter_mut() {
            // A device that this server did not find has the sign of an earlier stop, or none.
            let Some(volume) = volume else { continue };
            let is_clean = volume.dirty_bytes() == 0;
            record.rest = is_clean.then(|| Rest { sign: sign_in_time(&record.backing) });
        }
        self.keep()
    }

    /// Returns true if the engine has a block volume by this name.
    pub(crate) fn has_in_engine(&self, name: &str) -> bool {
        name == REMOVED || self.all.lock().iter().any(|entry| shown(&entry.record) == name)
    }

    fn find(&self, name: &str) -> Option<Entry> {
        self.all.lock().iter().find(|entry| entry.record.name == name).cloned()
    }

    fn known(&self, name: &str) -> Result<Entry, String> {
        self.find(name).ok_or_else(|| format!("there is no volume {name}; see `forebay volume list`"))
    }

    /// Returns a volume in service.
    fn served(&self, name: &str) -> Result<Served, String> {
        let entry = self.known(name)?;
        match (entry.volume.clone(), entry.device.clone()) {
            (Some(volume), Ok(device)) => Ok(Served { entry, volume, device }),
            (_, Err(reason)) => Err(format!("volume {name} is not served: {reason}")),
            (None, Ok(_)) => Err(format!("volume {name} is not served yet")),
        }
    }

    /// Changes the record of a volume: in the file first, durably, then in memory. After an error the record in memory
    /// is the old one.
    fn update(&self, name: &str, change: impl Fn(&mut Record)) -> Result<(), String> {
        let _recording = self.recording.lock();
        let mut records = self.records();
        records.volumes.iter_mut().filter(|record| record.name == name).for_each(&change);
        self.write(&records).map_err(|error| unwritten(&error))?;
        self.update_in_memory(name, change);
        Ok(())
    }

    /// Changes the record of a volume in memory. The file follows with the next change of any volume.
    fn update_in_memory(&self, name: &str, change: impl Fn(&mut Record)) {
        let mut all = self.all.lock();
        let entry = all.iter_mut().find(|entry| entry.record.name == name);
        entry.into_iter().for_each(|entry| change(&mut entry.record));
    }

    /// Writes the records of all volumes durably.
    fn keep(&self) -> std::io::Result<()> {
        let _recording = self.recording.lock();
        self.write(&self.records())
    }

    fn records(&self) -> Records {
        let volumes = self.all.lock().iter().map(|entry| entry.record.clone()).collect();
        Records::new(volumes, self.removed.lock().clone())
    }

    /// Replaces the file by these records, durably. Makes no file on a server that never had a volume.
    fn write(&self, records: &Records) -> std::io::Result<()> {
        let path = self.settings.state_dir.join("volumes.json");
        if records.is_empty() && !path.exists() {
            return Ok(());
        }
        record::write(&self.settings.state_dir, records)
    }

    fn tell(&self, kind: &'static str, name: &str, message: String) {
        self.events.add(Severity::Info, kind, message, &[("volume", &name)]);
    }
}

impl Disks for Volumes {
    fn list(&self) -> Vec<String> {
        let all = self.all.lock();
        let mut names: Vec<_> = all
            .iter()
            .filter(|entry| entry.volume.is_some())
            .map(|entry| entry.record.name.clone())
            .collect();
        names.sort_unstable();
        names
    }

    fn open(&self, name: &str) -> Option<Arc<dyn Disk>> {
        Some(self.find(name)?.volume? as Arc<dyn Disk>)
    }
}

/// Ends the service of a volume, and makes its answered writes durable.
///
/// # Errors
/// A sentence.
fn end(name: &str, volume: Arc<Volume>) -> Result<(), String> {
    let ended = block_on_apart(async move {
        let patience = || SystemClock::default().sleep(PATIENCE);
        // A request in progress was not answered, so nobody relies on it.
        before(patience(), volume.stop()).await;
        before(patience(), volume.make_durable()).await
    });
    match ended {
        Some(ended) => ended.map_err(|error| format!("volume {name}: {error}")),
        None => Err(format!("volume {name}: its backing device does not answer")),
    }
}

/// Returns the sign of a backing device; `None` if its file system does not answer within [`PATIENCE`].
fn sign_in_time(backing: &Path) -> Option<Sign> {
    let backing = backing.to_owned();
    in_time(PATIENCE, move || Sign::of(&backing)).flatten()
}

/// Returns the sentence for a record that cannot be written.
fn unwritten(error: &std::io::Error) -> String {
    format!("the state directory cannot be written: {error}; make room there, or mend its disk")
}

fn shown(record: &Record) -> String {
    format!("volume {} ({})", record.name, record.backing.display())
}

/// Has the engine forget a removed volume, durably.
fn forget_removed(
    engine: &Arc<Engine>,
    store: &Store,
    removed: &Removed,
) -> Result<(), forebay_engine::Error> {
    let object = engine.object(&forebay_volume::key::key(removed.uuid), removed.size);
    let engine = engine.clone();
    block_on_apart(async move { engine.forget_durably(&object).await })?;
    store.remove(removed.uuid);
    Ok(())
}

/// Returns the volume of a record in front of its device, known to the engine.
fn new_volume(engine: &Arc<Engine>, record: &Record, device: &Arc<dyn OpenDevice>) -> Arc<Volume> {
    let mode = record.mode.map(engine_mode);
    Volume::new(engine, record.uuid, device.clone(), mode, record.read_only)
}

/// Opens the device of a recorded volume if it is the recorded one. A larger size is taken over.
fn open_recorded(record: &mut Record, events: &Arc<EventLog>) -> Opened {
    let told = Told { name: &record.name, events };
    let (device, here) = open::open(&record.backing, record.read_only, Some(&record.identity), &told)?;
    let path = record.backing.display();
    if let Some(difference) = record.identity.difference(&here) {
        return Err(format!(
            "another device is at {path}: {difference}; nothing was changed: bring the right one back and start again, or \
             give up its data with `forebay volume remove {} --give-up`",
            record.name
        ));
    }
    // A killed server may have left data in the caches below. A power cut would take it, but not cached copies of it.
    // An export whose server is not there is flushed when there is a connection.
    if !record.read_only && device.trouble().is_none() {
        let sync = device.sync();
        block_on_apart(sync).map_err(|error| format!("{path} cannot be synced: {error}"))?;
    }
    record.identity.learn(here);
    Ok(device)
}
