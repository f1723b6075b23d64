//! Locks and shares of NFSv3 hosts.

use super::*;
use LockKind::{Read, Write};

#[test]
fn v3_and_v4_locks_conflict_both_ways() {
    let mut rig = Rig::new();
    let a = rig.client("a");
    rig.lock(a, "l", "f", Write, range(0, 9)).unwrap();
    let NlmAnswer::Denied(Some(conflict)) = rig.nlm("host", "f", Read, range(5, 20), false) else {
        panic!("granted")
    };
    assert_eq!(conflict.owner, LockOwner::V4(a, name_of("l")));
    assert_eq!(rig.nlm("host", "f", Write, range(10, 20), false), NlmAnswer::Granted);
    let denied = rig.lock(a, "l", "f", Write, range(0, 10));
    let of_host = LockOwner::Nlm(nlm_owner("host", 1));
    assert_eq!(denied, Err(Refused::Denied(Conflict { range: range(10, 20), kind: Write, owner: of_host })));
    let test = rig.call(|state, now, fx| {
        state.nlm_test(&nlm_owner("host", 2), &file("f"), range(0, 100), Read, now, fx)
    });
    assert!(matches!(test, NlmAnswer::Denied(Some(_))));
    assert_eq!(described(&rig.recovered()), described(&rig.state));
}

#[test]
fn a_forged_name_at_another_address_unlocks_nothing() {
    let mut rig = Rig::new();
    rig.nlm("host", "f", Write, range(0, 9), false);
    let mut forged = nlm_owner("host", 1);
    forged.host = HostKey::new(b"host", &[10, 6, 6, 6]).unwrap();
    rig.call(|state, now, fx| state.nlm_unlock(&forged, &file("f"), range(0, 9), now, fx));
    rig.call(|state, now, fx| state.nlm_free_all(&forged.host, now, fx));
    assert_eq!(rig.state.counts().locks, 1);
}

#[test]
fn blocked_requests_are_served_in_order() {
    let mut rig = Rig::new();
    assert_eq!(rig.nlm("a", "f", Read, range(0, 9), true), NlmAnswer::Granted);
    assert_eq!(rig.nlm("writer", "f", Write, range(0, 9), true), NlmAnswer::Blocked);
    assert_eq!(rig.nlm("writer", "f", Write, range(0, 9), true), NlmAnswer::Blocked);
    assert_eq!(rig.nlm("second", "f", Write, range(5, 9), true), NlmAnswer::Blocked);
    assert_eq!(rig.nlm("third", "f", Write, range(0, 4), true), NlmAnswer::Blocked);
    let unlock = |rig: &mut Rig, host: &str| {
        rig.call(|state, now, fx| state.nlm_unlock(&nlm_owner(host, 1), &file("f"), range(0, 9), now, fx));
        rig.granted()
    };
    let first = unlock(&mut rig, "a");
    let [ticket] = first[..] else { panic!("{first:?}") };
    assert_eq!(rig.durability, Durability::BeforeReply, "the grant is durable before GRANTED is sent");
    assert!(rig.state.nlm_is_granting(ticket));
    assert!(rig.call(|state, now, fx| state.nlm_granted(ticket, true, now, fx)));
    assert!(!rig.call(|state, now, fx| state.nlm_granted(ticket, true, now, fx)), "acknowledged before");
    assert_eq!(unlock(&mut rig, "writer").len(), 2, "these two do not conflict");
}

#[test]
fn a_refused_grant_passes_the_lock_on() {
    let mut rig = Rig::new();
    rig.nlm("a", "f", Write, range(0, 9), false);
    for host in ["b", "c"] {
        rig.nlm(host, "f", Write, range(0, 9), true);
    }
    rig.call(|state, now, fx| state.nlm_unlock(&nlm_owner("a", 1), &file("f"), range(0, 9), now, fx));
    let ticket = rig.granted()[0];
    rig.call(|state, now, fx| state.nlm_granted(ticket, false, now, fx));
    let [Action::Granted(next)] = &rig.actions[..] else { panic!("{:?}", rig.actions) };
    assert_eq!(next.owner, nlm_owner("c", 1));
    // The reply to a polling request settles the grant as well.
    let ticket = next.ticket;
    assert_eq!(rig.nlm("c", "f", Write, range(0, 9), true), NlmAnswer::Granted);
    assert!(!rig.state.nlm_is_granting(ticket));
}

