//! Records: their bytes, and the state that they give.

use super::*;

fn client_record() -> Record {
    Record::Client {
        id: ClientId(0x0102),
        owner: name_of("ab"),
        verifier: [7; 8],
        principal: Principal::new(b"p").unwrap(),
        sequence: 5,
    }
}

/// One record of each kind.
fn all() -> Vec<Record> {
    let (session, other, owner) = (SessionId([5; 16]), [6; 12], name_of("ow"));
    let host = HostKey::new(b"h", &[10, 0, 0, 1]).unwrap();
    let reply = |reply| Record::Reply(SlotReply { session, slot: 2, sequence: 3, digest: 4, reply });
    let share = Share { access: 3, deny: 2 };
    vec![
        client_record(),
        Record::ClientRemoved(ClientId(1)),
        Record::ReclaimComplete(ClientId(1)),
        Record::Session {
            id: session,
            client: ClientId(1),
            sequence: 2,
            flags: 3,
            fore: CHANNEL,
            back: CHANNEL,
        },
        Record::SessionDestroyed(session),
        reply(Kept::Repeatable),
        reply(Kept::Not),
        reply(Kept::Bytes(b"reply".to_vec())),
        Record::SlotsDropped(session, 16),
        Record::Open {
            other,
            seqid: 1,
            client: ClientId(1),
            owner: owner.clone(),
            file: file("f"),
            share,
            seen: (8, 4),
        },
        Record::Close(other),
        Record::Lock { other, seqid: 1, open: other, owner: owner.clone(), range: None },
        Record::Lock { other, seqid: 1, open: other, owner, range: Some((range(1, 2), LockKind::Write)) },
        Record::Unlock { other, seqid: 1, range: range(1, u64::MAX) },
        Record::LockStateFreed(other),
        Record::Delegation { other, seqid: 1, client: ClientId(1), file: file("f"), write: true },
        Record::DelegationReturned(other),
        Record::Host(host.clone(), -5),
        Record::HostFreed(host),
        Record::NlmLock(nlm_owner("h", -1), file("f"), range(1, 2), Some(LockKind::Read)),
        Record::NlmLock(nlm_owner("h", -1), file("f"), range(1, 2), None),
        Record::NlmShare(nlm_owner("h", -1), file("f"), Some(Share { access: 0, deny: 2 })),
        Record::NlmShare(nlm_owner("h", -1), file("f"), None),
        Record::Callback(session, 1, 2),
        Record::Copy { other, client: ClientId(1), file: file("f") },
        Record::CopyEnded(other),
    ]
}

fn bytes(record: &Record) -> Vec<u8> {
    encode_all(std::slice::from_ref(record))
}

#[test]
fn golden_bytes() {
    let expected =
        [1, 2, 1, 0, 0, 0, 0, 0, 0, 2, 0, b'a', b'b', 7, 7, 7, 7, 7, 7, 7, 7, 1, 0, b'p', 5, 0, 0, 0];
    assert_eq!(bytes(&client_record()), expected);
    let lengths: Vec<(u8, usize)> =
        all().iter().map(|record| (bytes(record)[0], bytes(record).len())).collect();
    let expected = [
        (1, 28),
        (2, 9),
        (3, 9),
        (4, 73),
        (5, 17),
        (6, 34),
        (6, 34),
        (6, 41),
        (7, 21),
        (8, 35),
        (9, 13),
        (10, 34),
        (10, 50),
        (11, 33),
        (12, 13),
        (13, 29),
        (14, 13),
        (15, 14),
        (16, 10),
        (17, 43),
        (17, 43),
        (18, 27),
        (18, 27),
        (19, 25),
        (20, 24),
        (21, 13),
    ];
    assert_eq!(lengths, expected);
    let open = "080606060606060606060606060100000001000000000000000200\
                6f77010066230804"
        .replace(' ', "");
    let hex: String = bytes(&all()[9]).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, open);
}

#[test]
fn every_record_comes_back_and_nothing_else_is_a_record() {
    let records = all();
    let joined = encode_all(&records);
    assert_eq!(decode_all(&joined, &FileKey::of_handle), Some(records.clone()));
    for record in &records {
        let bytes = bytes(record);
        for len in 1..bytes.len() {
            assert_eq!(Record::decode(&bytes[..len], &FileKey::of_handle), None, "{record:?} cut at {len}");
        }
        // Whatever a changed byte decodes to, it encodes to the same bytes.
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                if let Some((decoded, rest)) = Record::decode(&changed, &FileKey::of_handle) {
                    let again = encode_all(&[decoded]);
                    assert_eq!(again, changed[..changed.len() - rest.len()]);
                }
            }
        }
    }
    for kind in [0, 22, 255] {
        assert_eq!(Record::decode(&[&[kind][..], &[0; 100]].concat(), &FileKey::of_handle), None);
    }
}

