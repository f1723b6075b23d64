//! An unauthorised client and a hostile client with access attack the server, beside a client that measures. The
//! measuring client's verifier must not change, its requests must succeed, and the server's status must not differ.
//! The slow-down is printed for each attack and for all together: `cargo x hostile --minutes 10`.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_wire::xdr::Encode;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::harness::*;

const HOSTILE: [u8; 4] = [127, 0, 0, 2];
const STRANGER: [u8; 4] = [127, 0, 0, 3];

const RULES: &str =
    "[[export]]\npath='@/data'\nname='/'\n[[export.client]]\nnetworks=['127.0.0.1','127.0.0.2']\n";

/// Returns a connection that may be closed at any time; `None` if it cannot be made.
fn connection(to: SocketAddr, from: [u8; 4]) -> Option<TcpStream> {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
    bind(&fd, &SocketAddr::from((from, 0))).ok()?;
    connect(&fd, &to).ok()?;
    let stream = TcpStream::from(fd);
    stream.set_write_timeout(Some(Duration::from_millis(100))).ok()?;
    Some(stream)
}

/// Gives the server and the measuring client priority, because real attackers have processors of their own.
fn stand_back() {
    // SAFETY: a parameter of zeros is valid, and the call only reads it.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &std::mem::zeroed()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Keeps `count` connections that have each sent `bytes` and receive no data. Connections that the server closes are
/// replaced.
fn hold(to: SocketAddr, from: [u8; 4], count: usize, bytes: &[u8], stop: &AtomicBool) {
    stand_back();
    let mut held: Vec<Option<TcpStream>> = (0..count).map(|_| None).collect();
    while !stop.load(Ordering::Relaxed) {
        for place in &mut held {
            let alive = place.as_mut().is_some_and(|stream| {
                let unblocked = stream.set_nonblocking(true).is_ok();
                unblocked
                    && match stream.peek(&mut [0]) {
                        Ok(count) => count > 0,
                        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
                    }
            });
            if !alive {
                *place = connection(to, from);
                // The write ends when the server takes no more bytes.
                let _ = place.as_mut().map(|stream| stream.write_all(bytes));
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends `bytes` on one connection after the other.
fn flood(to: SocketAddr, from: [u8; 4], bytes: &[u8], stop: &AtomicBool) {
    stand_back();
    while !stop.load(Ordering::Relaxed) {
        let _ = connection(to, from).map(|mut stream| stream.write_all(bytes));
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn xdr(values: &[&dyn Encode]) -> Vec<u8> {
    let mut out = Vec::new();
    values.iter().for_each(|value| value.encode(&mut out));
    out
}

/// Makes calls with numbers that could overflow.
fn bad_numbers(server: &Server, name: &[u8], stop: &AtomicBool) {
    stand_back();
    let mut c = server.connect_from(HOSTILE).acting_as(user(1000, 1000, &[]));
    let root = c.root();
    let file = c.new_file(&root, name, 0o600);
    while !stop.load(Ordering::Relaxed) {
        for number in [1 << 63, u64::MAX, i64::MAX as u64, 1 << 44] {
            let unstable =
                (Procedure::Write, xdr(&[&file, &0u64, &4u32, &StableHow::Unstable, &&b"data"[..]]));
            let commit = (Procedure::Commit, xdr(&[&file, &number, &u32::MAX]));
            let write =
                (Procedure::Write, xdr(&[&file, &number, &4u32, &StableHow::Unstable, &&b"data"[..]]));
            let set = (Procedure::Setattr, xdr(&[&file, &size(number), &None::<Nfstime3>]));
            let read = (Procedure::Read, xdr(&[&file, &number, &u32::MAX]));
            let cut = (Procedure::Setattr, xdr(&[&file, &size(0), &None::<Nfstime3>]));
            for (procedure, args) in [unstable, commit, write, set, read, cut] {
                c.call((PROGRAM, VERSION, procedure as u32), &args);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The measuring client.
struct Measure {
    client: Client,
    file: FileHandle,
    verifier: [u8; 8],
}

impl Measure {
    fn new(server: &Server) -> Self {
        let mut client = server.connect().acting_as(user(2000, 2000, &[]));
        let root = client.root();
        let file = client.new_file(&root, b"measured", 0o600);
        let verifier = client.write(&file, 0, &[1; 65_536], StableHow::FileSync).unwrap().verf;
        Measure { client, file, verifier }
    }

    /// Makes at least 50 rounds for at least `time`. Returns the 50th and the 99th percentile of a round.
    fn run(&mut self, time: Duration) -> [Duration; 2] {
        let begun = Instant::now();
        let mut took = Vec::new();
        while begun.elapsed() < time || took.len() < 50 {
            let (c, file, round) = (&mut self.client, &self.file, Instant::now());
            let offset = took.len() as u64 % 16 * 4096;
            for stable in [StableHow::Unstable, StableHow::FileSync] {
                let wrote = c.write(file, offset, &[took.len() as u8; 4096], stable).unwrap();
                assert_eq!(wrote.verf, self.verifier, "the verifier changed");
            }
            assert_eq!(c.read(file, offset, 4096).unwrap().data, [took.len() as u8; 4096]);
            assert_eq!(c.attr(file).size, 65_536);
            assert_eq!(c.commit(file, 0, 0).unwrap().verf, self.verifier, "the verifier changed");
            took.push(round.elapsed());
        }
        took.sort();
        [took.len() / 2, took.len() * 99 / 100].map(|at| took[at])
    }
}

#[derive(Clone, Copy, Debug)]
enum Attack {
    /// An unauthorised client connects, sends a few bytes and disconnects.
    Strangers,
    /// A client with access connects, sends a few bytes and disconnects.
    HangsUp,
    /// A client keeps connections that have sent parts of records.
    Parts,
    /// A client asks for much data and reads no replies.
    Unread,
    /// A client asks for 64 MiB, disconnects, and connects again.
    Unwanted,
    /// A client sends numbers that could overflow.
    Numbers,
}

const ATTACKS: [Attack; 6] =
    [Attack::Strangers, Attack::HangsUp, Attack::Parts, Attack::Unread, Attack::Unwanted, Attack::Numbers];

/// The bytes that attackers send.
struct Arsenal<'a> {
    server: &'a Server,
    /// Start of a record of 1 MiB.
    part: Vec<u8>,
    /// The record without its last byte.
    most: Vec<u8>,
    /// Reads of 64 MiB in total.
    reads: Vec<u8>,
}

impl<'a> Arsenal<'a> {
    fn new(server: &'a Server) -> Self {
        let mark = (1u32 << 20 | 1 << 31).to_be_bytes();
        let mut reader = server.connect_from(HOSTILE).acting_as(user(1000, 1000, &[]));
        let root = reader.root();
        let own = reader.new_file(&root, b"read", 0o600);
        reader.write(&own, 0, &vec![1; 1 << 20], StableHow::FileSync).unwrap();
        let reads = (0..64).flat_map(|_| {
            let call = call(&mut reader, Procedure::Read, &ReadArgs { file: own, offset: 0, count: 1 << 20 });
            [&(call.len() as u32 | 1 << 31).to_be_bytes()[..], &call].concat()
        });
        Arsenal {
            server,
            part: [&mark[..], &[0; 4096]].concat(),
            most: [&mark[..], &vec![0; (1 << 20) - 1]].concat(),
            reads: reads.collect(),
        }
    }

    /// Starts the threads of an attack, which end when `stop` is set. Its files are called `name`.
    fn begin<'s>(
        &'s self,
        attack: Attack,
        name: &'s str,
        scope: &'s std::thread::Scope<'s, '_>,
        stop: &'s AtomicBool,
    ) {
        let to = self.server.address();
        let parts = [&self.part[..], &[0x80, 0, 0, 1, 0], &[0x80]];
        let held: &[(usize, &[u8])] = match attack {
            Attack::Parts => &[(80, &self.part), (20, &self.most), (400, &[0x80])],
            Attack::Unread => &[(20, &self.reads)],
            _ => &[],
        };
        let (from, sent): (_, &[&[u8]]) = match attack {
            Attack::Strangers => (STRANGER, &parts),
            Attack::HangsUp => (HOSTILE, &parts),
            Attack::Unwanted => (HOSTILE, &[&self.reads]),
            _ => (HOSTILE, &[]),
        };
        for (count, bytes) in held.iter().copied() {
            scope.spawn(move || hold(to, HOSTILE, count, bytes, stop));
        }
        for bytes in sent.iter().copied() {
            scope.spawn(move || flood(to, from, bytes, stop));
        }
        if matches!(attack, Attack::Numbers) {
            scope.spawn(move || bad_numbers(self.server, name.as_bytes(), stop));
        }
    }
}

#[test]
fn a_stranger_and_a_hostile_client_harm_nobody() {
    let seconds = std::env::var("FOREBAY_TEST_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    // The memory limit is low, so that clients compete for memory.
    let server = Serve::new()
        .exports(RULES)
        .cached()
        .flags(&["--memory", "16MiB", "--connection-memory", "8MiB", "--connections", "512"])
        .start();
    let mut measure = Measure::new(&server);
    let events = |server: &Server| {
        let events = server.ask(&["events", "--json"]);
        events.lines().filter(|line| !line.contains("client-refused")).count()
    };
    let before = events(&server);
    let arsenal = Arsenal::new(&server);
    let time = Duration::from_secs(seconds) / (ATTACKS.len() as u32 + 2);
    let alone = measure.run(time);
    eprintln!("a round of five requests, 50th and 99th percentile, and the 99th over that alone");
    eprintln!("{:12} {alone:?}", "alone");
    let each = ATTACKS.iter().map(std::slice::from_ref);
    for attacks in each.chain([&ATTACKS[..]]) {
        let name = if let [attack] = attacks { format!("{attack:?}") } else { "all".into() };
        let stop = AtomicBool::new(false);
        let beside = std::thread::scope(|scope| {
            let _stop = DoneAtEnd(&stop);
            attacks.iter().for_each(|attack| arsenal.begin(*attack, &name, scope, &stop));
            let beside = measure.run(time);
            // Another client must still be able to connect.
            server.connect().root();
            beside
        });
        eprintln!("{name:12} {beside:?} {:.2}", beside[1].as_secs_f64() / alone[1].as_secs_f64());
    }
    let status = server.status();
    assert_eq!(status["health"]["state"], "OK", "{}", status["health"]);
    assert_eq!(status["durability"]["failures"], 0);
    assert!(status["refused"]["strangers"].as_u64().unwrap() > 0);
    assert_eq!(events(&server), before, "{}", server.ask(&["events"]));
}
