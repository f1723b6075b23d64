//! The served file systems as the cache engine's backing store.
//!
//! Rules:
//! - A failed sync is an error for everything written to the file before it, whichever caller was told of the failure.
//! - A file is reported as removed only if the server itself, or the log, knows of its removal, and once that is
//!   durable. The engine then gives up the only other copy of its contents.
//! - The contents of a file that vanished in any other way are set aside ([`Lost`]).

pub(crate) mod io_pool;

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use forebay_common::lock::Mutex;
use forebay_engine::buffer::{Buffer, Slice};
use forebay_engine::io::{Backing, BackingError, BackingResult, Disowned as What, Io, Key, Time};
use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use crate::backing::io_pool::IoPool;
use crate::caches::budget::{Budget, CountedFd};
use crate::caches::inode::Inode;
use crate::caches::link::parse_key;
use crate::error::{Error, Result, io_error};
use crate::export::filesystem::{Filesystem, Scheme};
use crate::file_io::{read_full, write_full};
use crate::state::disowned::Disowned;
use crate::state::lost::{About, Lost, LostFile, Why, path_of};
use crate::sys::KernelHandle;
use crate::wait::Wait;

/// The number of walks in search of a file by its names, before the file counts as removed. It may be renamed while the
/// tree is walked.
const WALKS: usize = 3;

/// Every served file system, as [`Backing`].
#[derive(Clone)]
pub struct Store(Arc<Inner>, Arc<Vec<(u32, IoPool)>>);

/// The number of the volume of a file that was never one of ours.
const NO_VOLUME: u32 = u32::MAX;

struct Inner {
    /// The file systems, by their numbers in keys.
    filesystems: Vec<(u32, Arc<Filesystem>)>,
    /// The exported directories of each.
    names: Vec<String>,
    budget: Budget,
    /// Files written since their last sync, so that their descriptors stay: the kernel tells of a failed write-back
    /// once per descriptor.
    written: Mutex<HashMap<Key, Written>>,
    disowned: Disowned,
    lost: Lost,
    /// Numbers of file systems that were given up: the cache's data for them is set aside.
    given_up: HashSet<u32>,
    /// The log's facts about inodes at the start.
    logged: Mutex<Logged>,
}

/// The facts that a log has about inodes that may not exist any more.
#[derive(Default)]
pub(crate) struct Logged {
    /// A name of them was removed.
    pub(crate) removed: HashSet<Key>,
    /// The last name that it has of them: directory and name.
    pub(crate) names: HashMap<Key, (KernelHandle, Box<[u8]>)>,
}

/// The destination of an object's contents.
enum Place {
    File(Written),
    /// A file of the state directory.
    Lost,
}

#[derive(Clone)]
struct Written {
    fs: Arc<Filesystem>,
    object: Arc<Inode>,
    /// [`Uncommitted::errors`](crate::caches::uncommitted::Uncommitted::errors) from before the first write.
    errors: u64,
    /// The descriptor for writing, so that it stays open.
    writer: Option<Arc<CountedFd>>,
}

/// Why nothing can be done to an object's file.
#[derive(Clone)]
enum Missing {
    /// Its removal is known, but perhaps not durable.
    Removed(Arc<Filesystem>),
    /// Anything else.
    Failed(BackingError),
}

impl Missing {
    /// Returns the engine's form of it; that the file is gone only once its removal is durable.
    fn confirmed(self) -> BackingError {
        match self {
            Missing::Removed(fs) => fs.journal.barrier().map_or_else(io_error, |()| BackingError::Gone),
            Missing::Failed(error) => error,
        }
    }
}

impl Store {
    /// Creates the backing store of these file systems; `names` has the name of each.
    pub(crate) fn new(
        filesystems: Vec<(u32, Arc<Filesystem>)>,
        names: Vec<String>,
        budget: Budget,
        state_dir: &Path,
        given_up: HashSet<u32>,
    ) -> Self {
        let (disowned, lost) = (Disowned::new(state_dir), Lost::new(state_dir));
        let (written, logged) = (Mutex::default(), Mutex::default());
        let hands = filesystems.iter().map(|(number, _)| (*number, IoPool::new())).collect();
        let inner = Inner { filesystems, names, budget, written, disowned, lost, given_up, logged };
        Store(Arc::new(inner), Arc::new(hands))
    }

    /// Sets `tell`, which is called with everything that is set aside from now on.
    pub fn on_lost(&self, tell: impl Fn(&LostFile) + Send + Sync + 'static) {
        self.0.lost.on_new(Box::new(tell));
    }

