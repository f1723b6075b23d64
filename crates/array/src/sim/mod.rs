//! The array in virtual time: requests go in with the time of their arrival, completions come out with theirs.
//!
//! No clock, thread, randomness or data in here: the same requests at the same times give the same answers.

pub(crate) mod geometry;
mod runs;
mod spindle;
mod streams;
mod stripes;

mod array;
mod reads;
mod writes;

pub use array::{Array, Counters, DiskCounters, Op, Output};

/// A time or a duration in nanoseconds.
pub type Nanos = u64;
