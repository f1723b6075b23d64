//! Opens the backing device of a volume, whatever its kind is.

use std::io;
use std::path::Path;
use std::sync::Arc;

use forebay_common::nbd_url::NbdUrl;
use forebay_control::{EventLog, Severity};
use forebay_disk::KnownExport;
use forebay_volume::device::BackingDevice;

use super::device::{DeviceFile, resolved};
use super::identity::{Identity, is_rotational};
use super::remote::RemoteDevice;

/// An open backing device: a block device or a file of this host, or an NBD export.
pub(crate) trait OpenDevice: BackingDevice {
    /// Looks up the size again. Returns the size in bytes, which never becomes smaller here.
    ///
    /// # Errors
    /// The size cannot be found out, or requests to the device cannot have it.
    fn measure(&self) -> io::Result<u64>;

    /// Makes the device `size` bytes long, durably.
    ///
    /// # Errors
    /// A sentence: it cannot be done.
    fn grow(&self, size: u64) -> Result<(), String>;

    /// Returns the bytes of a logical block, the unit of requests that the data on the device was laid out for.
    fn logical_block(&self) -> u32;

    /// Returns a sentence that says why requests to the device wait or fail now; `None` if none is known.
    fn trouble(&self) -> Option<String>;
}

impl OpenDevice for DeviceFile {
    fn measure(&self) -> io::Result<u64> {
        DeviceFile::measure(self)
    }

    fn grow(&self, size: u64) -> Result<(), String> {
        DeviceFile::grow(self, size)
    }

    fn logical_block(&self) -> u32 {
        DeviceFile::logical_block(self)
    }

    fn trouble(&self) -> Option<String> {
        None
    }
}

/// A volume's name, and where its connections are reported.
pub(super) struct Told<'a> {
    pub(super) name: &'a str,
    pub(super) events: &'a Arc<EventLog>,
}

/// Opens the device that `backing` names, for reads only if it is `read_only`. Returns its identity as well. An export
/// that is `known` from an earlier start may be missing: there is a connection as soon as its server can be reached.
///
/// # Errors
/// A sentence: the device is in use, or cannot be opened.
pub(super) fn open(
    backing: &Path,
    read_only: bool,
    known: Option<&Identity>,
    told: &Told<'_>,
) -> Result<(Arc<dyn OpenDevice>, Identity), String> {
    if NbdUrl::is_meant(backing) {
        let url = NbdUrl::parse(&backing.to_string_lossy())?;
        let known = known.filter(|known| known.export.as_deref() == Some(url.export()));
        let known = known.and_then(|known| Some(KnownExport { size: known.size, unit: known.unit? }));
        let device = open_export(&url, read_only, known, told)?;
        let identity = identity_of(&url, &device);
        return Ok((device, identity));
    }
    let path = resolved(backing)?;
    let kind = Identity::of(&path, 0)?;
    let device = DeviceFile::open(&path, read_only, is_rotational(&path))?;
    let identity = Identity { size: device.size(), ..kind };
    Ok((Arc::new(device), identity))
}

/// Returns the identity of an open export.
pub(super) fn identity_of(url: &NbdUrl, device: &RemoteDevice) -> Identity {
    let (size, unit) = (device.size(), Some(device.unit()));
    Identity { size, unit, export: Some(url.export().to_owned()), ..Identity::default() }
}

/// Connects to an export.
///
/// # Errors
/// A sentence: the server cannot be reached, or the export cannot be a backing device.
pub(super) fn open_export(
    url: &NbdUrl,
    read_only: bool,
    known: Option<KnownExport>,
    told: &Told<'_>,
) -> Result<Arc<RemoteDevice>, String> {
    let (name, shown, events) = (told.name.to_owned(), url.to_string(), told.events.clone());
    let tell = move |is_there: bool| {
        let (severity, kind, message) = match is_there {
            false => (
                Severity::Warning,
                "volume-disconnected",
                format!(
                    "volume {name}: the connection to {shown} is lost; it is tried again, and what was not flushed is written \
                     again"
                ),
            ),
            true => {
                (Severity::Info, "volume-connected", format!("volume {name}: {shown} is connected again"))
            }
        };
        events.add(severity, kind, message, &[("volume", &name)]);
    };
    RemoteDevice::open(url, read_only, known, tell).map(Arc::new)
}
