//! Volumes as block devices of this host, over ublk.
//!
//! The record of an attached volume has the number of its device and a mark that the kernel keeps with the device. So a
//! server finds its own device after a crash. If the device is gone, as after a restart of the host, it is recreated.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_block::ublk::{Description, Device, Driver, Order, Parameters, State, block_device};
use forebay_common::lock::Mutex;
use forebay_control::Severity;
use forebay_volume::disk::Disk as _;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::patience::{self, in_time};
use super::unopened::unopened;
use super::{Served, Volumes, unwritten};
use crate::cache::random;
use crate::ublk_control::UblkDriver;

/// The time between two attempts to take a device over whose former server has not ended yet.
const PAUSE: Duration = Duration::from_millis(50);
/// The time after which an event says that a device cannot be taken over.
const PATIENCE: Duration = Duration::from_secs(15);

/// The device of an attached volume, as the record has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attached {
    /// The number of the device: N in `/dev/ublkbN`.
    pub(crate) number: u32,
    /// The mark that the kernel keeps with the device. Another program's device with this number has another one.
    pub(crate) mark: u64,
}

/// The devices of the volumes of a server.
pub(super) struct Devices {
    driver: Result<UblkDriver, String>,
    served: Mutex<HashMap<String, Device>>,
    /// True once the server leaves its devices to the next one.
    pub(super) leaving: AtomicBool,
}

impl Devices {
    pub(super) fn new(driver: Result<UblkDriver, String>) -> Self {
        Devices { driver, served: Mutex::default(), leaving: AtomicBool::new(false) }
    }

    /// Returns the number of a volume's device in service.
    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.served.lock().get(name).map(Device::number)
    }
}

impl Volumes {
    /// Makes a block device of a volume. Returns a sentence if this host has no ublk.
    ///
    /// # Errors
    /// A sentence: the volume is not served, or the kernel refuses the device.
    pub(super) fn attach(self: &Arc<Self>, name: &str) -> Result<Option<String>, String> {
        let _change = self.changing.begin(name)?;
        let Served { entry, .. } = self.served(name)?;
        if self.devices.leaving.load(Ordering::SeqCst) {
            return Err(format!("volume {name} cannot be attached: the server stops"));
        }
        if let Err(reason) = &self.devices.driver {
            return Ok(Some(reason.clone()));
        }
        let Some(attached) = entry.record.ublk else {
            let attached = self.make(name, None).map_err(|error| cannot(name, &error))?;
            self.serve_device(name, attached).map_err(|error| {
                self.give_back(name, attached);
                cannot(name, &error)
            })?;
            let device = block_device(attached.number);
            self.tell("volume-attached", name, format!("volume {name} is {} now", device.display()));
            return Ok(None);
        };
        if self.devices.number(name).is_none() {
            // The former server, or a detach that failed, has left the device. No thread may be taking it over.
            self.take(name, attached).map_err(|error| {
                format!("the device of volume {name} is not served yet: {error}; ask again")
            })?;
        }
        Ok(None)
    }

