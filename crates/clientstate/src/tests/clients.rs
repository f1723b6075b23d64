//! A test for each row of the tables of EXCHANGE_ID and CREATE_SESSION.

use super::*;
use crate::exchange::{CONFIRMED_R, UPD_CONFIRMED_REC_A};

#[test]
fn row_1_a_new_owner_gets_an_unconfirmed_record() {
    let mut rig = Rig::new();
    let first = rig.exchange("a", 1, "root", 0).unwrap();
    assert_eq!((first.sequence, first.flags & CONFIRMED_R), (1, 0));
    assert_eq!(first.client.0 >> 32, 7, "the epoch is in the id");
    assert!(rig.log.is_empty(), "an unconfirmed record is not durable");
}

#[test]
fn row_2_the_confirmed_record_is_found_again() {
    let mut rig = Rig::new();
    let id = rig.client("a");
    let again = rig.exchange("a", 1, "root", 0).unwrap();
    assert_eq!((again.client, again.sequence, again.flags & CONFIRMED_R), (id, 2, CONFIRMED_R));
}

#[test]
fn row_3_another_principal_collides_with_a_record_in_use() {
    let mut rig = Rig::new();
    let id = rig.client("a");
    assert_eq!(rig.exchange("a", 1, "mallory", 0), Err(Error::ClidInuse));
    assert_eq!(rig.exchange("a", 2, "mallory", 0), Err(Error::ClidInuse));
    // An expired record may be replaced, but only when CREATE_SESSION confirms the new one.
    rig.wait(91);
    let new = rig.exchange("a", 2, "mallory", 0).unwrap().client;
    assert!(rig.state.clients.contains_key(&id));
    rig.session_of(id).sequence(&slots::request(0, 1), rig.now).unwrap();
    assert_eq!(rig.session(new, 1, "mallory"), Err(Error::ClidInuse), "the old client is back");
    rig.wait(91);
    rig.session(new, 1, "mallory").unwrap();
    assert!(!rig.state.clients.contains_key(&id));
}

#[test]
fn row_3_another_principal_replaces_a_record_without_state() {
    let mut rig = Rig::new();
    let id = rig.client("a");
    let session = rig.session_of(id).id();
    rig.call(|state, _, fx| state.destroy_session(session, None, fx)).unwrap();
    let new = rig.exchange("a", 2, "mallory", 0).unwrap().client;
    assert_eq!(rig.session(id, 2, "root"), Err(Error::StaleClientid));
    assert_eq!(described(&rig.recovered()), described(&rig.state), "the removal is in the log");
    rig.session(new, 1, "mallory").unwrap();
}

#[test]
fn row_4_an_unconfirmed_record_is_replaced() {
    let mut rig = Rig::new();
    let first = rig.exchange("a", 1, "root", 0).unwrap().client;
    let second = rig.exchange("a", 2, "mallory", 0).unwrap().client;
    assert_ne!(first, second);
    assert_eq!(rig.session(first, 1, "root"), Err(Error::StaleClientid));
    assert_eq!(rig.session(second, 1, "root"), Err(Error::ClidInuse));
    rig.session(second, 1, "mallory").unwrap();
}

#[test]
fn row_5_a_restarted_client_loses_its_state_at_create_session() {
    let mut rig = Rig::new();
    let old = rig.client("a");
    rig.lock(old, "o", "f", LockKind::Write, range(0, 9)).unwrap();
    let session = rig.session_of(old);
    let new = rig.exchange("a", 2, "root", 0).unwrap();
    assert_eq!(new.flags & CONFIRMED_R, 0);
    assert_eq!(rig.state.counts().locks, 1, "a forged EXCHANGE_ID changes nothing");
    rig.session(new.client, 1, "root").unwrap();
    assert_eq!(rig.state.counts().locks, 0);
    assert_eq!(session.sequence(&slots::request(0, 1), rig.now), Err(Error::BadSession));
    assert!(rig.actions.contains(&Action::ClientGone(old)));
    assert_eq!(described(&rig.recovered()), described(&rig.state));
}

