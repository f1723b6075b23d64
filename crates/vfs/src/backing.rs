//! The served file systems as the cache engine's backing store.
//!
//! Rules: a failed sync is an error for everything written to the file before it, whoever was told of it; and a file is
//! reported gone only once its removal is durable, since the engine then gives up the only other copy of its contents.

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use forebay_engine::buffer::{Buffer, Slice};
use forebay_engine::io::{Backing, BackingError, BackingResult, Disowned as What, Io, Key, Time};
use forebay_lock::Mutex;
use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use crate::cache::parse_key;
use crate::data::{read_full, write_full};
use crate::disowned::Disowned;
use crate::error::{Error, Result};
use crate::export::Wait;
use crate::fs::{Filesystem, Scheme};
use crate::object::Object;
use crate::table::Budget;

/// How often a file is looked for by its names before it is taken for gone: it may be renamed while the tree is walked.
const WALKS: usize = 3;

/// Every served file system, as [`Backing`].
#[derive(Clone)]
pub struct Store(Arc<Inner>);

/// The number of the volume of a file that was never one of ours.
const NO_VOLUME: u32 = u32::MAX;

struct Inner {
    /// By their numbers in keys.
    filesystems: Vec<(u32, Arc<Filesystem>)>,
    /// The exported directories of each.
    names: Vec<String>,
    budget: Budget,
    /// Files written since their last sync, so that their descriptors stay: the kernel tells of a failed write-back
    /// once per descriptor.
    written: Mutex<HashMap<Key, Written>>,
    disowned: Disowned,
}

#[derive(Clone)]
struct Written {
    fs: Arc<Filesystem>,
    object: Arc<Object>,
    /// [`Uncommitted::errors`](crate::uncommitted::Uncommitted::errors) from before the first write.
    errors: u64,
}

impl Store {
    /// `names` says what each of the file systems is called.
    pub(crate) fn new(
        filesystems: Vec<(u32, Arc<Filesystem>)>,
        names: Vec<String>,
        budget: Budget,
        state_dir: &Path,
    ) -> Self {
        let disowned = Disowned::new(state_dir);
        Store(Arc::new(Inner { filesystems, names, budget, written: Mutex::default(), disowned }))
    }

    /// The file systems by their numbers in keys.
    pub(crate) fn filesystems(&self) -> &[(u32, Arc<Filesystem>)] {
        &self.0.filesystems
    }

    /// Runs `work` when the result is first polled; it may block the thread.
    fn later<T: Send + 'static>(&self, work: impl FnOnce(&Inner) -> T + Send + 'static) -> Io<T> {
        let inner = self.0.clone();
        let future: Box<dyn Future<Output = T> + Send> = Box::new(async move { work(&inner) });
        Box::into_pin(future)
    }
}

impl Inner {
    fn find(&self, key: &Key) -> BackingResult<Written> {
        if let Some(written) = self.written.lock().get(key) {
            return Ok(written.clone());
        }
        let (number, kernel) = parse_key(key).ok_or(BackingError::Io(Errno::INVAL.raw_os_error()))?;
        let fs = self.filesystems.iter().find(|(id, _)| *id == number);
        // Not served now: what the cache has for it must wait until it is again.
        let (_, fs) = fs.ok_or(BackingError::Io(Errno::NODEV.raw_os_error()))?;
        let tries = if matches!(fs.scheme, Scheme::Kernel) { 1 } else { WALKS };
        let mut found = Err(Error::Stale);
        for _ in 0..tries {
            found = fs.resolve(&kernel, true).and_then(|object| object.attr().map(|_| object));
            if found.as_ref().err() != Some(&Error::Stale) {
                break;
            }
        }
        let object = found.map_err(|error| gone_for_good(fs, error))?;
        let errors = object.uncommitted.errors();
        Ok(Written { fs: fs.clone(), object, errors })
    }

    /// Runs a change of the file.
    fn change(&self, key: &Key, change: impl FnOnce(&Written) -> Result<()>) -> BackingResult<()> {
        let written = self.find(key)?;
        self.written.lock().entry(key.clone()).or_insert_with(|| written.clone());
        let _own = written.fs.hidden_change(&written.object);
        change(&written).map_err(|error| gone_for_good(&written.fs, error))
    }

    fn sync(&self, keys: &[Key]) -> Vec<BackingResult<()>> {
        let taken: Vec<_> = keys
            .iter()
            .map(|key| {
                let written = self.written.lock().remove(key);
                written.map_or_else(|| self.find(key), Ok)
            })
            .collect();
        let mut results: Vec<_> =
            taken.iter().map(|found| found.as_ref().map(drop).map_err(|e| *e)).collect();
        for (_, fs) in &self.filesystems {
            let mine = |found: &BackingResult<Written>| found.as_ref().is_ok_and(|w| Arc::ptr_eq(&w.fs, fs));
            let places: Vec<_> =
                (0..taken.len()).filter(|at| results[*at].is_ok() && mine(&taken[*at])).collect();
            if places.is_empty() {
                continue;
            }
            let files: Vec<_> = places
                .iter()
                .filter_map(|at| taken[*at].as_ref().ok())
                .map(|written| (written.object.clone(), written.errors))
                .collect();
            let proof = fs.linked().map(|linked| linked.cache.oplog.proof());
            let synced = fs.journal.sync_files(&files);
            let committed = synced.iter().any(Result::is_ok) && !fs.journal.has_failed();
            if let Some((linked, proof)) = fs.linked().zip(proof).filter(|_| committed) {
                linked.logging.proven(proof);
            }
            for (at, result) in places.into_iter().zip(synced) {
                results[at] = result.map_err(|error| gone_for_good(fs, error));
            }
            if let Some(linked) = fs.linked() {
                linked.cache.alive();
            }
        }
        results
    }
}

