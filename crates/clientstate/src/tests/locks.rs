//! Byte-range locks of NFSv4, expired clients, hints for waiting clients.

use super::*;
use LockKind::{Read, Write};

fn unlock(rig: &mut Rig, client: ClientId, stateid: StateId, range: Range) -> Result<StateId, Error> {
    rig.call(|state, now, fx| state.unlock(client, stateid, &file("f"), range, now, fx))
}

#[test]
fn a_conflict_names_its_holder() {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    rig.lock(a, "l", "f", Read, range(10, 19)).unwrap();
    assert_eq!(rig.durability, Durability::BeforeReply);
    rig.lock(b, "l", "f", Read, range(0, 100)).unwrap();
    let conflict = |owner, first, last, kind| Conflict { range: range(first, last), kind, owner };
    let of_a = LockOwner::V4(a, name_of("l"));
    let denied = rig.lock(b, "l", "f", Write, range(15, 30));
    assert_eq!(denied, Err(Refused::Denied(conflict(of_a.clone(), 10, 19, Read))));
    let mut test = |owner: &str, kind| {
        rig.call(|state, now, fx| {
            state.test_lock(b, &name_of(owner), &file("f"), range(15, 15), kind, now, fx)
        })
    };
    assert_eq!(test("l", Write), Err(Refused::Denied(conflict(of_a, 10, 19, Read))));
    assert_eq!(test("l", Read), Ok(()));
    assert!(matches!(test("m", Write), Err(Refused::Denied(_))), "owners of one client exclude each other");
}

#[test]
fn a_lock_needs_its_open() {
    let mut rig = Rig::new();
    let a = rig.client("a");
    let open = rig.open(a, "o", "f", READ, 0).unwrap().stateid;
    let lock = |rig: &mut Rig, locker, name, kind| {
        let args = lock_args(a, locker, name, kind, range(0, 9));
        rig.call(|state, now, fx| state.lock(&args, now, fx))
    };
    let new = || Locker::New(open, name_of("l"));
    assert_eq!(lock(&mut rig, new(), "f", Write), Err(Refused::Error(Error::OpenMode)));
    assert_eq!(lock(&mut rig, new(), "g", Read), Err(Refused::Error(Error::BadStateid)));
    let stateid = lock(&mut rig, new(), "f", Read).unwrap();
    assert_eq!(stateid.seqid, 1);
    let again = lock(&mut rig, Locker::Known(stateid), "f", Read).unwrap();
    assert_eq!(again, StateId { seqid: 2, ..stateid });
    assert_eq!(lock(&mut rig, Locker::Known(stateid), "f", Read), Err(Refused::Error(Error::OldStateid)));
    assert_eq!(lock(&mut rig, Locker::Known(open), "f", Read), Err(Refused::Error(Error::BadStateid)));
    assert_eq!(rig.call(|state, now, fx| state.free_stateid(a, again, now, fx)), Err(Error::LocksHeld));
    let free = unlock(&mut rig, a, again, range(0, u64::MAX)).unwrap();
    rig.call(|state, now, fx| state.free_stateid(a, free, now, fx)).unwrap();
    let last = lock(&mut rig, new(), "f", Read).unwrap();
    assert_eq!(described(&rig.recovered()), described(&rig.state));
    rig.call(|state, now, fx| state.close(a, open, &file("f"), now, fx)).unwrap();
    assert_eq!(rig.durability, Durability::BeforeReply, "the close frees a lock");
    assert_eq!(rig.state.test_stateid(a, last), Err(Error::BadStateid));
    assert_eq!(rig.state.counts().locks, 0);
}

