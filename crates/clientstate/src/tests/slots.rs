//! A test for each row of the table of SEQUENCE.

use super::*;

pub(crate) fn request(slot: u32, sequence: u32) -> Request {
    Request {
        slot,
        sequence,
        highest: slot,
        cache_this: true,
        digest: sequence.into(),
        operations: 3,
        length: 300,
        connection: 1,
        waiter: None,
    }
}

fn is_new(result: Result<Sequenced, Error>) -> bool {
    matches!(result, Ok(Sequenced::New(..)))
}

fn complete(session: &Session, slot: u32, reply: &[u8]) -> Vec<Waiter> {
    session.complete(slot, reply, None, 0, &mut Effects::default()).to_vec()
}

fn session() -> Arc<Session> {
    let mut rig = Rig::new();
    let id = rig.client("a");
    rig.session_of(id)
}

#[test]
fn a_request_is_carried_out_once() {
    let session = session();
    let sequence = |request| session.sequence(&request, 1);
    assert_eq!(sequence(request(0, 0)), Err(Error::SeqMisordered));
    assert_eq!(sequence(request(0, 2)), Err(Error::SeqMisordered));
    assert!(is_new(sequence(request(0, 1))));
    assert_eq!(sequence(request(0, 2)), Err(Error::SeqMisordered), "the first one runs");
    let again = |waiter| Request { waiter, ..request(0, 1) };
    assert_eq!(sequence(again(Some(5))), Ok(Sequenced::InProgress(None)));
    assert_eq!(sequence(again(Some(6))), Ok(Sequenced::InProgress(None)));
    assert_eq!(sequence(again(None)), Ok(Sequenced::InProgress(None)), "nobody waits");
    assert_eq!(sequence(Request { digest: 99, ..request(0, 1) }), Err(Error::SeqFalseRetry));
    assert_eq!(complete(&session, 0, b"reply"), [5, 6]);
    assert_eq!(sequence(request(0, 1)), Ok(Sequenced::Replay(b"reply"[..].into())));
    assert_eq!(sequence(Request { digest: 99, ..request(0, 1) }), Err(Error::SeqFalseRetry));
    assert!(is_new(sequence(request(0, 2))));
    assert!(is_new(sequence(request(5, 1))), "slots are independent");
}

