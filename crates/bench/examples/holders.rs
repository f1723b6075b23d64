//! Measures what a running server pays for NFSv4.1 clients that hold much: sessions, opens, locks. Prints the time, and
//! the server's resident memory for one of each.
//!
//! `cargo run --release -p forebay-bench --example holders -- ADDRESS PID [CLIENTS [OPENS]]`
//!
//! The clients stay at the server when the program ends, so a restart of the server can be measured after it.

// A panic ends the measurement.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use forebay_wire::nfs4::{
    self, ChannelAttrs, ClientOwner, CompoundRes, CompoundWriter, CreateHow, CreateSessionArgs,
    ExchangeIdArgs, Fattr, HandleArgs, LockArgs, LockRes, LockType, Locker, Nfsstat4, Op, OpResult, OpenArgs,
    OpenClaim, OpenHow, OpenToLockOwner, ReclaimCompleteArgs, SequenceArgs, StateOwner, StateProtectArgs,
    Stateid, share,
};
use forebay_wire::rpc::{Auth, AuthSys, CallHeader, Gids, LAST_FRAGMENT, OpaqueAuth, ReplyHeader};
use forebay_wire::xdr::{Decode, Encode, Reader};
use forebay_wire::{Array, Opaque};

/// Files that clients open. Each of the holding clients opens all of them.
const FILES: usize = 1_000;
/// Opens, or locks, of one COMPOUND: each takes two operations beside SEQUENCE.
const TOGETHER: usize = 31;

/// A connection that carries the sessions of all clients.
struct Connection {
    stream: TcpStream,
    xid: u32,
}

impl Connection {
    fn call<T>(&mut self, operations: &[Op<'_>], see: impl FnOnce(Nfsstat4, &[OpResult<'_>]) -> T) -> T {
        self.xid += 1;
        let cred = Auth::Sys(AuthSys {
            stamp: 0,
            machine_name: b"holders",
            uid: 0,
            gid: 0,
            gids: Gids::new(&[]).unwrap(),
        });
        let (prog, vers, proc) = (nfs4::PROGRAM, nfs4::VERSION, nfs4::PROC_COMPOUND);
        let mut call = vec![0; 4];
        CallHeader { xid: self.xid, prog, vers, proc, cred, verf: OpaqueAuth::NONE }.encode(&mut call);
        let mut writer = CompoundWriter::begin(&mut call, b"", 1);
        operations.iter().for_each(|operation| writer.push(&mut call, operation));
        let mark = LAST_FRAGMENT | (call.len() - 4) as u32;
        call[..4].copy_from_slice(&mark.to_be_bytes());
        self.stream.write_all(&call).unwrap();
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark).unwrap();
        let mut reply = vec![0; (u32::from_be_bytes(mark) & !LAST_FRAGMENT) as usize];
        self.stream.read_exact(&mut reply).unwrap();
        let mut reader = Reader::new(&reply);
        ReplyHeader::decode(&mut reader).unwrap();
        let reply = CompoundRes::<OpResult<'_>>::decode(&mut reader).unwrap();
        let results: Vec<_> = reply.results.map(Result::unwrap).collect();
        see(reply.status, &results)
    }

    /// Calls what must succeed.
    fn done<T>(&mut self, operations: &[Op<'_>], see: impl FnOnce(&[OpResult<'_>]) -> T) -> T {
        self.call(operations, |status, results| {
            assert_eq!(status, Nfsstat4::Ok, "{:?}", results.last());
            see(results)
        })
    }
}

/// A client with a session.
struct Holder {
    id: u64,
    session: [u8; 16],
    sequence: u32,
}

