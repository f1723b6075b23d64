//! Adding and removing devices in service.

use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::buffer::Buffer;
use crate::engine::Engine;
use crate::event::Event;
use crate::io::{Device, DeviceError};
use crate::maintain::deadline::{GivenUp, TICKS, Watched};
use crate::plant;
use crate::pool::{AlsoLost, PoolError, discard};
use crate::wait::before;

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

impl Engine {
    /// Adds a device, durably when this returns. With `force`, its contents do not matter.
    ///
    /// # Errors
    /// The pool's error. Nothing has changed then.
    pub async fn add_device(&self, device: Arc<dyn Device>, force: bool) -> Result<(), ChangeError> {
        if self.active() == 0 || self.log.broken().is_some() {
            // The newcomer would make the missing devices out of date, and they may hold the only copy of some data.
            return Err(PoolError::NoMemberLeft.into());
        }
        let name = device.name().to_owned();
        let device = Watched::new(device, &self.ticks);
        let (added, given_up) = self.members.add(&device, force, &self.log).await;
        let member = match added {
            Ok(member) => member,
            Err(error) => {
                // This applies even if the device was not added: the other devices may have failed meanwhile.
                self.lose_all(given_up).await;
                return Err(self.why_not_added(&device, error));
            }
        };
        {
            let mut devices = self.devices.write();
            let index = usize::from(member.index);
            if devices.len() <= index {
                devices.resize_with(index + 1, || None);
            }
            devices[index] = Some(device.clone());
        }
        self.discard_newcomer(&device).await;
        {
            // The task that loses the device takes this lock first, and removes the device's segments after that.
            let devices = self.devices.read();
            if devices.get(usize::from(member.index)).is_some_and(Option::is_some) {
                self.segments.gain(member.index, member.segments);
            }
        }
        self.lose_all(given_up).await;
        if let Some(why) = device.given_up() {
            let (after, error) = (self.settings.device_deadline, DeviceError::Gone);
            return Err(match why {
                GivenUp::Late => ChangeError::Silent { device: name, after },
                GivenUp::Unused => PoolError::Unwritable { device: name, error }.into(),
            });
        }
        self.event(Event::DeviceAdded { device: name });
        // The segment being written may have one leg.
        self.log.want_roll();
        self.space.wake();
        Ok(())
    }

    /// Discards a device that no segment uses yet. A discard may take long on a healthy device, so reads check meanwhile
    /// that the device answers.
    async fn discard_newcomer(&self, device: &Watched) {
        let mut discarding = Box::pin(discard(device));
        while before(self.rest(self.settings.device_deadline / TICKS), &mut discarding).await.is_none() {
            // If the device does not answer, the watch gives it up, which ends the discard.
            let _ = device.read(0, Buffer::zeroed(1)).await;
        }
    }

