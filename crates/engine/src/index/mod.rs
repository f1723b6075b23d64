//! The index: for each object, which blocks are cached, where (in memory, on the cache devices), and whether they are
//! dirty.

pub(crate) mod account;
mod check;
mod dirty;
pub(crate) mod fetch;
pub(crate) mod leaf;
pub(crate) mod moves;
pub(crate) mod object;
pub(crate) mod objects;
pub(crate) mod page;
mod pinned;
pub(crate) mod policy;
pub(crate) mod ranges;
pub(crate) mod refused;
pub(crate) mod share;
pub(crate) mod syncs;
pub(crate) mod unsynced;
pub(crate) mod version_watch;
mod versions;
pub(crate) mod waiting_cuts;
