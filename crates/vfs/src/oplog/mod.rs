//! Changes of names and attributes in the cache's log. A client that repeats a request after a crash gets its answer,
//! and no change is carried out twice. If a journal orders all changes of the file system, the log makes them durable
//! by itself. docs/metadata-log.md is the design.
//!
//! A change is carried out in the backing file system under its locks, where it gets its number. Then its record goes
//! to the log, in order of numbers. The client is answered when the record is durable ([`Way::Log`]), or when the file
//! system's journal has committed as well ([`Way::Journal`]). Where no journal orders changes, the record is of another
//! kind. It states which changes were known to be durable when it was written. Recovery looks for the remaining changes
//! in the directories ([`Way::Each`], see [`recover`]).

pub(crate) mod checkpoint;
pub(crate) mod commit;
pub(crate) mod cut_short;
mod files;
pub(crate) mod lost;
pub(crate) mod making;
mod queue;
pub(crate) mod recover;
pub(crate) mod removal;
pub(crate) mod rename_intents;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use forebay_common::lock::{Condvar, Mutex};
use forebay_engine::{Mode, Seq, USER_RECORD_MAX};
use forebay_oplog::{Bindings, Identity, New, Numbers, Operation, Proof, RenameIntent};
use forebay_runtime::{block_on, tasks};

use crate::attr::Attr;
use crate::caches::inode::Inode;
use crate::durability::journal::Order;
use crate::durability::request_journal::{Asked, Request};
use crate::error::Result;
use crate::export::cache::{Cache, Linked};
use crate::export::filesystem::{Filesystem, Scheme};
use files::attributes;
pub(crate) use forebay_oplog::{Access, Binding, Change, Entries, Entry, Object, Record, Rights};
use making::Ticket;
use queue::Queue;
use rename_intents::RenameIntents;

#[derive(Debug, Default)]
struct Inner {
    /// The number that distinguishes this log from other logs.
    identity: u64,
    numbers: Numbers,
}

/// Numbers changes, and knows which are durable.
#[derive(Default)]
pub(crate) struct OpLog {
    inner: Mutex<Inner>,
    /// A number that was ahead is so no more.
    through: Condvar,
    queue: Queue,
}

/// The way in which a change becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The change is durable with its record.
    Log,
    /// The change is durable with its record and the journal's commit.
    Journal,
    /// The file system makes each object durable; the record is for its reply.
    Each,
}

/// A change that was carried out and is not durable yet.
pub(crate) struct Pending {
    log: Arc<OpLog>,
    number: u64,
    filesystem: u32,
    way: Way,
    bindings: Bindings,
    /// The objects that it touched.
    objects: Vec<Object>,
    /// The rights that a new inode was to have.
    made: Option<Rights>,
    /// The slot with the intent of a RENAME. The intent is withdrawn with the value.
    slot: Option<(Arc<RenameIntents>, OwnedFd)>,
    /// The ticket of a creation, until its record is in the log.
    ticket: Option<Ticket>,
    /// The entry of the request journal, for the next server, if this one is killed before the change is durable.
    _request: Option<Request>,
    /// The change never became durable, and must not seem durable.
    failed: bool,
    /// Its record went to the log, or never will.
    recorded: bool,
}

impl OpLog {
    /// Marks all changes up to `last` as settled. `identity` distinguishes this log from other logs.
    fn settled(&self, identity: u64, last: u64) {
        let mut inner = self.inner.lock();
        inner.identity = identity;
        inner.numbers.settled(last);
        drop(inner);
        self.queue.begin(last + 1);
    }

    fn begin(&self, way: Way) -> u64 {
        let numbers = &mut self.inner.lock().numbers;
        if way == Way::Each { numbers.begin_open() } else { numbers.begin() }
    }

    /// Returns the log's identity and the number of a change that is still to be carried out.
    fn begin_ahead(&self) -> (u64, u64) {
        let mut inner = self.inner.lock();
        (inner.identity, inner.numbers.begin_ahead())
    }

    /// Returns the number up to which all changes of [`Way::Each`] are durable.
    fn confirmed(&self) -> u64 {
        self.inner.lock().numbers.confirmed()
    }

