//! Tests that a loop's time is shared out among addresses.
#![allow(clippy::unwrap_used, reason = "a panic in a test is the assertion")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use forebay_rpc::{
    Config, Counters, Handled, Message, Peer, Replies, Reply, Running, Server, Service, Stats,
};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

const HEAVY: [u8; 4] = [127, 0, 0, 2];
const LIGHT: [u8; 4] = [127, 0, 0, 3];
const MIB: usize = 1 << 20;

/// A gate that holds the loop up until the test opens it.
struct Gate {
    /// Tells the test that the loop is held up.
    entered: Sender<()>,
    open: Receiver<()>,
}

/// Replies with a MiB to `h`, with nothing to `l`, and to `g` only after the gate is open. Records the order.
struct Scales {
    gate: Mutex<Option<Gate>>,
    /// A gate that holds the loop up when the first connection of [`HEAVY`] ends.
    gate_at_end: Mutex<Option<Gate>>,
    served: Mutex<Vec<IpAddr>>,
    counters: OnceLock<Counters>,
    /// The counters when `l` was last served.
    seen: Mutex<Stats>,
}

fn pass(gate: &Mutex<Option<Gate>>) {
    if let Some(gate) = gate.lock().unwrap().take() {
        gate.entered.send(()).unwrap();
        gate.open.recv().unwrap();
    }
}

impl Service for Scales {
    fn handle(&self, message: Message<'_>, reply: &mut Reply<'_>) -> Handled {
        match message.bytes()[0] {
            b'g' => pass(&self.gate),
            b'h' => reply.payload(MIB).set_len(MIB),
            _ => *self.seen.lock().unwrap() = self.counters.get().unwrap().read(),
        }
        self.served.lock().unwrap().push(message.peer().addr.ip());
        reply.head().extend_from_slice(&[0; 4]);
        Handled::Reply
    }

    fn disconnected(&self, peer: &Peer, _: Replies) {
        if peer.addr.ip() == IpAddr::from(HEAVY) {
            pass(&self.gate_at_end);
        }
    }
}

/// A server with one loop, and a client that has its turn beside another one.
struct Scene {
    service: Arc<Scales>,
    running: Running,
    light: TcpStream,
}

impl Scene {
    fn new(config: Config) -> Self {
        let service = Arc::new(Scales {
            gate: Mutex::default(),
            gate_at_end: Mutex::default(),
            served: Mutex::default(),
            counters: OnceLock::new(),
            seen: Mutex::default(),
        });
        let config = Config { threads: 1, ..config };
        let server = Server::bind(&["127.0.0.1:0".parse().unwrap()], config, service.clone()).unwrap();
        let running = server.spawn().unwrap();
        assert!(service.counters.set(running.counters().clone()).is_ok());
        let mut light = connection(running.local_addrs()[0], LIGHT);
        call(&mut light);
        Scene { service, running, light }
    }

    fn connect(&self, from: [u8; 4]) -> TcpStream {
        connection(self.running.local_addrs()[0], from)
    }

    /// Waits until the server has received everything that was sent.
    fn wait_for(&self, so: impl Fn(&Stats) -> bool) -> Stats {
        loop {
            let stats = self.running.counters().read();
            if so(&stats) {
                return stats;
            }
            std::thread::yield_now();
        }
    }

    /// Calls `meanwhile` while the loop is held up, and has the light client send a request behind that. Returns the
    /// counters before, and the counters when the request is served.
    fn held_up(&mut self, meanwhile: impl FnOnce()) -> [Stats; 2] {
        let (gate, open, entered) = gate();
        *self.service.gate.lock().unwrap() = Some(gate);
        let mut holding = self.connect(LIGHT);
        holding.write_all(&requests(b'g', 1)).unwrap();
        entered.recv().unwrap();
        let before = self.running.counters().read();
        meanwhile();
        self.light.write_all(&requests(b'l', 1)).unwrap();
        open.send(()).unwrap();
        self.light.read_exact(&mut [0; 8]).unwrap();
        [before, self.service.seen.lock().unwrap().clone()]
    }
}

fn gate() -> (Gate, Sender<()>, Receiver<()>) {
    let ((entered, told), (open, opened)) = (channel(), channel());
    (Gate { entered, open: opened }, open, told)
}

fn connection(to: SocketAddr, from: [u8; 4]) -> TcpStream {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&fd, &SocketAddr::from((from, 0))).unwrap();
    connect(&fd, &to).unwrap();
    TcpStream::from(fd)
}

fn requests(kind: u8, count: usize) -> Vec<u8> {
    [&0x8000_0004_u32.to_be_bytes()[..], &[kind; 4]].concat().repeat(count)
}

fn call(client: &mut TcpStream) {
    client.write_all(&requests(b'l', 1)).unwrap();
    client.read_exact(&mut [0; 8]).unwrap();
}

