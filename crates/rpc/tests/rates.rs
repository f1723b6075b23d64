//! Tests of limits on the rate of each client address. The limited client could have everything only after an hour.
#![allow(clippy::unwrap_used, reason = "a panic in a test is the assertion")]

mod common;

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use forebay_rpc::{RateLimit, Running};

const DRAIN: Duration = Duration::from_secs(30);
const LIMITED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const REQUESTS: usize = 4000;

/// Limits the rate of [`LIMITED`].
fn limit(server: &Running, requests: u64, bytes: u64, burst: Duration) -> Arc<RateLimit> {
    let limit = Arc::new(RateLimit::new(NonZeroU64::new(requests), NonZeroU64::new(bytes), burst));
    let found = limit.clone();
    server
        .counters()
        .limit_rates(Box::new(move |address| (address == IpAddr::from(LIMITED)).then(|| found.clone())));
    limit
}

/// Waits until a connection of the limited client was delayed.
fn await_delay(limit: &RateLimit) {
    while limit.delays() == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_client_beyond_its_rate_waits_and_no_other_does_until_the_limit_is_lifted() {
    for request in [b"e".to_vec(), b"deferred".to_vec(), payload_request(DEFERRED_PAYLOAD, 10_000, 0)] {
        let (_, server) = start(two_loops());
        let limit = limit(&server, 1, 0, Duration::from_secs(10));
        // Two connections on each loop: they share the rate of their address.
        let mut limited: Vec<_> = (0..4).map(|_| Client::from(&server, LIMITED)).collect();
        let mut others: Vec<_> = (0..4).map(|_| Client::from(&server, OTHER)).collect();
        let sender = limited.iter().map(|client| client.socket.try_clone().unwrap()).collect::<Vec<_>>();
        let bytes = marked(&request).repeat(REQUESTS / 4);
        let senders: Vec<_> = sender
            .into_iter()
            .map(|mut socket| {
                let bytes = bytes.clone();
                std::thread::spawn(move || std::io::Write::write_all(&mut socket, &bytes).unwrap())
            })
            .collect();
        await_delay(&limit);
        for _ in 0..100 {
            others.iter_mut().for_each(|other| assert_eq!(other.call(b"e"), b"e"));
        }
        let handled = server.counters().read().records - 400;
        assert!(handled < REQUESTS as u64 / 2, "{handled}");
        server.counters().limit_rates(Box::new(|_| None));
        for client in &mut limited {
            for _ in 0..REQUESTS / 4 {
                client.receive();
            }
        }
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        server.shutdown(DRAIN);
    }
}

#[test]
fn bytes_of_requests_and_replies_count() {
    let large = [&[ECHO][..], &[1; 100_000]].concat();
    for request in
        [large, payload_request(PAYLOAD, 100_000, 0), payload_request(DEFERRED_PAYLOAD, 100_000, 0)]
    {
        let (_, server) = start(two_loops());
        let limit = limit(&server, 0, 1000, Duration::from_secs(100));
        let mut client = Client::from(&server, LIMITED);
        // The first request uses the whole burst, and the second one has to wait.
        client.call(&request);
        client.send(&request);
        client.send(&request);
        await_delay(&limit);
        assert!(server.counters().read().records < 3);
        server.shutdown(DRAIN);
    }
}

#[test]
fn a_client_that_waits_for_its_rate_may_go_and_does_not_hold_up_a_stop() {
    let (_, server) = start(two_loops());
    let limit = limit(&server, 1, 0, Duration::ZERO);
    let clients: Vec<_> = (0..2).map(|_| Client::from(&server, LIMITED)).collect();
    clients.iter().for_each(|client| client.socket_write(&marked(b"e").repeat(100)));
    await_delay(&limit);
    drop(clients);
    let waiting = Client::from(&server, LIMITED);
    waiting.socket_write(&marked(b"e").repeat(100));
    server.shutdown(DRAIN);
}
