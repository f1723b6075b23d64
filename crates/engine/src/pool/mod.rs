//! The pool: its devices, their states, and how the table of members survives crashes.
//!
//! Every device carries the table of all members in its superblock, in two copies. A change of the table, and every
//! opening, is a new *epoch*, written in two steps. First every active member gets the new epoch and table. Then
//! every active member is told that all have it (the epoch is *in use*). Nothing else is written in an epoch before
//! it is in use. So after a crash:
//!
//! - an active member that carries at least the newest epoch in use is complete. A newer epoch on another member did
//!   not come into use, so an interrupted change costs no redundancy;
//! - a member that carries less is out of date and is not used;
//! - a member that was declared lost cannot come back by itself, since all members that continued know of the loss.
//!
//! A device that fell back does not know it when it is present alone. So a [`Witness`](crate::io::Witness) outside of
//! the devices records the epoch in use as well, before anything is acknowledged in it (`watched.rs`). A pool whose
//! epoch in use is lower than the recorded one is not opened. The witness also gives out each epoch before a device
//! carries it. Otherwise a device that was alone at a start, cut short by a power failure, could carry the epoch in
//! which the other device continues.
//!
//! Without a witness, two devices that were each opened without the other both look right. This is detected when both
//! are present again, and refused.

mod candidate;
mod change;
pub(crate) mod deadline;
mod error;
mod geometry;
mod identify;
mod looking;
mod make;
pub(crate) mod membership;
mod open;
mod opening;
mod patience;
mod signature;
mod superblock;
mod table;
mod watched;

#[cfg(test)]
mod tests;

pub use candidate::Candidate;
pub use change::AlsoLost;
pub use error::{Notice, PoolError, Uuid};
pub use geometry::{DEVICE_MAX, DEVICE_MIN, SEGMENTS_START, segment_offset};
pub use identify::{Contents, identify};
pub(crate) use make::discard;
pub use patience::Patience;
pub use signature::{Ends, Part, part};
pub use superblock::{Entry, OWNER_MAX, State, Superblock, Unusable};
pub use table::{Member, Pool};
