//! Exports that are added and removed in service (docs/decisions/073-exports-in-service.md).
//!
//! | export in the new configuration | effect |
//! |---|---|
//! | new; on a file system that is served with kernel handles | in service at once |
//! | new; on another file system, or the pool knows another directory by this id | at the next start |
//! | new; its directory is missing, silent, locked, not the recorded one, or has a cache device | a mistake |
//! | gone | out of service at once; its handles are stale, its dirty data is written |

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_common::lock::Mutex;
use forebay_config::{Export as Configured, Settings, inside_export};
use forebay_nfs::Nfs;
use forebay_vfs::{DirectoryLocks, Export, ExportSpec, Ownership, Recorded, Vfs, compare};

use crate::cache::Cache;
use crate::error::Error;
use crate::identity;
use crate::in_time::{RELOAD_AGAIN, in_time};
use crate::start::{require_no_state, require_writable, take};

/// The changes of the exports in service.
pub(crate) struct LiveExports {
    vfs: Arc<Vfs>,
    nfs: Arc<Nfs>,
    state_dir: PathBuf,
    owner: DirectoryLocks,
    /// The locks of all directories that were in service since the start. Dirty data may belong to removed exports.
    owned: Mutex<BTreeMap<PathBuf, Ownership>>,
    /// The pool's records of exports, by their ids.
    recorded: BTreeMap<u32, Recorded>,
    /// The low half of the pool's UUID; 0 without a cache.
    pool: u64,
}

/// An export that can be taken into service, with the lock on its directory unless this server has that already.
type Ready = (Arc<Export>, Option<Ownership>);

/// Exports that are ready to be taken into service.
#[derive(Default)]
pub(crate) struct Prepared(Vec<Ready>);

impl Prepared {
    /// Returns true if an export can be taken into service.
    pub(crate) fn has(&self, export: &Configured) -> bool {
        self.0.iter().any(|(ready, _)| ready.id == export.id)
    }
}

impl LiveExports {
    /// `owned` are the locks of the exports of the start, which `owner` has taken. `recorded` are the records of a pool
    /// with the UUID `pool`.
    pub(crate) fn new(
        (vfs, nfs): (&Arc<Vfs>, &Arc<Nfs>),
        state_dir: &Path,
        (owner, owned): (DirectoryLocks, Vec<(PathBuf, Ownership)>),
        recorded: BTreeMap<u32, Recorded>,
        pool: u128,
    ) -> Self {
        let (owned, pool) = (Mutex::new(owned.into_iter().collect()), pool as u64);
        LiveExports {
            vfs: vfs.clone(),
            nfs: nfs.clone(),
            state_dir: state_dir.to_owned(),
            owner,
            owned,
            recorded,
            pool,
        }
    }

    /// Prepares the exports of `new` that are not in `now`. Exports that have to wait for the next start are left out.
    /// Changes nothing that a client sees.
    ///
    /// # Errors
    /// The mistakes, one sentence each.
    pub(crate) fn prepare(
        self: &Arc<Self>,
        now: &Settings,
        new: &Settings,
        cache: Option<&Cache>,
    ) -> Result<Prepared, Vec<String>> {
        let (mut prepared, mut mistakes) = (Prepared::default(), Vec::new());
        for export in now.added_exports(new) {
            let storage = cache.map(|cache| cache.storage()).unwrap_or_default();
            let (this, one) = (self.clone(), export.clone());
            let place = format!("[[export]] {}", export.path.display());
            match in_time(&place, RELOAD_AGAIN, move || this.prepare_one(&one, storage)) {
                Ok(Ok(ready)) => prepared.0.extend(ready),
                Ok(Err(error)) => mistakes.push(error.to_string()),
                Err(silent) => mistakes.push(silent),
            }
        }
        if mistakes.is_empty() { Ok(prepared) } else { Err(mistakes) }
    }

    /// Records the identities of the prepared exports in the state directory, durably.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn record(&self, prepared: &Prepared) -> Result<(), Error> {
        identity::keep_added(&self.state_dir, prepared.0.iter().map(|(export, _)| &**export))
    }

    /// Opens an export that the configuration has added, and takes ownership of its directory. Returns `None` for an
    /// export that only the next start can serve. Fails if the cache's storage lies in the directory, or another
    /// server has it.
    fn prepare_one(&self, export: &Configured, storage: Vec<PathBuf>) -> Result<Option<Ready>, Error> {
        let failed = |error: forebay_vfs::Error| Error::Export {
            path: export.path.clone(),
            reason: error.to_string(),
        };
        if let Some(inside) = storage.into_iter().find(|path| is_in(path, export)) {
            let reason =
                format!("{} is in it, which the cache uses; name another directory", inside.display());
            return Err(Error::Export { path: export.path.clone(), reason });
        }
        if !identity::is_known(&self.state_dir, export)? {
            return Ok(None);
        }
        require_no_state(&export.path)?;
        let is_owned = self.owned.lock().contains_key(&export.path);
        let owned = match is_owned {
            true => None,
            false => Some(take(&self.owner, &export.path)?),
        };
        if identity::is_writable(export) {
            require_writable(&export.path)?;
        }
        let spec =
            ExportSpec { id: export.id, name: export.name.clone(), path: export.path.clone(), watch: None };
        let Some(opened) = self.vfs.open_export(&spec).map_err(failed)? else { return Ok(None) };
        let stamp = opened.stamp().map_err(failed)?;
        let recorded = self.recorded.get(&export.id);
        let differs = recorded.and_then(|recorded| compare(recorded, &opened.identity, stamp, self.pool));
        Ok(differs.is_none().then_some((opened, owned)))
    }

    /// Takes the prepared exports into service and all exports out of service that `in_force` lacks. After the return
    /// clients see the exports and rules of `in_force`.
    pub(crate) fn put_in_force(&self, prepared: Prepared, in_force: &Settings, cache: Option<&Cache>) {
        cache.into_iter().for_each(|cache| cache.set_exports(&in_force.exports));
        let gone = |export: &&Arc<Export>| !in_force.exports.iter().any(|kept| kept.id == export.id);
        let gone: Vec<_> = self.vfs.exports().iter().filter(gone).map(|export| export.id).collect();
        for (export, owned) in prepared.0 {
            if let Some(owned) = owned {
                self.owned.lock().insert(export.path.clone(), owned);
            }
            self.vfs.add_export(export);
        }
        cache.into_iter().for_each(|cache| cache.policies.reload(in_force));
        // No client is admitted to a removed export before its handles are stale, nor to a new one that is not there.
        self.nfs.set_rules(in_force.exports.clone());
        gone.into_iter().for_each(|id| self.vfs.remove_export(id));
        self.nfs.exports_changed();
    }
}

/// Returns true if a cache device or a backing device is in the directory of an export.
fn is_in(path: &Path, export: &Configured) -> bool {
    inside_export(path, std::slice::from_ref(export)).is_some()
}