    /// Returns whether the file system with this number is served or was given up, so that cached changes of it have a
    /// place to go.
    pub fn takes(&self, number: u32) -> bool {
        self.is_given_up(number) || self.0.filesystems.iter().any(|(id, _)| *id == number)
    }

    /// Returns true if the data that the log and the cache have for a file system with this number is to be set aside.
    pub(crate) fn is_given_up(&self, number: u32) -> bool {
        self.0.given_up.contains(&number)
    }

    /// Stores the facts about inodes that were found in the log.
    pub(crate) fn logged(&self, logged: Logged) {
        *self.0.logged.lock() = logged;
    }

    /// Keeps a list of changes in a file system that was given up, durably.
    pub(crate) fn keep_changes(&self, number: u32, changes: &str) -> std::io::Result<()> {
        let exports = format!("file system {number}, which was given up");
        let about = About { path: String::new(), exports, why: Why::Changes };
        self.0.lost.write_text(&format!("changes {number}"), changes, &about)
    }

    /// Returns the file systems by their numbers in keys.
    pub(crate) fn filesystems(&self) -> &[(u32, Arc<Filesystem>)] {
        &self.0.filesystems
    }

    /// Begins `work` on the object's file system, beside whatever else is done there (`backing/io_pool.rs`).
    fn begin<T: Send + 'static>(
        &self,
        object: Option<&Key>,
        work: impl FnOnce(&Inner) -> T + Send + 'static,
    ) -> Io<T> {
        let volume = object.and_then(parse_key).map_or(NO_VOLUME, |(number, _)| number);
        match self.1.iter().find(|(number, _)| *number == volume) {
            Some((_, hands)) => {
                let inner = self.0.clone();
                hands.run(move || work(&inner))
            }
            None => self.later(work),
        }
    }

    /// Runs `work` when the result is first polled; it may block the thread for as long as the state directory takes.
    fn later<T: Send + 'static>(&self, work: impl FnOnce(&Inner) -> T + Send + 'static) -> Io<T> {
        let inner = self.0.clone();
        let future: Box<dyn Future<Output = T> + Send> = Box::new(async move { work(&inner) });
        Box::into_pin(future)
    }
}

impl Inner {
    fn find(&self, key: &Key) -> BackingResult<Place> {
        self.look_for(key).map_err(Missing::confirmed)
    }

    fn look_for(&self, key: &Key) -> std::result::Result<Place, Missing> {
        if let Some(written) = self.written.lock().get(key) {
            return Ok(Place::File(written.clone()));
        }
        let failed = |errno: Errno| Missing::Failed(BackingError::Io(errno.raw_os_error()));
        let (number, kernel) = parse_key(key).ok_or(failed(Errno::INVAL))?;
        if self.given_up.contains(&number) {
            return Ok(Place::Lost);
        }
        let fs = self.filesystems.iter().find(|(id, _)| *id == number);
        // The file system is not served now. The cache's data for it must wait until it is served again.
        let (_, fs) = fs.ok_or(failed(Errno::NODEV))?;
        let tries = if matches!(fs.scheme, Scheme::Kernel) { 1 } else { WALKS };
        let mut found = Err(Error::Stale);
        for _ in 0..tries {
            found = fs.resolve(&kernel, true).and_then(|object| object.attr().map(|_| object));
            if found.as_ref().err() != Some(&Error::Stale) {
                break;
            }
        }
        if found.as_ref().err() == Some(&Error::Stale) && !self.is_removed(fs, key, &kernel) {
            return Ok(Place::Lost);
        }
        let object = found.map_err(|error| self.missing(fs, key, error))?;
        let errors = object.uncommitted.errors();
        Ok(Place::File(Written { fs: fs.clone(), object, errors, writer: None }))
    }

    /// Returns true if a client has removed a name of an inode, as far as the server or its log knows.
    fn is_removed(&self, fs: &Filesystem, key: &Key, kernel: &KernelHandle) -> bool {
        // In the order in which a removal goes from one to the next.
        fs.removals.lock().is_under_way(kernel)
            || fs.linked().is_some_and(|linked| linked.cache.is_leaving(key))
            || self.logged.lock().removed.contains(key)
    }

