//! A trace: every operation in its order, while somebody records it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_common::lock::Mutex;

use crate::kind::Kind;
use crate::operation::{Moved, Operation};

/// Operations that wait to be taken. Further ones are lost, and counted.
const MOST: usize = 1 << 17;

/// An operation in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The time since the profile began.
    pub at: Duration,
    /// The address of the client.
    pub client: IpAddr,
    /// The kind.
    pub kind: Kind,
    /// True if it failed.
    pub failed: bool,
    /// The key of the file; 0 if there is none.
    pub file: u64,
    /// The range of a READ or WRITE that succeeded.
    pub moved: Option<Moved>,
}

/// The operations of a trace that were not taken yet.
#[derive(Default)]
pub(crate) struct Trace {
    is_on: AtomicBool,
    waiting: Mutex<Vec<Traced>>,
    lost: AtomicU64,
}

/// A trace that is being recorded. It ends when this value is dropped.
pub struct Recording<'a>(&'a Trace);

impl Trace {
    /// Begins a trace; none if one is being recorded.
    pub(crate) fn begin(&self) -> Option<Recording<'_>> {
        let is_free = self.is_on.compare_exchange(false, true, Relaxed, Relaxed).is_ok();
        is_free.then(|| Recording(self))
    }

    /// Adds an operation, if a trace is being recorded.
    pub(crate) fn add(&self, operation: &Operation, at: Duration) {
        if !self.is_on.load(Relaxed) {
            return;
        }
        let Operation { subject, kind, failed, file, moved } = *operation;
        let client = subject.client();
        let mut waiting = self.waiting.lock();
        if waiting.len() >= MOST {
            self.lost.fetch_add(1, Relaxed);
            return;
        }
        waiting.push(Traced { at, client, kind, failed, file, moved: moved.filter(|_| !failed) });
    }
}

impl Recording<'_> {
    /// Returns the operations since the last call in the order in which they ended, and the number of those that were
    /// lost meanwhile: more than 131,072 had waited.
    pub fn take(&self) -> (Vec<Traced>, u64) {
        let taken = std::mem::take(&mut *self.0.waiting.lock());
        (taken, self.0.lost.swap(0, Relaxed))
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.0.is_on.store(false, Relaxed);
        self.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::Subject;

    #[test]
    fn one_trace_at_a_time_has_every_operation_and_counts_the_lost_ones() {
        let trace = Trace::default();
        let subject = Subject::new("10.0.0.1".parse().unwrap(), 1, 2);
        let moved = Some(Moved { offset: 1, len: 2, stable: true });
        let operation = Operation { subject, kind: Kind::Write, failed: false, file: 7, moved };
        trace.add(&operation, Duration::ZERO);
        let recording = trace.begin().unwrap();
        assert!(trace.begin().is_none());
        trace.add(&operation, Duration::from_millis(1));
        trace.add(&Operation { failed: true, ..operation }, Duration::from_millis(2));
        let (taken, lost) = recording.take();
        assert_eq!((taken.len(), lost), (2, 0), "nothing of before the trace");
        assert_eq!((taken[0].client, taken[0].moved), (subject.client(), moved));
        assert_eq!(taken[1].moved, None);
        (0..MOST + 5).for_each(|_| trace.add(&operation, Duration::ZERO));
        let (taken, lost) = recording.take();
        assert_eq!((taken.len(), lost), (MOST, 5));
        drop(recording);
        trace.add(&operation, Duration::ZERO);
        assert_eq!(trace.begin().unwrap().take().0, []);
    }
}