#[test]
fn ranges_are_split_and_survive() {
    let mut rig = Rig::new();
    let a = rig.client("a");
    let stateid = rig.lock(a, "l", "f", Write, range(0, u64::MAX)).unwrap();
    let stateid = unlock(&mut rig, a, stateid, range(100, 199)).unwrap();
    let holds = |state: &State, first, last, kind| {
        state.holds(&LockOwner::V4(a, name_of("l")), &file("f"), range(first, last), kind)
    };
    let after = rig.recovered();
    for state in [&rig.state, &after] {
        assert!(holds(state, 0, 99, Write) && holds(state, 200, u64::MAX, Read));
        assert!(!holds(state, 99, 100, Read) && !holds(state, 150, 150, Read));
    }
    assert_eq!(described(&after), described(&rig.state));
    unlock(&mut rig, a, stateid, range(0, u64::MAX)).unwrap();
    assert_eq!(rig.recovered().counts().locks, 0);
}

#[test]
fn an_expired_client_keeps_its_locks_until_a_conflict() {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    let session = rig.session_of(a);
    rig.lock(a, "l", "f", Write, range(0, 9)).unwrap();
    rig.lock(a, "l", "g", Write, range(0, 9)).unwrap();
    rig.wait(3600);
    rig.call(|state, now, fx| state.tick(now, fx));
    assert_eq!(rig.state.counts().locks, 2, "nobody wants them");
    assert_eq!(
        rig.call(|state, now, fx| state.test_lock(b, &name_of("l"), &file("f"), range(5, 5), Write, now, fx)),
        Ok(()),
        "a test takes nothing away"
    );
    // A sign of life makes it an ordinary client again.
    session.sequence(&slots::request(0, 1), rig.now).unwrap();
    assert!(matches!(rig.lock(b, "l", "f", Write, range(5, 5)), Err(Refused::Denied(_))));
    rig.wait(91);
    rig.lock(b, "l", "f", Write, range(5, 5)).unwrap();
    assert!(rig.actions.contains(&Action::ClientGone(a)), "{:?}", rig.actions);
    assert_eq!(rig.state.counts().clients, 1, "the whole client is gone");
    assert_eq!(session.sequence(&slots::request(0, 2), rig.now), Err(Error::BadSession));
    assert_eq!(rig.open(a, "o", "f", 1, 0), Err(Error::Expired));
    assert_eq!(described(&rig.recovered()), described(&rig.state));
}

#[test]
fn an_expired_client_is_gone_after_a_day() {
    let mut rig = Rig::new();
    let a = rig.client("a");
    rig.lock(a, "l", "f", Write, range(0, 9)).unwrap();
    rig.wait(24 * 3600 + 1);
    rig.call(|state, now, fx| state.tick(now, fx));
    assert_eq!(rig.state.counts(), Counts::default());
}

#[test]
fn a_waiting_client_gets_a_hint() {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    let held = rig.lock(a, "l", "f", Write, range(0, 9)).unwrap();
    let open = rig.open(b, "o", "f", 3, 0).unwrap().stateid;
    let mut args = lock_args(b, Locker::New(open, name_of("w")), "f", Write, range(5, 5));
    args.waits = true;
    for _ in 0..2 {
        assert!(matches!(rig.call(|state, now, fx| state.lock(&args, now, fx)), Err(Refused::Denied(_))));
    }
    assert_eq!(rig.state.counts().waiters, 1, "a repetition keeps its place");
    let held = unlock(&mut rig, a, held, range(0, 4)).unwrap();
    assert_eq!(rig.actions, []);
    unlock(&mut rig, a, held, range(0, 9)).unwrap();
    assert_eq!(rig.actions, [Action::NotifyLock { client: b, owner: name_of("w"), file: file("f") }]);
    rig.call(|state, now, fx| state.lock(&args, now, fx)).unwrap();
    assert_eq!(rig.state.counts().waiters, 0);
}

#[test]
fn a_client_that_asks_no_more_waits_no_more() {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    rig.lock(a, "l", "f", Write, range(0, 9)).unwrap();
    let open = rig.open(b, "o", "f", 3, 0).unwrap().stateid;
    let mut args = lock_args(b, Locker::New(open, name_of("w")), "f", Write, range(5, 5));
    args.waits = true;
    rig.call(|state, now, fx| state.lock(&args, now, fx)).unwrap_err();
    rig.wait(91);
    rig.call(|state, now, fx| state.tick(now, fx));
    assert_eq!(rig.state.counts().waiters, 0);
}

