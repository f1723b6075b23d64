//! Clients of the engine: they send requests, and check every answer against the model.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::io::{Clock as _, Time};
use forebay_engine::{CachedObject, Engine, Error};

use crate::hits::Fault;
use crate::rng::Rng;
use crate::stamp::{Place, fill};
use crate::workload::Kind;

mod changes;
mod devices;
mod holes;
mod shared;
mod writes;

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
            if let Err(broken) = self.engine.check() {
                self.shared.fail(broken);
            }
            if self.shared.failure.lock().is_some() {
                return;
            }
        }
    }

    /// Carries out one operation of this kind, on an object that the client chooses by chance. Errors go to
    /// [`Shared::fail`], unless the plan allows them.
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
            Kind::Hole => self.punch_somewhere().await,
            Kind::Allocate => self.allocate_somewhere().await,
            Kind::Clone => self.clone_somewhere().await,
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

    /// Returns the number of an object that chance chooses, or `None` if all objects are removed.
    fn any(&mut self) -> Option<u8> {
        let numbers = self.shared.objects.lock().numbers();
        (!numbers.is_empty()).then(|| self.rng.pick(&numbers))
    }

    fn object(&self, number: u8) -> Option<Arc<CachedObject>> {
        self.shared.objects.lock().object(number)
    }

    /// Returns the client's time for a request. In 3 % of the calls it is an arbitrary time, since clocks of clients
    /// jump.
    fn now(&mut self) -> Time {
        // Clients' clocks jump.
        if self.rng.chance(300) {
            self.shared.hits.hit(Fault::TimeBack);
            return Time { sec: self.rng.below(2_000_000_000) as i64, nsec: 999_999_999 };
        }
        let time = self.shared.executor.time();
        Time { sec: 1_000_000_000 + time.as_secs() as i64, nsec: time.subsec_nanos() }
    }

    /// Reports an error that the plan does not allow as a failure of the world. Any error is allowed for an object
    /// that another client has removed.
    fn check(&self, what: &str, number: u8, error: Error) {
        // Another client may have removed the object meanwhile.
        let removed = self.shared.objects.lock().key(number).is_none();
        if !removed && !self.allowed.permits(error) {
            self.shared.fail(format!("{what} of object {number} failed: {error}"));
        }
    }

    /// Reads a range that the client's habits choose from an object that chance chooses. A stream continues where its
    /// last read ended.
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

    /// Sets one of the modes of the plan, chosen by chance. Does nothing in a world that keeps its mode.
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
