//! Calls of the server on a client's connection, and the replies that are matched to them.
//!
//! A call-back has a transaction number of its own. The client's reply is a record on the connection of the call. A
//! reply is matched on its own connection only, so a forged reply harms nobody else.

use std::collections::BTreeMap;
use std::sync::{OnceLock, Weak};

use forebay_common::lock::Mutex;

use crate::link::Link;

/// Call-backs that wait for their replies on one connection. More are refused.
const OUTSTANDING: usize = 64;
/// The longest accepted reply in bytes. A longer one ends its call-back without an answer.
const LONGEST_REPLY: usize = 4096;
/// Replies to no call-back after which the connection is closed.
const STRAY_MAX: u32 = 256;

/// The function called once with the reply to a call-back, or with `None` if the connection ended first. It must not
/// block: an event loop runs it.
pub type Answered = Box<dyn FnOnce(Option<&[u8]>) + Send>;

/// The way from the server to a client on the client's connection.
#[derive(Default)]
pub struct Line {
    link: OnceLock<Weak<Link>>,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    waiting: BTreeMap<u32, Answered>,
    last_xid: u32,
    /// True from the first call-back on: replies are expected.
    is_used: bool,
    is_lost: bool,
    stray: u32,
}

/// The result of a reply from a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matched {
    /// A call-back got its reply.
    Answered,
    /// No call-back waits for the reply, which is dropped.
    Stray,
    /// The connection shall be closed: it never had a call-back, or it has sent too many stray replies.
    Refused,
}

impl Line {
    /// Sets the connection that call-backs are sent on. Called once, when the connection begins.
    pub(crate) fn set(&self, link: Weak<Link>) {
        // A connection has one link for its life.
        let _ = self.link.set(link);
    }

    /// Sends a call-back, without blocking. `encode` gets the transaction number, and returns the record. Returns
    /// `answered` if the connection has ended or has too many call-backs outstanding.
    pub fn call(&self, encode: impl FnOnce(u32) -> Vec<u8>, answered: Answered) -> Result<(), Answered> {
        let Some(link) = self.link.get().and_then(Weak::upgrade) else { return Err(answered) };
        let xid = self.calls.lock().add(answered)?;
        if link.send_own(encode(xid)) {
            return Ok(());
        }
        // `lost` may have ended the call-back already.
        match self.calls.lock().waiting.remove(&xid) {
            Some(answered) => Err(answered),
            None => Ok(()),
        }
    }

    /// Matches a reply from the client by its transaction number.
    pub fn reply(&self, xid: u32, record: &[u8]) -> Matched {
        let answered = {
            let mut calls = self.calls.lock();
            match calls.waiting.remove(&xid) {
                Some(answered) => answered,
                None if !calls.is_used || calls.stray >= STRAY_MAX => return Matched::Refused,
                None => {
                    calls.stray += 1;
                    return Matched::Stray;
                }
            }
        };
        answered((record.len() <= LONGEST_REPLY).then_some(record).or(Some(&[])));
        Matched::Answered
    }

    /// Returns true if the connection has ended.
    pub fn is_lost(&self) -> bool {
        self.calls.lock().is_lost
    }

    /// Ends all call-backs of a connection that has ended.
    pub fn lost(&self) {
        let waiting = {
            let mut calls = self.calls.lock();
            calls.is_lost = true;
            std::mem::take(&mut calls.waiting)
        };
        waiting.into_values().for_each(|answered| answered(None));
    }
}

impl Calls {
    /// Keeps the receiver of an answer, and returns the transaction id for the call. Returns the receiver if the
    /// connection has ended, or has too many calls without an answer.
    fn add(&mut self, answered: Answered) -> Result<u32, Answered> {
        if self.is_lost || self.waiting.len() >= OUTSTANDING {
            return Err(answered);
        }
        self.is_used = true;
        self.last_xid = self.last_xid.wrapping_add(1);
        self.waiting.insert(self.last_xid, answered);
        Ok(self.last_xid)
    }
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Line")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    fn waiting(line: &Line) -> (u32, Receiver<Option<Vec<u8>>>) {
        let (sender, receiver) = channel();
        let answered = Box::new(move |reply: Option<&[u8]>| _ = sender.send(reply.map(<[u8]>::to_vec)));
        let Ok(xid) = line.calls.lock().add(answered) else { panic!("refused") };
        (xid, receiver)
    }

    #[test]
    fn a_reply_reaches_its_call_back_once() {
        let line = Line::default();
        let ((first, one), (second, two)) = (waiting(&line), waiting(&line));
        assert_eq!(line.reply(second, b"two"), Matched::Answered);
        assert_eq!(line.reply(second, b"two"), Matched::Stray);
        assert_eq!(two.try_recv().unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(line.reply(first, b"one"), Matched::Answered);
        assert_eq!(one.try_recv().unwrap().as_deref(), Some(&b"one"[..]));
    }

    #[test]
    fn a_reply_on_a_connection_without_call_backs_is_refused() {
        assert_eq!(Line::default().reply(1, b"forged"), Matched::Refused);
    }

    #[test]
    fn too_many_stray_replies_are_refused() {
        let line = Line::default();
        let (xid, _answer) = waiting(&line);
        for _ in 0..STRAY_MAX {
            assert_eq!(line.reply(xid + 1, b""), Matched::Stray);
        }
        assert_eq!(line.reply(xid + 1, b""), Matched::Refused);
    }

    #[test]
    fn a_lost_connection_ends_its_call_backs_and_takes_no_more() {
        let line = Line::default();
        let (_, answer) = waiting(&line);
        line.lost();
        assert_eq!(answer.try_recv().unwrap(), None);
        assert!(line.calls.lock().add(Box::new(|_| {})).is_err());
    }

    #[test]
    fn the_number_of_outstanding_call_backs_is_bounded() {
        let line = Line::default();
        let _answers: Vec<_> = (0..OUTSTANDING).map(|_| waiting(&line)).collect();
        assert!(line.calls.lock().add(Box::new(|_| {})).is_err());
    }

    #[test]
    fn a_reply_that_is_too_long_ends_its_call_back_empty() {
        let line = Line::default();
        let (xid, answer) = waiting(&line);
        assert_eq!(line.reply(xid, &[0; LONGEST_REPLY + 1]), Matched::Answered);
        assert_eq!(answer.try_recv().unwrap().as_deref(), Some(&[][..]));
    }
}
