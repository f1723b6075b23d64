//! Sessions against the client of rustls, without a socket.

#![allow(clippy::unwrap_used, reason = "a panic is the assertion")]

mod common;

use std::io::{Read, Write};
use std::path::Path;

use common::{Authority, Pair, open, set_mode, shake_hands};
use forebay_tls::{Cipher, ClientSession, Credentials, CryptoInfo, Keyring, LoadError, Session};
use rustls::ClientConnection;
use rustls::crypto::ring::DEFAULT_CIPHER_SUITES;
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};

fn keyring(pair: &Pair, client_ca: Option<&Path>) -> Keyring {
    Keyring::new(Some(Credentials::load(&pair.certificate, &pair.key, client_ca).unwrap()))
}

fn connected(client: &mut ClientConnection, keyring: &Keyring) -> Session {
    let mut session = keyring.session().unwrap();
    shake_hands(client, &mut session).unwrap();
    session
}

fn flight(client: &mut ClientConnection) -> Vec<u8> {
    let mut flight = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut flight).unwrap();
    }
    flight
}

fn receive(client: &mut ClientConnection, mut sealed: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    while !sealed.is_empty() {
        client.read_tls(&mut sealed).unwrap();
        let state = client.process_new_packets().unwrap();
        let mut part = vec![0; state.plaintext_bytes_to_read()];
        client.reader().read_exact(&mut part).unwrap();
        plain.append(&mut part);
    }
    plain
}

#[test]
fn bytes_pass_in_both_directions_however_they_are_cut() {
    let authority = Authority::new();
    let keyring = keyring(&authority.issue("server", &["server.example"]), None);
    let mut client = authority.client(None);
    let mut session = connected(&mut client, &keyring);
    assert_eq!(session.identity(), None);

    let sent: Vec<u8> = (0..50_000u32).map(|n| (n % 251) as u8).collect();
    client.writer().write_all(&sent).unwrap();
    let (mut kept, mut plain, mut out) = (0, Vec::new(), Vec::new());
    for part in flight(&mut client).chunks_mut(4099) {
        let (opened, mut part) = open(&mut session, part).unwrap();
        plain.append(&mut part);
        kept = opened.kept;
        assert!(!opened.is_closed && kept < 16_700);
        // The session seals while it has a part of a record.
        let sealed = session.seal(b"meanwhile", &mut out).unwrap();
        assert_eq!(receive(&mut client, &out[..sealed]), b"meanwhile");
    }
    assert!(kept == 0 && plain == sent);

    for len in [1, 16_384, 16_385, 65_536] {
        let sealed = session.seal(&sent[..len.min(sent.len())], &mut out).unwrap();
        assert_eq!(receive(&mut client, &out[..sealed]), sent[..len.min(sent.len())]);
    }
}

#[test]
fn new_keys_and_the_end_of_a_session() {
    let authority = Authority::new();
    let keyring = keyring(&authority.issue("server", &["server.example"]), None);
    let mut client = authority.client(None);
    let mut session = connected(&mut client, &keyring);
    let mut out = Vec::new();
    for _ in 0..3 {
        // The request for new keys is answered with the next bytes.
        client.refresh_traffic_keys().unwrap();
        client.writer().write_all(b"call").unwrap();
        assert_eq!(open(&mut session, &mut flight(&mut client)).unwrap().1, b"call");
        let sealed = session.seal(b"reply", &mut out).unwrap();
        assert_eq!(receive(&mut client, &out[..sealed]), b"reply");
    }
    client.send_close_notify();
    let (opened, plain) = open(&mut session, &mut flight(&mut client)).unwrap();
    assert!(opened.is_closed && plain.is_empty());
    let sealed = session.seal(b"late", &mut out).unwrap();
    assert_eq!(receive(&mut client, &out[..sealed]), b"late");
    let farewell = session.farewell().unwrap();
    client.read_tls(&mut &farewell[..]).unwrap();
    assert!(client.process_new_packets().unwrap().peer_has_closed());
}