#[test]
fn the_longest_records_fit() {
    let owner = OwnerName::new(&[1; OwnerName::MAX]).unwrap();
    let host = HostKey::new(&[1; HostName::MAX], &[1; Address::MAX]).unwrap();
    let key = FileKey::of_handle(&[1; FileKey::MAX]).unwrap();
    let principal = Principal::new(&[1; Principal::MAX]).unwrap();
    let nlm = NlmOwner { host, opaque: owner.clone(), svid: 1 };
    let reply = Kept::Bytes(vec![1; REPLY_MAX]);
    let longest = [
        Record::Client { id: ClientId(1), owner, verifier: [1; 8], principal, sequence: 1 },
        Record::NlmLock(nlm, key, range(0, 9), Some(LockKind::Read)),
        Record::Reply(SlotReply { session: SessionId([1; 16]), slot: 0, sequence: 1, digest: 1, reply }),
    ];
    for record in longest {
        assert!(bytes(&record).len() <= RECORD_MAX);
        assert_eq!(decode_all(&bytes(&record), &FileKey::of_handle), Some(vec![record]));
    }
    assert_eq!(OwnerName::new(&[1; OwnerName::MAX + 1]), None);
}

/// A state with something of everything.
fn busy() -> Rig {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    rig.session(a, 2, "root").unwrap();
    rig.session(a, 3, "root").unwrap();
    let gone = rig.state.clients[&a].sessions[2];
    rig.call(|state, _, fx| state.destroy_session(gone, None, fx)).unwrap();
    rig.lock(a, "l", "f", LockKind::Write, range(0, 99)).unwrap();
    let lock = rig.lock(b, "l", "f", LockKind::Write, range(200, 299)).unwrap();
    rig.call(|state, now, fx| state.unlock(b, lock, &file("f"), range(250, 259), now, fx)).unwrap();
    rig.open(b, "o", "g", 1, 2).unwrap();
    let args = OpenArgs { want: Want::Any, ..open_args(a, "o", "h", 3, 0) };
    rig.call(|state, now, fx| state.open(&args, now, fx)).unwrap();
    rig.nlm("host", "f", LockKind::Read, range(300, 399), false);
    let owner = nlm_owner("host", 3);
    rig.call(|state, now, fx| {
        state.nlm_share(&owner, &file("g"), Share { access: 1, deny: 0 }, false, now, fx)
    });
    let session = rig.session_of(a);
    session.sequence(&slots::request(3, 1), rig.now).unwrap();
    rig.call(|_, now, fx| session.complete(3, b"reply", Some(Durability::Loose), now, fx));
    rig.call(|_, _, fx| session.begin_callback(fx)).unwrap();
    rig
}

#[test]
fn a_recovered_state_equals_the_one_before() {
    let mut rig = busy();
    assert_eq!(described(&rig.recovered()), described(&rig.state));
    // Twice is once.
    rig.log = [&rig.log[..], &rig.log[..]].concat();
    assert_eq!(described(&rig.recovered()), described(&rig.state));
}

/// The record of an OPEN that makes a file is in the record of the file, which may come before older records.
#[test]
fn the_newest_open_and_the_newest_delegation_count_whatever_their_order() {
    let mut rig = Rig::new();
    let client = rig.client("a");
    let first = rig.open(client, "o", "f", 1, 0).unwrap().stateid;
    rig.call(|state, now, fx| state.close(client, first, &file("f"), now, fx)).unwrap();
    let begin = rig.log.len();
    rig.open(client, "o", "f", 1, 0).unwrap();
    rig.open(client, "o", "f", 3, 0).unwrap();
    let args = OpenArgs { want: Want::Any, ..open_args(client, "o", "h", 3, 0) };
    rig.call(|state, now, fx| state.open(&args, now, fx)).unwrap();
    let before = described(&rig.state);
    let newest = rig.log.split_off(begin);
    let clients = rig.log.iter().take_while(|record| !matches!(record, Record::Open { .. })).count();
    let older = rig.log.split_off(clients);
    rig.log.extend(newest.into_iter().rev().chain(older));
    let delegation = |record: &Record| match record {
        Record::Delegation { other, seqid, client, file, write } => {
            let mut other = *other;
            other[11] -= 1;
            let (client, file) = (*client, file.clone());
            Some(Record::Delegation { other, seqid: *seqid, client, file, write: *write })
        }
        _ => None,
    };
    let earlier: Vec<_> = rig.log.iter().filter_map(delegation).collect();
    assert_eq!(earlier.len(), 1);
    rig.log.extend(earlier);
    assert_eq!(described(&rig.recovered()), before);
}

