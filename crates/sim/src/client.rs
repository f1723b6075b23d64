//! Clients of the engine: they send requests, and check every answer against the model.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::io::{Clock as _, Time};
use forebay_engine::{CachedObject, Engine, Error, Seq};

use crate::front::{Writing, Wrote, durable};
use crate::hits::Fault;
use crate::rng::Rng;
use crate::stamp::{Place, fill};
use crate::workload::Kind;

mod devices;
mod shared;

pub use shared::{Allowed, Shared};

/// One client.
pub struct Client {
    /// The state shared with all tasks of the world.
    pub shared: Arc<Shared>,
    /// The engine of this session.
    pub engine: Arc<Engine>,
    /// Errors that the client must accept.
    pub allowed: Allowed,
    /// The source of the client's choices.
    pub rng: Rng,
    /// The positions of the client's stream of writes and of its stream of reads.
    pub streams: [u64; 2],
}

impl Client {
    /// Makes a client that has done nothing yet.
    pub fn new(shared: &Arc<Shared>, engine: &Arc<Engine>, allowed: Allowed, rng: Rng) -> Self {
        Client { shared: shared.clone(), engine: engine.clone(), allowed, rng, streams: [0; 2] }
    }

    /// Carries out this number of operations, one after another.
    pub async fn run(mut self, operations: u32) {
        for _ in 0..operations {
            let kind = self.shared.habits.kind(&mut self.rng);
            self.act(kind).await;
            if self.shared.failure.lock().is_some() {
                return;
            }
        }
    }

    async fn act(&mut self, kind: Kind) {
        match kind {
            Kind::WriteBytes | Kind::WriteBlocks | Kind::WriteStream => self.write_somewhere(kind).await,
            Kind::Read | Kind::ReadStream => self.read_somewhere(kind).await,
            Kind::Commit => {
                if let Some(number) = self.any() {
                    self.commit(number).await;
                }
            }
            Kind::Truncate => self.truncate_somewhere().await,
            Kind::Mtime => self.set_some_time().await,
            Kind::Remove => self.replace_some().await,
            Kind::Flush => self.flush().await,
            Kind::Mode => self.switch_mode(),
            Kind::Add => drop(self.add_device().await),
            Kind::Drain => self.remove_device().await,
            Kind::Sleep => {
                let rest = self.rng.time(Duration::ZERO, self.shared.habits.rest);
                self.shared.executor.sleep(rest).await;
            }
        }
    }

    fn any(&mut self) -> Option<u8> {
        let numbers = self.shared.objects.lock().numbers();
        (!numbers.is_empty()).then(|| self.rng.pick(&numbers))
    }

    fn object(&self, number: u8) -> Option<Arc<CachedObject>> {
        self.shared.objects.lock().object(number)
    }

    fn now(&mut self) -> Time {
        // Clients' clocks jump.
        if self.rng.chance(300) {
            self.shared.hits.hit(Fault::TimeBack);
            return Time { sec: self.rng.below(2_000_000_000) as i64, nsec: 999_999_999 };
        }
        let time = self.shared.executor.time();
        Time { sec: 1_000_000_000 + time.as_secs() as i64, nsec: time.subsec_nanos() }
    }

    fn check(&self, what: &str, number: u8, error: Error) {
        // Another client may have removed the object meanwhile.
        let removed = self.shared.objects.lock().key(number).is_none();
        if !removed && !self.allowed.permits(error) {
            self.shared.fail(format!("{what} of object {number} failed: {error}"));
        }
    }

    async fn write_somewhere(&mut self, kind: Kind) {
        let Some(number) = self.any() else { return };
        let size = self.shared.model.lock().size(number);
        let habits = self.shared.habits.clone();
        let mut range = habits.range(&mut self.rng, kind, size);
        if kind == Kind::WriteStream {
            range = self.streams[0]..self.streams[0] + habits.longest;
            self.streams[0] = if range.end > habits.extent { 0 } else { range.end };
        }
        let stable = self.rng.chance(habits.stable);
        self.write(number, range.start, range.end - range.start, stable).await;
    }

