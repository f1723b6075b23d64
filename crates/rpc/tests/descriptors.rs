//! Without free file descriptors, accepting pauses without spinning, and continues when some are free.
#![allow(clippy::unwrap_used, reason = "a panic in a test is the assertion")]

mod common;

use std::time::Duration;

use common::*;
use forebay_rpc::{CloseReason, Config};
use rustix::net::{AddressFamily, SocketType, connect, socket};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn running_out_of_descriptors_is_survived() {
    let (_, server) = start(Config { threads: 1, ..Config::default() });
    let mut busy = Client::new(&server);
    busy.call(b"ehello");
    // The clients' descriptors are taken before the limit falls, so that the server is the one to run out.
    let inet = (AddressFamily::INET, SocketType::STREAM);
    let clients: Vec<_> = (0..12).map(|_| socket(inet.0, inet.1, None).unwrap()).collect();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let old = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(open + 7), maximum: old.maximum }).unwrap();
    clients.iter().for_each(|client| connect(client, &server.local_addrs()[0]).unwrap());
    let stats = await_stats(&server, "accepting to stop", |stats| stats.connections > 6);
    assert_eq!(busy.call(b"estill"), b"estill");
    std::thread::sleep(Duration::from_millis(500));
    let later = server.counters().read();
    assert!(later.wakeups - stats.wakeups < 100, "it does not spin: {later:?}");
    // Idle connections make room one by one; the busy one stays.
    while server.counters().read().accepted < 13 {
        busy.call(b"ebusy");
    }
    assert!(server.counters().read().closed_for(CloseReason::Evicted) > 0);
    drop(clients);
    setrlimit(Resource::Nofile, old).unwrap();
    assert_eq!(Client::new(&server).call(b"eback"), b"eback");
    assert_eq!(busy.call(b"eto the end"), b"eto the end");
    server.shutdown(Duration::from_secs(30));
}