#[test]
fn the_kernel_gets_the_keys_between_two_records() {
    let authority = Authority::new();
    let keyring = keyring(&authority.issue("server", &["server.example"]), None);
    let suites = [
        (TLS13_AES_128_GCM_SHA256, Cipher::Aes128Gcm, 1 << 24),
        (TLS13_AES_256_GCM_SHA384, Cipher::Aes256Gcm, 1 << 24),
        (TLS13_CHACHA20_POLY1305_SHA256, Cipher::ChaCha20Poly1305, u64::MAX),
    ];
    for (suite, cipher, most) in suites {
        let mut client = authority.client_with(None, &[suite]);
        let mut session = keyring.session().unwrap();
        assert_eq!(session.cipher_for_kernel(), None, "no handshake");
        shake_hands(&mut client, &mut session).unwrap();
        assert_eq!(session.cipher_for_kernel(), Some(cipher));
        client.writer().write_all(b"call").unwrap();
        let mut record = flight(&mut client);
        let (first, rest) = record.split_at_mut(9);
        open(&mut session, first).unwrap();
        assert_eq!(session.cipher_for_kernel(), None, "a part of a record is kept");
        open(&mut session, rest).unwrap();
        assert_eq!(session.cipher_for_kernel(), Some(cipher));
        for _ in 0..3 {
            session.seal(b"reply", &mut Vec::new()).unwrap();
        }
        let keys = session.into_keys().unwrap();
        // The number of the next record is at the end: one has come, and three have gone.
        let next = |key: &CryptoInfo| u64::from_be_bytes(*key.as_bytes().last_chunk().unwrap());
        assert_eq!((next(&keys.receive), next(&keys.send)), (1, 3), "{cipher}");
        assert_ne!(keys.receive.as_bytes()[4..], keys.send.as_bytes()[4..]);
        assert_eq!(keys.records, most.saturating_sub(3));

        let mut client = authority.client_with(None, &[suite]);
        let mut session = connected(&mut client, &keyring);
        client.send_close_notify();
        open(&mut session, &mut flight(&mut client)).unwrap();
        assert_eq!(session.cipher_for_kernel(), None, "the session has ended");
        assert!(session.into_keys().is_err());
    }
}

#[test]
fn the_server_chooses_the_quickest_cipher_that_the_client_offers() {
    let authority = Authority::new();
    let keyring = keyring(&authority.issue("server", &["server.example"]), None);
    let [quick, slow, other] =
        [TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    for (offered, chosen) in [
        (&[other, slow, quick][..], Cipher::Aes128Gcm),
        (&[other, slow], Cipher::Aes256Gcm),
        (&[other], Cipher::ChaCha20Poly1305),
    ] {
        let session = connected(&mut authority.client_with(None, offered), &keyring);
        assert_eq!(session.cipher_for_kernel(), Some(chosen));
    }
}

#[test]
fn a_client_session_and_a_server_session_understand_each_other() {
    let authority = Authority::new();
    let keyring = keyring(&authority.issue("server", &["server.example"]), None);
    let mut server = keyring.session().unwrap();
    let config = authority.client_config(None, DEFAULT_CIPHER_SUITES);
    let mut client = ClientSession::connect(config, "server.example".try_into().unwrap()).unwrap();
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    client.open(&mut [], &mut Vec::new(), &mut to_server).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        server.open(&mut to_server, &mut Vec::new(), &mut to_client).unwrap();
        to_server.clear();
        client.open(&mut to_client, &mut Vec::new(), &mut to_server).unwrap();
        to_client.clear();
    }
    let sent: Vec<u8> = (0..50_000u32).map(|n| (n % 251) as u8).collect();
    let (mut out, mut plain) = (Vec::new(), Vec::new());
    let sealed = server.seal(&sent, &mut out).unwrap();
    for part in out[..sealed].chunks_mut(4099) {
        client.open(part, &mut plain, &mut to_server).unwrap();
    }
    assert!(plain == sent && to_server.is_empty());
    let sealed = client.seal(b"call", &mut out).unwrap();
    assert_eq!(open(&mut server, &mut out[..sealed]).unwrap().1, b"call");
}

#[test]
fn part_of_a_message_of_the_protocol_harms_nothing() {
    // A peer may send the beginning of a message inside the session. No client does, and rustls cannot be made to, so
    // the handshake itself is cut: its last message arrives in pieces while the server may send already.
    let authority = Authority::new();
    let keyring = keyring(&authority.issue("server", &["server.example"]), Some(&authority.file()));
    let pair = authority.issue("client", &["client.example"]);
    let mut client = authority.client(Some(&pair));
    let mut session = keyring.session().unwrap();
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    while session.is_handshaking() {
        for byte in flight(&mut client) {
            assert!(session.seal(b"early", &mut out).is_err() && session.farewell().is_none());
            let mut answer = Vec::new();
            session.open(&mut [byte], &mut plain, &mut answer).unwrap();
            let mut answer = &answer[..];
            while !answer.is_empty() {
                client.read_tls(&mut answer).unwrap();
                client.process_new_packets().unwrap();
            }
        }
    }
    assert!(session.identity().unwrap().has_name("client.example"));
}

