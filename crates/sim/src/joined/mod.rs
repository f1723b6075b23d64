//! Joined worlds: the engine on virtual devices, and above it a server that puts names, attributes and data into the one log,
//! in front of a virtual file system that has all three. Power cuts of all of it at once; then the real recovery of the
//! engine and of `forebay-oplog`.

mod calls;
mod check;
mod client;
mod faults;
pub mod plant;
#[cfg(test)]
pub(crate) mod scenarios;
mod server;
mod start;
mod store;
#[cfg(test)]
mod tests;
mod world;

pub use world::run;