#[test]
fn every_waiter_is_given_back_once() {
    let session = session();
    let sequence = |waiter| session.sequence(&Request { waiter, ..request(0, 1) }, 1);
    assert!(is_new(sequence(None)));
    let waiting: Vec<_> = (1..=6)
        .map(|waiter| match sequence(Some(waiter)) {
            Ok(Sequenced::InProgress(displaced)) => displaced,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(waiting, [None, None, None, None, Some(1), Some(2)]);
    session.destroy();
    assert_eq!(complete(&session, 0, b"reply"), [3, 4, 5, 6], "also at the end of the session");
    assert_eq!(complete(&session, 0, b"reply"), [0; 0]);
}

#[test]
fn a_long_reply_that_the_client_did_not_want_is_not_kept() {
    let session = session();
    let uncached = Request { cache_this: false, ..request(0, 1) };
    session.sequence(&uncached, 1).unwrap();
    complete(&session, 0, &[1; 1000]);
    assert!(matches!(session.sequence(&uncached, 1), Ok(Sequenced::NotKept(_))));
    let wanted = request(0, 2);
    session.sequence(&wanted, 1).unwrap();
    complete(&session, 0, &[1; 3000]);
    assert!(matches!(session.sequence(&wanted, 1), Ok(Sequenced::NotKept(_))), "longer than negotiated");
}

#[test]
fn an_error_does_not_move_the_slot() {
    let session = session();
    let sequence = |request| session.sequence(&request, 1);
    assert_eq!(sequence(Request { operations: 4000, ..request(0, 1) }), Err(Error::TooManyOps));
    assert_eq!(sequence(Request { length: 2 << 20, ..request(0, 1) }), Err(Error::ReqTooBig));
    assert_eq!(sequence(Request { highest: 64, ..request(0, 1) }), Err(Error::BadHighSlot));
    assert_eq!(sequence(request(64, 1)), Err(Error::BadSlot));
    assert!(is_new(sequence(request(0, 1))));
}

#[test]
fn numbers_wrap_around() {
    let session = session();
    session.recover_reply(&SlotReply {
        session: session.id(),
        slot: 0,
        sequence: u32::MAX,
        digest: 1,
        reply: Kept::Bytes(b"last".to_vec()),
    });
    assert!(is_new(session.sequence(&request(0, 0), 1)));
    complete(&session, 0, b"zero");
    assert!(is_new(session.sequence(&request(0, 1), 1)));
}

#[test]
fn only_so_many_retransmissions_wait() {
    let session = session();
    session.sequence(&request(0, 1), 1).unwrap();
    for waiter in 1..=9 {
        session.sequence(&Request { waiter: Some(waiter), ..request(0, 1) }, 1).unwrap();
    }
    assert_eq!(complete(&session, 0, b"reply"), [6, 7, 8, 9]);
}

#[test]
fn the_back_channel_is_down_until_it_is_bound_again() {
    let mut rig = Rig::new();
    let id = rig.client("a");
    let session = rig.session_of(id);
    let mut next = 0;
    let mut flags = |session: &Session, connection| {
        next += 1;
        let Ok(Sequenced::New(answer, _)) = session.sequence(&Request { connection, ..request(0, next) }, 1)
        else {
            panic!("refused")
        };
        complete(session, 0, b"");
        answer.status
    };
    assert_eq!(flags(&session, id.0), 0, "CREATE_SESSION bound the connection to both channels");
    session.connection_lost(id.0);
    let down = status::CB_PATH_DOWN | status::CB_PATH_DOWN_SESSION;
    assert_eq!(flags(&session, 50), down, "SEQUENCE binds to the fore channel only");
    let bind = |rig: &mut Rig, direction| {
        rig.call(|state, now, _| state.bind_conn_to_session(session.id(), direction, 50, now)).unwrap()
    };
    bind(&mut rig, Direction::Fore);
    assert_eq!(flags(&session, 50), down);
    assert_eq!(bind(&mut rig, Direction::ForeOrBoth), Directions { fore: true, back: true });
    assert_eq!(flags(&session, 50), 0);
    assert_eq!(session.back_connections(), [50]);
    // Further connections (nconnect) use the same slots.
    assert_eq!(flags(&session, 51), 0);
    rig.call(|state, _, _| state.backchannel_ctl(session.id(), 9, vec![4])).unwrap();
    assert_eq!(session.callback(), (9, vec![4]));
    assert_eq!(
        rig.call(|state, now, _| state.bind_conn_to_session(SessionId([0; 16]), Direction::Fore, 1, now)),
        Err(Error::BadSession)
    );
}

/// The longest reply that the sessions of a rig keep, in bytes.
const LONG: u64 = 2048;

/// Returns a rig whose sessions keep replies of `bytes` bytes in all.
fn rig_that_keeps(bytes: u64) -> Rig {
    let limits = Limits { kept_replies: bytes, slots_under_pressure: 16, ..Limits::default() };
    Rig::of(State::new(limits, ORIGIN))
}

#[test]
fn a_client_that_keeps_long_replies_is_asked_for_fewer_slots_and_gives_memory_back() {
    let mut rig = rig_that_keeps(64 * LONG);
    let id = rig.client("a");
    let session = rig.session_of(id);
    let step = |slot, sequence, highest| {
        let Ok(Sequenced::New(answer, record)) =
            session.sequence(&Request { highest, ..request(slot, sequence) }, 1)
        else {
            panic!("refused")
        };
        complete(&session, slot, &[7; LONG as usize]);
        (answer.highest, answer.target, record)
    };
    for slot in 0..21 {
        assert_eq!(step(slot, 1, 40), (63, 63, None));
    }
    assert_eq!(step(21, 1, 40), (63, 15, None), "the client still uses slot 40");
    assert_eq!(rig.state.kept_bytes(), 22 * LONG);
    assert_eq!(step(2, 2, 2), (15, 15, Some(Record::SlotsDropped(session.id(), 16))));
    assert_eq!(rig.state.kept_bytes(), 16 * LONG);
    assert_eq!(session.sequence(&request(40, 3), 1), Err(Error::BadSlot));
    for slot in 0..16 {
        let request =
            Request { cache_this: false, highest: 15, ..request(slot, if slot == 2 { 3 } else { 2 }) };
        assert!(is_new(session.sequence(&request, 1)));
        complete(&session, slot, b"short");
    }
    assert_eq!(step(2, 4, 2).0, 63);
    assert_eq!(step(40, 1, 40), (63, 63, None), "a new slot begins with 1");
}

/// Fills the slots of all sessions of a client with the longest replies. Returns the number of slots.
fn fill(sessions: &[Arc<Session>]) -> u32 {
    let mut filled = 0;
    for session in sessions {
        for slot in 0..session.fore().slots {
            match session.sequence(&Request { highest: 63, ..request(slot, 1) }, 1) {
                Ok(_) => {
                    complete(session, slot, &[1; LONG as usize]);
                    filled += 1;
                }
                Err(error) => assert_eq!(error, Error::Delay),
            }
        }
    }
    filled
}

#[test]
fn no_client_takes_the_memory_of_kept_replies_from_others() {
    let mut rig = rig_that_keeps(200 * LONG);
    let id = rig.client("greedy");
    let mut sessions = vec![rig.session_of(id)];
    for sequence in 2..=8 {
        let made = rig.session(id, sequence, "root").unwrap();
        sessions.push(rig.state.session(made.session).unwrap());
    }
    let greedy = fill(&sessions);
    assert!((100..=107).contains(&greedy), "half, and the first slot of each session: {greedy}");
    assert!(rig.state.kept_bytes() <= 108 * LONG);
    // A slot that has a place for its reply goes on, and so does a request whose reply need not be kept.
    assert!(is_new(sessions[0].sequence(&Request { highest: 63, ..request(5, 2) }, 1)));
    let asks_nothing = |slot| Request { cache_this: false, highest: 63, ..request(slot, 1) };
    let mut kept = 0;
    for slot in 1..64 {
        let _ = sessions[7].sequence(&asks_nothing(slot), 1).unwrap();
        complete(&sessions[7], slot, &[1; 200]);
        kept += u32::from(matches!(sessions[7].sequence(&asks_nothing(slot), 1), Ok(Sequenced::Replay(_))));
    }
    assert!(kept < 10, "{kept}");
    let other = rig.client("modest");
    let modest = rig.session_of(other);
    let filled = fill(std::slice::from_ref(&modest));
    assert!(filled >= 40, "others have room: {filled}");
    let kept = rig.state.kept_bytes();
    assert!(kept <= 208 * LONG, "{kept}");
    for session in sessions {
        rig.call(|state, _, fx| state.destroy_session(session.id(), Some(5), fx)).unwrap();
    }
    assert_eq!(rig.state.kept_bytes(), u64::from(filled) * LONG, "a session ends with its replies");
}

#[test]
fn a_recovered_slot_answers_from_the_log_and_jumps_once() {
    let mut rig = Rig::new();
    let id = rig.client("a");
    let session = rig.session_of(id);
    for sequence in 1..=5 {
        session.sequence(&request(0, sequence), 1).unwrap();
        // The fifth request changes nothing, so it is not in the log.
        let logged = (sequence < 5).then_some(Durability::BeforeReply);
        rig.call(|_, now, fx| session.complete(0, &[sequence as u8], logged, now, fx));
    }
    let after = Rig::of(rig.recovered());
    let session = after.session_of(id);
    assert_eq!(session.sequence(&request(0, 3), 1), Err(Error::SeqMisordered));
    assert_eq!(session.sequence(&request(0, 4), 1), Ok(Sequenced::Replay([4][..].into())));
    assert!(is_new(session.sequence(&request(0, 9), 1)));
    complete(&session, 0, b"");
    assert_eq!(session.sequence(&request(0, 11), 1), Err(Error::SeqMisordered));
    assert!(is_new(session.sequence(&request(0, 10), 1)));
    // A slot without any record accepts any number as well.
    assert!(is_new(session.sequence(&request(1, 77), 1)));
}

#[test]
fn a_failed_call_back_does_not_move_its_slot() {
    let mut rig = Rig::new();
    let id = rig.client("a");
    let session = rig.session_of(id);
    let begin = |rig: &mut Rig| rig.call(|_, _, fx| session.begin_callback(fx));
    assert_eq!(begin(&mut rig), Some((0, 1)));
    assert_eq!(begin(&mut rig), Some((1, 1)), "one call-back in a slot");
    session.end_callback(0, CallbackEnd::NotMoved);
    assert_eq!(begin(&mut rig), Some((0, 1)));
    session.end_callback(0, CallbackEnd::Unknown);
    assert_eq!(begin(&mut rig), Some((2, 1)), "the caller sends the first one again");
    session.end_callback(0, CallbackEnd::Moved);
    assert_eq!(begin(&mut rig), Some((0, 2)));
    session.end_callback(0, CallbackEnd::Misordered);
    assert_eq!(begin(&mut rig), Some((0, 3)));
    for _ in 3..16 {
        begin(&mut rig).unwrap();
    }
    assert_eq!(begin(&mut rig), None);
    let after = Rig::of(rig.recovered());
    let again = after.session_of(id).begin_callback(&mut Effects::default());
    assert_eq!(again, Some((0, 4)), "a restarted server goes on with the numbers");
}

#[cfg(feature = "plant")]
#[test]
fn a_memory_of_kept_replies_without_a_bound_is_found() {
    use forebay_common::planted_bugs::plant;
    plant(Some("the memory of kept replies has no bound"));
    let found = std::panic::catch_unwind(no_client_takes_the_memory_of_kept_replies_from_others);
    plant(None);
    assert!(found.is_err());
}
