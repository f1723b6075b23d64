//! Clients of NFSv4.1 and NLM that lock and write while the server is killed at random moments. After each restart
//! exactly the locks are there that the clients hold, without a grace period.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_wire::Opaque;
use forebay_wire::nfs4::{
    self, CreateHow as CreateHow4, Fattr, LockRes, LockType, Locker, LocktArgs, LockuArgs, Nfsstat4, Op,
    OpResult, OpenHow, OpenToLockOwner, ResultOr, StableHow4, StateOwner, Stateid,
};
use forebay_wire::nlm4::{self, Stats, TestReply, UnlockArgs};
use forebay_wire::rpc::{ReplyHeader, ReplyStatus};
use forebay_wire::xdr::{Decode, Encode, Reader};

use crate::harness::*;
use crate::nfs4::{Client4, putfh};

const KILLS: usize = 40;
const FILES: usize = 2;
/// Ranges of a file that are locked, each of `RANGE` bytes.
const RANGES: usize = 8;
const RANGE: u64 = 10;

/// One request of a client.
#[derive(Clone, Copy, Debug)]
struct Request {
    kind: Kind,
    file: usize,
    first: usize,
    count: usize,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Lock,
    Unlock,
    /// Writes to a range that the client has locked.
    Write,
}

impl Request {
    fn bytes(&self) -> Bytes {
        (self.first as u64 * RANGE, self.count as u64 * RANGE)
    }
}

/// A client that can be asked to lock.
trait Client: Send {
    /// Sends a request once more, or for the first time. Returns `None` if no answer came, and false if another client
    /// has a lock.
    fn ask(&mut self, request: &Request, is_first: bool) -> Option<bool>;
    /// Connects to the server that was started again.
    fn reconnect(&mut self, server: &Server);
    /// Returns true if another client has locked a part of the range.
    fn is_taken(&mut self, file: usize, range: usize) -> bool;
}

/// A client of NFSv4.1, with one lock state of each file.
struct Four {
    client: Client4,
    files: Vec<(Stateid, Vec<u8>)>,
    locks: [Option<Stateid>; FILES],
}

impl Four {
    fn new(server: &Server, name: &[u8]) -> Self {
        let mut client = Client4::connect(server, name);
        let how = OpenHow::Create(CreateHow4::Unchecked(Fattr::default()));
        let files = (0..FILES).map(|file| client.open(&[b'0' + file as u8], how, 0).unwrap()).collect();
        Four { client, files, locks: [None; FILES] }
    }

    fn owner(&self) -> StateOwner<'static> {
        StateOwner { clientid: self.client.id, owner: Opaque(b"locker") }
    }
}

impl Client for Four {
    fn ask(&mut self, request: &Request, is_first: bool) -> Option<bool> {
        let ((offset, length), file) = (request.bytes(), request.file);
        let (open, handle) = self.files[file].clone();
        let locktype = LockType::Write;
        let locker = match self.locks[file] {
            Some(lock_stateid) => Locker::Existing(nfs4::ExistLockOwner { lock_stateid, lock_seqid: 0 }),
            None => Locker::New(OpenToLockOwner {
                open_seqid: 0,
                open_stateid: open,
                lock_seqid: 0,
                lock_owner: self.owner(),
            }),
        };
        let data = [file as u8; RANGE as usize];
        let operation = match (request.kind, self.locks[file]) {
            (Kind::Lock, _) => Op::Lock(nfs4::LockArgs { locktype, reclaim: false, offset, length, locker }),
            (Kind::Unlock, Some(lock_stateid)) => {
                Op::Locku(LockuArgs { locktype, seqid: 0, lock_stateid, offset, length })
            }
            (Kind::Write, Some(stateid)) => {
                let stateid = Stateid { seqid: 0, ..stateid };
                Op::Write(nfs4::WriteArgs { stateid, offset, stable: StableHow4::FileSync, data: &data })
            }
            // There is nothing to unlock.
            _ => return Some(true),
        };
        let see = |status, results: &[OpResult<'_>]| match results.get(1) {
            Some(OpResult::Lock(LockRes::Ok(ok))) => Ok(Some(ok.stateid)),
            Some(OpResult::Locku(Ok(ok))) => Ok(Some(ok.stateid)),
            Some(OpResult::Write(Ok(_))) => Ok(None),
            Some(OpResult::Lock(ResultOr::Failed(_))) => Err(()),
            other => panic!("{request:?}: {status:?} {other:?}"),
        };
        let answer = if is_first {
            self.client.try_run(&[putfh(&handle), operation], see)?
        } else {
            self.client.try_again(see)?
        };
        if let Ok(Some(stateid)) = answer {
            self.locks[file] = Some(stateid);
        }
        Some(answer.is_ok())
    }

