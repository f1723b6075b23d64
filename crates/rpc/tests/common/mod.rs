//! A service whose answers depend on the first byte of a request, and a client to talk to it.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a panic in a test is the assertion")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use forebay_rpc::{
    CloseReason, Config, Handled, Message, Peer, Record, Replies, Reply, Running, Server, Service, Stats,
    Ticket, Workers,
};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketType};

/// First bytes of requests. All but `SILENT` and `CLOSE` are answered; an echo is the request itself.
pub(crate) const ECHO: u8 = b'e';
/// An echo from a worker.
pub(crate) const DEFERRED: u8 = b'd';
/// A reply from the loop: the request as head, and a payload of the length in bytes 1..5.
pub(crate) const PAYLOAD: u8 = b'p';
/// A reply like that to `PAYLOAD`, from a worker.
pub(crate) const DEFERRED_PAYLOAD: u8 = b'q';
/// A reply like that to `PAYLOAD`, from a worker that has answered before the loop continues.
pub(crate) const FAST_PAYLOAD: u8 = b'a';
/// A reply like that to `PAYLOAD` from the loop. The payload comes from `Echo::file`, at the offset in bytes 5..9,
/// without a copy if possible.
pub(crate) const SPLICED: u8 = b'f';
/// A reply like that to `SPLICED`, from a worker.
pub(crate) const DEFERRED_SPLICED: u8 = b'h';
/// Kept by a worker until `Echo::open` is called.
pub(crate) const GATED: u8 = b'g';
/// Deferred, and its ticket dropped.
pub(crate) const DROPPED: u8 = b'x';
pub(crate) const SILENT: u8 = b's';
pub(crate) const CLOSE: u8 = b'c';
/// Begins TLS if the server may, and is an echo otherwise.
pub(crate) const START_TLS: u8 = b't';

/// The time after which a test fails that waits without success. An emulated machine may need a minute for some.
const PATIENCE: Duration = Duration::from_secs(240);

type Job = (Record, Ticket);

/// The address from which no client is served.
pub(crate) const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 99);

/// Bytes of `Echo::file`.
pub(crate) const FILE: usize = 3 << 20;

/// A file in memory, in which each byte depends on its offset.
pub(crate) struct Source {
    pub(crate) file: File,
    /// Payloads that were not copied.
    pub(crate) spliced: AtomicUsize,
}

impl Source {
    fn new() -> Arc<Self> {
        let file = File::from(memfd_create("source", MemfdFlags::CLOEXEC).unwrap());
        file.write_all_at(payload_bytes(0, FILE), 0).unwrap();
        Arc::new(Self { file, spliced: AtomicUsize::new(0) })
    }

    fn fill(&self, request: &[u8], reply: &mut Reply<'_>) {
        let (want, at) = (payload_len(request), u64::from(payload_tag(request)));
        let len = if reply.splice(self.file.as_fd(), at, want) {
            self.spliced.fetch_add(1, SeqCst);
            want
        } else {
            let payload = reply.payload(want);
            let len = self.file.read_at(payload.spare_mut(), at).unwrap();
            payload.set_len(len);
            len
        };
        reply.head().extend_from_slice(request);
        reply.head().extend_from_slice(&(len as u32).to_be_bytes());
    }
}

pub(crate) struct Echo {
    workers: Workers<Job>,
    pub(crate) source: Arc<Source>,
    gate: Arc<(forebay_common::lock::Mutex<bool>, forebay_common::lock::Condvar)>,
    pub(crate) connected: AtomicUsize,
    pub(crate) disconnected: AtomicUsize,
    pub(crate) refused: AtomicUsize,
    /// Ended connections whose peers have all replies for certain.
    pub(crate) received: AtomicUsize,
}

