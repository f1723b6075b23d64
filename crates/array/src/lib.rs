//! An emulated disk array: a block device with a file system that behaves like spinning disks behind RAID 6 for every
//! process of the machine.
//!
//! The pure part ([`sim`], [`workload`]) models disks, stripes and the controller in virtual time. Around it a daemon
//! serves one file over FUSE, answering each request when the model says so; a loop device on that file carries the
//! file system ([`power`]). [`cli`] holds the verbs.

pub mod cli;
pub mod model;
pub mod power;
pub mod sim;
pub mod workload;

mod calibrate;
mod daemon;
mod error;
mod fiemap;
mod host;
mod state;

pub use daemon::{Fault, Hits, Status};
pub use error::ArrayError;
pub use state::{FileSystem, Phase, State};
