//! Ten thousand idle connections cost next to nothing and are all served.
#![allow(clippy::unwrap_used, reason = "a panic in a test is the assertion")]

mod common;

use std::time::Duration;

use common::*;
use forebay_rpc::Config;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors this process may open, raised as far as it may.
fn raise_descriptor_limit(wanted: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let hard = limit.maximum.map_or(wanted, |hard| hard.max(wanted));
    // Raising the hard limit takes privilege; without it the limits there are have to do.
    for maximum in [Some(hard), limit.maximum] {
        let current = maximum.map_or(wanted, |hard| hard.min(wanted));
        if setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum }).is_ok() {
            return current;
        }
    }
    limit.current.unwrap_or(wanted)
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn ten_thousand_idle_connections() {
    // Both ends of each connection live in this process.
    let descriptors = raise_descriptor_limit(20_100) as usize;
    let count = 10_000.min((descriptors - 100) / 2);
    let (_, server) = start(Config { ..two_loops() });
    let mut clients = vec![Client::new(&server)];
    clients[0].call(b"ewarm up");
    let before = resident_bytes();
    clients.extend((1..count).map(|_| Client::new(&server)));
    let connected = |connections| move |stats: &forebay_rpc::Stats| stats.connections == connections;
    let stats = await_stats(&server, "all connections", connected(count as u64));
    assert_eq!(stats.memory, 0);
    clients.iter_mut().for_each(|client| assert_eq!(client.call(b"ehello"), b"ehello"));
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < count * 2000, "{count} connections hold {grown} bytes");
    drop(clients);
    await_stats(&server, "all closed", connected(0));
    server.shutdown(Duration::from_secs(30));
}
