//! Syncs of the backing store. A failed sync may have lost any data written to the file before it, and only one
//! caller gets the error (Rebello et al., ATC'20). The next sync does not report it. So a failed sync fails every
//! request whose bytes it covered.

use std::sync::Arc;

use crate::core::Core;
use crate::index::object::{CachedObject, State};
use crate::io::{BackingError, BackingResult};
use crate::planted_bugs;
use crate::volume::trouble::{answered, ask};

/// The error of a sync that failed for another caller.
const EIO: i32 = 5;

/// An object whose file was written, and the number of failed syncs before the write.
pub(crate) struct Unsynced<'a> {
    pub(crate) object: &'a Arc<CachedObject>,
    pub(crate) failed: u64,
}

/// Makes the data written to the files durable.
pub(crate) async fn sync_files(core: &Core, files: &[Unsynced<'_>]) -> Vec<BackingResult<()>> {
    let begin = |state: &mut State| (state.syncs.begin(), state.volatile.begin(0..u64::MAX));
    let begun: Vec<_> = files.iter().map(|file| begin(&mut file.object.lock())).collect();
    let keys = || files.iter().map(|file| file.object.key.clone()).collect();
    let mut results = core.env.backing.sync(keys()).await;
    if planted_bugs::active("only the sync is tried again") && results.iter().any(Result::is_err) {
        results = core.env.backing.sync(keys()).await;
    }
    let mut ended = Vec::with_capacity(files.len());
    for ((file, (own, _)), result) in files.iter().zip(&begun).zip(&results) {
        // The sync of a removed file lost no data that anybody could ask for.
        let failed = matches!(result, Err(error) if *error != BackingError::Gone);
        let mut state = file.object.lock();
        ended.push(state.syncs.end(*own, failed));
        if failed && !planted_bugs::active("a failed sync is noted once its caller knows") {
            state.volatile.failed();
        }
        drop(state);
        file.object.changed.wake();
    }
    let mut all = Vec::with_capacity(files.len());
    for (((file, (_, covered)), last), result) in files.iter().zip(begun).zip(ended).zip(results) {
        let result = match result {
            Ok(()) => none_failed(file, last).await,
            Err(error) => Err(error),
        };
        file.object.lock().volatile.end(covered, result.is_ok());
        all.push(result);
    }
    all
}

/// Makes the data written to one file durable. A volume that does not answer for long is late meanwhile.
pub(crate) async fn sync_file(core: &Core, file: Unsynced<'_>) -> BackingResult<()> {
    let volume = file.object.volume.clone();
    let asked = ask(core, &volume);
    let synced = sync_files(core, &[file]).await.pop().unwrap_or(Err(BackingError::Gone));
    answered(core, &volume, asked);
    synced
}

/// Makes every bypass write of an object durable that has ended. Asks the backing store only if there is one.
///
/// # Errors
/// A sync has failed. The error is repeated until the bytes that it may have lost are written again.
pub(crate) async fn sync_bypassed(core: &Core, object: &Arc<CachedObject>) -> crate::Result<()> {
    let failed = {
        let state = object.lock();
        if state.volatile.is_empty() {
            return Ok(());
        }
        state.syncs.failed()
    };
    sync_file(core, Unsynced { object, failed }).await?;
    match object.lock().volatile.has_lost() {
        true => Err(BackingError::Io(EIO).into()),
        false => Ok(()),
    }
}

/// Waits for the syncs up to `last`, and fails if a sync has failed since the file was written. An overlapping
/// sync may have failed first, and have dropped the data that this sync was to make durable.
async fn none_failed(file: &Unsynced<'_>, last: u64) -> BackingResult<()> {
    let Unsynced { object, failed } = file;
    if planted_bugs::active("a failed sync counts for its caller only") {
        return Ok(());
    }
    let ended = || object.lock().syncs.are_ended(last);
    object.changed.until(|| ended().then_some(())).await;
    if object.lock().syncs.failed() == *failed { Ok(()) } else { Err(BackingError::Io(EIO)) }
}
