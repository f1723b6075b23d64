//! A shard: what some threads count before it reaches the common tables.

use std::time::Duration;

use forebay_common::lock::Mutex;

use crate::flow::Flows;
use crate::operation::{FileId, Operation};
use crate::tables::{Sampled, Tables};

/// Operations on files in a second that count one by one.
pub(crate) const EXACT: u32 = 4096;
/// Of further operations in the second, one of this many counts, with this weight.
pub(crate) const SAMPLE: u64 = 16;
/// Operations on files that wait to be merged.
const PENDING: usize = 32;

/// The counts of some threads since the last merge.
pub(crate) struct Shard {
    flows: Flows,
    pending: Vec<Sampled>,
    /// State of the random numbers that choose operations.
    random: u64,
    second: u64,
    /// Operations that still count one by one in this second.
    exact: u32,
}

impl Shard {
    /// Returns a shard without counts. `seed` begins its random numbers.
    pub(crate) fn new(seed: u64) -> Self {
        let pending = Vec::with_capacity(PENDING);
        Shard { flows: Flows::new(), pending, random: seed, second: 0, exact: EXACT }
    }

    /// Counts an operation. `id` is asked only if the operation counts for its file.
    pub(crate) fn count(
        &mut self,
        operation: &Operation,
        sequential: bool,
        at: Duration,
        tables: &Mutex<Tables>,
        id: impl FnOnce() -> FileId,
    ) {
        let flow =
            self.flows.of(&operation.subject, |subject, counters| tables.lock().add(subject, counters));
        let moved = operation.moved.map(|moved| (moved, sequential));
        flow.count(operation.kind, operation.failed, moved, 1);
        if operation.file == 0 {
            return;
        }
        let Some(weight) = self.weight(at) else { return };
        self.pending.push(Sampled { operation: *operation, sequential, id: id(), weight });
        if self.pending.len() >= PENDING {
            let mut tables = tables.lock();
            self.pending.drain(..).for_each(|sampled| tables.add_file(&sampled));
        }
    }

    /// Returns how many operations this one stands for; `None` if others stand for it.
    fn weight(&mut self, at: Duration) -> Option<u64> {
        if self.second != at.as_secs() {
            (self.second, self.exact) = (at.as_secs(), EXACT);
        }
        if self.exact > 0 {
            self.exact -= 1;
            return Some(1);
        }
        // The generator of Knuth's MMIX; its upper bits are random enough.
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 32).is_multiple_of(SAMPLE).then_some(SAMPLE)
    }

    /// Merges everything into the common tables.
    pub(crate) fn merge(&mut self, tables: &mut Tables) {
        self.flows.drain(|subject, counters| tables.add(subject, counters));
        self.pending.drain(..).for_each(|sampled| tables.add_file(&sampled));
    }
}
