//! Serves files and directories to clients that hold handles: names, attributes, credentials and durability over a
//! backing directory.
//!
//! [`Vfs`] knows the exports. Every operation takes a [`Target`] (an inode within an export) and a [`Cred`]. Reading
//! operations take [`Wait`], so that an event loop can try them without waiting for a disk. Changing operations return
//! a [`CommitRequest`], which lists the things that must become durable before the reply may leave.
//!
//! This crate knows nothing of NFS or sockets, and carries requests out on the threads of its callers. Threads of its
//! own lead group commits, make checkpoints, carry out the engine's requests to the file systems, ask for free space,
//! and receive news of external changes.

mod admission;
mod attr;
mod backing;
mod caches;
mod coherence;
mod cred;
mod durability;
mod error;
mod export;
mod file_io;
mod handle;
mod identity;
mod name;
mod open_files;
mod oplog;
mod ops;
mod question;
mod service;
mod side_by_side;
mod state;
mod sys;
mod wait;

pub use attr::{Attr, SetAttr, SetTime, Time, Wcc};
pub use backing::Store;
pub use caches::attr_cache::AttrCache;
pub use caches::attr_cache::record::CachedAttr;
pub use caches::budget::{Budget, NAME_COST};
pub use caches::dir_cache::Listings;
pub use caches::inode::Inode;
pub use caches::policies::PolicySettings;
pub use coherence::downtime::Downtime;
pub use coherence::watch::HostWatch;
pub use cred::{Cred, Creds, Identity};
pub use durability::journal::{Deliver, Done, Journal, JournalStats, Order};
pub use durability::request_journal::LoggedReply;
pub use durability::verifier::Verifier;
pub use error::{Error, Result};
pub use export::file_key::FileKey;
pub use export::owner::{DirectoryLocks, NotOwned, Ownership};
pub use export::table::Exports;
pub use export::vfs::Vfs;
pub use export::{Export, ExportSpec, Most, Space, Target};
pub use forebay_engine::Outcome;
pub use handle::{HANDLE_MAX, Handle, HandleKey};
pub use identity::compare::{Difference, compare};
pub use identity::export_identity::ExportIdentity;
pub use identity::known::{Adoption, How, KnownExport, KnownExports};
pub use identity::record::{Owner, Recorded, decode_owner, encode_owner};
pub use identity::stamp::Stamp;
pub use open_files::OpenFiles;
pub use oplog::Checkpointed;
pub use oplog::commit::CommitRequest;
pub use oplog::recover::Recovery;
pub use oplog::state::STATE_MAX;
pub use ops::cached::SsdRead;
pub use ops::change::Changed;
pub use ops::copy::{Copied, CopyRange};
pub use ops::create::Create;
pub use ops::data::{ReadInto, ReadOut, Wrote};
pub use ops::data_caller::{DataCaller, DataCheck};
pub use ops::list::{Entry, EntryPlus, ListEnd};
pub use ops::lookup::{Access, Found};
pub use ops::make::Special;
pub use ops::rename::Renamed;
pub use ops::seek::{Content, Sought};
pub use ops::xattr::{AclBytes, SetAcls, XattrMust};
pub use question::{Answer, Question};
pub use rustix::fs::FileType;
pub use rustix::io::Errno;
pub use service::inspect::{Holdings, InspectError, WalkProgress};
pub use service::mount_watch::MountWatch;
pub use service::policy::PolicyRoot;
pub use service::served::ServedFilesystem;
pub use service::stop::Stopped;
pub use service::warm::{Warming, WarmingStep};
pub use state::lost::{LostFile, drop_lost, lost_file, lost_files, restore_lost};
pub use state::{HANDLE_KEY, handle_secret, keep_handle_secret};
pub use wait::Wait;

#[cfg(test)]
mod tests;
