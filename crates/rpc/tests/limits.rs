//! The limits that hostile and unlucky clients meet.
#![allow(clippy::unwrap_used, reason = "a panic in a test is the assertion")]

mod common;

use std::io::{ErrorKind, Write};
use std::time::Duration;

use common::*;
use forebay_rpc::{CloseReason, Config, Running, Stats};

const DRAIN: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_millis(200);

fn mark(len: u32, last: bool) -> [u8; 4] {
    (len | u32::from(last) << 31).to_be_bytes()
}

#[test]
fn bad_record_marking_closes_the_connection_and_no_other() {
    let (_, server) = start(two_loops());
    let mut good = Client::new(&server);
    for (bytes, reason) in [
        (mark(0x7fff_ffff, true).to_vec(), CloseReason::RecordTooLong),
        (mark(0x7fff_ffff, false).to_vec(), CloseReason::RecordTooLong),
        (mark(0, true).to_vec(), CloseReason::EmptyRecord),
        ([mark(0, false), mark(0, true)].concat(), CloseReason::EmptyRecord),
    ] {
        let before = server.counters().read().closed_for(reason);
        let mut bad = Client::new(&server);
        // The server may close before all is written.
        let _ = bad.socket.write_all(&bytes);
        assert!(bad.closed());
        await_stats(&server, "the close", |stats| stats.closed_for(reason) == before + 1);
        assert_eq!(good.call(b"estill here"), b"estill here");
    }
    server.shutdown(DRAIN);
}

#[test]
fn byte_at_a_time_fragments_are_served() {
    let (_, server) = start(two_loops());
    let mut client = Client::new(&server);
    for (at, byte) in b"eslow and tiny".iter().enumerate() {
        for byte in fragment(&[*byte], at == 13) {
            client.socket.write_all(&[byte]).unwrap();
        }
    }
    assert_eq!(client.receive(), b"eslow and tiny");
    server.shutdown(DRAIN);
}

#[test]
fn any_number_of_fragments_is_served() {
    let (_, server) = start(two_loops());
    let mut client = Client::new(&server);
    let record: Vec<u8> = std::iter::once(ECHO).chain((0..200_000u32).map(|at| at as u8)).collect();
    let bytes = record.iter().enumerate().flat_map(|(at, byte)| {
        [mark(0, false).to_vec(), fragment(&[*byte], at + 1 == record.len())].concat()
    });
    client.socket_write(&bytes.collect::<Vec<_>>());
    assert!(client.receive() == record);
    server.shutdown(DRAIN);
}

#[test]
fn claimed_lengths_cost_no_memory() {
    let (_, server) = start(two_loops());
    let clients: Vec<_> = (0..100).map(|_| Client::new(&server)).collect();
    for client in &clients {
        client.socket_write(&[&mark(1 << 20, true)[..], &[ECHO; 100]].concat());
    }
    let stats = await_stats(&server, "all that was sent", |stats| stats.bytes_in == 100 * 104);
    assert!(stats.memory <= 100 * (16 << 10), "{stats:?}");
    drop(clients);
    await_stats(&server, "no memory in use", |stats| stats.memory == 0);
    server.shutdown(DRAIN);
}

/// Sends requests until the socket and the server take no more. Returns the number of requests sent whole.
fn send_until_full(client: &Client, request: &[u8]) -> usize {
    client.socket.set_write_timeout(Some(SOON)).unwrap();
    let bytes = marked(request);
    let mut sent = 0;
    loop {
        match (&client.socket).write_all(&bytes) {
            Ok(()) => sent += 1,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return sent,
            Err(_) => return sent,
        }
    }
}

fn memory_stays_below(server: &Running, limit: u64) {
    for _ in 0..100 {
        let stats = server.counters().read();
        assert!(stats.memory <= limit, "{stats:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_client_that_never_reads_is_stopped_and_then_closed() {
    for kind in [PAYLOAD, DEFERRED_PAYLOAD, FAST_PAYLOAD] {
        let config = Config {
            conn_memory: 4 << 20,
            max_inflight: 4,
            stall_timeout: Duration::from_secs(1),
            ..two_loops()
        };
        let (_, server) = start(config);
        let client = Client::new(&server);
        let request = payload_request(kind, 1 << 20, 0);
        // Many requests in one receive are handled too.
        client.socket_write(&marked(&request).repeat(100));
        send_until_full(&client, &request);
        await_stats(&server, "a pause", |stats| stats.pauses > 0);
        // Queued, the requests in flight when the limit was met, and the requests not handled.
        memory_stays_below(&server, (4 + 5 + 1) << 20);
        await_closed(&server, CloseReason::StalledOutput);
        await_stats(&server, "no memory in use", |stats| stats.memory == 0);
        server.shutdown(DRAIN);
    }
}

#[test]
fn a_client_that_reads_late_gets_everything() {
    for kind in [PAYLOAD, DEFERRED_PAYLOAD] {
        let config = Config { conn_memory: 1 << 20, max_inflight: 4, ..two_loops() };
        let (_, server) = start(config);
        let mut client = Client::new(&server);
        // The padded request makes the sockets full before the test takes long.
        let mut request = payload_request(kind, 60_001, 3);
        request.resize(40_000, 0);
        let sent = send_until_full(&client, &request);
        assert!(sent > 0);
        for _ in 0..sent {
            assert_eq!(check_payload(&client.receive(), &request), 60_001);
        }
        server.shutdown(DRAIN);
    }
}

#[test]
fn requests_in_flight_are_bounded() {
    let (echo, server) = start(Config { max_inflight: 8, ..two_loops() });
    let mut client = Client::new(&server);
    (0..100).for_each(|_| client.send(b"gated"));
    let stats = await_stats(&server, "a pause", |stats| stats.pauses > 0);
    assert_eq!(stats.deferred, 8);
    echo.open();
    for _ in 0..100 {
        assert_eq!(client.receive(), b"gated");
    }
    server.shutdown(DRAIN);
}

#[test]
fn total_memory_is_bounded_without_deadlock() {
    const LIMIT: usize = 8 << 20;
    let (echo, server) = start(Config { memory: LIMIT, ..two_loops() });
    let clients: Vec<_> = (0..16).map(|_| Client::new(&server)).collect();
    let mut record = vec![7; 700_000];
    record[0] = GATED;
    let writers: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            let record = record.clone();
            std::thread::spawn(move || {
                for _ in 0..4 {
                    client.send(&record);
                }
                for _ in 0..4 {
                    assert!(client.receive() == record);
                }
            })
        })
        .collect();
    await_stats(&server, "memory to be short", |stats| stats.memory > (LIMIT - (3 << 20)) as u64);
    // One record beyond the limit, plus the clients' backlogs and first bytes.
    memory_stays_below(&server, (LIMIT + (2 << 20) + 16 * (256 << 10)) as u64);
    echo.open();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    await_stats(&server, "no memory in use", |stats| stats.memory == 0);
    server.shutdown(DRAIN);
}