    /// Writes, and commits if the write is stable.
    pub async fn write(&mut self, number: u8, offset: u64, len: u64, stable: bool) {
        let (open, running) = self.shared.model.lock().load(number, &(offset..offset + len));
        if running >= self.shared.habits.at_once {
            return;
        }
        if open + 4 > crate::register::OPERATIONS {
            self.commit(number).await;
            return;
        }
        let Some(object) = self.object(number) else { return };
        if !self.shared.objects.lock().share(number) {
            return;
        }
        if self.shared.objects.lock().writers(number) >= 12 {
            self.shared.hits.hit(Fault::Crowded);
        }
        let now = self.now();
        let id = self.shared.model.lock().begin_write(number, offset, len, now);
        let mut data = vec![0; len as usize];
        stamp(&mut data, offset, number, id);
        self.shared.tell(|| format!("write {id} to {number} at {offset}+{len} stable {stable}"));
        let (lost, before) = (self.shared.lost.lock().clone(), self.engine.last());
        let changed = self.shared.verifier_changed();
        let written = self.put(&Writing { object: &object, offset, data: &data, now }).await;
        self.shared.objects.lock().release(number);
        let result = match written {
            Ok(Wrote { before: Some(frame), .. }) => self.frame(frame).await.and(written),
            _ => written,
        };
        match result {
            Ok(Wrote { frame, unsynced: Some(failures), .. }) => {
                self.shared.model.lock().accepted_unsynced(id, frame, failures);
            }
            Ok(wrote) => self.shared.model.lock().accepted(id, wrote.frame.unwrap_or_default()),
            Err(error) => self.write_failed(id, number, error),
        }
        if self.shared.verifier_changed() != changed {
            // The reply has the old verifier, so the client takes the write for lost.
            self.shared.model.lock().lost(id);
        }
        // In a model in which every write is in the log, no write is in a page cache.
        let stable = stable || self.shared.model.lock().logged;
        if let (Ok(wrote), true) = (result, stable) {
            match self.until_stable(&object, offset, len, wrote).await {
                Ok(()) => {
                    self.shared.model.lock().durable_by(id, self.engine.last());
                    // The frame was written without the lost devices.
                    if wrote.frame.max(wrote.before).is_some_and(|frame| frame > before) {
                        // A device that was added again meanwhile is not outdated.
                        let now = self.shared.lost.lock().clone();
                        self.shared
                            .outdated
                            .lock()
                            .extend(lost.into_iter().filter(|name| now.contains(name)));
                    }
                }
                Err(error) => {
                    self.shared.model.lock().lost(id);
                    self.check("a write", number, error);
                }
            }
        } else if let Ok(Wrote { unsynced: Some(_), .. }) = result {
            self.shared.hits.hit(Fault::WroteUnsynced);
        }
        self.shared.tell(|| format!("write {id} done: {result:?}"));
    }

    /// Waits until everything is durable that the reply to a stable WRITE requires.
    async fn until_stable(
        &self,
        object: &Arc<CachedObject>,
        offset: u64,
        len: u64,
        wrote: Wrote,
    ) -> Result<(), Error> {
        if let Some(failures) = wrote.unsynced {
            self.sync(object, offset, len, failures).await?;
        }
        match wrote.frame {
            Some(frame) => self.frame(frame).await,
            None => Ok(()),
        }
    }

    /// Waits until a frame is durable. If the frame is lost, the write verifier changes.
    async fn frame(&self, frame: Seq) -> Result<(), Error> {
        durable(&self.engine, frame).await.inspect_err(|_| self.shared.log_broke())
    }

    fn write_failed(&self, id: u32, number: u8, error: Error) {
        self.shared.model.lock().failed(id);
        self.check("a write", number, error);
    }

