//! Recovery carries out the truncations in the log that the backing store may lack.
//!
//! Service waits for this. So the truncations of a volume share one sync of the backing store, and the records of their
//! completion share frames of the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::OpenError;
use super::settle::TOGETHER;
use crate::Error;
use crate::engine::Engine;
use crate::index::object::Object;
use crate::io::{BackingError, BackingResult, Time};
use crate::wait::all;

/// The number of files of a volume that are truncated side by side.
const SIDE_BY_SIDE: usize = 64;
/// The pause after the backing store failed.
const PAUSE: Duration = Duration::from_secs(1);

/// A truncation found in the log.
#[derive(Clone)]
struct Cut {
    object: Arc<Object>,
    size: u64,
    mtime: Option<Time>,
}

impl Engine {
    /// Carries out the truncations in the log, however long the backing store takes.
    pub(super) async fn finish_cuts(&self) -> Result<(), OpenError> {
        let mut volumes = BTreeMap::<u32, Vec<Cut>>::new();
        for object in self.objects.all() {
            let state = object.lock();
            let (begun, size, mtime) = (state.truncating.is_some(), state.size, state.mtime);
            drop(state);
            if begun {
                let cuts = volumes.entry(object.volume.id).or_default();
                cuts.push(Cut { object, size, mtime });
            }
        }
        for cuts in volumes.values() {
            for together in cuts.chunks(TOGETHER) {
                self.finish_together(together.to_vec()).await.map_err(OpenError::Engine)?;
            }
        }
        Ok(())
    }

    /// Carries out truncations of one volume. After a pause, repeats those for which the backing store reports an
    /// error.
    async fn finish_together(&self, mut left: Vec<Cut>) -> crate::Result<()> {
        let Some(volume) = left.first().map(|cut| cut.object.volume.clone()) else { return Ok(()) };
        let mut failed = false;
        loop {
            let results = self.cut_together(&left).await;
            if (failed || volume.is_late()) && results.iter().all(Result::is_ok) {
                self.backing_worked(&volume);
            }
            let error = self.log_together(&mut left, results).await?;
            let Some(error) = error else { return Ok(()) };
            self.backing_failed(&volume, error);
            failed = true;
            if self.closing() {
                return Err(Error::Closing);
            }
            self.env.clock.sleep(PAUSE).await;
        }
    }

    /// Truncates the files, then syncs them all at once. Returns one result for each file.
    async fn cut_together(&self, cuts: &[Cut]) -> Vec<BackingResult<()>> {
        let mut results = Vec::with_capacity(cuts.len());
        for some in cuts.chunks(SIDE_BY_SIDE) {
            results.extend(all(some.iter().map(|cut| Box::pin(self.cut_file(cut))).collect()).await);
        }
        let done: Vec<_> = (0..cuts.len()).filter(|at| results[*at].is_ok()).collect();
        if let Some(first) = done.first() {
            let asked = self.ask(&cuts[*first].object.volume);
            let keys = done.iter().map(|at| cuts[*at].object.key.clone()).collect();
            let synced = self.env.backing.sync(keys).await;
            drop(asked);
            done.into_iter().zip(synced).for_each(|(at, synced)| results[at] = synced);
        }
        results
    }

    async fn cut_file(&self, cut: &Cut) -> BackingResult<()> {
        let _asked = self.ask(&cut.object.volume);
        self.env.backing.truncate(&cut.object.key, cut.size).await?;
        match cut.mtime {
            Some(mtime) => self.env.backing.set_mtime(&cut.object.key, mtime).await,
            None => Ok(()),
        }
    }

    /// Logs the truncations that are carried out, and drops the objects whose files were removed. Leaves the
    /// truncations to be tried again in `cuts`, and returns one of their errors.
    async fn log_together(
        &self,
        cuts: &mut Vec<Cut>,
        results: Vec<BackingResult<()>>,
    ) -> crate::Result<Option<BackingError>> {
        let (mut ended, mut again, mut failed) = (Vec::new(), Vec::new(), None);
        for (cut, result) in std::mem::take(cuts).into_iter().zip(results) {
            match result {
                Ok(()) | Err(BackingError::Gone) => ended.push((cut, result.is_err())),
                Err(error) => {
                    failed = Some(error);
                    again.push(cut);
                }
            }
        }
        let logging = ended.iter().map(|(cut, _)| Box::pin(self.log_carried_out(&cut.object, false)));
        let logged = all(logging.collect()).await;
        for ((cut, gone), logged) in ended.into_iter().zip(logged) {
            match logged {
                Ok(()) if gone => self.drop_object(&cut.object),
                Ok(()) => {}
                Err(Error::Backing(error)) => {
                    failed = Some(error);
                    again.push(cut);
                }
                Err(error) => return Err(error),
            }
        }
        *cuts = again;
        Ok(failed)
    }
}
