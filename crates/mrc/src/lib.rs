//! The live miss-ratio curve: which part of the block reads the cache would serve at other sizes.
//!
//! A [`Sampler`] sees every request of the engine and keeps the references to a small, fixed set of blocks: those
//! whose hash is below a threshold (SHARDS: Waldspurger et al., FAST'15). An [`Estimator`] replays these references in
//! miniature caches: the engine's own policy at several sizes, each scaled down by the sampling rate (Waldspurger et
//! al., ATC'17). When the tracked blocks exceed their bound, the threshold is halved, and so are all miniature caches.
//!
//! The crate has no threads, clocks or I/O. Its user passes the time, and calls [`Estimator::advance`] often enough
//! that the buffers of the sampler do not fill.

mod blocks;
mod counts;
mod curve;
mod entry;
mod estimator;
mod geometry;
mod ghosts;
mod memory;
mod sampler;
mod simulation;
mod ssd;

pub use curve::{Curve, GroupCurve, MINIMUM, MemoryPoint, Point};
pub use estimator::{Estimator, Present};
pub use geometry::{Geometry, SIZES};
pub use sampler::{Kind, Reference, Sampler, Seen, identity};
pub use simulation::{Limits, Simulation};
