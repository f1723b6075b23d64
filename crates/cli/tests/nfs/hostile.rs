//! A stranger and a hostile client with access do their worst beside a client that measures. Its verifier never changes,
//! its requests go on, and nothing that the server says of itself is different. How much slower it gets is printed:
//! `cargo x hostile --minutes 10`.

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

/// A connection that may be closed at any time; `None` if it is not even made.
fn connection(to: SocketAddr, from: [u8; 4]) -> Option<TcpStream> {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
    bind(&fd, &SocketAddr::from((from, 0))).ok()?;
    connect(&fd, &to).ok()?;
    let stream = TcpStream::from(fd);
    stream.set_write_timeout(Some(Duration::from_millis(100))).ok()?;
    Some(stream)
}

/// Keeps `count` connections that have each sent `bytes`, and makes those anew that the server closes.
fn hold(to: SocketAddr, from: [u8; 4], count: usize, bytes: &[u8], stop: &AtomicBool) {
    let mut held: Vec<Option<TcpStream>> = (0..count).map(|_| None).collect();
    while !stop.load(Ordering::Relaxed) {
        for place in &mut held {
            let alive = place.as_mut().is_some_and(|stream| {
                let mut byte = [0];
                stream.set_nonblocking(true).is_ok()
                    && matches!(stream.peek(&mut byte), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
            });
            if !alive {
                *place = connection(to, from);
                // As much as the server takes.
                let _ = place.as_mut().map(|stream| stream.write_all(bytes));
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends `bytes` on one connection after the other.
fn flood(to: SocketAddr, from: [u8; 4], bytes: &[u8], stop: &AtomicBool) {
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

/// Calls with numbers at which arithmetic goes wrong.
fn bad_numbers(server: &Server, stop: &AtomicBool) {
    let mut c = server.connect_from(HOSTILE).acting_as(user(1000, 1000, &[]));
    let root = c.root();
    let file = c.new_file(&root, b"hostile", 0o600);
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

/// The client that measures.
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

    /// Goes round for at least `time` and 50 rounds; returns the 50th and the 99th percentile of a round.
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

#[test]
fn a_stranger_and_a_hostile_client_harm_nobody() {
    let seconds = std::env::var("FOREBAY_TEST_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    // Little memory, so that it is fought for.
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
    let alone = measure.run(Duration::from_secs(seconds) / 4);
    let to = server.address();
    let mark = (1u32 << 20 | 1 << 31).to_be_bytes();
    let (part, most) = ([&mark[..], &[0; 4096]].concat(), [&mark[..], &vec![0; (1 << 20) - 1]].concat());
    let one_byte = [0x80, 0, 0, 1, 0];
    // Replies that nobody reads.
    let mut reader = server.connect_from(HOSTILE).acting_as(user(1000, 1000, &[]));
    let root = reader.root();
    let own = reader.new_file(&root, b"read", 0o600);
    reader.write(&own, 0, &vec![1; 1 << 20], StableHow::FileSync).unwrap();
    let reads: Vec<u8> = (0..64)
        .flat_map(|_| {
            let call = call(&mut reader, Procedure::Read, &ReadArgs { file: own, offset: 0, count: 1 << 20 });
            [&(call.len() as u32 | 1 << 31).to_be_bytes()[..], &call].concat()
        })
        .collect();
    let stop = AtomicBool::new(false);
    let beside = std::thread::scope(|scope| {
        let _stop = DoneAtEnd(&stop);
        let stop = &stop;
        for bytes in [&part[..], &one_byte, &[0x80]] {
            scope.spawn(move || flood(to, STRANGER, bytes, stop));
            scope.spawn(move || flood(to, HOSTILE, bytes, stop));
        }
        for (count, bytes) in [(80, &part[..]), (20, &most), (400, &[0x80]), (20, &reads)] {
            scope.spawn(move || hold(to, HOSTILE, count, bytes, stop));
        }
        let server = &server;
        scope.spawn(move || bad_numbers(server, stop));
        let beside = measure.run(Duration::from_secs(seconds));
        // Others can still come.
        let mut second = server.connect();
        second.root();
        beside
    });
    let ratio = beside[1].as_secs_f64() / alone[1].as_secs_f64();
    eprintln!(
        "a round of five requests, 50th and 99th percentile: alone {alone:?}, beside {beside:?}, ratio {ratio:.2}"
    );
    let status = server.status();
    assert_eq!(status["health"]["state"], "OK", "{}", status["health"]);
    assert_eq!(status["durability"]["failures"], 0);
    assert!(status["refused"]["strangers"].as_u64().unwrap() > 0);
    assert_eq!(events(&server), before, "{}", server.ask(&["events"]));
}