#[test]
fn a_request_can_be_cancelled_before_and_after_its_grant() {
    let mut rig = Rig::new();
    rig.nlm("a", "f", Write, range(0, 9), false);
    let cancel = |rig: &mut Rig| {
        rig.call(|state, now, fx| {
            state.nlm_cancel(&nlm_owner("b", 1), &file("f"), range(0, 9), Write, now, fx)
        })
    };
    assert!(!cancel(&mut rig));
    rig.nlm("b", "f", Write, range(0, 9), true);
    assert!(cancel(&mut rig));
    assert_eq!(rig.state.counts().waiters, 0);
    rig.nlm("b", "f", Write, range(0, 9), true);
    rig.call(|state, now, fx| state.nlm_unlock(&nlm_owner("a", 1), &file("f"), range(0, 9), now, fx));
    assert!(cancel(&mut rig), "granted, but not acknowledged");
    assert_eq!(rig.state.counts(), Counts { hosts: 2, ..Counts::default() });
    assert_eq!(described(&rig.recovered()), described(&rig.state));
}

#[test]
fn a_cycle_of_waiting_owners_is_a_deadlock() {
    let mut rig = Rig::new();
    for host in ["a", "b", "c"] {
        assert_eq!(rig.nlm(host, host, Write, range(0, 9), true), NlmAnswer::Granted);
    }
    assert_eq!(rig.nlm("a", "b", Write, range(0, 9), true), NlmAnswer::Blocked);
    assert_eq!(rig.nlm("b", "c", Write, range(0, 9), true), NlmAnswer::Blocked);
    assert_eq!(rig.nlm("c", "a", Write, range(0, 9), true), NlmAnswer::Deadlock);
    assert!(matches!(rig.nlm("c", "a", Write, range(0, 9), false), NlmAnswer::Denied(_)));
    let other = nlm_args("c", 2, "a", Write, range(0, 9), true);
    assert_eq!(
        rig.call(|state, now, fx| state.nlm_lock(&other, now, fx)),
        NlmAnswer::Blocked,
        "another process"
    );
}

#[test]
fn a_rebooted_host_loses_its_locks() {
    let mut rig = Rig::new();
    let lock = |rig: &mut Rig, name: &str, number| {
        let args = NlmLock { state: number, ..nlm_args("host", 1, name, Write, range(0, 9), false) };
        assert_eq!(rig.call(|state, now, fx| state.nlm_lock(&args, now, fx)), NlmAnswer::Granted);
    };
    lock(&mut rig, "f", 3);
    lock(&mut rig, "g", 3);
    assert_eq!(rig.state.counts().locks, 2);
    lock(&mut rig, "h", 5);
    assert_eq!(rig.state.counts().locks, 1, "a larger state number");
    let host = nlm_owner("host", 1).host;
    rig.call(|state, now, fx| state.nsm_notify(&host, 5, now, fx));
    assert_eq!(rig.state.counts().locks, 1, "an old notification");
    rig.nlm("waiter", "h", Write, range(0, 9), true);
    rig.call(|state, now, fx| state.nsm_notify(&host, 7, now, fx));
    assert_eq!(rig.granted().len(), 1);
    assert_eq!(described(&rig.recovered()), described(&rig.state));
    rig.call(|state, now, fx| state.nlm_free_all(&nlm_owner("waiter", 1).host, now, fx));
    assert_eq!(rig.state.counts(), Counts::default());
    assert_eq!(rig.recovered().counts(), Counts::default());
}

#[test]
fn v3_shares_and_v4_opens_exclude_each_other() {
    let mut rig = Rig::new();
    let a = rig.client("a");
    let open = rig.open(a, "o", "f", WRITE, 0).unwrap().stateid;
    let share = |rig: &mut Rig, access, deny| {
        let owner = nlm_owner("host", 1);
        rig.call(|state, now, fx| state.nlm_share(&owner, &file("f"), Share { access, deny }, false, now, fx))
    };
    assert_eq!(share(&mut rig, READ, WRITE), NlmAnswer::Denied(None));
    rig.call(|state, now, fx| state.close(a, open, &file("f"), now, fx)).unwrap();
    assert_eq!(share(&mut rig, READ, WRITE), NlmAnswer::Granted);
    assert_eq!(rig.open(a, "o", "f", WRITE, 0), Err(Error::ShareDenied));
    assert_eq!(described(&rig.recovered()), described(&rig.state));
    assert_eq!(share(&mut rig, 0, READ), NlmAnswer::Granted, "the owner replaces its share");
    rig.open(a, "o", "f", WRITE, 0).unwrap();
    rig.call(|state, now, fx| state.nlm_unshare(&nlm_owner("host", 1), &file("f"), now, fx));
    rig.open(a, "o", "f", READ, 0).unwrap();
    assert_eq!(rig.state.counts().shares, 0);
    assert_eq!(described(&rig.recovered()), described(&rig.state));
}

