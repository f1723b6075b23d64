//! The backing store of an engine that caches files and volumes.

use std::sync::Arc;

use forebay_common::lock::Mutex;
use forebay_engine::buffer::{Buffer, Slice};
use forebay_engine::io::{Backing, BackingError, BackingResult, Disowned, Io, Key, Time};

use crate::device::BackingDevice;
use crate::key::uuid_of;
use crate::planted_bugs;

const EINVAL: i32 = 22;
const ENODEV: i32 = 19;

/// A volume as the engine's backing store knows it.
struct Known {
    uuid: u128,
    name: String,
    /// The engine's number of the volume. It is not stored anywhere.
    number: u32,
    /// The recorded size in bytes, for a volume whose device is not in use.
    size: u64,
    /// `None` if the device is not in use: it is missing, or another one is in its place.
    device: Option<Arc<dyn BackingDevice>>,
}

/// The volumes of a server, beside its served file systems. Clones share their state.
///
/// Each volume is a volume of the engine as well, so a failing device delays no other one. The engine keeps the dirty
/// blocks of a volume without a device in the log.
#[derive(Clone)]
pub struct Store {
    files: Arc<dyn Backing>,
    /// Numbers that file systems have or had.
    reserved: Arc<Vec<u32>>,
    known: Arc<Mutex<Vec<Known>>>,
}

impl Store {
    /// Makes a store of files only. The numbers of `files` and the numbers `reserved` never become a volume's.
    pub fn new(files: Arc<dyn Backing>, mut reserved: Vec<u32>) -> Self {
        reserved.extend(files.volumes());
        Store { files, reserved: Arc::new(reserved), known: Arc::default() }
    }

    /// Adds a volume, with a device or without. `size` is the recorded size in bytes.
    pub fn add(&self, uuid: u128, name: &str, size: u64, device: Option<Arc<dyn BackingDevice>>) {
        let mut known = self.known.lock();
        let is_free =
            |number: &u32| !self.reserved.contains(number) && known.iter().all(|it| it.number != *number);
        // The highest number stands for an unknown volume.
        let number = match planted_bugs::active("a volume has the number of a file system") {
            true => 0,
            false => (0..u32::MAX).rev().find(is_free).unwrap_or_default(),
        };
        known.retain(|it| it.uuid != uuid);
        known.push(Known { uuid, name: name.to_owned(), number, size, device });
    }

    /// Gives the device of a volume back: nothing is written to it from now on, apart from writes in flight.
    pub fn release(&self, uuid: u128) {
        self.known.lock().iter_mut().filter(|known| known.uuid == uuid).for_each(|known| {
            known.size = known.device.take().map_or(known.size, |device| device.size());
        });
    }

    /// Removes a volume whose object the engine has forgotten.
    pub fn remove(&self, uuid: u128) {
        self.known.lock().retain(|known| known.uuid != uuid);
    }

    /// Returns true if data of the volume with this number has a place to go, now or once its device is back.
    pub fn takes(&self, number: u32) -> bool {
        self.known.lock().iter().any(|known| known.number == number)
    }

    fn find<T>(&self, uuid: u128, of: impl FnOnce(&Known) -> T) -> Option<T> {
        self.known.lock().iter().find(|known| known.uuid == uuid).map(of)
    }

    /// Returns the device of a volume.
    fn device(&self, uuid: u128) -> BackingResult<Arc<dyn BackingDevice>> {
        let device = self.find(uuid, |known| known.device.clone()).flatten();
        device.ok_or(BackingError::Io(ENODEV))
    }

    /// Returns the size of a volume in bytes: that of its device, or the last known one without a device. Fails with
    /// ENODEV for an unknown volume.
    fn size_of(&self, uuid: u128) -> BackingResult<u64> {
        let size = |known: &Known| known.device.as_ref().map_or(known.size, |device| device.size());
        self.find(uuid, size).ok_or(BackingError::Io(ENODEV))
    }
}

/// Returns an operation that has ended.
fn ready<T: Send + 'static>(value: T) -> Io<T> {
    Box::pin(std::future::ready(value))
}

impl Backing for Store {
    fn volumes(&self) -> Vec<u32> {
        let mut all = self.files.volumes();
        all.extend(self.known.lock().iter().map(|known| known.number));
        all
    }

    fn volume(&self, object: &Key) -> u32 {
        match uuid_of(object) {
            Some(uuid) => self.find(uuid, |known| known.number).unwrap_or(u32::MAX),
            None => self.files.volume(object),
        }
    }

