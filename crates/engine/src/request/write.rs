//! Writes, into the log or straight to the backing store.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::buffer::BLOCK;
use crate::destage::throttle::Wanted;
use crate::engine::{Engine, Mode};
use crate::format::{Facts, Record, content_hash};
use crate::index::leaf::{Entry, Page};
use crate::index::object::{Busy, Object, Source, State, blocks};
use crate::io::{BackingError, Time};
use crate::log::{Placed, Whose};
use crate::plant::threads;
use crate::request::service_time::STREAM;
use crate::{Error, Result, Seq};

/// The result of an attempt to write without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// Accepted: durable once this frame is.
    Accepted(Seq),
    /// The write would have to wait.
    Wait,
    /// The mode in force sends the write to the backing store.
    Bypass,
}

/// The part of a write that the log has accepted, from the write's start on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// Number of bytes accepted.
    pub len: usize,
    /// The bytes are durable once this frame is.
    pub frame: Seq,
}

/// The reason why a write was not accepted yet.
enum Blocked {
    /// The log has no room.
    Room,
    /// The object is being truncated, or the range is in flight to the backing store.
    Busy,
    /// Contents of a partly overwritten block are not in memory.
    Load(u64),
    /// Too much is dirty: the throttle must grant this number of blocks first.
    Throttle(Wanted),
    /// The write does not go to the log.
    Bypass,
}

/// The old contents of a partly overwritten block, read while the object was not locked.
struct Loaded {
    block: u64,
    page: Page,
    fetch: u64,
}

/// A write in progress.
struct Writing<'a> {
    offset: u64,
    data: &'a [u8],
    now: Time,
    /// The blocks for which the throttle is asked. The first piece asks for the blocks of the whole write, so that
    /// all parts of a stream go one way.
    paced: Option<Range<u64>>,
    loaded: SmallVec<[Loaded; 2]>,
}

impl Engine {
    /// Writes if that needs no waiting. `now` becomes the object's modification time.
    ///
    /// Reads of accepted data wait until it is durable.
    ///
    /// # Errors
    /// The object was removed, or no cache device is left.
    pub fn try_write(&self, object: &Arc<Object>, offset: u64, data: &[u8], now: Time) -> Result<Tried> {
        let paced = Some(blocks(offset, data.len() as u64));
        let mut write = Writing { offset, data, now, paced, loaded: SmallVec::new() };
        if data.len() > BLOCK * 64 {
            // The parts of such a write may need several frames.
            return Ok(if self.takes_log(object, offset, data.len()) { Tried::Wait } else { Tried::Bypass });
        }
        match self.attempt(object, &mut write)? {
            Ok(seq) => Ok(Tried::Accepted(seq)),
            Err(Blocked::Bypass) => Ok(Tried::Bypass),
            Err(_) => Ok(Tried::Wait),
        }
    }

    /// Writes. When this returns, the data is accepted, and an unstable write may be acknowledged. The data is
    /// durable once [`Engine::commit`] of the returned frame has succeeded. `now` becomes the object's modification
    /// time.
    pub async fn write(&self, object: &Arc<Object>, offset: u64, data: &[u8], now: Time) -> Result<Seq> {
        let Logged { len, frame } = self.write_log(object, offset, data, now).await?;
        if len == data.len() {
            return Ok(frame);
        }
        Ok(frame.max(self.write_direct(object, offset + len as u64, &data[len..], now).await?))
    }

    /// Writes to the log only. The caller writes the rest to the backing store, between [`Engine::begin_direct`] and
    /// [`Engine::end_direct`], without a sync where the client asks for none.
    pub async fn write_log(
        &self,
        object: &Arc<Object>,
        offset: u64,
        data: &[u8],
        now: Time,
    ) -> Result<Logged> {
        let mut logged = Logged { len: 0, frame: self.log.durable() };
        let most = BLOCK * 64;
        let mut paced = Some(blocks(offset, data.len() as u64));
        while logged.len < data.len() {
            let offset = offset + logged.len as u64;
            // Pieces end at block boundaries.
            let len = (most - (offset % BLOCK as u64) as usize).min(data.len() - logged.len);
            let data = &data[logged.len..][..len];
            let piece = Writing { offset, data, now, paced: paced.take(), loaded: SmallVec::new() };
            match self.write_piece(object, piece).await? {
                Some(frame) => logged.frame = logged.frame.max(frame),
                None => break,
            }
            logged.len += len;
        }
        Ok(logged)
    }

