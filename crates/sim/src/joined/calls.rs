//! Requests that must not be carried out twice. A client without an answer sends its request again, also after a
//! restart. It gets the answer that the first request got, or would have got.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::io::Clock as _;
use forebay_oplog::{Identity, Operation};

use super::client::{Client, Shared};
use super::harness::{Answer, Harness, Xid};
use crate::hits::Fault;
use crate::namespace::choice::{any_link_request, any_place, any_request};
use crate::namespace::request::{How, Request};
use crate::namespace::volume::Refused;

/// Changes of names in a session. [`crate::namespace::history::Set`] has bits for that number and for the changes in
/// progress.
pub(super) const CHANGES: usize = 50;

/// A request.
struct Call {
    request: Request,
    /// The answer that the request must get, if that is known.
    answer: Option<Answer>,
    /// True if the answer has been in the log since before the last start.
    logged: bool,
    /// True if the client has the answer, so that it repeats the request only by mistake.
    received: bool,
}

/// Every request of a session, and the requests of earlier sessions without an answer.
#[derive(Default)]
pub(super) struct Calls {
    calls: BTreeMap<Xid, Call>,
    last: Xid,
    /// The number of the last change before this session.
    before: u64,
}

impl Calls {
    /// Returns the number of a new request.
    pub(super) fn next(&mut self) -> Xid {
        self.last += 1;
        self.last
    }

    /// Records a new request without an answer, and returns its number.
    fn begin(&mut self, request: Request) -> Xid {
        let xid = self.next();
        self.calls.insert(xid, Call { request, answer: None, logged: false, received: false });
        xid
    }

    /// Begins a session after a change. `operations` are in the log, with their answers.
    pub(super) fn begin_session<'a>(&mut self, before: u64, operations: impl Iterator<Item = &'a Operation>) {
        let logged: BTreeMap<Xid, Answer> = operations.filter_map(|it| Answer::read(&it.reply)).collect();
        self.before = before;
        self.calls.retain(|_, call| !call.received);
        for (xid, call) in &mut self.calls {
            call.answer = logged.get(xid).cloned();
            call.logged = call.answer.is_some();
        }
    }

    /// Returns the requests that wait for an answer.
    pub(super) fn unanswered(&self) -> Vec<Xid> {
        self.calls.iter().filter(|(_, call)| !call.received).map(|(xid, _)| *xid).collect()
    }

    /// Handles an answer. Returns the class of fault that it belongs to, if any.
    fn answered(&mut self, xid: Xid, answer: &Answer) -> Result<Option<Fault>, String> {
        let before = self.before;
        let Some(call) = self.calls.get_mut(&xid) else { return Ok(None) };
        match &call.answer {
            Some(known) if known != answer => Err(format!(
                "request {xid}, {:?}, is answered with {answer:?}, and was with {known:?} (P14)",
                call.request
            )),
            Some(_) if call.logged => Ok(Some(Fault::JoinedAgainLogged)),
            Some(_) => Ok(Some(Fault::JoinedAgainAnswered)),
            None if matches!(answer, Answer::Done { number, .. } if *number <= before) => {
                Err(format!("request {xid} was lost and is answered with {answer:?}"))
            }
            None => {
                call.answer = Some(answer.clone());
                Ok(None)
            }
        }
    }
}

impl Shared {
    /// Sends a request, for the first time or again. Returns `None` if something is wrong.
    async fn send(&self, harness: &Harness, xid: Xid) -> Option<Answer> {
        let request = self.calls.lock().calls.get(&xid)?.request.clone();
        let (answer, removed) = loop {
            harness.found().await;
            match harness.call(xid, request.clone()).await {
                (Answer::Refused(Refused::Busy), _) => self.executor.sleep(Duration::from_secs(2)).await,
                answer => break answer,
            }
        };
        self.tell(|| format!("answered: request {xid}, {request:?}: {answer:?}"));
        if let Some(removed) = removed {
            self.forget(removed);
        }
        match self.calls.lock().answered(xid, &answer) {
            Ok(case) => case.into_iter().for_each(|case| self.hits.hit(case)),
            Err(error) => {
                self.fail(error);
                return None;
            }
        }
        Some(answer)
    }
}

impl Client {
    /// Changes names or attributes.
    pub(super) async fn change(&mut self) {
        let request = {
            let volume = &self.shared.store.lock().volume;
            match self.rng.chance(self.habits.links) {
                true => any_link_request(&mut self.rng, volume),
                false => any_request(&mut self.rng, volume),
            }
        };
        self.ask(request).await;
    }

    /// Sends a request until its answer comes. Returns the object that it made, if it made one.
    async fn ask(&mut self, request: Request) -> Option<Identity> {
        let xid = self.shared.calls.lock().begin(request);
        if self.rng.chance(self.habits.again) {
            self.send_another(xid);
        }
        let answer = self.shared.send(&self.harness, xid).await?;
        if self.rng.chance(self.habits.again) {
            // The answer was lost on the way.
            self.shared.executor.sleep(self.rng.time(Duration::ZERO, Duration::from_millis(20))).await;
            self.shared.send(&self.harness, xid).await?;
        }
        self.received(xid);
        match answer {
            Answer::Done { made, .. } => made,
            Answer::Refused(_) => None,
        }
    }

    /// Sends a duplicate of the request, sooner or later.
    fn send_another(&mut self, xid: Xid) {
        let rest = self.rng.time(Duration::ZERO, Duration::from_millis(10));
        let (shared, harness): (Arc<Shared>, Arc<Harness>) = (self.shared.clone(), self.harness.clone());
        let another = async move {
            shared.executor.sleep(rest).await;
            shared.send(&harness, xid).await;
        };
        self.shared.executor.start("another", Box::pin(another));
    }

    /// Notes that the client has the answer, so that it never sends the request again.
    fn received(&self, xid: Xid) {
        if let Some(call) = self.shared.calls.lock().calls.get_mut(&xid) {
            call.received = true;
        }
    }

    /// Repeats a request of an earlier session that got no answer.
    pub(super) async fn ask_again(&self, xid: Xid) {
        let logged = self.shared.calls.lock().calls.get(&xid).is_some_and(|call| call.logged);
        if self.shared.send(&self.harness, xid).await.is_some() {
            if !logged {
                self.shared.hits.hit(Fault::JoinedAgainLost);
            }
            self.received(xid);
        }
    }

    /// Removes a file soon after its creation. The removal may be only in the file system, and be undone.
    pub(super) async fn live_briefly(&mut self) {
        let place = any_place(&mut self.rng, &self.shared.store.lock().volume, false);
        let Some(file) = self.ask(Request::Create(place.clone(), How::Guarded)).await else { return };
        let Some(number) = self.shared.number(file) else { return };
        self.shared.hits.hit(Fault::JoinedBrief);
        match self.rng.below(3) {
            0 => self.resize(file, number, self.habits.longest).await,
            _ => self.write(file, number, 0..self.habits.longest, true).await,
        }
        self.ask(Request::Remove(place)).await;
    }
}
