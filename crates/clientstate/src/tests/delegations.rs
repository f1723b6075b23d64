//! Delegations: when they are granted, recalled, returned, revoked.

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
    let io = rig.call(|state, now, fx| state.io(Some(a), granted.stateid, &file("f"), WRITE, now, fx));
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
    let io = rig.call(|state, now, fx| state.io(None, StateId::ANONYMOUS, &file("f"), WRITE, now, fx));
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
