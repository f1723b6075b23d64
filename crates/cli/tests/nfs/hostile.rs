//! An unauthorised client and a hostile client with access attack the server, beside a client that measures. The
//! measuring client's verifier must not change, its requests must succeed, and the server's status must not differ.
//! The slow-down is printed for each attack and for all together: `cargo x hostile --minutes 10`. In the controls that
//! follow, the attackers meet a bare loop of accept(2) and close(2): that part of the harm is the kernel's.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_wire::xdr::Encode;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

use crate::harness::*;

const HOSTILE: [u8; 4] = [127, 0, 0, 2];
const STRANGER: [u8; 4] = [127, 0, 0, 3];
/// A hostile client whose connections are not refused because its address has too many of them already.
const ANOTHER: [u8; 4] = [127, 0, 0, 4];

const RULES: &str = "[[export]]\npath='@/data'\nname='/'\n[[export.client]]\nnetworks=['127.0.0.1','127.0.0.2','127.0.0.4']\n";

/// Returns a connection that may be closed at any time; `None` if it cannot be made.
fn connection(to: SocketAddr, from: [u8; 4]) -> Option<TcpStream> {
    let fd = socket(AddressFamily::INET, SocketType::STREAM, None).ok()?;
    choose_port_late(&fd);
    bind(&fd, &SocketAddr::from((from, 0))).ok()?;
    connect(&fd, &to).ok()?;
    let stream = TcpStream::from(fd);
    stream.set_write_timeout(Some(Duration::from_millis(100))).ok()?;
    Some(stream)
}

/// Has connect(2) choose the port and not bind(2), which looks through all ports once half of them were used in the
/// last minute: that takes milliseconds of this host's processors, as no attack from elsewhere does.
fn choose_port_late(fd: &OwnedFd) {
    let (one, len): (libc::c_int, _) = (1, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the option is an int, which this call only reads.
    let result = unsafe {
        let option = (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT);
        libc::setsockopt(fd.as_raw_fd(), option.0, option.1, (&raw const one).cast(), len)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Gives the server and the measuring client priority, because real attackers have processors of their own.
fn stand_back() {
    // SAFETY: all zeros are a valid parameter, which this call only reads.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &std::mem::zeroed()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// The state that the threads of an attack and the measuring client share.
#[derive(Default)]
struct Fight {
    stop: AtomicBool,
    /// Threads of the attack.
    attackers: AtomicUsize,
    /// Of these, the ones that have done their worst at least once.
    begun: AtomicUsize,
    /// A thread of the attack has failed: the test ends.
    failed: AtomicBool,
}

impl Fight {
    /// Starts a thread of the attack.
    fn begin<'s>(&'s self, scope: &'s std::thread::Scope<'s, '_>, attack: impl FnOnce() + Send + 's) {
        /// Notes that the thread panics.
        struct Alarm<'a>(&'a AtomicBool);
        impl Drop for Alarm<'_> {
            fn drop(&mut self) {
                self.0.fetch_or(std::thread::panicking(), Ordering::Relaxed);
            }
        }
        self.attackers.fetch_add(1, Ordering::Relaxed);
        scope.spawn(move || {
            let _alarm = Alarm(&self.failed);
            attack();
        });
    }

    /// Calls `act` again and again, at least once, until the fight ends.
    fn attack(&self, pause: Duration, mut act: impl FnMut()) {
        act();
        self.begun.fetch_add(1, Ordering::Relaxed);
        while !self.stop.load(Ordering::Relaxed) {
            std::thread::sleep(pause);
            act();
        }
    }

    /// Returns whether every thread of the attack has had its turn: on a busy machine that may take a while.
    fn has_begun(&self) -> bool {
        let begun = self.begun.load(Ordering::Relaxed) == self.attackers.load(Ordering::Relaxed);
        begun || self.failed.load(Ordering::Relaxed)
    }
}

/// Keeps `count` connections that have each sent `bytes` and receive no data. Connections that the server closes are
/// replaced.
fn hold(to: SocketAddr, from: [u8; 4], count: usize, bytes: &[u8], fight: &Fight) {
    stand_back();
    let mut held: Vec<Option<TcpStream>> = (0..count).map(|_| None).collect();
    fight.attack(Duration::from_millis(5), || {
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
                // As much as the server takes.
                let _ = place.as_mut().map(|stream| stream.write_all(bytes));
            }
        }
    });
}

/// Sends `bytes` on one connection after the other.
fn flood(to: SocketAddr, from: [u8; 4], bytes: &[u8], fight: &Fight) {
    stand_back();
    fight.attack(Duration::from_millis(1), || {
        let _ = connection(to, from).map(|mut stream| stream.write_all(bytes));
    });
}