    /// Runs a change of the file, or of its data that is set aside.
    fn change(
        &self,
        key: &Key,
        change: impl FnOnce(&Written) -> Result<()>,
        lost: impl FnOnce() -> std::io::Result<()>,
    ) -> BackingResult<()> {
        let mut written = match self.find(key)? {
            Place::File(written) => written,
            Place::Lost => return lost().map_err(state_error),
        };
        if written.writer.is_none() {
            written.writer = written.object.opened_writer(&self.budget);
        }
        self.written.lock().entry(key.clone()).or_insert_with(|| written.clone());
        let _own = written.fs.hidden_change(&written.object);
        change(&written).map_err(|error| self.gone_for_good(&written.fs, key, error))
    }

    /// Returns the description of an inode that is set aside.
    fn about(&self, key: &Key) -> About {
        let number = parse_key(key).map_or(NO_VOLUME, |(number, _)| number);
        let place = self.filesystems.iter().position(|(id, _)| *id == number);
        let exports = place
            .map_or_else(|| format!("file system {number}, which was given up"), |at| self.names[at].clone());
        let named = self.logged.lock().names.get(key).cloned();
        let path = named.map(|(dir, name)| {
            let fs = place.map(|at| &self.filesystems[at].1);
            let dir = fs.and_then(|fs| fs.resolve(&dir, true).ok());
            dir.map_or_else(|| String::from_utf8_lossy(&name).into_owned(), |dir| path_of(dir.path(), &name))
        });
        let why = if place.is_some() { Why::Gone } else { Why::GivenUp };
        About { path: path.unwrap_or_default(), exports, why }
    }

    /// Returns the engine's form of an error. It says that a file is removed only if the removal is known and survives
    /// a crash.
    fn gone_for_good(&self, fs: &Arc<Filesystem>, key: &Key, error: Error) -> BackingError {
        self.missing(fs, key, error).confirmed()
    }

    /// Returns the meaning of an error for the file. Never waits for the disk.
    fn missing(&self, fs: &Arc<Filesystem>, key: &Key, error: Error) -> Missing {
        match error {
            Error::Stale => match parse_key(key).filter(|(_, kernel)| self.is_removed(fs, key, kernel)) {
                Some(_) => Missing::Removed(fs.clone()),
                // Asked again, it is set aside.
                None => Missing::Failed(BackingError::Io(Errno::STALE.raw_os_error())),
            },
            error => Missing::Failed(io_error(error)),
        }
    }

    /// Returns the engine's form of the results for several objects. One barrier for each file system makes all
    /// removals durable.
    fn confirmed<T>(&self, found: Vec<std::result::Result<T, Missing>>) -> Vec<BackingResult<T>> {
        let barrier = |(_, fs): &(u32, Arc<Filesystem>)| {
            let is_here = |missing: &Missing| matches!(missing, Missing::Removed(it) if Arc::ptr_eq(it, fs));
            let wanted = found.iter().any(|found| found.as_ref().err().is_some_and(is_here));
            wanted.then(|| fs.journal.barrier())
        };
        let barriers: Vec<_> = self.filesystems.iter().map(barrier).collect();
        let result = |missing: Missing| match missing {
            Missing::Removed(fs) => {
                let at = self.filesystems.iter().position(|(_, other)| Arc::ptr_eq(other, &fs));
                match at.and_then(|at| barriers[at]) {
                    Some(Err(error)) => io_error(error),
                    Some(Ok(())) => BackingError::Gone,
                    None => Missing::Removed(fs).confirmed(),
                }
            }
            missing => missing.confirmed(),
        };
        found.into_iter().map(|found| found.map_err(result)).collect()
    }

    fn size(&self, key: &Key) -> std::result::Result<u64, Missing> {
        let state = |error| Missing::Failed(state_error(error));
        match self.look_for(key)? {
            Place::File(found) => {
                let attr = found.object.raw_attr();
                attr.map(|attr| attr.size).map_err(|error| self.missing(&found.fs, key, error))
            }
            Place::Lost => self.lost.size(key).map_err(state),
        }
    }

