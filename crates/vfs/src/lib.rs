//! Serves files and directories to clients that hold handles: names, attributes, credentials and durability over a
//! backing directory.
//!
//! [`Vfs`] knows the exports. Every operation takes a [`Target`] (an inode within an export) and a [`Cred`]. Reading
//! operations take [`Wait`], so that an event loop can try them without waiting for a disk. Changing operations return
//! a [`CommitRequest`], which lists the things that must become durable before the reply may leave.
//!
//! This crate knows nothing of NFS or sockets. Its only threads lead group commits, close removed files and carry out
//! requests to the file systems.

mod admission;
mod attr;
mod backing;
mod caches;
mod coherence;
mod cred;
mod durability;
mod error;
mod export;
mod identity;
mod oplog;
mod ops;
mod state;
mod sys;

pub use attr::{Attr, SetAttr, SetTime, Time, Wcc};
pub use backing::Store;
pub use backing::question::{Answer, Question};
pub use caches::attr_cache::{AttrCache, CachedAttr};
pub use caches::dir_cache::Listings;
pub use caches::inode::Inode;
pub use caches::inode_cache::{Budget, NAME_COST};
pub use coherence::downtime::Downtime;
pub use coherence::watch::HostWatch;
pub use cred::{Cred, Creds, Identity};
pub use durability::journal::{CommitRequest, Deliver, Done, Journal, JournalStats, Order};
pub use durability::request_journal::Asked;
pub use durability::verifier::Verifier;
pub use error::{Error, Result};
pub use export::handle::{HANDLE_MAX, Handle, HandleKey};
pub use export::owner::Ownership;
pub use export::{Export, ExportSpec, Most, Space, Stopped, Target, Vfs, Wait};
pub use identity::{
    Adoption, Difference, ExportIdentity, How, KnownExport, KnownExports, MountWatch, Recorded, Stamp,
    compare, decode_owner, encode_owner,
};
pub use oplog::{Checkpointed, Recovery};
pub use ops::cached::SsdRead;
pub use ops::change::{Changed, Renamed};
pub use ops::create::{Create, Special};
pub use ops::data::{ReadInto, ReadOut, Reading, Wrote};
pub use ops::list::{Entry, EntryPlus, ListEnd};
pub use ops::lookup::{Access, Found};
pub use rustix::fs::FileType;
pub use rustix::io::Errno;
pub use state::handle_secret;
pub use state::inspect::{Holdings, InspectError};
pub use state::lost::{LostFile, drop_lost, lost_file, lost_files, restore_lost};

/// Checks a name that a client sent (RFC 1813 filename3): any bytes but '/' and NUL, 1 to 255 of them.
fn check_name(name: &[u8]) -> Result<()> {
    match name {
        [] => Err(Error::INVALID),
        name if name.len() > 255 => Err(Error::Os(Errno::NAMETOOLONG)),
        name if name.iter().any(|b| matches!(b, b'/' | 0)) => Err(Error::INVALID),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
