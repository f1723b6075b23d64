//! Notes that are still needed in a log that others want to use: they are written again at its head, segment by segment,
//! so that its tail can move.

use crate::buffer::BLOCK;
use crate::engine::Engine;
use crate::format::Record;
use crate::log::Whose;
use crate::log::user_records::UserRecordId;
use crate::{Result, Seq};

impl Engine {
    /// Lets go of notes up to `upto`, as [`Engine::let_go`], but for those that are `needed`. These are appended anew, in
    /// their order, behind all that were there, and durable before the old ones are let go: recovery hands each back once
    /// or more often, whatever lies between. Returns whether any segment may leave the log now. None may if there is no
    /// room, or a segment's records cannot be read: then all is as before, but that some notes may be in the log twice.
    ///
    /// # Errors
    /// No cache device is left.
    pub async fn let_go_but(&self, upto: UserRecordId, needed: impl Fn(&[u8]) -> bool) -> Result<bool> {
        // What is appended here gets higher numbers.
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
            // A note is in a frame and in a footer.
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