    /// Returns the error that the user sees after `error` of an attempt to add the device.
    fn why_not_added(&self, device: &Watched, error: PoolError) -> ChangeError {
        let name = device.name().to_owned();
        match (error, device.given_up()) {
            (error @ (PoolError::NoMemberLeft | PoolError::Unnoted(_)), _) => error.into(),
            (_, Some(GivenUp::Late)) => {
                ChangeError::Silent { device: name, after: self.settings.device_deadline }
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
    ///
    /// # Errors
    /// The device is unknown, is the last one or becomes the last one meanwhile, another device is being removed, or
    /// destaging fails.
    pub async fn remove_device(&self, name: &str) -> Result<(), ChangeError> {
        let found = self.devices.read().iter().position(|d| d.as_ref().is_some_and(|d| d.name() == name));
        let index = found.ok_or_else(|| ChangeError::Unknown(name.to_owned()))? as u16;
        let retiring = self.retire(index, name)?;
        let removed = match self.drain(index, name).await {
            Ok(()) => self.take_out(index).await,
            drained => drained,
        };
        drop(retiring);
        let device = name.to_owned();
        match &removed {
            Ok(()) => self.event(Event::DeviceRemoved { device }),
            Err(_) if self.device(index).is_some() => self.event(Event::DeviceKept { device }),
            // The device has died.
            Err(_) => {}
        }
        removed
    }

    /// Checks that [`Engine::remove_device`] would begin with this device now.
    ///
    /// # Errors
    /// The reason why the removal would not begin.
    pub fn may_remove(&self, name: &str) -> Result<(), ChangeError> {
        if !self.devices.read().iter().flatten().any(|device| device.name() == name) {
            return Err(ChangeError::Unknown(name.to_owned()));
        }
        if self.active() < 2 {
            return Err(PoolError::LastMember(name.to_owned()).into());
        }
        match self.leaving() {
            Some(other) => Err(ChangeError::Busy(other)),
            None => Ok(()),
        }
    }

    /// Returns the name of the device that is being removed.
    pub fn leaving(&self) -> Option<String> {
        self.segments.retiring().map(|index| self.name_of(index))
    }

    fn name_of(&self, index: u16) -> String {
        self.device(index).map_or_else(|| "another device".to_owned(), |device| device.name().to_owned())
    }

    /// Keeps new data off a device where another device can take it, while the result lives.
    fn retire(&self, index: u16, name: &str) -> Result<Retiring<'_>, ChangeError> {
        if self.active() < 2 {
            return Err(PoolError::LastMember(name.to_owned()).into());
        }
        if let Some(other) = self.segments.retire(index) {
            return Err(ChangeError::Busy(self.name_of(other)));
        }
        self.look_at_mirror();
        Ok(Retiring(self))
    }

    /// Destages until the other devices can do without the device.
    async fn drain(&self, index: u16, name: &str) -> Result<(), ChangeError> {
        if plant::active("a device leaves with what only it and another have") {
            return Ok(());
        }
        let mut since = None;
        loop {
            let staying = self.segments.staying();
            since = match staying {
                0 => return Err(PoolError::LastMember(name.to_owned()).into()),
                // The other devices have to do without the lost device.
                _ if self.segments.is_lost(index) => return Ok(()),
                // From here on no data is accepted that needs two copies.
                1 => since.or_else(|| Some(self.segments.next_seq())),
                _ => None,
            };
            let is_other = || self.segments.staying() != staying || self.segments.is_lost(index);
            let other = self.space.until(|| is_other().then_some(()));
            // A file system that does not answer delays a flush. It must not delay the report that another device has
            // died.
            let Some(flushed) = before(other, self.destage_all()).await else { continue };
            flushed.map_err(ChangeError::Drain)?;
            let _wanting = self.notes.want();
            let ready = || {
                let over = self.closing().then_some(Error::Closing).or_else(|| self.log.broken());
                if let Some(error) = over {
                    return Some(Err(ChangeError::Drain(error)));
                }
                if self.segments.may_go(index, since) {
                    return Some(Ok(true));
                }
                let again = self.segments.blocks().1 > 0 || self.segments.staying() != staying;
                again.then_some(Ok(false))
            };
            if self.space.until(ready).await? {
                return Ok(());
            }
        }
    }

    /// Destages everything that a leaving device may have.
    async fn destage_all(&self) -> Result<(), Error> {
        // Segments on the device may invalidate older copies on other devices, so they must be loaded.
        self.warmed().await;
        // The segment being written can leave the log only once another segment follows it.
        self.log.want_roll();
        self.flush().await
    }

    /// Records on the other devices that a drained device has left.
    async fn take_out(&self, index: u16) -> Result<(), ChangeError> {
        for id in self.segments.not_in_log_on(index) {
            // No write may be in flight to a place that is freed.
            if !self.segments.is_sealed(id) {
                self.clean.seal();
                self.space.until(|| (self.closing() || self.segments.is_sealed(id)).then_some(())).await;
            }
            self.sweep(id);
            self.segments.let_go(id);
        }
        // Until the device itself carries its removal, it has all data of the other devices, in case they fail.
        let (removed, lost) = self.members.remove(index, &self.log).await;
        if removed.is_ok() {
            if let Some(device) = self.devices.write().get_mut(usize::from(index)) {
                *device = None;
            }
            self.segments.lose(index);
        }
        self.lose_all(lost).await;
        Ok(removed?)
    }

    /// Stops using the devices of `given_up` that are in use.
    async fn lose_all(&self, given_up: AlsoLost) {
        for lost in given_up.into_iter().filter(|lost| self.device(*lost).is_some()) {
            self.lose(lost).await;
        }
    }
}

/// A removal in progress; see [`Engine::retire`].
struct Retiring<'a>(&'a Engine);

impl Drop for Retiring<'_> {
    fn drop(&mut self) {
        self.0.segments.end_retiring();
        self.0.look_at_mirror();
        self.0.space.wake();
    }
}
