//! Clean blocks on the cache devices: blocks that leave memory are gathered in segments with one copy.
//!
//! A clean segment has no frames. Its records are in the footer, which is written when the segment is full. A crash
//! before that loses the segment's blocks, which the backing store has.

use forebay_common::lock::atomic::Ordering;
use std::sync::Arc;

use smallvec::smallvec;

use crate::buffer::{BLOCK, Buffer, Slice};
use crate::core::Core;
use crate::format::{Facts, Footer, Record, SegmentKind, bind, content_hash, footer};
use crate::index::leaf::{Entry, Hit};
use crate::index::object::CachedObject;
use crate::index::page::Page;
use crate::io::Durability;
use crate::log::LOG_RESERVE;
use crate::log::gathered::Gathered;
use crate::log::mirror_io::write_legs;
use crate::log::writer::{write_footer, write_header};
use crate::planted_bugs;
use crate::segments::Opened;
use crate::tiers::clean::Offer;

/// The number of blocks of one write.
const WRITE: usize = 128;
/// The highest number of encoded bytes that one block takes in the footer: a record, and its object's facts.
const RECORD: usize = 160;
/// Segments of each device that clean blocks leave to the log.
const SPARE: usize = LOG_RESERVE + 2;

/// A clean segment that is being filled.
struct Filling {
    opened: Opened,
    next: u16,
    gathered: Gathered,
}

/// Offers a block whose contents are in flight as `fetch`. The block is refused if too many wait.
pub(crate) fn offer(core: &Core, object: &Arc<CachedObject>, block: u64, page: Page, fetch: u64) {
    if core.clean.is_full() {
        object.lock().end_fetch(fetch);
        return;
    }
    keep(core, Offer { object: object.clone(), block, page, hit: Hit::No, fetch, stays: false });
}

/// Queues a block however many wait. The caller has waited for [`Clean::room`](super::clean::Clean::room), and has no
/// other copy on the devices.
pub(crate) fn keep(core: &Core, offer: Offer) {
    if core.active() == 0 || core.closing() {
        offer.object.lock().end_fetch(offer.fetch);
        return;
    }
    core.clean.push(offer);
    if core.clean.is_full() && core.clean.waits() {
        core.space.wake();
    }
}

/// Writes offered blocks until the engine closes, and then seals the segment.
pub(crate) async fn run_clean(core: Arc<Core>) {
    let mut filling: Option<Filling> = None;
    loop {
        let wanted = || {
            let due = !core.clean.queue.lock().is_empty() || core.clean.seal.load(Ordering::Relaxed);
            (due || core.closing()).then_some(())
        };
        core.clean.work.until(wanted).await;
        // A block that was moved here is nowhere else on the devices.
        let last = core.closing() && core.clean.queue.lock().is_empty();
        if core.clean.seal.swap(false, Ordering::Relaxed) || last {
            if let Some(full) = filling.take() {
                seal(&core, full).await;
            }
            if last {
                return;
            }
        }
        if core.clean.queue.lock().is_empty() {
            continue;
        }
        if filling.is_none() {
            filling = open_clean(&core).await;
        }
        filling = match filling {
            Some(filling) => fill_segment(&core, filling).await,
            None => without_segment(&core).await,
        };
        core.clean.room.wake();
    }
}

/// Opens a clean segment; `None` without room.
async fn open_clean(core: &Core) -> Option<Filling> {
    open_leaving(core, SPARE).await
}

/// Opens a clean segment of a device with more than `spare` unused segments.
async fn open_leaving(core: &Core, spare: usize) -> Option<Filling> {
    let opened = core.segments.open(SegmentKind::Clean, 1, spare);
    core.look_for_room();
    core.space.wake();
    let opened = opened?;
    write_header(core, &opened, SegmentKind::Clean, 0).await;
    Some(Filling { opened, next: 1, gathered: Gathered::default() })
}

