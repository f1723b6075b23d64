//! Recovery looks up the sizes of the objects with changes in the log, and if they still exist.
//!
//! Service waits for this. So the backing store syncs once for all objects of a volume that are asked for together,
//! and never once for each object. A sync of an array takes as long as many reads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::buffer::BLOCK;
use crate::core::Core;
use crate::index::object::CachedObject;
use crate::io::{BackingError, BackingResult};
use crate::recover::outcome::OpenError;
use crate::recover::progress::RecoveryProgress;
use crate::tiers::blocks::drop_object;
use crate::volume::queue::queue;

/// The highest number of objects of a volume that are asked for together. This number of files may be open until they
/// are synced.
pub(super) const TOGETHER: usize = 4096;
/// The highest number of rounds in which the backing store failed. After that the start fails.
const FAILURES: usize = 10;
/// The pause after a failed round.
const PAUSE: Duration = Duration::from_millis(500);

/// An object whose size is unknown.
struct Unsure {
    object: Arc<CachedObject>,
    /// The size that the backing file must get. It stays once it is set. A file that is longer after a failed sync
    /// may be shorter after a power cut.
    longer: Option<u64>,
}

/// Looks up the sizes of objects with changes that the backing store may lack, and queues their dirty blocks for
/// destaging.
pub(crate) async fn look_up_sizes(
    core: &Core,
    unsure: Vec<Arc<CachedObject>>,
    progress: &RecoveryProgress,
) -> Result<(), OpenError> {
    progress.begin(unsure.len());
    let mut volumes = BTreeMap::<u32, Vec<Arc<CachedObject>>>::new();
    for object in unsure {
        volumes.entry(core.env.backing.volume(&object.key)).or_default().push(object);
    }
    for objects in volumes.values() {
        for together in objects.chunks(TOGETHER) {
            let unsure = together.iter().map(|object| Unsure { object: object.clone(), longer: None });
            look_up_together(core, unsure.collect(), progress).await?;
        }
    }
    Ok(())
}

/// Settles objects of one volume. After a pause, repeats those for which the backing store reports an error.
async fn look_up_together(
    core: &Core,
    mut left: Vec<Unsure>,
    progress: &RecoveryProgress,
) -> Result<(), OpenError> {
    for round in 0.. {
        let results = look_up_once(core, &mut left).await;
        let (mut again, mut failed) = (Vec::new(), None);
        for (unsure, result) in left.into_iter().zip(results) {
            match result {
                Ok(()) => {
                    let mut state = unsure.object.lock();
                    if !std::mem::replace(&mut state.queued, true) {
                        drop(state);
                        queue(core, &unsure.object);
                    }
                }
                Err(BackingError::Gone) => drop_object(core, &unsure.object),
                Err(error) => {
                    failed = Some(error);
                    again.push(unsure);
                    continue;
                }
            }
            progress.advance();
        }
        match failed {
            None => break,
            Some(error) if round == FAILURES => return Err(OpenError::Backing(error)),
            Some(_) => core.env.clock.sleep(PAUSE).await,
        }
        left = again;
    }
    Ok(())
}

/// Takes over the sizes, and extends files that must be longer. Returns one result for each object.
async fn look_up_once(core: &Core, objects: &mut [Unsure]) -> Vec<BackingResult<()>> {
    let backing = &core.env.backing;
    let keys = objects.iter().map(|unsure| unsure.object.key.clone()).collect();
    let sizes = backing.sizes(keys).await;
    let mut results: Vec<_> = sizes.iter().map(|size| size.map(drop)).collect();
    let mut grown = Vec::new();
    for (at, (unsure, size)) in objects.iter_mut().zip(sizes).enumerate() {
        let Ok(size) = size else { continue };
        unsure.longer = take_size(&unsure.object, size).or(unsure.longer);
        if let Some(longer) = unsure.longer {
            results[at] = backing.truncate(&unsure.object.key, longer).await;
            grown.push(at);
        }
    }
    if !grown.is_empty() {
        let keys = grown.iter().map(|at| objects[*at].object.key.clone()).collect();
        for (at, synced) in grown.into_iter().zip(backing.sync(keys).await) {
            results[at] = results[at].and(synced);
        }
    }
    results
}

/// Takes over the size in the backing store. Returns a larger size if the backing file must get it.
fn take_size(object: &CachedObject, size: u64) -> Option<u64> {
    let mut state = object.lock();
    // A truncation that is not carried out leaves the backing file too large.
    if state.truncating.is_none() {
        // Without dirty blocks the backing store's size is right.
        state.size = if state.dirty == 0 { size } else { state.size.max(size) };
    }
    state.sized = true;
    let last = state.size.saturating_sub(1) / BLOCK as u64;
    let reaches = state.entry(last).is_some_and(|entry| entry.dirty);
    // A bypass write made the object longer, and was lost before a sync. No block to be destaged reaches that far,
    // and the size must not go back once a client has seen it.
    (state.size > size && !reaches).then_some(state.size)
}
