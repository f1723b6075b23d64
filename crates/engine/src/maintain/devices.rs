//! Adding and removing devices in service.

use std::sync::Arc;
use std::time::Duration;

use crate::buffer::Buffer;
use crate::core::Core;
use crate::destage::flush::flush;
use crate::event::Event;
use crate::io::{Device, DeviceError};
use crate::log::mirror_io::{look_at_mirror, lose};
use crate::pool::deadline::{GivenUp, TICKS, Watched};
use crate::pool::{AlsoLost, PoolError, discard};
use crate::tiers::evict::sweep;
use crate::wait::before;
use crate::{Error, planted_bugs};

/// The reason why a device could not be added or removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The pool refuses the change.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Dirty data of which this device has one of the two copies could not be destaged.
    #[error(
        "the data that only the cache has cannot be destaged ({0}); the device stays in the pool and in use: mend the backing store and remove it again"
    )]
    Drain(Error),
    /// Another device is being removed; only one removal runs at a time.
    #[error("{0} is being removed; wait for the end of that, then ask again")]
    Busy(String),
    /// The device does not answer.
    #[error(
        "{device} was not added, since it has not answered for {} s; see the kernel's log, and add the device again when it answers, \
         or another one",
        .after.as_secs()
    )]
    Silent {
        /// The device's name.
        device: String,
        /// The time without an answer.
        after: Duration,
    },
    /// Another device was lost meanwhile, and the record of that loss did not wait for the device.
    #[error(
        "{0} was not added, since another cache device was lost at that moment, which had to be recorded at once; add it again"
    )]
    Interrupted(String),
    /// The cache has no device of this name.
    #[error("{0} is not a device of this cache; `forebay pool status` lists them")]
    Unknown(String),
}

/// A removal in progress; see [`retire`].
struct Retiring<'a>(&'a Core);

impl Drop for Retiring<'_> {
    fn drop(&mut self) {
        self.0.segments.end_retiring();
        look_at_mirror(self.0);
        self.0.space.wake();
    }
}

/// Adds a device, durably when this returns. With `force`, its contents do not matter.
pub(crate) async fn add_device(core: &Core, device: Arc<dyn Device>, force: bool) -> Result<(), ChangeError> {
    if core.active() == 0 || core.log.broken().is_some() {
        // The newcomer would make the missing devices out of date, and they may hold the only copy of some data.
        return Err(PoolError::NoMemberLeft.into());
    }
    let name = device.name().to_owned();
    let device = Watched::new(device, &core.ticks);
    let (added, given_up) = core.members.add(&device, force, |epoch| core.log.set_epoch(epoch)).await;
    let member = match added {
        Ok(member) => member,
        Err(error) => {
            // This applies even if the device was not added: the other devices may have failed meanwhile.
            lose_all(core, given_up).await;
            return Err(why_not_added(core, &device, error));
        }
    };
    {
        let mut devices = core.devices.write();
        let index = usize::from(member.index);
        if devices.len() <= index {
            devices.resize_with(index + 1, || None);
        }
        devices[index] = Some(device.clone());
    }
    discard_newcomer(core, &device).await;
    {
        // The task that loses the device takes this lock first, and removes the device's segments after that.
        let devices = core.devices.read();
        if devices.get(usize::from(member.index)).is_some_and(Option::is_some) {
            core.segments.gain(member.index, member.segments);
        }
    }
    lose_all(core, given_up).await;
    if let Some(why) = device.given_up() {
        let (after, error) = (core.settings.device_deadline, DeviceError::Gone);
        return Err(match why {
            GivenUp::Late => ChangeError::Silent { device: name, after },
            GivenUp::Unused => PoolError::Unwritable { device: name, error }.into(),
        });
    }
    core.event(Event::DeviceAdded { device: name });
    // The segment being written may have one leg.
    core.log.want_roll();
    core.space.wake();
    Ok(())
}

/// Discards a device that no segment uses yet. A discard may take long on a healthy device, so reads check meanwhile
/// that the device answers.
async fn discard_newcomer(core: &Core, device: &Watched) {
    let mut discarding = Box::pin(discard(device));
    while before(core.rest(core.settings.device_deadline / TICKS), &mut discarding).await.is_none() {
        // If the device does not answer, the watch gives it up, which ends the discard.
        let _ = device.read(0, Buffer::zeroed(1)).await;
    }
}

/// Returns the error that the user sees after `error` of an attempt to add the device.
fn why_not_added(core: &Core, device: &Watched, error: PoolError) -> ChangeError {
    let name = device.name().to_owned();
    match (error, device.given_up()) {
        (error @ (PoolError::NoMemberLeft | PoolError::Unnoted(_)), _) => error.into(),
        (_, Some(GivenUp::Late)) => {
            ChangeError::Silent { device: name, after: core.settings.device_deadline }
        }
        (PoolError::Unwritable { .. } | PoolError::Unreadable { .. }, Some(GivenUp::Unused)) => {
            ChangeError::Interrupted(name)
        }
        (error, _) => error.into(),
    }
}

