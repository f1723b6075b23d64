//! The changes of volumes that the administrator asks for in service.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use forebay_common::nbd_url::NbdUrl;
use forebay_config::{Export, Mode, format_size};
use forebay_control::{Severity, VolumeRequest, VolumeStatus};
use forebay_engine::buffer::{BLOCK, Buffer};
use forebay_engine::pool::Ends;
use forebay_runtime::{block_on, block_on_apart};
use forebay_volume::device::BackingDevice as _;
use forebay_volume::volume::Volume;

use super::device::resolved;
use super::identity::Identity;
use super::open::{self, OpenDevice, Told};
use super::patience::{OPENING, PATIENCE, destage_in_time, in_time, silent};
use super::record::Record;
use super::refusal::{Taken, refusal, unusable, use_of, use_of_export};
use super::unopened::unopened;
use super::{Entry, Served, Serving, Volumes, new_volume, shown, unwritten};
use crate::cache::{engine_mode, random};

/// A backing device and its identity.
type Examined = (Arc<dyn OpenDevice>, Identity);

impl Volumes {
    /// Carries out a request of the control socket. Returns the volumes that it is about, after the change.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn answer(self: &Arc<Self>, request: VolumeRequest) -> Result<Vec<VolumeStatus>, String> {
        let name = match request {
            VolumeRequest::List { name: None } => return Ok(self.statuses()),
            VolumeRequest::List { name: Some(name) } => name,
            VolumeRequest::Create { name, backing, mode, read_only } => {
                self.create(name.clone(), &backing, mode, read_only)?;
                let entry = self.known(&name)?;
                let caution = entry.record.identity.is_ambiguous(&backing).then(|| ambiguous(&backing));
                return Ok(vec![VolumeStatus { caution, ..self.status(&entry) }]);
            }
            VolumeRequest::Remove { name, give_up } => return self.remove(&name, give_up),
            VolumeRequest::Resize { name, size } => self.resize(name, size)?,
            VolumeRequest::Mode { name, mode } => self.set_mode(name, mode)?,
            VolumeRequest::Flush { name } => self.flush(name)?,
            VolumeRequest::Attach { name } => {
                let no_device = self.attach(&name)?;
                let entry = self.known(&name)?;
                return Ok(vec![VolumeStatus { no_device, ..self.status(&entry) }]);
            }
            VolumeRequest::Detach { name } => {
                self.end_device(&name)?;
                self.flush(name)?
            }
        };
        let entry = self.known(&name)?;
        Ok(vec![self.status(&entry)])
    }

    /// Checks a device and opens it. Returns its volume, which is not recorded yet.
    pub(super) fn examine(
        &self,
        name: String,
        backing: &Path,
        mode: Option<Mode>,
        read_only: bool,
    ) -> Result<Entry, String> {
        let told = Told { name: &name, events: &self.events };
        let (device, identity) = match NbdUrl::is_meant(backing) {
            true => self.examine_export(backing, read_only, &told)?,
            false => self.examine_local(backing, read_only, &told)?,
        };
        if identity.is_ambiguous(backing) {
            let message = ambiguous(backing);
            self.events.add(Severity::Warning, "volume-ambiguous", message, &[("volume", &name)]);
        }
        let record = Record {
            name,
            uuid: random(),
            backing: backing.to_owned(),
            identity,
            mode,
            read_only,
            rest: None,
            ublk: None,
        };
        Ok(Entry { record, device: Ok(device), volume: None })
    }

    /// Adds a new volume to the record, durably. After an error nothing has changed.
    fn record_new(&self, entry: &Entry) -> Result<(), String> {
        let _recording = self.recording.lock();
        // The system lets no two volumes open one local device. An export may have become another volume's meanwhile.
        if let Ok(url) = NbdUrl::parse(&entry.record.backing.to_string_lossy())
            && let Some(reason) = self.use_of_export(&url)
        {
            return Err(reason);
        }
        let mut records = self.records();
        records.volumes.push(entry.record.clone());
        self.write(&records).map_err(|error| unwritten(&error))?;
        self.all.lock().push(entry.clone());
        Ok(())
    }

    /// Opens a block device or file as a backing device. Fails if it is in use, is a cache device or another
    /// volume's, or belongs to something else by its contents.
    fn examine_local(&self, backing: &Path, read_only: bool, told: &Told<'_>) -> Result<Examined, String> {
        let path = resolved(backing)?;
        Identity::of(&path, 0)?;
        let (size, ends) = ends_of(&path)?;
        match refusal(&path, size, &ends, &self.taken()) {
            Some(reason) => Err(reason),
            None => open::open(backing, read_only, None, told),
        }
    }

    /// Opens an export of an NBD server as a backing device. Fails if the export is a volume of this server, since
    /// its requests would wait for themselves, or is in use otherwise.
    fn examine_export(&self, backing: &Path, read_only: bool, told: &Told<'_>) -> Result<Examined, String> {
        let url = NbdUrl::parse(&backing.to_string_lossy())?;
        if let Some(reason) = self.use_of_export(&url) {
            return Err(reason);
        }
        let device = open::open_export(&url, read_only, None, told)?;
        let size = device.size();
        let read = |range: Range<u64>| {
            let blocks = (range.end - range.start) as usize / BLOCK;
            let (part, read) = block_on_apart(device.read(range.start, Buffer::zeroed(blocks)));
            read.map(|_| part).map_err(|error| format!("{url} cannot be read: {error}"))
        };
        let [front, end] = Ends::ranges(size);
        let ends = Ends::new(size, [read(front)?, read(end)?]);
        if let Some(reason) = unusable(&url.to_string(), size, &ends) {
            return Err(reason);
        }
        let identity = open::identity_of(&url, &device);
        Ok((device, identity))
    }

    /// Returns what else uses the device of a volume, as a sentence; `None` if nothing does. What is on the device does
    /// not count: a client of the volume may have made a physical volume of LVM of it, for example.
    pub(super) fn other_use(&self, record: &Record) -> Option<String> {
        if NbdUrl::is_meant(&record.backing) {
            return self.use_of_export(&NbdUrl::parse(&record.backing.to_string_lossy()).ok()?);
        }
        use_of(&resolved(&record.backing).ok()?, &self.taken())
    }

    /// Returns why an NBD export must not become a volume's, as a sentence; `None` if its contents decide.
    fn use_of_export(&self, url: &NbdUrl) -> Option<String> {
        let own = &self.settings.nbd;
        // The door has the port that the system chose.
        let door = self.door.get().and_then(|door| door.parse().ok());
        let listen: Vec<_> = own.listen.iter().copied().chain(door).collect();
        if url.is_at(&listen, &own.sockets) {
            return Some(format!("{url} is a volume of this server itself; name another device"));
        }
        use_of_export(url, &self.taken())
    }

    /// Records the served exports: no new volume may be in their directories.
    pub(crate) fn set_exports(&self, exports: &[Export]) {
        *self.exports.write() = exports.iter().map(|export| export.path.clone()).collect();
    }

    /// Returns what no new volume may be on.
    fn taken(&self) -> Taken {
        let mut directories = self.exports.read().clone();
        directories.push(self.settings.state_dir.clone());
        let volumes =
            self.all.lock().iter().map(|it| (it.record.name.clone(), it.record.backing.clone())).collect();
        Taken { directories, cache: self.settings.cache.devices.clone(), volumes }
    }

    /// Creates a volume in service. Its record is durable before the log has anything of it. Errors are sentences.
    fn create(
        self: &Arc<Self>,
        name: String,
        backing: &Path,
        mode: Option<Mode>,
        read_only: bool,
    ) -> Result<(), String> {
        let Some(Serving { engine, store }) = self.serving.get() else {
            return Err("a volume needs a cache, and this server has none".to_owned());
        };
        forebay_config::check_volume_name(&name)?;
        let _change = self.changing.begin(&name)?;
        if self.find(&name).is_some() {
            return Err(format!("there is a volume {name} already; name another one"));
        }
        let (volumes, own, path) = (self.clone(), name.clone(), backing.to_owned());
        let examined = in_time(OPENING, move || volumes.examine(own, &path, mode, read_only));
        let entry = examined.unwrap_or_else(|| Err(silent(backing)))?;
        let device = entry.device.clone()?;
        // The record is durable before the log has anything of the volume.
        self.record_new(&entry)?;
        let record = entry.record;
        store.add(record.uuid, &shown(&record), record.identity.size, Some(device.clone()));
        let volume = new_volume(engine, &record, &device);
        let mut all = self.all.lock();
        all.iter_mut().filter(|entry| entry.record.name == name).for_each(|entry| {
            entry.volume = Some(volume.clone());
        });
        drop(all);
        let size = format_size(record.identity.size);
        self.tell("volume-created", &name, format!("volume {name} is {} ({size})", backing.display()));
        Ok(())
    }

    /// Ends the device of a volume, which may have none.
    fn end_device(&self, name: &str) -> Result<(), String> {
        let _change = self.changing.begin(name)?;
        self.served(name)?;
        self.detach(name, false)
    }

    /// Grows a volume to `size` bytes, or to the present size of its backing device. Only a file is grown; a volume
    /// never becomes smaller. Records the size durably.
    fn resize(self: &Arc<Self>, name: String, size: Option<u64>) -> Result<String, String> {
        let _change = self.changing.begin(&name)?;
        let Served { entry, volume, device } = self.served(&name)?;
        let cannot = |error: String| format!("volume {name} keeps its size: {error}");
        let measured = in_time(PATIENCE, move || {
            size.map_or(Ok(()), |size| device.grow(size))?;
            device.measure().map_err(|error| error.to_string())
        });
        let silent = || format!("its backing device does not answer within {} seconds", PATIENCE.as_secs());
        let size = measured.unwrap_or_else(|| Err(silent())).map_err(cannot)?;
        let before = entry.record.identity.size;
        self.update(&name, |record| record.identity.size = size).map_err(cannot)?;
        // A record with the larger size is right at the next start, since the device has that size.
        let (volumes, grown) = (self.clone(), name.clone());
        match in_time(PATIENCE, move || volumes.take_size_over(&grown, &volume)) {
            Some(Ok(())) => Ok(name),
            Some(Err(error)) => {
                let _ = self.update(&name, |record| record.identity.size = before);
                Err(cannot(error))
            }
            None => Err(format!(
                "volume {name} gets its size of {} when its backing device answers, which it has not done within {} seconds",
                format_size(size),
                PATIENCE.as_secs()
            )),
        }
    }

    /// Has a volume take over the size of its backing device. An event tells of the new size, however late it is in
    /// force.
    fn take_size_over(&self, name: &str, volume: &Volume) -> Result<(), String> {
        let grown = block_on(volume.grown());
        match &grown {
            Ok(Some(sizes)) => {
                let (before, now) = (format_size(sizes.0), format_size(sizes.1));
                self.tell(
                    "volume-resized",
                    name,
                    format!("volume {name} has {now} now, before it had {before}"),
                );
            }
            Ok(None) => {}
            // A volume may be removed meanwhile.
            Err(_) if self.find(name).is_none() => {}
            Err(error) => {
                let message = format!("volume {name} keeps its size: {error}; repeat the resize");
                self.events.add(Severity::Warning, "volume-resize-failed", message, &[("volume", &name)]);
            }
        }
        grown.map(drop).map_err(|error| error.to_string())
    }

    /// Sets the cache mode of a volume, durably. `None` means the mode of the server.
    fn set_mode(&self, name: String, mode: Option<Mode>) -> Result<String, String> {
        let _change = self.changing.begin(&name)?;
        let Served { volume, .. } = self.served(&name)?;
        self.update(&name, |record| record.mode = mode)
            .map_err(|error| format!("volume {name} keeps its mode: {error}"))?;
        volume.set_mode(mode.map(engine_mode));
        let shown = mode.map_or_else(|| "that of the server".to_owned(), |mode| mode.to_string());
        self.tell("volume-mode", &name, format!("the mode of volume {name} is {shown} now"));
        Ok(name)
    }

    /// Writes the dirty data of a volume to its backing device, and waits until the device holds it durably.
    fn flush(&self, name: String) -> Result<String, String> {
        let Served { volume, .. } = self.served(&name)?;
        destage_in_time(&volume).map_err(|error| format!("volume {name} could not be destaged: {error}"))?;
        Ok(name)
    }
}

/// Returns the sentence about a device that another one of its size cannot be told from.
fn ambiguous(backing: &Path) -> String {
    format!(
        "{} has no serial number or UUID: another disk of its size at its place would be taken for it at a start, and \
         get its dirty data; give the disk a serial number, or use LVM or a partition of a disk that has one",
        backing.display()
    )
}

/// Returns the size of a device in bytes, and the data at its ends. The device is not claimed.
fn ends_of(path: &Path) -> Result<(u64, Ends), String> {
    let failed = |error: std::io::Error| unopened(path, &error);
    let mut file = File::open(path).map_err(failed)?;
    let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let read = |range: Range<u64>| {
        let mut part = Buffer::zeroed((range.end - range.start) as usize / BLOCK);
        file.read_exact_at(&mut part, range.start).map(|()| part).map_err(failed)
    };
    let [front, end] = Ends::ranges(size);
    Ok((size, Ends::new(size, [read(front)?, read(end)?])))
}