    /// Returns the number up to which all changes are carried out.
    fn carried_out(&self) -> u64 {
        self.inner.lock().numbers.carried_out()
    }

    /// Returns the log's identity, and the number of the last change.
    fn last(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.identity, inner.numbers.last())
    }

    /// Returns the operations that a commit which begins now will prove durable.
    pub(crate) fn proof(&self) -> Proof {
        self.inner.lock().numbers.proof()
    }

    /// Waits until every change that has a number by now is carried out. Other threads are in its system calls, and
    /// they hold all the locks that they need.
    fn carry_out(&self) {
        let mut inner = self.inner.lock();
        let last = inner.numbers.last();
        while inner.numbers.carried_out() < last {
            inner = self.through.wait(inner);
        }
    }
}

impl Drop for Pending {
    /// The change is durable, or there is no record of it.
    fn drop(&mut self) {
        if !self.failed {
            self.log.inner.lock().numbers.durable(self.number);
        }
        if !self.recorded {
            self.log.queue.skip(self.number);
        }
        if let Some((slots, slot)) = self.slot.take() {
            slots.give_back(slot);
        }
    }
}

/// The effects of a change, for [`Filesystem::changed`].
#[derive(Default)]
pub(crate) struct Did {
    /// Each name that it changed.
    pub(crate) bindings: Bindings,
    /// The objects that it touched, as they are now.
    pub(crate) objects: Vec<Object>,
    /// The rights that a new inode was to have.
    pub(crate) made: Option<Rights>,
    /// The ticket of a creation, from before the creation.
    pub(crate) ticket: Option<Ticket>,
    /// The entry of the request journal, from before the change. Set for changes whose first execution looks like a
    /// second one.
    pub(crate) request: Option<Request>,
}

impl Filesystem {
    /// Returns the way in which changes become durable now, or `None` if there is no cache.
    pub(crate) fn way(&self) -> Option<Way> {
        let linked = self.linked()?;
        let ordered = self.journal.order() == Order::Journal && matches!(self.scheme, Scheme::Kernel);
        let cached = linked.cache.engine.effective_mode() == Mode::WriteBack;
        Some(match (ordered, cached && !linked.logging.is_failing()) {
            (false, _) => Way::Each,
            (true, false) => Way::Journal,
            (true, true) => Way::Log,
        })
    }

    /// Returns true if changes made now get records from which recovery may recreate an inode or set its attributes.
    pub(crate) fn is_recorded_whole(&self) -> bool {
        self.way().is_some_and(|way| way != Way::Each)
    }

    /// Returns the way in which a change that may have set the size of a file becomes durable. The cache's records
    /// carry sizes only for dirty files. So the file has to be durable before the reply, and recovery must not create
    /// it afterwards. The result tells if recovery will not: the journal's commit may succeed although the checkpoint's
    /// commit was late.
    pub(crate) fn way_with_size(&self, object: &Inode, size: Option<u64>) -> (Option<Way>, Result<()>) {
        let way = self.way();
        if size.is_none() || matches!(way, None | Some(Way::Each)) {
            return (way, Ok(()));
        }
        let linked = self.linked().filter(|linked| linked.logging.is_touched(&object.kernel));
        let made = linked.map_or(Ok(()), |linked| linked.cache.checkpoints.make_of(self));
        (Some(Way::Journal), made)
    }

