//! Tests that the requests of a busy address wait in its sockets, and not in front of requests of other addresses.
#![allow(clippy::unwrap_used, reason = "a panic in a test is the assertion")]

mod common;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Client, await_stats};
use forebay_rpc::{Config, Contenders, Handled, Message, Record, Reply, Running, Server, Service, Ticket};
use rustix::net::sockopt::set_socket_linger;

const BUSY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const LIGHT: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const CONNECTIONS: usize = 4;
const REQUESTS: usize = 200;
/// The least bound, which is the setting as well, so the server has nothing to search for.
const BOUND: usize = 2;
/// Event loops. All but one may admit a request at the moment at which another one reaches the bound.
const LOOPS: usize = 2;

/// A disk: its queue is first in, first out, and knows no addresses. The test serves the requests. The request `keep`
/// never comes into the queue, and `now` is answered at once.
#[derive(Default)]
struct Disk {
    queue: Mutex<VecDeque<(Record, Ticket)>>,
    kept: Mutex<Vec<Ticket>>,
}

impl Disk {
    /// Returns the address of the first request after its answer.
    fn serve(&self) -> IpAddr {
        let (record, ticket) = self.queue.lock().unwrap().pop_front().unwrap();
        let (address, mut reply) = (ticket.peer().addr.ip(), ticket.reply());
        reply.head().extend_from_slice(&record);
        ticket.send(reply);
        address
    }

    /// Waits until `so` accepts the addresses of the queue.
    fn await_queue(&self, what: &str, so: impl Fn(&[IpAddr]) -> bool) -> Vec<IpAddr> {
        for _ in 0..60_000 {
            let queue: Vec<IpAddr> =
                self.queue.lock().unwrap().iter().map(|(_, ticket)| ticket.peer().addr.ip()).collect();
            if so(&queue) {
                return queue;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("waited in vain for {what}");
    }
}

impl Service for Disk {
    fn handle(&self, message: Message<'_>, reply: &mut Reply<'_>) -> Handled {
        match message.bytes() {
            b"now." => {
                reply.head().extend_from_slice(b"now.");
                return Handled::Reply;
            }
            b"keep" => self.kept.lock().unwrap().push(message.defer().1),
            _ => self.queue.lock().unwrap().push_back(message.defer()),
        }
        Handled::Deferred
    }
}

/// Two clients, of which the light one always has a request in flight.
struct Scene {
    disk: Arc<Disk>,
    /// The server of the busy client.
    running: Running,
    /// The server of the light client, if that is another one.
    other: Option<Running>,
    busy: Vec<Client>,
    light: Client,
    /// The requests of the busy client that are not served.
    sent: usize,
}

impl Scene {
    /// Has the busy client send requests until they are held back, and more than are in flight then.
    fn new(config: Config) -> Self {
        Self::with(config, false)
    }

    /// Returns a scene with one server, or with `two` servers of the same disk.
    fn with(config: Config, two: bool) -> Self {
        let disk = Arc::<Disk>::default();
        let config = Config { threads: LOOPS, shared_inflight: BOUND, ..config };
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let contenders = Contenders::default();
        let start = || {
            let mut server = Server::bind(&[address], config.clone(), disk.clone()).unwrap();
            server.contend(&contenders);
            server.spawn().unwrap()
        };
        let (running, other) = (start(), two.then(start));
        let mut light = Client::from(other.as_ref().unwrap_or(&running), LIGHT);
        light.send(b"keep");
        let mut busy: Vec<_> = (0..CONNECTIONS).map(|_| Client::from(&running, BUSY)).collect();
        let mut sent = 0;
        // The first requests come before a review has found that both clients are active.
        while running.counters().read().held_back == 0 {
            busy[0].send(b"read");
            assert_eq!(light.call(b"now."), b"now.");
            sent += 1;
            assert!(sent < 200_000, "no request is held back");
        }
        for client in &mut busy {
            (0..REQUESTS).for_each(|_| client.send(b"read"));
            sent += REQUESTS;
        }
        Self { disk, running, other, busy, light, sent }
    }

    /// Serves the requests that came before the bound.
    fn serve_first(&mut self) {
        while self.disk.queue.lock().unwrap().len() > BOUND {
            self.serve();
        }
    }

    /// Serves a request. Returns true if it is one of the light client.
    fn serve(&mut self) -> bool {
        let is_light = self.disk.serve() == IpAddr::from(LIGHT);
        self.sent -= usize::from(!is_light);
        is_light
    }
}

#[test]
fn a_request_waits_for_few_of_the_requests_of_a_busy_address_and_none_is_forgotten() {
    few_requests_come_first(false);
}

#[test]
fn a_request_waits_for_few_of_the_requests_at_another_server_of_its_disk() {
    few_requests_come_first(true);
}

#[track_caller]
fn few_requests_come_first(two: bool) {
    let config = Config { stall_timeout: Duration::from_secs(3600), ..Config::default() };
    let mut scene = Scene::with(config, two);
    scene.serve_first();
    for _ in 0..100 {
        let disk = scene.disk.clone();
        disk.await_queue("the bound", |queue| queue.len() >= BOUND);
        scene.light.send(b"read");
        let queue = disk.await_queue("the light client", |queue| queue.contains(&IpAddr::from(LIGHT)));
        let before = queue.iter().position(|address| *address == IpAddr::from(LIGHT)).unwrap();
        assert!((BOUND..BOUND + LOOPS).contains(&before), "{before}");
        (0..before).for_each(|_| assert!(!scene.serve()));
        assert!(scene.serve());
        assert_eq!(scene.light.receive(), b"read");
    }
    scene.disk.kept.lock().unwrap().clear();
    scene.disk.await_queue("a busy client alone", |queue| queue.len() > 2 * BOUND);
    while scene.sent > 0 {
        scene.disk.await_queue("a request", |queue| !queue.is_empty());
        scene.serve();
    }
    await_stats(&scene.running, "all answers", |stats| stats.deferred > 0);
    scene.running.shutdown(Duration::from_secs(5));
    scene.other.into_iter().for_each(|server| server.shutdown(Duration::from_secs(5)));
}

#[test]
fn a_busy_address_without_any_answer_gets_more_requests_in_flight() {
    let mut scene = Scene::new(Config { stall_timeout: Duration::from_millis(400), ..Config::default() });
    scene.serve_first();
    scene.disk.await_queue("more requests", |queue| queue.len() > 2 * BOUND);
    scene.running.shutdown(Duration::ZERO);
}

#[test]
fn a_connection_that_ends_while_it_waits_keeps_no_other_one_waiting() {
    let mut scene = Scene::new(Config { stall_timeout: Duration::from_secs(3600), ..Config::default() });
    scene.serve_first();
    scene.disk.await_queue("the bound", |queue| queue.len() >= BOUND);
    for client in scene.busy.drain(..CONNECTIONS - 1) {
        // The server's connection ends at once, with its unread input.
        set_socket_linger(&client.socket, Some(Duration::ZERO)).unwrap();
    }
    await_stats(&scene.running, "the ends", |stats| stats.connections == 2);
    for _ in 0..REQUESTS / 2 {
        scene.disk.await_queue("the next request", |queue| !queue.is_empty());
        scene.serve();
    }
    scene.running.shutdown(Duration::ZERO);
}
