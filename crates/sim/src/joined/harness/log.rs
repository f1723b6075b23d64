//! The engine's log, with everything observed that the metadata log does to it.

use std::sync::Weak;

use forebay_engine::io::{BackingError, Io};
use forebay_engine::{Completion, Mode};
use forebay_metalog::Log;
use forebay_oplog::Record;

use super::*;

/// The progress of a change.
#[derive(Clone, Debug, Default)]
pub(in crate::joined) struct Logged {
    /// The change's record in the log, if it has one.
    pub(in crate::joined) note: Option<UserRecordId>,
    /// True if the client was answered.
    pub(in crate::joined) answered: bool,
}

/// Everything that happened to the log in a session.
#[derive(Default)]
pub(super) struct Seen {
    /// The progress of each change, by number.
    pub(super) logged: BTreeMap<u64, Logged>,
    /// Numbers of changes in the order of the log.
    pub(super) order: Vec<u64>,
    /// User records up to this one were released.
    pub(super) released: UserRecordId,
    /// Changes whose records were not reappended, since the changes are in the file system.
    pub(super) dropped: BTreeSet<u64>,
}

/// The log of a session. The engine keeps completions that lead back here, so it is not kept here.
pub(super) struct Observed {
    engine: Weak<Engine>,
    store: Store,
    executor: Executor,
    hits: Arc<Hits>,
    pub(super) seen: Mutex<Seen>,
}

impl Observed {
    /// Makes the observer of a session's log. It keeps no engine alive: a call after the engine's end fails with
    /// [`Error::Closing`].
    pub(super) fn new(engine: &Arc<Engine>, store: &Store, executor: &Executor, hits: &Arc<Hits>) -> Self {
        let (engine, store, executor, hits) =
            (Arc::downgrade(engine), store.clone(), executor.clone(), hits.clone());
        Observed { engine, store, executor, hits, seen: Mutex::default() }
    }

    fn engine(&self) -> Result<Arc<Engine>, Error> {
        self.engine.upgrade().ok_or(Error::Closing)
    }

    /// Notes that the engine's log has the record of a change, and the place of that change in the log's order.
    fn has(&self, record: &[u8], note: UserRecordId) {
        if let Some(Record::Operation(operation)) = Record::decode(record) {
            let mut seen = self.seen.lock();
            seen.logged.entry(operation.number).or_default().note = Some(note);
            seen.order.push(operation.number);
        }
    }
}

impl Log for Observed {
    async fn note(&self, record: &[u8]) -> Result<(Seq, UserRecordId), Error> {
        let noted = self.engine()?.note(record).await;
        noted.inspect(|(_, note)| self.has(record, *note))
    }

    fn try_append_user_record(&self, record: &[u8]) -> Result<Option<(Seq, UserRecordId)>, Error> {
        let noted = self.engine()?.try_append_user_record(record);
        noted.inspect(|noted| noted.iter().for_each(|(_, note)| self.has(record, *note)))
    }

    async fn replace_user_records(&self, record: &[u8]) -> Result<Option<(Seq, UserRecordId)>, Error> {
        self.engine()?.replace_user_records(record).await
    }

    async fn commit(&self, frame: Seq) -> Result<(), Error> {
        self.engine()?.commit(frame).await
    }

    fn when_durable(&self, frame: Seq, done: Completion) {
        match self.engine() {
            Ok(engine) => engine.when_durable(frame, done),
            Err(error) => done(Err(error)),
        }
    }

    fn is_write_back(&self) -> bool {
        self.engine().is_ok_and(|engine| engine.effective_mode() == Mode::WriteBack)
    }

    async fn user_records_due(&self) -> Option<UserRecordId> {
        self.engine().ok()?.user_records_due().await
    }

    fn keep_notes(&self, why: Option<BackingError>) {
        _ = self.engine().map(|engine| engine.keep_notes(why));
    }

    fn release_user_records(&self, upto: UserRecordId) {
        let mut seen = self.seen.lock();
        seen.released = seen.released.max(upto);
        drop(seen);
        _ = self.engine().map(|engine| engine.release_user_records(upto));
        self.hits.hit(Fault::JoinedLetGo);
    }

    fn let_go_replaced(&self, upto: UserRecordId, bytes: usize) {
        let mut seen = self.seen.lock();
        seen.released = seen.released.max(upto);
        drop(seen);
        _ = self.engine().map(|engine| engine.let_go_replaced(upto, bytes));
        self.hits.hit(Fault::JoinedLetGo);
    }

    async fn let_go_but(
        &self,
        upto: UserRecordId,
        replacing: usize,
        needed: impl Fn(&[u8]) -> bool + Send + Sync,
    ) -> Result<bool, Error> {
        let needed = |record: &[u8]| {
            let needed = needed(record);
            match Record::decode(record) {
                Some(Record::Operation(_)) if needed => self.hits.hit(Fault::JoinedCarried),
                Some(Record::Operation(operation)) => _ = self.seen.lock().dropped.insert(operation.number),
                _ => {}
            }
            needed
        };
        self.engine()?.let_go_but(upto, replacing, needed).await
    }

    fn run(&self, task: Io<()>) {
        // A killed server carries out nothing more, and its tasks are dropped.
        if !self.store.is_halted() {
            self.executor.start("run", task);
        }
    }
}