#[test]
fn rows_6_to_9_updates() {
    let mut rig = Rig::new();
    assert_eq!(rig.exchange("a", 1, "root", UPD_CONFIRMED_REC_A), Err(Error::Noent));
    let id = rig.client("a");
    assert_eq!(rig.exchange("a", 1, "root", UPD_CONFIRMED_REC_A).unwrap().client, id);
    assert_eq!(rig.exchange("a", 2, "root", UPD_CONFIRMED_REC_A), Err(Error::NotSame));
    assert_eq!(rig.exchange("a", 1, "mallory", UPD_CONFIRMED_REC_A), Err(Error::Perm));
    assert_eq!(rig.exchange("a", 2, "mallory", UPD_CONFIRMED_REC_A), Err(Error::Perm));
    assert_eq!(rig.exchange("a", 1, "root", CONFIRMED_R), Err(Error::Inval));
}

#[test]
fn create_session_has_a_slot_of_its_own() {
    let mut rig = Rig::new();
    assert_eq!(rig.session(ClientId(3), 1, "root"), Err(Error::StaleClientid));
    let id = rig.exchange("a", 1, "root", 0).unwrap().client;
    assert_eq!(rig.session(id, 0, "root"), Err(Error::SeqMisordered));
    assert_eq!(rig.session(id, 2, "root"), Err(Error::SeqMisordered));
    assert_eq!(rig.session(id, 1, "mallory"), Err(Error::ClidInuse));
    let first = rig.session(id, 1, "root").unwrap();
    assert_eq!(rig.durability, Durability::BeforeReply);
    assert_eq!(rig.session(id, 1, "root").unwrap(), first, "a retransmission");
    let second = rig.session(id, 2, "root").unwrap();
    assert_ne!(first.session, second.session);
    assert_eq!(rig.session(id, 1, "root"), Err(Error::SeqMisordered));
    let after = &mut Rig::of(rig.recovered());
    assert_eq!(after.session(id, 2, "root").unwrap(), second, "a retransmission after a crash");
    after.session(id, 3, "root").unwrap();
}

#[test]
fn channels_are_negotiated() {
    let mut rig = Rig::new();
    let id = rig.exchange("a", 1, "root", 0).unwrap().client;
    let mut create = |fore: Channel, flags| {
        let args = CreateSession { fore, flags, ..create_args(id, 1, "root") };
        rig.call(|state, now, fx| state.create_session(&args, now, fx))
    };
    assert_eq!(create(Channel { max_response: 100, ..CHANNEL }, 0), Err(Error::TooSmall));
    assert_eq!(create(Channel { max_request: 100, ..CHANNEL }, 0), Err(Error::TooSmall));
    assert_eq!(create(Channel { slots: 0, ..CHANNEL }, 0), Err(Error::Inval));
    assert_eq!(create(CHANNEL, 8), Err(Error::Inval));
    let huge = Channel {
        max_request: u32::MAX,
        max_response: u32::MAX,
        max_cached: u32::MAX,
        operations: 9999,
        slots: 9999,
    };
    let granted = create(huge, PERSIST).unwrap();
    let limits = Limits::default();
    assert_eq!((granted.fore.slots, granted.fore.operations), (1024, limits.operations));
    assert_eq!((granted.fore.max_request, granted.fore.max_cached), (limits.message, REPLY_MAX as u32));
    assert_eq!(granted.flags, PERSIST);
}

#[test]
fn a_client_has_bounded_sessions_and_all_sessions_have_bounded_slots() {
    let limits = Limits { sessions_per_client: 2, total_slots: 80, ..Limits::default() };
    let mut rig = Rig::of(State::new(limits, ORIGIN));
    let a = rig.exchange("a", 1, "root", 0).unwrap().client;
    assert_eq!(rig.session(a, 1, "root").unwrap().fore.slots, 64);
    assert_eq!(rig.session(a, 2, "root").unwrap().fore.slots, 16);
    assert_eq!(rig.session(a, 3, "root"), Err(Error::Nospc));
    let b = rig.exchange("b", 1, "root", 0).unwrap().client;
    assert_eq!(rig.session(b, 1, "root"), Err(Error::Nospc));
    rig.wait(91);
    rig.exchange("b", 1, "root", 0).unwrap();
    let b = rig.exchange("b", 1, "root", 0).unwrap().client;
    rig.session(b, 1, "root").unwrap();
    assert!(!rig.state.clients.contains_key(&a), "the expired client made room");
}

