//! The cache engine as the file system layer sees it: the engine's object of each file, and the attributes of a file
//! that only the engine knows.
//!
//! Invariants:
//! - An inode in the inode cache refers to the engine's object of its file, if the engine has one. So its attributes
//!   are complete without a question to the engine.
//! - The engine learns of each change of contents or size through this server before the change, in every mode: it may
//!   hold copies, or be about to.

use std::collections::{HashSet, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use forebay_common::lock::Mutex;
use forebay_engine::io::Key;
use forebay_engine::{CachedObject as Cached, Engine, Error as CacheError, Mode};
use forebay_runtime::block_on;
use rustix::fs::FileType;

use crate::admission::room::Admission;
use crate::attr::{Attr, Time};
use crate::caches::access_time::{AccessTimes, moves_access_times};
use crate::caches::inode::Inode;
use crate::caches::link::key;
use crate::caches::overlay::file_time;
use crate::caches::policies::Policies;
use crate::coherence::downtime::Downtime;
use crate::durability::journal::Done;
use crate::durability::request_journal::RequestJournal;
use crate::durability::resumable_create::ResumableCreates;
use crate::durability::verifier::Verifier;
use crate::error::{Result, from_cache};
use crate::export::filesystem::Filesystem;
use crate::oplog::checkpoint::Checkpoints;
use crate::oplog::{Logging, OpLog};
use crate::sys::KernelHandle;

/// The engine in front of everything served.
pub(crate) struct Cache {
    pub(crate) engine: Arc<Engine>,
    verifier: Arc<Verifier>,
    pub(crate) downtime: Downtime,
    /// The begin of service by the clock of change times. Recovery has ended.
    pub(crate) began: Time,
    pub(crate) oplog: Arc<OpLog>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) under_way: Arc<RequestJournal>,
    pub(crate) begun: ResumableCreates,
    accesses: AccessTimes,
    /// Inodes whose removal is durable, for the engine to forget. Forgetting may wait for room in the log, and a thread
    /// that answers clients must not wait.
    removed: Mutex<Option<Forgetter>>,
    /// The keys of objects that clients have removed, until the engine has forgotten them.
    leaving: Arc<Mutex<HashSet<Key>>>,
    /// True once the log broke: data that was accepted into it may be lost, and the verifier has changed.
    broken: AtomicBool,
}

/// Objects that are remembered as removed when the engine has forgotten them.
const LEFT: usize = 4096;

/// The way to the thread that makes the engine forget objects, and that thread.
type Forgetter = (Sender<Arc<Cached>>, JoinHandle<()>);

/// A frame of the log that an acknowledgement waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LogFrame {
    /// The frame of a change.
    Change(forebay_engine::Seq),
    /// The frame of a COMMIT: when it is lost, the verifier says so, and that is the answer.
    Commit(forebay_engine::Seq),
}

/// A file system's part in the cache.
pub(crate) struct Linked {
    pub(crate) cache: Arc<Cache>,
    pub(crate) admission: Admission,
    pub(crate) logging: Arc<Logging>,
    policies: Arc<Policies>,
    /// The number that tells the file system's files from those of other file systems in keys.
    number: u32,
    /// True if reads move access times.
    moves_access_times: bool,
    /// An offset behind the end of every file.
    beyond: u64,
}

impl Cache {
    /// Returns the cache in front of the file systems, and starts the thread by which the engine forgets removed files.
    pub(crate) fn new(
        engine: Arc<Engine>,
        verifier: Arc<Verifier>,
        downtime: Downtime,
        under_way: Arc<RequestJournal>,
        oplog: Arc<OpLog>,
        checkpoints: Checkpoints,
    ) -> std::io::Result<Arc<Self>> {
        let (send, receive) = channel::<Arc<Cached>>();
        let forgetting = engine.clone();
        let leaving = Arc::<Mutex<HashSet<Key>>>::default();
        let left = leaving.clone();
        let thread = std::thread::Builder::new().name("forebay-forget".into()).spawn(move || {
            let mut last = VecDeque::new();
            for object in receive {
                block_on(forgetting.forget(&object));
                // A destage pass in progress may still look for the file.
                last.push_back(object.key().clone());
                if last.len() > LEFT
                    && let Some(key) = last.pop_front()
                {
                    left.lock().remove(&key);
                }
            }
        })?;
        let removed = Mutex::new(Some((send, thread)));
        let broken = AtomicBool::new(false);
        let (begun, accesses) = (ResumableCreates::default(), AccessTimes::start()?);
        Ok(Arc::new(Cache {
            engine,
            verifier,
            downtime,
            began: file_time(),
            oplog,
            checkpoints,
            under_way,
            begun,
            accesses,
            removed,
            leaving,
            broken,
        }))
    }

    /// Notes that a client has removed the file with this key, so that its absence is expected.
    pub(crate) fn leaves(&self, key: &Key) {
        self.leaving.lock().insert(key.clone());
    }

    /// Returns true if a client has removed the file with this key.
    pub(crate) fn is_leaving(&self, key: &Key) -> bool {
        self.leaving.lock().contains(key)
    }

