//! The state in which no cache device is left. Data that only the devices have is lost unless they come back, and a
//! read of it is an error. All other requests continue without the devices, past the log.
//!
//! The devices may return at a later start, with copies and records that are older than later changes. The log cannot
//! record that any more, so the backing store does ([`Disowned`]). Blocks are recorded once the backing store has all
//! accepted data of them, and before it has anything newer. For blocks of which the devices may have a dirty copy,
//! lost or overwritten, two records are made: clean copies before, and all copies after. A truncation is recorded
//! before and after it is carried out, as in the log. Recovery believes these records more than anything on the
//! devices, puts them into the log and drops them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::buffer::BLOCK;
use crate::engine::Engine;
use crate::format::Record;
use crate::index::leaf::SegmentId;
use crate::index::object::Object;
use crate::io::{BackingError, Disowned, Key, Time};
use crate::log::Whose;
use crate::recover::OpenError;
use crate::request::bypass::around;
use crate::{Error, Result};

/// All blocks of an object.
const ALL: Range<u64> = 0..u64::MAX;
/// Stands for the segment of a truncation whose record is with the backing store.
const NOTED: SegmentId = SegmentId::MAX;

impl Engine {
    /// Records that the devices' copies of `range` do not count. Without dirty blocks the record covers the whole
    /// object, which is then unknown to the devices.
    pub(crate) async fn disown(&self, object: &Object, range: Range<u64>) -> Result<()> {
        let range = {
            let state = object.lock();
            // No block can become dirty any more.
            let settled = state.dirty == 0 && state.truncating.is_none();
            let range = if settled { ALL } else { range };
            if state.disowned.covers(&range) {
                return Ok(());
            }
            range
        };
        self.disown_blocks(object, range).await
    }

    async fn disown_blocks(&self, object: &Object, range: Range<u64>) -> Result<()> {
        let what = Disowned::Blocks(range.clone());
        self.env.backing.disown(self.pool_id, &object.key, what).await?;
        let mut state = object.lock();
        if range == ALL {
            (state.logged, state.mtime) = (false, None);
        }
        state.disowned.add(range);
        Ok(())
    }

    /// Records, if no device is left, that clean copies of blocks do not count. The blocks are about to be
    /// overwritten, and are in order.
    pub(crate) async fn disown_copies(&self, object: &Object, blocks: &[u64]) -> Result<()> {
        let (Some(first), Some(last), 0) = (blocks.first(), blocks.last(), self.active()) else {
            return Ok(());
        };
        let what = Disowned::Copies(*first..last + 1);
        Ok(self.env.backing.disown(self.pool_id, &object.key, what).await?)
    }

    /// Begins a truncation to `size` bytes that the log does not take.
    ///
    /// # Errors
    /// Nothing was done. The remaining part of the block at the new end is lost, or not destaged yet.
    pub(crate) async fn begin_unlogged_cut(&self, object: &Object, size: u64, mtime: Time) -> Result<()> {
        let through = size / BLOCK as u64..size.div_ceil(BLOCK as u64);
        {
            let mut state = object.lock();
            if state.is_damaged(&through) {
                return Err(Error::Damaged);
            }
            if !state.dirty_in(through.clone(), 1).is_empty() {
                return Err(Error::NoDevice);
            }
            state.truncating = Some(NOTED);
        }
        self.note_cut(object, size, mtime).await?;
        let mut state = object.lock();
        (state.size, state.mtime) = (size, Some(mtime));
        self.forget_range(&mut state, through.start..u64::MAX);
        Ok(())
    }

    /// Records that an object is being truncated, and tries until that succeeds: a failed record may be found as
    /// well.
    pub(crate) async fn note_cut(&self, object: &Object, size: u64, mtime: Time) -> Result<()> {
        let noted = || self.env.backing.disown(self.pool_id, &object.key, Disowned::Cut { size, mtime });
        while let Err(error) = noted().await {
            self.backing_failed(&object.volume, error);
            if self.closing() {
                return Err(Error::Closing);
            }
            self.env.clock.sleep(Duration::from_secs(1)).await;
        }
        Ok(())
    }

    /// Records that the truncation in progress is carried out. `saved` says that the backing store has the block at
    /// the new end.
    pub(crate) async fn note_carried_out(&self, object: &Object, saved: bool) -> Result<()> {
        let range = {
            let mut state = object.lock();
            let through = state.size / BLOCK as u64..state.size.div_ceil(BLOCK as u64);
            let from = if saved { through.start } else { through.end };
            self.forget_range(&mut state, from..u64::MAX);
            if state.dirty == 0 { ALL } else { from..u64::MAX }
        };
        self.disown_blocks(object, range).await
    }

