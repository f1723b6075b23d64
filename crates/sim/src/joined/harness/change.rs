//! Changes of names and attributes: carried out as `vfs` does, then given to the metadata log.

use forebay_metalog::{ChangeEffects, Pending, make_durable};
use forebay_oplog::Operation;

use super::*;
use crate::joined::planted_bugs;

impl Harness {
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

    /// Carries out a change whose locks are held. `sized`: the request has set a size as well.
    pub(super) async fn change_locked(
        &self,
        xid: Xid,
        request: Request,
        locked: Locked<'_>,
        sized: bool,
    ) -> Result<(Done, Option<Identity>), Refused> {
        let way = if sized { DurableBy::Journal } else { self.volume.way(true) };
        let (done, pending) = match &request {
            Request::Rename(from, to) => self.rename(xid, &request, [from.0, to.0], way, locked).await?,
            _ => self.carry_out(xid, &request, way, locked)?,
        };
        let gone = self.lost_last_name(&done);
        self.pause().await;
        let removing = victim(&done);
        self.look_whether_gone(removing);
        self.pause().await;
        let (number, mut reply) = (done.operation.number, done.operation.reply.clone());
        if planted_bugs::active("a reply is lost") {
            reply = Box::default();
        }
        if planted_bugs::active("an answer is kept before the record is durable") {
            let answer = Answer::Done { number, made: done.made() };
            self.inner.lock().replies.end(xid, answer);
        }
        let (durable, comes) = promise();
        let durable = Box::new(move |result| durable.keep(result));
        make_durable(&self.files, pending, (), &reply, durable).await;
        let durable = comes.await;
        if durable.is_err() && self.files.has_no_log() {
            self.never().await;
        }
        durable?;
        self.seen().logged.entry(number).or_default().answered = true;
        if let Some(object) = removing {
            self.removed(object).await;
        }
        Ok((done, gone))
    }

    /// Waits for ever: there is no answer, since the engine has closed or has no device.
    async fn never(&self) {
        self.executor.never::<()>().await;
    }

    /// Carries out any change but a RENAME, under its locks.
    fn carry_out(
        &self,
        xid: Xid,
        request: &Request,
        way: DurableBy,
        _locked: Locked<'_>,
    ) -> Result<(Done, Box<Pending<Served>>), Refused> {
        let makes = matches!(
            request,
            Request::Create(..) | Request::Mkdir(_) | Request::Symlink(_) | Request::Mknod(_)
        );
        let ticket = makes.then(|| self.making.begin());
        let (_, last) = self.sequence.last();
        let done = self.act(xid, request, last + 1)?;
        let pending = self.volume.changed(way, ChangeEffects { ticket, ..did(&done) });
        assert_eq!(pending.number(), last + 1, "nobody else had a turn");
        Ok((done, pending))
    }

    /// Carries out a request on the virtual file system, and remembers its transactions with the reply for the checks
    /// after a crash. The caller holds the locks of the objects.
    fn act(&self, xid: Xid, request: &Request, number: u64) -> Result<Done, Refused> {
        let mut state = self.store.lock();
        let begin = state.transactions();
        let mut done = carry_out(&mut state.volume, request, number, None, None)?;
        done.operation.reply = Answer::reply(xid, &done);
        let end = state.transactions();
        drop(state);
        let mut inner = self.inner.lock();
        if let Some(object) = victim(&done) {
            inner.removals.begin(object);
        }
        inner.steps.push(Step { done: done.clone(), begin, end });
        Ok(done)
    }

    /// Carries out a RENAME. It gets its number and writes its intent to a slot before it is carried out.
    async fn rename(
        &self,
        xid: Xid,
        request: &Request,
        dirs: [Identity; 2],
        way: DurableBy,
        locked: Locked<'_>,
    ) -> Result<(Done, Box<Pending<Served>>), Refused> {
        if self.slots.are_taken() {
            self.hits.hit(Fault::JoinedNoSlot);
        }
        let announced = self.volume.announce(&self.files, &self.slots, way, dirs).await?;
        announced.say()?;
        self.pause().await;
        let done = self.act(xid, request, announced.number());
        match done {
            Ok(done) => {
                let pending = announced.carried_out(did(&done));
                Ok((done, pending))
            }
            Err(refused) => {
                // Records of other changes may have to wait for room, so nothing is locked here.
                drop(locked);
                drop(announced);
                Err(refused)
            }
        }
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
            if volume.state.identities.entry(&object).is_some() {
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
}

/// Returns the effects of a change, for its record.
fn did(done: &Done) -> ChangeEffects<()> {
    let Operation { entries, objects, .. } = done.operation.clone();
    ChangeEffects { bindings: entries, objects, ..ChangeEffects::default() }
}

/// Returns the object that lost a name: it was removed or replaced.
fn victim(done: &Done) -> Option<Identity> {
    let entries = &done.operation.entries;
    let moved = |object: &Identity| entries.iter().any(|entry| entry.now == Some(*object));
    entries.iter().filter_map(|entry| entry.was).find(|object| !moved(object))
}