    /// Declares that the next change in the directories that the caller has locked has no record: no record in the log
    /// describes an earlier state any more. The caller calls this before the change, so that recovery does not take
    /// half of it back, and after the change, so that it stays.
    pub(crate) fn without_record(&self) -> Result<()> {
        let way = self.way().filter(|way| *way != Way::Each);
        let Some((linked, _)) = self.linked().zip(way) else { return Ok(()) };
        linked.cache.oplog.carry_out();
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
    pub(crate) fn begun(&self, asked: &Asked, dir: &Inode, name: &[u8]) -> Option<Identity> {
        let linked = self.linked()?;
        linked.cache.begun.take(asked, linked.number(), &dir.kernel, name)
    }

    /// Writes the change that is about to be carried out to the request journal, in case the server is killed before
    /// the record is in the log. The caller's locks keep other changes from these names.
    pub(crate) fn under_way(&self, bindings: Bindings, asked: Option<&Asked>) -> Option<Request> {
        let (linked, asked) = self.linked().zip(asked)?;
        Some(linked.cache.under_way.begin(linked.number(), bindings, asked))
    }

    /// Gives a number to a change that was just carried out. The caller still holds the locks of the change, so that
    /// numbers tell the order. Returns `None` if there is no cache.
    pub(crate) fn changed(&self, way: Option<Way>, did: Did) -> Option<Box<Pending>> {
        let (linked, way) = self.linked().zip(way)?;
        let log = linked.cache.oplog.clone();
        let number = log.begin(way);
        Some(self.pending(linked, log, number, way, did))
    }

    fn pending(&self, linked: &Linked, log: Arc<OpLog>, number: u64, way: Way, did: Did) -> Box<Pending> {
        let filesystem = linked.number();
        if way != Way::Each {
            linked.logging.touch(number, &did.objects);
        }
        let Did { bindings, objects, made, ticket, request } = did;
        let (slot, failed, recorded) = (None, false, false);
        Box::new(Pending {
            log,
            number,
            filesystem,
            way,
            bindings,
            objects,
            made,
            slot,
            ticket,
            _request: request,
            failed,
            recorded,
        })
    }

    /// Begins a RENAME from one of these directories to the other, whose locks are held. `None`: nothing needs to be
    /// said of it.
    pub(crate) fn announce(&self, way: Option<Way>, dirs: [Identity; 2]) -> Result<Option<Announced>> {
        let Some((linked, way)) = self.linked().zip(way.filter(|way| *way != Way::Each)) else {
            return Ok(None);
        };
        let slot = self.slots.take(&self.aliases)?;
        let log = linked.cache.oplog.clone();
        let (identity, number) = log.begin_ahead();
        let intent = RenameIntent { log: identity, number, filesystem: linked.number(), dirs };
        let slots = self.slots.clone();
        Ok(Some(Announced { log, slots, intent, way, slot: Some(slot), ended: false }))
    }

    /// Logs an announced change that was carried out, like [`Filesystem::changed`].
    pub(crate) fn carried_out(&self, mut announced: Announced, did: Did) -> Option<Box<Pending>> {
        let linked = self.linked()?;
        let (log, number, way) = (announced.log.clone(), announced.intent.number, announced.way);
        let mut pending = self.pending(linked, log, number, way, did);
        pending.slot = announced.slot.take().map(|slot| (announced.slots.clone(), slot));
        announced.ended = true;
        Some(pending)
    }
}

/// A RENAME whose intent is in a slot. If the value is dropped, the RENAME was not carried out. Its thread may then
/// have to append the records of other threads and wait for room, so the dropping thread must hold no locks of
/// directories.
pub(crate) struct Announced {
    log: Arc<OpLog>,
    slots: Arc<RenameIntents>,
    intent: RenameIntent,
    way: Way,
    slot: Option<OwnedFd>,
    ended: bool,
}

impl Announced {
    /// Writes the intent into the slot.
    pub(crate) fn say(&self) -> Result<()> {
        self.slot.as_ref().map_or(Ok(()), |slot| rename_intents::say(slot, &self.intent))
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            // An intent that cannot be withdrawn does no harm: nothing is where it says.
            let _ = self.slots.withdraw(slot);
        }
        self.log.inner.lock().numbers.through(self.intent.number);
        self.log.through.notify_all();
        if !self.ended {
            self.log.queue.skip(self.intent.number);
        }
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
pub(crate) fn object(inode: &Inode, attr: &Attr, new: Option<New>, access: Access) -> Option<Object> {
    Some(Object { identity: inode.kernel, attributes: attributes(attr)?, new, access })
}

/// Returns the log's descriptions of inodes that existed before, as they are now. They include changes that only the
/// cache has, which may be destaged and forgotten before the record is. The change has set neither mode nor owner.
pub(crate) fn objects(inodes: &[&Inode]) -> Vec<Object> {
    let object = |inode: &&Inode| object(inode, &inode.attr().ok()?, None, Access::Kept);
    inodes.iter().filter_map(object).collect()
}

const _: () = assert!(forebay_oplog::RECORD_MAX == USER_RECORD_MAX);

/// The longest text of a symbolic link, in bytes, with which a record fits a user record; see
/// [`Filesystem::without_record`].
pub(crate) const TEXT_MAX: usize = 2048;

impl Pending {
    pub(crate) fn way(&self) -> Way {
        self.way
    }

