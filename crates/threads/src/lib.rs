//! Interleavings of threads under a checker.
//!
//! The simulator runs one task of the engine at a time and switches only where a task waits. So two regions under a
//! lock never overlap there. Here the engine, unchanged, runs on threads of the checker shuttle. At each use of a lock
//! or an atomic, a scheduler decides which thread runs next. One seed gives one order.
//!
//! A scenario is small: a few clients work on a few blocks beside one background task of the engine. Afterwards the
//! engine must read the contents that clients were told of. So must an engine that recovers after a power cut, from
//! both devices or from either one.

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
