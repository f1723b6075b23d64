//! Requests of clients.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use forebay_mrc::Kind;

use crate::engine::Engine;
use crate::index::object::{CachedObject, blocks};
use crate::io::{Key, Time};
use crate::request::bypass::BypassWrite;
use crate::request::outcome::Outcome;
use crate::request::warm::Warmed;
use crate::request::write::Logged;
use crate::request::{bypass, external_change, read, sync, truncate, warm, write};
use crate::{Result, Seq};

impl Engine {
    /// Reads from memory only.
    ///
    /// - `Done`: this number of bytes was read into the front of `buf`. The read is shorter than `buf` only at the end
    ///   of the object.
    /// - `FromSsd`: the whole range is cached, some blocks on the cache devices only. [`Engine::read_cached`] suffices.
    /// - `FromBacking`: no block of the range is cached, and the backing store has all of them.
    pub fn try_read(&self, object: &CachedObject, offset: u64, buf: &mut [u8]) -> Outcome<usize, (), ()> {
        read::try_read(&self.core, object, offset, buf)
    }

    /// Reads. Returns the bytes read into the front of `buf`. The read is shorter than `buf` only at the end of the
    /// object.
    pub async fn read(&self, object: &Arc<CachedObject>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let len = read::read(&self.core, object, offset, buf).await?;
        // Reads of the engine's own tasks, such as destaging, do not count.
        self.core.saw(object, blocks(offset, len as u64), Kind::Read);
        Ok(len)
    }

    /// Reads without asking the backing store. Returns `None` if some block is not cached, or its copies are bad.
    pub async fn read_cached(
        &self,
        object: &Arc<CachedObject>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<Option<usize>> {
        let read = read::read_cached(&self.core, object, offset, buf).await?;
        if let Some(len) = read {
            self.core.saw(object, blocks(offset, len as u64), Kind::Read);
        }
        Ok(read)
    }

    /// Brings the blocks of `range`, in bytes, to the cache devices that are not there. Other blocks need not leave for
    /// that, unless the object is pinned or has a high priority. Waits until earlier blocks are written.
    ///
    /// # Errors
    /// The object was removed, or the backing store cannot be read.
    pub async fn warm(&self, object: &Arc<CachedObject>, range: Range<u64>) -> Result<Warmed> {
        warm::warm(&self.core, object, range).await
    }

    /// Writes if that needs no waiting. `now` becomes the object's modification time.
    ///
    /// - `Done`: the log has accepted the data, which is durable once this frame is. Until then, reads of the data
    ///   wait.
    /// - `FromBacking`: the mode in force sends the write to the backing store.
    ///
    /// # Errors
    /// The object was removed, or no cache device is left.
    pub fn try_write(
        &self,
        object: &Arc<CachedObject>,
        offset: u64,
        data: &[u8],
        now: Time,
    ) -> Result<Outcome<Seq, Infallible, ()>> {
        write::try_write(&self.core, object, offset, data, now)
    }

    /// Writes. When this returns, the data is accepted, and an unstable write may be acknowledged. The data is
    /// durable once [`Engine::commit`] of the returned frame has succeeded. `now` becomes the object's modification
    /// time.
    pub async fn write(
        &self,
        object: &Arc<CachedObject>,
        offset: u64,
        data: &[u8],
        now: Time,
    ) -> Result<Seq> {
        write::write(&self.core, object, offset, data, now).await
    }

    /// Writes to the log only. The caller writes the rest to the backing store, between [`Engine::begin_bypass`] and
    /// [`Engine::end_bypass`], without a sync where the client asks for none.
    pub async fn write_log(
        &self,
        object: &Arc<CachedObject>,
        offset: u64,
        data: &[u8],
        now: Time,
    ) -> Result<Logged> {
        write::write_log(&self.core, object, offset, data, now).await
    }

    /// Prepares a write of `len` bytes at `offset` straight to the backing store. Waits until no block of the range
    /// is dirty, and invalidates older copies of the range.
    pub async fn begin_bypass(
        &self,
        object: &Arc<CachedObject>,
        offset: u64,
        len: u64,
    ) -> Result<BypassWrite> {
        bypass::begin_bypass(&self.core, object, offset, len).await
    }

    /// Ends a bypass write, which has failed if `written` is `None`. `written` is the offset, with the bytes that the
    /// backing store took or none: whole blocks of the bytes may be cached. `size` is the backing store's size, or at
    /// least the end of the written range. Until [`CachedObject::begin_sync`] announces a sync, no copy of it goes to
    /// the cache devices.
    ///
    /// Returns the frame that must be durable before the write is acknowledged.
    ///
    /// # Errors
    /// No cache device is left. Or the write overwrote blocks of which no copy can be read, and the backing store may
    /// not have the new contents.
    pub async fn end_bypass(
        &self,
        object: &Arc<CachedObject>,
        direct: BypassWrite,
        written: Option<(u64, &[u8])>,
        size: u64,
        now: Time,
    ) -> Result<Seq> {
        bypass::end_bypass(&self.core, object, direct, written, size, now).await
    }

    /// Makes every bypass write of the object durable that has ended. Costs nothing if there is none.
    ///
    /// # Errors
    /// A sync of the backing store has failed. The error is repeated until the bytes that the sync may have lost are
    /// written again.
    pub async fn sync_bypassed(&self, object: &Arc<CachedObject>) -> Result<()> {
        sync::sync_bypassed(&self.core, object).await
    }

    /// Sets the modification time that destaging must leave behind. Has no effect on an object that never was in the
    /// log.
    pub async fn set_mtime(&self, object: &Arc<CachedObject>, mtime: Time) -> Result<()> {
        bypass::set_mtime(&self.core, object, mtime).await
    }

    /// Drops the object, which was removed from the backing store. No copy of it counts.
    pub async fn forget(&self, object: &Arc<CachedObject>) {
        bypass::forget(&self.core, object).await
    }

    /// Drops the object, durably when this returns. It suits an object whose key the next start may not know.
    ///
    /// # Errors
    /// No cache device is left, or the log takes no records.
    pub async fn forget_durably(&self, object: &Arc<CachedObject>) -> Result<()> {
        bypass::forget_durably(&self.core, object).await
    }

    /// Truncates or grows an object to `size` bytes, durably when this returns.
    pub async fn truncate(&self, object: &Arc<CachedObject>, size: u64, now: Time) -> Result<()> {
        truncate::truncate(&self.core, object, size, now).await
    }

    /// Returns the object of `key` if it is in the index. `size` is the backing store's size, as in
    /// [`Engine::object`].
    pub fn known_with_size(&self, key: &Key, size: u64) -> Option<Arc<CachedObject>> {
        external_change::known_with_size(&self.core, key, size)
    }

    /// Drops the clean copies of an object after an external change, durably when this returns. The object now has
    /// `size` bytes and version `number`. If the backing store lacks changes of the object, nothing is done and the
    /// result is false: they will be written over the external change.
    ///
    /// # Errors
    /// The object was removed, or no cache device is left.
    pub async fn changed_outside(&self, object: &Arc<CachedObject>, size: u64, number: u64) -> Result<bool> {
        external_change::changed_outside(&self.core, object, size, number).await
    }
}
