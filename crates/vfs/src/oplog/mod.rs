//! Replies to changes in the cache's log: a client that asks again after a crash gets its answer, and nothing is done
//! twice.
//!
//! A change is carried out in the backing file system; then its record goes to the log and the file system's journal is
//! asked to commit, both at once; the client is answered when both are durable. So a record may be in the log of a
//! change that a crash took back. Each record says which changes were known to be durable when it was written. Those
//! after them are looked for in the directories at the next start: see [`recover`].

mod recover;

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_disk::block_on;
use forebay_engine::NOTE_MAX;
use parking_lot::Mutex;

use crate::cache::Cache;
use crate::export::Target;
use crate::fs::Filesystem;
use crate::journal::Done;
pub(crate) use forebay_oplog::{Change, Entries, Entry, Record, Rights};
pub(crate) use recover::recover;

#[derive(Debug, Default)]
struct Inner {
    /// The number of the last change.
    last: u64,
    /// Changes that may not be durable.
    open: BTreeSet<u64>,
}

/// Numbers changes, and knows which are durable.
#[derive(Debug, Default)]
pub(crate) struct OpLog(Mutex<Inner>);

/// A change that was carried out and is not durable yet.
#[derive(Debug)]
pub(crate) struct Pending {
    log: Arc<OpLog>,
    number: u64,
    filesystem: u32,
    entries: Entries,
    /// It never became durable; nor may it seem so.
    failed: bool,
}

impl OpLog {
    /// Everything up to `last` is settled.
    fn settled(&self, last: u64) {
        self.0.lock().last = last;
    }

    fn begin(&self) -> u64 {
        let mut inner = self.0.lock();
        inner.last += 1;
        let number = inner.last;
        inner.open.insert(number);
        number
    }

    /// All changes up to this one are durable.
    fn confirmed(&self) -> u64 {
        let inner = self.0.lock();
        inner.open.first().map_or(inner.last, |first| first - 1)
    }
}

impl Drop for Pending {
    /// It is durable, or there is no record of it.
    fn drop(&mut self) {
        if !self.failed {
            self.log.0.lock().open.remove(&self.number);
        }
    }
}

impl Filesystem {
    /// A change of these names, or of attributes only, that was just carried out. To be called under the locks that it was
    /// carried out under, so that numbers tell the order. `None`: there is no cache.
    pub(crate) fn changed(&self, entries: impl IntoIterator<Item = Entry>) -> Option<Box<Pending>> {
        let linked = self.linked()?;
        let log = linked.cache.oplog.clone();
        let (number, filesystem) = (log.begin(), linked.number());
        let entries = entries.into_iter().collect();
        Some(Box::new(Pending { log, number, filesystem, entries, failed: false }))
    }
}

/// `name` in `dir` now leads to `object`.
pub(crate) fn entry(dir: &Target, name: &[u8], object: Option<crate::sys::KernelHandle>) -> Entry {
    Entry { dir: dir.object.kernel, name: name.into(), object, made: None }
}

const _: () = assert!(forebay_oplog::RECORD_MAX == NOTE_MAX);

/// Puts a change with its answer into the log. Returns what is to be called when the change itself is durable: it calls
/// `done` when the record is, too. May wait for room in the log.
pub(crate) fn keep(cache: &Arc<Cache>, mut pending: Box<Pending>, answer: &[u8], done: Done) -> Done {
    let change = Change {
        number: pending.number,
        confirmed: pending.log.confirmed(),
        filesystem: pending.filesystem,
        entries: std::mem::take(&mut pending.entries),
        answer: answer.into(),
    };
    let record = Record::Change(Box::new(change)).encode();
    let noted = (record.len() <= NOTE_MAX).then(|| block_on(cache.engine.note(&record)));
    // Without cache devices a crash forgets the answer, as without a cache.
    let Some(Ok((frame, _))) = noted else { return done };
    let cache = cache.clone();
    Box::new(move |result| match result {
        Ok(()) => {
            drop(pending);
            // That the answer is not kept is no reason not to give it.
            cache.engine.when_durable(frame, Box::new(|_| done(Ok(()))));
        }
        Err(error) => {
            pending.failed = true;
            done(Err(error));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_no_open_change_before_it_is_confirmed() {
        let log = Arc::new(OpLog::default());
        log.settled(10);
        let begin = || Pending {
            log: log.clone(),
            number: log.begin(),
            filesystem: 0,
            entries: Entries::new(),
            failed: false,
        };
        let (first, mut second, third) = (begin(), begin(), begin());
        assert_eq!(log.confirmed(), 10);
        drop(third);
        assert_eq!(log.confirmed(), 10);
        drop(first);
        assert_eq!(log.confirmed(), 11);
        second.failed = true;
        drop(second);
        assert_eq!(log.confirmed(), 11, "nothing after a change that failed");
    }
}
