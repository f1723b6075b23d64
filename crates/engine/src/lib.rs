//! The cache engine: a crash-safe, mirrored, log-structured cache of (object, 4 KiB block) pairs.
//!
//! It knows no sockets, threads or clocks: everything outside comes in through the traits of [`io`], so that the same
//! code runs in production and in the simulator.

pub mod buffer;
pub mod format;
pub mod io;
pub mod pool;
