//! Flows: the counters of a subject in one shard, until they are merged into the common tables.

use crate::counters::Counters;
use crate::operation::Subject;

/// Flows of a shard.
const FLOWS: usize = 256;
/// The places where a flow may be.
const WAYS: usize = 4;

/// The flows of a shard.
pub(crate) struct Flows {
    places: Vec<Flow>,
    /// The way that the next new flow of a full set takes.
    turn: usize,
}

#[derive(Default)]
struct Flow {
    subject: Subject,
    counters: Counters,
}

impl Flows {
    pub(crate) fn new() -> Self {
        Flows { places: (0..FLOWS).map(|_| Flow::default()).collect(), turn: 0 }
    }

    /// Returns the counters of a subject. If another flow has to make room, `merge` takes its counters.
    pub(crate) fn of(&mut self, subject: &Subject, merge: impl FnOnce(&Subject, &Counters)) -> &mut Counters {
        let set = subject.tag() as usize % (FLOWS / WAYS) * WAYS;
        let ways = &self.places[set..set + WAYS];
        let found = ways.iter().position(|flow| flow.subject == *subject);
        let way = found.or_else(|| ways.iter().position(|flow| flow.counters.is_empty()));
        let way = way.unwrap_or_else(|| {
            self.turn = self.turn.wrapping_add(1);
            self.turn % WAYS
        });
        let flow = &mut self.places[set + way];
        if found.is_none() {
            if !flow.counters.is_empty() {
                merge(&flow.subject, &flow.counters);
                flow.counters = Counters::default();
            }
            flow.subject = *subject;
        }
        &mut flow.counters
    }

    /// Gives all counters to `merge`, and begins at 0.
    pub(crate) fn drain(&mut self, mut merge: impl FnMut(&Subject, &Counters)) {
        for flow in self.places.iter_mut().filter(|flow| !flow.counters.is_empty()) {
            merge(&flow.subject, &flow.counters);
            flow.counters = Counters::default();
        }
    }
}
