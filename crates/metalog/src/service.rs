//! A change becomes durable, and then its client is answered.
//!
//! | way | the record | the change is durable when |
//! |---|---|---|
//! | `Log` | is durable, and the log is on two devices | its frame is durable |
//! | `Log` | is durable, and a device was lost meanwhile | the journal has committed as well |
//! | `Journal`, `Each` | is in the log | the journal has committed, then the frame is durable |
//! | `Log`, `Journal` | cannot be appended, or its frame fails | the loss is recorded, then the journal commits |
//! | `Each` | cannot be appended, or its frame fails | the journal has committed: only the reply is lost |
//! | any | is too long | the journal has committed |

use std::sync::Arc;

use forebay_common::lock::Mutex;
use forebay_engine::Seq;
use forebay_engine::wait::Gate;
use forebay_oplog::RECORD_MAX;

use crate::change::{DurableBy, Pending};
use crate::io::{Done, Files, Log as _};
use crate::planted_bugs;
use crate::sequence::Turn;
use crate::volume::Volume;

/// Appends a change with its reply to the log, behind all changes with lower numbers. Calls `done` when the change is
/// durable. May wait for room in the log, for this change and for other changes. `request` has the parts of the change
/// that the file system makes durable if the log does not.
pub async fn make_durable<F: Files>(
    files: &Arc<F>,
    mut pending: Box<Pending<F>>,
    request: F::Request,
    reply: &[u8],
    done: Done<F::Error>,
) {
    let record = pending.record(reply).encode();
    if record.len() > RECORD_MAX {
        files.commit(request, done);
        return;
    }
    pending.recorded = true;
    let (volume, number, way) = (pending.volume.clone(), pending.number, pending.way);
    let files = files.clone();
    if way == DurableBy::Log {
        let noted = move |noted: Result<(Seq, _), _>| {
            drop(pending.ticket.take());
            match noted {
                Ok((frame, _)) => logged(&files, pending, frame, request, done),
                Err(_) => unlogged(&files, &pending.volume, request, done),
            }
        };
        return volume.sequence.submit(number, Turn { record, noted: Box::new(noted) }).await;
    }
    // This task may lead a commit of the journal. It must not do so in a turn, for which other changes wait.
    let place = Arc::new((Mutex::new(None), Gate::default()));
    let theirs = place.clone();
    let noted = move |noted| {
        drop(pending.ticket.take());
        *theirs.0.lock() = Some((pending, noted));
        theirs.1.wake();
    };
    volume.sequence.submit(number, Turn { record, noted: Box::new(noted) }).await;
    let (pending, noted) = place.1.until(|| place.0.lock().take()).await;
    match noted {
        Ok((frame, _)) => {
            let done = both(files.clone(), pending, frame, done);
            files.commit(request, done);
        }
        Err(_) if way != DurableBy::Each => unlogged(&files, &volume, request, done),
        Err(_) => files.commit(request, done),
    }
}

/// Waits until the record in `frame` is durable. Its record is enough while the record is on two devices.
fn logged<F: Files>(
    files: &Arc<F>,
    pending: Box<Pending<F>>,
    frame: Seq,
    request: F::Request,
    done: Done<F::Error>,
) {
    let (files, log) = (files.clone(), pending.volume.sequence.log.clone());
    if planted_bugs::active("answered before the record is durable") {
        return files.complete(request, done);
    }
    let theirs = log.clone();
    let recorded = move |durable: Result<(), _>| {
        let volume = pending.volume.clone();
        // The slot is freed only now, because recovery may need its intent.
        drop(pending);
        match durable {
            Ok(()) if theirs.is_write_back() => files.complete(request, done),
            // Since the change began, a device was lost or is being removed: the log has one copy of it, or will have.
            Ok(()) => files.commit(request, done),
            Err(_) => unlogged(&files, &volume, request, done),
        }
    };
    log.when_durable(frame, Box::new(recorded));
}

