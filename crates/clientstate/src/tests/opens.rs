//! Opens, shares, state ids.

use super::*;

#[test]
fn shares_exclude_each_other() {
    // Every pair of shares of two clients.
    for (access, deny, access2, deny2) in (1..4u8)
        .flat_map(|a| (0..4).flat_map(move |d| (1..4).flat_map(move |b| (0..4).map(move |e| (a, d, b, e)))))
    {
        let mut rig = Rig::new();
        let (a, b) = (rig.client("a"), rig.client("b"));
        let open = rig.open(a, "o", "f", access, deny).unwrap().stateid;
        let expected =
            if access & deny2 != 0 || deny & access2 != 0 { Err(Error::ShareDenied) } else { Ok(()) };
        let second = rig.open(b, "o", "f", access2, deny2);
        assert_eq!(second.map(|_| ()), expected, "{access} {deny} {access2} {deny2}");
        rig.call(|state, now, fx| state.close(a, open, &file("f"), now, fx)).unwrap();
        rig.open(b, "o", "f", access2, deny2).unwrap();
    }
}

#[test]
fn an_open_again_is_an_upgrade_and_a_downgrade_needs_a_share_of_before() {
    let mut rig = Rig::new();
    let a = rig.client("a");
    let first = rig.open(a, "o", "f", 1, 0).unwrap().stateid;
    assert_eq!((first.seqid, rig.durability), (1, Durability::Loose));
    let second = rig.open(a, "o", "f", 2, 1).unwrap().stateid;
    assert_eq!(second, StateId { seqid: 2, ..first });
    assert_eq!(rig.durability, Durability::BeforeReply, "a deny mode waits for the log");
    let down = |rig: &mut Rig, stateid, access, deny| {
        rig.call(|state, _, fx| state.open_downgrade(a, stateid, &file("f"), Share { access, deny }, fx))
    };
    assert_eq!(down(&mut rig, first, 1, 0), Err(Error::OldStateid));
    assert_eq!(down(&mut rig, second, 0, 0), Err(Error::Inval));
    assert_eq!(down(&mut rig, second, 3, 2), Err(Error::Inval));
    assert_eq!(down(&mut rig, second, 3, 0), Err(Error::Inval), "never opened with 3");
    let third = down(&mut rig, second, 1, 0).unwrap();
    assert_eq!(third.seqid, 3);
    assert_eq!(rig.durability, Durability::BeforeReply);
    assert_eq!(described(&rig.recovered()), described(&rig.state));
    assert_eq!(down(&mut rig, StateId { seqid: 9, ..third }, 1, 0), Err(Error::BadStateid));
    let closed = rig.call(|state, now, fx| state.close(a, third, &file("f"), now, fx)).unwrap();
    assert_eq!((closed, rig.durability), (StateId::INVALID, Durability::Loose));
    assert_eq!(rig.state.counts(), Counts { clients: 1, sessions: 1, ..Counts::default() });
}

#[test]
fn state_ids_are_judged() {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    let open = rig.open(a, "o", "f", 1, 0).unwrap().stateid;
    rig.open(a, "o", "f", 1, 0).unwrap();
    let test = |client, stateid| rig.state.test_stateid(client, stateid);
    assert_eq!(test(a, StateId { seqid: 0, ..open }), Ok(()));
    assert_eq!(test(a, StateId { seqid: 2, ..open }), Ok(()));
    assert_eq!(test(a, open), Err(Error::OldStateid));
    assert_eq!(test(a, StateId { seqid: 3, ..open }), Err(Error::BadStateid));
    assert_eq!(test(b, StateId { seqid: 2, ..open }), Err(Error::BadStateid), "of another client");
    for special in
        [StateId::ANONYMOUS, StateId::BYPASS, StateId::INVALID, StateId { seqid: 1, other: [0; 12] }]
    {
        assert_eq!(test(a, special), Err(Error::BadStateid));
    }
    // Of an older instance without its log: BadStateid, never STALE_STATEID.
    assert_eq!(test(a, StateId { seqid: 1, other: [3; 12] }), Err(Error::BadStateid));
    let free = |rig: &mut Rig, stateid| rig.call(|state, now, fx| state.free_stateid(a, stateid, now, fx));
    assert_eq!(free(&mut rig, StateId { seqid: 0, ..open }), Err(Error::LocksHeld));
}