/// The engine's form of an error. That a file is gone is said only when it stays so after a crash.
fn gone_for_good(fs: &Filesystem, error: Error) -> BackingError {
    match error {
        Error::Stale => match fs.journal.barrier() {
            Ok(()) => BackingError::Gone,
            Err(error) => io_error(error),
        },
        error => io_error(error),
    }
}

pub(crate) fn io_error(error: Error) -> BackingError {
    match error {
        Error::Os(Errno::NOSPC) => BackingError::NoSpace,
        Error::Os(Errno::DQUOT) => BackingError::Quota,
        Error::Os(errno) => BackingError::Io(errno.raw_os_error()),
        _ => BackingError::Io(Errno::IO.raw_os_error()),
    }
}

/// Of the state directory.
fn state_error(error: std::io::Error) -> BackingError {
    BackingError::Io(error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()))
}

impl Backing for Store {
    fn volumes(&self) -> Vec<u32> {
        self.0.filesystems.iter().map(|(number, _)| *number).collect()
    }

    fn volume(&self, object: &Key) -> u32 {
        parse_key(object).map_or(NO_VOLUME, |(number, _)| number)
    }

    fn name(&self, volume: u32) -> String {
        let mut named = self.0.filesystems.iter().zip(&self.0.names);
        let found = named.find(|((number, _), _)| *number == volume);
        found.map_or_else(|| "a file system that is not served now".to_owned(), |(_, name)| name.clone())
    }

    fn size(&self, object: &Key) -> Io<BackingResult<u64>> {
        let key = object.clone();
        self.later(move |inner| {
            let found = inner.find(&key)?;
            found.object.raw_attr().map(|attr| attr.size).map_err(|error| gone_for_good(&found.fs, error))
        })
    }

    fn read(&self, object: &Key, offset: u64, mut buffer: Buffer) -> Io<(Buffer, BackingResult<usize>)> {
        let key = object.clone();
        self.later(move |inner| {
            let read = inner.find(&key).and_then(|found| {
                let fd = found.object.reader(&inner.budget, true);
                let read = fd.and_then(|fd| read_full(fd, &mut buffer, offset, Wait::Yes));
                read.map_err(|error| gone_for_good(&found.fs, error))
            });
            (buffer, read)
        })
    }

    fn write(&self, object: &Key, offset: u64, data: Slice) -> Io<BackingResult<()>> {
        let key = object.clone();
        self.later(move |inner| {
            inner.change(&key, |found| {
                let fd = found.object.writer(&inner.budget, true)?;
                let mut done = 0;
                while done < data.len() {
                    // Some is written, or there is an error.
                    done += write_full(fd, &data[done..], offset + done as u64)?.max(1);
                }
                Ok(())
            })
        })
    }

    fn truncate(&self, object: &Key, size: u64) -> Io<BackingResult<()>> {
        let key = object.clone();
        self.later(move |inner| {
            inner.change(&key, |found| {
                let fd = found.object.writer(&inner.budget, true)?;
                Ok(rustix::fs::ftruncate(fd, size)?)
            })
        })
    }

    fn set_mtime(&self, object: &Key, mtime: Time) -> Io<BackingResult<()>> {
        let key = object.clone();
        self.later(move |inner| {
            inner.change(&key, |found| {
                let times = Timestamps {
                    last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                    last_modification: Timespec { tv_sec: mtime.sec, tv_nsec: i64::from(mtime.nsec) },
                };
                let path = found.object.path();
                Ok(rustix::fs::utimensat(path, c"", &times, AtFlags::EMPTY_PATH)?)
            })
        })
    }

    fn sync(&self, objects: Vec<Key>) -> Io<Vec<BackingResult<()>>> {
        self.later(move |inner| inner.sync(&objects))
    }

    fn free(&self) -> Io<BackingResult<u64>> {
        self.later(|inner| {
            let mut least = u64::MAX;
            for (_, fs) in &inner.filesystems {
                let stat = rustix::fs::fstatvfs(fs.mount());
                let stat = stat.map_err(|errno| BackingError::Io(errno.raw_os_error()))?;
                least = least.min(stat.f_bavail * stat.f_frsize);
            }
            Ok(least)
        })
    }

    fn disown(&self, pool: u128, object: &Key, what: What) -> Io<BackingResult<()>> {
        let key = object.clone();
        self.later(move |inner| inner.disowned.add(pool, &key, &what).map_err(state_error))
    }

    fn disowned(&self, pool: u128) -> Io<BackingResult<Vec<(Key, What)>>> {
        self.later(move |inner| inner.disowned.all(pool).map_err(state_error))
    }

    fn forget_disowned(&self, pool: u128) -> Io<BackingResult<()>> {
        self.later(move |inner| inner.disowned.forget(pool).map_err(state_error))
    }
}
