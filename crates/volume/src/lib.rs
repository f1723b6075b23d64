//! Block volumes: a cached block device over a backing block device or file.
//!
//! [`disk`] is what a door (NBD, ublk) serves.

pub mod disk;
