//! Clean blocks on the cache devices: blocks that leave memory are gathered in segments with one copy.
//!
//! A clean segment has no frames. Its records are in the footer, which is written when the segment is full. A crash
//! before that loses the segment's blocks, which the backing store has.

use forebay_common::lock::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::smallvec;

use crate::buffer::{BLOCK, Buffer, Slice};
use crate::engine::Engine;
use crate::format::{Facts, Footer, Record, SegmentKind, bind, content_hash, footer};
use crate::index::leaf::{Entry, Page};
use crate::index::object::Object;
use crate::io::Durability;
use crate::log::RESERVE;
use crate::log::gathered::Gathered;
use crate::segments::Opened;
use crate::wait::Gate;
use forebay_common::lock::Mutex;

/// The highest number of blocks that may wait to be written.
const WAITING: usize = 1024;
/// The number of blocks of one write.
const WRITE: usize = 128;
/// The highest number of encoded bytes that one block takes in the footer: a record, and its object's facts.
const RECORD: usize = 160;
/// Segments of each device that clean blocks leave to the log.
const SPARE: usize = RESERVE + 2;

/// A block offered to the cache devices.
struct Offer {
    object: Arc<Object>,
    block: u64,
    page: Page,
    /// The fetch that tells if the block was changed meanwhile.
    fetch: u64,
}

/// The blocks that wait to be written to clean segments.
#[derive(Default)]
pub(crate) struct Clean {
    queue: Mutex<VecDeque<Offer>>,
    pub(crate) work: Gate,
    room: Gate,
    /// True if the segment being filled is the next to be evicted, and must be sealed.
    seal: AtomicBool,
}

/// A clean segment that is being filled.
struct Filling {
    opened: Opened,
    next: u16,
    gathered: Gathered,
}

impl Clean {
    /// Offers a block whose contents are in flight as `fetch`. The block is refused if too many wait.
    pub(crate) fn offer(&self, engine: &Engine, object: &Arc<Object>, block: u64, page: Page, fetch: u64) {
        if self.queue.lock().len() >= WAITING {
            object.lock().end_fetch(fetch);
            return;
        }
        self.keep(engine, object, block, page, fetch);
    }

    /// Queues a block however many wait. The caller has waited for [`Clean::room`], and has no other copy on the
    /// devices.
    pub(crate) fn keep(&self, engine: &Engine, object: &Arc<Object>, block: u64, page: Page, fetch: u64) {
        if engine.active() == 0 || engine.closing() {
            object.lock().end_fetch(fetch);
            return;
        }
        self.queue.lock().push_back(Offer { object: object.clone(), block, page, fetch });
        self.work.wake();
    }

    /// Waits until an offer would be accepted.
    pub(crate) async fn room(&self) {
        self.room.until(|| (self.queue.lock().len() < WAITING).then_some(())).await;
    }

    /// Requests that the segment being filled is sealed as it is.
    pub(crate) fn seal(&self) {
        self.seal.store(true, Ordering::Relaxed);
        self.work.wake();
    }
}

impl Engine {
    /// Writes offered blocks until the engine closes, and then seals the segment.
    pub(crate) async fn run_clean(self: Arc<Self>) {
        let mut filling: Option<Filling> = None;
        loop {
            let wanted = || {
                let due = !self.clean.queue.lock().is_empty() || self.clean.seal.load(Ordering::Relaxed);
                (due || self.closing()).then_some(())
            };
            self.clean.work.until(wanted).await;
            // A block that was moved here is nowhere else on the devices.
            let last = self.closing() && self.clean.queue.lock().is_empty();
            if self.clean.seal.swap(false, Ordering::Relaxed) || last {
                if let Some(full) = filling.take() {
                    self.seal(full).await;
                }
                if last {
                    return;
                }
            }
            if self.clean.queue.lock().is_empty() {
                continue;
            }
            if filling.is_none() {
                filling = self.open_clean().await;
            }
            filling = match filling {
                Some(filling) => self.fill_segment(filling).await,
                None => {
                    self.refuse_all();
                    None
                }
            };
            self.clean.room.wake();
        }
    }

    async fn open_clean(&self) -> Option<Filling> {
        let opened = self.segments.open(SegmentKind::Clean, 1, SPARE);
        self.look_for_room();
        self.space.wake();
        let opened = opened?;
        self.write_header(&opened, SegmentKind::Clean, 0).await;
        Some(Filling { opened, next: 1, gathered: Gathered::default() })
    }

    /// Drops all offers, since there is no space: the blocks stay at their source.
    fn refuse_all(&self) {
        let offers = std::mem::take(&mut *self.clean.queue.lock());
        for offer in offers {
            offer.object.lock().end_fetch(offer.fetch);
        }
    }

    /// Writes some of the offered blocks. Returns the segment unless it is full or lost.
    async fn fill_segment(&self, mut filling: Filling) -> Option<Filling> {
        let mut offers = Vec::new();
        let mut buffer = Buffer::zeroed(WRITE);
        let start = filling.next;
        while offers.len() < WRITE {
            let Some(offer) = self.clean.queue.lock().pop_front() else { break };
            if !offer.object.lock().is_current(offer.fetch) {
                offer.object.lock().end_fetch(offer.fetch);
                continue;
            }
            let needed = footer::blocks(filling.gathered.len + RECORD * (offers.len() + 1));
            if usize::from(filling.next) + 1 + needed > self.slots() {
                self.clean.queue.lock().push_front(offer);
                break;
            }
            let slot = filling.next;
            let checksum = bind(
                content_hash(&offer.page),
                self.pool_id,
                offer.object.key_hash,
                offer.block,
                filling.opened.seq,
                slot,
            );
            buffer[offers.len() * BLOCK..][..BLOCK].copy_from_slice(&offer.page);
            filling.next += 1;
            let copy = Entry { segment: filling.opened.id, checksum, slot, dirty: false, hit: false };
            offers.push((offer, copy));
        }
        let full = !self.clean.queue.lock().is_empty() && offers.len() < WRITE;
        let data = Slice::new(Arc::new(buffer), 0..offers.len() * BLOCK);
        let legs: Vec<_> = self.segments.get(filling.opened.id).map(|s| s.legs).unwrap_or_default().to_vec();
        let legs: Vec<_> = legs.into_iter().map(|place| (place, data.clone())).collect();
        let written = offers.is_empty() || self.write_legs(&legs, start, Durability::Later).await;
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
                state.set_entry(offer.block, copy, &self.segments);
                self.totals.admitted.add(1);
            }
            drop(state);
            offer.object.changed.wake();
        }
        if written && !full {
            return Some(filling);
        }
        self.seal(filling).await;
        None
    }

    /// Writes the footer. From now on recovery finds the segment's blocks.
    async fn seal(&self, filling: Filling) {
        let body = filling.gathered.into_body();
        let footer =
            Footer { pool: self.pool_id, segment_seq: filling.opened.seq, epoch: self.log.epoch(), body };
        self.write_footer(filling.opened.id, &footer).await;
        self.segments.seal(filling.opened.id);
        // With reads only, no other frame would be written. The kick writes one, which makes the footer durable and
        // the segment valid.
        self.log.kick();
        self.space.wake();
    }
}
