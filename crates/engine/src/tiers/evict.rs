//! Eviction of whole segments, strictly oldest first. Blocks that were read since they were written are written
//! again. If most of the room is taken by dead blocks, all live blocks are written again. Then eviction begins early,
//! so that there is time for it.

use forebay_common::lock::atomic::Ordering;
use std::sync::Arc;

use crate::buffer::BLOCK;
use crate::engine::Engine;
use crate::format::{Body, Footer, Place, SegmentId as SegmentName, footer};
use crate::index::leaf::{Page, SegmentId};
use crate::index::object::{Object, Source};
use crate::log::RESERVE;
use crate::segments::{Segment, Warmth};
use crate::wait::all;

/// The number of blocks read at once.
const RUN: usize = 64;

impl Engine {
    /// Keeps some segments of every device free, until the engine closes.
    pub(crate) async fn run_evict(self: Arc<Self>) {
        loop {
            let ready = || {
                if self.log.is_reserved() && self.finds_segments(RESERVE, true) {
                    self.log.set_reserved(false);
                }
                let wanted = self.is_short().then(|| self.segments.first()).flatten();
                (wanted.is_some() || self.closing()).then_some(wanted)
            };
            let Some((id, segment)) = self.space.until(ready).await else { return };
            if self.closing() {
                return;
            }
            if !segment.sealed {
                self.clean.seal();
                self.space.until(|| (self.closing() || self.segments.is_sealed(id)).then_some(())).await;
                continue;
            }
            if segment.warmth != Warmth::Warm && self.has_free(1) {
                // Once all clean segments are loaded, there is more room, and live blocks may be moved.
                let loaded = || self.closing() || !self.segments.is_warming() || !self.has_free(1);
                self.space.until(|| loaded().then_some(())).await;
                continue;
            }
            if segment.warmth != Warmth::Warm && self.segments.free_cold_leg() {
                self.look_for_room();
                self.space.wake();
                continue;
            }
            if segment.warmth != Warmth::Warm && !self.segments.let_go_cold(id) {
                self.space.until(|| (self.closing() || !self.segments.is_loading(id)).then_some(())).await;
                continue;
            }
            self.evict(id, &segment).await;
        }
    }

    /// Returns true if a device has too few free segments, counting segments that a frame will free, or if most
    /// segments hold little. Such segments are evicted early. Short runs of the server leave segments that are hardly
    /// used, and there may be no time later.
    fn is_short(&self) -> bool {
        let active = self.active_devices();
        !active.is_empty()
            && (!self.has_free(self.spare_segments()) || self.segments.is_wasteful(self.slots()))
    }

    /// Returns true if clean blocks can be written without evicting others, as of the last segment that was opened or
    /// freed.
    pub fn has_room(&self) -> bool {
        self.roomy.load(Ordering::Relaxed)
    }

    pub(crate) fn look_for_room(&self) {
        let free = self.segments.least_free(&self.active_devices(), true);
        self.roomy.store(free > self.spare_segments() + 1, Ordering::Relaxed);
    }

    async fn evict(&self, id: SegmentId, segment: &Segment) {
        match self.read_footer(segment).await {
            _ if segment.warmth == Warmth::Cold => {}
            Some(body) => {
                for run in self.blocks_of(&body).chunks(RUN) {
                    if self.closing() {
                        // The remaining blocks are found again at the next start.
                        return;
                    }
                    let run = run.iter().map(|(object, block)| self.evict_block(object, *block, id, segment));
                    all(run.map(Box::pin).collect()).await;
                }
                if self.closing() {
                    return;
                }
            }
            None => self.sweep(id),
        }
        self.segments.let_go(id);
        self.look_for_room();
        let short = self.segments.least_free(&self.active_devices(), false) < 2;
        if short || self.destager.volumes.any_troubled() {
            self.log.kick();
        }
        self.space.wake();
    }

    async fn evict_block(&self, object: &Arc<Object>, block: u64, id: SegmentId, segment: &Segment) {
        let room = self.has_room_for_all();
        let (copy, fetch) = {
            let mut state = object.lock();
            let Some(copy) = state.entry(block).copied().filter(|entry| entry.segment == id) else { return };
            if !copy.hit && !room {
                state.remove_entry(block, &self.segments);
                self.totals.evicted.add(1);
                return;
            }
            (copy, state.begin_fetch(block..block + 1, Source::Cache))
        };
        self.clean.room().await;
        let contents = match segment.legs.first() {
            Some(place) => self.read_leg(*place, copy.slot, 1).await.ok(),
            None => None,
        };
        let page =
            contents.filter(|c| self.is_right(object, block, &copy, c)).map(|c| Page::from(&c[..BLOCK]));
        let mut state = object.lock();
        if self.closing() {
            state.end_fetch(fetch);
            return;
        }
        if state.entry(block).is_some_and(|entry| entry.same_place(&copy)) {
            state.remove_entry(block, &self.segments);
            self.totals.evicted.add(1);
        }
        match page {
            Some(page) => {
                drop(state);
                self.totals.reinserted.add(1);
                self.clean.keep(self, object, block, page, fetch);
            }
            None => {
                state.end_fetch(fetch);
            }
        }
    }

    /// Returns true if there will be room without dropping live blocks, and no task waits for room.
    fn has_room_for_all(&self) -> bool {
        self.has_free(2) && self.segments.is_sparse(self.slots())
    }

    /// Returns true if every device has `segments` free segments, counting those that a frame will free.
    fn has_free(&self, segments: usize) -> bool {
        self.segments.least_free(&self.active_devices(), true) >= segments
    }

    /// Drops every block of a segment whose records cannot be read.
    pub(crate) fn sweep(&self, id: SegmentId) {
        for object in self.objects.all() {
            let mut state = object.lock();
            for block in state.cached(0..u64::MAX) {
                if state.entry(block).is_some_and(|entry| entry.segment == id && !entry.dirty) {
                    state.remove_entry(block, &self.segments);
                    self.totals.evicted.add(1);
                }
            }
        }
    }

    /// Returns the records of a sealed segment.
    pub(crate) async fn read_footer(&self, segment: &Segment) -> Option<Body> {
        for place in &segment.legs {
            if let Some(footer) = self.read_footer_on(*place, segment.seq).await {
                return Some(footer.body);
            }
        }
        None
    }

    /// Returns the footer of segment `seq` on one of its legs.
    pub(crate) async fn read_footer_on(&self, place: Place, seq: u64) -> Option<Footer> {
        let name = SegmentName { pool: self.pool_id, seq, slots: self.slots() as u16 };
        let last = self.read_leg(place, name.slots - 1, 1).await.ok()?;
        let blocks = footer::decode_trailer(&last, &name)?;
        let whole = self.read_leg(place, name.slots - blocks, usize::from(blocks)).await.ok()?;
        footer::decode(&whole, &name)
    }

    pub(crate) fn active_devices(&self) -> Vec<u16> {
        let devices = self.devices.read();
        (0..devices.len() as u16).filter(|index| devices[usize::from(*index)].is_some()).collect()
    }

    /// Returns the number of segments of each device to be kept free.
    pub(crate) fn spare_segments(&self) -> usize {
        6.max(self.segments.log_use().share / 32)
    }
}
