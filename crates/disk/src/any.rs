//! A cache device of either kind, as the settings name it: by a path or by the URL of an NBD export.

use std::path::Path;

use forebay_common::nbd_url::NbdUrl;
use forebay_engine::buffer::{Buffer, Slice};
use forebay_engine::io::{Device, DeviceError, Durability, Io};

use crate::device::FileDevice;
use crate::nbd::NbdDevice;
use crate::open::OpenError;
use crate::traffic::Traffic;

/// A cache device: a block device or a file of this host, or an NBD export.
pub enum CacheDevice {
    /// A block device or a file.
    Local(FileDevice),
    /// An NBD export.
    Nbd(NbdDevice),
}

impl CacheDevice {
    /// Opens the device that `path` names. A file of `size` bytes is created at a path that does not exist
    /// ([`FileDevice::open_or_create`]). The URL of an NBD export is connected to ([`NbdDevice::open`]).
    ///
    /// # Errors
    /// A sentence that says what to do.
    pub fn open_or_create(path: &Path, size: u64) -> Result<Self, OpenError> {
        if !NbdUrl::is_meant(path) {
            return FileDevice::open_or_create(path, size).map(CacheDevice::Local);
        }
        let url = NbdUrl::parse(&path.to_string_lossy());
        let url = url.map_err(|reason| OpenError::Server { path: path.to_owned(), reason })?;
        NbdDevice::open(&url).map(CacheDevice::Nbd)
    }

    /// Creates the file of a device ([`FileDevice::make`]).
    ///
    /// # Errors
    /// A sentence that says what to do.
    pub fn make(path: &Path, size: u64, step: &dyn Fn()) -> Result<Self, OpenError> {
        FileDevice::make(path, size, step).map(CacheDevice::Local)
    }

    /// Returns true for a regular file of this host.
    pub fn is_file(&self) -> bool {
        matches!(self, CacheDevice::Local(device) if device.is_file())
    }

    /// Returns the name in /dev of the device's disk ([`FileDevice::disk`]); `None` for an NBD export, whose health is
    /// not known here.
    pub fn disk(&self) -> Option<String> {
        match self {
            CacheDevice::Local(device) => device.disk(),
            CacheDevice::Nbd(_) => None,
        }
    }

    /// Returns the operations that the device was asked for since it was opened.
    pub fn traffic(&self) -> Traffic {
        match self {
            CacheDevice::Local(device) => device.traffic(),
            CacheDevice::Nbd(device) => device.traffic(),
        }
    }

    /// Ends the use of a lost device. An NBD server that accepts one client at a time accepts another one then.
    pub fn leave(&self) {
        if let CacheDevice::Nbd(device) = self {
            device.leave();
        }
    }

    /// Returns the device itself, local or on an NBD server.
    fn inner(&self) -> &dyn Device {
        match self {
            CacheDevice::Local(device) => device,
            CacheDevice::Nbd(device) => device,
        }
    }
}

impl Device for CacheDevice {
    fn name(&self) -> &str {
        self.inner().name()
    }

    fn size(&self) -> u64 {
        self.inner().size()
    }

    fn read(&self, offset: u64, buffer: Buffer) -> Io<(Buffer, Result<(), DeviceError>)> {
        self.inner().read(offset, buffer)
    }

    fn write(&self, offset: u64, data: Slice, durability: Durability) -> Io<Result<(), DeviceError>> {
        self.inner().write(offset, data, durability)
    }

    fn flush(&self) -> Io<Result<(), DeviceError>> {
        self.inner().flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Io<Result<(), DeviceError>> {
        self.inner().discard(offset, len)
    }
}
