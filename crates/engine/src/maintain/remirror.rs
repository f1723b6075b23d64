//! Remirroring: two copies of all dirty data. A log segment that lost a leg, or has only one copy after recovery,
//! holds data that the next fault would destroy. Until the segment has left the log, the mode in force is
//! write-through, and destaging goes at full speed. If two devices are present, the segment's dirty blocks are also
//! written to the log again.
//!
//! A block without a readable copy is reappended as well, when nothing else keeps the log's oldest segment. The
//! backing store has older contents, which no client must ever read. So the log records the block as damaged until it
//! is overwritten or cut off.

use forebay_common::lock::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::engine::Engine;
use crate::event::Event;
use crate::format::{Body, Record};
use crate::index::leaf::{Entry, Page, SegmentId};
use crate::index::object::Object;
use crate::log::reappend::Again;
use crate::segments::Segment;
use crate::wait::all;

/// The number of blocks read at once.
const RUN: usize = 64;
/// The pause after a segment of which some block could not be written again.
const PAUSE: Duration = Duration::from_millis(250);

impl Engine {
    /// Remirrors the segments that need it, until the engine closes.
    pub(crate) async fn run_rewrite(self: Arc<Self>) {
        while !self.closing() {
            let ready = || {
                let head = self.log.segment();
                let wanted = head.and_then(|head| self.segments.to_rewrite(head));
                let stuck = |segment: &Segment| segment.dirty == segment.damaged;
                let volumes = &self.destager.volumes;
                let may = || volumes.any_troubled() || !volumes.any_flushing();
                let wanted = wanted.filter(|(_, segment)| stuck(segment) || may());
                let changed = self.is_mirrored() != self.segments.is_mirrored(head);
                (wanted.is_some() || changed || self.segments.lone_left() || self.closing()).then_some(wanted)
            };
            if let Some((id, segment)) = self.space.until(ready).await {
                self.rewrite(id, &segment).await;
                self.segments.advance();
                if self.segments.get(id).is_some_and(|segment| segment.dirty > 0) {
                    self.rest(PAUSE).await;
                }
            } else if self.segments.lone_left() {
                let frame = self.log.kick();
                let done = || self.closing() || self.log.durable() >= frame || self.log.broken().is_some();
                self.log.until(|| done().then_some(())).await;
                if self.log.broken().is_some() {
                    return;
                }
            }
            self.look_at_mirror();
        }
    }

    /// Determines again if all dirty data is on two devices, and reports a change.
    pub(crate) fn look_at_mirror(&self) {
        let mut known = self.mirror.lock();
        let now = self.segments.is_mirrored(self.log.segment());
        // A task that sees `mirrored` set must find that the log accepts its data.
        if now {
            self.log.set_mirrored(true);
        }
        self.mirrored.store(now, Ordering::Release);
        if !now {
            self.log.set_mirrored(false);
            // User records may have to be released.
            self.notes.changed.wake();
        }
        match known.replace(now) {
            Some(before) if before == now => return,
            Some(_) if now => self.event(Event::Restored),
            // One device from the start on is no change to report.
            None if now || self.segments.devices() < 2 => {}
            _ => self.event(Event::Degraded { left: self.segments.staying() }),
        }
        drop(known);
        self.destager.throttle.changed.wake();
        self.destager.wake();
        self.space.wake();
    }

    async fn rewrite(&self, id: SegmentId, segment: &Segment) {
        let blocks = match self.read_footer(segment).await {
            Some(body) => self.blocks_of(&body),
            None => self.dirty_blocks_of(id),
        };
        let may = |object: &Object| object.volume.is_movable() || segment.dirty == segment.damaged;
        let blocks: Vec<_> = blocks.into_iter().filter(|(object, _)| may(object)).collect();
        let mut blocks = blocks.as_slice();
        let _moving = self.moving();
        while let Some((object, _)) = blocks.first()
            && !self.closing()
        {
            let same = blocks.iter().take(RUN).take_while(|(other, _)| Arc::ptr_eq(other, object));
            let run = same.count();
            let reads = blocks[..run].iter().map(|(object, block)| Box::pin(self.old(object, *block, id)));
            for ((object, block), old) in blocks.iter().zip(all(reads.collect()).await) {
                let Some((copy, page)) = old else { continue };
                match self.append_again(object, *block, &copy, page).await {
                    Ok(Again::Appended(_)) => self.totals.rewritten.add(1),
                    Ok(Again::Outdated) => {}
                    Ok(Again::NoRoom) | Err(_) => return,
                }
            }
            blocks = &blocks[run..];
        }
    }

    /// Returns a block's dirty copy in the segment, with its contents if they can be read; `None` if there is no such
    /// copy.
    async fn old(&self, object: &Arc<Object>, block: u64, id: SegmentId) -> Option<(Entry, Option<Page>)> {
        let (copy, page, damaged) = {
            let state = object.lock();
            let copy = state.entry(block).copied().filter(|copy| copy.dirty && copy.segment == id)?;
            (copy, state.page(block).cloned(), state.is_damaged(&(block..block + 1)))
        };
        if page.is_some() || damaged {
            return Some((copy, page));
        }
        match self.rescue(object, block, &copy, false).await {
            Ok(rescued) => Some((copy, Some(rescued.page?))),
            Err(Error::Damaged) => Some((copy, None)),
            Err(_) => None,
        }
    }

    /// Returns the blocks that a segment's records name, for objects in the index.
    pub(crate) fn blocks_of(&self, body: &Body) -> Vec<(Arc<Object>, u64)> {
        let known: Vec<_> = body.objects.iter().map(|facts| self.objects.find(&facts.key)).collect();
        let mut blocks = Vec::new();
        for record in &body.records {
            let Record::Data { object, block, checksums, .. } = record else { continue };
            let Some(Some(object)) = known.get(usize::from(*object)) else { continue };
            blocks.extend((*block..).take(checksums.len()).map(|block| (object.clone(), block)));
        }
        blocks
    }

    /// Returns the dirty blocks of a segment whose records cannot be read, by a scan of all objects.
    fn dirty_blocks_of(&self, id: SegmentId) -> Vec<(Arc<Object>, u64)> {
        let mut blocks = Vec::new();
        for object in self.objects.all() {
            let dirty = object.lock().dirty_in(0..u64::MAX, usize::MAX);
            let here = dirty.into_iter().filter(|(_, copy)| copy.segment == id);
            blocks.extend(here.map(|(block, _)| (object.clone(), block)));
        }
        blocks
    }
}
