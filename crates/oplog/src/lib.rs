//! The log of changes of names and attributes: its records, and the reconciliation of a tree with it after a crash.
//!
//! The crate has no thread, no clock and no system call: the backing file system is a [`Tree`]. The design is in
//! docs/metadata-log.md.

mod codec;
mod given;
mod identity;
mod identity_map;
mod intent;
mod log_contents;
mod numbers;
mod object;
mod operation;
pub mod planted_bugs;
mod reconcile;
mod record;
mod removals;
mod spent;
mod tree;

pub use given::{Access, Flags, Given};
pub use identity::{IDENTITY_MAX, Identity};
pub use identity_map::IdentityMap;
pub use intent::RenameIntent;
pub use log_contents::LogContents;
pub use numbers::{Creations, Numbers, Proof, Turns};
pub use object::{Attributes, Kind, LoggedObject, New, Time};
pub use operation::{Binding, Bindings, Operation};
pub use reconcile::{Outcome, SetAside, reconcile};
pub use record::{Change, Entries, Entry, Record, Rights, STATE_MAX};
pub use removals::Removals;
pub use spent::{SPENT_MAX, Spent, made_and_removed};
pub use tree::Tree;

/// The longest user record that the cache's log holds, in bytes. If the record of a change is
/// longer, the backing file system makes the change durable. An example is a symbolic link with a text of more than
/// about 3 KiB.
pub const RECORD_MAX: usize = 4000;

/// A name in a directory.
pub type Name = smallvec::SmallVec<[u8; 32]>;
