//! User records.

use crate::engine::Engine;
use crate::io::BackingError;
use crate::log::notes;
use crate::log::user_records::UserRecordId;
use crate::maintain::carry;
use crate::{Result, Seq};

impl Engine {
    /// Appends a user record of 1 to [`USER_RECORD_MAX`](crate::USER_RECORD_MAX) bytes, and waits for room. While
    /// records must be released, the wait grows as room runs out. The record is durable once [`Engine::commit`] of
    /// the returned frame has succeeded. Then it is on every device in use, together with everything accepted before
    /// it. Recovery returns it until [`Engine::release_user_records`].
    ///
    /// # Errors
    /// No cache device is left, or the engine closes.
    pub async fn note(&self, bytes: &[u8]) -> Result<(Seq, UserRecordId)> {
        notes::note(&self.core, bytes).await
    }

    /// Appends a user record without waiting. Returns `None` if there is no room now.
    ///
    /// # Errors
    /// No cache device is left.
    pub fn try_append_user_record(&self, bytes: &[u8]) -> Result<Option<(Seq, UserRecordId)>> {
        notes::try_append_user_record(&self.core, bytes)
    }

    /// Appends a user record that replaces older ones, which are released once it is durable. It may use the room that
    /// the log reserves for moves: a release must not wait for the room that it makes. Returns `None` if there is no
    /// room, or the engine closes.
    ///
    /// # Errors
    /// No cache device is left.
    pub async fn replace_user_records(&self, bytes: &[u8]) -> Result<Option<(Seq, UserRecordId)>> {
        carry::replace_user_records(&self.core, bytes).await
    }

    /// Releases the user records up to `upto`: they are not needed any more.
    pub fn release_user_records(&self, upto: UserRecordId) {
        notes::release_user_records(&self.core, upto)
    }

    /// Releases the user records up to `upto`. Records of `bytes` bytes that [`Engine::replace_user_records`] has
    /// appended replace them. The new records count as needed: a release is due again when the log has grown beside
    /// them.
    pub fn let_go_replaced(&self, upto: UserRecordId, bytes: usize) {
        notes::let_go_replaced(&self.core, upto, bytes)
    }

    /// Releases user records up to `upto`, as [`Engine::release_user_records`], except those that are `needed`. The
    /// needed records are reappended in their order, behind all present records, and are durable before the old ones
    /// are released. So recovery returns each of them at least once, whatever fails in between. Records of `replacing`
    /// bytes that [`Engine::replace_user_records`] has appended replace some of the others.
    ///
    /// Returns true if any segment may leave the log now. Returns false without room, or if a segment's records
    /// cannot be read. Then nothing has changed, except that some records may be in the log twice.
    ///
    /// # Errors
    /// No cache device is left.
    pub async fn let_go_but(
        &self,
        upto: UserRecordId,
        replacing: usize,
        needed: impl Fn(&[u8]) -> bool,
    ) -> Result<bool> {
        carry::let_go_but(&self.core, upto, replacing, needed).await
    }

    /// Waits until the log needs user records to be released. Returns the number of the last record; `None` once the
    /// engine closes. The user that appends records must call this, and answer with [`Engine::release_user_records`].
    /// Flushes and removals of devices wait for that.
    pub async fn user_records_due(&self) -> Option<UserRecordId> {
        notes::user_records_due(&self.core).await
    }

    /// Records that some user records cannot be released for now, so that waiters get the error `why`; or (`None`)
    /// that all can be released again.
    pub fn keep_notes(&self, why: Option<BackingError>) {
        notes::keep_notes(&self.core, why)
    }
}
