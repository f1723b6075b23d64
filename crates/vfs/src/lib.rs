//! Files and directories for clients that hold handles: names, attributes, credentials and durability
//! over a backing directory.
//!
//! [`Vfs`] knows the exports. Every operation takes a [`Target`] (an object within an export) and a [`Cred`];
//! reading operations take [`Wait`], so that an event loop can try them without ever waiting for a disk.
//! Changing operations return an [`Intent`]: what must become durable before they may be acknowledged.
//!
//! This crate knows nothing of NFS, sockets or threads but those that lead group commits and let go of removed files.

mod alias;
mod attr;
mod backing;
mod begun;
mod cache;
mod cached;
mod change;
mod commit;
mod create;
mod cred;
mod data;
mod disowned;
mod downtime;
mod error;
mod export;
mod fs;
mod gate;
mod given;
mod handle;
mod hands;
mod identity;
mod inspect;
mod journal;
mod kept;
mod known;
mod list;
mod locate;
mod lookup;
mod lost;
mod names;
mod object;
mod oplog;
mod order;
mod outside;
mod overlay;
mod owner;
mod places;
mod plus;
mod quota;
mod reserve;
mod set_attr;
mod state;
mod sweep;
mod sys;
mod table;
mod uncommitted;
mod under_way;
mod verdicts;
mod verifier;
mod versions;
mod watch;
mod writeback;

pub use attr::{Attr, SetAttr, SetTime, Time, Wcc};
pub use backing::Store;
pub use cached::SsdRead;
pub use change::{Changed, Renamed};
pub use create::{Create, Special};
pub use cred::{Cred, Creds, Identity};
pub use data::{ReadInto, ReadOut, Reading, Wrote};
pub use downtime::Downtime;
pub use error::{Error, Result};
pub use export::{Export, ExportSpec, Space, Stopped, Target, Vfs, Wait};
pub use handle::{HANDLE_MAX, Handle, HandleKey};
pub use identity::{
    Adoption, Difference, ExportIdentity, How, KnownExport, KnownExports, MountWatch, Recorded, Stamp,
    compare, decode_owner, encode_owner,
};
pub use inspect::{Holdings, InspectError};
pub use journal::{Deliver, Done, Intent, Journal, JournalStats, Order};
pub use kept::Listings;
pub use known::{Known, KnownFiles};
pub use list::{Entry, EntryPlus, ListEnd};
pub use lookup::{Access, Found};
pub use lost::{LostFile, drop_lost, lost_file, lost_files, restore_lost};
pub use object::Object;
pub use oplog::{Checkpointed, Recovery};
pub use owner::Ownership;
pub use rustix::fs::FileType;
pub use rustix::io::Errno;
pub use state::handle_secret;
pub use table::{Budget, NAME_COST};
pub use under_way::Asked;
pub use verifier::Verifier;
pub use watch::Watch;

/// Checks a name a client sent (RFC 1813 filename3): any bytes but '/' and NUL, 1 to 255 of them.
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
