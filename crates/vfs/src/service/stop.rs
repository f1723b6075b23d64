//! The stop of a service, and the data that a crash left in the page cache.

use crate::error::Error;
use crate::export::Export;
use crate::export::vfs::Vfs;

/// Files that a stop syncs together.
const TOGETHER: usize = 1024;

/// The result of a stop.
#[derive(Debug)]
pub struct Stopped {
    /// Files whose unstable data could not be made durable.
    pub unstable: usize,
    /// Bytes that only the cache devices have, or why the cache could not be stopped well.
    pub dirty: std::result::Result<u64, forebay_engine::Error>,
    /// The error if the state directory does not say that the stop was clean. The next start then treats it as a crash.
    pub unrecorded: Option<std::io::Error>,
}

impl Vfs {
    /// Makes all unstable data durable, stops the cache, and records a clean stop if nothing failed.
    pub fn stop(&self) -> Stopped {
        let unstable = self.sync_unstable();
        let dirty = self.cache.get().map_or(Ok(0), |cache| cache.close());
        let is_clean = unstable == 0 && dirty.is_ok();
        let unrecorded = is_clean.then(|| self.verifier.stopped_clean()).and_then(Result::err);
        for fs in self.filesystems() {
            fs.journal.close();
        }
        Stopped { unstable, dirty, unrecorded }
    }

    /// Makes the data durable that a crashed server left in the page cache. Clients are about to see it, and reads
    /// never go back in time. Takes as long as the disks need, and calls `begin` with each export first. Returns the
    /// exports for which it failed.
    pub fn flush_after_crash(&self, begin: impl Fn(&Export)) -> Vec<(&Export, Error)> {
        let flush = |export: &Export| {
            begin(export);
            self.flush(export).err()
        };
        let exports = self.exports().iter().filter(|_| self.verifier.follows_a_crash());
        exports.filter_map(|export| Some((&**export, flush(export)?))).collect()
    }

    /// Makes all data that was acknowledged as unstable durable. Returns the number of files for which it failed.
    pub fn sync_unstable(&self) -> usize {
        let mut failed = 0;
        for fs in self.filesystems() {
            let objects = fs.inodes.all().into_iter();
            let unstable: Vec<_> = objects.map(|object| (object.uncommitted.writes(), object)).collect();
            let unstable: Vec<_> = unstable.into_iter().filter(|(seen, _)| *seen > 0).collect();
            for together in unstable.chunks(TOGETHER) {
                let files: Vec<_> = together
                    .iter()
                    .map(|(_, object)| (object.clone(), object.uncommitted.errors()))
                    .collect();
                for ((seen, object), synced) in together.iter().zip(fs.journal.sync_files(&files)) {
                    match synced {
                        Ok(()) => object.uncommitted.committed(*seen),
                        Err(_) => failed += 1,
                    }
                }
            }
        }
        failed
    }
}