    /// Takes the devices of all attached volumes over from the former server, in the background.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn take_devices(self: &Arc<Self>) -> io::Result<()> {
        let attached = self.all.lock().iter().any(|entry| entry.record.ublk.is_some());
        if attached {
            let volumes = self.clone();
            std::thread::Builder::new().name("forebay-ublk".into()).spawn(move || volumes.take_all())?;
        }
        Ok(())
    }

    /// Takes over the devices of the former server, and tries again until all are served or the server stops. After
    /// `PATIENCE` an event names each device that still waits.
    fn take_all(self: &Arc<Self>) {
        let begun = Instant::now();
        let mut told = false;
        while !self.devices.leaving.load(Ordering::SeqCst) {
            let waiting = self.take_ready();
            if waiting.is_empty() {
                return;
            }
            if begun.elapsed() >= PATIENCE && !told {
                told = true;
                for (name, error) in waiting {
                    let message = format!(
                        "the device of volume {name} is not served yet, and its requests wait: {error}; it is tried again"
                    );
                    self.events.add(Severity::Error, "volume-device-waits", message, &[("volume", &name)]);
                }
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Takes over each device that can be taken over now. Returns the names of the other volumes in service, and why
    /// their devices cannot be.
    fn take_ready(self: &Arc<Self>) -> Vec<(String, io::Error)> {
        let names: Vec<_> = self.all.lock().iter().map(|entry| entry.record.name.clone()).collect();
        let mut waiting = Vec::new();
        for name in names {
            let change = self.changing.try_begin(&name);
            // The volume may have been detached, or removed, meanwhile. One that is refused keeps its device waiting.
            let Ok(Served { entry, .. }) = self.served(&name) else { continue };
            let Some(attached) = entry.record.ublk.filter(|_| self.devices.number(&name).is_none()) else {
                continue;
            };
            let taken = match change {
                Some(_) => self.take(&name, attached),
                None => Err(io::Error::other("another command changes the volume")),
            };
            waiting.extend(taken.err().map(|error| (name, error)));
        }
        waiting
    }

    /// Takes a device over, or makes it again if it is gone.
    fn take(self: &Arc<Self>, name: &str, attached: Attached) -> io::Result<()> {
        match self.describe(attached)? {
            Some(device) if device.state != State::Dead => {
                self.serve_device(name, attached)?;
                let path = block_device(attached.number);
                self.tell(
                    "volume-attached",
                    name,
                    format!("{} of volume {name} is served again", path.display()),
                );
                return Ok(());
            }
            // The former server ended while it made or removed the device.
            Some(_) => {
                self.driver()?.carry_out(Order::Delete(attached.number))?;
            }
            None => {}
        }
        let again = match self.make(name, Some(attached.number)) {
            // Another program has a device with this number.
            Err(error) if is_errno(&error, Errno::EXIST) => self.make(name, None)?,
            made => made?,
        };
        self.serve_device(name, again)?;
        let path = block_device(again.number);
        self.tell("volume-attached", name, format!("volume {name} is {} again", path.display()));
        Ok(())
    }

    /// Ends the device of a volume, after it was flushed. With `force` a mounted file system gets errors.
    ///
    /// # Errors
    /// A sentence: the device is in use, or the kernel refuses.
    pub(super) fn detach(&self, name: &str, force: bool) -> Result<(), String> {
        let Some(attached) = self.known(name)?.record.ublk else { return Ok(()) };
        let path = block_device(attached.number);
        let claimed = if force { None } else { claim(&path)? };
        // The device ends before the record does. A state directory without room is noticed before both.
        self.keep().map_err(|error| format!("volume {name} stays attached: {}", unwritten(&error)))?;
        let served = self.devices.served.lock().remove(name);
        let removed = match (served, &self.devices.driver) {
            (Some(device), Ok(driver)) => device.remove(driver, claimed),
            (None, Ok(_)) => self.forget_device(attached, claimed),
            // Without ublk and without the device, as after a restart of the host, there is nothing to end.
            (None, Err(_)) if claimed.is_none() => Ok(()),
            (_, Err(reason)) => Err(io::Error::other(reason.clone())),
        };
        removed.map_err(|error| format!("{} cannot be removed: {error}", path.display()))?;
        self.update(name, |record| record.ublk = None)?;
        self.tell("volume-detached", name, format!("{} of volume {name} is removed", path.display()));
        Ok(())
    }

    /// Leaves all devices to the next server. The changes and the requests in progress have the time `patience` to end.
    pub(crate) fn leave_devices(&self, patience: Duration) {
        self.devices.leaving.store(true, Ordering::SeqCst);
        // A change may wait for a device that does not answer. A device that it takes over later is left at once.
        let begun = Instant::now();
        self.changing.wait_for_end(patience);
        let (served, left) =
            (std::mem::take(&mut *self.devices.served.lock()), patience.saturating_sub(begun.elapsed()));
        std::thread::scope(|scope| {
            served.into_values().for_each(|device| drop(scope.spawn(move || device.leave(left))));
        });
    }

    fn driver(&self) -> io::Result<&UblkDriver> {
        self.devices.driver.as_ref().map_err(|reason| io::Error::other(reason.clone()))
    }

    /// Returns the kernel's description of a device of this server; `None` if there is no such device any more.
    fn describe(&self, attached: Attached) -> io::Result<Option<Description>> {
        match self.driver()?.carry_out(Order::Describe(attached.number)) {
            Ok(device) => Ok(device.filter(|device| device.mark == attached.mark)),
            Err(error) if is_errno(&error, Errno::NODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a device without a block device, and records it.
    fn make(&self, name: &str, number: Option<u32>) -> io::Result<Attached> {
        let Served { volume, device, .. } = self.served(name).map_err(io::Error::other)?;
        let mark = random() as u64;
        let parameters = Parameters::of(&volume.shape(), device.logical_block());
        let made = self.driver()?.carry_out(Order::Add(number, mark, parameters))?;
        let Some(Description { number, .. }) = made else { return Err(io::ErrorKind::Unsupported.into()) };
        let attached = Attached { number, mark };
        // The record is durable before the device can have requests.
        if let Err(error) = self.update(name, |record| record.ublk = Some(attached)) {
            self.give_back(name, attached);
            return Err(io::Error::other(error));
        }
        Ok(attached)
    }

    /// Removes a device that could not be put into service.
    fn give_back(&self, name: &str, attached: Attached) {
        // A device that stays does no harm, and the first error is the one to report. A file that still has the device
        // has the next start make it again, unless another change is recorded before.
        let _ = self.forget_device(attached, None);
        if self.update(name, |record| record.ublk = None).is_err() {
            self.update_in_memory(name, |record| record.ublk = None);
        }
    }

    /// Removes a device that this process does not serve. `claim` keeps other users off it until it is stopped.
    fn forget_device(&self, attached: Attached, claim: Option<File>) -> io::Result<()> {
        if self.describe(attached)?.is_some() {
            self.driver()?.carry_out(Order::Stop(attached.number))?;
            drop(claim);
            self.driver()?.carry_out(Order::Delete(attached.number))?;
        }
        Ok(())
    }

    /// Puts a device into service that waits for a server, or that is new.
    fn serve_device(self: &Arc<Self>, name: &str, attached: Attached) -> io::Result<()> {
        let Served { volume, .. } = self.served(name).map_err(io::Error::other)?;
        let device = self.describe(attached)?.ok_or(Errno::NODEV)?;
        let (volumes, owner) = (Arc::downgrade(self), name.to_owned());
        let ended = move || {
            let Some(volumes) = volumes.upgrade().filter(|it| it.known(&owner).is_ok()) else { return };
            volumes.device_ended(&owner, attached);
        };
        let served = Device::serve(self.driver()?, volume, device, ended)?;
        self.devices.served.lock().insert(name.to_owned(), served);
        if self.devices.leaving.load(Ordering::SeqCst) {
            // The server may not wait for this thread.
            let late = self.devices.served.lock().remove(name);
            late.into_iter().for_each(|device| device.leave(Duration::ZERO));
        }
        Ok(())
    }

    /// Reports a device that ended though it is in service.
    fn device_ended(&self, name: &str, attached: Attached) {
        if self.devices.number(name).is_none() {
            return;
        }
        let message = format!(
            "{} of volume {name} was ended by another program; `forebay volume detach {name}` and `attach` make it again",
            block_device(attached.number).display()
        );
        self.events.add(Severity::Error, "volume-device-lost", message, &[("volume", &name)]);
    }
}

/// Opens a block device for this process alone, and writes what the kernel has of it in memory. Returns `None` if there
/// is no such device. Fails if that takes longer than [`PATIENCE`](patience::PATIENCE): the opening as well waits for
/// another program that is closing the device.
fn claim(path: &Path) -> Result<Option<File>, String> {
    let place = path.to_owned();
    let claimed = in_time(patience::PATIENCE, move || claim_now(&place));
    claimed.unwrap_or_else(|| {
        let seconds = patience::PATIENCE.as_secs();
        Err(unflushed(path, &format!("the backing device does not answer within {seconds} seconds")))
    })
}

/// Carries out [`claim`], and waits as long as the device needs.
fn claim_now(path: &Path) -> Result<Option<File>, String> {
    use rustix::fs::{CWD, Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    let claimed = match rustix::fs::openat(CWD, path, flags, Mode::empty()).map(File::from) {
        Ok(claimed) => claimed,
        Err(Errno::NOENT | Errno::NXIO) => return Ok(None),
        Err(Errno::BUSY) => {
            return Err(format!("{} is in use; unmount it, or end the program that uses it", path.display()));
        }
        Err(errno) => return Err(unopened(path, &errno.into())),
    };
    claimed.sync_all().map_err(|error| unflushed(path, &error.to_string()))?;
    Ok(Some(claimed))
}

fn unflushed(path: &Path, reason: &str) -> String {
    format!("{} cannot be flushed: {reason}", path.display())
}

/// Returns the message about a volume for which no block device can be made.
fn cannot(name: &str, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::Unsupported => {
            format!(
                "volume {name} cannot be attached: the kernel's ublk has no user recovery; Linux 6.1 has it"
            )
        }
        io::ErrorKind::PermissionDenied => format!(
            "volume {name} cannot be attached: the kernel refuses this server a block device ({error}); serve as root, or with \
             CAP_SYS_ADMIN"
        ),
        _ => {
            format!("volume {name} cannot be attached: {error}; see the kernel's log, or attach it over NBD")
        }
    }
}

fn is_errno(error: &io::Error, errno: Errno) -> bool {
    Errno::from_io_error(error) == Some(errno)
}
