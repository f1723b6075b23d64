//! Clients at one address do not stop clients at another address.
#![allow(clippy::unwrap_used, reason = "a panic in a test is the assertion")]

mod common;

use std::io::{ErrorKind, Write};
use std::net::Ipv4Addr;
use std::time::Duration;

use common::*;
use forebay_rpc::{CloseReason, Config, Running};

const DRAIN: Duration = Duration::from_secs(30);
const GREEDY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Returns a configuration with little memory, in which no connection is closed for being slow.
fn small_and_patient() -> Config {
    let hour = Duration::from_secs(3600);
    Config { memory: 16 << 20, stall_timeout: hour, ..two_loops() }
}

/// Sends as much of `bytes` as the server and the sockets take.
fn send_some(client: &Client, bytes: &[u8]) {
    client.socket.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
    match (&client.socket).write_all(bytes) {
        Ok(()) => {}
        Err(error) => assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}"),
    }
}

/// Checks that large and small requests of a client at another address are answered. Payloads must be whole, except
/// those of requests that find the buffer of the previous payload still in flight.
fn is_served(server: &Running) {
    let mut client = Client::new(server);
    let mut record = vec![7; 700_000];
    for kind in [ECHO, DEFERRED] {
        record[0] = kind;
        for _ in 0..8 {
            assert_eq!(client.call(b"esmall"), b"esmall");
            assert!(client.call(&record) == record);
        }
    }
    for kind in [PAYLOAD, DEFERRED_PAYLOAD] {
        let request = payload_request(kind, 700_000, 0);
        let lengths: Vec<_> = (0..8).map(|_| check_payload(&client.call(&request), &request)).collect();
        assert!(lengths.contains(&700_000), "{lengths:?}");
    }
}

#[test]
fn announced_records_take_no_memory_from_another_address() {
    let (_, server) = start(small_and_patient());
    let greedy: Vec<_> = (0..80).map(|_| Client::from(&server, GREEDY)).collect();
    for client in &greedy {
        client.socket_write(&[&(1u32 << 20 | 1 << 31).to_be_bytes()[..], &[ECHO; 4096]].concat());
    }
    let stats = await_stats(&server, "all that was sent", |stats| stats.bytes_in == 80 * 4100);
    assert!(stats.memory < 8 << 20, "announced bytes count: {stats:?}");
    is_served(&server);
    drop(greedy);
    await_stats(&server, "no memory in use", |stats| stats.memory == 0);
    server.shutdown(DRAIN);
}

#[test]
fn parts_of_records_take_no_memory_from_another_address() {
    let (_, server) = start(small_and_patient());
    let greedy: Vec<_> = (0..80).map(|_| Client::from(&server, GREEDY)).collect();
    let mut part = vec![ECHO; 1 << 20];
    part[..4].copy_from_slice(&(1u32 << 20 | 1 << 31).to_be_bytes());
    part.pop();
    greedy.iter().for_each(|client| send_some(client, &part));
    await_stats(&server, "memory to be short", |stats| stats.memory > 8 << 20);
    is_served(&server);
    // The kernel does not report these ended clients while their last bytes do not fit. The stall timeout closes them.
    drop(greedy);
    is_served(&server);
    server.shutdown(DRAIN);
}

#[test]
fn replies_that_nobody_reads_take_no_memory_from_another_address() {
    for kind in [PAYLOAD, DEFERRED_PAYLOAD] {
        let (_, server) = start(small_and_patient());
        let greedy: Vec<_> = (0..40).map(|_| Client::from(&server, GREEDY)).collect();
        let request = marked(&payload_request(kind, 1 << 20, 0)).repeat(16);
        greedy.iter().for_each(|client| send_some(client, &request));
        await_stats(&server, "memory to be short", |stats| stats.memory > 8 << 20);
        is_served(&server);
        drop(greedy);
        await_stats(&server, "no memory in use", |stats| stats.memory == 0);
        server.shutdown(DRAIN);
    }
}

/// A record has to be complete within a bounded time, however steadily it continues.
#[test]
fn a_record_that_never_ends_is_closed() {
    let config = Config { stall_timeout: Duration::from_millis(200), ..two_loops() };
    let (_, server) = start(config);
    let client = Client::new(&server);
    client.socket_write(&(1u32 << 20 | 1 << 31).to_be_bytes());
    // Always enough to count as progress.
    for _ in 0..16 {
        if (&client.socket).write_all(&[ECHO; 1 << 16]).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(120));
    }
    await_closed(&server, CloseReason::StalledInput);
    server.shutdown(DRAIN);
}

#[test]
fn strangers_are_refused_at_accept_and_evict_nobody() {
    let (echo, server) = start(Config { max_connections: 2, threads: 1, ..Config::default() });
    let (mut first, mut second) = (Client::new(&server), Client::new(&server));
    first.call(b"efirst");
    second.call(b"esecond");
    // Idle for long enough to make room.
    std::thread::sleep(Duration::from_millis(1100));
    for _ in 0..20 {
        let mut stranger = Client::from(&server, STRANGER);
        // It may be closed before that.
        let _ = stranger.socket.write_all(&marked(b"estranger"));
        assert!(stranger.closed());
    }
    let stats = await_stats(&server, "refusals", |stats| stats.closed_for(CloseReason::Stranger) == 20);
    assert_eq!((stats.closed_for(CloseReason::Evicted), stats.connections, stats.records), (0, 2, 2));
    assert_eq!(echo.refused.load(std::sync::atomic::Ordering::SeqCst), 20);
    assert_eq!((first.call(b"estill"), second.call(b"estill")), (b"estill".to_vec(), b"estill".to_vec()));
    server.shutdown(DRAIN);
}

#[test]
fn parts_of_records_keep_no_other_address_out() {
    let (_, server) = start(Config { max_connections: 8, threads: 1, ..Config::default() });
    let greedy: Vec<_> = (0..8).map(|_| Client::from(&server, GREEDY)).collect();
    greedy.iter().for_each(|client| client.socket_write(&[0x80]));
    await_stats(&server, "all that was sent", |stats| stats.bytes_in == 8);
    std::thread::sleep(Duration::from_millis(1100));
    greedy.iter().for_each(|client| client.socket_write(&[0]));
    let mut client = Client::new(&server);
    assert_eq!(client.call(b"eserved"), b"eserved");
    // The client may be idle now. New connections of the address with all other places take places of that address.
    std::thread::sleep(Duration::from_millis(1100));
    let mut more: Vec<_> = (0..4).map(|_| Client::from(&server, GREEDY)).collect();
    for greedy in &mut more {
        let _ = greedy.socket.write_all(&marked(b"egreedy"));
    }
    await_stats(&server, "connections", |stats| stats.accepted == 13);
    assert_eq!(client.call(b"estill"), b"estill");
    server.shutdown(DRAIN);
}