impl Holder {
    fn new(connection: &mut Connection, number: usize) -> Self {
        let name = format!("Linux NFSv4.1 client-{number:05}-{}.example.org", std::process::id());
        let client_owner = ClientOwner { verifier: [1; 8], id: Opaque(name.as_bytes()) };
        let state_protect = StateProtectArgs::None;
        let exchange = ExchangeIdArgs { client_owner, flags: 0, state_protect, impl_id: None };
        let (id, sequence) = connection.done(&[Op::ExchangeId(exchange)], |results| match results {
            [OpResult::ExchangeId(Ok(made))] => (made.clientid, made.sequence),
            other => panic!("EXCHANGE_ID: {other:?}"),
        });
        let channel = ChannelAttrs {
            max_request: 1 << 20,
            max_response: 1 << 20,
            max_response_cached: 2048,
            max_operations: 64,
            max_requests: 64,
            ..ChannelAttrs::default()
        };
        let create = CreateSessionArgs {
            clientid: id,
            sequence,
            flags: nfs4::create_session::PERSIST,
            fore_channel: channel,
            back_channel: channel,
            cb_program: 0x4000_0000,
            sec_parms: Array::EMPTY,
        };
        let session = connection.done(&[Op::CreateSession(create)], |results| match results {
            [OpResult::CreateSession(Ok(made))] => made.sessionid,
            other => panic!("CREATE_SESSION: {other:?}"),
        });
        let mut holder = Holder { id, session, sequence: 0 };
        holder.run(connection, &[Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false })], |_| {});
        holder
    }

    fn run<T>(
        &mut self,
        connection: &mut Connection,
        operations: &[Op<'_>],
        see: impl FnOnce(&[OpResult<'_>]) -> T,
    ) -> T {
        self.sequence += 1;
        let (sessionid, sequence) = (self.session, self.sequence);
        let first = SequenceArgs { sessionid, sequence, slot: 0, highest_slot: 0, cache_this: false };
        let all: Vec<_> = std::iter::once(Op::Sequence(first)).chain(operations.iter().copied()).collect();
        connection.done(&all, |results| see(&results[1..]))
    }

    fn open<'a>(&self, how: OpenHow<'a>, claim: OpenClaim<'a>) -> Op<'a> {
        Op::Open(OpenArgs {
            seqid: 0,
            share_access: share::BOTH | share::WANT_NO_DELEG,
            share_deny: 0,
            owner: StateOwner { clientid: self.id, owner: Opaque(b"open id:00000001") },
            how,
            claim,
        })
    }

    /// Returns the handle of a file in the root, which is made if need be.
    fn make(&mut self, connection: &mut Connection, name: &str) -> Vec<u8> {
        let how = OpenHow::Create(CreateHow::Unchecked(Fattr::default()));
        let open = self.open(how, OpenClaim::Null(name.as_bytes()));
        self.run(connection, &[Op::Putrootfh(()), open, Op::Getfh(())], |results| match results[2] {
            OpResult::Getfh(Ok(handle)) => handle.object.0.to_vec(),
            ref other => panic!("GETFH: {other:?}"),
        })
    }

    /// Opens files by their handles.
    fn opens(&mut self, connection: &mut Connection, files: &[Vec<u8>]) -> Vec<Stateid> {
        let open = self.open(OpenHow::NoCreate, OpenClaim::Fh);
        let operations: Vec<_> = files.iter().flat_map(|file| [putfh(file), open]).collect();
        self.run(connection, &operations, |results| {
            results
                .iter()
                .filter_map(|result| match result {
                    OpResult::Open(Ok(opened)) => Some(opened.stateid),
                    _ => None,
                })
                .collect()
        })
    }

    /// Locks a range of each file, another one than other clients.
    fn locks(&mut self, connection: &mut Connection, files: &[Vec<u8>], opens: &[Stateid], number: usize) {
        let lock = |open: &Stateid| {
            let lock_owner = StateOwner { clientid: self.id, owner: Opaque(b"lock id:00000001") };
            let new = OpenToLockOwner { open_seqid: 0, open_stateid: *open, lock_seqid: 0, lock_owner };
            let (locktype, reclaim, locker) = (LockType::Write, false, Locker::New(new));
            Op::Lock(LockArgs { locktype, reclaim, offset: number as u64 * 10, length: 5, locker })
        };
        let operations: Vec<_> =
            files.iter().zip(opens).flat_map(|(file, open)| [putfh(file), lock(open)]).collect();
        self.run(connection, &operations, |results| {
            assert!(
                results.iter().skip(1).step_by(2).all(|lock| matches!(lock, OpResult::Lock(LockRes::Ok(_))))
            );
        });
    }
}

fn putfh(file: &[u8]) -> Op<'_> {
    Op::Putfh(HandleArgs { object: Opaque(file) })
}

/// Prints the time and the growth of the server for each of some entries.
struct Report {
    pid: u32,
    resident: u64,
    begun: Instant,
}

impl Report {
    fn say(&mut self, what: &str, count: usize) {
        let (now, took) = (resident(self.pid), self.begun.elapsed());
        let each = now.saturating_sub(self.resident) / count.max(1) as u64;
        let rate = count as f64 / took.as_secs_f64();
        eprintln!("{count} {what}: {took:.1?}, {rate:.0}/s, {each} bytes each, {} MiB in all", now >> 20);
        (self.resident, self.begun) = (now, Instant::now());
    }
}

/// Returns the resident set of a process in bytes.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn main() {
    let words: Vec<_> = std::env::args().skip(1).collect();
    let number = |at: usize, default| words.get(at).map_or(default, |word: &String| word.parse().unwrap());
    let (pid, clients, opens) = (number(1, 0) as u32, number(2, 10_000), number(3, 1_000_000));
    let stream = TcpStream::connect(&words[0]).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut connection = Connection { stream, xid: 0 };
    let mut report = Report { pid, resident: resident(pid), begun: Instant::now() };
    let mut holders: Vec<_> = (0..clients).map(|number| Holder::new(&mut connection, number)).collect();
    report.say("clients with a session", clients);
    let files: Vec<_> =
        (0..FILES).map(|file| holders[0].make(&mut connection, &format!("held{file}"))).collect();
    report.say("files", FILES);
    let holding = opens.div_ceil(FILES);
    let mut open = Vec::new();
    for holder in &mut holders[..holding] {
        let of: Vec<_> =
            files.chunks(TOGETHER).flat_map(|files| holder.opens(&mut connection, files)).collect();
        open.push(of);
    }
    report.say("opens", holding * FILES);
    for (number, (holder, opens)) in holders.iter_mut().zip(&open).enumerate() {
        for (files, opens) in files.chunks(TOGETHER).zip(opens.chunks(TOGETHER)) {
            holder.locks(&mut connection, files, opens, number);
        }
    }
    report.say("locks", holding * FILES);
}
