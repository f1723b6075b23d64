//! Connections with TLS: the whole way of records, and peers that break the protocol.
//!
//! The server gives the keys to the kernel where that has TLS. `cargo x quota` runs these tests in a guest that has it.
#![allow(clippy::unwrap_used, reason = "a panic in a test is the assertion")]

#[path = "../../tls/tests/common/authority.rs"]
#[allow(dead_code, reason = "written for several tests")]
mod authority;
mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use authority::{Authority, Pair};
use common::*;
use forebay_rpc::{CloseReason, Config, Running};
use forebay_tls::{Credentials, Keyring};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::{ClientConnection, StreamOwned};

/// Set where the kernel has TLS with every cipher. Then each connection must use it.
const KERNEL_NEEDED: &str = "FOREBAY_TEST_KERNEL_TLS";
const DRAIN: Duration = Duration::from_secs(30);

/// Returns a time in which a handshake is complete. An emulated machine needs seconds for it beside other work.
fn stall_timeout() -> Duration {
    if std::env::var_os(KERNEL_NEEDED).is_some() {
        Duration::from_secs(10)
    } else {
        Duration::from_millis(300)
    }
}

/// An authority, and a server with a certificate of it.
struct Rig {
    authority: Authority,
    echo: Arc<Echo>,
    server: Running,
}

impl Rig {
    fn new(config: Config) -> Self {
        let authority = Authority::new();
        let pair = authority.issue("server", &["server.example"]);
        let credentials = Credentials::load(&pair.certificate, &pair.key, Some(&authority.file())).unwrap();
        let config = Config { tls: Some(Arc::new(Keyring::new(Some(credentials)))), ..config };
        let (echo, server) = start(config);
        Self { authority, echo, server }
    }

    /// Returns a connection on which the handshake may begin.
    fn asked(&self) -> Client {
        let mut client = Client::new(&self.server);
        assert_eq!(client.call(&[START_TLS]), b"STARTTLS");
        client
    }

    /// Returns a connection whose handshake begins with the first bytes.
    fn secure(&self, identity: Option<&Pair>) -> Sealed {
        Sealed { stream: StreamOwned::new(self.authority.client(identity), self.asked().socket) }
    }

    /// Returns a connection that has sent and received sealed bytes.
    fn secured(&self) -> Sealed {
        let mut client = self.secure(None);
        assert_eq!(client.call(b"ehello"), b"ehello");
        self.in_kernel();
        client
    }

    /// Returns true if the kernel encrypts the connections, of which there are some. Fails if it must do so, but does
    /// not.
    fn in_kernel(&self) -> bool {
        let stats = self.server.counters().read();
        assert!(stats.encrypted > 0);
        let is_needed = std::env::var_os(KERNEL_NEEDED).is_some();
        assert!(!is_needed || stats.encrypted_in_kernel == stats.encrypted, "{stats:?}");
        stats.encrypted_in_kernel > 0
    }

    fn failures(&self) -> u64 {
        self.server.counters().read().closed_for(CloseReason::Tls)
    }
}

struct Sealed {
    stream: StreamOwned<ClientConnection, TcpStream>,
}

impl Sealed {
    fn send(&mut self, record: &[u8]) {
        self.stream.write_all(&marked(record)).unwrap();
        self.stream.flush().unwrap();
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark).unwrap();
        let mut record = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
        self.stream.read_exact(&mut record).unwrap();
        record
    }

    fn call(&mut self, record: &[u8]) -> Vec<u8> {
        self.send(record);
        self.receive()
    }

    /// Returns bytes that the client would send for these plain bytes.
    fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        self.stream.conn.set_buffer_limit(None);
        self.stream.conn.writer().write_all(plain).unwrap();
        let mut sealed = Vec::new();
        while self.stream.conn.wants_write() {
            self.stream.conn.write_tls(&mut sealed).unwrap();
        }
        sealed
    }
}

