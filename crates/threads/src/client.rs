//! A client of the engine, which calls the engine as a server does.

use std::ops::Range;
use std::sync::Arc;

use forebay_engine::buffer::BLOCK;
use forebay_engine::io::Time;
use shuttle::current;

use forebay_engine::{CachedObject, Engine, Outcome, Seq};

use crate::history::{History, contents};
use crate::promise::promise;
use crate::world::key;

const NOW: Time = Time { sec: 1, nsec: 0 };

/// A client that works on file 1. An operation in progress at a power cut does not end.
#[derive(Clone)]
pub struct Client {
    /// The engine.
    pub engine: Arc<Engine>,
    /// File 1.
    pub file: Arc<CachedObject>,
    history: Arc<History>,
}

/// Names the calling thread after its operation, for the message of a deadlock.
fn doing(what: &str, blocks: &Range<u64>) {
    current::set_name_for_task(current::me(), format!("{what} {blocks:?}"));
}

impl Client {
    /// Makes a client that notes its operations in `history`. The backing store has `size` bytes of the file.
    pub fn new(engine: Arc<Engine>, size: u64, history: &Arc<History>) -> Self {
        let file = engine.object(&key(1), size);
        Client { engine, file, history: history.clone() }
    }

    /// Waits until the frame is durable. Panics if the engine reports that the frame is lost.
    async fn durable(&self, frame: Seq) {
        let (promise, kept) = promise();
        self.engine.when_durable(frame, Box::new(move |result| promise.keep(result)));
        assert_eq!(kept.await, Ok(()), "frame {frame}");
    }

    /// Writes blocks as a server does: first without waiting, then with waiting. Returns when the data are durable.
    async fn put(&self, file: &Arc<CachedObject>, blocks: Range<u64>, value: u8) {
        doing("writes", &blocks);
        let data: Vec<u8> = blocks.clone().flat_map(|block| contents(block, value)).collect();
        let at = blocks.start * BLOCK as u64;
        let frame = match self.engine.try_write(file, at, &data, NOW) {
            Ok(Outcome::Done(frame)) => Ok(frame),
            Ok(_) => self.engine.write(file, at, &data, NOW).await,
            Err(error) => Err(error),
        };
        match frame {
            Ok(frame) => self.durable(frame).await,
            Err(error) => panic!("the write fails: {error}"),
        }
    }

    /// Writes blocks, FILE_SYNC.
    pub async fn write(&self, blocks: Range<u64>, value: u8) {
        let begun = self.history.begin(blocks.clone(), value);
        self.put(&self.file, blocks, value).await;
        self.history.end(begun);
    }

    /// Writes this number of blocks of another file. That file is not checked.
    pub async fn fill(&self, blocks: u64) {
        let other = self.engine.object(&key(2), 0);
        self.put(&other, 0..blocks, 1).await;
    }

    /// Truncates the file to this number of blocks.
    pub async fn cut(&self, blocks: u64) {
        doing("cuts", &(blocks..u64::MAX));
        let begun = self.history.begin(blocks..u64::MAX, 0);
        let cut = self.engine.truncate(&self.file, blocks * BLOCK as u64, NOW).await;
        assert_eq!(cut, Ok(()));
        self.history.end(begun);
    }

    /// Sets the file's modification time.
    pub async fn touch(&self) {
        doing("touches", &(0..0));
        assert_eq!(self.engine.set_mtime(&self.file, NOW).await, Ok(()));
    }

    /// Destages everything.
    pub async fn flush(&self) {
        doing("flushes", &(0..0));
        assert_eq!(self.engine.flush().await, Ok(()));
    }

    /// Reads blocks, one by one, and checks their contents.
    pub async fn read(&self, blocks: Range<u64>) {
        for block in blocks {
            self.read_at_once(block..block + 1).await;
        }
    }

    /// Reads blocks with one call, and checks their contents. Returns all bytes; bytes behind the end of the file are
    /// zero.
    pub async fn read_at_once(&self, blocks: Range<u64>) -> Vec<u8> {
        doing("reads", &blocks);
        let since = self.history.now();
        let at = blocks.start * BLOCK as u64;
        let mut bytes = vec![0; (blocks.end - blocks.start) as usize * BLOCK];
        let read = match self.engine.try_read(&self.file, at, &mut bytes) {
            Outcome::Done(n) => Ok(n),
            _ => self.engine.read(&self.file, at, &mut bytes).await,
        };
        if let Err(error) = read {
            panic!("the read of {blocks:?} fails: {error}");
        }
        for (block, bytes) in blocks.zip(bytes.chunks(BLOCK)) {
            if let Err(wrong) = self.history.saw(since, block, bytes) {
                panic!("{wrong}; size {}, {:?}", self.file.size(), self.engine.effective_mode());
            }
        }
        bytes
    }
}
