//! Makes a change durable before it is answered: through the cache's log, the file system's journal, or both.

use std::sync::Arc;

use crate::backing::cache::Cache;
use crate::durability::journal::{CommitRequest, Data, Done};
use crate::error::Result;
use crate::export::filesystem::Filesystem;
use crate::export::{Export, Vfs};
use crate::oplog::{self, Pending, Way};

impl Vfs {
    /// Makes an intent durable, then calls `done` from some thread. With a cache, and where
    /// [`CommitRequest::keeps_answer`], `answer` becomes durable as well: after a crash [`Vfs::set_cache`] returns it
    /// if the change happened.
    pub fn commit(&self, export: &Export, mut intent: CommitRequest, answer: &[u8], done: Done) {
        let fs = export.fs.clone();
        let Some(cache) = self.cache.get() else { return settle(&fs, intent, done) };
        let recorded = |pending: &Pending| pending.way() != Way::Each || !answer.is_empty();
        let Some(pending) = intent.pending.take().filter(|pending| recorded(pending)) else {
            return commit_in_journal(cache, &fs, intent, done);
        };
        oplog::make_durable(&fs, pending, intent, answer, done);
    }
}

/// Returns the step between the file system's part of a commit request and `done`: the log's part, and the cache
/// entries to forget.
pub(crate) fn after_journal(cache: &Arc<Cache>, intent: &mut CommitRequest, done: Done) -> Done {
    let (logged, removal) = (intent.logged.take(), intent.removal.take());
    let syncing = intent.data.as_ref().and_then(Data::begin_sync);
    if logged.is_none() && removal.is_none() && syncing.is_none() {
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
        match logged.filter(|_| result.is_ok()) {
            Some(logged) => cache.when_durable(logged, done),
            None => done(result),
        }
    })
}

/// Makes a change durable through the file system, also if the request has nothing that the file system has to make
/// durable: the log was to do that, and did not.
pub(crate) fn commit_whole(cache: &Arc<Cache>, fs: &Filesystem, mut intent: CommitRequest, done: Done) {
    let done = after_journal(cache, &mut intent, done);
    fs.journal.submit(intent, done);
}

/// Makes a change durable through the file system, whether or not the log has it.
fn commit_in_journal(cache: &Arc<Cache>, fs: &Filesystem, mut intent: CommitRequest, done: Done) {
    let done = after_journal(cache, &mut intent, done);
    settle(fs, intent, done);
}

fn settle(fs: &Filesystem, intent: CommitRequest, done: Done) {
    match intent.is_empty() {
        true => done(Ok(())),
        false => fs.journal.submit(intent, done),
    }
}
