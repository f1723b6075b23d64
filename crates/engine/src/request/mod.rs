//! The requests of a client of the engine: read, write, bypass write, truncate, sync.

pub(crate) mod bypass;
pub(crate) mod external_change;
pub(crate) mod no_device;
pub(crate) mod outcome;
pub(crate) mod read;
pub(crate) mod sync;
pub(crate) mod truncate;
pub(crate) mod unsynced;
pub(crate) mod warm;
pub(crate) mod write;
