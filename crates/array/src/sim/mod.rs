//! The array in virtual time. A request is submitted with its time of arrival; a completion has its own time.
//!
//! The module has no clock, thread, randomness or data. Equal requests at equal times give equal answers.

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