/// Drops the offers, since no segment is free: the backing store has the blocks. Blocks that stay by their policies
/// are nowhere else on the devices, and wait for the next free segment. Eviction goes on meanwhile and frees it.
/// Eviction would wait for a full queue, so then these blocks are dropped as well.
async fn without_segment(core: &Core) -> Option<Filling> {
    let planted = planted_bugs::active("blocks that stay are dropped without a free segment");
    refuse(core, |offer| !offer.stays || planted);
    let ends = || core.closing() || core.active() == 0 || core.clean.is_full();
    let could_open = |given_up| core.segments.could_open_clean(LOG_RESERVE, given_up);
    let mut opened = None;
    while !core.clean.queue.lock().is_empty() {
        opened = open_leaving(core, LOG_RESERVE).await;
        if opened.is_some() || ends() {
            break;
        }
        core.clean.waits.store(true, Ordering::Relaxed);
        core.clean.room.wake();
        core.space.until(|| (could_open(true) || ends()).then_some(())).await;
        if !could_open(false) {
            // Given-up segments become unused with the next frame, and perhaps nobody else asks for one.
            core.log.request_frame();
            core.space.until(|| (could_open(false) || !could_open(true) || ends()).then_some(())).await;
        }
    }
    core.clean.waits.store(false, Ordering::Relaxed);
    core.space.wake();
    if opened.is_none() {
        refuse(core, |_| true);
    }
    opened
}

/// Drops the offers for which `is_dropped` is true.
fn refuse(core: &Core, is_dropped: impl Fn(&Offer) -> bool) {
    let dropped = {
        let mut queue = core.clean.queue.lock();
        let (dropped, kept): (Vec<_>, Vec<_>) = queue.drain(..).partition(is_dropped);
        *queue = kept.into();
        dropped
    };
    for offer in dropped {
        offer.object.lock().end_fetch(offer.fetch);
    }
}

/// Writes some of the offered blocks. Returns the segment unless it is full or lost.
async fn fill_segment(core: &Core, mut filling: Filling) -> Option<Filling> {
    let mut offers = Vec::new();
    let mut buffer = Buffer::zeroed(WRITE);
    let start = filling.next;
    while offers.len() < WRITE {
        let Some(offer) = core.clean.queue.lock().pop_front() else { break };
        if !offer.object.lock().is_current(offer.fetch) {
            offer.object.lock().end_fetch(offer.fetch);
            continue;
        }
        let needed = footer::blocks(filling.gathered.len + RECORD * (offers.len() + 1));
        if usize::from(filling.next) + 1 + needed > core.slots() {
            core.clean.queue.lock().push_front(offer);
            break;
        }
        let slot = filling.next;
        let checksum = bind(
            content_hash(&offer.page),
            core.pool_id,
            offer.object.key_hash,
            offer.block,
            filling.opened.seq,
            slot,
        );
        buffer[offers.len() * BLOCK..][..BLOCK].copy_from_slice(&offer.page);
        filling.next += 1;
        let copy = Entry { segment: filling.opened.id, checksum, slot, dirty: false, hit: offer.hit };
        offers.push((offer, copy));
    }
    let full = !core.clean.queue.lock().is_empty() && offers.len() < WRITE;
    let data = Slice::new(Arc::new(buffer), 0..offers.len() * BLOCK);
    let legs: Vec<_> = core.segments.get(filling.opened.id).map(|s| s.legs).unwrap_or_default().to_vec();
    let legs: Vec<_> = legs.into_iter().map(|place| (place, data.clone())).collect();
    let written = offers.is_empty() || write_legs(core, &legs, start, Durability::Later).await;
    for (offer, copy) in offers {
        let mut state = offer.object.lock();
        let current = state.end_fetch(offer.fetch);
        if current && written && state.entry(offer.block).is_none() {
            // The record is added only now. A change of a block that is not in the index yet does not log that
            // its copies are invalidated.
            let facts = Facts { key: offer.object.key.clone(), size: state.size, mtime: None };
            let object = filling.gathered.object(offer.object.number, facts);
            let checksums = smallvec![copy.checksum];
            let record = Record::Data { object, block: offer.block, slot: copy.slot, checksums };
            filling.gathered.record(record);
            state.set_entry(offer.block, copy, &core.segments);
            core.totals.admitted.add(1);
        }
        drop(state);
        offer.object.changed.wake();
    }
    if written && !full {
        return Some(filling);
    }
    seal(core, filling).await;
    None
}

/// Writes the footer. From now on recovery finds the segment's blocks.
async fn seal(core: &Core, filling: Filling) {
    let body = filling.gathered.into_body();
    let footer =
        Footer { pool: core.pool_id, segment_seq: filling.opened.seq, epoch: core.log.epoch(), body };
    write_footer(core, filling.opened.id, &footer).await;
    core.segments.seal(filling.opened.id);
    // With reads only, no other frame would be written. The request writes one, which makes the footer durable and
    // the segment valid.
    core.log.request_frame();
    core.space.wake();
}
