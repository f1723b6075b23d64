//! The file of an object: where it is, what is known if it is gone, and its syncs.

use std::sync::Arc;

use forebay_engine::io::{BackingError, BackingResult, Key};
use rustix::io::Errno;

use super::{Inner, NO_VOLUME, state_error};
use crate::caches::budget::CountedFd;
use crate::caches::inode::Inode;
use crate::caches::link::parse_key;
use crate::error::{Error, Result, io_error};
use crate::export::filesystem::{Filesystem, Scheme};
use crate::file_io::read_full;
use crate::state::lost::{About, Why, path_of};
use crate::sys::KernelHandle;
use crate::wait::Wait;

/// The number of walks in search of a file by its names, before the file counts as removed. It may be renamed while the
/// tree is walked.
const WALKS: usize = 3;

/// The destination of an object's contents.
pub(super) enum Place {
    File(Written),
    /// A file of the state directory.
    Lost,
}

#[derive(Clone)]
pub(super) struct Written {
    pub(super) fs: Arc<Filesystem>,
    pub(super) object: Arc<Inode>,
    /// [`Uncommitted::errors`](crate::caches::uncommitted::Uncommitted::errors) from before the first write.
    pub(super) errors: u64,
    /// The descriptor for writing, so that it stays open.
    pub(super) writer: Option<Arc<CountedFd>>,
}

/// Why nothing can be done to an object's file.
#[derive(Clone)]
pub(super) enum Missing {
    /// Its removal is known, but perhaps not durable.
    Removed(Arc<Filesystem>),
    /// Anything else.
    Failed(BackingError),
}

impl Missing {
    /// Returns the engine's form of it; that the file is gone only once its removal is durable.
    pub(super) fn confirmed(self) -> BackingError {
        match self {
            Missing::Removed(fs) => fs.journal.barrier().map_or_else(io_error, |()| BackingError::Gone),
            Missing::Failed(error) => error,
        }
    }
}

impl Inner {
    pub(super) fn find(&self, key: &Key) -> BackingResult<Place> {
        self.look_for(key).map_err(Missing::confirmed)
    }

    /// Reads at `offset` into the front of `buffer`, and waits for the disk. Returns the bytes read.
    pub(super) fn read(&self, key: &Key, offset: u64, buffer: &mut [u8]) -> BackingResult<usize> {
        let found = match self.find(key)? {
            Place::File(found) => found,
            Place::Lost => return self.lost.read(key, offset, buffer).map_err(state_error),
        };
        let fd = found.object.reader(&self.budget, true);
        let read = fd.and_then(|fd| read_full(fd, buffer, offset, Wait::Yes));
        read.map_err(|error| self.gone_for_good(&found.fs, key, error))
    }

    /// Finds the file with a key: open, in its file system, or among the files that are set aside.
    pub(super) fn look_for(&self, key: &Key) -> std::result::Result<Place, Missing> {
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
    pub(super) fn change(
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
    pub(super) fn about(&self, key: &Key) -> About {
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
    pub(super) fn gone_for_good(&self, fs: &Arc<Filesystem>, key: &Key, error: Error) -> BackingError {
        self.missing(fs, key, error).confirmed()
    }

    /// Returns the meaning of an error for the file. Never waits for the disk.
    pub(super) fn missing(&self, fs: &Arc<Filesystem>, key: &Key, error: Error) -> Missing {
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
    pub(super) fn confirmed<T>(&self, found: Vec<std::result::Result<T, Missing>>) -> Vec<BackingResult<T>> {
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

    /// Returns the size of the file with a key, in bytes.
    pub(super) fn size(&self, key: &Key) -> std::result::Result<u64, Missing> {
        let state = |error| Missing::Failed(state_error(error));
        match self.look_for(key)? {
            Place::File(found) => {
                let attr = found.object.raw_attr();
                attr.map(|attr| attr.size).map_err(|error| self.missing(&found.fs, key, error))
            }
            Place::Lost => self.lost.size(key).map_err(state),
        }
    }

    /// Makes everything written to these files durable, one result each: one journal commit for each file system.
    pub(super) fn sync(&self, keys: &[Key]) -> Vec<BackingResult<()>> {
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