    fn reconnect(&mut self, server: &Server) {
        self.client.reconnect(server);
    }

    fn is_taken(&mut self, file: usize, range: usize) -> bool {
        let (locktype, owner) = (LockType::Write, self.owner());
        let test = Op::Lockt(LocktArgs { locktype, offset: range as u64 * RANGE, length: RANGE, owner });
        self.client.run(&[putfh(&self.files[file].1), test], |status, _| match status {
            Nfsstat4::Ok => false,
            Nfsstat4::Denied => true,
            other => panic!("LOCKT: {other:?}"),
        })
    }
}

/// A process of a host that locks by NLM and writes by NFSv3.
struct Three {
    process: Process,
    address: [u8; 4],
    files: Vec<FileHandle>,
    last: Vec<u8>,
}

impl Three {
    fn new(server: &Server, host: &'static [u8], address: [u8; 4]) -> Self {
        let mut connection = server.connect_from(address);
        let root = connection.root();
        let files =
            (0..FILES).map(|file| make(&mut connection, &root, &[b'0' + file as u8], 0o644)).collect();
        Three { process: Process::new(connection, host, 1), address, files, last: Vec::new() }
    }

    fn call(&mut self, request: &Request) -> Vec<u8> {
        let (process, file) = (&mut self.process, &self.files[request.file]);
        let mut args = Vec::new();
        let procedure = match request.kind {
            Kind::Write => {
                let data = [request.file as u8; RANGE as usize];
                let (offset, count, stable) = (request.bytes().0, RANGE as u32, StableHow::FileSync);
                WriteArgs { file: *file, offset, count, stable, data: &data }.encode(&mut args);
                (PROGRAM, VERSION, Procedure::Write as u32)
            }
            Kind::Lock => {
                process.args(file, request.bytes(), true).encode(&mut args);
                (nlm4::PROGRAM, nlm4::VERSION, nlm4::Procedure::Lock as u32)
            }
            Kind::Unlock => {
                let alock = process.alock(file, request.bytes());
                UnlockArgs { cookie: Opaque(COOKIE), alock }.encode(&mut args);
                (nlm4::PROGRAM, nlm4::VERSION, nlm4::Procedure::Unlock as u32)
            }
        };
        process.connection.call_bytes(procedure, &args)
    }
}

impl Client for Three {
    fn ask(&mut self, request: &Request, is_first: bool) -> Option<bool> {
        if is_first {
            self.last = self.call(request);
        }
        let reply = self.process.connection.try_exchange(&self.last)?;
        let mut reader = Reader::new(&reply);
        assert_eq!(ReplyHeader::decode(&mut reader).unwrap().status, ReplyStatus::Success);
        if matches!(request.kind, Kind::Write) {
            decode::<WriteRes>(reader.rest()).unwrap();
            return Some(true);
        }
        match decode::<nlm4::Res<'_>>(reader.rest()).stat {
            Stats::Granted => Some(true),
            Stats::Denied => Some(false),
            other => panic!("{request:?}: {other:?}"),
        }
    }

    fn reconnect(&mut self, server: &Server) {
        self.process.connection = server.connect_from(self.address);
    }

    fn is_taken(&mut self, file: usize, range: usize) -> bool {
        let file = self.files[file];
        self.process.test(&file, (range as u64 * RANGE, RANGE), |res| match res.stat {
            TestReply::Granted => false,
            TestReply::Denied(_) => true,
            ref other => panic!("TEST: {other:?}"),
        })
    }
}

/// A client, the ranges that it holds, and its request that has no answer.
struct Player {
    client: Box<dyn Client>,
    holds: [[bool; RANGES]; FILES],
    pending: Option<Request>,
    random: Random,
}

impl Player {
    /// Returns a random request. Every fourth is a write into a locked range, if there is one.
    fn next(&mut self) -> Request {
        let random = &mut self.random;
        let (file, first) = (random.below(FILES as u64) as usize, random.below(RANGES as u64) as usize);
        let count = 1 + random.below((RANGES - first) as u64).min(2) as usize;
        match random.below(4) {
            0 if self.holds[file][first] => Request { kind: Kind::Write, file, first, count: 1 },
            1 => Request { kind: Kind::Unlock, file, first, count },
            _ => Request { kind: Kind::Lock, file, first, count },
        }
    }

