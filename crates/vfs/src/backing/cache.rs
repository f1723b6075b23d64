//! The cache engine as the file system layer sees it: which engine object belongs to which file, and what of a file's
//! attributes only the engine knows.
//!
//! Invariants:
//! - An object of the table whose file the engine knows refers to the engine's object: nobody has to look there for
//!   what the backing store does not know yet.
//! - Before a file's contents or size change through this server, the engine is told, whatever the mode: it may hold
//!   copies, or be about to.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;

use forebay_common::lock::Mutex;
use forebay_disk::block_on;
use forebay_engine::io::{BackingError, Key};
use forebay_engine::{Engine, Error as CacheError, Mode, Object as Cached};
use rustix::fs::FileType;
use rustix::io::Errno;

use crate::admission::quota::Quotas;
use crate::admission::reserve::Reserve;
use crate::attr::Attr;
use crate::caches::inode::Inode;
use crate::coherence::downtime::Downtime;
use crate::durability::journal::{Done, Logged};
use crate::durability::request_journal::RequestJournal;
use crate::durability::resumable_create::ResumableCreates;
use crate::durability::verifier::Verifier;
use crate::error::{Error, Result};
use crate::export::filesystem::Filesystem;
use crate::oplog::{CacheLog, Checkpoints, Logging, OpLog, Tell};
use crate::ops::overlay::Overlay;
use crate::sys::KernelHandle;

/// The engine in front of everything served.
pub(crate) struct Cache {
    pub(crate) engine: Arc<Engine>,
    verifier: Arc<Verifier>,
    pub(crate) downtime: Downtime,
    pub(crate) oplog: Arc<OpLog>,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) under_way: Arc<RequestJournal>,
    pub(crate) begun: ResumableCreates,
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

/// A file system's part in the cache.
pub(crate) struct Linked {
    pub(crate) cache: Arc<Cache>,
    pub(crate) reserve: Reserve,
    pub(crate) quotas: Quotas,
    pub(crate) logging: Arc<Logging>,
    /// The number that tells the file system's files from those of other file systems in keys.
    number: u32,
}

/// The cache's part of an inode.
#[derive(Debug, Default)]
pub(crate) struct Link {
    cached: OnceLock<Arc<Cached>>,
    pub(crate) reads: Reads,
}

/// Returns the key of a file: file system, handle type, kernel handle.
pub(crate) fn key(number: u32, kernel: &KernelHandle) -> Key {
    let mut bytes = smallvec::SmallVec::<[u8; 64]>::new();
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&(kernel.kind as i16).to_le_bytes());
    bytes.extend_from_slice(kernel.as_slice());
    Key::new(&bytes).unwrap_or_else(|| unreachable!("at most 6 + 40 bytes"))
}

/// Returns the file system's number and the kernel handle in a key; `None` if it is not one of ours.
pub(crate) fn parse_key(key: &Key) -> Option<(u32, KernelHandle)> {
    let (number, rest) = key.as_bytes().split_first_chunk::<4>()?;
    let (kind, handle) = rest.split_first_chunk::<2>()?;
    let mut bytes = [0; crate::sys::KERNEL_HANDLE_MAX];
    bytes.get_mut(..handle.len())?.copy_from_slice(handle);
    let kernel = KernelHandle { kind: i16::from_le_bytes(*kind).into(), len: handle.len() as u8, bytes };
    Some((u32::from_le_bytes(*number), kernel))
}

