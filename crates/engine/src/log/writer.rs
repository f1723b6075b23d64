//! The writer task: writes frames to both legs, and moves from one segment to the next.

use std::sync::Arc;

use crate::buffer::{BLOCK, Buffer, Slice};
use crate::engine::Engine;
use crate::error::Error;
use crate::format::{Footer, SegmentHeader, SegmentKind};
use crate::index::leaf::SegmentId;
use crate::io::Durability;
use crate::log::{Closed, Moving, RESERVE, Step};
use crate::plant;
use crate::segments::Opened;

impl Engine {
    /// Writes frames until the log is closed.
    pub(crate) async fn run_log(self: Arc<Self>) {
        loop {
            let step = self.log.work.until(|| self.log.next_step(|| self.segments.advance())).await;
            // The next frame is open.
            self.log.changed.wake();
            match step {
                Step::Write(closed) => self.write_frame(closed).await,
                Step::Roll => self.roll().await,
                Step::Stop => break,
            }
            self.log.end_step();
        }
        // A later append is too late, or belongs to an operation in progress.
        let waiting = self.log.break_down(Error::Closing);
        self.deliver(waiting, Err(Error::Closing));
        self.log.changed.wake();
    }

    pub(crate) async fn write_frame(&self, closed: Closed) {
        let Closed { seq, segment, start, end, reach, buffer } = closed;
        let blocks = usize::from(end - start);
        let buffer = Arc::new(buffer);
        let data = Slice::new(buffer.clone(), 0..blocks * BLOCK);
        let legs = self.segments.get(segment.id).map(|s| s.legs).unwrap_or_default();
        let most = if plant::active("one leg is enough") { 1 } else { 2 };
        let legs: Vec<_> = legs.into_iter().take(most).map(|place| (place, data.clone())).collect();
        let durability =
            if plant::active("frames are not flushed") { Durability::Later } else { Durability::Now };
        let begun = self.env.clock.now();
        let written = self.write_legs(&legs, start, durability).await;
        drop((legs, data));
        if !written {
            return self.break_down();
        }
        self.service.log.measured(blocks as u64, 1, self.env.clock.now() - begun);
        self.totals.frames.add(1);
        self.segments.durable(segment.id, end);
        let done = self.log.wrote(seq, Arc::into_inner(buffer));
        if self.segments.reached(reach) {
            self.look_for_room();
            self.space.wake();
            if self.destager.volumes.any_troubled() {
                self.destager.throttle.changed.wake();
            }
        }
        self.deliver(done, Ok(()));
        self.log.changed.wake();
        if plant::active("a frame is acknowledged before a lost leg is recorded") {
            self.record_losses().await;
        }
    }

    /// Breaks the log for lack of devices: nothing can be made durable any more.
    fn break_down(&self) {
        let waiting = self.log.break_down(Error::NoDevice);
        self.objects.all().iter().for_each(|object| self.give_up_undurable(object));
        self.deliver(waiting, Err(Error::NoDevice));
        self.log.changed.wake();
        self.notes.changed.wake();
        self.space.wake();
    }

    /// Ends the segment with its footer, and continues in another segment.
    async fn roll(&self) {
        let old = self.log.footer();
        if let Some((opened, footer)) = &old {
            self.write_footer(opened.id, footer).await;
        }
        let Some(opened) = self.next_log_segment().await else {
            if !self.log.is_ending() {
                self.break_down();
            }
            return;
        };
        self.write_header(&opened, SegmentKind::Log, self.log.next_seq()).await;
        for device in self.members.save_newest(opened.seq, self.log.durable()).await {
            self.lose(device).await;
        }
        if let Some((old, _)) = old {
            self.segments.seal(old.id);
        }
        self.look_for_room();
        self.log.continue_in(opened);
        self.notes.changed.wake();
        self.look_at_mirror();
        // The segment before may leave the log.
        self.space.wake();
    }

    /// Writes a segment's footer to each leg that it has, durable with the next frame.
    pub(crate) async fn write_footer(&self, id: SegmentId, footer: &Footer) {
        // The footer fits: every append to a segment leaves room for it.
        let buffer = footer.encode(self.slots() as u16).unwrap_or_else(|invalid| panic!("{invalid}"));
        let slot = (self.slots() - buffer.len() / BLOCK) as u16;
        let data = Slice::from(buffer);
        let legs = self.segments.get(id).map(|segment| segment.legs).unwrap_or_default();
        let legs: Vec<_> = legs.into_iter().map(|place| (place, data.clone())).collect();
        self.write_legs(&legs, slot, Durability::Later).await;
    }

    pub(crate) async fn write_header(&self, opened: &Opened, kind: SegmentKind, first_frame: u64) {
        let legs = opened.legs.iter().map(|here| {
            let header = SegmentHeader {
                pool: self.pool_id,
                epoch: self.log.epoch(),
                seq: opened.seq,
                position: opened.position,
                kind,
                here: *here,
                peer: opened.legs.iter().find(|place| *place != here).copied(),
                first_frame,
                previous: opened.previous,
            };
            let mut block = Buffer::zeroed(1);
            if let Err(invalid) = header.encode(&mut block) {
                panic!("{invalid}");
            }
            (*here, Slice::from(block))
        });
        let legs: Vec<_> = legs.collect();
        // The superblocks name a log segment only once recovery would find it.
        let durability = match kind {
            SegmentKind::Log => Durability::Now,
            SegmentKind::Clean => Durability::Later,
        };
        self.write_legs(&legs, 0, durability).await;
    }

    /// Marks appends as making room at the log's tail, while the result lives.
    pub(crate) fn moving(&self) -> Moving<'_> {
        let moving = self.log.begin_moving();
        self.space.wake();
        moving
    }

    /// Returns true if there are more than `spare` unused segments for the log. With `given_up`, segments count that
    /// become unused once that is durable.
    pub(crate) fn finds_segments(&self, spare: usize, given_up: bool) -> bool {
        self.segments.could_open(self.segments.devices().min(2), spare, given_up)
    }

    /// Returns a free pair of segments, or a single segment if there is only one device. Waits for space. Returns
    /// `None` if no device is left, or no segment is needed any more.
    async fn next_log_segment(&self) -> Option<Opened> {
        loop {
            let active = self.segments.devices();
            if active == 0 || self.log.is_ending() {
                return None;
            }
            let legs = active.min(2);
            for spare in [RESERVE, self.log.spare()] {
                let Some(opened) = self.segments.open(SegmentKind::Log, legs, spare) else { continue };
                self.log.set_reserved(spare < RESERVE && self.log.segment().is_some());
                self.log.set_full(false);
                self.space.wake();
                return Some(opened);
            }
            self.totals.log_waits.add(1);
            self.log.set_full(true);
            self.destager.volumes.press();
            self.notes.changed.wake();
            self.space.wake();
            let changed = || self.segments.devices() != active || self.log.is_ending();
            let ready = || (self.finds_segments(self.log.spare(), true) || changed()).then_some(());
            self.space.until(ready).await;
            if !self.finds_segments(self.log.spare(), false) {
                // Given-up legs are reusable once that is durable. No frame can record it here.
                let reach = self.segments.advance();
                let failed = self.members.save_reach(reach).await;
                for device in failed {
                    self.lose(device).await;
                }
                self.segments.reached(reach);
            }
        }
    }
}
