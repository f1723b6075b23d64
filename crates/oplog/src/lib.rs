//! The log of changes of names and attributes: its records, and how a tree is made equal to it after a crash.
//!
//! No thread, no clock and no system call: the backing file system is a [`Tree`]. docs/metadata-log.md is the design.

mod codec;
mod found;
mod given;
mod identity;
mod intent;
mod numbers;
mod object;
mod operation;
pub mod plant;
mod reconcile;
mod record;
mod removals;
mod tree;

pub use found::Found;
pub use given::{Access, Flags, Given};
pub use identity::{IDENTITY_MAX, Identity};
pub use intent::RenameIntent;
pub use numbers::{Creations, Numbers, Proof, Turns};
pub use object::{Attributes, Kind, New, Object, Time};
pub use operation::{Binding, Bindings, Operation};
pub use reconcile::{Outcome, SetAside, reconcile};
pub use record::{Change, Entries, Entry, Record, Rights};
pub use removals::Removals;
pub use tree::Tree;

/// The longest record that a note of the cache's log holds, in bytes. A change whose record is longer (a symbolic link
/// with a text of more than about 3 KiB) is made durable by the backing file system.
pub const RECORD_MAX: usize = 4000;

/// A name in a directory.
pub type Name = smallvec::SmallVec<[u8; 32]>;
