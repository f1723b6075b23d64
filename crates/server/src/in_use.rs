//! The pool that may hold data that the served directories lack. Notes in the state directory name this pool, so that
//! no server serves the directories without it by mistake. The notes also name the pool that the directories were
//! served with last. A pool that was in use before that holds data and records older than the directories.
//!
//! A start with such a pool is crash-safe by the order of its steps:
//!
//! | step | the next start after a kill behind the step |
//! |---|---|
//! | the log is read, and found without changes | takes the same way |
//! | [`InUse::set`] | the pool may hold data: the directories are not served without it. Else as before |
//! | the log says that its records of clients count no more; copies of volumes are dropped, durably | does both again |
//! | `nfs4-clients` says that clients have a grace period | gives it to them again |
//! | [`InUse::set_last`] | the log has no old state, and the volumes have no old copies |
//! | clients are served | as after any kill |

use std::io;
use std::path::{Path, PathBuf};

use forebay_common::state_file;

use crate::cache::written;
use crate::error::Error;

/// The note files, which may be missing.
#[derive(Clone)]
pub(crate) struct InUse {
    path: PathBuf,
    last: PathBuf,
}

/// The word in place of a pool's UUID if the directories were served without a pool.
const NONE: &str = "none";

impl InUse {
    pub(crate) fn new(state_dir: &Path) -> Self {
        InUse { path: state_dir.join("cache-in-use"), last: state_dir.join("cache-last") }
    }

    fn read(&self) -> Result<Option<String>, Error> {
        note(&self.path)
    }

    /// Fails if a pool may hold data.
    pub(crate) fn require_none(&self) -> Result<(), Error> {
        self.read()?.map_or(Ok(()), |text| Err(self.left_behind(&text)))
    }

    /// Fails if a pool other than `uuid` may hold data, unless that pool is to be given up.
    pub(crate) fn require(&self, uuid: u128, give_up: bool) -> Result<(), Error> {
        match self.read()? {
            Some(text) if !give_up && text.lines().next() != Some(&written(uuid)) => {
                Err(self.left_behind(&text))
            }
            _ => Ok(()),
        }
    }

    /// Returns the error about a pool that may hold data and is not among the devices of this start.
    fn left_behind(&self, text: &str) -> Error {
        let devices = text.lines().skip(1).collect::<Vec<_>>().join(" and ");
        Error::CacheLeftBehind { devices, note: self.path.clone() }
    }

    /// Returns true if the pool `uuid` may hold data: it was in use last time, or there is no note.
    pub(crate) fn may_hold(&self, uuid: u128) -> Result<bool, Error> {
        let is_this = |text: String| text.lines().next() == Some(&written(uuid));
        Ok(self.read()?.is_some_and(is_this) || note(&self.last)?.is_none())
    }

    /// Records that the pool may hold data from now on. Durable.
    pub(crate) fn set(&self, uuid: u128, devices: &[String]) -> Result<(), Error> {
        replace(&self.path, &format!("{}\n{}\n", written(uuid), devices.join("\n")))
    }

    /// Records that the directories are served with the pool from now on, and that nothing in it is out of date any
    /// more. Durable.
    pub(crate) fn set_last(&self, uuid: u128) -> Result<(), Error> {
        replace(&self.last, &written(uuid))
    }

    /// Returns true if the directories were served without the pool since it was in use. So a `fresh`
    /// pool is out of date: clients may have state that it does not know.
    pub(crate) fn is_outdated(&self, uuid: u128, fresh: bool) -> Result<bool, Error> {
        Ok(note(&self.last)?.map_or(fresh, |last| last != written(uuid)))
    }

    /// Records that the directories are served without a pool. Durable. Returns true if they were served with one last.
    pub(crate) fn set_none(&self) -> Result<bool, Error> {
        match note(&self.last)? {
            Some(last) if last != NONE => replace(&self.last, NONE).map(|()| true),
            _ => Ok(false),
        }
    }

    /// Records, before the log of the pool is dropped, that the pool is out of date. A start after a kill then still
    /// knows that the state of clients is lost. Durable; an error is only reported, because the start goes on and fails
    /// at its next note.
    pub(crate) fn unset_last(&self) {
        if let Err(error) = replace(&self.last, NONE) {
            tracing::error!("{error}");
        }
    }

    /// Records that the pool holds nothing that the directories lack.
    pub(crate) fn clear(&self) -> Result<(), Error> {
        state_file::remove(&self.path).map_err(|error| failed(&self.path, error))
    }
}

/// Returns a note, which begins with the UUID of a pool, or is [`NONE`].
fn note(path: &Path) -> Result<Option<String>, Error> {
    let text = read(path)?;
    let is_whole = |text: &String| {
        let first = text.lines().next().unwrap_or_default();
        let digits = u128::from_str_radix(&first.replace('-', ""), 16);
        text == NONE || digits.is_ok_and(|uuid| written(uuid) == first)
    };
    match text.as_ref().is_none_or(is_whole) {
        true => Ok(text),
        false => {
            let remedy = "if the cache devices are all those of the last run, remove it; another pool may lack changes";
            Err(failed(path, state_file::damaged(path, remedy)))
        }
    }
}

pub(crate) fn failed(path: &Path, source: io::Error) -> Error {
    Error::StateDir { path: path.to_owned(), source }
}

pub(crate) fn read(path: &Path) -> Result<Option<String>, Error> {
    state_file::read(path).map_err(|error| failed(path, error))
}

pub(crate) fn replace(path: &Path, text: &str) -> Result<(), Error> {
    state_file::replace(path, text).map_err(|error| failed(path, error))
}
