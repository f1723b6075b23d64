//! The metadata log in service and at a start: changes of names and attributes in the cache's log.
//!
//! `forebay_oplog` has the records and the reconciliation of a tree. This crate has everything above that: the numbers
//! of changes, the order of their records, the acknowledgement, checkpoints, and recovery. docs/metadata-log.md is the
//! design.
//!
//! The crate has no thread, no clock, no socket and no system call. It reaches the cache's log through [`Log`], a
//! backing file system in service through [`Files`] and [`Slot`], and at a start through [`Start`] and
//! [`forebay_oplog::Tree`]. `vfs` implements them over the engine and real file systems. The joined worlds of the
//! simulator implement them over the engine on virtual devices and a virtual file system. So both run the same code.
//!
//! # A change
//!
//! | step | code |
//! |---|---|
//! | a RENAME takes a slot and a number, and writes its intent | [`Volume::announce`], [`Announced::say`] |
//! | the caller carries the change out, under its locks | the caller |
//! | the change gets its number, under its locks | [`Volume::changed`], [`Announced::carried_out`] |
//! | its record goes to the log, in order of numbers | `sequence.rs` |
//! | it becomes durable, and the client is answered | [`make_durable`], with a table |
//! | a checkpoint makes it durable in the file system, and releases its record | [`Checkpoints`] |
//!
//! # Recovery
//!
//! Five mechanisms decide what happened before a crash. Each answers for another kind of change.
//!
//! | mechanism | the question | the proof |
//! |---|---|---|
//! | reconciliation (`oplog`) | Is the tree equal to the log? | records, checkpoints, rename intents |
//! | `recover/decide.rs` | Did a change without a common journal happen? | its names lead where its record says |
//! | `recover/cut_short.rs` | Did a killed server carry out an unlogged change? | the request journal, its names |
//! | `ResumableCreates` (`vfs`) | Which inode did an interrupted creation make? | the request journal, its name |
//! | [`Files::record_lost_log`] | Which changes followed the loss of the log? | a mark in the file system |
//!
//! The cases are these. "One journal": one journal orders all changes of the file system.
//!
//! | the change | the crash | a record in the log | result |
//! |---|---|---|---|
//! | one journal | any | yes, behind the checkpoint and the mark | it happened: reconciliation carries it out |
//! | one journal | any | yes, up to the checkpoint or the mark | it happened: the tree has it |
//! | one journal | power | no | it was never answered: reconciliation keeps or undoes it |
//! | no common journal | any | yes | it happened if its names say so, see below |
//! | no common journal | power | no | it was never answered: it is there or not |
//! | in one system call | kill | no | it happened if its names say so: its reply goes to the log, see below |
//! | a creation in several calls | kill | no | the client that asks again continues it |
//! | after the loss of the log | any | never | it happened: it is in the file system, behind the mark |
//!
//! ## A change that the file system itself makes durable
//!
//! | a change | and | then |
//! |---|---|---|
//! | was declared invalid by an earlier recovery | | it did not happen |
//! | was known to be durable, or is settled | | it happened |
//! | else | each name leads where the change says, and its inodes are as it says | it happened |
//! | else | a later change that happened has changed those names that lead elsewhere | it happened (1) |
//! | else | an earlier change of one of its names did not happen | nor did this one, whatever it looks like |
//! | else | | it did not happen, or only in part (2) |
//! | of attributes only | not known to be durable | invalid: a repetition does no harm |
//!
//! (1) Changes of one name keep their order. (2) The change is invalid, and is carried out again if the client asks
//! again.
//!
//! Only the last few changes before a crash are examined. The decisions are logged before any client is answered, and
//! the file systems are synced. So a change that happened stays so.
//!
//! ## A change in progress when a server was killed
//!
//! | a change | and | then |
//! |---|---|---|
//! | has its reply in the log | | it has a record |
//! | else | a later change of that name was begun | it was carried out: it had the lock |
//! | else | each name leads where the change says, and not where the log alone says | it was carried out |
//! | else | | it was not, or recovery has undone it: it is carried out when the client asks again |
//!
//! The reply of a change that was carried out goes into the log.

mod change;
mod checkpoint;
mod io;
mod making;
pub mod planted_bugs;
mod recover;
mod sequence;
mod service;
mod slots;
mod state;
mod turnstile;
mod volume;

#[cfg(test)]
mod tests;

pub use change::{Announced, ChangeEffects, DurableBy, Pending};
pub use checkpoint::{Checkpointed, Checkpoints, EVERY, Tell};
pub use io::{Done, Failure, Files, Log, Slot, Start, StartError};
pub use making::{MadeBy, Makers, Making, Ticket};
pub use recover::{CutShort, Recovery};
pub use sequence::Sequence;
pub use service::make_durable;
pub use slots::Slots;
pub use state::{Snapshot, log_state};
pub use volume::Volume;

// The engine must take the longest record.
const _: () = assert!(forebay_oplog::RECORD_MAX == forebay_engine::USER_RECORD_MAX);
