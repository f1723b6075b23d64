//! Messages of the small programs byte by byte: NLM, NSM, NFSACL and rpcbind. The expected bytes are written from the
//! XDR of the specifications.

use std::fmt::Debug;

use crate::array::{Array, Opaque};
use crate::nfs3::FileHandle;
use crate::rpc::{MessageKind, message_kind};
use crate::rpcbind::{self, Rpcb};
use crate::xdr::{Decode, DecodeError, Encode, Reader};
use crate::{nfsacl3, nlm4, nsm};

/// Asserts the encoding of `value` in both directions. A piece of `pieces` is a word or bytes with padding.
fn layout<'a, T: Encode + Decode<'a> + PartialEq + Debug>(value: &T, pieces: &[&[u8]]) {
    let expected: &'a [u8] = pieces.concat().leak();
    let mut out = Vec::new();
    value.encode(&mut out);
    assert_eq!(out, expected);
    assert_eq!(&T::decode(&mut Reader::new(expected)).unwrap(), value);
}

macro_rules! words {
    ($($word:expr),*) => { &[$(($word as u32).to_be_bytes()),*].concat()[..] };
}

const LOCK: nlm4::Lock<'static> = nlm4::Lock {
    caller_name: Opaque(b"host"),
    fh: Opaque(b"handle"),
    oh: Opaque(b"own"),
    svid: -2,
    offset: 1 << 32,
    length: 9,
};

const LOCK_BYTES: [&[u8]; 4] = [
    b"\0\0\0\x04host",
    b"\0\0\0\x06handle\0\0",
    b"\0\0\0\x03own\0",
    b"\xff\xff\xff\xfe\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\x09",
];

#[test]
fn nlm_arguments() {
    let lock = LOCK_BYTES.concat();
    let cookie = Opaque(b"cook".as_slice());
    let cookie_bytes = b"\0\0\0\x04cook".as_slice();
    let args = nlm4::LockArgs { cookie, block: true, exclusive: false, alock: LOCK, reclaim: true, state: 5 };
    layout(&args, &[cookie_bytes, words![1, 0], &lock, words![1, 5]]);
    let args = nlm4::TestArgs { cookie, exclusive: true, alock: LOCK };
    layout(&args, &[cookie_bytes, words![1], &lock]);
    let args = nlm4::CancelArgs { cookie, block: false, exclusive: true, alock: LOCK };
    layout(&args, &[cookie_bytes, words![0, 1], &lock]);
    layout(&nlm4::UnlockArgs { cookie, alock: LOCK }, &[cookie_bytes, &lock]);
    let share = nlm4::Share {
        caller_name: LOCK.caller_name,
        fh: LOCK.fh,
        oh: LOCK.oh,
        mode: nlm4::ShareMode::Write,
        access: nlm4::ShareAccess::ReadWrite,
    };
    let args = nlm4::ShareArgs { cookie, share, reclaim: false };
    layout(&args, &[cookie_bytes, LOCK_BYTES[0], LOCK_BYTES[1], LOCK_BYTES[2], words![2, 3, 0]]);
    layout(&nlm4::Notify { name: Opaque(b"host"), state: 7 }, &[LOCK_BYTES[0], words![7]]);
}

#[test]
fn nlm_results() {
    let cookie = Opaque(b"".as_slice());
    layout(&nlm4::Res { cookie, stat: nlm4::Stats::Blocked }, &[words![0, 3]]);
    let stat = nlm4::TestReply::Granted;
    layout(&nlm4::TestRes { cookie, stat }, &[words![0, 0]]);
    let holder = nlm4::Holder { exclusive: true, svid: 4, oh: Opaque(b"own"), offset: 2, length: 0 };
    let stat = nlm4::TestReply::Denied(holder);
    layout(&nlm4::TestRes { cookie, stat }, &[words![0, 1, 1, 4], LOCK_BYTES[2], words![0, 2, 0, 0]]);
    let res = nlm4::ShareRes { cookie, stat: nlm4::Stats::DeniedGracePeriod, sequence: 0 };
    layout(&res, &[words![0, 4, 0]]);
}

#[test]
fn nlm_messages_have_answers() {
    let numbers = (0..30).filter(|&number| nlm4::Procedure::try_from(number).is_ok());
    assert_eq!(numbers.collect::<Vec<_>>(), (0..=16).chain(20..=23).collect::<Vec<_>>());
    for number in 0..30 {
        let Ok(procedure) = nlm4::Procedure::try_from(number) else { continue };
        let answer = (6..=10).contains(&number).then_some(number + 5);
        assert_eq!(procedure.answer().map(|answer| answer as u32), answer);
    }
}

#[test]
fn nlm_strings_are_bounded() {
    let long = [b"\0\0\x04\x01".as_slice(), &[0; 1028]].concat();
    let error = DecodeError::TooLong { length: 1025, max: 1024 };
    assert_eq!(nlm4::Netobj::decode(&mut Reader::new(&long)), Err(error));
    assert_eq!(nsm::Name::decode(&mut Reader::new(&long)), Err(error));
}

