//! The served file systems as the cache engine's backing store.
//!
//! Rules:
//! - A failed sync is an error for everything written to the file before it, whichever caller was told of the failure.
//! - A file is reported as removed only if the server itself, or the log, knows of its removal, and once that is
//!   durable. The engine then gives up the only other copy of its contents.
//! - The contents of a file that vanished in any other way are set aside ([`Lost`]).

mod files;

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use forebay_common::lock::Mutex;
use forebay_engine::buffer::{Buffer, Slice};
use forebay_engine::io::{Backing, BackingError, BackingResult, Disowned as DisownedRange, Io, Key, Time};
use forebay_runtime::IoPool;
use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use crate::backing::files::{Missing, Written};

use crate::caches::budget::Budget;
use crate::caches::link::parse_key;
use crate::error::{Error, io_error};
use crate::export::filesystem::Filesystem;
use crate::file_io::write_full;
use crate::state::disowned::Disowned;
use crate::state::lost::{About, Lost, LostFile, Why};
use crate::sys::KernelHandle;

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
        let pools = filesystems.iter().map(|(number, _)| (*number, IoPool::new())).collect();
        let inner = Inner { filesystems, names, budget, written, disowned, lost, given_up, logged };
        Store(Arc::new(inner), Arc::new(pools))
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

    /// Begins `work` on the object's file system, beside whatever else is done there.
    fn begin<T: Send + 'static>(
        &self,
        object: Option<&Key>,
        work: impl FnOnce(&Inner) -> T + Send + 'static,
    ) -> Io<T> {
        let volume = object.and_then(parse_key).map_or(NO_VOLUME, |(number, _)| number);
        match self.1.iter().find(|(number, _)| *number == volume) {
            Some((_, pools)) => {
                let inner = self.0.clone();
                pools.run(move || work(&inner))
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
            let read = inner.read(&key, offset, &mut buffer);
            (buffer, read)
        })
    }

    fn read_inline(
        &self,
        object: &Key,
        offset: u64,
        mut buffer: Buffer,
    ) -> Io<(Buffer, BackingResult<usize>)> {
        let key = object.clone();
        self.later(move |inner| {
            let read = inner.read(&key, offset, &mut buffer);
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

    fn disown(&self, pool: u128, object: &Key, what: DisownedRange) -> Io<BackingResult<()>> {
        let key = object.clone();
        self.later(move |inner| inner.disowned.add(pool, &key, &what).map_err(state_error))
    }

    fn disowned(&self, pool: u128) -> Io<BackingResult<Vec<(Key, DisownedRange)>>> {
        self.later(move |inner| inner.disowned.all(pool).map_err(state_error))
    }

    fn forget_disowned(&self, pool: u128) -> Io<BackingResult<()>> {
        self.later(move |inner| inner.disowned.forget(pool).map_err(state_error))
    }
}
