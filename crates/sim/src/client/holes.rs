//! Holes, reserved space and clones, as `vfs/src/ops/holes.rs` and `vfs/src/ops/copy.rs` make them: past the log, and
//! durable before the reply.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::buffer::BLOCK;
use forebay_engine::io::{BackingError, BackingResult, Clock as _, Time};
use forebay_engine::{CachedObject, Error};

use super::Client;
use crate::backing::{CloneRange, UNFIT};
use crate::front::{Bypass, change_direct};
use crate::hits::Fault;
use crate::model::Cloning;
use crate::planted_bugs::active;
use crate::workload::Kind;

/// A change past the log that a client requests.
struct Change<'a> {
    id: u32,
    number: u8,
    object: &'a Arc<CachedObject>,
    /// The bytes whose cached blocks do not count any more.
    dropped: Range<u64>,
    /// The bytes to sync.
    synced: Range<u64>,
    end: u64,
    /// False with a planted bug: the reply does not wait for the sync.
    syncs: bool,
}

impl Client {
    /// Makes a hole in a range that the client's habits choose, and rarely in the whole object.
    pub(super) async fn punch_somewhere(&mut self) {
        let Some(number) = self.any() else { return };
        let size = self.shared.model.lock().size(number);
        let kind = self.rng.pick(&[Kind::WriteBytes, Kind::WriteBlocks, Kind::WriteBlocks]);
        let range = self.shared.habits.clone().range(&mut self.rng, kind, size);
        let range = if self.rng.chance(500) { 0..size } else { range };
        self.punch(number, range).await;
    }

    /// Makes a hole in the part of a range that lies within an object.
    pub async fn punch(&mut self, number: u8, range: Range<u64>) {
        let Some(object) = self.object(number) else { return };
        let range = range.start..range.end.min(self.size_of(&object));
        if range.is_empty() || !self.may_change(number, &range).await || !self.share(number) {
            return;
        }
        let now = self.now();
        let id = self.shared.model.lock().begin_hole(number, range.clone(), now);
        self.shared.tell(|| format!("hole {id} in {number} at {range:?}"));
        self.note_dirty(&object, Fault::HoleOverDirty);
        let punching = async { self.shared.store.punch(object.key(), range.clone(), now).await };
        let mut change = self.change(id, number, &object, &range);
        if active("a hole does not wait for dirty blocks") {
            change.dropped = 0..0;
        } else if active("a hole leaves copies in the cache") {
            let _ = self.engine.destage_object(&object).await;
            change.dropped = 0..0;
        }
        change.syncs = !active("a hole is not synced");
        match self.carry_out(change, now, punching).await {
            Ok(()) => self.shared.hits.hit(Fault::Hole),
            Err(error) => self.check("a hole", number, error),
        }
    }

    /// Reserves space, mostly behind the end of an object.
    pub(super) async fn allocate_somewhere(&mut self) {
        let Some(number) = self.any() else { return };
        let Some(object) = self.object(number) else { return };
        let size = self.size_of(&object);
        let habits = self.shared.habits.clone();
        let mut range = habits.range(&mut self.rng, Kind::WriteBytes, size);
        if self.rng.chance(5000) && size < habits.extent {
            range.end = self.rng.within(size + 1, size + habits.longest).max(range.start + 1);
        }
        self.allocate(number, range).await;
    }

    /// Reserves space for a range. The object grows if the range ends behind its end.
    pub async fn allocate(&mut self, number: u8, range: Range<u64>) {
        let Some(object) = self.object(number) else { return };
        if !self.may_change(number, &range).await || !self.share(number) {
            return;
        }
        let size = self.size_of(&object);
        let now = self.now();
        let id = self.shared.model.lock().begin_allocate(number, range.clone(), now);
        self.shared.tell(|| format!("allocate {id} in {number} at {range:?}, size {size}"));
        // Cached blocks within the object stay.
        let grown = size.next_multiple_of(BLOCK as u64)..range.end;
        let reserving = async { self.shared.store.reserve(object.key(), range.clone(), now).await };
        let mut change = self.change(id, number, &object, &range);
        change.dropped = if grown.is_empty() { 0..0 } else { grown };
        change.end = if range.end > size { range.end } else { 0 };
        change.syncs = !active("reserved space is not synced");
        let behind = range.end > size;
        match self.carry_out(change, now, reserving).await {
            Ok(()) if behind => self.shared.hits.hit(Fault::AllocatedBehind),
            Ok(()) => self.shared.hits.hit(Fault::Allocated),
            Err(error) => self.check("an allocation", number, error),
        }
    }

    /// Clones whole blocks, or everything to the end of an object.
    pub(super) async fn clone_somewhere(&mut self) {
        let (Some(from), Some(to)) = (self.any(), self.any()) else { return };
        let (Some(source), Some(target)) = (self.object(from), self.object(to)) else { return };
        let (there, own) = (self.size_of(&source), self.size_of(&target));
        let (block, habits) = (BLOCK as u64, self.shared.habits.clone());
        let at = habits.range(&mut self.rng, Kind::WriteBlocks, there);
        let offset = self.rng.below(habits.extent) / block * block;
        let mut len = at.end.min(there / block * block).saturating_sub(at.start);
        if self.rng.chance(3000) && at.start < there {
            len = there - at.start;
        }
        let end = offset + len;
        let whole = len.is_multiple_of(block) || end >= own;
        let overlap = from == to && at.start.abs_diff(offset) < len;
        if len > 0 && len <= 4 << 20 && whole && !overlap {
            self.clone_range((from, at.start), (to, offset), len).await;
        }
    }

