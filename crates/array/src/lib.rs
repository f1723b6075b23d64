//! An emulated disk array: a block device with a file system that behaves like spinning disks behind RAID 6. Every
//! process of the machine can use it.
//!
//! The pure part ([`sim`], [`workload`]) models disks, stripes and the controller in virtual time. A daemon serves
//! one file over FUSE and answers each request at the time that the model gives. A loop device on that file carries
//! the file system ([`power`]). [`cli`] has the verbs.

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