/// Returns the completion to call when the file system has made a change durable whose record is in `frame`. It calls
/// `done` when that frame is durable, too.
fn both<F: Files>(
    files: Arc<F>,
    mut pending: Box<Pending<F>>,
    frame: Seq,
    done: Done<F::Error>,
) -> Done<F::Error> {
    Box::new(move |result| match result {
        Ok(()) => {
            let (volume, logs) = (pending.volume.clone(), pending.way != DurableBy::Each);
            let log = volume.sequence.log.clone();
            let recorded = move |durable: Result<(), _>| {
                // The slot is freed only now, because recovery may need its intent.
                drop(pending);
                match durable {
                    Err(_) if logs => unlogged(&files, &volume, F::Request::default(), done),
                    // That the reply is not kept is no reason not to give it.
                    _ => done(Ok(())),
                }
            };
            log.when_durable(frame, Box::new(recorded));
        }
        Err(error) => {
            pending.failed = true;
            done(Err(error));
        }
    })
}

/// Makes a change durable that the log was to make durable, and did not. The file system records before that it has
/// more than the log. The devices may come back, and the names and attributes in their log must not undo changes made
/// without it.
pub(crate) fn unlogged<F: Files>(
    files: &Arc<F>,
    volume: &Arc<Volume<F>>,
    request: F::Request,
    done: Done<F::Error>,
) {
    files.log_broke();
    let (files, theirs) = (files.clone(), volume.clone());
    volume.sequence.log.run(Box::pin(async move {
        match theirs.lose_log(&*files).await {
            Ok(()) => files.commit(request, done),
            Err(error) => done(Err(error)),
        }
    }));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::tests::{Bench, Refused, at_once, touching};

    /// Makes one change durable in this way. Returns its result, and what the file system was asked.
    fn made(bench: &Bench, way: DurableBy) -> (Result<(), Refused>, Vec<String>) {
        let pending = bench.volume.changed(way, touching(1));
        let result = Arc::new(Mutex::new(None));
        let theirs = result.clone();
        let done = Box::new(move |result| *theirs.lock() = Some(result));
        at_once(make_durable(&bench.disk, pending, "it", b"reply", done));
        let result = result.lock().take();
        (result.unwrap(), bench.asked())
    }

    #[test]
    fn a_record_on_two_devices_is_enough_and_on_one_it_is_not() {
        let bench = Bench::new();
        assert_eq!(made(&bench, DurableBy::Log), (Ok(()), vec!["complete it".to_owned()]));
        assert_eq!(made(&bench, DurableBy::Journal), (Ok(()), vec!["commit it".to_owned()]));
        assert_eq!(made(&bench, DurableBy::Each), (Ok(()), vec!["commit it".to_owned()]));
        bench.log.alone.store(true, Relaxed);
        assert_eq!(bench.volume.way(true), DurableBy::Journal);
        assert_eq!(made(&bench, DurableBy::Log), (Ok(()), vec!["commit it".to_owned()]));
        bench.disk.failed.store(true, Relaxed);
        assert_eq!(made(&bench, DurableBy::Log).0, Err(Refused::Failed));
        assert_eq!(bench.log.records().len(), 5);
    }

    #[test]
    fn a_change_without_a_log_follows_the_mark_that_the_log_is_lost() {
        let bench = Bench::new();
        bench.log.lost.store(true, Relaxed);
        let marked = ["broke", "lost 77 after 11", "commit it"].map(str::to_owned).to_vec();
        assert_eq!(made(&bench, DurableBy::Log), (Ok(()), marked));
        let again = ["broke", "commit it"].map(str::to_owned).to_vec();
        assert_eq!(made(&bench, DurableBy::Journal), (Ok(()), again), "it says so once");
        assert_eq!(made(&bench, DurableBy::Each), (Ok(()), vec!["commit it".to_owned()]));
    }
}