    /// Commits all unstable writes of an object.
    pub async fn commit(&mut self, number: u8) {
        let Some(object) = self.object(number).filter(|_| self.shared.model.lock().is_open(number)) else {
            return;
        };
        let seq = self.engine.last();
        let (covered, unsynced) = {
            let model = self.shared.model.lock();
            (model.open(seq), model.unsynced(number))
        };
        self.shared.tell(|| format!("commit {seq} covers {covered:?}, syncs {unsynced:?}"));
        self.sync_all(&object, &unsynced).await;
        match durable(&self.engine, seq).await {
            Ok(()) => {
                let mut model = self.shared.model.lock();
                covered.into_iter().for_each(|id| model.durable_by(id, seq));
                let logged = unsynced.into_iter().map(|(id, _)| id);
                let logged: Vec<u32> = logged.filter(|id| model.open(seq).contains(id)).collect();
                logged.into_iter().for_each(|id| model.durable_by(id, seq));
            }
            // The write verifier has changed, which answers the client's COMMIT.
            Err(_) => self.shared.log_broke(),
        }
    }

    /// Syncs an object's backing file for these writes. If the sync fails, the writes may be lost, and the write
    /// verifier says so.
    async fn sync_all(&self, object: &Arc<CachedObject>, unsynced: &[(u32, u64)]) {
        let Some(failures) = unsynced.iter().map(|(_, failures)| *failures).min() else { return };
        let synced = self.sync(object, 0, 0, failures).await;
        let hits = &self.shared.hits;
        hits.hit(if synced.is_ok() { Fault::Committed } else { Fault::CommitLost });
        let mut model = self.shared.model.lock();
        for (id, _) in unsynced {
            match synced {
                Ok(()) => model.synced(*id),
                Err(_) => model.lost(*id),
            }
        }
    }

    /// Syncs every object with writes in a page cache, as the server does before a stop.
    pub async fn sync_everything(&self) {
        let numbers = self.shared.objects.lock().numbers();
        for number in numbers {
            let unsynced = self.shared.model.lock().unsynced(number);
            if let Some(object) = self.object(number) {
                self.sync_all(&object, &unsynced).await;
            }
        }
    }

    async fn read_somewhere(&mut self, kind: Kind) {
        let Some(number) = self.any() else { return };
        let size = self.shared.model.lock().size(number);
        let habits = self.shared.habits.clone();
        let mut range = habits.range(&mut self.rng, kind, size);
        if kind == Kind::ReadStream {
            range = self.streams[1]..self.streams[1] + habits.longest;
            self.streams[1] = if range.end > size { 0 } else { range.end };
        }
        self.read(number, range.start, (range.end - range.start) as usize).await;
    }

    /// Reads, and checks the returned bytes.
    pub async fn read(&mut self, number: u8, offset: u64, len: usize) {
        let Some(object) = self.object(number) else { return };
        let reading = self.shared.model.lock().begin_read(number, offset, len);
        let mut buffer = vec![0xee; len];
        self.shared.tell(|| format!("read {number} at {offset}+{len}"));
        let result = self.get(number, &object, offset, &mut buffer).await;
        self.shared.tell(|| format!("read {number} at {offset}+{len}: {result:?}"));
        let bytes = result.ok().map(|len| &buffer[..len]);
        if let Err(error) = self.shared.model.lock().end_read(&reading, bytes) {
            self.shared.fail(error);
        }
        if let Err(error) = result {
            self.check("a read", number, error);
        }
    }

    async fn truncate_somewhere(&mut self) {
        let Some(number) = self.any() else { return };
        let size = self.shared.model.lock().size(number);
        let extent = self.shared.habits.extent;
        let sizes = [0, size, size.saturating_sub(1), size / 2, size + 1, self.rng.below(extent + 1)];
        let size = self.rng.pick(&sizes);
        self.truncate(number, size).await;
    }

