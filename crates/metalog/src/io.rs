//! The traits by which the metadata log reaches the cache's log and a backing file system. `vfs` implements them over
//! the engine and real file systems, the simulator over an observed engine and a virtual file system.

use std::future::Future;
use std::sync::Arc;

use forebay_engine::io::{BackingError, Io};
use forebay_engine::{Completion, Error, Seq, UserRecordId};
use forebay_oplog::{Identity, RenameIntent, Rights};

/// The cache's log, as far as the metadata log uses it. The methods are those of the engine, which documents them.
pub trait Log: Send + Sync + 'static {
    /// Appends a user record, and waits for room.
    fn note(&self, record: &[u8]) -> impl Future<Output = Result<(Seq, UserRecordId), Error>> + Send;

    /// Appends a user record without waiting. Returns `None` if there is no room now.
    fn try_append_user_record(&self, record: &[u8]) -> Result<Option<(Seq, UserRecordId)>, Error>;

    /// Appends a user record that replaces older ones, also where other records find no room. Returns `None` if it does
    /// not either.
    fn replace_user_records(
        &self,
        record: &[u8],
    ) -> impl Future<Output = Result<Option<(Seq, UserRecordId)>, Error>> + Send;

    /// Waits until a frame is durable.
    fn commit(&self, frame: Seq) -> impl Future<Output = Result<(), Error>> + Send;

    /// Calls `done` when a frame is durable, or has failed.
    fn when_durable(&self, frame: Seq, done: Completion);

    /// Returns true if a durable frame is on two devices.
    fn is_write_back(&self) -> bool;

    /// Waits until the log needs user records to be released. Returns the last of them, or `None` once the log closes.
    fn user_records_due(&self) -> impl Future<Output = Option<UserRecordId>> + Send;

    /// Records that user records cannot be released for now, or that they can again.
    fn keep_notes(&self, why: Option<BackingError>);

    /// Releases the user records up to `upto`.
    fn release_user_records(&self, upto: UserRecordId);

    /// Releases the user records up to `upto`, which records of `bytes` bytes replace.
    fn let_go_replaced(&self, upto: UserRecordId, bytes: usize);

    /// Releases the user records up to `upto`, except those that are `needed`. Records of `replacing` bytes replace
    /// some of the others. Returns false if all stay for now.
    fn let_go_but(
        &self,
        upto: UserRecordId,
        replacing: usize,
        needed: impl Fn(&[u8]) -> bool + Send + Sync,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Runs a task to its end beside the caller. The task may wait for room in the log, and the caller may be the one
    /// that makes it.
    fn run(&self, task: Io<()>);
}

/// An error of a backing file system.
pub trait Failure: Copy + PartialEq + std::fmt::Debug + Send + Sync + 'static {
    /// A commit of the journal has not ended in time.
    const LATE: Self;
    /// A commit of the journal has failed, or will fail.
    const FAILED: Self;
    /// The client has to repeat its request later.
    const BUSY: Self;

    /// Returns the error in the form in which the cache reports it.
    fn to_cache(self) -> BackingError;
}

/// A file of the backing file system that holds the intent of one RENAME at a time.
pub trait Slot: Send + 'static {
    /// Why a write failed.
    type Error;

    /// Writes an intent, in order with the changes of names.
    fn write(&self, intent: &RenameIntent) -> Result<(), Self::Error>;

    /// Removes the intent.
    fn withdraw(&self) -> Result<(), Self::Error>;
}

/// Called once, when a change is durable or has failed.
pub type Done<E> = Box<dyn FnOnce(Result<(), E>) + Send>;

/// A backing file system in service.
pub trait Files: Send + Sync + Sized + 'static {
    /// The log of the cache in front of it.
    type Log: Log;
    /// Its errors.
    type Error: Failure;
    /// Its slots.
    type Slot: Slot<Error = Self::Error>;
    /// The parts of a change that the file system has to make durable, if it has to.
    type Request: Default + Send + 'static;
    /// A value that the caller wants to be dropped when a change is durable.
    type Kept: Default + Send + 'static;

    /// Makes the slot with this number, which is new.
    fn make_slot(&self, number: usize) -> Result<Self::Slot, Self::Error>;

    /// Begins a commit of the journal. The commit covers every change carried out so far. It continues if the returned
    /// future is not polled.
    ///
    /// # Errors
    /// The commit cannot begin.
    fn begin_commit(&self) -> Result<Io<Result<(), Self::Error>>, Self::Error>;

    /// Returns true if a commit of the journal has failed since the file system was mounted.
    fn has_failed(&self) -> bool;

    /// Makes a change durable in the file system, then calls `done`.
    fn commit(self: &Arc<Self>, request: Self::Request, done: Done<Self::Error>);

    /// Completes a change that the log has made durable, then calls `done`.
    fn complete(self: &Arc<Self>, request: Self::Request, done: Done<Self::Error>);

    /// Notes that the log broke: records that it accepted may be lost.
    fn log_broke(&self);

    /// Records in the file system that the log with the identity `log` is lost and may come back. All changes up to
    /// `upto` are in the file system. The record must become durable before any change that [`Files::commit`] makes
    /// durable later.
    fn record_lost_log(&self, log: u64, upto: u64) -> Result<(), Self::Error>;
}

/// A backing file system at a start, once it is equal to the log. No client is served yet.
pub trait Start {
    /// The reason of a failure, and what to do about it.
    type Error;

    /// Returns the inode that a name leads to, by the identity that clients know, with its rights.
    fn leads_to(&mut self, dir: Identity, name: &[u8]) -> Result<Option<(Identity, Rights)>, Self::Error>;

    /// Returns true if the file system may have files of the server: slots, or the mark of a lost log.
    fn has_own_files(&mut self) -> bool;

    /// Empties the slots of earlier runs.
    fn clear_slots(&mut self) -> Result<(), Self::Error>;

    /// Removes the aliases of inodes that are gone.
    fn clear_aliases(&mut self) -> Result<(), Self::Error>;

    /// Makes every change of names so far durable.
    fn barrier(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// The reason why a start fails.
#[derive(Debug, thiserror::Error)]
pub enum StartError<E> {
    /// A file system failed.
    #[error("{0}")]
    Files(E),
    /// The cache's log failed.
    #[error("{0}")]
    Log(forebay_engine::Error),
}
