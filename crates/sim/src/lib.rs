//! The deterministic simulator. It runs the cache engine, unchanged, on virtual devices, a virtual backing store and
//! virtual time. One seed is one world.

pub mod backing;
pub mod client;
pub mod content;
pub mod disk;
pub mod epochs;
pub mod executor;
pub mod exhaustive;
pub mod filler;
mod front;
#[cfg(test)]
mod golden;
pub mod gremlin;
pub mod hanger;
pub mod hits;
pub mod joined;
pub mod layers;
pub mod leaver;
pub mod model;
pub mod namespace;
pub mod notes;
pub mod objects;
#[cfg(test)]
mod overwriting;
pub mod plan;
pub mod planted_bugs;
pub mod policies;
#[cfg(test)]
pub(crate) mod recovery;
pub mod register;
pub mod rng;
#[cfg(test)]
mod scenarios;
pub mod stamp;
pub mod turner;
pub mod verifier;
pub mod workload;
pub mod world;
