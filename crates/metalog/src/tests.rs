//! A log and a file system in memory, and futures that are polled once.

use std::future::{Future, pending, poll_fn, ready};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_engine::io::{BackingError, Clock, Io};
use forebay_engine::{Completion, Error, Seq, UserRecordId};
use forebay_oplog::{
    Access, Attributes, IDENTITY_MAX, Identity, Kind, LoggedObject, Record, RenameIntent, Time,
};

use crate::{ChangeEffects, Checkpoints, Done, Failure, Files, Log, Sequence, Slot, Volume};

/// Returns the result of a future that waits for nothing.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the future waits"),
    }
}

/// Returns true if a future waits.
pub(crate) fn is_pending<T>(future: impl Future<Output = T>) -> bool {
    pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

/// A log of which every record is durable at once.
#[derive(Default)]
pub(crate) struct Memory {
    records: Mutex<Vec<Vec<u8>>>,
    /// The calls that release records, for people.
    pub(crate) released: Mutex<Vec<String>>,
    /// True if no device is left.
    pub(crate) lost: AtomicBool,
    /// True if only one device is left.
    pub(crate) alone: AtomicBool,
    /// True if there is no room until records are released. A task that appends waits for that.
    pub(crate) full: AtomicBool,
}

impl Memory {
    pub(crate) fn records(&self) -> Vec<Vec<u8>> {
        self.records.lock().clone()
    }

    /// Returns the decoded records.
    pub(crate) fn decoded(&self) -> Vec<Record> {
        self.records().iter().filter_map(|record| Record::decode(record)).collect()
    }
}

impl Log for Memory {
    async fn note(&self, record: &[u8]) -> Result<(Seq, UserRecordId), Error> {
        if self.lost.load(Relaxed) {
            return Err(Error::NoDevice);
        }
        if self.full.load(Relaxed) {
            pending::<()>().await;
        }
        let mut records = self.records.lock();
        records.push(record.to_vec());
        Ok((records.len() as Seq, records.len() as UserRecordId))
    }

    fn try_append_user_record(&self, record: &[u8]) -> Result<Option<(Seq, UserRecordId)>, Error> {
        if self.full.load(Relaxed) { Ok(None) } else { at_once(self.note(record)).map(Some) }
    }

    async fn commit(&self, _frame: Seq) -> Result<(), Error> {
        Ok(())
    }

    fn when_durable(&self, _frame: Seq, done: Completion) {
        done(Ok(()));
    }

    fn is_write_back(&self) -> bool {
        !self.alone.load(Relaxed)
    }

    async fn user_records_due(&self) -> Option<UserRecordId> {
        let mut released = self.released.lock();
        released.push("asks".to_owned());
        (released.len() == 1).then_some(7)
    }

    async fn replace_user_records(&self, record: &[u8]) -> Result<Option<(Seq, UserRecordId)>, Error> {
        self.note(record).await.map(Some)
    }

    fn keep_notes(&self, _why: Option<BackingError>) {}

    fn release_user_records(&self, upto: UserRecordId) {
        self.released.lock().push(format!("up to {upto}"));
    }

    fn let_go_replaced(&self, upto: UserRecordId, _bytes: usize) {
        self.release_user_records(upto);
    }

    async fn let_go_but(
        &self,
        upto: UserRecordId,
        _replacing: usize,
        needed: impl Fn(&[u8]) -> bool + Send + Sync,
    ) -> Result<bool, Error> {
        let kept = self.records().iter().filter(|record| needed(record)).count();
        self.released.lock().push(format!("up to {upto} but {kept}"));
        Ok(true)
    }

    fn run(&self, task: Io<()>) {
        at_once(task);
    }
}

/// Errors of [`Disk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Late,
    Failed,
    Busy,
}

impl Failure for Refused {
    const LATE: Self = Refused::Late;
    const FAILED: Self = Refused::Failed;
    const BUSY: Self = Refused::Busy;

    fn to_cache(self) -> BackingError {
        BackingError::Io(5)
    }
}

/// The contents of a slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paper(pub(crate) Arc<Mutex<Option<RenameIntent>>>);

impl Slot for Paper {
    type Error = Refused;

    fn write(&self, intent: &RenameIntent) -> Result<(), Refused> {
        *self.0.lock() = Some(intent.clone());
        Ok(())
    }

