//! A server above the cache and the file system, by the rules of docs/metadata-log.md: a change is carried out, gets its
//! number, its record goes to the log in order of numbers, and its client is answered when that is durable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::io::Clock as _;
use forebay_engine::{Engine, Error, Mode, NoteId, Object, Seq};
use forebay_lock::Mutex;
use forebay_oplog::{Creations, Identity, Intent, Numbers, Record, Removals, Turns};

use super::plant;
use super::store::{Store, key};
use crate::executor::{Executor, Promise, promise};
use crate::hits::{Fault, Hits};
use crate::namespace::history::Step;
use crate::namespace::request::{Done, LOG, Place, Request, carry_out};
use crate::namespace::volume::{Refused, Volume};
use crate::rng::Rng;

/// Fewer than there are clients: some RENAMEs have to wait for one.
const SLOTS: usize = 3;

/// What became of a change.
#[derive(Clone, Debug, Default)]
pub(super) struct Logged {
    /// Its record in the log, if it came so far.
    pub(super) note: Option<NoteId>,
    /// Its client was answered.
    pub(super) answered: bool,
}

/// A record that waits for its turn.
struct Turn {
    number: u64,
    record: Vec<u8>,
    ticket: Option<u64>,
    noted: Promise<Result<(Seq, NoteId), Error>>,
}

#[derive(Default)]
struct Inner {
    numbers: Numbers,
    turns: Turns<Turn>,
    /// Somebody has turns done.
    busy: bool,
    creations: Creations,
    removals: Removals<Arc<Object>>,
    /// The last change of each object since the last checkpoint.
    touched: BTreeMap<Identity, u64>,
    /// The last change with a record, and the last one that a durable checkpoint covers.
    last: u64,
    checkpoint: u64,
    checkpointing: bool,
    locked: BTreeSet<Identity>,
    writers: BTreeMap<Identity, u32>,
    slots: Vec<usize>,
    objects: BTreeMap<Identity, Arc<Object>>,
    /// What was carried out in this session, in that order, and what became of it.
    steps: Vec<Step>,
    logged: BTreeMap<u64, Logged>,
    /// Numbers in the order of the log.
    order: Vec<u64>,
    let_go: NoteId,
}

/// What is known of a session when it has ended.
pub(super) struct Ended {
    /// What was carried out, with transactions counted as the file system does.
    pub(super) steps: Vec<Step>,
    /// What became of each, by number.
    pub(super) answers: BTreeMap<u64, Logged>,
    /// Those with a record, in the order of the log.
    pub(super) order: Vec<u64>,
    /// Notes up to this one may be gone.
    pub(super) let_go: NoteId,
}

/// The server of one session.
pub(super) struct Server {
    executor: Executor,
    hits: Arc<Hits>,
    /// What it serves.
    pub(super) store: Store,
    /// The cache in front of that.
    pub(super) engine: Arc<Engine>,
    rng: Mutex<Rng>,
    inner: Mutex<Inner>,
}

/// A lock on some objects; given back when dropped.
struct Locked<'a>(&'a Server, BTreeSet<Identity>);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.inner.lock();
        inner.locked.retain(|object| !self.1.contains(object));
    }
}

/// A share in the lock of a file that is written.
struct Writing<'a>(&'a Server, Identity);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if let Some(writers) = self.0.inner.lock().writers.get_mut(&self.1) {
            *writers -= 1;
        }
    }
}

impl Server {
    /// One that goes on after the change `last`, with everything up to that in the file system durably.
    pub(super) fn new(
        executor: &Executor,
        store: &Store,
        engine: Arc<Engine>,
        hits: &Arc<Hits>,
        rng: Rng,
        last: u64,
    ) -> Self {
        let mut inner = Inner { last, checkpoint: last, slots: (0..SLOTS).collect(), ..Inner::default() };
        inner.numbers.settled(last);
        inner.turns.begin(last + 1);
        let (executor, store, hits) = (executor.clone(), store.clone(), hits.clone());
        Server { executor, hits, store, engine, rng: Mutex::new(rng), inner: Mutex::new(inner) }
    }

