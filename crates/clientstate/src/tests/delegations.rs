//! Delegations: when they are granted, recalled, returned, revoked.

use std::sync::atomic::Ordering::SeqCst;

use super::*;

fn open(rig: &mut Rig, client: ClientId, access: u8, want: Want) -> Result<Opened, Error> {
    let args = OpenArgs { want, ..open_args(client, "o", "f", access, 0) };
    rig.call(|state, now, fx| state.open(&args, now, fx))
}

fn recalls(rig: &Rig) -> Vec<ClientId> {
    let recalls = rig.actions.iter().filter_map(|action| match action {
        Action::Recall { client, .. } => Some(*client),
        _ => None,
    });
    recalls.collect()
}

#[test]
fn the_second_open_gets_one_if_call_backs_work() {
    let mut rig = Rig::new();
    let a = rig.client("a");
    assert_eq!(open(&mut rig, a, READ, Want::NoPreference).unwrap().delegation, None);
    let session = rig.session_of(a);
    session.connection_lost(a.0);
    assert_eq!(open(&mut rig, a, READ, Want::NoPreference).unwrap().delegation, None, "no back channel");
    session.bind(1, Directions { fore: true, back: true });
    assert_eq!(open(&mut rig, a, READ, Want::None).unwrap().delegation, None);
    let granted = open(&mut rig, a, READ, Want::NoPreference).unwrap().delegation.unwrap();
    assert!(!granted.write);
    assert_eq!(rig.durability, Durability::BeforeReply);
    assert_eq!(described(&rig.recovered()), described(&rig.state));
    let io =
        rig.call(|state, now, fx| state.io(Some(a), granted.stateid, file("f").borrowed(), WRITE, now, fx));
    assert_eq!(io, Err(Error::OpenMode));
}

#[test]
fn a_conflicting_open_recalls_once_and_waits() {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    let granted = open(&mut rig, a, READ, Want::Any).unwrap().delegation.unwrap();
    let of_b = open(&mut rig, b, READ, Want::Any).unwrap().delegation.unwrap();
    let c = rig.client("c");
    assert_eq!(open(&mut rig, c, WRITE, Want::None), Err(Error::Delay));
    assert_eq!(recalls(&rig), [a, b]);
    assert_eq!(open(&mut rig, c, WRITE, Want::None), Err(Error::Delay));
    assert_eq!(recalls(&rig), []);
    let give = |rig: &mut Rig, client, stateid| {
        rig.call(|state, now, fx| state.return_delegation(client, stateid, now, fx))
    };
    assert_eq!(give(&mut rig, b, granted.stateid), Err(Error::BadStateid));
    give(&mut rig, a, granted.stateid).unwrap();
    give(&mut rig, b, of_b.stateid).unwrap();
    open(&mut rig, c, WRITE, Want::None).unwrap();
    assert_eq!(open(&mut rig, a, READ, Want::Read).unwrap().delegation, None, "a writer has it open");
    assert_eq!(described(&rig.recovered()), described(&rig.state));
}

#[test]
fn a_write_delegation_excludes_other_clients() {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    open(&mut rig, b, READ, Want::None).unwrap();
    assert_eq!(open(&mut rig, a, 3, Want::Any).unwrap().delegation, None, "another client has it open");
    let stateid = rig.open(b, "o", "f", READ, 0).unwrap().stateid;
    rig.call(|state, now, fx| state.close(b, stateid, &file("f"), now, fx)).unwrap();
    let granted = open(&mut rig, a, 3, Want::Any).unwrap().delegation.unwrap();
    assert!(granted.write);
    for attempt in 0..2 {
        assert_eq!(open(&mut rig, b, READ, Want::None), Err(Error::Delay));
        assert_eq!(recalls(&rig).len(), 1 - attempt);
    }
    // The client makes the opens that it has made by itself known, then returns the delegation.
    let mut args = open_args(a, "second", "f", READ, 0);
    args.claim = Claim::Delegated(granted.stateid);
    rig.call(|state, now, fx| state.open(&args, now, fx)).unwrap();
    rig.call(|state, now, fx| state.return_delegation(a, granted.stateid, now, fx)).unwrap();
    open(&mut rig, b, READ, Want::None).unwrap();
}

#[test]
fn changes_by_v3_clients_and_the_host_recall() {
    let mut rig = Rig::new();
    let a = rig.client("a");
    let announce = |rig: &mut Rig, by, writes| {
        rig.call(|state, now, fx| state.announce(by, &file("f"), writes, now, fx))
    };
    open(&mut rig, a, READ, Want::Any).unwrap();
    assert_eq!(announce(&mut rig, None, false), Ok(()), "a look does not disturb a read delegation");
    assert_eq!(announce(&mut rig, Some(a), true), Ok(()), "the holder's own change");
    let denied = rig.nlm("host", "f", LockKind::Write, range(0, 9), true);
    assert_eq!((denied, recalls(&rig)), (NlmAnswer::Retry, vec![a]));
    assert_eq!(announce(&mut rig, None, true), Err(Error::Delay));
    let io =
        rig.call(|state, now, fx| state.io(None, StateId::ANONYMOUS, file("f").borrowed(), WRITE, now, fx));
    assert_eq!(io, Err(Error::Delay));
}