#[test]
fn destroying_sessions_and_clients() {
    let mut rig = Rig::new();
    let id = rig.client("a");
    let session = rig.session_of(id);
    session.sequence(&slots::request(3, 1), rig.now).unwrap();
    let destroy = |rig: &mut Rig, own| rig.call(|state, _, fx| state.destroy_session(session.id(), own, fx));
    let destroy_client = |rig: &mut Rig, by: &str| {
        let by = Principal::new(by.as_bytes()).unwrap();
        rig.call(|state, now, fx| state.destroy_client_id(id, &by, now, fx))
    };
    assert_eq!(destroy_client(&mut rig, "root"), Err(Error::ClientidBusy));
    assert_eq!(destroy(&mut rig, None), Err(Error::Delay), "a request runs");
    assert_eq!(destroy(&mut rig, Some(3)), Ok(()));
    assert_eq!(destroy(&mut rig, None), Err(Error::BadSession));
    assert!(!session.lease().has_back_channel());
    assert_eq!(destroy_client(&mut rig, "mallory"), Err(Error::WrongCred));
    destroy_client(&mut rig, "root").unwrap();
    assert_eq!(destroy_client(&mut rig, "root"), Err(Error::StaleClientid));
    assert_eq!(rig.state.counts(), Counts::default());
    assert_eq!(rig.recovered().counts(), Counts::default());
}

#[test]
fn reclaim_complete_is_said_once_and_survives() {
    let mut rig = Rig::new();
    let id = rig.client("a");
    let complete =
        |rig: &mut Rig, one_fs| rig.call(|state, now, fx| state.reclaim_complete(id, one_fs, now, fx));
    assert_eq!(complete(&mut rig, false), Err(Error::CompleteAlready));
    assert_eq!(complete(&mut rig, true), Ok(()));
    // A revived client counts as complete: it may open without saying it again.
    let after = &mut Rig::of(rig.recovered());
    after.open(id, "o", "f", 1, 0).unwrap();
}

#[test]
fn an_open_before_reclaim_complete_is_refused() {
    let mut rig = Rig::new();
    let id = rig.exchange("a", 1, "root", 0).unwrap().client;
    rig.session(id, 1, "root").unwrap();
    assert_eq!(rig.open(id, "o", "f", 1, 0), Err(Error::Grace));
}

#[test]
fn client_records_are_bounded_and_unconfirmed_ones_expire() {
    let mut rig = Rig::of(State::new(Limits { clients: 3, ..Limits::default() }, ORIGIN));
    let a = rig.client("a");
    let b = rig.exchange("b", 1, "root", 0).unwrap().client;
    rig.client("c");
    // A flood of new owners takes the place of unconfirmed records only.
    let d = rig.exchange("d", 1, "root", 0).unwrap().client;
    assert_eq!(rig.session(b, 1, "root"), Err(Error::StaleClientid));
    rig.session(d, 1, "root").unwrap();
    assert_eq!(rig.exchange("e", 1, "root", 0), Err(Error::Delay));
    rig.wait(91);
    rig.exchange("e", 1, "root", 0).unwrap();
    assert!(!rig.state.clients.contains_key(&a), "the client that expired first");
    rig.wait(91);
    rig.call(|state, now, fx| state.tick(now, fx));
    assert_eq!(
        rig.state.counts().clients,
        2,
        "the unconfirmed record is gone, the expired clients have sessions"
    );
}

#[test]
fn ids_of_two_instances_differ() {
    let mut rig = Rig::new();
    let old = rig.client("a");
    let stateid = rig.open(old, "o", "f", 1, 0).unwrap().stateid;
    let mut after = Rig::of(rig.recovered());
    let new = after.client("b");
    assert_eq!((old.0 >> 32, new.0 >> 32), (7, 8));
    let other = after.open(new, "o", "f", 1, 0).unwrap().stateid;
    assert_ne!(stateid.other[..4], other.other[..4]);
    assert_eq!(after.state.test_stateid(old, stateid), Ok(()));
}

#[test]
fn a_flood_of_exchange_id_takes_no_expired_clients_state() {
    let mut rig = Rig::of(State::new(Limits { clients: 3, ..Limits::default() }, ORIGIN));
    let a = rig.client("a");
    rig.lock(a, "o", "f", LockKind::Write, range(0, 9)).unwrap();
    rig.wait(91);
    for n in 0..9 {
        rig.exchange(&format!("flood {n}"), 1, "root", 0).unwrap();
    }
    assert_eq!(rig.state.counts().locks, 1);
    assert!(rig.state.clients.contains_key(&a));
}
