//! Who makes room at the log's tail needs some at its head: the last unused segments are for that alone, or nobody could go
//! on once all are in use.

use super::{Log, State};

/// Unused segments of each device that are left to movers: one takes no more than one segment's worth to free one, and two
/// may need room for what is in the same segment.
pub(crate) const RESERVE: usize = 2;

/// For whom something is appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// What was not in the log before.
    New,
    /// What was, or says that something before it is not needed any more: appended while there is a [`Moving`].
    Moved,
}

impl State {
    pub(super) fn takes(&self, whose: Whose) -> bool {
        whose == Whose::Moved || !self.reserved
    }
}

/// Somebody moves something, and may use the reserve.
pub(crate) struct Moving<'a>(&'a Log);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.state.lock().movers -= 1;
    }
}

impl Log {
    /// What is appended from now on, while the result lives, makes room at the tail. Whoever waits for segments has to be
    /// woken.
    pub(crate) fn begin_moving(&self) -> Moving<'_> {
        self.state.lock().movers += 1;
        Moving(self)
    }

    /// How many unused segments of each device the next segment has to leave.
    pub(crate) fn spare(&self) -> usize {
        let state = self.state.lock();
        // A start has nowhere to write what makes room.
        if state.movers > 0 || state.current.is_none() { 0 } else { RESERVE }
    }

    /// Whether what is written now is for movers only.
    pub(crate) fn is_reserved(&self) -> bool {
        self.state.lock().reserved
    }

    /// From now on it is so, or not any more.
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
        let takes = |whose| {
            let appended = log.append_note(whose, b"note", &notes, &segments).unwrap().is_some();
            assert_eq!(log.has_room_for(whose, 0), appended);
            appended
        };
        assert!(takes(Whose::New) && takes(Whose::Moved));
        log.set_reserved(true);
        assert!(!takes(Whose::New) && takes(Whose::Moved));
        log.set_reserved(false);
        assert!(takes(Whose::New));
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
        assert_eq!(log.spare(), RESERVE);
    }
}
