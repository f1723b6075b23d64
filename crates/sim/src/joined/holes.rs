//! Clients that make holes and clone. Both go past the log, and are durable before the answer.

use std::ops::Range;
use std::sync::Arc;

use forebay_engine::buffer::BLOCK;
use forebay_engine::io::Time;
use forebay_engine::{Error, Seq};
use forebay_oplog::Identity;

use super::client::{Client, Habits};
use crate::backing::UNFIT;
use crate::front::durable;
use crate::hits::Fault;
use crate::register::OPERATIONS;

impl Client {
    /// Makes a hole, or clones whole blocks, in files that chance chooses.
    pub(super) async fn punch_or_clone(&mut self) {
        let Habits { extent, longest, .. } = self.habits;
        let (file, at) = (self.any().await, self.rng.below(extent));
        let len = self.rng.within(1, longest.min(64 << 10));
        let Some((file, number)) = file else { return };
        if self.rng.chance(5000) {
            return self.punch(file, number, at..at + len).await;
        }
        let block = BLOCK as u64;
        let offset = self.rng.below(extent) / block * block;
        let first = at / block * block;
        let Some(target) = self.any().await else { return };
        let size = self.shared.model.lock().size(number);
        let end = (first + len.next_multiple_of(block)).min(size / block * block);
        if end > first && (target.0 != file || first.abs_diff(offset) >= end - first) {
            self.clone_blocks((file, number), first..end, target, offset).await;
        }
    }

    /// Returns true if the model can follow one more change of these bytes. Commits earlier changes if not.
    async fn may_change(&self, file: Identity, number: u8, range: &Range<u64>) -> bool {
        let (open, running) = self.shared.model.lock().load(number, range);
        if running < 3 && open + 4 > OPERATIONS {
            self.commit(file, number).await;
            return false;
        }
        running < 3
    }

    /// Makes a hole in the part of a range that lies within a file.
    async fn punch(&self, file: Identity, number: u8, range: Range<u64>) {
        let Some(object) = self.harness.object(file) else { return };
        let range = range.start..range.end.min(object.size());
        if range.is_empty() || !self.may_change(file, number, &range).await {
            return;
        }
        let id = self.shared.model.lock().begin_hole(number, range.clone(), Time::default());
        self.shared.tell(|| format!("hole {id} in {file:?} ({number}) at {range:?}"));
        let punched = self.harness.punch(file, range).await;
        self.end(id, file, punched, Fault::JoinedHole).await;
    }

    /// Clones blocks.
    async fn clone_blocks(
        &self,
        (file, number): (Identity, u8),
        range: Range<u64>,
        (target, to): (Identity, u8),
        offset: u64,
    ) {
        let len = range.end - range.start;
        if !self.may_change(file, number, &range).await
            || !self.may_change(target, to, &(offset..offset + len)).await
        {
            return;
        }
        let from = (number, range.start);
        let cloning = self.shared.model.lock().begin_clone(from, (to, offset), len, Time::default());
        let (cloning, shared) = (Arc::new(cloning), self.shared.clone());
        let id = cloning.id;
        self.shared.tell(|| format!("clone {id} of {file:?} ({number}) at {range:?} to {to} at {offset}"));
        let took = cloning.clone();
        let taken = move |bytes: &[u8]| {
            let known = shared.model.lock().cloned(&took, bytes);
            if let Err(error) = known {
                shared.fail(error);
            }
        };
        let cloned = self.harness.clone_range((file, range), (target, offset), taken).await;
        self.end(id, target, cloned, Fault::JoinedClone).await;
        self.shared.model.lock().end_clone(&cloning);
    }

    /// Waits until the change is durable, and tells the model.
    async fn end(&self, id: u32, file: Identity, changed: Result<Seq, Error>, kind: Fault) {
        let result = match changed {
            Ok(frame) => durable(&self.harness.engine, frame).await,
            Err(error) => Err(error),
        };
        self.shared.tell(|| format!("change {id} done: {result:?}"));
        match result {
            Ok(()) => {
                self.shared.model.lock().durable(id);
                self.shared.hits.hit(kind);
            }
            Err(error) => {
                self.shared.model.lock().failed(id);
                // The source of a clone may be cut off, or removed, meanwhile.
                if error != Error::Backing(UNFIT) && kind == Fault::JoinedHole {
                    self.check("a hole", file, error);
                }
            }
        }
    }
}
