//! The start of a service with a cache: the backing store of the engine, recovery of the log, and the engine in front
//! of the exports.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_engine::{Engine, UserRecord};

use crate::backing::Store;
use crate::coherence::downtime::{Downtime, Owned};
use crate::durability::request_journal::RequestJournal;
use crate::export::Export;
use crate::export::cache::{Cache, Linked};
use crate::export::filesystem::Filesystem;
use crate::export::vfs::Vfs;
use crate::oplog::checkpoint::Checkpoints;
use crate::oplog::log::CacheLog;
use crate::oplog::recover::{FoundLog, Recovery, conclude, recover};
use crate::oplog::{Checkpointed, OpLog};
use crate::state::{Before, filesystem_numbers};

impl Vfs {
    /// Returns every served file system, for the cache engine. Their numbers in the engine's keys are kept in
    /// `state_dir`. `recorded` holds the numbers that the pool has for exports, by export id. The exports in `adopted`
    /// are other directories than before: the engine's data for the old ones is set aside.
    pub fn store(
        &self,
        state_dir: &Path,
        recorded: &[(u32, u32)],
        adopted: &[u32],
    ) -> std::io::Result<Store> {
        let (filesystems, ids): (Vec<_>, Vec<_>) = groups(self).into_iter().unzip();
        let (numbers, given_up) = filesystem_numbers(state_dir, &ids, &Before { recorded, adopted })?;
        let names = filesystems.iter().map(|fs| directories_of(self, fs)).collect();
        let unserved = recorded.iter().filter_map(|(export, number)| {
            let place = numbers.iter().position(|known| known == number)?;
            self.exports().find(*export).is_none().then(|| (*export, filesystems[place].device))
        });
        let _ = self.unserved.set(unserved.collect());
        let filesystems = numbers.into_iter().zip(filesystems).collect();
        Ok(Store::new(filesystems, names, self.budget.clone(), state_dir, given_up))
    }

    /// Returns the number that an export's file system has in the keys of the cache.
    pub fn number_of(&self, store: &Store, export: &Export) -> u32 {
        let found = store.filesystems().iter().find(|(_, fs)| Arc::ptr_eq(fs, &export.fs));
        found.map_or(0, |(number, _)| *number)
    }

    /// Records that a server with this `pool` now owns all file systems of `store`. The pool may hold copies of their
    /// data unless it is `fresh`. `state_dir` holds the time of the last ownership, from which the downtime follows.
    pub fn own(&self, store: &Store, state_dir: &Path, pool: u128, fresh: bool) -> std::io::Result<Downtime> {
        let numbers = store.filesystems().iter().map(|(number, _)| *number);
        let owned = numbers.zip(groups(self)).map(|(filesystem, (_, exports))| Owned { filesystem, exports });
        Downtime::end(state_dir, pool, fresh, &owned.collect::<Vec<_>>())
    }

    /// Returns true if the user records `notes` of a log have changes of names or attributes that a file system of
    /// `store` may lack. Changes nothing.
    ///
    /// # Errors
    /// A record is none of this version, or a file system cannot be read.
    pub fn has_operations(&self, store: &Store, log: u64, notes: &[UserRecord]) -> std::io::Result<bool> {
        FoundLog { identity: log, notes, is_outdated: true }.has_operations(store)
    }

    /// Makes everything served, which is the engine's backing `store`, equal to the user records `notes` that the
    /// engine found in its log. `log` tells the logs of different pools apart. `state_dir` names the changes that were
    /// in progress when a server was killed. No thread may have read the file systems yet, not even the engine.
    ///
    /// `is_outdated`: everything was served without this log since. The records of clients count no more then, and
    /// [`Vfs::has_operations`] is false.
    pub fn recover(
        &self,
        store: &Store,
        state_dir: &Path,
        (log, is_outdated): (u64, bool),
        notes: &[UserRecord],
    ) -> std::io::Result<Recovery> {
        let (under_way, cut_short) = RequestJournal::open(state_dir, log)?;
        let recovery = recover(under_way, cut_short, FoundLog { identity: log, notes, is_outdated }, store)?;
        store.logged(recovery.logged());
        Ok(recovery)
    }

    /// Puts the engine in front of everything served, which is its backing `store`, after [`Vfs::recover`]. Returns the
    /// answers to the last changes before the start, as [`Vfs::commit`] was given them, oldest first. No client may be
    /// served yet. Calls `tell` when the log's operations cannot be made durable in a file system, and when they can
    /// again.
    pub fn set_cache(
        &self,
        engine: Arc<Engine>,
        store: &Store,
        downtime: Downtime,
        recovery: Recovery,
        tell: Arc<dyn Fn(Checkpointed) + Send + Sync>,
    ) -> std::io::Result<Vec<Box<[u8]>>> {
        let weak = store.filesystems().iter().map(|(number, fs)| (*number, Arc::downgrade(fs)));
        let under_way = recovery.under_way.clone();
        self.state_is_lost.store(recovery.state_is_lost, Ordering::Release);
        let oplog = Arc::new(OpLog::new(Arc::new(CacheLog(engine.clone()))));
        let checkpoints = Checkpoints::new(oplog.clone(), weak.collect(), tell);
        let cache = Cache::new(engine, self.verifier.clone(), downtime, under_way, oplog, checkpoints)?;
        for (number, fs) in store.filesystems() {
            let linked = fs.linked.get_or_init(|| Linked::new(cache.clone(), *number, fs));
            // Inodes that recovery opened are in the inode cache already.
            for object in fs.inodes.all() {
                if let Ok(attr) = object.raw_attr() {
                    linked.link_known(&object, &attr);
                }
            }
        }
        let answers = conclude(&cache, recovery, store.filesystems())?;
        // Attributes read before now may lack operations of the log, and the cache was not asked for them.
        for (_, fs) in store.filesystems() {
            fs.anything_changed();
        }
        let _ = self.cache.set(cache);
        Ok(answers)
    }
}

/// Returns the served file systems, each with the ids of its exports.
fn groups(vfs: &Vfs) -> Vec<(Arc<Filesystem>, Vec<u32>)> {
    let mut groups: Vec<(Arc<Filesystem>, Vec<u32>)> = Vec::new();
    for export in vfs.exports() {
        match groups.iter_mut().find(|(fs, _)| Arc::ptr_eq(fs, &export.fs)) {
            Some((_, ids)) => ids.push(export.id),
            None => groups.push((export.fs.clone(), vec![export.id])),
        }
    }
    groups
}

/// Returns the exported directories of a file system.
fn directories_of(vfs: &Vfs, fs: &Arc<Filesystem>) -> String {
    let exports = vfs.exports().iter().filter(|export| Arc::ptr_eq(&export.fs, fs));
    exports.map(|export| export.path.display().to_string()).collect::<Vec<_>>().join(", ")
}
