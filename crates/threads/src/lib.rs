//! Interleavings of threads. The simulator runs one task of the engine at a time and switches only where a task waits, so
//! two lock regions never overlap there. Here the engine, unchanged, runs on threads of the checker shuttle: at each use of
//! a lock or an atomic a scheduler decides which thread runs next, and one seed is one order.
//!
//! A scenario is small: a few clients work on a few blocks beside one background task of the engine. After it, what the
//! engine reads, and what is recovered after a power cut from both devices or either one, has to be what clients were told.

pub mod check;
pub mod client;
pub mod disk;
pub mod history;
pub mod promise;
pub mod reach;
pub mod scenarios;
pub mod scheduler;
pub mod store;
#[cfg(test)]
mod tests;
pub mod world;
