//! The system calls of one batch: one commit of the journal, or a sync of each inode.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{FileType, Mode, OFlags};

use super::{Data, Entry, Failed, Journal, Order, SMALL, Synced};
use crate::caches::inode::{Inode, Writer};
use crate::error::{Error, Result};
use crate::sys;

impl Journal {
    /// Returns the descriptor that reports the result for the contents. An error says nothing about the contents,
    /// because no sync was tried.
    fn opened<'a>(&self, object: &'a Inode) -> std::result::Result<Writer<'a>, Failed> {
        object.writer(&self.budget, true).map_err(Failed::Untried)
    }

    /// Asks the kernel to write a range of a file to its device, and does not wait for it.
    pub(super) fn start_write_back(&self, data: &Data) {
        if let Ok(fd) = self.opened(&data.object) {
            // The error, if any, is reported by the pass that waits.
            let _ = sys::sync_file_range(&fd, data.offset, data.len, false);
        }
    }

    /// Waits until the range is on the device. Its inode, and so the file's size, may still be in memory only.
    pub(super) fn written_back(&self, data: &Data) -> Synced {
        let fd = self.opened(&data.object)?;
        let sync =
            || self.or_lost(sys::sync_file_range(&fd, data.offset, data.len, true).map_err(Error::from));
        data.object.uncommitted.synced(data.errors, sync).map_err(Failed::Sync)
    }

    /// Changes the verifier after a failed sync, before any client that relies on the sync can be answered.
    pub(super) fn or_lost(&self, result: Result<()>) -> Result<()> {
        result.inspect_err(|_| self.verifier.lost())
    }

    /// Makes a batch durable in the way of the file system. Returns a result for each entry.
    pub(super) fn sync(&self, batch: &[Entry]) -> Vec<Synced> {
        match self.order {
            Order::Journal => self.sync_journal(batch),
            Order::PerObject => self.sync_each(batch),
        }
    }

    /// Writes the data of the batch back, then commits the journal once.
    fn sync_journal(&self, batch: &[Entry]) -> Vec<Synced> {
        let small = |entry: &Entry| entry.request.data.clone().filter(|data| (1..=SMALL).contains(&data.len));
        let several = batch.iter().filter(|entry| small(entry).is_some()).nth(1).is_some();
        if several {
            for data in batch.iter().filter_map(small) {
                self.start_write_back(&data);
            }
        }
        let mut results: Vec<Synced> =
            batch.iter().map(|entry| small(entry).map_or(Ok(()), |data| self.written_back(&data))).collect();
        if let Err(error) = self.or_lost(self.commit_marker()) {
            results.fill(Err(Failed::Sync(error)));
        }
        results
    }

    /// Changes and syncs an unnamed file, which commits the journal with everything before it.
    fn commit_marker(&self) -> Result<()> {
        let mut marker = self.marker.lock();
        marker.1 = !marker.1;
        let mode = if marker.1 { Mode::RUSR } else { Mode::RUSR | Mode::WUSR };
        rustix::fs::fchmod(&marker.0, mode)?;
        let synced = rustix::fs::fsync(&marker.0);
        self.failed.fetch_or(synced.is_err(), Ordering::AcqRel);
        Ok(synced?)
    }

    /// Returns true if a commit of the one journal has failed. Its changes may be lost, and no later commit reports
    /// that.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Syncs every inode of the batch once, however many of its requests touched it.
    fn sync_each(&self, batch: &[Entry]) -> Vec<Synced> {
        let mut synced: HashMap<*const Inode, Result<()>> = HashMap::new();
        let mut sync = |object: &Arc<Inode>, errors: u64| -> Result<()> {
            let sync = || self.or_lost(self.sync_object(object));
            let result = *synced
                .entry(Arc::as_ptr(object))
                .or_insert_with(|| object.uncommitted.synced(object.uncommitted.errors(), sync));
            result.and_then(|()| object.uncommitted.synced(errors, || Ok(())))
        };
        let mut each = |entry: &Entry| {
            let data = entry.request.data.iter().map(|data| (&data.object, data.errors));
            let metadata = entry.request.metadata.iter().map(|object| (object, object.uncommitted.errors()));
            // Every inode is tried even after one failed: another request may depend on it alone.
            data.chain(metadata).map(|(object, errors)| sync(object, errors)).fold(Ok(()), Result::and)
        };
        batch.iter().map(|entry| each(entry).map_err(Failed::Sync)).collect()
    }

    /// Syncs an inode by itself.
    fn sync_object(&self, object: &Inode) -> Result<()> {
        let whole = || rustix::fs::syncfs(self.mount.as_fd());
        // An inode that cannot be opened (a device, or a file without permissions to an unprivileged server) is synced
        // with its file system.
        let synced = match object.kind() {
            // The descriptor that was used for writing is the one that reports write errors.
            FileType::RegularFile => match object.writer(&self.budget, true) {
                Ok(fd) => rustix::fs::fsync(fd),
                Err(_) => whole(),
            },
            FileType::Directory => match object.reopen(OFlags::RDONLY) {
                Ok(fd) => rustix::fs::fsync(fd),
                Err(_) => whole(),
            },
            _ => whole(),
        };
        Ok(synced?)
    }
}
