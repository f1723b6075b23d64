//! Recovery applies the records that were made while no device was left (`request/no_device.rs`).

use std::collections::BTreeMap;

use crate::Result;
use crate::buffer::BLOCK;
use crate::core::Core;
use crate::format::Record;
use crate::io::{BackingError, Disowned, Key, Time};
use crate::log::AppendKind;
use crate::log::records::{append, around, invalidate};
use crate::recover::outcome::OpenError;
use crate::request::no_device::ALL;
use crate::request::truncate::truncate;
use crate::tiers::blocks::forget_range;

/// Applies, at a start, the records made while the devices were missing: they count more than the devices'
/// contents. Returns the records.
pub(crate) async fn recall_disowned(core: &Core) -> std::result::Result<Vec<(Key, Disowned)>, OpenError> {
    let noted = core.env.backing.disowned(core.pool_id).await.map_err(OpenError::Backing)?;
    let noted: Vec<_> = noted.into_iter().flat_map(|(key, what)| without_dirty(core, key, what)).collect();
    for (key, what) in &noted {
        let Disowned::Blocks(range) = what else { continue };
        let object = core.objects.get(key, &core.segments);
        let mut state = object.lock();
        forget_range(core, &mut state, range.clone());
        if *range == ALL {
            state.mtime = None;
        }
        if range.end == u64::MAX {
            // The backing store knows the object's size. Dirty blocks lie below the end of the range.
            state.size = 0;
            if let Some(segment) = state.truncating.take() {
                core.segments.release(segment);
            }
        }
    }
    Ok(noted)
}

/// Restricts a record about clean copies to blocks that are not dirty: a dirty copy is newer.
fn without_dirty(core: &Core, key: Key, what: Disowned) -> Vec<(Key, Disowned)> {
    let Disowned::Copies(range) = what else { return vec![(key, what)] };
    let dirty = core.objects.get(&key, &core.segments).lock().dirty_in(range.clone(), usize::MAX);
    let dirty: Vec<u64> = dirty.into_iter().map(|(block, _)| block).collect();
    around(&range, &dirty).map(|part| (key.clone(), Disowned::Blocks(part))).collect()
}

/// Puts the records into the log, carries out the truncations that were begun, and drops the records.
pub(crate) async fn log_disowned(core: &Core, noted: Vec<(Key, Disowned)>) -> Result<()> {
    if noted.is_empty() {
        return Ok(());
    }
    let mut cuts = BTreeMap::new();
    for (key, what) in noted {
        match what {
            Disowned::Cut { size, mtime } => {
                cuts.insert(key, (size, mtime));
            }
            // Records about clean copies were handled when they were recalled.
            Disowned::Copies(_) => {}
            Disowned::Blocks(range) => {
                let object = core.objects.get(&key, &core.segments);
                let cut = range.end == u64::MAX;
                invalidate(core, &object, range).await?;
                if cut {
                    let truncated =
                        Some::<fn(u16, u64, u64) -> Record>(|object, _, _| Record::Truncated { object });
                    append(core, AppendKind::New, &object, truncated).await?;
                    cuts.remove(&key);
                }
            }
        }
    }
    for (key, (size, mtime)) in cuts {
        cut_again(core, &key, size, mtime).await?;
    }
    core.commit(core.last()).await?;
    Ok(core.env.backing.forget_disowned(core.pool_id).await?)
}

/// Carries out a recorded truncation that perhaps was not carried out, or only in the backing store.
async fn cut_again(core: &Core, key: &Key, size: u64, mtime: Time) -> Result<()> {
    let there = match core.env.backing.size(key).await {
        Err(BackingError::Gone) => return Ok(()),
        there => there?,
    };
    let object = core.object(key, there);
    let through = size / BLOCK as u64..size.div_ceil(BLOCK as u64);
    let from = {
        let mut state = object.lock();
        // If only the devices have the block at the new end, the log gets its remaining part.
        let dirty = !state.dirty_in(through.clone(), 1).is_empty();
        let from = if dirty { through.end } else { through.start };
        forget_range(core, &mut state, from..u64::MAX);
        from
    };
    invalidate(core, &object, from..u64::MAX).await?;
    truncate(core, &object, size, mtime).await
}
