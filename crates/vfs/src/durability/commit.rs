//! Makes a change durable before it is answered: through the cache's log, the file system's journal, or both.

use std::sync::Arc;

use forebay_engine::Mode;

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
        let theirs = cache.clone();
        oplog::keep(cache, pending, answer, move |pending, kept| match kept {
            Ok(Some(frame)) if pending.way() == Way::Log => {
                commit_logged(&theirs, fs, intent, (pending, frame), done);
            }
            Ok(Some(frame)) => {
                let done = oplog::both(&theirs, &fs, pending, frame, done);
                commit_in_journal(&theirs, &fs, intent, done);
            }
            Err(_) if pending.way() != Way::Each => commit_unlogged(&theirs, &fs, intent, done),
            Ok(None) | Err(_) => commit_in_journal(&theirs, &fs, intent, done),
        });
    }
}

/// Returns the step between the file system's part of a commit request and `done`: the log's part, and the cache
/// entries to forget.
fn after_journal(cache: &Arc<Cache>, intent: &mut CommitRequest, done: Done) -> Done {
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

/// Makes a logged change durable. Its record is enough while the record is on two devices. If the log breaks, the file
/// system's journal has to commit.
fn commit_logged(
    cache: &Arc<Cache>,
    fs: Arc<Filesystem>,
    mut intent: CommitRequest,
    (pending, frame): (Box<Pending>, forebay_engine::Seq),
    done: Done,
) {
    let theirs = cache.clone();
    let logged = Box::new(move |durable: std::result::Result<(), forebay_engine::Error>| {
        drop(pending);
        match durable {
            Ok(()) if theirs.engine.effective_mode() == Mode::WriteBack => {
                after_journal(&theirs, &mut intent, done)(Ok(()));
            }
            // Since it was begun a device was lost, or is being removed: the log has one copy of it, or will have.
            Ok(()) => commit_in_journal(&theirs, &fs, intent, done),
            Err(_) => commit_unlogged(&theirs, &fs, intent, done),
        }
    });
    cache.engine.when_durable(frame, logged);
}

/// Makes a change durable through the file system itself, because the log is lost.
fn commit_unlogged(cache: &Arc<Cache>, fs: &Filesystem, mut intent: CommitRequest, done: Done) {
    let done = after_journal(cache, &mut intent, done);
    oplog::submit(cache, fs, intent, done);
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
