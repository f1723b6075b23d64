//! The state that clients hold at the server: client records, sessions, opens, byte-range locks, delegations, leases.
//!
//! It serves NFSv4.1, NFSv4.2 and NLMv4. The crate has no I/O, no thread, no clock and no randomness of its own: times
//! and random bytes are arguments. docs/client-state.md is the design.
//!
//! | part | file |
//! |---|---|
//! | client records: EXCHANGE_ID, CREATE_SESSION and their like | `client` |
//! | sessions and slots: SEQUENCE, the reply cache | `session` |
//! | opens and shares | `opens.rs` |
//! | byte-range locks of all protocols | `ranges.rs`, `locks.rs`, `nlm.rs`, `waiters.rs` |
//! | removed files that are open | `removals.rs` |
//! | copies that go on after the reply | `copies.rs` |
//! | delegations; changes in progress, which exclude them | `delegations.rs`; `changing.rs` |
//! | state ids | `stateid.rs` |
//! | keys of files, and the handles by which clients know them | `file_key.rs` |
//! | leases and grace periods | `lease.rs`, `grace.rs` |
//! | records, recovery, snapshots | `record`, `recovery.rs` |
//!
//! # A call
//!
//! Each call takes an [`Effects`] and adds to it: records for the log, the promise about them, and actions. The
//! executor of a request collects the effects of its operations. It appends all records with the reply's own as one
//! piece. It carries out the actions and answers when the promise holds.
//!
//! # Locks of the server
//!
//! [`State`] has no lock of its own: the server has one around it. Records go to the log in the order of the calls, so
//! they get their place under that lock. SEQUENCE and the end of a request need only a [`Session`], which the server
//! keeps beside the connection: the hot path of READ takes no common lock except for [`State::io`]. A server that has
//! to spread that as well can have a `State` for each part of the files, if clients and sessions stay in one of them.

mod changing;
mod check;
mod client;
mod copies;
mod delegations;
mod effects;
mod error;
mod file_key;
mod grace;
mod lease;
mod limits;
mod locks;
mod nlm;
mod opens;
pub mod planted_bugs;
mod ranges;
mod record;
mod recovery;
mod removals;
mod session;
mod state;
mod stateid;
mod tables;
mod types;
mod waiters;

#[cfg(test)]
mod tests;

pub use changing::Changing;
pub use client::{CreateSession, Created, Direction, ExchangeId, Exchanged, exchange};
pub use copies::{BeginCopy, CopyEnd, CopyProgress};
pub use delegations::{Delegated, Holder, Want};
pub use effects::{Action, Durability, Effects, Granted};
pub use error::Error;
pub use file_key::{FileKey, FileRef};
pub use lease::Lease;
pub use limits::{Limits, REPLY_MAX, SMALL_REPLY};
pub use locks::{LockArgs, Locker, Refused};
pub use nlm::{NlmAnswer, NlmLock};
pub use opens::{Claim, OpenArgs, Opened};
pub use record::{Kept, KeyOf, RECORD_MAX, Record, SlotReply, decode_all, encode_all};
pub use recovery::Recovery;
pub use session::{
    Answer, CONN_BACK_CHAN, CallbackEnd, Channel, Directions, PERSIST, Request, Sequenced, Session, Waiter,
    status,
};
pub use state::{Counters, Counts, Origin, State};
pub use types::{
    Address, ClientId, Conflict, Connection, Cookie, HostKey, HostName, LockKind, LockOwner, NlmOwner, Now,
    Other, OwnerName, Principal, READ, Range, RequestId, SECOND, SessionId, Share, StateId, WRITE,
};
