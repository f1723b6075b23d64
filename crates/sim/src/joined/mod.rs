//! Joined worlds. The engine runs on virtual devices. A harness above it carries out requests of clients with the
//! real metadata log (`forebay_metalog`): names, attributes and data are in one log, in front of a virtual file system
//! with all three. Power cuts hit everything at once. Then the real recovery of the
//! engine and of `forebay-metalog` runs.

mod calls;
mod check;
mod client;
mod faults;
mod harness;
mod holes;
pub mod planted_bugs;
#[cfg(test)]
pub(crate) mod scenarios;
mod start;
mod store;
#[cfg(test)]
mod tests;
mod world;

pub use world::run;
