//! Durability in a file system: its journal, the requests in progress, and the write verifier.

pub(crate) mod journal;
pub(crate) mod journal_order;
pub(crate) mod request_journal;
pub(crate) mod resumable_create;
pub(crate) mod verifier;
pub(crate) mod writeback;