    /// Truncates or grows an object.
    pub async fn truncate(&mut self, number: u8, size: u64) {
        let all = 0..u64::MAX / 2;
        if self.shared.model.lock().load(number, &all).0 + 4 > crate::register::OPERATIONS {
            return self.commit(number).await;
        }
        let Some(object) = self.object(number) else { return };
        if !self.shared.objects.lock().claim(number) {
            return;
        }
        let now = self.now();
        let id = self.shared.model.lock().begin_truncate(number, size, now);
        self.shared.tell(|| format!("truncate {id} of {number} to {size}"));
        let result = self.engine.truncate(&object, size, now).await;
        match result {
            Ok(()) => self.shared.model.lock().durable_by(id, self.engine.last()),
            Err(error) => {
                self.shared.model.lock().failed(id);
                self.check("a truncation", number, error);
            }
        }
        self.shared.tell(|| format!("truncate {id} done: {result:?}"));
        self.shared.objects.lock().release(number);
    }

    async fn set_some_time(&mut self) {
        let Some(number) = self.any() else { return };
        let all = 0..u64::MAX / 2;
        if self.shared.model.lock().load(number, &all).0 + 4 > crate::register::OPERATIONS {
            return self.commit(number).await;
        }
        let (Some(object), Some(key)) = (self.object(number), self.shared.objects.lock().key(number)) else {
            return;
        };
        if !self.shared.objects.lock().claim(number) {
            return;
        }
        let now = self.now();
        let id = self.shared.model.lock().begin_mtime(number, now);
        self.shared.tell(|| format!("set time {id} of {number} to {now:?}"));
        // As in the server, the file gets the time at once. The engine sets it too if it has something to destage.
        self.shared.store.touch(&key, now);
        match self.engine.set_mtime(&object, now).await {
            Ok(()) => self.shared.model.lock().durable_by(id, self.engine.last()),
            Err(error) => {
                self.shared.model.lock().failed(id);
                self.check("a change of time", number, error);
            }
        }
        self.shared.objects.lock().release(number);
    }

    /// Removes an object, with operations in progress on it, and makes a new one.
    async fn replace_some(&mut self) {
        let Some(number) = self.any() else { return };
        let removed = {
            let mut objects = self.shared.objects.lock();
            let mut model = self.shared.model.lock();
            let extent = self.shared.habits.extent;
            if objects.create(&mut self.rng, extent, &self.shared.store, &mut model).is_none() {
                return;
            }
            model.remove(number);
            objects.remove(number)
        };
        self.adopt();
        if let Some((key, object)) = removed {
            self.shared.tell(|| format!("remove {number}"));
            self.shared.store.remove(&key);
            self.engine.forget(&object).await;
        }
    }

    /// Opens every object that is not open yet.
    pub fn adopt(&self) {
        let mut objects = self.shared.objects.lock();
        for number in objects.numbers() {
            if let (None, Some(key)) = (objects.object(number), objects.key(number)) {
                let size = self.shared.store.current(&key).map_or(0, |content| content.size);
                objects.opened(number, self.engine.object(&key, size));
            }
        }
    }

    /// Destages everything.
    pub async fn flush(&mut self) {
        self.shared.tell(|| "flush".to_owned());
        let result = self.engine.flush().await;
        self.shared.tell(|| format!("flush: {result:?}"));
        let stuck = self.shared.notes.lock().stuck && matches!(result, Err(Error::Backing(_)));
        if let Err(error) = result
            && !self.allowed.permits(error)
            && !stuck
        {
            self.shared.fail(format!("a flush failed: {error}"));
        }
    }

    fn switch_mode(&mut self) {
        let modes = &self.shared.habits.modes;
        if !modes.is_empty() {
            let mode = self.rng.pick(modes);
            self.shared.tell(|| format!("mode {mode:?}"));
            self.engine.set_mode(mode);
            self.shared.hits.hit(Fault::ModeSwitch);
        }
    }
}

/// Fills `data` with the bytes that write `id` leaves at `offset` of object `number`.
pub(crate) fn stamp(data: &mut [u8], offset: u64, number: u8, id: u32) {
    let block_size = forebay_engine::buffer::BLOCK as u64;
    let mut done = 0;
    while done < data.len() {
        let at = offset + done as u64;
        let start = (at % block_size) as usize;
        let len = (block_size as usize - start).min(data.len() - done);
        let place = Place { object: number, block: at / block_size };
        fill(&mut data[done..done + len], start, id, place);
        done += len;
    }
}
