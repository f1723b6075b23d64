//! A loop's time is shared out among addresses.
#![allow(clippy::unwrap_used, reason = "a panic in a test is the assertion")]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_rpc::{Config, Message, Outcome, Reply, Server, Service};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

const HEAVY: [u8; 4] = [127, 0, 0, 2];
const LIGHT: [u8; 4] = [127, 0, 0, 3];
const MIB: usize = 1 << 20;

/// Replies with a MiB to `h`, with nothing to `l`; to `g` only after it was told to. Notes who was served.
struct Scales {
    gate: Mutex<Receiver<()>>,
    served: Mutex<Vec<IpAddr>>,
}

impl Service for Scales {
    fn handle(&self, message: Message<'_>, reply: &mut Reply<'_>) -> Outcome {
        match message.bytes()[0] {
            b'g' => self.gate.lock().unwrap().recv().unwrap(),
            b'h' => reply.payload(MIB).set_len(MIB),
            _ => {}
        }
        self.served.lock().unwrap().push(message.peer().addr.ip());
        reply.head().extend_from_slice(&[0; 4]);
        Outcome::Reply
    }
}

fn connection(to: SocketAddr, from: [u8; 4], request: u8, count: usize) -> TcpStream {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&fd, &SocketAddr::from((from, 0))).unwrap();
    connect(&fd, &to).unwrap();
    let mut stream = TcpStream::from(fd);
    stream.write_all(&[&0x8000_0004_u32.to_be_bytes()[..], &[request; 4]].concat().repeat(count)).unwrap();
    stream
}

#[test]
fn small_requests_do_not_wait_for_all_large_ones_of_another_address() {
    let (open, gate) = channel();
    let service = Arc::new(Scales { gate: Mutex::new(gate), served: Mutex::default() });
    let config = Config { threads: 1, ..Config::default() };
    let server = Server::bind(&["127.0.0.1:0".parse().unwrap()], config, service.clone()).unwrap();
    let running = server.spawn().unwrap();
    let to = running.local_addrs()[0];
    // The loop is held up until everything that follows has arrived.
    let _first = connection(to, LIGHT, b'g', 1);
    let heavy: Vec<_> = (0..8).map(|_| connection(to, HEAVY, b'h', 32)).collect();
    let light: Vec<_> = (0..4).map(|_| connection(to, LIGHT, b'l', 8)).collect();
    open.send(()).unwrap();
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
    running.shutdown(Duration::from_secs(5));
    let served = service.served.lock().unwrap();
    assert_eq!(served.len(), 1 + 8 * 32 + 4 * 8);
    let last = served.iter().rposition(|address| *address == IpAddr::from(LIGHT)).unwrap();
    let before = served[..last].iter().filter(|address| **address == IpAddr::from(HEAVY)).count();
    // The loop may serve one large request in each round in which it takes in connections.
    assert!(before <= 2, "{before} large ones before the last small one");
}
