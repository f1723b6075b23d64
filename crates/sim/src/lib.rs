//! The deterministic simulator: the cache engine, unchanged, on virtual devices, a virtual backing store and virtual
//! time. One seed is one world.

pub mod backing;
pub mod content;
pub mod disk;
pub mod executor;
pub mod hits;
pub mod model;
pub mod register;
pub mod rng;
pub mod stamp;