    fn sync(&self, keys: &[Key]) -> Vec<BackingResult<()>> {
        let taken: Vec<_> = keys
            .iter()
            .map(|key| {
                let written = self.written.lock().remove(key);
                written.map_or_else(|| self.look_for(key), |written| Ok(Place::File(written)))
            })
            .collect();
        let lost = |(key, found): (&Key, &std::result::Result<Place, Missing>)| match found {
            Ok(Place::Lost) => self.lost.sync(key).map_err(|error| Missing::Failed(state_error(error))),
            Ok(Place::File(_)) => Ok(()),
            Err(missing) => Err(missing.clone()),
        };
        let mut results: Vec<_> = keys.iter().zip(&taken).map(lost).collect();
        for (_, fs) in &self.filesystems {
            let mine = |at: usize| match &taken[at] {
                Ok(Place::File(written)) if Arc::ptr_eq(&written.fs, fs) => Some((at, written)),
                _ => None,
            };
            let mine: Vec<_> = (0..taken.len()).filter_map(mine).collect();
            if mine.is_empty() {
                continue;
            }
            let files: Vec<_> =
                mine.iter().map(|(_, written)| (written.object.clone(), written.errors)).collect();
            let proof = fs.linked().map(|linked| linked.cache.oplog.proof());
            let synced = fs.journal.sync_files(&files);
            let committed = synced.iter().any(Result::is_ok) && !fs.journal.has_failed();
            if let Some((linked, proof)) = fs.linked().zip(proof).filter(|_| committed) {
                linked.logging.proven(proof);
            }
            for ((at, _), result) in mine.into_iter().zip(synced) {
                results[at] = result.map_err(|error| self.missing(fs, &keys[at], error));
            }
            if let Some(linked) = fs.linked() {
                linked.cache.alive();
            }
        }
        let objects: Vec<_> = taken
            .iter()
            .filter_map(|found| match found {
                Ok(Place::File(written)) => Some(written.object.clone()),
                _ => None,
            })
            .collect();
        drop(taken);
        objects.iter().for_each(|object| object.rest());
        self.confirmed(results)
    }
}

/// Converts an error of the state directory.
fn state_error(error: std::io::Error) -> BackingError {
    match Errno::from_io_error(&error) {
        Some(errno) => io_error(Error::Os(errno)),
        None => BackingError::Io(Errno::IO.raw_os_error()),
    }
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
        self.begin(Some(object), move |inner| inner.size(&key).map_err(Missing::confirmed))
    }

    fn sizes(&self, objects: Vec<Key>) -> Io<Vec<BackingResult<u64>>> {
        self.begin(objects.first().cloned().as_ref(), move |inner| {
            inner.confirmed(objects.iter().map(|key| inner.size(key)).collect())
        })
    }

    fn read(&self, object: &Key, offset: u64, mut buffer: Buffer) -> Io<(Buffer, BackingResult<usize>)> {
        let key = object.clone();
        self.begin(Some(object), move |inner| {
            let read = inner.find(&key).and_then(|place| {
                let found = match place {
                    Place::File(found) => found,
                    Place::Lost => return inner.lost.read(&key, offset, &mut buffer).map_err(state_error),
                };
                let fd = found.object.reader(&inner.budget, true);
                let read = fd.and_then(|fd| read_full(fd, &mut buffer, offset, Wait::Yes));
                read.map_err(|error| inner.gone_for_good(&found.fs, &key, error))
            });
            (buffer, read)
        })
    }

    fn write(&self, object: &Key, offset: u64, data: Slice) -> Io<BackingResult<()>> {
        let key = object.clone();
        self.begin(Some(object), move |inner| {
            let write = |found: &Written| {
                let fd = found.object.writer(&inner.budget, true)?;
                let mut done = 0;
                while done < data.len() {
                    // Some is written, or there is an error.
                    done += write_full(fd.as_fd(), &data[done..], offset + done as u64)?.max(1);
                }
                Ok(())
            };
            inner.change(&key, write, || inner.lost.write(&key, offset, &data, || inner.about(&key)))
        })
    }

    fn truncate(&self, object: &Key, size: u64) -> Io<BackingResult<()>> {
        let key = object.clone();
        self.begin(Some(object), move |inner| {
            let cut = |found: &Written| {
                let fd = found.object.writer(&inner.budget, true)?;
                Ok(rustix::fs::ftruncate(fd, size)?)
            };
            inner.change(&key, cut, || inner.lost.truncate(&key, size))
        })
    }

    fn set_mtime(&self, object: &Key, mtime: Time) -> Io<BackingResult<()>> {
        let key = object.clone();
        self.begin(Some(object), move |inner| {
            let set = |found: &Written| {
                let times = Timestamps {
                    last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                    last_modification: Timespec { tv_sec: mtime.sec, tv_nsec: i64::from(mtime.nsec) },
                };
                let path = found.object.path();
                Ok(rustix::fs::utimensat(path, c"", &times, AtFlags::EMPTY_PATH)?)
            };
            inner.change(&key, set, || inner.lost.set_mtime(&key, mtime))
        })
    }

    fn sync(&self, objects: Vec<Key>) -> Io<Vec<BackingResult<()>>> {
        self.begin(objects.first().cloned().as_ref(), move |inner| inner.sync(&objects))
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
