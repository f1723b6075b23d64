//! Records in, replies out, over real sockets.

mod common;

use std::collections::HashSet;
use std::io::Write;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::*;
use forebay_rpc::{CloseReason, Config};

const DRAIN: Duration = Duration::from_secs(30);

#[test]
fn echoes_records_of_all_sizes() {
    let (_, server) = start(two_loops());
    let mut client = Client::new(&server);
    for len in [1, 3, 4, 100, 4095, 4096, 4100, 16_384, 16_385, 70_000, 262_144, 300_000, 1 << 20] {
        for kind in [ECHO, DEFERRED] {
            let mut record: Vec<u8> = (0..len).map(|at| at as u8).collect();
            record[0] = kind;
            assert!(client.call(&record) == record, "{len} bytes");
        }
    }
    server.shutdown(DRAIN);
}

#[test]
fn payloads_of_all_sizes_arrive_padded() {
    let (_, server) = start(two_loops());
    let mut client = Client::new(&server);
    for len in [0, 1, 2, 3, 4, 4096, 16_381, 16_384, 16_385, 65_537, (1 << 20) - 1, 1 << 20] {
        for kind in [PAYLOAD, DEFERRED_PAYLOAD] {
            let request = payload_request(kind, len, 7);
            assert_eq!(check_payload(&client.call(&request), &request), len);
        }
    }
    server.shutdown(DRAIN);
}

#[test]
fn many_requests_in_one_write_are_all_answered() {
    let (_, server) = start(two_loops());
    let mut client = Client::new(&server);
    let kinds = [PAYLOAD, DEFERRED_PAYLOAD];
    let requests: Vec<_> =
        (0..200u32).map(|tag| payload_request(kinds[tag as usize % 2], 4096 + tag as usize, tag)).collect();
    let bytes: Vec<u8> = requests.iter().flat_map(|request| marked(request)).collect();
    let mut writer = client.socket.try_clone().unwrap();
    let writer = std::thread::spawn(move || writer.write_all(&bytes));
    let mut missing: HashSet<_> = requests.into_iter().collect();
    while !missing.is_empty() {
        let reply = client.receive();
        let request = missing.take(&reply[..9]).unwrap();
        assert_eq!(check_payload(&reply, &request), payload_len(&request));
    }
    writer.join().unwrap().unwrap();
    server.shutdown(DRAIN);
}

#[test]
fn silent_and_dropped_requests_get_no_answer_but_are_done_with() {
    let config = Config { max_inflight: 2, ..two_loops() };
    let (_, server) = start(config);
    let mut client = Client::new(&server);
    for _ in 0..20 {
        client.send(&[SILENT]);
        client.send(&[DROPPED]);
    }
    assert_eq!(client.call(b"eonly this"), b"eonly this");
    server.shutdown(DRAIN);
}

#[test]
fn the_service_can_close_after_earlier_replies() {
    let (echo, server) = start(two_loops());
    let mut client = Client::new(&server);
    client.socket.write_all(&[marked(b"efirst"), marked(&[CLOSE])].concat()).unwrap();
    assert_eq!(client.receive(), b"efirst");
    assert!(client.closed());
    await_closed(&server, CloseReason::Service);
    server.shutdown(DRAIN);
    assert_eq!(echo.connected.load(SeqCst), 1);
    assert_eq!(echo.disconnected.load(SeqCst), 1);
}

#[test]
fn a_half_closed_client_still_gets_its_answers() {
    let (echo, server) = start(two_loops());
    let mut client = Client::new(&server);
    client.send(b"gated");
    client.send(&payload_request(PAYLOAD, 1 << 20, 0));
    client.socket.shutdown(std::net::Shutdown::Write).unwrap();
    check_payload(&client.receive(), &payload_request(PAYLOAD, 1 << 20, 0));
    echo.open();
    assert_eq!(client.receive(), b"gated");
    assert!(client.closed());
    await_closed(&server, CloseReason::PeerClosed);
    server.shutdown(DRAIN);
}

#[test]
fn shutdown_answers_what_is_in_flight() {
    let (echo, server) = start(two_loops());
    let mut client = Client::new(&server);
    for _ in 0..4 {
        client.send(b"gated");
    }
    await_stats(&server, "four in flight", |stats| stats.deferred == 4);
    let stopping = std::thread::spawn(move || server.shutdown(DRAIN));
    echo.open();
    for _ in 0..4 {
        assert_eq!(client.receive(), b"gated");
    }
    assert!(client.closed());
    stopping.join().unwrap();
}

#[test]
fn shutdown_does_not_wait_beyond_its_deadline() {
    let (echo, server) = start(two_loops());
    let mut client = Client::new(&server);
    client.send(b"gated");
    await_stats(&server, "one in flight", |stats| stats.deferred == 1);
    let counters = server.counters().clone();
    server.shutdown(Duration::from_millis(50));
    assert!(client.closed());
    assert_eq!(counters.read().closed_for(CloseReason::Shutdown), 1);
    echo.open();
}
