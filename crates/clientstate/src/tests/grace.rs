//! The grace period of a server that has lost its log.

use super::*;

fn server(known: Option<&[&str]>) -> Rig {
    let known = known.map(|known| known.iter().map(|name| name_of(name)).collect());
    Rig::of(State::without_log(Limits::default(), ORIGIN, known, 1000 * SECOND))
}

fn fresh(rig: &mut Rig, name: &str) -> ClientId {
    let id = rig.exchange(name, 1, "root", 0).unwrap().client;
    rig.session(id, 1, "root").unwrap();
    id
}

fn reclaim(rig: &mut Rig, client: ClientId, deny: u8) -> Result<StateId, Error> {
    let args = OpenArgs { claim: Claim::Previous(None), ..open_args(client, "o", "f", 3, deny) };
    rig.call(|state, now, fx| state.open(&args, now, fx)).map(|opened| opened.stateid)
}

#[test]
fn only_reclaims_are_allowed() {
    let mut rig = server(Some(&["a", "b"]));
    let a = fresh(&mut rig, "a");
    assert_eq!(rig.open(a, "o", "f", 1, 0), Err(Error::Grace));
    let stateid = reclaim(&mut rig, a, 0).unwrap();
    let mut args = lock_args(a, Locker::New(stateid, name_of("l")), "f", LockKind::Write, range(0, 9));
    assert_eq!(rig.call(|state, now, fx| state.lock(&args, now, fx)), Err(Refused::Error(Error::Grace)));
    args.is_reclaim = true;
    rig.call(|state, now, fx| state.lock(&args, now, fx)).unwrap();
    // Reads and writes without state wait as well, those with reclaimed state do not.
    let io = |rig: &mut Rig, stateid| {
        rig.call(|state, now, fx| state.io(Some(a), stateid, file("f").borrowed(), READ, now, fx))
    };
    assert_eq!(io(&mut rig, StateId::ANONYMOUS), Err(Error::Grace));
    assert_eq!(io(&mut rig, StateId::BYPASS), Err(Error::Grace));
    assert_eq!(io(&mut rig, stateid), Ok(()));
    assert_eq!(rig.nlm("host", "g", LockKind::Read, range(0, 9), false), NlmAnswer::DeniedGrace);
    let b = fresh(&mut rig, "b");
    assert_eq!(reclaim(&mut rig, b, 1), Err(Error::ReclaimConflict));
}

#[test]
fn it_ends_when_all_known_clients_have_reclaimed() {
    let mut rig = server(Some(&["a", "b"]));
    let (a, b) = (fresh(&mut rig, "a"), fresh(&mut rig, "b"));
    let complete =
        |rig: &mut Rig, id| rig.call(|state, now, fx| state.reclaim_complete(id, false, now, fx)).unwrap();
    complete(&mut rig, a);
    assert_eq!(reclaim(&mut rig, a, 0), Err(Error::NoGrace), "it has said that it is complete");
    assert_eq!(rig.open(a, "o", "f", 1, 0), Err(Error::Grace));
    complete(&mut rig, b);
    assert!(!rig.state.in_grace(rig.now));
    rig.open(a, "o", "f", 1, 0).unwrap();
    assert_eq!(reclaim(&mut rig, b, 0), Err(Error::NoGrace));
}

#[test]
fn a_client_that_never_completes_does_not_prolong_it() {
    let mut rig = server(None);
    let a = fresh(&mut rig, "a");
    rig.call(|state, now, fx| state.reclaim_complete(a, false, now, fx)).unwrap();
    assert!(rig.state.in_grace(rig.now), "nobody knows the clients");
    rig.wait(90);
    assert!(!rig.state.in_grace(rig.now));
    rig.open(a, "o", "f", 1, 0).unwrap();
}

#[test]
fn there_is_none_without_clients_or_with_a_log() {
    assert!(!server(Some(&[])).state.in_grace(1000 * SECOND));
    let mut rig = Rig::new();
    let a = rig.client("a");
    rig.open(a, "o", "f", 3, 3).unwrap();
    let mut after = Rig::of(rig.recovered());
    assert!(!after.state.in_grace(after.now));
    assert_eq!(reclaim(&mut after, a, 0), Err(Error::NoGrace));
    after.open(a, "o", "g", 1, 0).unwrap();
}
