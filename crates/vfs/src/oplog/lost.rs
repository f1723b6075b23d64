//! Changes after the log was lost with the last cache device.
//!
//! The file system makes such changes durable itself. Before that it records that it has more than the log. The devices
//! may come back, and the names and attributes in their log must not undo changes made without it.

use std::sync::Arc;

use super::{Pending, Way, rename_intents};
use crate::durability::journal::{Done, SyncRequest};
use crate::error::Result;
use crate::export::cache::Cache;
use crate::export::filesystem::Filesystem;
use forebay_engine::Seq;

impl Filesystem {
    /// Records in the file system that the log is lost, before a change without a record becomes durable. The journal
    /// keeps the order.
    fn log_lost(&self) -> Result<()> {
        let Some(linked) = self.linked() else { return Ok(()) };
        linked.logging.lose_log(|| {
            let oplog = &linked.cache.oplog;
            oplog.carry_out();
            let (identity, upto) = oplog.last();
            rename_intents::say_lost(&self.aliases, identity, linked.number(), upto)
        })
    }
}

/// Makes a change durable that the log was to make durable, and did not.
pub(crate) fn submit(cache: &Cache, fs: &Filesystem, request: SyncRequest, done: Done) {
    cache.log_broke();
    match fs.log_lost() {
        Ok(()) => fs.journal.submit(request, done),
        Err(error) => done(Err(error)),
    }
}

/// Returns the completion to call when the file system has made a change durable whose record is in `frame`. It calls
/// `done` when that frame is durable, too.
pub(crate) fn both(
    cache: &Arc<Cache>,
    fs: &Arc<Filesystem>,
    mut pending: Box<Pending>,
    frame: Seq,
    done: Done,
) -> Done {
    let (cache, fs) = (cache.clone(), fs.clone());
    Box::new(move |result| match result {
        Ok(()) => {
            let (theirs, logs) = (cache.clone(), pending.way() != Way::Each);
            let recorded = move |durable: std::result::Result<(), _>| {
                // The slot is freed only now, because recovery may need its intent.
                drop(pending);
                match durable {
                    Err(_) if logs => submit(&theirs, &fs, SyncRequest::default(), done),
                    // That the answer is not kept is no reason not to give it.
                    _ => done(Ok(())),
                }
            };
            cache.engine.when_durable(frame, Box::new(recorded));
        }
        Err(error) => {
            pending.failed = true;
            done(Err(error));
        }
    })
}
