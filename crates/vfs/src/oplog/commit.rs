//! Makes a change durable before it is answered: through the cache's log, the file system's journal, or both.

use std::sync::Arc;

use forebay_engine::Mode;

use crate::durability::journal::{Data, Done, SyncRequest};
use crate::error::Result;
use crate::export::Export;
use crate::export::cache::{Cache, LogFrame};
use crate::export::filesystem::Filesystem;
use crate::export::vfs::Vfs;
use crate::oplog::lost::{both, submit};
use crate::oplog::removal::Removal;
use crate::oplog::{self, Pending, Way};

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
}

impl Vfs {
    /// Makes an intent durable, then calls `done` from some thread. With a cache, and where
    /// [`CommitRequest::keeps_answer`], `answer` becomes durable as well: after a crash [`Vfs::set_cache`] returns it
    /// if the change happened.
    pub fn commit(&self, export: &Export, mut intent: CommitRequest, answer: &[u8], done: Done) {
        let fs = export.fs.clone();
        let Some(cache) = self.cache.get() else { return sync(&fs, intent.sync, done) };
        let recorded = |pending: &Pending| pending.way() != Way::Each || !answer.is_empty();
        let Some(pending) = intent.pending.take().filter(|pending| recorded(pending)) else {
            return commit_in_journal(cache, &fs, intent, done);
        };
        let theirs = cache.clone();
        oplog::keep(cache, pending, answer, move |pending, kept| match kept {
            Ok(Some(frame)) if pending.way() == Way::Log => {
                commit_logged(&theirs, fs, intent, Recorded { pending, frame }, done);
            }
            Ok(Some(frame)) => {
                let done = both(&theirs, &fs, pending, frame, done);
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

/// A change whose record is in the log.
struct Recorded {
    pending: Box<Pending>,
    /// The frame of the record.
    frame: forebay_engine::Seq,
}

/// Makes a logged change durable. Its record is enough while the record is on two devices. If the log breaks, the file
/// system's journal has to commit.
fn commit_logged(
    cache: &Arc<Cache>,
    fs: Arc<Filesystem>,
    mut intent: CommitRequest,
    Recorded { pending, frame }: Recorded,
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
    submit(cache, fs, intent.sync, done);
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
