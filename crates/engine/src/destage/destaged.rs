//! The records of destaged blocks that a clean stop appends to the log.
//!
//! A segment stays in the log as long as one of its blocks is dirty. Recovery takes all of its blocks as dirty,
//! unless the log says otherwise. It would destage them again, over external changes made meanwhile.

use crate::core::Core;
use crate::format::Record;
use crate::index::object::CachedObject;
use crate::log::AppendKind;
use crate::log::records::{around, try_append};
use crate::{Result, Seq};

/// The highest number of records, of about 60 bytes each, so that a stop does not take long. Recovery takes the rest
/// as dirty.
const RECORDS: usize = 1 << 18;

/// Logs which blocks of the log's segments are destaged, as far as there is room. A stop calls this once no
/// destaging is in progress. The records count once a frame closed after them is durable.
pub(crate) async fn log_destaged(core: &Core) {
    let Some(tail) = core.segments.tail_position() else { return };
    let mut left = RECORDS;
    for object in core.objects.all() {
        let mut from = Some(0);
        while let Some(block) = from {
            match try_log_destaged(core, &object, block, tail, &mut left) {
                Ok(next) => from = next,
                // The log is lost, or has no room left that is worth the wait.
                Err(_) => return,
            }
            if from.is_some() {
                let room = || (core.log.has_room(0) || core.log.is_full()).then_some(());
                core.log.until(room).await;
                if left == 0 || core.log.is_full() {
                    return;
                }
            }
        }
    }
}

/// Logs which blocks of one object are destaged, from `from` on. Returns the first block that there was no room
/// for.
fn try_log_destaged(
    core: &Core,
    object: &CachedObject,
    from: u64,
    tail: u64,
    left: &mut usize,
) -> Result<Option<u64>> {
    let mut state = object.lock();
    if state.gone || state.copied < tail {
        return Ok(None);
    }
    let dirty: Vec<u64> =
        state.dirty_in(from..u64::MAX, usize::MAX).into_iter().map(|(block, _)| block).collect();
    let record = |object, block, count| Record::Destaged { object, block, count };
    for blocks in around(&(from..u64::MAX), &dirty).filter(|blocks| !blocks.is_empty()) {
        let count = if blocks.end == u64::MAX { u64::MAX } else { blocks.end - blocks.start };
        let appended: Option<Seq> = match *left {
            0 => None,
            _ => try_append(core, AppendKind::New, object, &mut state, Some(record), blocks.start, count)?,
        };
        if appended.is_none() {
            return Ok(Some(blocks.start));
        }
        *left -= 1;
    }
    Ok(None)
}
