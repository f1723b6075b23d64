//! The writer task: writes frames to both legs, and moves from one segment to the next.

use std::sync::Arc;

use crate::buffer::{BLOCK, Buffer, Slice};
use crate::core::Core;
use crate::error::Error;
use crate::format::{Footer, SegmentHeader, SegmentKind};
use crate::io::Durability;
use crate::log::mirror_io::{look_at_mirror, lose, record_losses, write_legs};
use crate::log::undurable::give_up_undurable;
use crate::log::{Closed, LOG_RESERVE, Moving, Step};
use crate::planted_bugs::{self, threads};
use crate::segments::{Opened, SegmentId};

/// Writes frames until the log is closed.
pub(crate) async fn run_log(core: Arc<Core>) {
    loop {
        let step = core.log.work.until(|| core.log.next_step(|| core.segments.advance())).await;
        // The next frame is open.
        core.log.changed.wake();
        match step {
            Step::Write(closed) => write_frame(&core, closed).await,
            Step::Roll => roll(&core).await,
            Step::Stop => break,
        }
        core.log.end_step();
    }
    // A later append is too late, or belongs to an operation in progress.
    let waiting = core.log.fail_all(Error::Closing);
    core.deliver(waiting, Err(Error::Closing));
    core.log.changed.wake();
}

/// Writes a closed frame to its legs and calls the completions that waited for it. Breaks the log if no device took the
/// frame.
pub(crate) async fn write_frame(core: &Core, closed: Closed) {
    let Closed { seq, segment, start, end, reach, buffer } = closed;
    let blocks = usize::from(end - start);
    let buffer = Arc::new(buffer);
    let data = Slice::new(buffer.clone(), 0..blocks * BLOCK);
    let legs = core.segments.get(segment.id).map(|s| s.legs).unwrap_or_default();
    let most = if planted_bugs::active("one leg is enough") { 1 } else { 2 };
    let legs: Vec<_> = legs.into_iter().take(most).map(|place| (place, data.clone())).collect();
    let durability =
        if planted_bugs::active("frames are not flushed") { Durability::Later } else { Durability::Now };
    let begun = core.env.clock.now();
    let written = write_legs(core, &legs, start, durability).await;
    drop((legs, data));
    if !written {
        return break_log(core);
    }
    core.service.log.measured(blocks as u64, 1, core.env.clock.now() - begun);
    core.totals.frames.add(1);
    core.segments.durable(segment.id, end);
    let done = core.log.wrote(seq, Arc::into_inner(buffer));
    if core.segments.reached(reach) {
        core.look_for_room();
        core.space.wake();
        if core.destager.volumes.any_troubled() {
            core.destager.throttle.changed.wake();
        }
    }
    core.deliver(done, Ok(()));
    core.log.changed.wake();
    if planted_bugs::active("a frame is acknowledged before a lost leg is recorded") {
        record_losses(core).await;
    }
}

/// Breaks the log for lack of devices: nothing can be made durable any more.
fn break_log(core: &Core) {
    let waiting = core.log.fail_all(Error::NoDevice);
    core.objects.all().iter().for_each(|object| give_up_undurable(core, object));
    core.deliver(waiting, Err(Error::NoDevice));
    core.log.changed.wake();
    core.notes.changed.wake();
    core.space.wake();
}

/// Ends the segment with its footer, and continues in another segment.
async fn roll(core: &Core) {
    let old = core.log.footer();
    if let Some((opened, footer)) = &old {
        write_footer(core, opened.id, footer).await;
    }
    let Some(opened) = next_log_segment(core).await else {
        if !core.log.is_ending() {
            break_log(core);
        }
        return;
    };
    write_header(core, &opened, SegmentKind::Log, core.log.next_seq()).await;
    for device in core.members.save_newest(opened.seq, core.log.durable()).await {
        lose(core, device).await;
    }
    let seal = || old.iter().for_each(|(old, _)| core.segments.seal(old.id));
    if threads::active("a segment is sealed before the log leaves it") {
        seal();
    }
    core.look_for_room();
    core.log.continue_in(opened);
    // Only now: a sealed segment may lose its second leg, and the segment that the log writes to must have two.
    seal();
    core.notes.changed.wake();
    look_at_mirror(core);
    // The segment before may leave the log.
    core.space.wake();
}

/// Writes a segment's footer to each leg that it has, durable with the next frame.
pub(crate) async fn write_footer(core: &Core, id: SegmentId, footer: &Footer) {
    // The footer fits: every append to a segment leaves room for it.
    let buffer = footer.encode(core.slots() as u16).unwrap_or_else(|invalid| panic!("{invalid}"));
    let slot = (core.slots() - buffer.len() / BLOCK) as u16;
    let data = Slice::from(buffer);
    let legs = core.segments.get(id).map(|segment| segment.legs).unwrap_or_default();
    let legs: Vec<_> = legs.into_iter().map(|place| (place, data.clone())).collect();
    write_legs(core, &legs, slot, Durability::Later).await;
}

/// Writes the header of a new segment to all of its legs.
pub(crate) async fn write_header(core: &Core, opened: &Opened, kind: SegmentKind, first_frame: u64) {
    let legs = opened.legs.iter().map(|here| {
        let header = SegmentHeader {
            pool: core.pool_id,
            epoch: core.log.epoch(),
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
    write_legs(core, &legs, 0, durability).await;
}

/// Marks appends as making room at the log's tail, while the result lives.
pub(crate) fn moving(core: &Core) -> Moving<'_> {
    let moving = core.log.begin_moving();
    core.space.wake();
    moving
}

/// Returns the number of unused segments of each device that the next segment of the log must leave. Beside the reserve
/// it leaves one for blocks that wait for it, since eviction gave up their segments for the log.
fn spare(core: &Core) -> usize {
    match core.log.spare() {
        0 => 0,
        reserve => reserve + usize::from(core.clean.waits()),
    }
}

/// Returns a free pair of segments, or a single segment if there is only one device. Waits for space. Returns
/// `None` if no device is left, or no segment is needed any more.
async fn next_log_segment(core: &Core) -> Option<Opened> {
    loop {
        let active = core.segments.devices();
        if active == 0 || core.log.is_ending() {
            return None;
        }
        let legs = active.min(2);
        for spare in [LOG_RESERVE + usize::from(core.clean.waits()), spare(core)] {
            let Some(opened) = core.segments.open(SegmentKind::Log, legs, spare) else { continue };
            core.log.set_reserved(spare < LOG_RESERVE && core.log.segment().is_some());
            core.log.set_full(false);
            core.space.wake();
            return Some(opened);
        }
        core.totals.log_waits.add(1);
        core.log.set_full(true);
        core.destager.volumes.press();
        core.notes.changed.wake();
        core.space.wake();
        let changed = || core.segments.devices() != active || core.log.is_ending();
        let ready = || (core.finds_segments(spare(core), true) || changed()).then_some(());
        core.space.until(ready).await;
        if !core.finds_segments(spare(core), false) {
            // Given-up legs are reusable once that is durable. No frame can record it here.
            let reach = core.segments.advance();
            let failed = core.members.save_reach(reach).await;
            for device in failed {
                lose(core, device).await;
            }
            core.segments.reached(reach);
        }
    }
}
