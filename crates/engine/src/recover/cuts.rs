//! Recovery carries out the truncations in the log that the backing store may lack.
//!
//! Service waits for this. So the truncations of a volume share one sync of the backing store, and the records of their
//! completion share frames of the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::core::Core;
use crate::index::object::CachedObject;
use crate::io::{BackingError, BackingResult, Time};
use crate::recover::backing_sizes::TOGETHER;
use crate::recover::outcome::OpenError;
use crate::request::truncate::log_carried_out;
use crate::tiers::blocks::drop_object;
use crate::volume::trouble::{ask, backing_failed, backing_worked};
use crate::wait::all;

/// The number of files of a volume that are truncated side by side.
const SIDE_BY_SIDE: usize = 64;
/// The pause after the backing store failed.
const PAUSE: Duration = Duration::from_secs(1);

/// A truncation found in the log.
#[derive(Clone)]
struct Cut {
    object: Arc<CachedObject>,
    size: u64,
    mtime: Option<Time>,
}

/// Carries out the truncations in the log, however long the backing store takes.
pub(crate) async fn finish_cuts(core: &Core) -> Result<(), OpenError> {
    let mut volumes = BTreeMap::<u32, Vec<Cut>>::new();
    for object in core.objects.all() {
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
            finish_together(core, together.to_vec()).await.map_err(OpenError::Engine)?;
        }
    }
    Ok(())
}

/// Carries out truncations of one volume. After a pause, repeats those for which the backing store reports an
/// error.
async fn finish_together(core: &Core, mut left: Vec<Cut>) -> crate::Result<()> {
    let Some(volume) = left.first().map(|cut| cut.object.volume.clone()) else { return Ok(()) };
    let mut failed = false;
    loop {
        let results = cut_together(core, &left).await;
        if (failed || volume.is_late()) && results.iter().all(Result::is_ok) {
            backing_worked(core, &volume);
        }
        let error = log_together(core, &mut left, results).await?;
        let Some(error) = error else { return Ok(()) };
        backing_failed(core, &volume, error);
        failed = true;
        if core.closing() {
            return Err(Error::Closing);
        }
        core.env.clock.sleep(PAUSE).await;
    }
}

/// Truncates the files, then syncs them all at once. Returns one result for each file.
async fn cut_together(core: &Core, cuts: &[Cut]) -> Vec<BackingResult<()>> {
    let mut results = Vec::with_capacity(cuts.len());
    for some in cuts.chunks(SIDE_BY_SIDE) {
        results.extend(all(some.iter().map(|cut| Box::pin(cut_file(core, cut))).collect()).await);
    }
    let done: Vec<_> = (0..cuts.len()).filter(|at| results[*at].is_ok()).collect();
    if let Some(first) = done.first() {
        let asked = ask(core, &cuts[*first].object.volume);
        let keys = done.iter().map(|at| cuts[*at].object.key.clone()).collect();
        let synced = core.env.backing.sync(keys).await;
        drop(asked);
        done.into_iter().zip(synced).for_each(|(at, synced)| results[at] = synced);
    }
    results
}

/// Carries out a truncation in the backing store.
async fn cut_file(core: &Core, cut: &Cut) -> BackingResult<()> {
    let _asked = ask(core, &cut.object.volume);
    core.env.backing.truncate(&cut.object.key, cut.size).await?;
    match cut.mtime {
        Some(mtime) => core.env.backing.set_mtime(&cut.object.key, mtime).await,
        None => Ok(()),
    }
}

/// Logs the truncations that are carried out, and drops the objects whose files were removed. Leaves the
/// truncations to be tried again in `cuts`, and returns one of their errors.
async fn log_together(
    core: &Core,
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
    let logging = ended.iter().map(|(cut, _)| Box::pin(log_carried_out(core, &cut.object, false)));
    let logged = all(logging.collect()).await;
    for ((cut, gone), logged) in ended.into_iter().zip(logged) {
        match logged {
            Ok(()) if gone => drop_object(core, &cut.object),
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