#[test]
fn records_of_every_size_and_way_pass() {
    let rig = Rig::new(two_loops());
    let mut client = rig.secured();
    for kind in [PAYLOAD, DEFERRED_PAYLOAD, FAST_PAYLOAD, SPLICED, DEFERRED_SPLICED] {
        for len in [1, 4096, 16_384, 65_536, 128 << 10, 1 << 20] {
            let request = payload_request(kind, len, 0);
            assert_eq!(check_payload(&client.call(&request), &request), len, "{}", kind as char);
        }
    }
    // Both lengths that are worth it. Only the kernel seals pages for an event loop.
    let spliced = rig.echo.source.spliced.load(SeqCst);
    assert_eq!(spliced, if rig.in_kernel() { 4 } else { 2 });
    // Large requests arrive in many sealed records.
    for len in [4097, 40_000, 300_000, 1 << 20] {
        let record: Vec<u8> = std::iter::once(ECHO).chain((1..len).map(|at| (at % 253) as u8)).collect();
        assert!(client.call(&record) == record, "{len}");
    }
    let stats = rig.server.counters().read();
    assert_eq!((stats.encrypted, stats.connections), (1, 1));
    // A plain connection is not affected.
    assert_eq!(Client::new(&rig.server).call(b"eplain"), b"eplain");
    drop(client);
    await_stats(&rig.server, "no encrypted connection", |stats| {
        stats.encrypted == 0 && stats.connections == 0 && stats.memory == 0
    });
    rig.server.shutdown(DRAIN);
}

#[test]
fn a_client_that_reads_late_gets_every_byte_in_order() {
    let rig = Rig::new(Config { threads: 1, max_inflight: 10_000, ..Config::default() });
    let mut client = rig.secured();
    let kinds = [PAYLOAD, DEFERRED_PAYLOAD, ECHO, SPLICED, FAST_PAYLOAD];
    // Many small replies, some of them with holes between the pieces, and large ones.
    let lens = [5, 400, 20_000, 3, 1, 70_000, 12, 300_000, 9, 33];
    let requests: Vec<Vec<u8>> = (0..1200u32)
        .map(|n| payload_request(kinds[n as usize % kinds.len()], lens[n as usize / 7 % lens.len()], n * 8))
        .collect();
    let all: Vec<u8> = requests.iter().flat_map(|request| marked(request)).collect();
    let sealed = client.seal(&all);
    client.stream.sock.write_all(&sealed).unwrap();
    // The server fills its socket, and goes on when the client reads.
    await_stats(&rig.server, "a full socket", |stats| stats.records > 1200 || stats.pauses > 0);
    let mut unanswered: Vec<&Vec<u8>> = requests.iter().collect();
    for _ in 0..requests.len() {
        let reply = client.receive();
        // Replies from workers may overtake others. A reply begins with its request.
        let place = unanswered.iter().position(|request| reply.starts_with(request)).unwrap();
        let request = unanswered.remove(place);
        if request[0] != ECHO {
            check_payload(&reply, request);
        }
    }
    rig.server.shutdown(DRAIN);
}

#[test]
fn many_small_pieces_survive_a_full_socket() {
    let rig = Rig::new(Config { threads: 1, ..Config::default() });
    let mut client = rig.secured();
    // A head that is longer than the one before is apart from its payload, so a sealed piece has many slices.
    let requests: Vec<Vec<u8>> = (0..20_000usize)
        .map(|n| [payload_request(PAYLOAD, 5, n as u32), vec![b'.'; n % 60 * 8]].concat())
        .collect();
    for requests in requests.chunks(5000) {
        let all: Vec<u8> = requests.iter().flat_map(|request| marked(request)).collect();
        let sealed = client.seal(&all);
        client.stream.sock.write_all(&sealed).unwrap();
    }
    await_stats(&rig.server, "all requests", |stats| stats.records > 20_000);
    for request in &requests {
        assert_eq!(check_payload(&client.receive(), request), 5);
    }
    rig.server.shutdown(DRAIN);
}