    /// How many changes were carried out.
    pub(super) fn changes(&self) -> usize {
        self.inner.lock().steps.len()
    }

    /// What is known of it, when nothing runs any more.
    pub(super) fn ended(&self) -> Ended {
        let mut inner = self.inner.lock();
        Ended {
            steps: std::mem::take(&mut inner.steps),
            answers: std::mem::take(&mut inner.logged),
            order: std::mem::take(&mut inner.order),
            let_go: inner.let_go,
        }
    }

    /// Time passes, now and then a lot, and the machine may crash.
    pub(super) async fn pause(&self) {
        let time = {
            let mut rng = self.rng.lock();
            let most = if rng.chance(500) { 20_000 } else { 200 };
            rng.time(Duration::ZERO, Duration::from_micros(most))
        };
        let executor = self.executor.clone();
        self.executor.after(time, move || executor.step().then_some(())).await;
    }

    async fn wait(&self) {
        self.executor.sleep(Duration::from_micros(50)).await;
    }

    /// Whoever has found an object waits until the record of its creation is in the log.
    pub(super) async fn found(&self) {
        let latest = self.inner.lock().creations.latest();
        while !self.inner.lock().creations.is_through(latest) {
            self.wait().await;
        }
    }

    /// Locks what `request` changes, alone.
    async fn lock(&self, request: &Request) -> Locked<'_> {
        loop {
            let wanted = locks(&self.store.lock().volume, request);
            {
                let mut inner = self.inner.lock();
                let written = |object: &Identity| inner.writers.get(object).is_some_and(|count| *count > 0);
                if inner.locked.is_disjoint(&wanted) && !wanted.iter().any(written) {
                    inner.locked.extend(&wanted);
                    return Locked(self, wanted);
                }
            }
            self.wait().await;
        }
    }

    async fn share(&self, object: Identity) -> Writing<'_> {
        loop {
            {
                let mut inner = self.inner.lock();
                if !inner.locked.contains(&object) {
                    *inner.writers.entry(object).or_default() += 1;
                    return Writing(self, object);
                }
            }
            self.wait().await;
        }
    }

    /// Carries out a change of names or attributes; done when it is durable. Also returns the object that lost its last name.
    pub(super) async fn change(&self, request: Request) -> Result<(Done, Option<Identity>), Refused> {
        self.pause().await;
        let locked = self.lock(&request).await;
        self.change_locked(request, locked, false).await
    }

    async fn change_locked(
        &self,
        request: Request,
        locked: Locked<'_>,
        sized: bool,
    ) -> Result<(Done, Option<Identity>), Refused> {
        let journal = sized || self.engine.effective_mode() != Mode::WriteBack;
        let (done, slot) = match &request {
            Request::Rename(from, to) => {
                let (number, slot, done) = self.rename(&request, [from.0, to.0]).await;
                if done.is_err() {
                    // Others' records may have to wait for room, with nothing locked.
                    drop(locked);
                    self.submit(number, None).await;
                    return done.map(|done| (done, None));
                }
                (done?, Some(slot))
            }
            _ => (self.carry_out(&request)?, None),
        };
        let ticket = done.made().map(|_| self.inner.lock().creations.begin());
        drop(locked);
        let gone = self.lost_last_name(&done);
        self.pause().await;
        let removing = victim(&done);
        self.look_whether_gone(removing);
        self.pause().await;
        let mut operation = Box::new(done.operation.clone());
        if plant::active("a reply is lost") {
            operation.reply = Box::default();
        }
        let record = Record::Operation(operation).encode();
        let number = done.operation.number;
        let (noted, comes) = promise();
        self.submit(number, Some(Turn { number, record, ticket, noted })).await;
        match comes.await {
            Ok(_) if plant::active("answered before the record is durable") => {}
            Ok((frame, _)) => self.durable(frame).await,
            Err(_) => self.never().await,
        }
        if journal {
            self.store.commit().await;
        }
        self.answered(number, slot);
        if let Some(object) = removing {
            self.removed(object).await;
        }
        Ok((done, gone))
    }

    fn answered(&self, number: u64, slot: Option<usize>) {
        let mut inner = self.inner.lock();
        inner.slots.extend(slot);
        if let Some(logged) = inner.logged.get_mut(&number) {
            logged.answered = true;
        }
    }

    async fn durable(&self, frame: Seq) {
        if self.engine.commit(frame).await.is_err() {
            self.never().await;
        }
    }

    /// There is no answer: the engine has closed, or has no device.
    async fn never(&self) {
        self.executor.never::<()>().await;
    }

    /// Carries out anything but a RENAME, under its locks.
    fn carry_out(&self, request: &Request) -> Result<Done, Refused> {
        let number = self.inner.lock().numbers.last() + 1;
        let done = self.act(request, number)?;
        let begun = self.inner.lock().numbers.begin();
        assert_eq!(begun, number, "nobody else had a turn");
        Ok(done)
    }

    fn act(&self, request: &Request, number: u64) -> Result<Done, Refused> {
        let mut state = self.store.lock();
        let begin = state.transactions();
        let done = carry_out(&mut state.volume, request, number, None, None)?;
        let end = state.transactions();
        drop(state);
        let mut inner = self.inner.lock();
        inner.touched.extend(done.operation.objects.iter().map(|object| (object.identity, number)));
        inner.last = inner.last.max(number);
        if let Some(object) = victim(&done) {
            inner.removals.begin(object);
        }
        inner.steps.push(Step { done: done.clone(), begin, end });
        inner.logged.insert(number, Logged::default());
        Ok(done)
    }

    /// A RENAME has its number, and says in a slot what it is about to do, before it is carried out.
    async fn rename(&self, request: &Request, dirs: [Identity; 2]) -> (u64, usize, Result<Done, Refused>) {
        let slot = loop {
            if let Some(slot) = self.inner.lock().slots.pop() {
                break slot;
            }
            self.hits.hit(Fault::JoinedNoSlot);
            self.wait().await;
        };
        let number = self.inner.lock().numbers.begin_ahead();
        if !plant::active("a RENAME says nothing in its slot") {
            let intent = Intent { log: LOG, number, filesystem: 0, dirs };
            self.store.lock().volume.slot(slot, Some(intent));
        }
        self.pause().await;
        let done = self.act(request, number);
        self.inner.lock().numbers.through(number);
        if done.is_err() {
            self.store.lock().volume.slot(slot, None);
            self.inner.lock().slots.push(slot);
        }
        (number, slot, done)
    }

    /// The object that just lost its last name.
    fn lost_last_name(&self, done: &Done) -> Option<Identity> {
        victim(done).filter(|object| self.store.lock().volume.resolve(*object).is_none())
    }

    /// Of an object that lost a name: perhaps the last one. Then its alias goes at once.
    fn look_whether_gone(&self, object: Option<Identity>) {
        let Some(object) = object else { return };
        {
            let volume = &mut self.store.lock().volume;
            if volume.resolve(object).is_some() {
                return;
            }
            if volume.state.aliases.contains_key(&object) {
                volume.set_alias(object, None);
            }
        }
        let mut inner = self.inner.lock();
        let known = inner.objects.remove(&object).or_else(|| self.engine.known(&key(object)));
        if let Some(known) = known {
            inner.removals.gone(object, known);
        }
    }

    /// A removal is durable: the cache forgets an object that is gone.
    async fn removed(&self, object: Identity) {
        let known = self.inner.lock().removals.end(object, true);
        let Some(known) = known else { return };
        if known.dirty_blocks() > 0 {
            self.hits.hit(Fault::JoinedRemoved);
        }
        self.engine.forget(&known).await;
    }

    /// Puts a record into the log when it is its turn, or leaves that to the one whose turn it is.
    async fn submit(&self, number: u64, turn: Option<Turn>) {
        {
            let mut inner = self.inner.lock();
            inner.turns.ready(number, turn);
            if std::mem::replace(&mut inner.busy, true) {
                return;
            }
        }
        loop {
            let Some(turn) = self.next_turn() else { return };
            let noted = self.engine.note(&turn.record).await;
            self.noted(&turn, noted.ok().map(|(_, note)| note));
            turn.noted.keep(noted);
        }
    }

    fn noted(&self, turn: &Turn, note: Option<NoteId>) {
        let mut inner = self.inner.lock();
        if note.is_some() {
            inner.logged.entry(turn.number).or_default().note = note;
            inner.order.push(turn.number);
        }
        if let Some(ticket) = turn.ticket {
            inner.creations.end(ticket);
        }
    }

    fn next_turn(&self) -> Option<Turn> {
        let mut inner = self.inner.lock();
        let turn = inner.turns.take();
        inner.busy = turn.is_some();
        turn
    }

    /// The engine's object of a file. `None`: its handle is stale.
    pub(super) fn object(&self, file: Identity) -> Option<Arc<Object>> {
        let size = self.store.lock().content(file)?.size;
        let mut inner = self.inner.lock();
        Some(inner.objects.entry(file).or_insert_with(|| self.engine.object(&key(file), size)).clone())
    }

    /// Whether recovery would make the object, or set its attributes, from the log.
    fn is_touched(&self, object: Identity) -> bool {
        self.inner.lock().touched.contains_key(&object)
    }

    /// Writes; what the log does not take is durable when this returns. The frame makes the rest durable.
    pub(super) async fn write(&self, file: Identity, offset: u64, data: &[u8]) -> Result<Seq, Error> {
        use forebay_engine::io::{Backing as _, BackingError};
        let _writing = self.share(file).await;
        let gone = Error::Backing(BackingError::Gone);
        let object = self.object(file).ok_or(gone)?;
        let accepted = self.engine.write_log(&object, offset, data, self.now()).await?;
        if accepted.len == data.len() {
            return Ok(accepted.frame);
        }
        let (offset, data) = (offset + accepted.len as u64, &data[accepted.len..]);
        self.hits.hit(Fault::JoinedDirect);
        if self.is_touched(file) {
            // Recovery might make the file again, and would find nothing of this in the log.
            self.hits.hit(Fault::JoinedDirectOfNew);
            self.checkpoint().await;
        }
        let direct = self.engine.begin_direct(&object, offset, data.len() as u64).await?;
        let buffer = Arc::new(forebay_engine::buffer::Buffer::from_bytes(data));
        let slice = forebay_engine::buffer::Slice::new(buffer, 0..data.len());
        let mut written = self.store.write(&key(file), offset, slice).await;
        if written.is_ok() {
            // Before anybody may cache it: what is cached outlives a power cut, and what is not synced does not.
            written = self.store.sync(vec![key(file)]).await.pop().unwrap_or(Ok(()));
        }
        let done = written.as_ref().ok().map(|()| (offset, data));
        let end = done.map_or(0, |(offset, data)| offset + data.len() as u64);
        let frame = self.engine.end_direct(&object, direct, done, end, self.now()).await?;
        written?;
        Ok(frame.max(accepted.frame))
    }

    /// SETATTR of a size, and of the mode; durable when this returns. `begin` is called when nobody else changes the file.
    pub(super) async fn resize(
        &self,
        file: Identity,
        size: u64,
        begin: impl FnOnce() + Send,
    ) -> Result<(), Error> {
        use forebay_engine::io::{Backing as _, BackingError};
        let request = Request::Chmod(file);
        let locked = self.lock(&request).await;
        let object = self.object(file).ok_or(Error::Backing(BackingError::Gone))?;
        begin();
        let backing = self.store.lock().content(file).map_or(0, |content| content.size);
        if object.size() != size || object.unsettled().is_some() || backing != size {
            if plant::active("a cut goes past the cache") {
                self.store.truncate(&key(file), size).await?;
            } else {
                self.engine.truncate(&object, size, self.now()).await?;
            }
        }
        if self.is_touched(file) {
            self.hits.hit(Fault::JoinedCutOfNew);
            self.checkpoint().await;
        }
        let changed = self.change_locked(request, locked, true).await;
        changed.map(drop).map_err(|_| Error::Backing(BackingError::Gone))
    }

    fn now(&self) -> forebay_engine::io::Time {
        let time = self.executor.time();
        forebay_engine::io::Time { sec: time.as_secs() as i64, nsec: time.subsec_nanos() }
    }

    /// Everything that has a number by now is in the file system, durably, and the log says so. `notes`: those up to this
    /// one are let go then.
    async fn make_checkpoint(&self, notes: Option<NoteId>) {
        while std::mem::replace(&mut self.inner.lock().checkpointing, true) {
            self.wait().await;
        }
        let (upto, due) = {
            let inner = self.inner.lock();
            (inner.numbers.carried_out(), inner.last > inner.checkpoint)
        };
        if due && !plant::active("a checkpoint without a commit") {
            self.store.commit().await;
        }
        if let Some(notes) = notes {
            self.let_go(notes);
        }
        self.inner.lock().checkpointing = false;
        if due {
            self.record_checkpoint(upto).await;
        }
    }

    fn let_go(&self, notes: NoteId) {
        let mut inner = self.inner.lock();
        inner.let_go = inner.let_go.max(notes);
        drop(inner);
        self.engine.let_go(notes);
        self.hits.hit(Fault::JoinedLetGo);
    }

    /// Puts it into the log that a commit succeeded.
    async fn record_checkpoint(&self, upto: u64) {
        let record = Record::Checkpoint { filesystem: 0, upto }.encode();
        let Ok((frame, _)) = self.engine.note(&record).await else { return };
        if self.engine.commit(frame).await.is_ok() {
            let mut inner = self.inner.lock();
            inner.checkpoint = inner.checkpoint.max(upto);
            inner.touched.retain(|_, number| *number > upto);
            self.hits.hit(Fault::JoinedCheckpoint);
        }
    }

    /// See [`Server::make_checkpoint`].
    pub(super) async fn checkpoint(&self) {
        self.make_checkpoint(None).await;
    }

    /// Makes one every so often, for ever.
    pub(super) async fn make_checkpoints(&self, every: Duration) {
        loop {
            self.executor.sleep(every).await;
            self.checkpoint().await;
        }
    }

    /// Lets go of notes whenever the engine asks.
    pub(super) async fn answer_for_notes(&self) {
        while let Some(notes) = self.engine.notes_due().await {
            if plant::active("notes are let go without a checkpoint") {
                self.let_go(notes);
                continue;
            }
            self.make_checkpoint(Some(notes)).await;
        }
    }

    /// A clean stop, with nothing under way.
    pub(super) async fn stop(&self) -> Result<u64, Error> {
        self.make_checkpoint(Some(NoteId::MAX)).await;
        // The record of this checkpoint stays as long as anything before it does.
        self.engine.let_go(NoteId::MAX);
        let closed = self.engine.close().await;
        self.store.lock().volume.clear_slots();
        closed
    }
}