#[test]
fn small_requests_do_not_wait_for_all_large_ones_of_another_address() {
    let mut scene = Scene::new(Config::default());
    let to = scene.running.local_addrs()[0];
    let (mut heavy, mut light) = (Vec::new(), Vec::new());
    scene.held_up(|| {
        let sent = |from, kind, count| {
            let mut stream = connection(to, from);
            stream.write_all(&requests(kind, count)).unwrap();
            stream
        };
        heavy.extend((0..8).map(|_| sent(HEAVY, b'h', 32)));
        light.extend((0..4).map(|_| sent(LIGHT, b'l', 8)));
    });
    std::thread::scope(|scope| {
        for (mut stream, bytes) in heavy.into_iter().map(|stream| (stream, 32 * (MIB + 8))) {
            scope.spawn(move || {
                assert_eq!(
                    std::io::copy(&mut (&mut stream).take(bytes as u64), &mut std::io::sink()).unwrap(),
                    bytes as u64
                )
            });
        }
        for mut stream in light {
            scope.spawn(move || stream.read_exact(&mut [0; 8 * 8]).unwrap());
        }
    });
    scene.running.shutdown(Duration::from_secs(5));
    let served = scene.service.served.lock().unwrap();
    assert_eq!(served.len(), 2 + 1 + 8 * 32 + 4 * 8);
    let last = served.iter().rposition(|address| *address == IpAddr::from(LIGHT)).unwrap();
    let before = served[..last].iter().filter(|address| **address == IpAddr::from(HEAVY)).count();
    // The loop may serve one large request in each round in which it takes in connections.
    assert!(before <= 3, "{before} large ones before the last small one");
}

/// A client is charged for its bytes when they are received, even if they never become a request.
#[test]
fn a_request_does_not_wait_for_all_parts_of_records_of_another_address() {
    let mut scene = Scene::new(Config::default());
    let heavy: Vec<_> = (0..32).map(|_| scene.connect(HEAVY)).collect();
    let part = [&0x8010_0000_u32.to_be_bytes()[..], &[b'h'; 8192]].concat();
    let arrived = scene.running.counters().read().bytes_in + (heavy.len() * part.len()) as u64;
    heavy.iter().for_each(|mut stream| stream.write_all(&part).unwrap());
    scene.wait_for(|stats| stats.bytes_in == arrived);
    // No more than a socket takes before its bytes are received.
    let more = vec![b'h'; 48 << 10];
    let [before, after] =
        scene.held_up(|| heavy.iter().for_each(|mut stream| stream.write_all(&more).unwrap()));
    let first = (after.bytes_in - before.bytes_in) as usize / more.len();
    assert!(first <= 8, "the parts of {first} records were received before the request");
    scene.running.shutdown(Duration::ZERO);
}

#[test]
fn a_request_does_not_wait_for_all_connections_that_another_address_closes() {
    let mut scene = Scene::new(Config::default());
    let heavy: Vec<_> = (0..64).map(|_| scene.connect(HEAVY)).collect();
    scene.wait_for(|stats| stats.connections == 65);
    let [before, after] = scene.held_up(|| drop(heavy));
    let closed = before.connections - after.connections;
    assert!(closed <= 8, "{closed} connections were closed before the request");
    scene.running.shutdown(Duration::from_secs(5));
}

#[test]
fn a_request_does_not_wait_for_all_connections_that_another_address_makes() {
    let mut scene = Scene::new(Config::default());
    let to = scene.running.local_addrs()[0];
    let mut heavy = Vec::new();
    let [before, after] = scene.held_up(|| heavy.extend((0..64).map(|_| connection(to, HEAVY))));
    let accepted = after.accepted - before.accepted;
    assert!(accepted <= 16, "{accepted} connections were accepted before the request");
    scene.running.shutdown(Duration::from_secs(5));
}

#[test]
fn a_request_does_not_wait_for_all_connections_that_are_overdue() {
    let stall_timeout = Duration::from_millis(50);
    let mut scene = Scene::new(Config { stall_timeout, idle_timeout: None, ..Config::default() });
    let (gate, open, entered) = gate();
    *scene.service.gate_at_end.lock().unwrap() = Some(gate);
    let heavy: Vec<_> = (0..64).map(|_| scene.connect(HEAVY)).collect();
    scene.wait_for(|stats| stats.connections == 65);
    let [before, _] =
        scene.held_up(|| heavy.iter().for_each(|mut stream| stream.write_all(&[0x80]).unwrap()));
    // The first of them is being closed.
    entered.recv().unwrap();
    scene.light.write_all(&requests(b'l', 1)).unwrap();
    open.send(()).unwrap();
    scene.light.read_exact(&mut [0; 8]).unwrap();
    let closed = before.connections - scene.service.seen.lock().unwrap().connections;
    assert!(closed <= 16, "{closed} connections were closed before the request");
    scene.running.shutdown(Duration::from_secs(5));
}
