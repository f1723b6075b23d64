//! An emulated disk array: a block device with a file system that behaves like spinning disks behind RAID 6 for every
//! process of the machine.
//!
//! The pure part ([`sim`], [`workload`]) models disks, stripes and the controller in virtual time.

pub mod model;
pub mod sim;
pub mod workload;
