//! Room for the data that the cache accepts: in the reserve of the file system, and in the quotas that count.

use std::sync::Arc;

use forebay_engine::{CachedObject as Cached, Engine};
use forebay_runtime::block_on;
use rustix::io::Errno;
use smallvec::SmallVec;

use crate::admission::mount::Mount;
use crate::admission::quota::{Charge, Quotas};
use crate::admission::reserve::{Reserve, Room};
use crate::attr::Attr;
use crate::caches::inode::Inode;
use crate::error::{Error, Result, from_cache};
use crate::wait::Wait;

/// The rooms that a write holds: on the file system, and in each quota that counts.
pub(crate) type Rooms<'a> = SmallVec<[Room<'a>; 3]>;

/// The bytes that a change of the backing file may take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    /// Bytes of the file system.
    pub(crate) space: u64,
    /// Bytes that are charged to the owner.
    pub(crate) quota: u64,
}

/// The conditions under which the cache accepts data for one file system.
pub(crate) struct Admission {
    engine: Arc<Engine>,
    mount: Arc<Mount>,
    reserve: Reserve,
    quotas: Quotas,
}

impl Admission {
    pub(crate) fn new(engine: Arc<Engine>, mount: Arc<Mount>) -> Self {
        Admission { engine, mount, reserve: Reserve::default(), quotas: Quotas::default() }
    }

    /// Returns true if the kernel has to be asked for quotas before a file is charged, which may wait for the disk.
    pub(crate) fn is_charge_due(&self) -> bool {
        self.quotas.is_due()
    }

    /// Returns the account to which a file with these attributes is charged, or `None` without quotas.
    pub(crate) fn charge(&self, attr: &Attr) -> Option<Arc<Charge>> {
        self.quotas.charge(&self.mount, attr.uid, attr.gid)
    }

    /// Takes room for `len` bytes of a file that is charged to `charge`; `None` if there is not enough. `WouldBlock`:
    /// the file system has to be asked for its space or for a quota, and the caller may not wait.
    pub(crate) fn room<'a>(
        &'a self,
        cached: &Cached,
        charge: Option<&'a Charge>,
        len: u64,
        wait: Wait,
    ) -> Result<Option<Rooms<'a>>> {
        let is_due = || self.reserve.is_due(len) || charge.is_some_and(|charge| charge.is_due(len));
        if !wait.allowed() && is_due() {
            return Err(Error::WouldBlock);
        }
        let dirty = || self.engine.dirty_bytes_beside(cached);
        let Some(room) = self.reserve.take(len, dirty, || self.mount.free_space()) else { return Ok(None) };
        let quotas = charge.map_or(Some(SmallVec::new()), |charge| charge.take(&self.mount, len, dirty));
        Ok(quotas.map(|quotas| quotas.into_iter().chain([room]).collect()))
    }

    /// Destages a file whose owner or group is about to change, while no other thread can change them. The kernel
    /// judges by the size that it knows of the file, so it has to know everything.
    pub(crate) fn destage_before_chown(&self, object: &Inode, attr: &Attr) {
        let dirty = object.link.get().filter(|cached| cached.dirty_blocks() > 0);
        if let Some(cached) = dirty.filter(|_| self.charge(attr).is_some()) {
            // Destaging fails while the backing store fails; the destage task then reports the error.
            let _ = block_on(self.engine.destage_object(cached));
        }
    }

    /// Claims space, like [`Admission::room`], for a write to the backing file. The kernel may have room for it in any
    /// case. Acknowledged data has the first claim to the space that is left, so it is destaged first.
    pub(crate) fn claim<'a>(
        &'a self,
        cached: &Cached,
        charge: Option<&'a Charge>,
        len: u64,
    ) -> Result<Rooms<'a>> {
        let engine = &self.engine;
        let dirty = || engine.dirty_bytes_beside(cached);
        let mut rooms = Rooms::new();
        if dirty() > 0 {
            match self.reserve.take(len, dirty, || self.mount.free_space()) {
                Some(room) => rooms.push(room),
                None => block_on(engine.destage_beside(cached, || false)).map_err(from_cache)?,
            }
        }
        let is_clean = |charge: &Charge| charge.is_clean(dirty());
        if let Some(charge) = charge.filter(|charge| !is_clean(charge)) {
            match charge.take(&self.mount, len, dirty) {
                Some(taken) => rooms.extend(taken),
                None => {
                    block_on(engine.destage_beside(cached, || is_clean(charge))).map_err(from_cache)?;
                }
            }
        }
        Ok(rooms)
    }

    /// Holds space for a change of the backing file that may take any part of the file system. While the rooms live, no
    /// write gets this space. Acknowledged data has the first claim to the space that is left, so it is destaged first.
    /// The kernel decides then, unless a write that got its room earlier may still need it.
    pub(crate) fn hold<'a>(
        &'a self,
        cached: &Cached,
        charge: Option<&'a Charge>,
        needs: Needs,
    ) -> Result<Rooms<'a>> {
        /// More than any file system has. The sum of all rooms must not overflow.
        const MOST: u64 = 1 << 56;
        let [space, quota] = [needs.space, needs.quota].map(|len| len.min(MOST));
        let dirty = || self.engine.dirty_bytes_beside(cached);
        let mut rooms = Rooms::new();
        if space > 0 {
            let (room, enough) = self.reserve.hold(space, dirty, || self.mount.free_space());
            rooms.push(room);
            if !enough {
                self.destage_for_room(cached, &rooms, || dirty() == 0, Errno::NOSPC)?;
            }
        }
        if let Some(charge) = charge.filter(|_| quota > 0) {
            let (quotas, enough) = charge.hold(&self.mount, quota, dirty);
            if !enough {
                self.destage_for_room(cached, &quotas, || charge.is_clean(dirty()), Errno::DQUOT)?;
            }
            rooms.extend(quotas);
        }
        Ok(rooms)
    }

    /// Destages the dirty blocks that may need the space of `rooms`. Fails with `errno` if that is not enough, because
    /// writes go on.
    fn destage_for_room(
        &self,
        cached: &Cached,
        rooms: &[Room<'_>],
        is_clean: impl Fn() -> bool,
        errno: Errno,
    ) -> Result<()> {
        if !is_clean() {
            block_on(self.engine.destage_beside(cached, &is_clean)).map_err(from_cache)?;
        }
        // In this order: a write makes its blocks dirty before it gives up its room.
        let is_alone = rooms.iter().all(Room::is_alone);
        if is_alone && is_clean() { Ok(()) } else { Err(Error::Os(errno)) }
    }
}
