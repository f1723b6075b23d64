//! The profile: what the applications of clients do, counted for each client, export, user and file.
//!
//! A server gives every operation that it has carried out to [`Profile::count`]. The profile has no clock, no thread
//! and no I/O: the caller passes the time of each operation.
//!
//! | counted | how |
//! |---|---|
//! | clients, exports, users | exactly, for the busiest; the rest is summed (`busiest.rs`) |
//! | files | exactly up to 4096 operations of a shard in a second, then one operation of 16 with 16 times its weight |
//! | sequential or random | by the end of the last READ or WRITE of the client in the file (`streams.rs`) |
//! | distinct blocks in an hour | estimated within a few per cent (`distinct.rs`) |
//! | sizes of new files | by the last byte written while the file is among the newest 4096 (`new_files.rs`) |
//!
//! Threads count in 16 shards. A shard first sums the operations of each (client, export, user), its flows, and merges
//! them into the common tables when the flow's place is needed or a [`Snapshot`] is taken. So an operation costs one
//! lock that no other thread wants, and no allocation.
//!
//! # Memory
//!
//! | part | at most |
//! |---|---|
//! | flows: 16 shards with 256 flows each | 1.6 MiB |
//! | operations on files that wait to be merged: 16 shards | 0.1 MiB |
//! | tables: 1024 clients, 1024 users, 256 exports, 2048 files | 1.9 MiB |
//! | streams, new files, registers of distinct blocks | 0.2 MiB |

mod busiest;
mod counters;
mod distinct;
mod flow;
mod hours;
mod kind;
mod new_files;
mod operation;
mod profile;
mod shard;
mod streams;
mod tables;
#[cfg(test)]
mod tests;
mod trace;
mod trace_file;

pub use counters::{Counters, SIZES, size_bounds};
pub use hours::WorkingSet;
pub use kind::Kind;
pub use new_files::{NEW_SIZES, NewFiles, new_size_bounds};
pub use operation::{FileId, Moved, NO_EXPORT, NO_USER, Operation, Subject, file_key};
pub use profile::{Profile, Snapshot};
pub use tables::{Counted, FileCounted};
pub use trace::{Recording, Traced};
pub use trace_file::{TraceEncoder, TraceEnd, TraceError, TraceFile, TraceRecord, decode_trace};