#[test]
fn hosts_and_queues_are_bounded() {
    let limits = Limits { hosts: 2, waiters_per_file: 1, ..Limits::default() };
    let mut rig = Rig::of(State::new(limits, ORIGIN));
    rig.nlm("a", "f", Write, range(0, 9), false);
    assert_eq!(rig.nlm("b", "f", Write, range(0, 9), true), NlmAnswer::Blocked);
    assert_eq!(rig.nlm("c", "g", Write, range(0, 9), true), NlmAnswer::DeniedNoLocks);
    let more = nlm_args("b", 2, "f", Write, range(0, 9), true);
    assert_eq!(rig.call(|state, now, fx| state.nlm_lock(&more, now, fx)), NlmAnswer::DeniedNoLocks);
    rig.call(|state, now, fx| state.nlm_unlock(&nlm_owner("a", 1), &file("f"), range(0, 9), now, fx));
    assert_eq!(rig.nlm("c", "g", Write, range(0, 9), true), NlmAnswer::Granted, "an idle host made room");
}

/// A host at its bounds gets no more, gives back as before, and is in no other host's way.
#[test]
fn what_a_host_holds_is_bounded() {
    let limits = Limits { locks_per_host: 2, shares_per_host: 1, waiters_per_host: 1, ..Limits::default() };
    let mut rig = Rig::of(State::new(limits, ORIGIN));
    let lock =
        |rig: &mut Rig, host: &str, first| rig.nlm(host, "f", LockKind::Write, range(first, first + 9), true);
    let unlock = |rig: &mut Rig, first, last| {
        let owner = nlm_owner("a", 1);
        rig.call(|state, now, fx| state.nlm_unlock(&owner, &file("f"), range(first, last), now, fx))
    };
    assert_eq!([0, 20].map(|first| lock(&mut rig, "a", first)), [NlmAnswer::Granted, NlmAnswer::Granted]);
    assert_eq!(lock(&mut rig, "a", 40), NlmAnswer::DeniedNoLocks);
    assert_eq!(unlock(&mut rig, 3, 5), NlmAnswer::DeniedNoLocks, "would make three of two");
    assert_eq!(lock(&mut rig, "b", 40), NlmAnswer::Granted);
    assert_eq!(
        [0, 20].map(|first| lock(&mut rig, "b", first)),
        [NlmAnswer::Blocked, NlmAnswer::DeniedNoLocks]
    );
    assert_eq!(lock(&mut rig, "b", 0), NlmAnswer::Blocked, "asks again");
    assert_eq!(unlock(&mut rig, 0, 3), NlmAnswer::Granted);
    assert_eq!(unlock(&mut rig, 0, u64::MAX), NlmAnswer::Granted);
    assert_eq!(lock(&mut rig, "a", 60), NlmAnswer::Granted);

    let share = |rig: &mut Rig, host: &str, name: &str, access| {
        let (owner, share) = (nlm_owner(host, 0), Share { access, deny: 0 });
        rig.call(|state, now, fx| state.nlm_share(&owner, &file(name), share, false, now, fx))
    };
    assert_eq!(share(&mut rig, "a", "f", READ), NlmAnswer::Granted);
    assert_eq!(share(&mut rig, "a", "g", READ), NlmAnswer::DeniedNoLocks);
    assert_eq!(share(&mut rig, "a", "f", 3), NlmAnswer::Granted, "replaces the share");
    assert_eq!(share(&mut rig, "b", "g", READ), NlmAnswer::Granted);
    rig.call(|state, now, fx| state.nlm_free_all(&nlm_owner("a", 0).host, now, fx));
    assert_eq!(share(&mut rig, "a", "g", READ), NlmAnswer::Granted);
}
