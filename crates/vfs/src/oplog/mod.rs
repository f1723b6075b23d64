//! Changes of names and attributes in the cache's log: the adapters of the metadata log (`forebay_metalog`) to real
//! file systems and the engine. A client that repeats a request after a crash gets its answer, and no change is
//! carried out twice. If a journal orders all changes of the file system, the log makes them durable by itself.
//! docs/metadata-log.md is the design.

pub(crate) mod checkpoint;
pub(crate) mod commit;
mod files;
pub(crate) mod log;
pub(crate) mod recover;
pub(crate) mod removal;
pub(crate) mod rename_intents;
mod served;
pub(crate) mod state;

pub(crate) use forebay_metalog::DurableBy;
use forebay_oplog::{Bindings, Identity, New};
use forebay_runtime::block_on;

use crate::attr::Attr;
use crate::caches::inode::Inode;
use crate::durability::journal::Order;
use crate::durability::request_journal::{LoggedReply, Request};
use crate::error::{Error, Result};
use crate::export::filesystem::{Filesystem, Scheme};
use files::attributes;
pub(crate) use forebay_oplog::{Access, Binding, LoggedObject, Rights};
use log::CacheLog;

/// The result of a file system's checkpoints, reported when it changes.
pub type Checkpointed = forebay_metalog::Checkpointed<Error>;

/// Numbers changes, and knows which are durable.
pub(crate) type OpLog = forebay_metalog::Sequence<CacheLog>;

/// The operations of one file system that are in the log and not known to be durable in the file system.
pub(crate) type Logging = forebay_metalog::Volume<Filesystem>;

/// A change that was carried out and is not durable yet.
pub(crate) type Pending = forebay_metalog::Pending<Filesystem>;

/// A RENAME whose intent is in a slot. If the value is dropped, the RENAME was not carried out. Its thread may then
/// have to append the records of other threads and wait for room, so the dropping thread must hold no locks of
/// directories.
pub(crate) type Announced = forebay_metalog::Announced<Filesystem>;

/// The effects of a change, for [`Filesystem::changed`]. `kept` is the entry of the request journal, from before the
/// change. It is set for changes whose first execution looks like a second one.
pub(crate) type ChangeEffects = forebay_metalog::ChangeEffects<Option<Request>>;

impl Filesystem {
    /// Returns the way in which changes become durable now, or `None` if there is no cache.
    pub(crate) fn way(&self) -> Option<DurableBy> {
        let linked = self.linked()?;
        let ordered = self.journal.order() == Order::Journal && matches!(self.scheme, Scheme::Kernel);
        Some(linked.logging.way(ordered))
    }

    /// Returns true if changes made now get records from which recovery may recreate an inode or set its attributes.
    pub(crate) fn is_recorded_whole(&self) -> bool {
        self.way().is_some_and(|way| way != DurableBy::Each)
    }

    /// Returns the way in which a change that may have set the size of a file becomes durable. The cache's records
    /// carry sizes only for dirty files. So the file has to be durable before the reply, and recovery must not create
    /// it afterwards. The result tells if recovery will not: the journal's commit may succeed although the checkpoint's
    /// commit was late.
    pub(crate) fn way_with_size(&self, object: &Inode, size: Option<u64>) -> (Option<DurableBy>, Result<()>) {
        let way = self.way();
        if size.is_none() || matches!(way, None | Some(DurableBy::Each)) {
            return (way, Ok(()));
        }
        let made =
            self.linked().map_or(Ok(()), |linked| linked.cache.checkpoints.make_of_touched(self, object));
        (Some(DurableBy::Journal), made)
    }

    /// Declares that the next change in the directories that the caller has locked has no record: no record in the log
    /// describes an earlier state any more. The caller calls this before the change, so that recovery does not take
    /// half of it back, and after the change, so that it stays.
    pub(crate) fn without_record(&self) -> Result<()> {
        let way = self.way().filter(|way| *way != DurableBy::Each);
        let Some((linked, _)) = self.linked().zip(way) else { return Ok(()) };
        block_on(linked.cache.oplog.carry_out());
        linked.cache.checkpoints.make_of(self)
    }

    /// Makes the change that was just made durable in the file system, for changes that a record cannot hold. The
    /// caller holds its locks. Nothing that the log has of earlier states counts any more.
    pub(crate) fn made_durable(&self) -> Result<()> {
        self.without_record()?;
        // There was nothing for a checkpoint, perhaps.
        self.journal.barrier()
    }

    /// Returns the inode that a killed server made for this request: see
    /// [`ResumableCreates`](crate::durability::resumable_create::ResumableCreates).
    pub(crate) fn begun(&self, asked: &LoggedReply, dir: &Inode, name: &[u8]) -> Option<Identity> {
        let linked = self.linked()?;
        linked.cache.begun.take(asked, linked.number(), &dir.kernel, name)
    }

