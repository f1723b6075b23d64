//! Records in, replies out, over real sockets.
#![allow(clippy::unwrap_used, reason = "a panic in a test is the assertion")]

mod common;

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::*;
use forebay_rpc::{CloseReason, Config, Handled, Message, Record, Reply, Server, Service, Ticket, batch};

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
fn shutdown_with_requests_unread_resets_nobody() {
    let (echo, server) = start(Config { max_inflight: 4, ..two_loops() });
    let mut client = Client::new(&server);
    // More than one receive takes.
    let mut large = vec![0; 300_000];
    large[0] = GATED;
    (0..8).for_each(|_| client.send(&large));
    await_stats(&server, "a pause", |stats| stats.deferred == 4 && stats.pauses > 0);
    let address = server.local_addrs()[0];
    let stopping = std::thread::spawn(move || server.shutdown(DRAIN));
    // The loop of the first client also listens: it stops both before the requests end.
    while TcpStream::connect(address).is_ok() {
        std::thread::yield_now();
    }
    echo.open();
    for _ in 0..4 {
        assert!(client.receive() == large);
    }
    assert_eq!(client.socket.read(&mut [0]).unwrap(), 0, "an orderly end, no reset");
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

#[test]
fn clients_that_come_and_go_in_the_middle_leave_nothing_behind() {
    let (echo, server) = start(two_loops());
    let addr = server.local_addrs()[0];
    let clients: Vec<_> = (0..4u32)
        .map(|seed| {
            std::thread::spawn(move || {
                for round in 0..100u32 {
                    let mut client = Client::connect(addr);
                    let kinds = [PAYLOAD, DEFERRED_PAYLOAD, ECHO, DEFERRED];
                    for tag in 0..8 {
                        let kind = kinds[(tag + seed) as usize % 4];
                        let mut request = payload_request(kind, 30_000 * tag as usize, tag);
                        request.resize(9 + 20_000 * (round as usize % 5), 1);
                        client.send(&request);
                    }
                    // Some read nothing, some a part, some cut a record off.
                    (0..round % 9).for_each(|_| drop(client.receive()));
                    if round % 2 == 0 {
                        client.socket_write(&marked(&[ECHO; 9000])[..5000 + round as usize]);
                    }
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    await_stats(&server, "nothing held", |stats| stats.connections == 0 && stats.memory == 0);
    await_stats(&server, "all closed", |stats| stats.closed.iter().sum::<u64>() == 400);
    server.shutdown(DRAIN);
    assert_eq!(echo.connected.load(SeqCst), 400);
    assert_eq!(echo.disconnected.load(SeqCst), 400);
}

/// Answers nothing until `BATCH` requests are there, then all of them together.
struct Together {
    waiting: forebay_common::lock::Mutex<Vec<(Record, Ticket)>>,
}

const BATCH: usize = 100;

impl Service for Together {
    fn handle(&self, message: Message<'_>, _: &mut Reply<'_>) -> Handled {
        let mut waiting = self.waiting.lock();
        waiting.push(message.defer());
        if waiting.len() == BATCH {
            batch(|| {
                for (record, ticket) in waiting.drain(..) {
                    let mut reply = ticket.reply();
                    reply.head().extend_from_slice(&record);
                    // A batch within a batch ends nothing.
                    batch(|| ticket.send(reply));
                }
            });
        }
        Handled::Deferred
    }
}

#[test]
fn replies_finished_together_go_out_together() {
    let service = Arc::new(Together { waiting: forebay_common::lock::Mutex::new(Vec::new()) });
    let server = Server::bind(&[([127, 0, 0, 1], 0).into()], two_loops(), service).unwrap().spawn().unwrap();
    let mut clients: Vec<_> = (0..4).map(|_| Client::new(&server)).collect();
    for round in 0..20u8 {
        for request in 0..BATCH as u8 {
            clients[request as usize % 4].send(&[round, request, 7]);
        }
        for (first, client) in (0u8..).zip(&mut clients) {
            let replies: Vec<_> = (0..BATCH / 4).map(|_| client.receive()).collect();
            let sent: Vec<_> = (first..BATCH as u8).step_by(4).map(|request| [round, request, 7]).collect();
            assert_eq!(replies, sent, "one connection's requests are handled in the order they came");
        }
    }
    assert_eq!(server.counters().read().sends, 20 * 4, "one for each connection in each batch");
    server.shutdown(DRAIN);
}