/// What lost a name: what was removed or replaced.
fn victim(done: &Done) -> Option<Identity> {
    let entries = &done.operation.entries;
    let moved = |object: &Identity| entries.iter().any(|entry| entry.now == Some(*object));
    entries.iter().filter_map(|entry| entry.was).find(|object| !moved(object))
}

/// What a request needs for itself: directories whose names change or that lose theirs, and objects that it touches.
fn locks(volume: &Volume, request: &Request) -> BTreeSet<Identity> {
    let child = |place: &Place| {
        let found = volume.resolve(place.0).and_then(|dir| volume.child(dir, &place.1).ok()?);
        found.filter(|inner| volume.is_directory(*inner)).map(|inner| volume.outer(inner))
    };
    match request {
        Request::Create(place, _)
        | Request::Mkdir(place)
        | Request::Symlink(place)
        | Request::Mknod(place)
        | Request::Remove(place) => BTreeSet::from([place.0]),
        Request::Rmdir(place) => [place.0].into_iter().chain(child(place)).collect(),
        Request::Link(object, place) => BTreeSet::from([*object, place.0]),
        Request::Chmod(object) | Request::Setattr(object) => BTreeSet::from([*object]),
        Request::Rename(from, to) => {
            // Directories change their parents one at a time: the root stands for all of them.
            let moves = child(from).filter(|_| from.0 != to.0).map(|_| Volume::moving_dir());
            [from.0, to.0].into_iter().chain(child(to)).chain(moves).collect()
        }
    }
}