fn xdr(values: &[&dyn Encode]) -> Vec<u8> {
    let mut out = Vec::new();
    values.iter().for_each(|value| value.encode(&mut out));
    out
}

/// Calls with numbers at which arithmetic goes wrong.
fn bad_numbers(server: &Server, name: &[u8], fight: &Fight) {
    let mut c = server.connect_from(ANOTHER).acting_as(user(1000, 1000, &[]));
    let root = c.root();
    let file = c.new_file(&root, name, 0o600);
    stand_back();
    fight.attack(Duration::from_millis(5), || {
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
    });
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

    /// Goes round for at least `time` and 50 rounds, and until `fight` has begun; returns the 50th and the 99th
    /// percentile of a round.
    fn run(&mut self, time: Duration, fight: &Fight) -> [Duration; 2] {
        let begun = Instant::now();
        let mut took = Vec::new();
        while begun.elapsed() < time || took.len() < 50 || !fight.has_begun() {
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
    /// An unauthorised client connects, sends a little and hangs up.
    Strangers,
    /// A client with access connects, sends a little and hangs up.
    HangsUp,
    /// A client keeps connections that sent parts of records.
    Parts,
    /// A client asks for much and reads no replies.
    Unread,
    /// A client asks for 64 MiB, hangs up, and connects again.
    Unwanted,
    /// A client sends numbers at which arithmetic goes wrong.
    Numbers,
}

const ATTACKS: [Attack; 6] =
    [Attack::Strangers, Attack::HangsUp, Attack::Parts, Attack::Unread, Attack::Unwanted, Attack::Numbers];

/// The bytes that attackers send.
struct Arsenal<'a> {
    server: &'a Server,
    /// The start of a record of a MiB.
    part: Vec<u8>,
    /// The whole record except its last byte.
    most: Vec<u8>,
    /// Reads of 64 MiB in all.
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

    /// Starts the threads of an attack on the server, or on a bare loop, which end with `fight`; files that it makes
    /// are called `name`.
    fn begin<'s>(
        &'s self,
        attack: Attack,
        (to, name): (SocketAddr, &'s str),
        scope: &'s std::thread::Scope<'s, '_>,
        fight: &'s Fight,
    ) {
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
            fight.begin(scope, move || hold(to, HOSTILE, count, bytes, fight));
        }
        for bytes in sent.iter().copied() {
            fight.begin(scope, move || flood(to, from, bytes, fight));
        }
        if matches!(attack, Attack::Numbers) {
            fight.begin(scope, move || bad_numbers(self.server, name.as_bytes(), fight));
        }
    }
}

/// Accepts connections at an address of its own, keeps the first `kept` of them, and closes the others at once.
fn bare_loop(kept: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming().flatten() {
            if open.len() < kept {
                open.push(stream);
            }
        }
    });
    address
}

#[test]
fn a_stranger_and_a_hostile_client_harm_nobody() {
    let told = std::env::var("FOREBAY_TEST_SECONDS").ok().and_then(|text| text.parse().ok());
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
    let arsenal = Arsenal::new(&server);
    let named = |attack: &Attack| (format!("{attack:?}"), server.address(), vec![*attack]);
    let mut fights: Vec<_> = ATTACKS.iter().map(named).collect();
    fights.push(("all".into(), server.address(), ATTACKS.to_vec()));
    if told.is_some() {
        // As many as the server lets one address have.
        for (attack, kept) in [(Attack::HangsUp, 0), (Attack::Parts, 384)] {
            fights.push((format!("{attack:?}, bare"), bare_loop(kept), vec![attack]));
        }
    }
    let time = Duration::from_secs(told.unwrap_or(2)) / (fights.len() as u32 + 1);
    let alone = measure.run(time, &Fight::default());
    eprintln!("a round of five requests, 50th and 99th percentile, and the 99th over that alone");
    eprintln!("{:14} {alone:?}", "alone");
    for (name, to, attacks) in fights {
        let fight = Fight::default();
        let beside = std::thread::scope(|scope| {
            let _stop = DoneAtEnd(&fight.stop);
            attacks.iter().for_each(|attack| arsenal.begin(*attack, (to, &name), scope, &fight));
            let beside = measure.run(time, &fight);
            // Another client can still connect.
            server.connect().root();
            beside
        });
        eprintln!("{name:14} {beside:?} {:.2}", beside[1].as_secs_f64() / alone[1].as_secs_f64());
    }
    let status = server.status();
    assert_eq!(status["health"]["state"], "OK", "{}", status["health"]);
    assert_eq!(status["durability"]["failures"], 0);
    assert!(status["refused"]["strangers"].as_u64().unwrap() > 0);
    assert_eq!(events(&server), before, "{}", server.ask(&["events"]));
}