#[test]
fn access_by_state_id() {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    let read = rig.open(a, "o", "f", READ, 0).unwrap().stateid;
    let write = rig.open(a, "p", "f", WRITE, 0).unwrap().stateid;
    let mut io = |client, stateid, name: &str, access| {
        rig.call(|state, now, fx| state.io(client, stateid, file(name).borrowed(), access, now, fx))
    };
    assert_eq!(io(Some(a), read, "f", READ), Ok(()));
    assert_eq!(io(Some(a), read, "f", WRITE), Err(Error::OpenMode));
    assert_eq!(io(Some(a), write, "f", WRITE), Ok(()));
    assert_eq!(io(Some(a), write, "f", READ), Ok(()), "clients fill their pages");
    assert_eq!(io(Some(a), read, "g", READ), Err(Error::BadStateid));
    assert_eq!(io(Some(b), read, "f", READ), Err(Error::BadStateid));
    assert_eq!(io(Some(b), StateId::ANONYMOUS, "f", WRITE), Ok(()));
    rig.open(b, "o", "g", READ, READ | WRITE).unwrap();
    let mut io = |client, stateid, access| {
        rig.call(|state, now, fx| state.io(client, stateid, file("g").borrowed(), access, now, fx))
    };
    assert_eq!(io(Some(a), StateId::ANONYMOUS, READ), Err(Error::Locked));
    assert_eq!(io(None, StateId::ANONYMOUS, WRITE), Err(Error::Locked));
    assert_eq!(io(Some(a), StateId::BYPASS, READ), Ok(()));
    assert_eq!(io(Some(a), StateId::BYPASS, WRITE), Err(Error::Locked));
}

#[test]
fn an_administrator_revokes_an_open() {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    let open = rig.open(a, "o", "f", 3, 3).unwrap().stateid;
    let args = lock_args(a, Locker::New(open, name_of("l")), "f", LockKind::Write, range(0, 9));
    rig.call(|state, now, fx| state.lock(&args, now, fx)).unwrap();
    rig.call(|state, now, fx| state.revoke_open(a, open, now, fx)).unwrap();
    assert_eq!(rig.state.test_stateid(a, open), Err(Error::AdminRevoked));
    rig.open(b, "o", "f", 3, 3).unwrap();
    let session = rig.session_of(a);
    let Ok(Sequenced::New(answer, _)) = session.sequence(&slots::request(0, 1), 1) else { panic!("refused") };
    assert_eq!(answer.status, status::ADMIN_STATE_REVOKED);
    rig.call(|state, now, fx| state.free_stateid(a, open, now, fx)).unwrap();
    assert_eq!(rig.state.test_stateid(a, open), Err(Error::BadStateid));
    assert_eq!(described(&rig.recovered()), described(&rig.state));
}

#[test]
fn a_client_leaves_room_for_states_of_others() {
    let mut rig = Rig::of(State::new(Limits { states: 6, ..Limits::default() }, ORIGIN));
    let (a, b, c) = (rig.client("a"), rig.client("b"), rig.client("c"));
    for name in ["1", "2", "3"] {
        rig.open(a, "o", name, 1, 0).unwrap();
    }
    assert_eq!(rig.open(a, "o", "4", 1, 0), Err(Error::Delay), "half of them");
    rig.open(b, "o", "1", 1, 0).unwrap();
    rig.open(b, "o", "2", 1, 0).unwrap();
    assert_eq!(rig.open(b, "o", "3", 1, 0), Err(Error::Delay));
    rig.open(c, "o", "1", 1, 0).unwrap();
    assert_eq!(rig.open(c, "o", "2", 1, 0), Err(Error::Delay), "there is no room");
    rig.wait(91);
    rig.session_of(c).sequence(&slots::request(0, 1), rig.now).unwrap();
    rig.open(c, "o", "2", 1, 0).unwrap();
    assert_eq!(rig.open(a, "o", "1", 1, 0), Err(Error::Expired), "the expired client made room");
}