    /// Sends the pending request or a new one. Returns `None` if no answer came.
    fn step(&mut self) -> Option<()> {
        let is_first = self.pending.is_none();
        let request = self.pending.take().unwrap_or_else(|| self.next());
        self.pending = Some(request);
        let is_granted = self.client.ask(&request, is_first)?;
        self.pending = None;
        let ranges = &mut self.holds[request.file][request.first..request.first + request.count];
        match request.kind {
            Kind::Lock if is_granted => ranges.fill(true),
            Kind::Unlock => ranges.fill(false),
            _ => {}
        }
        Some(())
    }

    /// Writes as soon as the server answers. Returns the time since `since`.
    fn goes_on(&mut self, server: &Server, since: Instant) -> Duration {
        self.client.reconnect(server);
        if self.pending.is_some() {
            self.step().expect("an answer");
        }
        let held = (0..FILES * RANGES).find(|at| self.holds[at / RANGES][at % RANGES]);
        if let Some(at) = held {
            let request = Request { kind: Kind::Write, file: at / RANGES, first: at % RANGES, count: 1 };
            assert_eq!(self.client.ask(&request, true), Some(true));
        }
        since.elapsed()
    }
}

/// Compares the locks of the server with those that the clients hold.
fn check(players: &mut [Player], stranger: &mut dyn Client, kill: usize) -> usize {
    let mut held = 0;
    for (file, range) in (0..FILES * RANGES).map(|at| (at / RANGES, at % RANGES)) {
        let holders: Vec<_> = (0..players.len()).filter(|n| players[*n].holds[file][range]).collect();
        assert!(holders.len() <= 1, "after kill {kill}, range {range} of file {file} is of {holders:?}");
        for (n, player) in players.iter_mut().enumerate() {
            let expected = holders.first().is_some_and(|holder| *holder != n);
            let is_taken = player.client.is_taken(file, range);
            assert_eq!(is_taken, expected, "after kill {kill}, client {n}, range {range} of file {file}");
        }
        assert_eq!(stranger.is_taken(file, range), !holders.is_empty(), "after kill {kill}, range {range}");
        held += holders.len();
    }
    held
}

#[test]
fn no_kill_loses_or_leaves_a_lock() {
    let mut server = Serve::unsquashed().cached().start();
    let clients: [Box<dyn Client>; 6] = [
        Box::new(Four::new(&server, b"four a")),
        Box::new(Four::new(&server, b"four b")),
        Box::new(Four::new(&server, b"four c")),
        Box::new(Three::new(&server, b"three a", [127, 0, 0, 2])),
        Box::new(Three::new(&server, b"three b", [127, 0, 0, 3])),
        Box::new(Three::new(&server, b"three c", [127, 0, 0, 4])),
    ];
    let mut stranger = Four::new(&server, b"stranger");
    let mut players: Vec<_> = clients
        .into_iter()
        .zip(1..)
        .map(|(client, seed)| Player {
            client,
            holds: [[false; RANGES]; FILES],
            pending: None,
            random: Random(seed),
        })
        .collect();
    let (mut random, mut longest, mut held, mut unanswered) = (Random(7), Duration::ZERO, 0, 0);
    for kill in 0..KILLS {
        let (done, until) = (AtomicU64::new(0), random.below(120));
        std::thread::scope(|scope| {
            for player in &mut players {
                let done = &done;
                scope.spawn(move || {
                    while player.step().is_some() {
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            // The players end only with the server.
            let _killed = Killed(&server);
            wait_for(|| done.load(Ordering::SeqCst) >= until);
        });
        server.wait();
        let since = Instant::now();
        unanswered += players.iter().filter(|player| player.pending.is_some()).count();
        server.start();
        stranger.reconnect(&server);
        for player in &mut players {
            longest = longest.max(player.goes_on(&server, since));
        }
        held += check(&mut players, &mut stranger, kill);
    }
    eprintln!(
        "{KILLS} kills, {held} locks held, {unanswered} unanswered requests, I/O after {longest:?} at most"
    );
    assert!(held >= KILLS && unanswered >= KILLS);
}
