//! Payloads that go from a file to the socket without a copy.
#![allow(clippy::unwrap_used, reason = "a panic in a test is the assertion")]

mod common;

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::*;
use forebay_rpc::{CloseReason, Config};

const DRAIN: Duration = Duration::from_secs(30);
const MIB: usize = 1 << 20;
const KINDS: [u8; 2] = [SPLICED, DEFERRED_SPLICED];

#[test]
fn what_suits_is_spliced_and_all_else_copied() {
    let (echo, server) = start(two_loops());
    let mut client = Client::new(&server);
    let cases = [
        (MIB, 0, true),
        (MIB, 4096, true),
        (MIB, 2 * MIB, true),
        (MIB - 4096, 4095, true),
        (128 << 10, 3, true),
        // A page more than a pipe holds.
        (MIB, 1, false),
        // Padding would have to follow.
        (MIB - 1, 0, false),
        // The end of the file comes first.
        (MIB, FILE - MIB + 4096, false),
        (MIB, FILE, false),
        // Not worth it.
        (64 << 10, 0, false),
    ];
    for (len, at, spliced) in cases {
        for kind in KINDS {
            let before = echo.source.spliced.load(SeqCst);
            let request = payload_request(kind, len, at as u32);
            let there = len.min(FILE - at);
            assert_eq!(check_payload(&client.call(&request), &request), there, "{len} bytes at {at}");
            assert_eq!(
                echo.source.spliced.load(SeqCst) - before,
                usize::from(spliced),
                "{len} bytes at {at}"
            );
        }
    }
    server.shutdown(DRAIN);
}

/// Returns requests of all kinds, one after another on one connection.
fn mixed(count: u32) -> Vec<Vec<u8>> {
    let kinds = [SPLICED, PAYLOAD, DEFERRED_SPLICED, SPLICED, ECHO, DEFERRED_PAYLOAD, DEFERRED_SPLICED];
    let requests = (0..count).map(|n| {
        let kind = kinds[n as usize % kinds.len()];
        payload_request(kind, (n as usize * 68_000) % MIB + 4, n * 4096)
    });
    requests.collect()
}

#[test]
fn many_in_flight_on_one_connection_arrive_whole() {
    let (echo, server) = start(two_loops());
    let mut client = Client::new(&server);
    let requests = mixed(200);
    for request in &requests {
        client.send(request);
    }
    let mut missing: std::collections::HashSet<_> = requests.into_iter().collect();
    while !missing.is_empty() {
        let reply = client.receive();
        let request = missing.take(&reply[..9]).unwrap();
        if request[0] == ECHO {
            assert_eq!(reply, request);
        } else {
            assert_eq!(check_payload(&reply, &request), payload_len(&request));
        }
    }
    assert!(echo.source.spliced.load(SeqCst) > 50);
    await_stats(&server, "no memory in use", |stats| stats.memory == 0);
    server.shutdown(DRAIN);
}

/// Asks for the whole file in pieces of 1 MiB, until at least as many replies wait as no socket takes.
fn fill_up(client: &mut Client, kind: u8, replies: usize) -> Vec<Vec<u8>> {
    let requests: Vec<_> = (0..replies).map(|n| payload_request(kind, MIB, (n % 3 * MIB) as u32)).collect();
    requests.iter().for_each(|request| client.send(request));
    requests
}

#[test]
fn a_file_cut_off_or_gone_afterwards_does_not_shorten_replies() {
    for kind in KINDS {
        let (echo, server) = start(Config { conn_memory: 256 * MIB, ..two_loops() });
        let mut client = Client::new(&server);
        let requests = fill_up(&mut client, kind, 40);
        await_stats(&server, "all to be handled", |stats| stats.records == 40 && stats.memory > 0);
        while echo.source.spliced.load(SeqCst) < 40 {
            std::thread::yield_now();
        }
        echo.source.file.set_len(0).unwrap();
        for request in &requests {
            let reply = client.receive();
            let sent = if kind == SPLICED { request } else { &requests[place(&reply)] };
            assert_eq!(check_payload(&reply, sent), MIB);
        }
        assert_eq!(client.call(b"estill here"), b"estill here");
        server.shutdown(DRAIN);
    }
}

/// Returns the number of the file's piece that a reply of [`fill_up`] has.
fn place(reply: &[u8]) -> usize {
    payload_tag(reply) as usize / MIB
}

#[test]
fn what_one_client_did_not_take_never_reaches_another() {
    for kind in KINDS {
        let (echo, server) = start(Config { conn_memory: 256 * MIB, ..two_loops() });
        let mut client = Client::new(&server);
        fill_up(&mut client, kind, 20);
        await_stats(&server, "all to be handled", |stats| stats.records == 20);
        while echo.source.spliced.load(SeqCst) < 20 {
            std::thread::yield_now();
        }
        drop(client);
        await_stats(&server, "no memory in use", |stats| stats.memory == 0);
        let mut client = Client::new(&server);
        for n in 0..40 {
            let request = payload_request(kind, 2 * MIB / 3 / 4 * 4, n * 4096);
            check_payload(&client.call(&request), &request);
        }
        server.shutdown(DRAIN);
    }
}

#[test]
fn clients_that_do_not_read_leave_copies_to_others() {
    let (echo, server) = start(Config { conn_memory: 256 * MIB, stall_timeout: DRAIN, ..two_loops() });
    let mut slow = Client::new(&server);
    // The replies beyond the socket's capacity are more than there are pipes.
    let requests = fill_up(&mut slow, SPLICED, 100);
    await_stats(&server, "all to be handled", |stats| stats.records == 100);
    let before = echo.source.spliced.load(SeqCst);
    assert!(before < 100);
    let mut quick = Client::new(&server);
    let request = payload_request(SPLICED, MIB, 0);
    assert_eq!(check_payload(&quick.call(&request), &request), MIB);
    assert_eq!(echo.source.spliced.load(SeqCst), before, "a copy");
    for request in &requests {
        assert_eq!(check_payload(&slow.receive(), request), MIB);
    }
    assert_eq!(check_payload(&quick.call(&request), &request), MIB);
    assert_eq!(echo.source.spliced.load(SeqCst), before + 1, "pipes are there again");
    server.shutdown(DRAIN);
}

#[test]
fn a_client_that_never_reads_is_stopped_and_then_closed() {
    for kind in KINDS {
        let config = Config {
            conn_memory: 4 * MIB,
            max_inflight: 4,
            stall_timeout: Duration::from_secs(1),
            ..two_loops()
        };
        let (_, server) = start(config);
        let mut client = Client::new(&server);
        fill_up(&mut client, kind, 100);
        // Queued, the requests in flight when the limit was met, and the requests not handled.
        let stats = await_stats(&server, "a pause", |stats| stats.pauses > 0);
        assert!(stats.memory <= (4 + 5 + 1) * MIB as u64, "{stats:?}");
        await_closed(&server, CloseReason::StalledOutput);
        await_stats(&server, "no memory in use", |stats| stats.memory == 0);
        server.shutdown(DRAIN);
    }
}

#[test]
fn short_of_memory_payloads_are_copied() {
    let (echo, server) = start(Config { memory: 1, max_record: 4096, ..two_loops() });
    let mut client = Client::new(&server);
    let request = payload_request(SPLICED, MIB, 0);
    assert!(check_payload(&client.call(&request), &request) < MIB);
    assert_eq!(echo.source.spliced.load(SeqCst), 0);
    server.shutdown(DRAIN);
}