/// Removes a device from use. All data that only it and another device have is destaged first. If only one device
/// will be left, writes go through to the backing store meanwhile. After an error the device stays in use. After
/// a crash before this returns it may stay as well. The removal may be given up; then, too, the device stays.
pub(crate) async fn remove_device(core: &Core, name: &str) -> Result<(), ChangeError> {
    let found = core.devices.read().iter().position(|d| d.as_ref().is_some_and(|d| d.name() == name));
    let index = found.ok_or_else(|| ChangeError::Unknown(name.to_owned()))? as u16;
    let retiring = retire(core, index, name)?;
    let removed = match drain(core, index, name).await {
        Ok(()) => take_out(core, index).await,
        drained => drained,
    };
    drop(retiring);
    let device = name.to_owned();
    match &removed {
        Ok(()) => core.event(Event::DeviceRemoved { device }),
        Err(_) if core.device(index).is_some() => core.event(Event::DeviceKept { device }),
        // The device has died.
        Err(_) => {}
    }
    removed
}

/// Checks that [`Engine::remove_device`](crate::Engine::remove_device) would begin with this device now.
pub(crate) fn may_remove(core: &Core, name: &str) -> Result<(), ChangeError> {
    if !core.devices.read().iter().flatten().any(|device| device.name() == name) {
        return Err(ChangeError::Unknown(name.to_owned()));
    }
    if core.active() < 2 {
        return Err(PoolError::LastMember(name.to_owned()).into());
    }
    match leaving(core) {
        Some(other) => Err(ChangeError::Busy(other)),
        None => Ok(()),
    }
}

/// Returns the name of the device that is being removed.
pub(crate) fn leaving(core: &Core) -> Option<String> {
    core.segments.retiring().map(|index| name_of(core, index))
}

fn name_of(core: &Core, index: u16) -> String {
    core.device(index).map_or_else(|| "another device".to_owned(), |device| device.name().to_owned())
}

/// Keeps new data off a device where another device can take it, while the result lives.
fn retire<'a>(core: &'a Core, index: u16, name: &str) -> Result<Retiring<'a>, ChangeError> {
    if core.active() < 2 {
        return Err(PoolError::LastMember(name.to_owned()).into());
    }
    if let Some(other) = core.segments.retire(index) {
        return Err(ChangeError::Busy(name_of(core, other)));
    }
    look_at_mirror(core);
    Ok(Retiring(core))
}

/// Destages until the other devices can do without the device.
async fn drain(core: &Core, index: u16, name: &str) -> Result<(), ChangeError> {
    if planted_bugs::active("a device leaves with what only it and another have") {
        return Ok(());
    }
    let mut since = None;
    loop {
        let staying = core.segments.staying();
        since = match staying {
            0 => return Err(PoolError::LastMember(name.to_owned()).into()),
            // The other devices have to do without the lost device.
            _ if core.segments.is_lost(index) => return Ok(()),
            // From here on no data is accepted that needs two copies.
            1 => since.or_else(|| Some(core.segments.next_seq())),
            _ => None,
        };
        let is_other = || core.segments.staying() != staying || core.segments.is_lost(index);
        let other = core.space.until(|| is_other().then_some(()));
        // A file system that does not answer delays a flush. It must not delay the report that another device has
        // died.
        let Some(flushed) = before(other, destage_all(core)).await else { continue };
        flushed.map_err(ChangeError::Drain)?;
        let _wanting = core.notes.want();
        let ready = || {
            let over = core.closing().then_some(Error::Closing).or_else(|| core.log.broken());
            if let Some(error) = over {
                return Some(Err(ChangeError::Drain(error)));
            }
            if core.segments.may_go(index, since) {
                return Some(Ok(true));
            }
            let again = core.segments.blocks().1 > 0 || core.segments.staying() != staying;
            again.then_some(Ok(false))
        };
        if core.space.until(ready).await? {
            return Ok(());
        }
    }
}

/// Destages everything that a leaving device may have.
async fn destage_all(core: &Core) -> Result<(), Error> {
    // Segments on the device may invalidate older copies on other devices, so they must be loaded.
    core.warmed().await;
    // The segment being written can leave the log only once another segment follows it.
    core.log.want_roll();
    flush(core).await
}

/// Records on the other devices that a drained device has left.
async fn take_out(core: &Core, index: u16) -> Result<(), ChangeError> {
    for id in core.segments.not_in_log_on(index) {
        // No write may be in flight to a place that is freed.
        if !core.segments.is_sealed(id) {
            core.clean.seal();
            core.space.until(|| (core.closing() || core.segments.is_sealed(id)).then_some(())).await;
        }
        sweep(core, id);
        core.segments.free_segment(id);
    }
    // Until the device itself carries its removal, it has all data of the other devices, in case they fail.
    let (removed, lost) = core.members.remove(index, |epoch| core.log.set_epoch(epoch)).await;
    if removed.is_ok() {
        if let Some(device) = core.devices.write().get_mut(usize::from(index)) {
            *device = None;
        }
        core.segments.lose(index);
    }
    lose_all(core, lost).await;
    Ok(removed?)
}

/// Stops using the devices of `given_up` that are in use.
async fn lose_all(core: &Core, given_up: AlsoLost) {
    for lost in given_up.into_iter().filter(|lost| core.device(*lost).is_some()) {
        lose(core, lost).await;
    }
}