    /// Writes one piece. Returns `None` if the piece goes to the backing store.
    async fn write_piece(&self, object: &Arc<Object>, mut write: Writing<'_>) -> Result<Option<Seq>> {
        let range = blocks(write.offset, write.data.len() as u64);
        loop {
            let blocked = match self.attempt(object, &mut write)? {
                Ok(seq) => return Ok(Some(seq)),
                Err(blocked) => blocked,
            };
            match blocked {
                Blocked::Bypass => {
                    self.unload(object, &mut write);
                    return Ok(None);
                }
                Blocked::Busy => {
                    let free = || {
                        let state = object.lock();
                        state.busy != Busy::Truncate && !state.is_written_directly(&range)
                    };
                    object.changed.until(|| free().then_some(())).await;
                }
                Blocked::Load(block) => {
                    let fetch = object.lock().begin_fetch(block..block + 1, Source::Cache);
                    let page = self.load(object, block).await;
                    match page {
                        Ok(page) => write.loaded.push(Loaded { block, page, fetch }),
                        Err(error) => {
                            object.lock().end_fetch(fetch);
                            self.unload(object, &mut write);
                            return Err(error);
                        }
                    }
                }
                Blocked::Throttle(wanted) => {
                    if self.destager.throttle.wait(self, &object.volume, wanted).await {
                        write.paced = None;
                    }
                }
                Blocked::Room => {
                    let ready = || self.log.has_room(write.data.len().div_ceil(BLOCK) + 1).then_some(());
                    self.log.until(ready).await;
                }
            }
        }
    }

    fn unload(&self, object: &Object, write: &mut Writing<'_>) {
        let mut state = object.lock();
        for loaded in write.loaded.drain(..) {
            state.end_fetch(loaded.fetch);
        }
        drop(state);
        object.changed.wake();
    }

    /// Returns true if a write of `len` bytes goes to the log in the mode in force.
    fn takes_log(&self, _object: &Object, _offset: u64, _len: usize) -> bool {
        self.effective_mode() == Mode::WriteBack
    }

    fn attempt(
        &self,
        object: &Arc<Object>,
        write: &mut Writing<'_>,
    ) -> Result<std::result::Result<Seq, Blocked>> {
        if !self.takes_log(object, write.offset, write.data.len()) {
            return Ok(Err(Blocked::Bypass));
        }
        let range = blocks(write.offset, write.data.len() as u64);
        let mut pages: SmallVec<[(Page, u64); 4]> = SmallVec::new();
        // A block that is overwritten whole needs neither the lock nor the old contents.
        let whole = |block: u64| {
            let at = block * BLOCK as u64;
            let start = at.checked_sub(write.offset)? as usize;
            write.data.get(start..start + BLOCK)
        };
        let ready: SmallVec<[_; 4]> = range
            .clone()
            .map(|block| whole(block).map(|data| (Page::from(data), content_hash(data))))
            .collect();
        let mut state = object.lock();
        if state.gone {
            return Err(Error::Backing(BackingError::Gone));
        }
        // A bypass write that began before the mode changed comes first.
        if state.busy == Busy::Truncate || state.is_written_directly(&range) {
            return Ok(Err(Blocked::Busy));
        }
        for (block, ready) in range.clone().zip(ready) {
            let page = match ready {
                Some(ready) => ready,
                None => match merge(&mut state, block, write) {
                    Some(page) => {
                        let hash = content_hash(&page);
                        (page, hash)
                    }
                    None => return Ok(Err(Blocked::Load(block))),
                },
            };
            pages.push(page);
        }
        if let Some(paced) = &write.paced {
            let all = paced.end - paced.start;
            let new = all - state.dirty_entries(paced.clone()).count() as u64;
            // A stream does not wait for a volume in trouble.
            let stream =
                all >= STREAM && !self.is_set_apart(&object.volume) && state.is_free_for_direct(paced);
            if let Some(trouble) = self.holds_back(&object.volume, new) {
                // A failing volume may still take a bypass write. Dirty blocks in the range must be destaged first.
                let asked = trouble != Error::Late && state.is_free_for_direct(paced);
                return if asked { Ok(Err(Blocked::Bypass)) } else { Err(trouble) };
            }
            if stream && self.service.is_faster_direct(&object.volume.service) {
                return Ok(Err(Blocked::Bypass));
            }
            let volume = &object.volume;
            // A volume in trouble frees no room, so its writers do not wait for room.
            let new = if self.is_set_apart(volume) { 0 } else { new };
            let wanted = Wanted { new, all };
            if !self
                .destager
                .throttle
                .admits(&volume.room, &self.log_load(volume), wanted, || self.env.clock.now())
            {
                // Where the rate of destaging is the limit, a stream is finished sooner without the log.
                if stream {
                    return Ok(Err(Blocked::Bypass));
                }
                self.destager.volumes.press();
                return Ok(Err(Blocked::Throttle(wanted)));
            }
            write.paced = None;
        }
        let size = state.size.max(write.offset + write.data.len() as u64);
        let logged = if crate::plant::active("sizes are not logged") { state.size } else { size };
        let facts = Facts { key: object.key.clone(), size: logged, mtime: Some(write.now) };
        let Some(placed) = self.log.accept_data(object, &facts, range.start, &pages, &self.segments)? else {
            // No room, or the mode is about to change.
            return Ok(Err(Blocked::Room));
        };
        let mut state = threads::gap("a write is in the log before the index knows of it", object, state);
        state.size = size;
        state.mtime = Some(write.now);
        state.outdate(&range);
        for loaded in write.loaded.drain(..) {
            state.end_fetch(loaded.fetch);
        }
        let seq = placed.seq;
        let added = self.install(&mut state, object, range.start, pages, &placed);
        let queue = !std::mem::replace(&mut state.queued, true);
        drop(state);
        self.totals.written.add(range.end - range.start);
        if queue {
            self.queue(object);
        }
        if added {
            self.trim_ram();
        }
        Ok(Ok(seq))
    }

