//! Which pool may hold data that the served directories lack: noted in the state directory while it may, so that nobody
//! serves the directories without it by mistake.

use std::io;
use std::path::{Path, PathBuf};

use crate::cache::written;
use crate::error::Error;

/// The note, whether it is there or not.
pub(crate) struct InUse {
    path: PathBuf,
}

impl InUse {
    pub(crate) fn new(state_dir: &Path) -> Self {
        InUse { path: state_dir.join("cache-in-use") }
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::StateDir { path: self.path.clone(), source }
    }

    fn read(&self) -> Result<Option<String>, Error> {
        match std::fs::read_to_string(&self.path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Fails if a pool may hold something.
    pub(crate) fn require_none(&self) -> Result<(), Error> {
        self.read()?.map_or(Ok(()), |text| Err(self.left_behind(&text)))
    }

    /// Fails if another pool than `uuid` may hold something, unless it is to be given up.
    pub(crate) fn require(&self, uuid: u128, give_up: bool) -> Result<(), Error> {
        match self.read()? {
            Some(text) if !give_up && text.lines().next() != Some(&written(uuid)) => {
                Err(self.left_behind(&text))
            }
            _ => Ok(()),
        }
    }

    fn left_behind(&self, text: &str) -> Error {
        let devices = text.lines().skip(1).collect::<Vec<_>>().join(" and ");
        Error::CacheLeftBehind { devices, note: self.path.clone() }
    }

    /// From now on the pool may hold something. Durable.
    pub(crate) fn set(&self, uuid: u128, devices: &[String]) -> Result<(), Error> {
        let text = format!("{}\n{}\n", written(uuid), devices.join("\n"));
        let write = || {
            let temporary = self.path.with_extension("new");
            std::fs::write(&temporary, text)?;
            std::fs::File::open(&temporary)?.sync_all()?;
            std::fs::rename(&temporary, &self.path)?;
            self.sync_directory()
        };
        write().map_err(|error| self.failed(error))
    }

    /// The pool holds nothing that the directories lack.
    pub(crate) fn clear(&self) -> Result<(), Error> {
        let remove = || {
            std::fs::remove_file(&self.path)?;
            self.sync_directory()
        };
        remove().map_err(|error| self.failed(error))
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.path.parent().map_or(Ok(()), |parent| std::fs::File::open(parent)?.sync_all())
    }
}
