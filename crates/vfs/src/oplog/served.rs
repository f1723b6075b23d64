//! A real file system in service, as the metadata log sees it.

use std::sync::Arc;

use forebay_common::lock::Mutex;
use forebay_engine::io::{BackingError, Io};
use forebay_engine::wait::Gate;
use forebay_metalog::{Failure, Files};
use rustix::io::Errno;

use super::commit::{CommitRequest, after_journal, commit_whole};
use super::log::CacheLog;
use super::rename_intents::{self, SlotFile};
use crate::durability::journal::Done;
use crate::durability::request_journal::Request;
use crate::error::{Error, Result};
use crate::export::filesystem::Filesystem;

impl Failure for Error {
    const LATE: Self = Error::Os(Errno::TIMEDOUT);
    const FAILED: Self = Error::Os(Errno::IO);
    const BUSY: Self = Error::Busy;

    fn to_cache(self) -> BackingError {
        crate::error::io_error(self)
    }
}

/// The result of a commit in a thread of its own.
#[derive(Default)]
struct Committing {
    result: Mutex<Option<Result<()>>>,
    ended: Gate,
}

/// Reports the result when it is dropped: a commit that panics has failed.
struct Ends(Arc<Committing>, Result<()>);

impl Ends {
    fn with(mut self, result: Result<()>) {
        self.1 = result;
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        *self.0.result.lock() = Some(self.1);
        self.0.ended.wake();
    }
}

impl Files for Filesystem {
    type Log = CacheLog;
    type Error = Error;
    type Slot = SlotFile;
    type Request = CommitRequest;
    type Kept = Option<Request>;

    fn make_slot(&self, number: usize) -> Result<SlotFile> {
        rename_intents::make(&self.aliases, number)
    }

    fn begin_commit(&self) -> Result<Io<Result<()>>> {
        let (journal, committing) = (self.journal.clone(), Arc::new(Committing::default()));
        let ends = Ends(committing.clone(), Err(Error::FAILED));
        let thread = std::thread::Builder::new().name("forebay-barrier".into());
        let commit = move || ends.with(journal.barrier());
        thread.spawn(commit).map_err(|_| Error::Busy)?;
        Ok(Box::pin(async move { committing.ended.until(|| committing.result.lock().take()).await }))
    }

    fn has_failed(&self) -> bool {
        self.journal.has_failed()
    }

    fn commit(self: &Arc<Self>, request: CommitRequest, done: Done) {
        match self.linked() {
            Some(linked) => commit_whole(&linked.cache, self, request, done),
            None => self.journal.submit(request.sync, done),
        }
    }

    fn complete(self: &Arc<Self>, mut request: CommitRequest, done: Done) {
        match self.linked() {
            Some(linked) => after_journal(&linked.cache, &mut request, done)(Ok(())),
            None => done(Ok(())),
        }
    }

    fn log_broke(&self) {
        if let Some(linked) = self.linked() {
            linked.cache.log_broke();
        }
    }

    fn record_lost_log(&self, log: u64, upto: u64) -> Result<()> {
        let Some(linked) = self.linked() else { return Ok(()) };
        rename_intents::record_lost_log(&self.aliases, log, linked.number(), upto)
    }
}