#[test]
fn a_delegation_that_is_not_returned_is_revoked() {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    let granted = open(&mut rig, a, 3, Want::Any).unwrap().delegation.unwrap();
    assert_eq!(open(&mut rig, b, READ, Want::None), Err(Error::Delay));
    let (session, second) = (rig.session_of(a), rig.session_of(b));
    for step in 1..=4u32 {
        rig.wait(30);
        let Ok(Sequenced::New(..)) = session.sequence(&slots::request(0, step), rig.now) else {
            panic!("refused")
        };
        session.complete(0, b"", None, rig.now, &mut Effects::default());
        second.lease().renew(rig.now);
        rig.call(|state, now, fx| state.tick(now, fx));
    }
    assert_eq!(rig.state.test_stateid(a, granted.stateid), Err(Error::DelegRevoked));
    open(&mut rig, b, READ, Want::None).unwrap();
    let Ok(Sequenced::New(answer, _)) = session.sequence(&slots::request(0, 5), rig.now) else {
        panic!("refused")
    };
    assert_eq!(answer.status, status::RECALLABLE_STATE_REVOKED);
    rig.call(|state, now, fx| state.free_stateid(a, granted.stateid, now, fx)).unwrap();
    assert_eq!(rig.state.test_stateid(a, granted.stateid), Err(Error::BadStateid));
    assert_eq!(described(&rig.recovered()), described(&rig.state));
}

#[test]
fn an_expired_client_with_a_delegation_is_in_nobodys_way() {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    open(&mut rig, a, 3, Want::Any).unwrap();
    rig.wait(91);
    open(&mut rig, b, 3, Want::None).unwrap();
    assert!(!rig.state.clients.contains_key(&a));
}

#[test]
fn none_is_granted_while_the_file_is_being_changed() {
    let mut rig = Rig::new();
    let a = rig.client("a");
    let counters = Arc::new(Counters::default());
    rig.state.count_in(counters.clone());
    let counted = || counters.delegations.load(SeqCst);
    assert!(!counters.needs_file());
    let changing = counters.begin_change(file("f").key());
    assert_eq!(counted(), 0, "the change has nothing to recall");
    assert_eq!(open(&mut rig, a, READ, Want::Any).unwrap().delegation, None);
    assert_eq!((counted(), described(&rig.recovered())), (0, described(&rig.state)));
    drop(changing);
    let any = counters.begin_change_of_any();
    assert!(counters.needs_file(), "a change by name would be in the way again");
    assert_eq!(open(&mut rig, a, READ, Want::Any).unwrap().delegation, None);
    drop(any);
    let other = counters.begin_change(file("g").key());
    assert!(open(&mut rig, a, READ, Want::Any).unwrap().delegation.is_some());
    assert_eq!(counted(), 1);
    drop(other);
}

#[test]
fn changes_by_the_host_recall_without_a_wait() {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    open(&mut rig, a, READ, Want::Any).unwrap();
    open(&mut rig, b, READ, Want::Any).unwrap();
    let args = OpenArgs { want: Want::Any, ..open_args(a, "o", "g", 3, 0) };
    rig.call(|state, now, fx| state.open(&args, now, fx)).unwrap();
    let knows = |rig: &Rig, by| rig.state.is_delegated(by, &file("g"), false);
    assert_eq!([knows(&rig, None), knows(&rig, Some(b)), knows(&rig, Some(a))], [true, true, false]);
    assert_eq!([false, true].map(|writes| rig.state.is_delegated(None, &file("f"), writes)), [false, true]);
    rig.call(|state, now, fx| state.host_changed(Some(&file("g")), now, fx));
    assert_eq!(recalls(&rig), [a]);
    rig.call(|state, now, fx| state.host_changed(None, now, fx));
    assert_eq!(recalls(&rig), [a, b], "each once");
}

/// The lock that the end of an expired client gives to a host has no request whose records would have it.
#[test]
fn a_lock_granted_by_the_passage_of_time_is_in_the_next_piece() {
    let mut rig = Rig::new();
    let a = rig.client("a");
    rig.lock(a, "l", "f", LockKind::Write, range(0, 9)).unwrap();
    assert_eq!(rig.nlm("host", "f", LockKind::Write, range(0, 9), true), NlmAnswer::Blocked);
    rig.now += Limits::default().courtesy + SECOND;
    let mut fx = Effects::default();
    // The host asks again, so its request is not forgotten.
    rig.state.tick(rig.now, &mut fx);
    assert_eq!(fx.records, []);
    rig.log.extend(rig.state.take_revoked());
    assert_eq!(described(&rig.recovered()), described(&rig.state));
}

