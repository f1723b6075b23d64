//! An exhaustive model of one slot over crashes: every sequence of up to seven steps.
//!
//! The client has one request in the slot. It sends the request again until it has the reply. Writes and their replies
//! are in the log, reads are not. The model proves that a slot needs one forward jump after a recovery, and no more.

use super::*;
use crate::session::Parts;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    /// A new request: is it a write, and does the reply arrive?
    Send {
        write: bool,
        arrives: bool,
    },
    /// A new write. The server crashes before its record is durable.
    SendAndCrash,
    /// The client sends its request again: does the reply arrive?
    Repeat {
        arrives: bool,
    },
    Crash,
}

const STEPS: [Step; 8] = [
    Step::Send { write: true, arrives: true },
    Step::Send { write: true, arrives: false },
    Step::Send { write: false, arrives: true },
    Step::Send { write: false, arrives: false },
    Step::SendAndCrash,
    Step::Repeat { arrives: true },
    Step::Repeat { arrives: false },
    Step::Crash,
];

struct Model {
    session: Session,
    log: Vec<SlotReply>,
    /// The numbers of the writes that were carried out, as far as they are durable.
    written: Vec<u32>,
    sequence: u32,
    /// True if the outstanding request is a write.
    outstanding: Option<bool>,
}

fn session(log: &[SlotReply], recovered: bool) -> Session {
    let parts = Parts {
        id: SessionId([1; 16]),
        client: ClientId(1),
        sequence: 1,
        flags: PERSIST,
        fore: CHANNEL,
        back: CHANNEL,
    };
    let session = Session::new(
        parts,
        Arc::default(),
        &Limits::default(),
        Arc::new(crate::session::Memory::new(1 << 20)),
        recovered,
    );
    log.iter().for_each(|reply| session.recover_reply(reply));
    session
}

impl Model {
    fn request(&mut self, write: bool, arrives: bool, is_durable: bool) {
        let digest = u64::from(self.sequence) << 1 | u64::from(write);
        let reply = digest.to_le_bytes();
        let request = Request { digest, ..slots::request(0, self.sequence) };
        match self.session.sequence(&request, 1) {
            Ok(Sequenced::New(..)) => {
                let mut fx = Effects::default();
                self.session.complete(0, &reply, write.then_some(Durability::BeforeReply), 1, &mut fx);
                if write && is_durable {
                    assert!(!self.written.contains(&self.sequence), "carried out twice");
                    self.written.push(self.sequence);
                    for record in fx.records {
                        let Record::Reply(reply) = record else { panic!("{record:?}") };
                        self.log.push(reply);
                    }
                }
            }
            Ok(Sequenced::Replay(kept)) => {
                assert_eq!(kept[..], reply, "the reply of another request");
                assert!(!write || self.written.contains(&self.sequence));
            }
            refused => panic!("{refused:?}"),
        }
        self.outstanding = (!arrives).then_some(write);
    }

    fn crash(&mut self) {
        self.session = session(&self.log, true);
    }

    /// Returns false if the step makes no sense here.
    fn step(&mut self, step: Step) -> bool {
        match (step, self.outstanding) {
            (Step::Send { write, arrives }, None) => {
                self.sequence += 1;
                self.request(write, arrives, true);
            }
            (Step::SendAndCrash, None) => {
                self.sequence += 1;
                self.request(true, false, false);
                self.crash();
            }
            (Step::Repeat { arrives }, Some(write)) => self.request(write, arrives, true),
            (Step::Crash, _) => self.crash(),
            _ => return false,
        }
        true
    }
}

#[test]
fn every_request_is_carried_out_once_over_crashes() {
    let mut count = 0;
    let mut stack = vec![Vec::new()];
    while let Some(steps) = stack.pop() {
        let mut model = Model {
            session: session(&[], false),
            log: vec![],
            written: vec![],
            sequence: 0,
            outstanding: None,
        };
        if !steps.iter().all(|step| model.step(*step)) {
            continue;
        }
        count += 1;
        if steps.len() < 7 {
            stack.extend(STEPS.map(|step| [&steps[..], &[step]].concat()));
        }
    }
    assert!(count > 20_000, "{count}");
}