    fn name(&self, volume: u32) -> String {
        let known = self.known.lock();
        let found = known.iter().find(|known| known.number == volume).map(|known| known.name.clone());
        drop(known);
        found.unwrap_or_else(|| self.files.name(volume))
    }

    fn size(&self, object: &Key) -> Io<BackingResult<u64>> {
        match uuid_of(object) {
            Some(uuid) => ready(self.size_of(uuid)),
            None => self.files.size(object),
        }
    }

    fn sizes(&self, objects: Vec<Key>) -> Io<Vec<BackingResult<u64>>> {
        // The objects are of one volume.
        match objects.iter().map(uuid_of).collect::<Option<Vec<_>>>() {
            Some(uuids) => ready(uuids.into_iter().map(|uuid| self.size_of(uuid)).collect()),
            None => self.files.sizes(objects),
        }
    }

    fn read(&self, object: &Key, offset: u64, buffer: Buffer) -> Io<(Buffer, BackingResult<usize>)> {
        match uuid_of(object).map(|uuid| self.device(uuid)) {
            Some(Ok(device)) if planted_bugs::active("a block that the device cannot read is zeros") => {
                let (len, read) = (buffer.len(), device.read(offset, buffer));
                Box::pin(async move {
                    match read.await {
                        (buffer, Ok(len)) => (buffer, Ok(len)),
                        (_, Err(_)) => (Buffer::zeroed(len / forebay_engine::buffer::BLOCK), Ok(len)),
                    }
                })
            }
            Some(Ok(device)) => device.read(offset, buffer),
            Some(Err(error)) => ready((buffer, Err(error))),
            None => self.files.read(object, offset, buffer),
        }
    }

    /// The device of a volume is never read on the polling thread, which may be an event loop.
    fn read_inline(&self, object: &Key, offset: u64, buffer: Buffer) -> Io<(Buffer, BackingResult<usize>)> {
        match uuid_of(object) {
            Some(_) => self.read(object, offset, buffer),
            None => self.files.read_inline(object, offset, buffer),
        }
    }

    fn write(&self, object: &Key, offset: u64, data: Slice) -> Io<BackingResult<()>> {
        match uuid_of(object).map(|uuid| self.device(uuid)) {
            Some(Ok(device)) if planted_bugs::active("a block that the device refuses counts as written") => {
                let write = device.write(offset, data);
                Box::pin(async move { write.await.or(Ok(())) })
            }
            Some(Ok(device)) => device.write(offset, data),
            Some(Err(error)) => ready(Err(error)),
            None => self.files.write(object, offset, data),
        }
    }

    /// A volume keeps the size of its device: only that size is accepted.
    fn truncate(&self, object: &Key, size: u64) -> Io<BackingResult<()>> {
        match uuid_of(object).map(|uuid| self.size_of(uuid)) {
            Some(Ok(own)) if own == size => ready(Ok(())),
            Some(own) => ready(Err(own.err().unwrap_or(BackingError::Io(EINVAL)))),
            None => self.files.truncate(object, size),
        }
    }

    /// A volume has no modification time.
    fn set_mtime(&self, object: &Key, mtime: Time) -> Io<BackingResult<()>> {
        match uuid_of(object) {
            Some(_) => ready(Ok(())),
            None => self.files.set_mtime(object, mtime),
        }
    }

    fn sync(&self, objects: Vec<Key>) -> Io<Vec<BackingResult<()>>> {
        // The objects are of one volume.
        let Some(uuids) = objects.iter().map(uuid_of).collect::<Option<Vec<_>>>() else {
            return self.files.sync(objects);
        };
        let sync = |uuid| match self.device(uuid) {
            Ok(device) => device.sync(),
            Err(error) => ready(Err(error)),
        };
        let syncs: Vec<_> = uuids.into_iter().map(sync).collect();
        Box::pin(async move {
            let mut results = Vec::with_capacity(syncs.len());
            for sync in syncs {
                results.push(sync.await);
            }
            results
        })
    }

    fn free(&self) -> Io<BackingResult<u64>> {
        self.files.free()
    }

    fn disown(&self, pool: u128, object: &Key, what: Disowned) -> Io<BackingResult<()>> {
        self.files.disown(pool, object, what)
    }

    fn disowned(&self, pool: u128) -> Io<BackingResult<Vec<(Key, Disowned)>>> {
        self.files.disowned(pool)
    }

    fn forget_disowned(&self, pool: u128) -> Io<BackingResult<()>> {
        self.files.forget_disowned(pool)
    }
}