#[test]
fn the_first_call_may_come_with_the_end_of_the_handshake() {
    let rig = Rig::new(two_loops());
    let pair = rig.authority.issue("client", &["client.example"]);
    let requests: Vec<Vec<u8>> = (0..100).map(|n| [&[ECHO][..], &[n; 900]].concat()).collect();
    let mut client = rig.secure(Some(&pair));
    // rustls sends these bytes behind its last message of the handshake.
    let all: Vec<u8> = requests.iter().flat_map(|request| marked(request)).collect();
    client.stream.write_all(&all).unwrap();
    client.stream.flush().unwrap();
    for request in &requests {
        assert_eq!(client.receive(), *request);
    }
    rig.in_kernel();
    rig.server.shutdown(DRAIN);
}

#[test]
fn a_part_of_a_record_may_come_with_the_end_of_the_handshake() {
    let rig = Rig::new(two_loops());
    let mut client = rig.secure(None);
    let StreamOwned { conn, sock } = &mut client.stream;
    while conn.is_handshaking() {
        while conn.wants_write() {
            conn.write_tls(sock).unwrap();
        }
        conn.read_tls(sock).unwrap();
        conn.process_new_packets().unwrap();
    }
    // The last message of the handshake is not sent yet.
    let mut bytes = client.seal(&marked(b"efirst"));
    let rest = bytes.split_off(bytes.len() - 3);
    client.stream.sock.write_all(&bytes).unwrap();
    await_stats(&rig.server, "the end of the handshake", |stats| stats.encrypted == 1);
    rig.in_kernel();
    client.stream.sock.write_all(&rest).unwrap();
    assert_eq!(client.receive(), b"efirst");
    rig.server.shutdown(DRAIN);
}