impl Echo {
    pub(crate) fn new() -> Arc<Self> {
        let gate = Arc::new((forebay_common::lock::Mutex::new(false), forebay_common::lock::Condvar::new()));
        let inner = Arc::clone(&gate);
        let source = Source::new();
        let from = Arc::clone(&source);
        let workers = Workers::new(8, 100_000, Duration::from_micros(20), move |(record, ticket): Job| {
            match record[0] {
                GATED => {
                    let mut open = inner.0.lock();
                    while !*open {
                        open = inner.1.wait(open);
                    }
                    drop(open);
                }
                DROPPED => return,
                _ => {}
            }
            let mut reply = ticket.reply();
            fill(&record, &mut reply, &from);
            ticket.send(reply);
        })
        .unwrap();
        let [connected, disconnected, refused, received] = std::array::from_fn(|_| AtomicUsize::new(0));
        Arc::new(Self { workers, source, gate, connected, disconnected, refused, received })
    }

    pub(crate) fn open(&self) {
        *self.gate.0.lock() = true;
        self.gate.1.notify_all();
    }
}

/// Returns the payload length that a request asks for.
pub(crate) fn payload_len(request: &[u8]) -> usize {
    u32::from_be_bytes(request[1..5].try_into().unwrap()) as usize
}

/// Returns bytes 5..9 of a request.
pub(crate) fn payload_tag(request: &[u8]) -> u32 {
    u32::from_be_bytes(request[5..9].try_into().unwrap())
}

/// Returns the `len` payload bytes from `at` on, up to 4 MiB. No byte is zero, so that padding can be recognised.
pub(crate) fn payload_bytes(at: usize, len: usize) -> &'static [u8] {
    const PERIOD: usize = 251;
    static ALL: LazyLock<Vec<u8>> =
        LazyLock::new(|| (1..=PERIOD as u8).cycle().take((4 << 20) + PERIOD).collect());
    &ALL[at % PERIOD..][..len]
}

fn fill(request: &[u8], reply: &mut Reply<'_>, source: &Source) {
    if matches!(request[0], SPLICED | DEFERRED_SPLICED) {
        source.fill(request, reply);
    } else if matches!(request[0], PAYLOAD | DEFERRED_PAYLOAD | FAST_PAYLOAD) {
        let want = payload_len(request);
        let payload = reply.payload(want);
        let spare = payload.spare_mut();
        let len = spare.len();
        spare.copy_from_slice(payload_bytes(0, len));
        payload.set_len(len);
        // The head is filled after the payload, as for READ.
        reply.head().extend_from_slice(request);
        reply.head().extend_from_slice(&(len as u32).to_be_bytes());
    } else {
        reply.head().extend_from_slice(request);
    }
}

impl Service for Echo {
    fn handle(&self, message: Message<'_>, reply: &mut Reply<'_>) -> Handled {
        match message.bytes()[0] {
            DEFERRED | DEFERRED_PAYLOAD | DEFERRED_SPLICED | GATED | DROPPED => {
                let address = message.peer().addr.ip();
                assert!(self.workers.submit(address, 0, message.defer()).is_ok(), "queue full");
                Handled::Deferred
            }
            FAST_PAYLOAD => {
                let (record, ticket) = message.defer();
                let mut reply = ticket.reply();
                fill(&record, &mut reply, &self.source);
                ticket.send(reply);
                Handled::Deferred
            }
            SILENT => Handled::Silent,
            CLOSE => Handled::Close,
            START_TLS if message.may_start_tls() => {
                reply.head().extend_from_slice(b"STARTTLS");
                Handled::StartTls
            }
            _ => {
                fill(message.bytes(), reply, &self.source);
                Handled::Reply
            }
        }
    }

    fn admits(&self, address: IpAddr) -> bool {
        address != IpAddr::from(STRANGER)
    }

    fn refused(&self, _: SocketAddr, reason: CloseReason) {
        self.refused.fetch_add(usize::from(reason == CloseReason::Stranger), SeqCst);
    }

    fn connected(&self, _: &Peer) -> bool {
        self.connected.fetch_add(1, SeqCst);
        true
    }

    fn disconnected(&self, _: &Peer, replies: Replies) {
        self.received.fetch_add(usize::from(replies == Replies::Received), SeqCst);
        self.disconnected.fetch_add(1, SeqCst);
    }
}

