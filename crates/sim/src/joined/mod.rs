//! Joined worlds. The engine runs on virtual devices. A server above it puts names, attributes and data into one log,
//! in front of a virtual file system with all three. Power cuts hit everything at once. Then the real recovery of the
//! engine and of `forebay-metalog` runs.

mod calls;
mod check;
mod client;
mod faults;
pub mod planted_bugs;
#[cfg(test)]
pub(crate) mod scenarios;
mod server;
mod start;
mod store;
#[cfg(test)]
mod tests;
mod world;

pub use world::run;
