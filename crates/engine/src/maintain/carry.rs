//! User records that are still needed are reappended at the log head, segment by segment, so that the log tail can
//! move.

use crate::buffer::BLOCK;
use crate::engine::Engine;
use crate::format::Record;
use crate::log::Whose;
use crate::log::user_records::UserRecordId;
use crate::{Result, Seq};

impl Engine {
    /// Releases user records up to `upto`, as [`Engine::let_go`], except those that are `needed`. The needed records
    /// are reappended in their order, behind all present records, and are durable before the old ones are released.
    /// So recovery returns each of them at least once, whatever fails in between.
    ///
    /// Returns true if any segment may leave the log now. Returns false without room, or if a segment's records
    /// cannot be read. Then nothing has changed, except that some records may be in the log twice.
    ///
    /// # Errors
    /// No cache device is left.
    pub async fn let_go_but(&self, upto: UserRecordId, needed: impl Fn(&[u8]) -> bool) -> Result<bool> {
        // Records appended here get higher numbers.
        let upto = upto.min(self.notes.last());
        let _moving = self.moving();
        let (mut moved, mut bytes) = (false, 0);
        while let Some((id, last)) = self.notes.oldest_kept().filter(|(_, last)| *last <= upto) {
            let Some(segment) = self.segments.get(id).filter(|segment| segment.sealed) else { break };
            let Some(body) = self.read_footer(&segment).await else { break };
            let notes = body.records.iter().filter_map(|record| match record {
                Record::UserRecord { bytes } if needed(bytes) => Some(bytes),
                _ => None,
            });
            let mut frame = 0;
            for note in notes {
                let Some(seq) = self.note_again(note).await? else { return Ok(moved) };
                (frame, bytes) = (seq, bytes + note.len());
            }
            self.commit(frame).await?;
            self.let_go(last);
            // A user record is in a frame and in a footer.
            self.notes.carried((bytes * 2).div_ceil(self.slots() * BLOCK));
            moved = true;
        }
        Ok(moved)
    }

    async fn note_again(&self, note: &[u8]) -> Result<Option<Seq>> {
        loop {
            if let Some((seq, _)) = self.append_note(Whose::Moved, note)? {
                return Ok(Some(seq));
            }
            if !self.room_to_move(0).await {
                return Ok(None);
            }
        }
    }
}