impl Cache {
    pub(crate) fn new(
        engine: Arc<Engine>,
        verifier: Arc<Verifier>,
        downtime: Downtime,
        under_way: Arc<RequestJournal>,
        filesystems: Vec<(u32, Weak<Filesystem>)>,
        tell: Tell,
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
        let oplog = Arc::new(OpLog::new(Arc::new(CacheLog(engine.clone()))));
        let checkpoints = Checkpoints::new(oplog.clone(), filesystems, tell);
        let broken = AtomicBool::new(false);
        let begun = ResumableCreates::default();
        Ok(Arc::new(Cache {
            engine,
            verifier,
            downtime,
            oplog,
            checkpoints,
            under_way,
            begun,
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
    pub(crate) fn when_durable(self: &Arc<Self>, logged: Logged, done: Done) {
        let cache = self.clone();
        let (seq, commit) = match logged {
            Logged::Change(seq) => (seq, false),
            Logged::Commit(seq) => (seq, true),
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
    pub(crate) fn new(cache: Arc<Cache>, number: u32) -> Self {
        let logging = cache.checkpoints.logging(number);
        Linked { cache, reserve: Reserve::default(), quotas: Quotas::default(), logging, number }
    }

    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    pub(crate) fn key(&self, kernel: &KernelHandle) -> Key {
        key(self.number, kernel)
    }

    /// Lets an object that is about to enter the table refer to what the engine knows of it; `attr` is the backing
    /// file's.
    pub(crate) fn meet(&self, object: &Inode, attr: &Attr) {
        if attr.kind != FileType::RegularFile {
            return;
        }
        if let Some(known) = self.cache.engine.meet(&self.key(&object.kernel), attr.size) {
            let _ = object.link.cached.set(known);
        }
    }

    /// Returns the engine's object of a file.
    pub(crate) fn object<'a>(&self, object: &'a Inode) -> Result<&'a Arc<Cached>> {
        if let Some(cached) = object.link.cached.get() {
            return Ok(cached);
        }
        let size = object.attr()?.size;
        let cached = self.cache.engine.object(&self.key(&object.kernel), size);
        Ok(object.link.cached.get_or_init(|| cached))
    }
}

impl Link {
    /// Returns the engine's object, if there is one.
    pub(crate) fn get(&self) -> Option<&Arc<Cached>> {
        self.cached.get()
    }

    /// Returns the engine's corrections to the file's attributes. The caller asks for them before the backing file's
    /// attributes, so that the two together are never older than now.
    pub(crate) fn overlay(&self) -> Option<Overlay<&Cached>> {
        self.cached.get().map(|cached| Overlay::new(&**cached))
    }
}

impl Filesystem {
    /// Returns the cache in front of this file system.
    pub(crate) fn linked(&self) -> Option<&Linked> {
        self.linked.get()
    }

    /// Returns the engine's corrections to a file's attributes, also if the file is not open. The caller asks for them
    /// before the backing file's attributes, like for [`Link::overlay`].
    pub(crate) fn overlay(&self, kernel: &KernelHandle) -> Option<Overlay<Arc<Cached>>> {
        let linked = self.linked.get()?;
        Some(Overlay::new(linked.cache.engine.known(&linked.key(kernel))?))
    }
}

/// Detects streams: reads of one file of which each begins about where an earlier one ended.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    next: AtomicU64,
    run: AtomicU64,
}

/// The bytes in a row that make a stream, which the backing store's own read-ahead serves better than the cache.
const STREAM: u64 = 1 << 20;
/// The distance in bytes by which requests in flight together arrive out of order.
const SPREAD: u64 = 2 << 20;

impl Reads {
    /// Counts a read of uncached data. Returns true if the read belongs to a stream.
    pub(crate) fn streams(&self, offset: u64, len: u64) -> bool {
        let (next, end) = (self.next.load(Ordering::Relaxed), offset + len);
        if offset.abs_diff(next) > SPREAD {
            self.run.store(len, Ordering::Relaxed);
            self.next.store(end, Ordering::Relaxed);
            return len >= STREAM;
        }
        // Only bytes that are read count, not bytes that are skipped.
        let more = end.saturating_sub(next).min(len);
        self.next.store(next.max(end), Ordering::Relaxed);
        self.run.fetch_add(more, Ordering::Relaxed) + more >= STREAM
    }
}

/// Returns an error of the engine in the form in which clients get it.
pub(crate) fn from_cache(error: CacheError) -> Error {
    match error {
        CacheError::Backing(BackingError::Gone) => Error::Stale,
        CacheError::Backing(BackingError::NoSpace) => Error::Os(Errno::NOSPC),
        CacheError::Backing(BackingError::Quota) => Error::Os(Errno::DQUOT),
        CacheError::Backing(BackingError::Io(errno)) => Error::Os(Errno::from_raw_os_error(errno)),
        CacheError::Damaged => Error::Os(Errno::IO),
        // Sent again, it takes another way.
        CacheError::NoDevice | CacheError::Closing => Error::Busy,
        // It may have answered by then.
        CacheError::Late => Error::Busy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_holds_what_it_was_made_of() {
        for len in [8, 12, 40] {
            let mut kernel = KernelHandle { kind: -1, len, bytes: [0; crate::sys::KERNEL_HANDLE_MAX] };
            kernel.bytes[..usize::from(len)].fill(len);
            assert_eq!(parse_key(&key(0x1234_5678, &kernel)), Some((0x1234_5678, kernel)));
        }
        assert_eq!(parse_key(&Key::new(b"short").unwrap()), None);
    }

    #[test]
    fn a_stream_is_noticed_after_a_mebibyte_and_out_of_order_after_two() {
        const K: u64 = 1 << 10;
        for (swap, after) in [(0, 31), (1, 62)] {
            let reads = Reads::default();
            let seen: Vec<_> = (0..100u64).map(|n| reads.streams((n ^ swap) * 32 * K, 32 * K)).collect();
            assert_eq!(seen.iter().position(|stream| *stream), Some(after));
            assert!(seen[after..].iter().all(|stream| *stream));
            assert!(!reads.streams(500 << 20, 4 * K), "it goes on elsewhere");
        }
    }

    #[test]
    fn random_reads_of_a_small_file_are_no_stream() {
        let reads = Reads::default();
        let mut at = 1u64;
        for _ in 0..10_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            assert!(!reads.streams((at >> 40) % 256 * 4096, 4096));
        }
    }
}
