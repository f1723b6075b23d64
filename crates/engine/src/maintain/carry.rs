//! User records that are still needed are reappended at the log head, segment by segment, so that the log tail can
//! move.

use crate::buffer::BLOCK;
use crate::core::Core;
use crate::format::Record;
use crate::log::AppendKind;
use crate::log::footers::read_footer;
use crate::log::notes::{append_note, release_user_records};
use crate::log::reappend::room_to_move;
use crate::log::user_records::UserRecordId;
use crate::log::writer::moving;
use crate::{Result, Seq};

/// Releases user records up to `upto`, as [`Engine::release_user_records`](crate::Engine::release_user_records), except
/// those that are `needed`. The needed records are reappended in their order, behind all present records, and are
/// durable before the old ones are released. So recovery returns each of them at least once, whatever fails in between.
/// User records of `replacing` bytes have replaced others of the released ones.
pub(crate) async fn let_go_but(
    core: &Core,
    upto: UserRecordId,
    replacing: usize,
    needed: impl Fn(&[u8]) -> bool,
) -> Result<bool> {
    // Records appended here get higher numbers.
    let upto = upto.min(core.notes.last());
    let _moving = moving(core);
    let (mut moved, mut bytes) = (false, replacing);
    while let Some((id, last)) = core.notes.oldest_kept().filter(|(_, last)| *last <= upto) {
        let Some(segment) = core.segments.get(id).filter(|segment| segment.sealed) else { break };
        let Some(body) = read_footer(core, &segment).await else { break };
        let notes = body.records.iter().filter_map(|record| match record {
            Record::UserRecord { bytes } if needed(bytes) => Some(bytes),
            _ => None,
        });
        let mut frame = 0;
        for note in notes {
            let Some((seq, _)) = replace_user_records(core, note).await? else { return Ok(moved) };
            (frame, bytes) = (seq, bytes + note.len());
        }
        core.commit(frame).await?;
        release_user_records(core, last);
        // A user record is in a frame and in a footer.
        core.notes.replaced((bytes * 2).div_ceil(core.slots() * BLOCK), 2 * replacing as u64);
        moved = true;
    }
    Ok(moved)
}

/// Appends a user record that replaces older ones, as
/// [`Engine::replace_user_records`](crate::Engine::replace_user_records).
pub(crate) async fn replace_user_records(core: &Core, note: &[u8]) -> Result<Option<(Seq, UserRecordId)>> {
    loop {
        if let Some(noted) = append_note(core, AppendKind::Moved, note)? {
            return Ok(Some(noted));
        }
        if !room_to_move(core, 0).await {
            return Ok(None);
        }
    }
}