#[test]
fn reaping_inside_of_granting_does_not_recurse() {
    // Each of many expired clients holds a lock for which an NLM request waits. One unlock starts the chain.
    let mut rig = Rig::new();
    let clients: Vec<_> = (0..200).map(|index| rig.client(&format!("c{index}"))).collect();
    for (index, client) in clients.iter().enumerate() {
        rig.lock(*client, "l", &format!("f{index}"), Write, range(0, 9)).unwrap();
        rig.lock(*client, "l", &format!("f{}", index + 1), Write, range(10, 19)).unwrap();
    }
    for index in 0..=200 {
        let name = format!("f{index}");
        assert_eq!(rig.nlm("host", &name, Write, range(0, 19), true), NlmAnswer::Blocked);
    }
    rig.wait(91);
    rig.call(|state, now, fx| state.announce(None, &file("f0"), true, now, fx)).unwrap();
    rig.call(|state, now, fx| {
        state.remove_client(clients[0], fx);
        state.settle(now, fx);
    });
    assert_eq!(rig.granted().len(), 201);
    assert_eq!(rig.state.counts().clients, 0);
}

#[test]
fn freeing_the_middle_of_a_lock_does_not_pass_the_bound() {
    let mut rig = Rig::of(State::new(Limits { locks: 1, ..Limits::default() }, ORIGIN));
    let a = rig.client("a");
    let stateid = rig.lock(a, "l", "f", Write, range(0, 9)).unwrap();
    assert_eq!(unlock(&mut rig, a, stateid, range(3, 5)), Err(Error::Delay));
    let stateid = unlock(&mut rig, a, stateid, range(3, 9)).unwrap();
    unlock(&mut rig, a, stateid, range(0, 9)).unwrap();
    assert_eq!(rig.nlm("host", "f", Write, range(0, 9), false), NlmAnswer::Granted);
    let owner = nlm_owner("host", 1);
    let freed = rig.call(|state, now, fx| state.nlm_unlock(&owner, &file("f"), range(3, 5), now, fx));
    assert_eq!(freed, NlmAnswer::DeniedNoLocks);
}

#[test]
fn a_client_leaves_room_for_locks_and_waiters_of_others() {
    let limits = Limits { locks: 4, waiters: 2, ..Limits::default() };
    let mut rig = Rig::of(State::new(limits, ORIGIN));
    let (a, b) = (rig.client("a"), rig.client("b"));
    let open = |rig: &mut Rig, client| rig.open(client, "o", "f", 3, 0).unwrap().stateid;
    let (of_a, of_b) = (open(&mut rig, a), open(&mut rig, b));
    let lock = |rig: &mut Rig, client, open, owner, first| {
        let locker = Locker::New(open, name_of(owner));
        let args = lock_args(client, locker, "f", LockKind::Write, range(first, first));
        rig.call(|state, now, fx| state.lock(&LockArgs { waits: true, ..args }, now, fx))
    };
    lock(&mut rig, a, of_a, "1", 0).unwrap();
    let stateid = lock(&mut rig, a, of_a, "1", 10).unwrap();
    assert_eq!(lock(&mut rig, a, of_a, "1", 20), Err(Error::Delay.into()), "half of them");
    lock(&mut rig, b, of_b, "2", 20).unwrap();
    // One request of a client may wait: there is room for two.
    for first in [0, 10] {
        assert!(matches!(lock(&mut rig, b, of_b, "2", first), Err(Refused::Denied(_))));
    }
    assert_eq!(rig.state.counts().waiters, 1);
    assert!(matches!(lock(&mut rig, a, of_a, "1", 20), Err(Refused::Denied(_))));
    assert_eq!(described(&rig.recovered()), described(&rig.state));
    rig.call(|state, now, fx| state.unlock(a, stateid, &file("f"), range(0, 0), now, fx)).unwrap();
    rig.state.check().unwrap();
}