#[test]
fn nsm_messages() {
    let name = Opaque(b"peer".as_slice());
    let name_bytes = b"\0\0\0\x04peer".as_slice();
    let my_id = nsm::MyId { my_name: Opaque(b"me"), my_prog: 100_021, my_vers: 4, my_proc: 16 };
    let my_id_bytes = [b"\0\0\0\x02me\0\0".as_slice(), words![100_021, 4, 16]].concat();
    let mon_id = nsm::MonId { mon_name: name, my_id };
    layout(&nsm::Name { mon_name: name }, &[name_bytes]);
    layout(&my_id, &[&my_id_bytes]);
    layout(&mon_id, &[name_bytes, &my_id_bytes]);
    let private = *b"0123456789abcdef";
    layout(&nsm::Mon { mon_id, private }, &[name_bytes, &my_id_bytes, &private]);
    layout(&nsm::StatChange { mon_name: name, state: 3 }, &[name_bytes, words![3]]);
    layout(&nsm::State { state: 3 }, &[words![3]]);
    layout(&nsm::StatRes { outcome: nsm::Outcome::Failure, state: 3 }, &[words![1, 3]]);
    layout(&nsm::Status { mon_name: name, state: 3, private }, &[name_bytes, words![3], &private]);
}

#[test]
fn nfsacl_messages() {
    let fh = FileHandle::new(b"abc").unwrap();
    let fh_bytes = b"\0\0\0\x03abc\0".as_slice();
    layout(&nfsacl3::GetaclArgs { fh, mask: nfsacl3::mask::ALL }, &[fh_bytes, words![15]]);
    let entry = |tag, perm| nfsacl3::Entry { tag, id: 0, perm };
    let mut buffer = Vec::new();
    let entries = [entry(0x01, 6), entry(0x20, 4)];
    let acl = nfsacl3::Secattr {
        mask: 3,
        acl_count: 2,
        acl: Array::encoded(&mut buffer, &entries).unwrap(),
        default_count: 0,
        default: Array::EMPTY,
    };
    let acl_bytes = words![3, 2, 2, 1, 0, 6, 0x20, 0, 4, 0, 0];
    assert_eq!(acl.acl.iter().collect::<Vec<_>>(), entries);
    layout(&nfsacl3::SetaclArgs { fh, acl }, &[fh_bytes, acl_bytes]);
    let res: nfsacl3::GetaclRes<'_> = Ok(nfsacl3::GetaclOk { attributes: None, acl });
    layout(&res, &[words![0, 0], acl_bytes]);
    let res: nfsacl3::SetaclRes = Ok(None);
    layout(&res, &[words![0, 0]]);
    let many = words![15, 1025, 1025];
    let error = nfsacl3::Secattr::decode(&mut Reader::new(many)).unwrap_err();
    assert_eq!(error, DecodeError::TooLong { length: 1025, max: 1024 });
}

#[test]
fn rpcbind_messages() {
    let rpcb = Rpcb {
        prog: 100_003,
        vers: 4,
        netid: Opaque(b"tcp"),
        addr: Opaque(b"0.0.0.0.8.1"),
        owner: Opaque(b"superuser"),
    };
    let texts = b"\0\0\0\x03tcp\0\0\0\0\x0b0.0.0.0.8.1\0\0\0\0\x09superuser\0\0\0".as_slice();
    layout(&rpcb, &[words![100_003, 4], texts]);
    layout(&crate::xdr::List(vec![rpcb]), &[words![1, 100_003, 4], texts, words![0]]);
}

#[test]
fn universal_addresses() {
    for (address, netid, text) in [
        ("127.0.0.1:2049", "tcp", "127.0.0.1.8.1"),
        ("0.0.0.0:111", "tcp", "0.0.0.0.0.111"),
        ("[::]:2049", "tcp6", "::.8.1"),
        ("[fe80::1]:65535", "tcp6", "fe80::1.255.255"),
    ] {
        let address = address.parse().unwrap();
        assert_eq!(rpcbind::universal(&address), text);
        assert_eq!(rpcbind::parse_universal(text.as_bytes()), Some(address));
        assert_eq!(rpcbind::netid(&address, false), netid);
        assert_eq!(rpcbind::netid(&address, true), netid.replace("tcp", "udp"));
    }
    for bad in ["", "1", "1.2", "127.0.0.1.8", "127.0.0.1.8.256", "127.0.0.1.+8.1", "127.0.0.1.8.", "a.8.1"] {
        assert_eq!(rpcbind::parse_universal(bad.as_bytes()), None, "{bad}");
    }
    assert_eq!(rpcbind::parse_universal(b"\xff.8.1"), None);
}

#[test]
fn calls_and_replies_are_told_apart() {
    assert_eq!(message_kind(words![9, 0, 2]), Ok((9, MessageKind::Call)));
    assert_eq!(message_kind(words![9, 1]), Ok((9, MessageKind::Reply)));
    assert!(message_kind(words![9, 2]).is_err());
    assert!(message_kind(&[0; 7]).is_err());
}