#[test]
fn when_memory_is_short_payloads_shrink_instead_of_failing() {
    let (_, server) = start(Config { memory: 1, ..two_loops() });
    let clients: Vec<_> = (0..8).map(|_| Client::new(&server)).collect();
    let request = payload_request(PAYLOAD, 1 << 20, 0);
    for client in &clients {
        (0..32).for_each(|_| client.socket_write(&marked(&request)));
    }
    let shrunk: usize = clients
        .into_iter()
        .map(|mut client| (0..32).filter(|_| check_payload(&client.receive(), &request) < 1 << 20).count())
        .sum();
    assert!(shrunk > 0);
    server.shutdown(DRAIN);
}

#[test]
fn stalled_and_idle_connections_are_closed() {
    let (_, server) = start(Config { stall_timeout: SOON, ..two_loops() });
    let mut half_a_mark = Client::new(&server);
    half_a_mark.socket_write(&[0x80, 0]);
    let mut half_a_record = Client::new(&server);
    half_a_record.socket_write(&[&mark(100_000, true)[..], &[ECHO; 50_000]].concat());
    assert!(half_a_mark.closed() && half_a_record.closed());
    let stats = await_stats(&server, "two closed", |stats| stats.connections == 0);
    assert_eq!(stats.closed_for(CloseReason::StalledInput), 2);
    server.shutdown(DRAIN);
    let (_, server) = start(Config { idle_timeout: Some(SOON), ..two_loops() });
    assert!(Client::new(&server).closed());
    let stats = await_stats(&server, "one closed", |stats| stats.connections == 0);
    assert_eq!(stats.closed_for(CloseReason::Idle), 1);
    server.shutdown(DRAIN);
}

#[test]
fn a_waiting_client_is_not_idle() {
    let config = Config { idle_timeout: Some(SOON), stall_timeout: SOON, ..two_loops() };
    // On a busy machine, the connection may be idle for too long before the request comes.
    let asked = std::iter::repeat_with(|| {
        let (echo, server) = start(config.clone());
        let client = Client::new(&server);
        let _ = (&client.socket).write_all(&marked(b"gated"));
        let came = |stats: &Stats| stats.deferred == 1 || stats.closed_for(CloseReason::Idle) == 1;
        let stats = await_stats(&server, "the request, or the end", came);
        (stats.deferred == 1).then_some((echo, server, client))
    });
    let (echo, server, mut client) = asked.take(100).flatten().next().unwrap();
    std::thread::sleep(3 * SOON);
    echo.open();
    assert_eq!(client.receive(), b"gated");
    server.shutdown(DRAIN);
}

#[test]
fn a_full_house_refuses_or_closes_the_longest_idle() {
    let (echo, server) = start(Config { max_connections: 2, threads: 1, ..Config::default() });
    let (mut first, mut second) = (Client::new(&server), Client::new(&server));
    first.send(b"gated first");
    second.send(b"gated second");
    await_stats(&server, "requests in flight", |stats| stats.deferred == 2);
    assert!(Client::new(&server).closed(), "nobody is idle yet");
    await_closed(&server, CloseReason::Refused);
    echo.open();
    assert_eq!((first.receive(), second.receive()), (b"gated first".to_vec(), b"gated second".to_vec()));
    std::thread::sleep(Duration::from_millis(1100));
    second.call(b"ebusy");
    let mut third = Client::new(&server);
    assert_eq!(third.call(b"ethird"), b"ethird");
    assert!(first.closed());
    assert_eq!(second.call(b"estill"), b"estill");
    await_closed(&server, CloseReason::Evicted);
    server.shutdown(DRAIN);
}
