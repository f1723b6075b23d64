//! Destaging, scrubs, and changes of the devices.

use std::sync::Arc;

use crate::Result;
use crate::buffer::BLOCK;
use crate::core::clean_loader::CleanLoading;
use crate::core::scrubber::Scrub;
use crate::destage::flush;
use crate::engine::Engine;
use crate::index::object::CachedObject;
use crate::index::policy::Policy;
use crate::io::Device;
use crate::maintain::devices::ChangeError;
use crate::maintain::{devices, scrub};
use crate::tiers::policy;
use crate::tiers::policy::Pins;

impl Engine {
    /// Destages everything that is dirty now. Returns once the backing store has it durably. Data that clients write
    /// meanwhile may be destaged too. May be given up at any time.
    ///
    /// # Errors
    /// The error of a volume that does not answer, or on which a whole pass over its dirty blocks failed. It is
    /// returned once all other volumes are done. Destaging is tried again in the background. [`Engine::volumes`]
    /// tells which volume it is.
    pub async fn flush(&self) -> Result<()> {
        flush::flush(&self.core).await
    }

    /// Destages the dirty blocks of one object, now.
    ///
    /// # Errors
    /// Errors of the backing store; destaging is tried again in the background.
    /// [`Error::Damaged`](crate::Error::Damaged): no copy of some block can be read.
    pub async fn destage_object(&self, object: &Arc<CachedObject>) -> Result<()> {
        flush::destage_object(&self.core, object).await
    }

    /// Destages the blocks of this object's volume that are dirty now, until all are clean or `enough` returns true.
    ///
    /// # Errors
    /// The errors of [`Engine::destage_object`], and [`Error::Late`](crate::Error::Late) if the volume does not answer.
    pub async fn destage_beside(&self, object: &CachedObject, enough: impl Fn() -> bool) -> Result<()> {
        flush::destage_beside(&self.core, object, enough).await
    }

    /// Waits until the volume of this object has not answered a request for ten seconds, which may be never.
    pub async fn until_late(&self, object: &CachedObject) {
        flush::until_late(&self.core, object).await;
    }

    /// Sets the policy of an object. An object that is never kept loses its clean blocks at once. The policy is in
    /// memory only.
    pub fn set_policy(&self, object: &Arc<CachedObject>, policy: Policy) {
        policy::set_policy(&self.core, object, policy);
    }

    /// Sets the limits of a share: eviction spares its blocks up to `min` bytes, and clean blocks beyond `max` bytes
    /// are dropped within seconds. `number` is that of policies, from 1 on.
    pub fn set_share(&self, number: u16, min: u64, max: Option<u64>) {
        let blocks = |bytes: u64| bytes / BLOCK as u64;
        if let Some(share) = self.core.shares.get(number) {
            share.set(blocks(min), max.map_or(u64::MAX, blocks));
            self.core.destager.work.wake();
        }
    }

    /// Returns the number of bytes on the cache devices of a share's objects.
    pub fn share_held(&self, number: u16) -> u64 {
        self.core.shares.get(number).map_or(0, |share| share.held() * BLOCK as u64)
    }

    /// Returns the highest number of blocks on the cache devices that policies can pin. Pinned objects beyond it are
    /// cached like others.
    pub fn pin_limit(&self) -> u64 {
        Pins::now(&self.core).limit()
    }

    /// Returns the highest number of blocks on the cache devices up to which blocks of high priority are preferred.
    pub fn high_limit(&self) -> u64 {
        Pins::now(&self.core).high_limit()
    }

    /// Requests a scrub without pauses, and waits for its end.
    ///
    /// # Errors
    /// The engine is closing.
    pub async fn scrub(&self) -> Result<Scrub> {
        scrub::scrub(&self.core).await
    }

    /// Requests a scrub without pauses, after a scrub in progress. Returns the number of the requested scrub.
    pub fn start_scrub(&self) -> u64 {
        scrub::start_scrub(&self.core)
    }

    /// Returns the scrub in progress, or the last one.
    pub fn scrub_status(&self) -> Scrub {
        scrub::scrub_status(&self.core)
    }

    /// Adds a device, durably when this returns. With `force`, its contents do not matter.
    ///
    /// # Errors
    /// The pool's error. Nothing has changed then.
    pub async fn add_device(
        &self,
        device: Arc<dyn Device>,
        force: bool,
    ) -> std::result::Result<(), ChangeError> {
        devices::add_device(&self.core, device, force).await
    }

    /// Removes a device from use. All data that only it and another device have is destaged first. If only one device
    /// will be left, writes go through to the backing store meanwhile. After an error the device stays in use. After
    /// a crash before this returns it may stay as well. The removal may be given up; then, too, the device stays.
    ///
    /// # Errors
    /// The device is unknown, is the last one or becomes the last one meanwhile, another device is being removed, or
    /// destaging fails.
    pub async fn remove_device(&self, name: &str) -> std::result::Result<(), ChangeError> {
        devices::remove_device(&self.core, name).await
    }

    /// Checks that [`Engine::remove_device`] would begin with this device now.
    ///
    /// # Errors
    /// The reason why the removal would not begin.
    pub fn may_remove(&self, name: &str) -> std::result::Result<(), ChangeError> {
        devices::may_remove(&self.core, name)
    }

    /// Returns the name of the device that is being removed.
    pub fn leaving(&self) -> Option<String> {
        devices::leaving(&self.core)
    }

    /// Returns the progress of loading the clean segments; `None` when it is over.
    pub fn warming(&self) -> Option<CleanLoading> {
        self.core.warming()
    }

    /// Returns the number of dirty blocks that have to be copied or destaged until all dirty data is on two devices.
    /// `None` if it is, or if fewer than two devices are there.
    pub fn unmirrored(&self) -> Option<u64> {
        let core = &self.core;
        (!core.is_mirrored() && core.staying() >= 2).then(|| core.segments.dirty_until_mirrored())
    }

    /// Returns the number of dirty blocks to be destaged before the device that is being removed may go; `None` if no
    /// device is being removed.
    pub fn dirty_before_removal(&self) -> Option<u64> {
        self.core.segments.dirty_before_removal()
    }

    /// Waits until all clean segments are loaded, or never will be: no device is left, or the engine closes.
    pub async fn warmed(&self) {
        self.core.warmed().await
    }
}
