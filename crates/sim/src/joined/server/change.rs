//! Changes of names and attributes: carried out, numbered, and put into the log in order of numbers.

use super::*;
use crate::front::durable;
use crate::joined::plant;

impl Server {
    /// Carries out a change of names or attributes, and waits until it is durable. Also returns the object that lost
    /// its last name.
    pub(super) async fn change(
        &self,
        xid: Xid,
        request: Request,
    ) -> Result<(Done, Option<Identity>), Refused> {
        self.pause().await;
        self.can_change()?;
        let locked = self.lock(&request).await;
        self.change_locked(xid, request, locked, false).await
    }

    pub(super) async fn change_locked(
        &self,
        xid: Xid,
        request: Request,
        locked: Locked<'_>,
        sized: bool,
    ) -> Result<(Done, Option<Identity>), Refused> {
        let journal = sized || self.engine.effective_mode() != Mode::WriteBack || self.is_failing();
        let (done, slot) = match &request {
            Request::Rename(from, to) => {
                let (number, slot, done) = self.rename(xid, &request, [from.0, to.0]).await;
                if done.is_err() {
                    // Records of other changes may have to wait for room, so nothing is locked here.
                    drop(locked);
                    self.submit(number, None).await;
                    return done.map(|done| (done, None));
                }
                (done?, Some(slot))
            }
            _ => (self.carry_out(xid, &request)?, None),
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
        if plant::active("an answer is kept before the record is durable") {
            let answer = Answer::Done { number, made: done.made() };
            self.inner.lock().replies.end(xid, answer);
        }
        self.submit(number, Some(Turn { number, record, ticket, noted })).await;
        match comes.await {
            Ok(_) if plant::active("answered before the record is durable") => {}
            Ok((frame, _)) => self.durable(frame).await,
            Err(_) => self.never().await,
        }
        if journal {
            self.store.commit().await.map_err(|_| Refused::Io)?;
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
        if durable(&self.engine, frame).await.is_err() {
            self.never().await;
        }
    }

    /// Waits for ever: there is no answer, since the engine has closed or has no device.
    async fn never(&self) {
        self.executor.never::<()>().await;
    }

    /// Carries out any change but a RENAME, under its locks.
    fn carry_out(&self, xid: Xid, request: &Request) -> Result<Done, Refused> {
        let number = self.inner.lock().numbers.last() + 1;
        let done = self.act(xid, request, number)?;
        let begun = self.inner.lock().numbers.begin();
        assert_eq!(begun, number, "nobody else had a turn");
        Ok(done)
    }

    fn act(&self, xid: Xid, request: &Request, number: u64) -> Result<Done, Refused> {
        let mut state = self.store.lock();
        let begin = state.transactions();
        let mut done = carry_out(&mut state.volume, request, number, None, None)?;
        done.operation.reply = Answer::reply(xid, &done);
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

    /// Carries out a RENAME. It gets its number and writes its intent to a slot before it is carried out.
    async fn rename(
        &self,
        xid: Xid,
        request: &Request,
        dirs: [Identity; 2],
    ) -> (u64, usize, Result<Done, Refused>) {
        let slot = loop {
            if let Some(slot) = self.inner.lock().slots.pop() {
                break slot;
            }
            self.hits.hit(Fault::JoinedNoSlot);
            self.wait().await;
        };
        let number = self.inner.lock().numbers.begin_ahead();
        if !plant::active("a RENAME says nothing in its slot") {
            let intent = RenameIntent { log: LOG, number, filesystem: 0, dirs };
            self.store.lock().volume.slot(slot, Some(intent));
        }
        self.pause().await;
        let done = self.act(xid, request, number);
        self.inner.lock().numbers.through(number);
        if done.is_err() {
            self.store.lock().volume.slot(slot, None);
            self.inner.lock().slots.push(slot);
        }
        (number, slot, done)
    }

    /// Returns the object that just lost its last name.
    fn lost_last_name(&self, done: &Done) -> Option<Identity> {
        victim(done).filter(|object| self.store.lock().volume.resolve(*object).is_none())
    }

    /// Drops the alias of an object that may have lost its last name, if it did.
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

    /// Handles a durable removal: the cache forgets an object without a name.
    async fn removed(&self, object: Identity) {
        let known = self.inner.lock().removals.end(object, true);
        let Some(known) = known else { return };
        if known.dirty_blocks() > 0 {
            self.hits.hit(Fault::JoinedRemoved);
        }
        self.engine.forget(&known).await;
    }

    /// Puts a record into the log when it is its turn, or leaves that to the thread whose turn it is.
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

    fn noted(&self, turn: &Turn, note: Option<UserRecordId>) {
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
}

/// Returns the object that lost a name: it was removed or replaced.
fn victim(done: &Done) -> Option<Identity> {
    let entries = &done.operation.entries;
    let moved = |object: &Identity| entries.iter().any(|entry| entry.now == Some(*object));
    entries.iter().filter_map(|entry| entry.was).find(|object| !moved(object))
}