    /// Clones bytes of an object. Writes to the source wait until its dirty blocks are destaged.
    pub async fn clone_range(&mut self, (from, at): (u8, u64), (to, offset): (u8, u64), len: u64) {
        let (Some(source), Some(target)) = (self.object(from), self.object(to)) else { return };
        let range = offset..offset + len;
        if !self.may_change(from, &(at..at + len)).await || !self.may_change(to, &range).await {
            return;
        }
        let now = self.now();
        let cloning = Arc::new(self.shared.model.lock().begin_clone((from, at), (to, offset), len, now));
        let id = cloning.id;
        self.shared.tell(|| format!("clone {id} of {from} at {at}+{len} to {to} at {offset}"));
        if let Err(error) = self.destage_source(from, &source).await {
            self.shared.model.lock().failed(id);
            self.shared.model.lock().end_clone(&cloning);
            return self.check("a clone", from, error);
        }
        if !self.until_shared(to).await {
            self.shared.model.lock().end_clone(&cloning);
            return self.shared.model.lock().failed(id);
        }
        self.note_dirty(&target, Fault::CloneOverDirty);
        let (source, key) = (source.key().clone(), target.key().clone());
        let bytes = CloneRange { source, from: at, target: key, offset, len };
        let sharing = self.share_blocks(bytes, &cloning, now);
        let mut change = self.change(id, to, &target, &range);
        change.end = range.end;
        if active("a clone leaves copies in the cache") {
            let _ = self.engine.destage_object(&target).await;
            change.dropped = 0..0;
        }
        change.syncs = !active("a clone is not synced");
        let result = self.carry_out(change, now, sharing).await;
        self.shared.model.lock().end_clone(&cloning);
        let hits = &self.shared.hits;
        match result {
            Ok(()) => hits.hit(if from == to { Fault::ClonedWithin } else { Fault::Cloned }),
            // The source became shorter, or the target longer.
            Err(Error::Backing(UNFIT)) => hits.hit(Fault::CloneRefused),
            Err(error) if self.object(to).is_some() => self.check("a clone", from, error),
            Err(_) => {}
        }
        if result.is_ok() && !len.is_multiple_of(BLOCK as u64) {
            hits.hit(Fault::CloneOfEnd);
        }
    }
}

impl Client {
    /// Returns true if the model can follow one more change of these bytes. Commits earlier changes if not.
    async fn may_change(&mut self, number: u8, range: &Range<u64>) -> bool {
        let (open, running) = self.shared.model.lock().load(number, range);
        if running < self.shared.habits.at_once && open + 4 > crate::register::OPERATIONS {
            self.commit(number).await;
            return false;
        }
        running < self.shared.habits.at_once
    }

    fn share(&self, number: u8) -> bool {
        self.shared.objects.lock().share(number)
    }

    /// Waits until no task holds the object exclusively. Returns false if it is removed.
    async fn until_shared(&self, number: u8) -> bool {
        while !self.share(number) {
            if self.shared.objects.lock().key(number).is_none() {
                return false;
            }
            self.shared.executor.sleep(Duration::from_millis(1)).await;
        }
        true
    }

    fn note_dirty(&self, object: &CachedObject, fault: Fault) {
        if object.dirty_blocks() > 0 {
            self.shared.hits.hit(fault);
        }
    }

    /// Destages the source of a clone. Writes to it wait meanwhile.
    async fn destage_source(&self, number: u8, source: &Arc<CachedObject>) -> Result<(), Error> {
        if active("a clone leaves out dirty blocks") {
            return Ok(());
        }
        while !self.shared.objects.lock().claim(number) {
            if self.shared.objects.lock().key(number).is_none() {
                return Err(Error::Backing(BackingError::Gone));
            }
            self.shared.executor.sleep(Duration::from_millis(1)).await;
        }
        self.note_dirty(source, Fault::CloneOfDirty);
        let destaged = self.engine.destage_object(source).await;
        self.shared.objects.lock().release(number);
        destaged
    }

    /// Shares blocks. The model learns of their contents at the moment at which the target has them.
    async fn share_blocks(&self, bytes: CloneRange, cloning: &Arc<Cloning>, now: Time) -> BackingResult<()> {
        let (shared, cloning) = (self.shared.clone(), cloning.clone());
        let taken = move |bytes: &[u8]| {
            let known = shared.model.lock().cloned(&cloning, bytes);
            if let Err(error) = known {
                shared.fail(error);
            }
        };
        self.shared.store.share(bytes, now, taken).await
    }

    fn change<'a>(
        &self,
        id: u32,
        number: u8,
        object: &'a Arc<CachedObject>,
        range: &Range<u64>,
    ) -> Change<'a> {
        let (dropped, synced) = (range.clone(), range.clone());
        Change { id, number, object, dropped, synced, end: 0, syncs: true }
    }

    /// Carries out a change past the log, and waits until it is durable. Its object is shared at the call, and not at
    /// the return.
    async fn carry_out(
        &self,
        change: Change<'_>,
        now: Time,
        changing: impl Future<Output = BackingResult<()>>,
    ) -> Result<(), Error> {
        let Change { id, number, object, dropped, synced, end, syncs } = change;
        let failures = self.shared.store.failures(object.key());
        let bypass = Bypass { object, range: dropped, contents: &[], end, now };
        let changed = change_direct(&self.engine, &self.shared.store, bypass, changing).await;
        self.shared.objects.lock().release(number);
        let result = match changed {
            Ok(frame) if syncs => {
                match self.sync(object, synced.start, synced.end - synced.start, failures).await {
                    Ok(()) => self.frame(frame).await,
                    failed => failed,
                }
            }
            changed => changed.map(drop),
        };
        self.shared.tell(|| format!("change {id} done: {result:?}"));
        match result {
            Ok(()) => self.shared.model.lock().durable_by(id, self.engine.last()),
            Err(_) => self.shared.model.lock().failed(id),
        }
        result
    }
}