#[test]
fn garbage_instead_of_a_handshake_is_refused_with_an_alert() {
    let rig = Rig::new(two_loops());
    for (n, garbage) in
        [&marked(b"ea plain record")[..], &[0; 5000], b"\x16\x03\x01\xff\xff", &[0x16; 70_000]]
            .iter()
            .enumerate()
    {
        let mut client = rig.asked();
        let _ = client.socket.write_all(garbage);
        let mut rest = Vec::new();
        match client.socket.read_to_end(&mut rest) {
            Ok(_) => assert_eq!(rest.first(), Some(&21), "{rest:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
        await_stats(&rig.server, "the failure", |stats| stats.closed_for(CloseReason::Tls) == n as u64 + 1);
    }
    rig.server.shutdown(DRAIN);
}

#[test]
fn a_handshake_that_stalls_is_ended() {
    let rig = Rig::new(Config { stall_timeout: stall_timeout(), ..two_loops() });
    let mut hello = Vec::new();
    rig.authority.client(None).write_tls(&mut hello).unwrap();
    let stalled: Vec<Client> = [0, 1, hello.len() / 2, hello.len()]
        .iter()
        .map(|len| {
            let client = rig.asked();
            client.socket_write(&hello[..*len]);
            client
        })
        .collect();
    let mut other = rig.secured();
    await_stats(&rig.server, "the ends", |stats| stats.closed_for(CloseReason::Tls) == 4);
    assert_eq!(other.call(b"eserved"), b"eserved");
    drop(stalled);
    rig.server.shutdown(DRAIN);
}

#[test]
fn a_handshake_without_end_is_ended() {
    let rig = Rig::new(two_loops());
    let mut client = rig.asked();
    // The first message claims to be long, and comes in ever more records.
    let mut begin = vec![0x16, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff];
    begin.resize(5 + 0x4000, 0);
    let mut refused = false;
    for _ in 0..64 {
        refused |= client.socket.write_all(&begin).is_err();
    }
    assert!(refused || client.closed());
    await_stats(&rig.server, "the end", |stats| stats.closed_for(CloseReason::Tls) == 1);
    rig.server.shutdown(DRAIN);
}

#[test]
fn half_a_sealed_record_stalls_and_a_changed_one_is_refused() {
    let rig = Rig::new(Config { stall_timeout: stall_timeout(), ..two_loops() });
    let mut half = rig.secured();
    let sealed = half.seal(&marked(b"ehalf"));
    half.stream.sock.write_all(&sealed[..sealed.len() - 1]).unwrap();
    // A part of a record waits in the kernel unseen, as a part of a segment does. It takes no memory of the server.
    if !rig.in_kernel() {
        await_stats(&rig.server, "the stall", |stats| stats.closed_for(CloseReason::StalledInput) == 1);
    }

    let mut changed = rig.secured();
    let mut sealed = changed.seal(&marked(b"echanged"));
    *sealed.last_mut().unwrap() ^= 1;
    changed.stream.sock.write_all(&sealed).unwrap();
    await_stats(&rig.server, "the refusal", |stats| stats.closed_for(CloseReason::Tls) == 1);
    rig.server.shutdown(DRAIN);
}

#[test]
fn a_sealed_record_may_arrive_byte_by_byte() {
    let rig = Rig::new(two_loops());
    let mut client = rig.secured();
    for byte in client.seal(&[marked(b"eone"), marked(b"etwo")].concat()) {
        client.stream.sock.write_all(&[byte]).unwrap();
    }
    assert_eq!((client.receive(), client.receive()), (b"eone".to_vec(), b"etwo".to_vec()));
    rig.server.shutdown(DRAIN);
}

#[test]
fn a_message_inside_the_session_that_never_ends_is_refused() {
    let rig = Rig::new(two_loops());
    let client = rig.secured();
    let mut socket = client.stream.sock.try_clone().unwrap();
    // A record that is announced longer than any record may be.
    socket.write_all(&[23, 3, 3, 0xff, 0xff]).unwrap();
    let _ = socket.write_all(&[0; 100_000]);
    await_stats(&rig.server, "the refusal", |stats| stats.closed_for(CloseReason::Tls) == 1);
    rig.server.shutdown(DRAIN);
}

#[test]
fn tls_begins_only_where_nothing_is_in_flight_and_only_once() {
    let rig = Rig::new(two_loops());
    let mut client = Client::new(&rig.server);
    client.send(b"gated");
    assert_eq!(client.call(&[START_TLS]), [START_TLS], "a plain reply is due");
    rig.echo.open();
    assert_eq!(client.receive(), b"gated");
    assert_eq!(client.call(&[START_TLS]), b"STARTTLS");
    let mut secured = rig.secured();
    assert_eq!(secured.call(&[START_TLS]), [START_TLS], "there is TLS already");
    rig.server.shutdown(DRAIN);

    let (_, plain) = start(two_loops());
    assert_eq!(Client::new(&plain).call(&[START_TLS]), [START_TLS], "the server has no certificate");
    plain.shutdown(DRAIN);
}

#[test]
fn only_a_session_that_ended_properly_has_all_replies() {
    let rig = Rig::new(two_loops());
    let ended = |count| {
        await_stats(&rig.server, "the end", |stats| stats.closed_for(CloseReason::PeerClosed) == count);
        rig.echo.received.load(SeqCst)
    };
    drop(rig.secured());
    assert_eq!(ended(1), 0, "anybody on the way may forge the end of a stream");
    let mut client = rig.secured();
    client.stream.conn.send_close_notify();
    client.stream.flush().unwrap();
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0, "the server ends the session, too");
    assert_eq!(ended(2), 1);
    // Requests before the end are answered.
    let mut client = rig.secured();
    let mut sealed = client.seal(&[marked(b"done"), marked(b"etwo")].concat());
    client.stream.conn.send_close_notify();
    sealed.extend(client.seal(&[]));
    client.stream.sock.write_all(&sealed).unwrap();
    let mut replies = [client.receive(), client.receive()];
    replies.sort();
    assert_eq!(replies, [b"done".to_vec(), b"etwo".to_vec()]);
    assert_eq!(rig.failures(), 0);
    rig.server.shutdown(DRAIN);
}

#[test]
fn every_cipher_passes_in_user_space_and_in_the_kernel() {
    let suites =
        [TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256].map(|one| [one]);
    for kernel_tls in [true, false] {
        let rig = Rig::new(Config { kernel_tls, ..two_loops() });
        for suite in &suites {
            let client = rig.authority.client_with(None, suite);
            let mut client = Sealed { stream: StreamOwned::new(client, rig.asked().socket) };
            for len in [3, 70_000, 1 << 20] {
                let request = payload_request(SPLICED, len, 8);
                assert_eq!(check_payload(&client.call(&request), &request), len);
                let record: Vec<u8> =
                    std::iter::once(ECHO).chain((1..len).map(|at| (at % 253) as u8)).collect();
                assert!(client.call(&record) == record);
            }
            if kernel_tls {
                rig.in_kernel();
            } else {
                assert_eq!(rig.server.counters().read().encrypted_in_kernel, 0);
            }
        }
        rig.server.shutdown(DRAIN);
    }
}

#[test]
fn a_client_with_new_keys_is_served_or_connects_again() {
    let rig = Rig::new(two_loops());
    let mut client = rig.secured();
    client.send(b"gated");
    await_stats(&rig.server, "the request", |stats| stats.deferred == 1);
    client.stream.conn.refresh_traffic_keys().unwrap();
    client.stream.flush().unwrap();
    let in_kernel = rig.in_kernel();
    rig.echo.open();
    assert_eq!(client.receive(), b"gated", "what was asked before is answered");
    if in_kernel {
        assert_eq!(client.stream.read(&mut [0]).unwrap(), 0, "the server ends the session");
        await_closed(&rig.server, CloseReason::KeysUsedUp);
        rig.secured();
    } else {
        assert_eq!(client.call(b"emore"), b"emore");
    }
    assert_eq!(rig.failures(), 0);
    rig.server.shutdown(DRAIN);
}

#[test]
fn a_key_of_the_kernel_sends_a_bounded_number_of_records() {
    let rig = Rig::new(Config { kernel_tls_records: 20, ..two_loops() });
    let mut client = rig.secured();
    if rig.in_kernel() {
        // The reply to the first call was one record. This one is at least 65.
        let request = payload_request(PAYLOAD, 1 << 20, 0);
        assert_eq!(check_payload(&client.call(&request), &request), 1 << 20);
        assert_eq!(client.stream.read(&mut [0]).unwrap(), 0, "the server ends the session");
        await_closed(&rig.server, CloseReason::KeysUsedUp);
        rig.secured();
    }
    rig.server.shutdown(DRAIN);
}

#[test]
fn a_client_that_fails_is_closed() {
    let rig = Rig::new(two_loops());
    let mut client = rig.secured();
    // To the client, this is a record of the server that was changed on its way.
    let mut changed = &[&[23, 3, 3, 0, 40][..], &[0; 40]].concat()[..];
    client.stream.conn.read_tls(&mut changed).unwrap();
    client.stream.conn.process_new_packets().unwrap_err();
    while client.stream.conn.wants_write() {
        client.stream.conn.write_tls(&mut client.stream.sock).unwrap();
    }
    await_stats(&rig.server, "the end", |stats| stats.closed_for(CloseReason::Tls) == 1);
    rig.server.shutdown(DRAIN);
}

#[test]
fn a_stop_ends_the_session() {
    let rig = Rig::new(two_loops());
    let mut client = rig.secured();
    rig.server.shutdown(DRAIN);
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0, "without close_notify this is an error");
}
