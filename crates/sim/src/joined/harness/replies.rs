//! Replies kept for repeated requests, as in `nfs`: in memory, and filled from the log at a start.

use super::*;
use crate::joined::planted_bugs;

/// The number that identifies a request.
pub(in crate::joined) type Xid = u64;

/// The answer to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::joined) enum Answer {
    /// The request was carried out.
    Done {
        /// The number of the change.
        number: u64,
        /// The object that the change made.
        made: Option<Identity>,
    },
    /// The request changed nothing.
    Refused(Refused),
}

impl Answer {
    /// Returns the reply in the format of the log, with the number of its request.
    pub(super) fn reply(xid: Xid, done: &Done) -> Box<[u8]> {
        let made = done.made().map(|made| made.to_name()).unwrap_or_default();
        let numbers = [xid, done.operation.number].map(u64::to_le_bytes);
        [numbers.as_flattened(), made.as_bytes()].concat().into()
    }

    /// Reads a reply that [`Answer::reply`] made.
    pub(in crate::joined) fn read(reply: &[u8]) -> Option<(Xid, Answer)> {
        let (xid, rest) = reply.split_first_chunk()?;
        let (number, made) = rest.split_first_chunk()?;
        let answer = Answer::Done { number: u64::from_le_bytes(*number), made: Identity::from_name(made) };
        Some((u64::from_le_bytes(*xid), answer))
    }
}

/// The answers of requests, by number. `None`: the request is in progress.
#[derive(Default)]
pub(super) struct Replies(BTreeMap<Xid, Option<Answer>>);

impl Replies {
    /// Returns the replies in the log, oldest first.
    pub(super) fn of(replies: impl Iterator<Item = Box<[u8]>>) -> Self {
        let known = replies.filter_map(|reply| Answer::read(&reply));
        Replies(known.map(|(xid, answer)| (xid, Some(answer))).collect())
    }

    pub(super) fn end(&mut self, xid: Xid, answer: Answer) {
        self.0.insert(xid, Some(answer));
    }
}

impl Harness {
    /// Carries out a new request, and answers it. Also returns the object that lost its last name by it.
    pub(in crate::joined) async fn call(&self, xid: Xid, request: Request) -> (Answer, Option<Identity>) {
        if let Some(answer) = self.kept(xid).await {
            return (answer, None);
        }
        let (answer, gone) = match self.change(xid, request).await {
            Ok((done, gone)) => (Answer::Done { number: done.operation.number, made: done.made() }, gone),
            Err(refused) => (Answer::Refused(refused), None),
        };
        match answer {
            // The client sends the request again, and it is carried out then.
            Answer::Refused(Refused::Busy) => _ = self.inner.lock().replies.0.remove(&xid),
            _ => self.inner.lock().replies.end(xid, answer.clone()),
        }
        (answer, gone)
    }

    /// Returns the answer of a repeated request, and waits for it if needed. `None` if the request is new and has to be
    /// carried out now.
    async fn kept(&self, xid: Xid) -> Option<Answer> {
        let mut waited = false;
        loop {
            {
                let mut inner = self.inner.lock();
                match inner.replies.0.get(&xid).cloned() {
                    None => {
                        inner.replies.0.insert(xid, None);
                        return None;
                    }
                    Some(None)
                        if planted_bugs::active("a request sent again does not wait for the first") =>
                    {
                        return None;
                    }
                    Some(None) if waited => {}
                    Some(None) => self.hits.hit(Fault::JoinedAgainUnderWay),
                    Some(Some(answer)) => {
                        drop(inner);
                        self.told(&answer);
                        return Some(answer);
                    }
                }
            }
            waited = true;
            self.wait().await;
        }
    }

    /// Notes that a client gets this answer.
    fn told(&self, answer: &Answer) {
        if let Answer::Done { number, .. } = answer
            && let Some(logged) = self.seen().logged.get_mut(number)
        {
            logged.answered = true;
        }
    }
}
