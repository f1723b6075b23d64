//! The block volumes of a server: their record in the state directory, their identity, and their service.
//!
//! A volume whose backing device is missing, or is another one than recorded, is *refused*. The server starts without
//! it, writes nothing to the device, and keeps the volume's dirty data in the log.

mod device;
pub(crate) mod door;
mod identity;
mod record;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use forebay_common::lock::Mutex;
use forebay_config::{Settings, format_size};
use forebay_control::{EventLog, Severity, VolumeRequest, VolumeStatus};
use forebay_engine::Engine;
use forebay_runtime::block_on_apart;
use forebay_volume::device::BackingDevice;
use forebay_volume::disk::{Disk, Disks};
use forebay_volume::store::Store;
use forebay_volume::volume::Volume;

use crate::cache::{config_mode, engine_mode, random};
use crate::error::Error;
use device::{DeviceFile, resolved};
use identity::{Identity, Sign, Taken, is_rotational, refusal};
use record::{Record, Rest};

/// The bytes at the front of a device in which signatures are looked for.
const FRONT: u64 = 64 << 10;

/// The volumes of a server.
pub(crate) struct Volumes {
    settings: Settings,
    events: Arc<EventLog>,
    all: Mutex<Vec<Entry>>,
    /// One change at a time. It is never held by a request for data.
    changing: Mutex<()>,
    /// Set once the engine serves.
    serving: OnceLock<Serving>,
    /// The address of the NBD door.
    door: OnceLock<String>,
}

struct Serving {
    engine: Arc<Engine>,
    store: Store,
}

/// A volume that the record has.
#[derive(Clone)]
struct Entry {
    record: Record,
    device: Result<Arc<DeviceFile>, String>,
    volume: Option<Arc<Volume>>,
}