    /// Drops accepted data of an object that is not durable, and never will be: it is not read and not destaged. The
    /// contents that it replaced are lost as well.
    pub(crate) fn give_up_undurable(&self, object: &Arc<Object>) {
        let mut state = object.lock();
        let durable = self.log.durable();
        // The task that truncates the object handles the block at the new end first.
        if self.log.broken().is_none() || state.last_frame <= durable || state.truncating.is_some() {
            return;
        }
        state.last_frame = durable;
        for (block, entry) in state.dirty_in(ALL, usize::MAX) {
            if self.segments.get(entry.segment).is_some_and(|segment| entry.slot >= segment.durable) {
                self.ram.removed(usize::from(state.remove_page(block)));
                self.found_damaged(object, &mut state, block);
            }
        }
        drop(state);
        object.changed.wake();
    }

    /// Applies, at a start, the records made while the devices were missing: they count more than the devices'
    /// contents. Returns the records.
    pub(crate) async fn recall_disowned(&self) -> std::result::Result<Vec<(Key, Disowned)>, OpenError> {
        let noted = self.env.backing.disowned(self.pool_id).await.map_err(OpenError::Backing)?;
        let noted: Vec<_> = noted.into_iter().flat_map(|(key, what)| self.without_dirty(key, what)).collect();
        for (key, what) in &noted {
            let Disowned::Blocks(range) = what else { continue };
            let object = self.objects.get(key, &self.segments);
            let mut state = object.lock();
            self.forget_range(&mut state, range.clone());
            if *range == ALL {
                state.mtime = None;
            }
            if range.end == u64::MAX {
                // The backing store knows the object's size. Dirty blocks lie below the end of the range.
                state.size = 0;
                if let Some(segment) = state.truncating.take() {
                    self.segments.release(segment);
                }
            }
        }
        Ok(noted)
    }

    /// Restricts a record about clean copies to blocks that are not dirty: a dirty copy is newer.
    fn without_dirty(&self, key: Key, what: Disowned) -> Vec<(Key, Disowned)> {
        let Disowned::Copies(range) = what else { return vec![(key, what)] };
        let dirty = self.objects.get(&key, &self.segments).lock().dirty_in(range.clone(), usize::MAX);
        let dirty: Vec<u64> = dirty.into_iter().map(|(block, _)| block).collect();
        around(&range, &dirty).map(|part| (key.clone(), Disowned::Blocks(part))).collect()
    }

    /// Puts the records into the log, carries out the truncations that were begun, and drops the records.
    pub(crate) async fn log_disowned(&self, noted: Vec<(Key, Disowned)>) -> Result<()> {
        if noted.is_empty() {
            return Ok(());
        }
        let mut cuts = BTreeMap::new();
        for (key, what) in noted {
            match what {
                Disowned::Cut { size, mtime } => {
                    cuts.insert(key, (size, mtime));
                }
                // Records about clean copies were handled when they were recalled.
                Disowned::Copies(_) => {}
                Disowned::Blocks(range) => {
                    let object = self.objects.get(&key, &self.segments);
                    let cut = range.end == u64::MAX;
                    self.invalidate(&object, range).await?;
                    if cut {
                        let truncated =
                            Some::<fn(u16, u64, u64) -> Record>(|object, _, _| Record::Truncated { object });
                        self.append(Whose::New, &object, truncated).await?;
                        cuts.remove(&key);
                    }
                }
            }
        }
        for (key, (size, mtime)) in cuts {
            self.cut_again(&key, size, mtime).await?;
        }
        self.commit(self.last()).await?;
        Ok(self.env.backing.forget_disowned(self.pool_id).await?)
    }

    /// Carries out a recorded truncation that perhaps was not carried out, or only in the backing store.
    async fn cut_again(&self, key: &Key, size: u64, mtime: Time) -> Result<()> {
        let there = match self.env.backing.size(key).await {
            Err(BackingError::Gone) => return Ok(()),
            there => there?,
        };
        let object = self.object(key, there);
        let through = size / BLOCK as u64..size.div_ceil(BLOCK as u64);
        let from = {
            let mut state = object.lock();
            // If only the devices have the block at the new end, the log gets its remaining part.
            let dirty = !state.dirty_in(through.clone(), 1).is_empty();
            let from = if dirty { through.end } else { through.start };
            self.forget_range(&mut state, from..u64::MAX);
            from
        };
        self.invalidate(&object, from..u64::MAX).await?;
        self.truncate(&object, size, mtime).await
    }
}
