//! Durability of a change before it is acknowledged: through the cache's log, the file system's journal, or both.

pub(crate) mod commit;
pub(crate) mod journal;
pub(crate) mod journal_order;
pub(crate) mod rename_locks;
pub(crate) mod request_journal;
pub(crate) mod resumable_create;
pub(crate) mod uncommitted;
pub(crate) mod verifier;
pub(crate) mod writeback;
