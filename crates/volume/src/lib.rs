//! Block volumes: a backing block device or file behind the cache, shared with the exports' files.
//!
//! | file | contents |
//! |---|---|
//! | [`disk`] | the block device that a door (NBD, ublk) serves |
//! | [`volume`] | a volume: the engine's object and the backing device of one block device |
//! | [`device`] | the backing device, as a volume uses it |
//! | [`store`] | the backing store of an engine that caches files and volumes |
//! | [`key`] | the keys of volumes in the engine |
//!
//! Like the engine, this crate knows no threads, files or clocks. The simulator runs it on virtual devices.

pub mod device;
pub mod disk;
mod extents;
pub mod key;
pub mod planted_bugs;
mod requests;
pub mod store;
pub mod volume;
