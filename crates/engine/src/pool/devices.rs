//! Devices come and go, in service.

use std::sync::Arc;

use crate::Error;
use crate::engine::Engine;
use crate::event::Event;
use crate::io::Device;
use crate::maintain::deadline::Watched;
use crate::plant;
use crate::pool::{AlsoLost, PoolError, discard};
use crate::wait::before;

/// Why a device could not be added or removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The pool refuses.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// What only this device and its twin have could not be destaged.
    #[error(
        "the data that only the cache has cannot be destaged ({0}); the device stays in the pool and in use: mend the backing store and remove it again"
    )]
    Drain(Error),
    /// One at a time.
    #[error("{0} is being removed; wait for the end of that, then ask again")]
    Busy(String),
    /// No such device.
    #[error("{0} is not a device of this cache; `forebay pool status` lists them")]
    Unknown(String),
}

impl Engine {
    /// Adds a device: durable when this returns. `force`: whatever is on it.
    ///
    /// # Errors
    /// The pool's; nothing has changed then.
    pub async fn add_device(&self, device: Arc<dyn Device>, force: bool) -> Result<(), ChangeError> {
        if self.active() == 0 || self.log.broken().is_some() {
            // The newcomer would make those that are gone, and may hold what no other place does, out of date.
            return Err(PoolError::NoMemberLeft.into());
        }
        let name = device.name().to_owned();
        let device = Watched::new(device, &self.ticks);
        let (added, given_up) = self.members.add(device.clone(), force, &self.log).await;
        let member = match added {
            Ok(member) => member,
            Err(error) => {
                // Also where nothing was added: the others may have failed over it.
                self.lose_all(given_up).await;
                return Err(error.into());
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
        // Nothing uses it yet.
        discard(device.as_ref()).await;
        self.segments.gain(member.index, member.segments);
        self.lose_all(given_up).await;
        self.event(Event::DeviceAdded { device: name });
        // The segment being written may have one leg.
        self.log.want_roll();
        self.space.wake();
        Ok(())
    }

    /// Takes a device out of use: first everything that only it and its twin have is destaged, and for that writes go through
    /// if one device will be left. After an error it is in use as before, as after a crash before this returns, perhaps. May be
    /// given up; then, too, it stays.
    ///
    /// # Errors
    /// It is not there, it is the last one or becomes that meanwhile, another one is being removed, or destaging fails.
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
            // It has died.
            Err(_) => {}
        }
        removed
    }

    /// Whether [`Engine::remove_device`] would begin with this device now.
    ///
    /// # Errors
    /// Why it would not.
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

    /// The name of the device that is being removed.
    pub fn leaving(&self) -> Option<String> {
        self.segments.retiring().map(|index| self.name_of(index))
    }

    fn name_of(&self, index: u16) -> String {
        self.device(index).map_or_else(|| "another device".to_owned(), |device| device.name().to_owned())
    }

    /// Nothing more is put on a device that can be put elsewhere, while the result lives.
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

    /// Destages until the others can do without the device.
    async fn drain(&self, index: u16, name: &str) -> Result<(), ChangeError> {
        if plant::active("a device leaves with what only it and another have") {
            return Ok(());
        }
        let mut since = None;
        loop {
            let staying = self.segments.staying();
            since = match staying {
                0 => return Err(PoolError::LastMember(name.to_owned()).into()),
                // They have to do without it.
                _ if self.segments.is_lost(index) => return Ok(()),
                // From here on, nothing is accepted that needs two copies.
                1 => since.or_else(|| Some(self.segments.next_seq())),
                _ => None,
            };
            let is_other = || self.segments.staying() != staying || self.segments.is_lost(index);
            let other = self.space.until(|| is_other().then_some(()));
            // A file system that does not answer holds up a flush, but not the news that another device has died.
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

    /// Destages all that a device which leaves may have.
    async fn destage_all(&self) -> Result<(), Error> {
        // What segments on the device say of older copies on others has to be known.
        self.warmed().await;
        // The segment being written leaves the log once it is followed by another.
        self.log.want_roll();
        self.flush().await
    }

    /// Tells the others that a drained device is gone.
    async fn take_out(&self, index: u16) -> Result<(), ChangeError> {
        for id in self.segments.not_in_log_on(index) {
            // Nothing may be on its way into a place that is given up.
            if !self.segments.is_sealed(id) {
                self.clean.seal();
                self.space.until(|| (self.closing() || self.segments.is_sealed(id)).then_some(())).await;
            }
            self.sweep(id);
            self.segments.let_go(id);
        }
        // Until it knows itself, it has all that the others have, in case they fail.
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

    /// Stops using those of `given_up` that are in use.
    async fn lose_all(&self, given_up: AlsoLost) {
        for lost in given_up.into_iter().filter(|lost| self.device(*lost).is_some()) {
            self.lose(lost).await;
        }
    }
}

/// See [`Engine::retire`].
struct Retiring<'a>(&'a Engine);

impl Drop for Retiring<'_> {
    fn drop(&mut self) {
        self.0.segments.end_retiring();
        self.0.look_at_mirror();
        self.0.space.wake();
    }
}