#[test]
fn a_snapshot_replaces_the_log() {
    let mut rig = busy();
    let before = described(&rig.state);
    // Leftovers of the released log may stand before it.
    let half = rig.log.len() / 2;
    let snapshot: Vec<_> = rig.state.snapshot(0).collect();
    let whole = std::mem::replace(&mut rig.log, snapshot.clone());
    assert_eq!(described(&rig.recovered()), before);
    rig.log = [&whole[half..], &snapshot[..]].concat();
    assert_eq!(described(&rig.recovered()), before);
}

#[test]
fn every_prefix_of_a_log_gives_a_sound_state() {
    let rig = busy();
    for len in 0..=rig.log.len() {
        let mut prefix = Rig::new();
        prefix.log = rig.log[..len].to_vec();
        prefix.recovered();
    }
}

#[test]
fn create_session_goes_on_after_a_snapshot() {
    let mut rig = busy();
    let a = *rig.state.clients.keys().next().unwrap();
    rig.log = rig.state.snapshot(0).collect();
    let mut after = Rig::of(rig.recovered());
    assert_eq!(after.session(a, 3, "root"), Err(Error::SeqMisordered), "its session is gone");
    after.session(a, 4, "root").unwrap();
}

#[test]
fn a_second_replay_does_not_mix_up_states_of_one_owner() {
    let mut rig = Rig::new();
    let a = rig.client("a");
    for first in [0, 100] {
        let lock = rig.lock(a, "l", "f", LockKind::Write, range(first, first + 9)).unwrap();
        if first == 0 {
            let free =
                rig.call(|state, now, fx| state.unlock(a, lock, &file("f"), range(0, 9), now, fx)).unwrap();
            rig.call(|state, now, fx| state.free_stateid(a, free, now, fx)).unwrap();
        }
        let args = OpenArgs { want: Want::Any, ..open_args(a, "o", "g", 3, 0) };
        let opened = rig.call(|state, now, fx| state.open(&args, now, fx)).unwrap();
        if first == 0 {
            let held = opened.delegation.unwrap().stateid;
            rig.call(|state, now, fx| state.return_delegation(a, held, now, fx)).unwrap();
            rig.call(|state, now, fx| state.close(a, opened.stateid, &file("g"), now, fx)).unwrap();
        }
    }
    rig.log = [&rig.log[..], &rig.log[..]].concat();
    let after = rig.recovered();
    assert_eq!(described(&after), described(&rig.state));
    assert_eq!(after.counts(), rig.state.counts());
    let found = rig.state.states.keys().filter(|other| after.states.contains_key(*other)).count();
    assert_eq!((found, after.states.len()), (rig.state.states.len(), rig.state.states.len()));
    assert_eq!(after.delegation_index.len(), 1);
}

/// Returns the reply in a snapshot of the first slot.
fn snapshot_reply(rig: &Rig, durable: u64) -> Kept {
    let reply = |record| match record {
        Record::Reply(reply) if reply.slot == 0 => Some(reply.reply),
        _ => None,
    };
    rig.state.snapshot(durable).find_map(reply).unwrap()
}

#[test]
fn a_snapshot_has_a_reply_on_its_way_if_its_change_is_durable() {
    let mut rig = Rig::new();
    let client = rig.client("a");
    let session = rig.session_of(client);
    session.sequence(&slots::request(0, 1), rig.now).unwrap();
    assert_eq!(snapshot_reply(&rig, u64::MAX), Kept::Repeatable, "the request runs");
    session.log_reply(0, b"reply", 7);
    assert_eq!(snapshot_reply(&rig, 6), Kept::Repeatable);
    assert_eq!(snapshot_reply(&rig, 7), Kept::Bytes(b"reply".to_vec()));
    session.log_reply(0, &[1; 4000], 8);
    assert_eq!(snapshot_reply(&rig, 8), Kept::Not, "the reply is too long");
    // The change did not become durable after all: the client gets a failure, and may ask again.
    rig.call(|_, now, fx| session.complete(0, b"failure", None, now, fx));
    assert_eq!(snapshot_reply(&rig, u64::MAX), Kept::Repeatable);
}