    /// Writes the change that is about to be carried out to the request journal, in case the server is killed before
    /// the record is in the log. The caller's locks keep other changes from these names.
    pub(crate) fn under_way(&self, bindings: Bindings, asked: Option<&LoggedReply>) -> Option<Request> {
        let (linked, asked) = self.linked().zip(asked)?;
        Some(linked.cache.under_way.begin(linked.number(), bindings, asked))
    }

    /// Gives a number to a change that was just carried out. The caller still holds the locks of the change, so that
    /// numbers tell the order. Returns `None` if there is no cache.
    pub(crate) fn changed(&self, way: Option<DurableBy>, did: ChangeEffects) -> Option<Box<Pending>> {
        let (linked, way) = self.linked().zip(way)?;
        Some(linked.logging.changed(way, did))
    }

    /// Begins a RENAME from one of these directories to the other, whose locks are held. `None`: nothing needs to be
    /// said of it.
    pub(crate) fn announce(&self, way: Option<DurableBy>, dirs: [Identity; 2]) -> Result<Option<Announced>> {
        let Some((linked, way)) = self.linked().zip(way.filter(|way| *way != DurableBy::Each)) else {
            return Ok(None);
        };
        block_on(linked.logging.announce(self, &self.slots, way, dirs)).map(Some)
    }
}

/// Returns the statement that `name` in `dir` led to `was` and now leads to `now`.
pub(crate) fn binding(
    dir: &Inode,
    name: &[u8],
    was: Option<crate::sys::KernelHandle>,
    now: Option<crate::sys::KernelHandle>,
) -> Binding {
    Binding { dir: dir.kernel, name: name.into(), was, now }
}

/// Returns the log's description of an inode with these attributes. `new` is set if the change made the inode.
pub(crate) fn object(inode: &Inode, attr: &Attr, new: Option<New>, access: Access) -> Option<LoggedObject> {
    Some(LoggedObject { identity: inode.kernel, attributes: attributes(attr)?, new, access })
}

/// Returns the log's descriptions of inodes that existed before, as they are now. They include changes that only the
/// cache has, which may be destaged and forgotten before the record is. The change has set neither mode nor owner.
pub(crate) fn objects(inodes: &[&Inode]) -> Vec<LoggedObject> {
    let object = |inode: &&Inode| object(inode, &inode.attr().ok()?, None, Access::Kept);
    inodes.iter().filter_map(object).collect()
}

/// The longest text of a symbolic link, in bytes, with which a record fits a user record; see
/// [`Filesystem::without_record`].
pub(crate) const TEXT_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    use forebay_oplog::{Operation, RECORD_MAX, Record};

    use super::*;

    #[test]
    fn every_record_fits_a_note() {
        let kernel = crate::sys::KernelHandle {
            kind: 1,
            len: crate::sys::KERNEL_HANDLE_MAX as u8,
            bytes: [1; crate::sys::KERNEL_HANDLE_MAX],
        };
        let time = forebay_oplog::Time { sec: i64::MAX, nsec: u32::MAX };
        let attributes = forebay_oplog::Attributes {
            kind: forebay_oplog::Kind::Symlink,
            mode: u32::MAX,
            uid: u32::MAX,
            gid: u32::MAX,
            atime: time,
            mtime: time,
        };
        let object = |new| LoggedObject { identity: kernel, attributes, new, access: Access::Set };
        let entry =
            Binding { dir: kernel, name: [b'n'; 255][..].into(), was: Some(kernel), now: Some(kernel) };
        let record = |entries: Bindings, objects| {
            Record::Operation(Box::new(Operation {
                number: u64::MAX,
                filesystem: u32::MAX,
                entries,
                objects,
                // Handle, attributes and those around the change of two directories are 400.
                reply: [0; 600].into(),
            }))
            .encode()
        };
        let text = New::Link([b't'; TEXT_MAX].into());
        let entries = |count| std::iter::repeat_n(entry.clone(), count).collect();
        assert!(record(entries(1), vec![object(None), object(Some(text))]).len() <= RECORD_MAX);
        // A RENAME that keeps the replaced file.
        let kept = Binding { name: kernel.to_name().into_bytes().into(), ..entry.clone() };
        let all = entries(2).into_iter().chain([kept]).collect();
        // Of the reply to a COMPOUND 1,000 bytes more than here may be in the record.
        let room = RECORD_MAX - 1040;
        assert!(record(all, vec![object(None), object(None), object(None)]).len() <= room);
    }
}