    fn withdraw(&self) -> Result<(), Refused> {
        *self.0.lock() = None;
        Ok(())
    }
}

/// A file system that only says what is asked of it.
#[derive(Default)]
pub(crate) struct Disk {
    /// Everything that was asked, for people.
    pub(crate) asked: Mutex<Vec<String>>,
    /// True while no commit ends.
    pub(crate) hangs: Arc<AtomicBool>,
    pub(crate) failed: AtomicBool,
    pub(crate) slot: Paper,
}

impl Disk {
    fn ask(&self, what: impl Into<String>) {
        self.asked.lock().push(what.into());
    }

    fn result(&self) -> Result<(), Refused> {
        if self.failed.load(Relaxed) { Err(Refused::Failed) } else { Ok(()) }
    }
}

impl Files for Disk {
    type Log = Memory;
    type Error = Refused;
    type Slot = Paper;
    type Request = &'static str;
    type Kept = ();

    fn make_slot(&self, _number: usize) -> Result<Paper, Refused> {
        Ok(self.slot.clone())
    }

    fn begin_commit(&self) -> Result<Io<Result<(), Refused>>, Refused> {
        self.ask("commit");
        let (hangs, result) = (self.hangs.clone(), self.result());
        Ok(Box::pin(poll_fn(move |_| if hangs.load(Relaxed) { Poll::Pending } else { Poll::Ready(result) })))
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    fn commit(self: &Arc<Self>, request: &'static str, done: Done<Refused>) {
        self.ask(format!("commit {request}"));
        done(self.result());
    }

    fn complete(self: &Arc<Self>, request: &'static str, done: Done<Refused>) {
        self.ask(format!("complete {request}"));
        done(Ok(()));
    }

    fn log_broke(&self) {
        self.ask("broke");
    }

    fn record_lost_log(&self, log: u64, upto: u64) -> Result<(), Refused> {
        self.ask(format!("lost {log} after {upto}"));
        Ok(())
    }
}

/// A clock on which every sleep ends at once.
#[derive(Default)]
struct Fast(Mutex<Duration>);

impl Clock for Fast {
    fn now(&self) -> Duration {
        *self.0.lock()
    }

    fn sleep(&self, time: Duration) -> Io<()> {
        *self.0.lock() += time;
        Box::pin(ready(()))
    }
}

/// One file system with its log, after change 10.
pub(crate) struct Bench {
    pub(crate) log: Arc<Memory>,
    pub(crate) sequence: Arc<Sequence<Memory>>,
    pub(crate) disk: Arc<Disk>,
    pub(crate) checkpoints: Checkpoints<Disk>,
    pub(crate) volume: Arc<Volume<Disk>>,
    /// The news of checkpoints.
    pub(crate) news: Arc<Mutex<Vec<String>>>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Bench::beside(&Arc::default())
    }

    /// Returns a bench that serves another file system as well, with number 4.
    pub(crate) fn beside(other: &Arc<Disk>) -> Self {
        let (log, disk) = (Arc::new(Memory::default()), Arc::new(Disk::default()));
        let sequence = Arc::new(Sequence::new(log.clone()));
        sequence.mark_reconciled(77, 10);
        let news = Arc::new(Mutex::new(Vec::new()));
        let theirs = news.clone();
        let tell = Arc::new(move |it| theirs.lock().push(format!("{it:?}")));
        let served = vec![(3, Arc::downgrade(&disk)), (4, Arc::downgrade(other))];
        let checkpoints = Checkpoints::new(sequence.clone(), Arc::new(Fast::default()), served, tell);
        let volume = checkpoints.volume(3).unwrap().clone();
        Bench { log, sequence, disk, checkpoints, volume, news }
    }

    /// Returns the things that the file system was asked since the last call.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.disk.asked.lock())
    }
}

pub(crate) fn identity(n: u8) -> Identity {
    Identity { kind: 1, len: 1, bytes: [n; IDENTITY_MAX] }
}

/// Returns the effects of a change of one object.
pub(crate) fn touching(n: u8) -> ChangeEffects<()> {
    let time = Time::default();
    let attributes = Attributes { kind: Kind::File, mode: 0, uid: 0, gid: 0, atime: time, mtime: time };
    let object = LoggedObject { identity: identity(n), attributes, new: None, access: Access::Kept };
    ChangeEffects { objects: vec![object], ..ChangeEffects::default() }
}
