//! A relay between clients and a server. It can lose the server's replies, as a network does before a crash.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::Client;

/// One run of the server, as the relay's connections see it.
struct Run {
    server: SocketAddr,
    loses: AtomicBool,
    /// Pieces of replies that were lost.
    lost: AtomicU64,
}

impl Run {
    fn new(server: SocketAddr) -> Arc<Self> {
        Arc::new(Run { server, loses: AtomicBool::new(false), lost: AtomicU64::new(0) })
    }

    /// Passes requests and replies on until one side closes its connection.
    fn carry(self: Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.server) else { return };
        let (requests, replies) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || pass(requests, server, || true));
        std::thread::spawn(move || {
            pass(replies, client, || {
                let loses = self.loses.load(Ordering::SeqCst);
                self.lost.fetch_add(u64::from(loses), Ordering::SeqCst);
                !loses
            });
        });
    }
}

/// Copies what `wants` does not refuse. Closes both connections when one of them ends.
fn pass(mut from: TcpStream, mut to: TcpStream, wants: impl Fn() -> bool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if wants() && to.write_all(&buffer[..len]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// The relay. A connection belongs to the run of the server during which it was made.
pub(crate) struct Relay {
    address: SocketAddr,
    run: Arc<Mutex<Arc<Run>>>,
}

impl Relay {
    /// Starts a relay to a server.
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let run = Arc::new(Mutex::new(Run::new(server)));
        let current = run.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let run = current.lock().unwrap().clone();
                run.carry(client);
            }
        });
        Relay { address, run }
    }

    /// Returns a new connection to the server that acts as root. It closes at once while no server runs.
    pub(crate) fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Loses all further replies of this run of the server, until its connections are dead.
    pub(crate) fn lose_replies(&self) {
        self.run.lock().unwrap().loses.store(true, Ordering::SeqCst);
    }

    /// Returns how many pieces of replies of this run were lost. A short reply is one piece.
    pub(crate) fn lost(&self) -> u64 {
        self.run.lock().unwrap().lost.load(Ordering::SeqCst)
    }

    /// Connects new clients to the next run of the server.
    pub(crate) fn next_run(&self, server: SocketAddr) {
        *self.run.lock().unwrap() = Run::new(server);
    }
}