impl Volumes {
    /// Opens the backing devices of all recorded volumes, and makes those that are new in the settings. Writes to no
    /// device.
    ///
    /// # Errors
    /// The record cannot be read or written, or the settings name a device that must not be a volume's.
    pub(crate) fn open(settings: &Settings, events: &Arc<EventLog>) -> Result<Arc<Self>, Error> {
        let failed = |source| Error::StateDir { path: settings.state_dir.clone(), source };
        let records = record::read(&settings.state_dir).map_err(failed)?;
        let volumes = Volumes {
            settings: settings.clone(),
            events: events.clone(),
            all: Mutex::default(),
            changing: Mutex::default(),
            serving: OnceLock::new(),
            door: OnceLock::new(),
        };
        for mut record in records {
            if let Some(configured) = settings.volumes.iter().find(|volume| volume.name == record.name) {
                record.backing.clone_from(&configured.backing);
                (record.mode, record.read_only) = (configured.mode, configured.read_only);
            }
            let device = open_recorded(&mut record);
            if let Err(reason) = &device {
                let message = format!("volume {} is not served: {reason}", record.name);
                events.add(Severity::Error, "volume-refused", message, &[("volume", &record.name)]);
            }
            volumes.all.lock().push(Entry { record, device, volume: None });
        }
        for configured in &settings.volumes {
            if volumes.find(&configured.name).is_none() {
                let forebay_config::Volume { name, backing, mode, read_only } = configured.clone();
                volumes.examine(name, &backing, mode, read_only).map_err(Error::Volume)?;
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
    }

    /// Puts the volumes into service.
    ///
    /// # Errors
    /// The state directory cannot be written, or no cache device is left.
    pub(crate) fn serve(&self, engine: &Arc<Engine>, store: &Store) -> Result<(), Error> {
        let _ = self.serving.set(Serving { engine: engine.clone(), store: store.clone() });
        let entries = self.all.lock().clone();
        let mut served = Vec::new();
        for mut entry in entries {
            if let Ok(device) = &entry.device {
                let volume = new_volume(engine, &entry.record, device);
                let rest = entry.record.rest.take();
                let is_same =
                    |rest: &Rest| rest.sign.is_some() && rest.sign == Sign::of(&entry.record.backing);
                if rest.is_some_and(|rest| !is_same(&rest)) {
                    let dropping = volume.clone();
                    let dropped = block_on_apart(async move { dropping.changed_outside().await });
                    dropped.map_err(|error| Error::Cache(error.to_string()))?;
                }
                entry.volume = Some(volume);
            }
            served.push(entry);
        }
        *self.all.lock() = served;
        // A crash from here on is no clean stop.
        self.keep().map_err(|source| Error::StateDir { path: self.settings.state_dir.clone(), source })
    }

    /// Records that NBD clients reach the volumes at `address`.
    pub(crate) fn has_door(&self, address: String) {
        let _ = self.door.set(address);
    }

    /// Ends the service of clients, and makes all answered writes durable. Sentences tell what could not be done.
    pub(crate) fn stop(&self) -> Vec<String> {
        let entries = self.all.lock().clone();
        let mut failures = Vec::new();
        for Entry { record, volume, .. } in entries {
            let Some(volume) = volume else { continue };
            let flushed = block_on_apart(async move {
                let flushed = volume.flush().await;
                volume.stop().await;
                flushed
            });
            failures.extend(flushed.err().map(|error| format!("volume {}: {error}", record.name)));
        }
        failures
    }

    /// Records, after the engine was closed, which backing devices have everything.
    ///
    /// # Errors
    /// The state directory cannot be written. The next start then takes this stop for a crash, which is harmless as
    /// long as no other program writes to the devices.
    pub(crate) fn rest(&self) -> std::io::Result<()> {
        for Entry { record, volume, .. } in self.all.lock().iter_mut() {
            let is_clean = volume.as_ref().is_some_and(|volume| volume.dirty_bytes() == 0);
            record.rest = is_clean.then(|| Rest { sign: Sign::of(&record.backing) });
        }
        self.keep()
    }

    /// Carries out a request of the control socket. Returns the volumes that it is about, after the change.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn answer(&self, request: VolumeRequest) -> Result<Vec<VolumeStatus>, String> {
        let name = match request {
            VolumeRequest::List { name: None } => return Ok(self.statuses()),
            VolumeRequest::List { name: Some(name) } => name,
            VolumeRequest::Create { name, backing, mode, read_only } => {
                self.create(name.clone(), &backing, mode, read_only)?;
                name
            }
            VolumeRequest::Remove { name, give_up } => return self.remove(&name, give_up),
            VolumeRequest::Resize { name, size } => self.resize(name, size)?,
            VolumeRequest::Mode { name, mode } => self.set_mode(name, mode)?,
            VolumeRequest::Flush { name } => self.flush(name)?,
        };
        let entry = self.known(&name)?;
        Ok(vec![self.status(&entry)])
    }

    /// Returns a sentence for each volume that is not served.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let trouble = |entry: &Entry| {
            let reason = entry.device.as_ref().err()?;
            Some(format!("volume {} is not served: {reason}", entry.record.name))
        };
        self.all.lock().iter().filter_map(trouble).collect()
    }

    /// Returns the state of all volumes.
    pub(crate) fn statuses(&self) -> Vec<VolumeStatus> {
        self.all.lock().clone().iter().map(|entry| self.status(entry)).collect()
    }

    fn find(&self, name: &str) -> Option<Entry> {
        self.all.lock().iter().find(|entry| entry.record.name == name).cloned()
    }

    fn known(&self, name: &str) -> Result<Entry, String> {
        self.find(name).ok_or_else(|| format!("there is no volume {name}; see `forebay volume list`"))
    }

    /// Returns a volume in service.
    fn served(&self, name: &str) -> Result<(Entry, Arc<Volume>, Arc<DeviceFile>), String> {
        let entry = self.known(name)?;
        match (entry.volume.clone(), entry.device.clone()) {
            (Some(volume), Ok(device)) => Ok((entry, volume, device)),
            (_, Err(reason)) => Err(format!("volume {name} is not served: {reason}")),
            (None, Ok(_)) => Err(format!("volume {name} is not served yet")),
        }
    }

    fn update(&self, name: &str, change: impl FnOnce(&mut Entry)) -> Result<(), String> {
        if let Some(entry) = self.all.lock().iter_mut().find(|entry| entry.record.name == name) {
            change(entry);
        }
        self.keep().map_err(|error| format!("the state directory cannot be written: {error}"))
    }

    fn keep(&self) -> std::io::Result<()> {
        let records: Vec<_> = self.all.lock().iter().map(|entry| entry.record.clone()).collect();
        let path = self.settings.state_dir.join("volumes.json");
        if records.is_empty() && !path.exists() {
            return Ok(());
        }
        record::write(&self.settings.state_dir, records)
    }

    fn tell(&self, kind: &'static str, name: &str, message: String) {
        self.events.add(Severity::Info, kind, message, &[("volume", &name)]);
    }

    /// Checks a device, opens it, and adds its volume, which is not recorded yet.
    fn examine(
        &self,
        name: String,
        backing: &Path,
        mode: Option<forebay_config::Mode>,
        read_only: bool,
    ) -> Result<Entry, String> {
        let path = resolved(backing)?;
        let taken = self.taken();
        let kind = Identity::of(&path, 0)?;
        let (front, size) = front_of(&path)?;
        if let Some(reason) = refusal(&path, &front, size, &taken) {
            return Err(reason);
        }
        let device = DeviceFile::open(&path, read_only, is_rotational(&path))?;
        let identity = Identity { size: device.size(), ..kind };
        let record = Record {
            name,
            uuid: random(),
            backing: backing.to_owned(),
            identity,
            mode,
            read_only,
            rest: None,
        };
        let entry = Entry { record, device: Ok(Arc::new(device)), volume: None };
        self.all.lock().push(entry.clone());
        Ok(entry)
    }

    /// Returns what no new volume may be on.
    fn taken(&self) -> Taken<'_> {
        let exports = self.settings.exports.iter().map(|export| export.path.as_path());
        let directories = exports.chain([self.settings.state_dir.as_path()]).collect();
        let volumes =
            self.all.lock().iter().map(|it| (it.record.name.clone(), it.record.backing.clone())).collect();
        Taken { directories, cache: self.settings.cache.devices.clone(), volumes }
    }

    fn create(
        &self,
        name: String,
        backing: &Path,
        mode: Option<forebay_config::Mode>,
        read_only: bool,
    ) -> Result<(), String> {
        let _one = self.changing.lock();
        let Some(Serving { engine, store }) = self.serving.get() else {
            return Err("a volume needs a cache, and this server has none".to_owned());
        };
        forebay_config::check_volume_name(&name)?;
        if self.find(&name).is_some() {
            return Err(format!("there is a volume {name} already; name another one"));
        }
        let Entry { record, device, .. } = self.examine(name.clone(), backing, mode, read_only)?;
        let device = device?;
        // The record is durable before the log has anything of the volume.
        if let Err(error) = self.keep() {
            self.all.lock().retain(|entry| entry.record.name != name);
            return Err(format!("the state directory cannot be written: {error}"));
        }
        store.add(record.uuid, &shown(&record), record.identity.size, Some(device.clone()));
        let volume = new_volume(engine, &record, &device);
        self.update(&name, |entry| entry.volume = Some(volume))?;
        let size = format_size(record.identity.size);
        self.tell("volume-created", &name, format!("volume {name} is {} ({size})", backing.display()));
        Ok(())
    }

    fn remove(&self, name: &str, give_up: bool) -> Result<Vec<VolumeStatus>, String> {
        let _one = self.changing.lock();
        let entry = self.known(name)?;
        if self.settings.volumes.iter().any(|configured| configured.name == name) {
            return Err(format!(
                "volume {name} is in the configuration; remove it there first, and start again"
            ));
        }
        let Some(Serving { engine, store }) = self.serving.get() else {
            return Err(format!("volume {name} cannot be destaged: this server has no cache"));
        };
        match &entry.volume {
            Some(volume) => {
                let (leaving, given_up) = (volume.clone(), give_up);
                let destaged = block_on_apart(async move {
                    leaving.stop().await;
                    match leaving.destage().await {
                        Err(error) if !given_up => {
                            leaving.resume();
                            return Err(error);
                        }
                        _ => leaving.forget().await,
                    }
                    Ok(())
                });
                destaged.map_err(|error| {
                    format!(
                        "volume {name} stays: its data cannot be destaged: {error}; give it up with --give-up"
                    )
                })?;
            }
            None if give_up => {
                let object =
                    engine.object(&forebay_volume::key::key(entry.record.uuid), entry.record.identity.size);
                let engine = engine.clone();
                block_on_apart(async move { engine.forget(&object).await });
            }
            None => {
                let reason = entry.device.err().unwrap_or_default();
                return Err(format!(
                    "volume {name} is not served: {reason}; give up its data with --give-up"
                ));
            }
        }
        store.remove(entry.record.uuid);
        self.all.lock().retain(|entry| entry.record.name != name);
        self.keep().map_err(|error| format!("the state directory cannot be written: {error}"))?;
        let backing = entry.record.backing.display();
        self.tell(
            "volume-removed",
            name,
            format!("volume {name} is removed; {backing} is an ordinary device again"),
        );
        Ok(Vec::new())
    }

    fn resize(&self, name: String, size: Option<u64>) -> Result<String, String> {
        let _one = self.changing.lock();
        let (entry, volume, device) = self.served(&name)?;
        let cannot = |error: String| format!("volume {name} keeps its size: {error}");
        if let Some(size) = size {
            device.grow(size).map_err(cannot)?;
        }
        let size = device.measure().map_err(|error| cannot(error.to_string()))?;
        block_on_apart(async move { volume.grown().await }).map_err(|error| cannot(error.to_string()))?;
        self.update(&name, |entry| entry.record.identity.size = size)?;
        let (before, now) = (format_size(entry.record.identity.size), format_size(size));
        self.tell("volume-resized", &name, format!("volume {name} has {now} now, before it had {before}"));
        Ok(name)
    }

    fn set_mode(&self, name: String, mode: Option<forebay_config::Mode>) -> Result<String, String> {
        let _one = self.changing.lock();
        let (_, volume, _) = self.served(&name)?;
        self.update(&name, |entry| entry.record.mode = mode)?;
        volume.set_mode(mode.map(engine_mode));
        let shown = mode.map_or_else(|| "that of the server".to_owned(), |mode| mode.to_string());
        self.tell("volume-mode", &name, format!("the mode of volume {name} is {shown} now"));
        Ok(name)
    }

    fn flush(&self, name: String) -> Result<String, String> {
        let (_, volume, _) = self.served(&name)?;
        let flushed = block_on_apart(async move { volume.destage().await });
        flushed.map_err(|error| format!("volume {name} could not be destaged: {error}"))?;
        Ok(name)
    }

    fn status(&self, Entry { record, device, volume }: &Entry) -> VolumeStatus {
        let counted = volume.as_ref().map(|volume| volume.counted()).unwrap_or_default();
        let reason = device.as_ref().err().cloned();
        let mode = volume.as_ref().map_or(self.settings.mode, |volume| config_mode(volume.mode()));
        VolumeStatus {
            name: record.name.clone(),
            uuid: crate::cache::written(record.uuid),
            backing: record.backing.clone(),
            size_bytes: record.identity.size,
            state: if reason.is_none() { "serving" } else { "refused" }.to_owned(),
            reason,
            own_mode: record.mode,
            mode,
            read_only: record.read_only,
            serial: record.identity.serial.clone(),
            dirty_bytes: volume.as_ref().map_or_else(|| self.dirty_of(record), |volume| volume.dirty_bytes()),
            nbd: self.door.get().filter(|_| volume.is_some()).cloned(),
            reads: counted.reads,
            read_bytes: counted.read_bytes,
            writes: counted.writes,
            written_bytes: counted.written_bytes,
            flushes: counted.flushes,
            discarded_bytes: counted.discarded_bytes,
            errors: counted.errors,
        }
    }

    /// Returns the dirty bytes of a volume that is not served.
    fn dirty_of(&self, record: &Record) -> u64 {
        let serving = self.serving.get();
        let object = serving.and_then(|it| it.engine.known(&forebay_volume::key::key(record.uuid)));
        object.map_or(0, |object| object.dirty_blocks() * forebay_engine::buffer::BLOCK as u64)
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

fn shown(record: &Record) -> String {
    format!("volume {} ({})", record.name, record.backing.display())
}

fn new_volume(engine: &Arc<Engine>, record: &Record, device: &Arc<DeviceFile>) -> Arc<Volume> {
    let mode = record.mode.map(engine_mode);
    Volume::new(engine, record.uuid, device.clone(), mode, record.read_only)
}

/// Opens the device of a recorded volume if it is the recorded one. A larger size is taken over.
fn open_recorded(record: &mut Record) -> Result<Arc<DeviceFile>, String> {
    let path = resolved(&record.backing)?;
    let here = Identity::of(&path, 0)?;
    let device = DeviceFile::open(&path, record.read_only, is_rotational(&path))?;
    let here = Identity { size: device.size(), ..here };
    if let Some(difference) = record.identity.difference(&here) {
        let path = record.backing.display();
        return Err(format!(
            "another device is at {path}: {difference}; nothing was changed: bring the right one back and start again, or \
             give up its data with `forebay volume remove {} --give-up`",
            record.name
        ));
    }
    record.identity.size = here.size;
    // A killed server may have left data in the caches below. A power cut would take it, but not cached copies of it.
    if !record.read_only {
        let sync = device.sync();
        block_on_apart(sync).map_err(|error| format!("{} cannot be synced: {error}", path.display()))?;
    }
    Ok(Arc::new(device))
}

/// Returns the first bytes of a device, and its size in bytes. The device is not claimed.
fn front_of(path: &PathBuf) -> Result<(Vec<u8>, u64), String> {
    use std::io::{Seek, SeekFrom};
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mut front = Vec::new();
    (&mut file).take(FRONT).read_to_end(&mut front).map_err(failed)?;
    let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
    Ok((front, size))
}
