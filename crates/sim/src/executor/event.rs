//! Events: the ends of operations in flight, in the order of virtual time.

use std::time::Duration;

/// The effect of an event.
pub(super) type Action = Box<dyn FnOnce() + Send>;

/// An operation in flight that ends at `time`.
pub(super) struct Event {
    pub(super) time: Duration,
    /// Orders events with equal times; drawn from the seed.
    pub(super) order: u64,
    pub(super) action: Action,
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        (self.time, self.order) == (other.time, other.order)
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.time, self.order).cmp(&(other.time, other.order))
    }
}