    /// Puts the appended blocks into the index and the memory tier. Returns true if memory grew.
    pub(crate) fn install(
        &self,
        state: &mut State,
        object: &Arc<Object>,
        first: u64,
        pages: SmallVec<[(Page, u64); 4]>,
        placed: &Placed,
    ) -> bool {
        let mut added = false;
        state.last_frame = placed.seq;
        state.logged = true;
        for (i, ((page, _), checksum)) in pages.into_iter().zip(&placed.checksums).enumerate() {
            let block = first + i as u64;
            let entry = Entry {
                segment: placed.segment,
                checksum: *checksum,
                slot: placed.slot + i as u16,
                dirty: true,
                hit: false,
            };
            state.set_entry(block, entry, &self.segments);
            if state.set_page(block, page) {
                self.ram.added(object, block);
                added = true;
            }
        }
        // The index holds the segment now.
        self.segments.release(placed.segment);
        added
    }

    /// Appends one record about the object, or only its facts, and waits for room. Returns the frame.
    ///
    /// The facts are taken when the record is appended. A write may make the object longer during the wait, and the
    /// newest facts in the log win at recovery. So no caller passes facts in.
    pub(crate) async fn append(
        &self,
        whose: Whose,
        object: &Object,
        record: Option<fn(u16, u64, u64) -> Record>,
    ) -> Result<Seq> {
        let early = threads::active("facts are taken before the wait for room");
        let early = early.then(|| self.facts_of(object, &object.lock()));
        loop {
            let appended = match &early {
                Some(facts) => self.log.append(whose, object, facts, record, (0, 0))?,
                None => self.try_append(whose, object, &mut object.lock(), record, (0, 0))?,
            };
            if let Some(seq) = appended {
                return Ok(seq);
            }
            self.log.until(|| self.log.has_room_for(whose, 0).then_some(())).await;
        }
    }

    /// Appends one record about the object with its current facts, if there is room now.
    pub(crate) fn try_append(
        &self,
        whose: Whose,
        object: &Object,
        state: &mut State,
        record: Option<fn(u16, u64, u64) -> Record>,
        arguments: (u64, u64),
    ) -> Result<Option<Seq>> {
        let facts = self.facts_of(object, state);
        let appended = self.log.append(whose, object, &facts, record, arguments)?;
        if let Some(seq) = appended {
            state.last_frame = state.last_frame.max(seq);
        }
        Ok(appended)
    }
}

/// Returns the new contents of a partly overwritten block; `None` if its old contents have to be read first.
fn merge(state: &mut State, block: u64, write: &Writing<'_>) -> Option<Page> {
    let at = block * BLOCK as u64;
    let end = write.offset + write.data.len() as u64;
    let (from, to) = (write.offset.max(at), end.min(at + BLOCK as u64));
    let mut contents = [0; BLOCK];
    // A block that is written from its start to the end of the file keeps no old contents.
    let keeps_nothing = at >= state.size
        || (from == at && to >= state.size)
        || crate::plant::active("partial writes forget the old contents");
    if !keeps_nothing {
        let loaded = write.loaded.iter().find(|l| l.block == block && state.is_current(l.fetch));
        let old = state.page(block).or_else(|| loaded.map(|loaded| &loaded.page))?;
        contents.copy_from_slice(old);
    }
    let part = (from - write.offset) as usize..(to - write.offset) as usize;
    contents[(from - at) as usize..(to - at) as usize].copy_from_slice(&write.data[part]);
    Some(Page::from(&contents[..]))
}
