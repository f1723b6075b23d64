//! NFSv3 and MOUNT v3 (RFC 1813), NLM, NSM, and the portmapper's GETPORT (RFC 1833): from RPC records to operations of
//! the virtual file system and back.
//!
//! A request is first tried on the event loop without waiting. The loop answers from memory at once, and small READs of
//! data on the cache devices continue on the loop. Requests that may wait for a disk, and all changes, go to a worker.
//! A change is answered when it is durable.

mod acl;
mod answer;
mod caller;
mod change;
mod clients;
mod convert;
mod export_rates;
mod groups;
mod limits;
mod list;
mod look;
mod lookups;
mod mount;
mod nfs3;
mod nfs4;
mod nfsacl;
mod nlm;
mod nsm;
mod owners;
mod portmap;
mod profiled;
mod program;
mod read;
mod refusals;
mod reply_cache;
mod request;
mod result;
mod rpcbind;
mod rules;
mod secured;
mod service;
mod shared;
mod stats;

pub use clients::ClientStats;
pub use forebay_gss::{Limits as GssLimits, Settings as GssSettings};
pub use nfs4::StateNumbers;
pub use nlm::LockConfig;
pub use portmap::Ports;
pub use refusals::{Refusal, Refusals, Tell};
pub use reply_cache::{CacheLimits, CacheUse};
pub use secured::{KerberosError, check_kerberos};
pub use service::{Nfs, NfsConfig};
pub use stats::{ProcedureStats, Stats};

/// rsize and wsize, and the most a listing may fill, in bytes.
pub const MAX_TRANSFER: u32 = 1 << 20;
