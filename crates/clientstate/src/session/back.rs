//! The slots of call-backs. The server is the requester here, and has one call-back in a slot.

use super::Session;
use crate::record::Record;
use crate::{Durability, Effects};

/// A slot of the back channel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BackSlot {
    /// The number of the last call-back.
    pub(super) sequence: u32,
    is_running: bool,
}

/// The end of a call-back, for its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallbackEnd {
    /// CB_SEQUENCE succeeded: the slot has moved.
    Moved,
    /// CB_SEQUENCE failed, or nothing was sent: the slot has not moved.
    NotMoved,
    /// CB_SEQUENCE failed with `NFS4ERR_SEQ_MISORDERED`. Records of the last call-backs before a crash may be lost, so
    /// the next attempt has the next number.
    Misordered,
    /// The connection broke: the client may have seen the call-back. The same call-back is sent again with its number.
    Unknown,
}

impl Session {
    /// Takes a slot for a call-back. Returns the slot and the sequence number, or `None` if all slots are in use. The
    /// record lets a restarted server continue with the numbers; call-backs do not wait for it.
    pub fn begin_callback(&self, fx: &mut Effects) -> Option<(u32, u32)> {
        let mut state = self.state.lock();
        let max = self.back.slots as usize;
        let free = state.back.iter().position(|slot| !slot.is_running);
        let index = free.or_else(|| (state.back.len() < max).then_some(state.back.len()))?;
        if index == state.back.len() {
            state.back.push(BackSlot::default());
        }
        let slot = &mut state.back[index];
        (slot.sequence, slot.is_running) = (slot.sequence.wrapping_add(1), true);
        let (index, sequence) = (index as u32, slot.sequence);
        fx.log(Durability::Loose, Record::Callback(self.id, index, sequence));
        Some((index, sequence))
    }

    /// Gives the slot of a call-back back. After `Unknown` the slot stays in use, and the caller sends again.
    pub fn end_callback(&self, slot: u32, end: CallbackEnd) {
        let mut state = self.state.lock();
        let Some(slot) = state.back.get_mut(slot as usize) else { return };
        match end {
            CallbackEnd::Unknown => return,
            CallbackEnd::NotMoved => slot.sequence = slot.sequence.wrapping_sub(1),
            CallbackEnd::Moved | CallbackEnd::Misordered => {}
        }
        slot.is_running = false;
    }

    /// Continues a slot for call-backs with the number from the log, unless the slot has a later one. Ignores a slot
    /// beyond the channel's.
    pub(crate) fn recover_callback(&self, index: u32, sequence: u32) {
        let mut state = self.state.lock();
        if index >= self.back.slots {
            return;
        }
        if state.back.len() <= index as usize {
            state.back.resize(index as usize + 1, BackSlot::default());
        }
        let slot = &mut state.back[index as usize];
        if sequence.wrapping_sub(slot.sequence) as i32 > 0 {
            slot.sequence = sequence;
        }
    }
}
