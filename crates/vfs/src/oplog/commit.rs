//! Makes a change durable before it is answered: through the cache's log, the file system's journal, or both.

use std::sync::Arc;

use forebay_metalog::DurableBy;
use forebay_runtime::{block_on, tasks};

use crate::durability::journal::{Data, Done, SyncRequest};
use crate::error::Result;
use crate::export::Export;
use crate::export::cache::{Cache, LogFrame};
use crate::export::filesystem::Filesystem;
use crate::export::vfs::Vfs;
use crate::oplog::Pending;
use crate::oplog::removal::Removal;

/// The things that must be durable before an acknowledgement.
#[derive(Default)]
pub struct CommitRequest {
    /// The part of the file system.
    pub(crate) sync: SyncRequest,
    /// The part of the cache's log.
    pub(crate) frame: Option<LogFrame>,
    /// The change itself, if its answer is to outlive a crash.
    pub(crate) pending: Option<Box<Pending>>,
    /// The removal of a name, for the cache to forget the file once it is gone durably.
    pub(crate) removal: Option<Removal>,
}

impl CommitRequest {
    /// Returns true if the answer is to be given to [`Vfs::commit`](crate::Vfs::commit).
    pub fn keeps_answer(&self) -> bool {
        self.pending.is_some()
    }

    /// Returns the number of the change, which [`Vfs::keep_state`](crate::Vfs::keep_state) compares. Returns `None`
    /// without a change that keeps its answer, or if the file system makes each change durable by itself.
    pub fn number(&self) -> Option<u64> {
        let pending = self.pending.as_ref().filter(|pending| pending.way() != DurableBy::Each)?;
        Some(pending.number())
    }
}

impl Vfs {
    /// Makes an intent durable, then calls `done` from some thread. With a cache, and where
    /// [`CommitRequest::keeps_answer`], `answer` becomes durable as well: after a crash [`Vfs::set_cache`] returns it
    /// if the change happened.
    pub fn commit(&self, export: &Export, mut intent: CommitRequest, answer: &[u8], done: Done) {
        let fs = export.fs.clone();
        let Some(cache) = self.cache.get() else { return sync(&fs, intent.sync, done) };
        let recorded = |pending: &Pending| pending.way() != DurableBy::Each || !answer.is_empty();
        let Some(pending) = intent.pending.take().filter(|pending| recorded(pending)) else {
            return commit_in_journal(cache, &fs, intent, done);
        };
        let way = pending.way();
        let made = || block_on(forebay_metalog::make_durable(&fs, pending, intent, answer, done));
        match way {
            // No lock is held: this thread may write the frame.
            DurableBy::Log => tasks::and_then_run(made),
            // This thread may lead a commit of the journal. The frame must not wait for it.
            DurableBy::Journal | DurableBy::Each => made(),
        }
    }
}

/// Returns the step between the file system's part of a commit request and `done`: the log's part, and the cache
/// entries to forget.
pub(crate) fn after_journal(cache: &Arc<Cache>, intent: &mut CommitRequest, done: Done) -> Done {
    let (frame, removal) = (intent.frame.take(), intent.removal.take());
    let syncing = intent.sync.data.as_ref().and_then(Data::begin_sync);
    if frame.is_none() && removal.is_none() && syncing.is_none() {
        return done;
    }
    let cache = cache.clone();
    Box::new(move |result: Result<()>| {
        if let Some(syncing) = syncing {
            syncing.end(result.is_ok());
        }
        if let Some(removal) = removal.filter(|_| result.is_ok()) {
            removal.durable();
        }
        match frame.filter(|_| result.is_ok()) {
            Some(frame) => cache.when_durable(frame, done),
            None => done(result),
        }
    })
}

/// Makes a change durable through the file system, also if the request has nothing that the file system has to make
/// durable: the log was to do that, and did not.
pub(crate) fn commit_whole(cache: &Arc<Cache>, fs: &Filesystem, mut intent: CommitRequest, done: Done) {
    let done = after_journal(cache, &mut intent, done);
    fs.journal.submit(intent.sync, done);
}

/// Makes a change durable through the file system, whether or not the log has it.
fn commit_in_journal(cache: &Arc<Cache>, fs: &Filesystem, mut intent: CommitRequest, done: Done) {
    let done = after_journal(cache, &mut intent, done);
    sync(fs, intent.sync, done);
}

/// Makes a request durable through the file system, if there is anything to make durable.
fn sync(fs: &Filesystem, request: SyncRequest, done: Done) {
    match request.is_empty() {
        true => done(Ok(())),
        false => fs.journal.submit(request, done),
    }
}