#[test]
fn a_changed_record_and_garbage_are_refused() {
    let authority = Authority::new();
    let keyring = keyring(&authority.issue("server", &["server.example"]), None);
    let mut client = authority.client(None);
    let mut session = connected(&mut client, &keyring);
    client.writer().write_all(b"call").unwrap();
    let mut record = flight(&mut client);
    *record.last_mut().unwrap() ^= 1;
    assert!(session.open(&mut record, &mut Vec::new(), &mut Vec::new()).is_err());

    let mut session = keyring.session().unwrap();
    let mut answer = Vec::new();
    let garbage = &mut b"\x80\0\0\x28 not the first message of a handshake".to_vec();
    assert!(session.open(garbage, &mut Vec::new(), &mut answer).is_err());
    assert_eq!(answer.first(), Some(&21), "an alert: {answer:?}");
    assert!(session.seal(b"early", &mut Vec::new()).is_err() && session.farewell().is_none());
}

#[test]
fn clients_have_the_names_of_their_certificates() {
    let authority = Authority::new();
    let server = authority.issue("server", &["server.example"]);
    let keyring = keyring(&server, Some(&authority.file()));
    let one = authority.issue("one", &["one.example", "*.lab.example", "192.0.2.7"]);
    let identity = connected(&mut authority.client(Some(&one)), &keyring).identity().unwrap();
    for name in ["one.example", "ONE.example", "a.lab.example", "192.0.2.7"] {
        assert!(identity.has_name(name), "{name}");
    }
    for name in ["two.example", "lab.example", "a.b.lab.example", "192.0.2.8", "", "not a name"] {
        assert!(!identity.has_name(name), "{name}");
    }
    let two = authority.issue("two", &["two.example"]);
    let other = connected(&mut authority.client(Some(&two)), &keyring).identity().unwrap();
    assert_ne!(identity.fingerprint(), other.fingerprint());
    // No certificate is no identity, and a certificate of an unknown authority ends the handshake.
    assert_eq!(connected(&mut authority.client(None), &keyring).identity(), None);
    let foreign = Authority::new().issue("foreign", &["one.example"]);
    let mut session = keyring.session().unwrap();
    let refused = shake_hands(&mut authority.client(Some(&foreign)), &mut session).unwrap_err();
    assert!(refused.contains("fatal alert"), "{refused}");
    assert_eq!(session.identity(), None);
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let authority = Authority::new();
    let (good, other) = (authority.issue("a", &["a.example"]), authority.issue("b", &["b.example"]));
    let load = |certificate: &Path, key: &Path| Credentials::load(certificate, key, None);
    let first = load(&good.certificate, &good.key).unwrap();
    assert!(first == load(&good.certificate, &good.key).unwrap());
    assert!(first != load(&other.certificate, &other.key).unwrap());
    let with_authority = Credentials::load(&good.certificate, &good.key, Some(&authority.file())).unwrap();
    assert!(first != with_authority);

    assert!(matches!(load(&good.certificate, &other.key), Err(LoadError::Pair { .. })));
    assert!(matches!(load(Path::new("/nonexistent"), &good.key), Err(LoadError::Read { .. })));
    assert!(matches!(load(&good.key, &good.key), Err(LoadError::Contents { .. })));
    assert!(matches!(load(&good.certificate, &good.certificate), Err(LoadError::Exposed { .. })));
    for (mode, accepted) in [(0o640, true), (0o604, false), (0o602, false), (0o601, false)] {
        set_mode(&good.key, mode);
        let loaded = load(&good.certificate, &good.key);
        match loaded {
            Ok(_) => assert!(accepted, "{mode:o}"),
            Err(error) => {
                assert!(!accepted && error.to_string().contains("chmod o= "), "{error}");
            }
        }
    }
    let keyring = Keyring::default();
    assert!(keyring.is_empty() && keyring.session().is_none());
    assert!(keyring.replace(Some(first.clone())) && !keyring.replace(Some(first)));
    assert!(keyring.session().is_some() && keyring.replace(None) && keyring.is_empty());
}
