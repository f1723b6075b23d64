//! Syncs of the backing store. A failed one may have lost whatever was written to the file before it, whoever is told of
//! it, and the next one says nothing of that (Rebello et al., ATC'20): so it counts for all whose bytes it covered.

use std::sync::Arc;

use crate::engine::Engine;
use crate::index::object::{Object, State};
use crate::io::{BackingError, BackingResult};
use crate::plant;

/// Syncs of one object's file.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    /// How many have failed.
    failed: u64,
    /// Those under way, by number, and the last one begun.
    under_way: Vec<u64>,
    last: u64,
}

/// An object whose file was written, and how many syncs of it had failed before.
pub(crate) struct Unsynced<'a> {
    pub(crate) object: &'a Arc<Object>,
    pub(crate) failed: u64,
}

impl Syncs {
    /// To be asked before the file is written.
    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    fn begin(&mut self) -> u64 {
        self.last += 1;
        self.under_way.push(self.last);
        self.last
    }

    /// Returns the last sync that began before this one ended.
    fn end(&mut self, own: u64, failed: bool) -> u64 {
        self.under_way.retain(|other| *other != own);
        self.failed += u64::from(failed);
        self.last
    }
}

impl Engine {
    /// Makes what was written to the files durable.
    pub(crate) async fn sync_files(&self, files: &[Unsynced<'_>]) -> Vec<BackingResult<()>> {
        let begin = |state: &mut State| (state.syncs.begin(), state.volatile.begin(0..u64::MAX));
        let begun: Vec<_> = files.iter().map(|file| begin(&mut file.object.lock())).collect();
        let keys = || files.iter().map(|file| file.object.key.clone()).collect();
        let mut results = self.env.backing.sync(keys()).await;
        if plant::active("only the sync is tried again") && results.iter().any(Result::is_err) {
            results = self.env.backing.sync(keys()).await;
        }
        let mut ended = Vec::with_capacity(files.len());
        for ((file, (own, _)), result) in files.iter().zip(&begun).zip(&results) {
            // One of a file that is gone for good lost nothing that anybody could ask for.
            let failed = matches!(result, Err(error) if *error != BackingError::Gone);
            ended.push(file.object.lock().syncs.end(*own, failed));
            file.object.changed.wake();
        }
        let mut all = Vec::with_capacity(files.len());
        for (((file, (_, covered)), last), result) in files.iter().zip(begun).zip(ended).zip(results) {
            let result = match result {
                Ok(()) => self.none_failed(file, last).await,
                Err(error) => Err(error),
            };
            file.object.lock().volatile.end(covered, result.is_ok());
            all.push(result);
        }
        all
    }

    /// The same of one file.
    pub(crate) async fn sync_file(&self, file: Unsynced<'_>) -> BackingResult<()> {
        self.sync_files(&[file]).await.pop().unwrap_or(Err(BackingError::Gone))
    }

    /// One that began before this one ended may have failed before it, and have dropped what this one was to make durable.
    async fn none_failed(&self, file: &Unsynced<'_>, last: u64) -> BackingResult<()> {
        let Unsynced { object, failed } = file;
        if plant::active("a failed sync counts for its caller only") {
            return Ok(());
        }
        let ended = || object.lock().syncs.under_way.iter().all(|other| *other > last);
        object.changed.until(|| ended().then_some(())).await;
        if object.lock().syncs.failed == *failed { Ok(()) } else { Err(BackingError::Io(5)) }
    }
}