    fn record(&mut self, answer: &[u8]) -> Record {
        let (number, filesystem) = (self.number, self.filesystem);
        let bindings = std::mem::take(&mut self.bindings);
        if self.way != Way::Each {
            let (objects, reply) = (std::mem::take(&mut self.objects), answer.into());
            return Record::Operation(Box::new(Operation {
                number,
                filesystem,
                entries: bindings,
                objects,
                reply,
            }));
        }
        let made = self.made.take();
        let entry = |binding: Binding| {
            let made = made.filter(|_| binding.now.is_some());
            Entry { dir: binding.dir, name: binding.name, object: binding.now, made }
        };
        let entries: Entries = bindings.into_iter().map(entry).collect();
        let confirmed = self.log.confirmed();
        Record::Change(Box::new(Change { number, confirmed, filesystem, entries, answer: answer.into() }))
    }
}

/// Appends a change with its answer to the log, behind all changes with lower numbers. Then calls `then` with the frame
/// that makes the record durable. `None` says that there is no record, since it is too long; an error says that there
/// is no log any more. May wait for room in the log, for this change and for other changes. For [`Way::Log`] some
/// thread calls `then` as part of the change's turn; other changes wait for their turns.
pub(crate) fn keep(
    cache: &Cache,
    mut pending: Box<Pending>,
    answer: &[u8],
    then: impl FnOnce(Box<Pending>, std::result::Result<Option<Seq>, forebay_engine::Error>) + Send + 'static,
) {
    let record = pending.record(answer).encode();
    if record.len() > USER_RECORD_MAX {
        return then(pending, Ok(None));
    }
    pending.recorded = true;
    let (engine, log, number, way) = (cache.engine.clone(), pending.log.clone(), pending.number, pending.way);
    let note = move || {
        let noted = block_on(engine.note(&record));
        drop(pending.ticket.take());
        (pending, noted.map(|(frame, _)| Some(frame)))
    };
    if way == Way::Log {
        // No lock is held: this thread may write the frame.
        tasks::and_then_run(|| {
            log.queue.submit(number, move || {
                let (pending, kept) = note();
                then(pending, kept);
            });
        });
    } else if let Some((pending, kept)) = log.queue.turn(number, note) {
        // This thread may lead a commit of the journal. It must not do so in a turn, for which other threads wait.
        then(pending, kept);
    }
}

#[cfg(test)]
mod tests {
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
        let object = |new| Object { identity: kernel, attributes, new, access: Access::Set };
        let entry =
            Binding { dir: kernel, name: [b'n'; 255][..].into(), was: Some(kernel), now: Some(kernel) };
        let record = |entries: usize, objects| {
            Record::Operation(Box::new(Operation {
                number: u64::MAX,
                filesystem: u32::MAX,
                entries: std::iter::repeat_n(entry.clone(), entries).collect(),
                objects,
                // Handle, attributes and those around the change of two directories are 400.
                reply: [0; 600].into(),
            }))
            .encode()
        };
        let text = New::Link([b't'; TEXT_MAX].into());
        assert!(record(1, vec![object(None), object(Some(text))]).len() <= USER_RECORD_MAX);
        assert!(record(2, vec![object(None), object(None)]).len() <= USER_RECORD_MAX);
    }

    #[test]
    fn only_what_has_no_open_change_before_it_is_confirmed() {
        let log = Arc::new(OpLog::default());
        log.settled(0, 10);
        let begin = || Pending {
            log: log.clone(),
            number: log.begin(Way::Each),
            filesystem: 0,
            way: Way::Each,
            bindings: Bindings::new(),
            objects: Vec::new(),
            made: None,
            slot: None,
            ticket: None,
            _request: None,
            failed: false,
            recorded: false,
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