pub(crate) fn start(config: Config) -> (Arc<Echo>, Running) {
    let echo = Echo::new();
    let addr = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::bind(&[addr], config, Arc::clone(&echo)).unwrap();
    (echo, server.spawn().unwrap())
}

pub(crate) fn two_loops() -> Config {
    Config { threads: 2, ..Config::default() }
}

pub(crate) struct Client {
    pub(crate) socket: TcpStream,
}

impl Client {
    pub(crate) fn new(server: &Running) -> Self {
        Self::connect(server.local_addrs()[0])
    }

    pub(crate) fn connect(addr: SocketAddr) -> Self {
        let socket = TcpStream::connect(addr).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket }
    }

    /// Connects from an address of its own.
    pub(crate) fn from(server: &Running, source: Ipv4Addr) -> Self {
        let fd = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&fd, &SocketAddr::from((source, 0))).unwrap();
        rustix::net::connect(&fd, &server.local_addrs()[0]).unwrap();
        let socket = TcpStream::from(fd);
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket }
    }

    pub(crate) fn send(&mut self, record: &[u8]) {
        self.socket.write_all(&marked(record)).unwrap();
    }

    /// Writes bytes as they are.
    pub(crate) fn socket_write(&self, bytes: &[u8]) {
        (&self.socket).write_all(bytes).unwrap();
    }

    /// Returns the next reply, which has to be a single fragment.
    pub(crate) fn receive(&mut self) -> Vec<u8> {
        let mut mark = [0; 4];
        self.socket.read_exact(&mut mark).unwrap();
        let mark = u32::from_be_bytes(mark);
        assert!(mark >> 31 == 1, "one fragment");
        let mut record = vec![0; (mark & 0x7fff_ffff) as usize];
        self.socket.read_exact(&mut record).unwrap();
        record
    }

    pub(crate) fn call(&mut self, record: &[u8]) -> Vec<u8> {
        self.send(record);
        self.receive()
    }

    /// Returns true once the server has closed the connection; data sent before is skipped.
    pub(crate) fn closed(&mut self) -> bool {
        let mut rest = [0; 65536];
        loop {
            match self.socket.read(&mut rest) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}

/// Returns a record as a single fragment.
pub(crate) fn marked(record: &[u8]) -> Vec<u8> {
    fragment(record, true)
}

pub(crate) fn fragment(bytes: &[u8], last: bool) -> Vec<u8> {
    let mark = bytes.len() as u32 | u32::from(last) << 31;
    [&mark.to_be_bytes(), bytes].concat()
}

/// Returns a request for a payload of `len` bytes, marked with `tag`.
pub(crate) fn payload_request(kind: u8, len: usize, tag: u32) -> Vec<u8> {
    [&[kind][..], &(len as u32).to_be_bytes(), &tag.to_be_bytes()].concat()
}

/// Checks a reply with a payload. Returns the payload's length without padding.
pub(crate) fn check_payload(reply: &[u8], request: &[u8]) -> usize {
    let (head, rest) = reply.split_at(request.len());
    assert_eq!(head, request);
    let (count, payload) = rest.split_first_chunk::<4>().unwrap();
    let count = u32::from_be_bytes(*count) as usize;
    assert_eq!(payload.len(), count.next_multiple_of(4));
    let from =
        if matches!(request[0], SPLICED | DEFERRED_SPLICED) { payload_tag(request) as usize } else { 0 };
    assert!(payload[..count] == *payload_bytes(from, count));
    assert!(payload[count..].iter().all(|byte| *byte == 0), "padding is zero");
    count
}

/// Waits until `done` accepts the counters, which become exact only after a while.
pub(crate) fn await_stats(server: &Running, what: &str, done: impl Fn(&Stats) -> bool) -> Stats {
    let start = Instant::now();
    loop {
        let stats = server.counters().read();
        if done(&stats) {
            return stats;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}: {stats:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn await_closed(server: &Running, reason: CloseReason) {
    await_stats(server, reason.as_str(), |stats| stats.closed_for(reason) > 0);
}