#[test]
fn the_holder_of_a_write_delegation_can_be_asked_until_it_is_recalled() {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    let granted = open(&mut rig, a, READ | WRITE, Want::Write).unwrap().delegation.unwrap();
    let holder = |rig: &mut Rig, by| rig.call(|state, now, _| state.holder(by, &file("f"), now));
    assert_eq!(holder(&mut rig, b), None, "its change attribute is unknown");
    rig.state.note_change(a, granted.stateid, 7);
    let known = holder(&mut rig, b).unwrap();
    assert_eq!((known.client, known.change), (a, 7));
    assert_eq!(holder(&mut rig, a), None, "the holder itself looks");
    let look = rig.call(|state, now, fx| state.announce(Some(b), &file("f"), false, now, fx));
    assert_eq!((look, holder(&mut rig, b)), (Err(Error::Delay), None));
    rig.call(|state, now, fx| state.return_delegation(a, granted.stateid, now, fx)).unwrap();
    assert_eq!(holder(&mut rig, b), None);
}

#[test]
fn a_client_leaves_room_for_delegations_of_others() {
    let limits = Limits { delegations: 6, ..Limits::default() };
    let mut rig = Rig::of(State::new(limits, ORIGIN));
    let (a, b, c) = (rig.client("a"), rig.client("b"), rig.client("c"));
    let granted = |rig: &mut Rig, client: ClientId, files: &[&str]| -> Vec<StateId> {
        let opened = files.iter().map(|name| {
            let args = OpenArgs { want: Want::Any, ..open_args(client, "o", name, READ, 0) };
            rig.call(|state, now, fx| state.open(&args, now, fx)).unwrap()
        });
        opened.filter_map(|opened| opened.delegation).map(|delegation| delegation.stateid).collect()
    };
    let files = ["1", "2", "3", "4", "5", "6", "7"];
    let of_a = granted(&mut rig, a, &files);
    assert_eq!(of_a.len(), 3, "half of them");
    assert_eq!(granted(&mut rig, b, &files).len(), 2);
    assert_eq!(granted(&mut rig, c, &files).len(), 1);
    assert_eq!(described(&rig.recovered()), described(&rig.state));
    // A client that gives its delegations back can have new ones.
    for stateid in of_a {
        rig.call(|state, now, fx| state.return_delegation(a, stateid, now, fx)).unwrap();
    }
    assert_eq!(granted(&mut rig, a, &files).len(), 2);
    rig.state.check().unwrap();
}

#[test]
fn a_test_of_a_lock_recalls_what_hides_a_lock() {
    for (access, kind, is_hidden) in [
        (3, LockKind::Read, true),
        (3, LockKind::Write, true),
        (READ, LockKind::Write, true),
        (READ, LockKind::Read, false),
    ] {
        let mut rig = Rig::new();
        let (a, b) = (rig.client("a"), rig.client("b"));
        let granted = open(&mut rig, a, access, Want::Any).unwrap().delegation.unwrap();
        let test = |rig: &mut Rig, by, kind| {
            rig.call(|state, now, fx| {
                state.test_lock(by, &name_of("l"), &file("f"), range(0, 9), kind, now, fx)
            })
        };
        let nlm = |rig: &mut Rig, kind| {
            rig.call(|state, now, fx| {
                state.nlm_test(&nlm_owner("host", 1), &file("f"), range(0, 9), kind, now, fx)
            })
        };
        assert_eq!(test(&mut rig, a, kind), Ok(()), "its own delegation hides nothing");
        if !is_hidden {
            assert_eq!((test(&mut rig, b, kind), recalls(&rig)), (Ok(()), vec![]));
            assert_eq!((nlm(&mut rig, kind), recalls(&rig)), (NlmAnswer::Granted, vec![]));
            continue;
        }
        assert_eq!(test(&mut rig, b, kind), Err(Error::Delay.into()));
        assert_eq!(recalls(&rig), [a]);
        assert_eq!((nlm(&mut rig, kind), recalls(&rig)), (NlmAnswer::Retry, vec![]));
        rig.call(|state, now, fx| state.return_delegation(a, granted.stateid, now, fx)).unwrap();
        assert_eq!((test(&mut rig, b, kind), nlm(&mut rig, kind)), (Ok(()), NlmAnswer::Granted));
    }
}

#[test]
fn a_test_of_a_lock_leaves_expired_clients_their_delegations() {
    let mut rig = Rig::new();
    let a = rig.client("a");
    open(&mut rig, a, 3, Want::Any).unwrap().delegation.unwrap();
    rig.wait(91);
    let b = rig.client("b");
    let tested = rig.call(|state, now, fx| {
        state.test_lock(b, &name_of("l"), &file("f"), range(0, 9), LockKind::Write, now, fx)
    });
    assert_eq!((tested, recalls(&rig), rig.state.counts().delegations), (Ok(()), vec![], 1));
}