    /// Makes the engine forget a file whose removal is durable.
    pub(crate) fn forget(&self, object: Arc<Cached>) {
        if let Some((send, _)) = &*self.removed.lock() {
            // The receiver ends only after this sender.
            let _ = send.send(object);
        }
    }

    /// Stops the engine; returns the dirty bytes that stay on the cache devices. Nothing may be asked afterwards.
    pub(crate) fn close(&self) -> std::result::Result<u64, CacheError> {
        if let Some((send, thread)) = self.removed.lock().take() {
            drop(send);
            // A panic there has said so itself.
            let _ = thread.join();
        }
        self.accesses.stop();
        // All requests were answered. So only operations that the file systems lack keep user records in the log.
        let needless = self.checkpoints.make_last();
        let closed = block_on(self.engine.close());
        self.checkpoints.stop();
        // The file systems' marks about a lost log are for the return of that log.
        if needless && !self.broken.load(Ordering::Acquire) {
            self.checkpoints.tidy();
        }
        self.downtime.begin();
        self.under_way.end();
        closed
    }

    /// Calls `done` when the frame is durable, or has failed.
    pub(crate) fn when_durable(self: &Arc<Self>, frame: LogFrame, done: Done) {
        let cache = self.clone();
        let (seq, commit) = match frame {
            LogFrame::Change(seq) => (seq, false),
            LogFrame::Commit(seq) => (seq, true),
        };
        self.engine.when_durable(
            seq,
            Box::new(move |result| match result {
                Ok(()) => done(Ok(())),
                Err(error) => {
                    cache.log_broke();
                    done(if commit { Ok(()) } else { Err(from_cache(error)) });
                }
            }),
        );
    }

    /// Writes a sign of life: every change of the backing store until a moment ago was made through this server.
    pub(crate) fn alive(&self) {
        self.downtime.sign();
    }

    /// Notes that the log broke: data that was accepted into it and is not durable may be lost. Clients have to learn
    /// that, once.
    pub(crate) fn log_broke(&self) {
        if !self.broken.swap(true, Ordering::AcqRel) {
            self.verifier.lost();
        }
    }

    /// Returns true if reads are to be kept in the cache.
    pub(crate) fn keeps_reads(&self) -> bool {
        self.engine.mode() != Mode::PassThrough
    }
}

impl Linked {
    /// Connects a file system, by its number in the cache's keys, with the cache.
    pub(crate) fn new(cache: Arc<Cache>, number: u32, fs: &Filesystem) -> Self {
        let admission = Admission::new(cache.engine.clone(), fs.mount.clone());
        let (logging, policies) = (cache.checkpoints.logging(number), fs.policies.clone());
        let moves_access_times = moves_access_times(fs.mount.as_fd());
        let beyond = fs.largest_file.saturating_sub(1);
        Linked { cache, admission, logging, policies, number, moves_access_times, beyond }
    }

    /// Moves the access time of a file that the cache has read for a client, where the file system would move it.
    /// `attr` are the attributes of the file.
    pub(crate) fn was_read(&self, object: &Arc<Inode>, attr: &mut Attr) {
        if self.moves_access_times {
            self.cache.accesses.read(object, attr, self.beyond);
        }
    }

    /// Asserts that an inode in the inode cache refers to the engine's object of its file, if the engine has one.
    #[cfg(test)]
    pub(crate) fn check(&self, object: &Inode) {
        let known = self.cache.engine.known(&self.key(&object.kernel));
        let linked = object.link.get();
        assert!(known.is_none_or(|known| linked.is_some_and(|linked| Arc::ptr_eq(linked, &known))));
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn key(&self, kernel: &KernelHandle) -> Key {
        key(self.number, kernel)
    }

    /// Links an inode that is about to enter the inode cache to the engine's object of its file, if there is one.
    /// `attr` are the attributes of the backing file.
    pub(crate) fn link_known(&self, object: &Inode, attr: &Attr) {
        if attr.kind != FileType::RegularFile {
            return;
        }
        if let Some(known) = self.cache.engine.known_with_size(&self.key(&object.kernel), attr.size) {
            object.link.get_or_set(known);
        }
    }

    /// Takes note of a read past the cache, for the miss-ratio curve.
    pub(crate) fn saw_past(&self, object: &Inode, offset: u64, len: usize) {
        let engine = &self.cache.engine;
        match object.link.get() {
            Some(cached) => engine.saw_past(cached, offset, len as u64),
            None if engine.is_sampled() => {
                engine.saw_past_key(&self.key(&object.kernel), offset, len as u64);
            }
            None => {}
        }
    }

    /// Returns the engine's object of a file.
    pub(crate) fn object<'a>(&self, object: &'a Inode) -> Result<&'a Arc<Cached>> {
        if let Some(cached) = object.link.get() {
            return Ok(cached);
        }
        // The version comes first, so that no external change stays between it and the size or the contents.
        let version = self.version(object);
        let size = object.attr()?.size;
        let cached = self.cache.engine.object(&self.key(&object.kernel), size);
        version.iter().for_each(|version| cached.begin_to_look(version.number));
        let cached = object.link.get_or_set(cached);
        self.policies.apply(&self.cache.engine, object, cached);
        Ok(cached)
    }
}
