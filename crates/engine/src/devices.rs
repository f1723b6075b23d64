//! Devices come and go, in service.

use std::sync::Arc;

use crate::Error;
use crate::engine::Engine;
use crate::event::Event;
use crate::io::Device;
use crate::pool::{PoolError, discard};
use crate::segments::Segment;

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
        let (member, also_lost) = self.members.add(device.clone(), force, &self.log).await?;
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
        for lost in also_lost {
            self.lose(lost).await;
        }
        self.event(Event::DeviceAdded { device: name });
        // The segment being written may have one leg.
        self.log.want_roll();
        self.space.wake();
        Ok(())
    }

    /// Takes a device out of use: first everything that only it and its twin have is destaged. After an error it is in
    /// use as before. May be given up; then nothing new is put on it, but it stays.
    ///
    /// # Errors
    /// It is not there, it is the last one, or destaging fails.
    pub async fn remove_device(&self, name: &str) -> Result<(), ChangeError> {
        let found = self.devices.read().iter().position(|d| d.as_ref().is_some_and(|d| d.name() == name));
        let index = found.ok_or_else(|| ChangeError::Unknown(name.to_owned()))? as u16;
        if self.active() < 2 {
            return Err(PoolError::LastMember(name.to_owned()).into());
        }
        self.segments.retire(index, true);
        self.log.want_roll();
        if let Err(error) = self.drain(index).await {
            self.segments.retire(index, false);
            // The segment being written may have one leg.
            self.log.want_roll();
            self.space.wake();
            return Err(ChangeError::Drain(error));
        }
        for (id, _) in self.segments.all().into_iter().filter(|(_, segment)| is_on(segment, index)) {
            self.sweep(id);
            self.segments.let_go(id);
        }
        let removed = self.members.remove(index, &self.log).await;
        let also_lost = removed.inspect_err(|_| self.segments.retire(index, false))?;
        if let Some(device) = self.devices.write().get_mut(usize::from(index)) {
            *device = None;
        }
        self.segments.lose(index);
        for lost in also_lost {
            self.lose(lost).await;
        }
        self.event(Event::DeviceRemoved { device: name.to_owned() });
        self.look_at_mirror();
        self.space.wake();
        Ok(())
    }

    /// Destages until no segment of the log is on the device.
    async fn drain(&self, index: u16) -> Result<(), Error> {
        // What segments on the device say of older copies on others has to be known.
        self.warmed().await;
        loop {
            self.flush().await?;
            // The segment being written leaves the log once it is followed by another.
            self.segments.advance();
            if !self.segments.log_is_on(index) {
                return Ok(());
            }
            self.log.want_roll();
            let ready = || {
                self.segments.advance();
                if let Some(error) = self.log.broken() {
                    return Some(Err(error));
                }
                (!self.segments.log_is_on(index) || self.segments.blocks().1 > 0).then_some(Ok(()))
            };
            self.log.until(ready).await?;
        }
    }
}

fn is_on(segment: &Segment, index: u16) -> bool {
    segment.legs.iter().any(|place| place.device == index)
}
