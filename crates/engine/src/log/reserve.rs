//! The reserve of the log. A task that makes room at the log tail needs some room at the log head. So the last unused
//! segments are for such tasks alone. Otherwise no task could continue once all segments are in use.

use super::{Log, State};
use crate::planted_bugs;

/// Unused segments of each device that are left to movers. One mover takes at most one segment's worth of room to
/// free a segment. Two movers may need room for the data of one segment.
pub(crate) const LOG_RESERVE: usize = 2;

/// The kind of data that is appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AppendKind {
    /// Data that was not in the log before.
    New,
    /// Data that was in the log before, or a record that earlier data is not needed any more. It is appended while a
    /// [`Moving`] exists.
    Moved,
}

impl State {
    pub(super) fn takes(&self, kind: AppendKind) -> bool {
        kind == AppendKind::Moved || !self.reserved
    }
}

/// A mark that a task moves data within the log, and may use the reserve.
pub(crate) struct Moving<'a>(&'a Log);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.state.lock().movers -= 1;
    }
}

impl Log {
    /// Marks appends as making room at the log tail, while the result lives. The caller must wake the tasks that wait
    /// for segments.
    pub(crate) fn begin_moving(&self) -> Moving<'_> {
        self.state.lock().movers += 1;
        Moving(self)
    }

    /// Returns the number of unused segments of each device that the next segment must leave.
    pub(crate) fn spare(&self) -> usize {
        let state = self.state.lock();
        // During a start there is no other place to write the records that make room.
        let open = state.movers > 0 || state.current.is_none();
        if open || planted_bugs::active("writers take the reserve of the log") { 0 } else { LOG_RESERVE }
    }

    /// Returns true if only movers may append to the current segment.
    pub(crate) fn is_reserved(&self) -> bool {
        self.state.lock().reserved
    }

    /// Sets whether only movers may append to the current segment.
    pub(crate) fn set_reserved(&self, reserved: bool) {
        if std::mem::replace(&mut self.state.lock().reserved, reserved) && !reserved {
            self.changed.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::SegmentKind;
    use crate::log::user_records::UserRecords;
    use crate::segments::Segments;

    #[test]
    fn what_is_written_into_the_reserve_is_for_movers_only() {
        let segments = Segments::new(1, vec![vec![0], vec![0]], vec![1, 1]);
        let (log, notes) = (Log::new(1, 1, 256, 1), UserRecords::default());
        assert_eq!(log.spare(), 0, "the first segment of all");
        log.continue_in(segments.open(SegmentKind::Log, 2, 0).unwrap());
        let takes = |kind| {
            let appended = log.append_note(kind, b"note", &notes, &segments).unwrap().is_some();
            assert_eq!(log.has_room_for(kind, 0), appended);
            appended
        };
        assert!(takes(AppendKind::New) && takes(AppendKind::Moved));
        log.set_reserved(true);
        assert!(!takes(AppendKind::New) && takes(AppendKind::Moved));
        log.set_reserved(false);
        assert!(takes(AppendKind::New));
    }

    #[test]
    fn the_reserve_is_open_while_anybody_moves_something() {
        let segments = Segments::new(1, vec![vec![0], vec![0]], vec![1, 1]);
        let log = Log::new(1, 1, 256, 1);
        log.continue_in(segments.open(SegmentKind::Log, 2, 0).unwrap());
        let (first, second) = (log.begin_moving(), log.begin_moving());
        drop(first);
        assert_eq!(log.spare(), 0);
        drop(second);
        assert_eq!(log.spare(), LOG_RESERVE);
    }
}
