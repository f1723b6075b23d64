//! Tests of the encoding: a request is decoded as a server decodes it, and a reply of a server is understood.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};

use forebay_wire::nfs3::{Nfsstat3, StableHow};
use forebay_wire::nfs4::{Operation as Operation4, *};
use forebay_wire::rpc::{Auth, CallHeader};
use forebay_wire::{Decode as _, Encode as _, Opaque, Reader, nfs3};

use super::session4::Session4;
use super::{Answer, Fault, Handle, Operation, Request, Status, Version, v3, v4};
use crate::connection::Connection;

const OPEN: Stateid = Stateid { seqid: 1, other: [7; 12] };

fn pair() -> (Connection, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let connection = Connection::open(&address.into(), PROGRAM, VERSION, Auth::None).unwrap();
    (connection, listener.accept().unwrap().0)
}

/// Sends the call that was encoded last, and returns its record without the mark.
fn sent(connection: &mut Connection, stream: &mut TcpStream) -> Vec<u8> {
    connection.end_call();
    assert!(connection.flush().unwrap());
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).unwrap();
    let mut record = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
    stream.read_exact(&mut record).unwrap();
    record
}

/// Returns the operations of a request behind SEQUENCE, which must be in slot 3.
fn operations(request: &Request<'_>, data: &[u8]) -> Vec<Opcode> {
    let (mut connection, mut stream) = pair();
    let session = Session4::of_test(5, 4);
    v4::encode(&mut connection, &session, 9, 3, request).extend_from_slice(data);
    let record = sent(&mut connection, &mut stream);
    let mut reader = Reader::new(&record);
    assert_eq!(CallHeader::decode(&mut reader).unwrap().proc, PROC_COMPOUND);
    let compound = Compound::decode(&mut reader).unwrap();
    assert_eq!(compound.minor_version, 1);
    let mut operations = compound.operations.map(Result::unwrap);
    let Some(Op::Sequence(sequence)) = operations.next() else { panic!("no SEQUENCE: {request:?}") };
    assert_eq!((sequence.slot, sequence.sequence, sequence.highest_slot), (3, 6, 3));
    operations.map(|operation| Operation4::number(&operation)).collect()
}

#[test]
fn each_request_is_one_compound_in_the_form_of_linux() {
    use Opcode::*;
    let (file, dir, name) = (Handle::new(b"file"), Handle::new(b"directory"), &b"name"[..]);
    let (open, stable) = (Some(OPEN), StableHow::FileSync);
    for (request, expected) in [
        (Request::Root { path: "/a//b/" }, &[Putrootfh, Lookup, Lookup, Getfh, Getattr][..]),
        (Request::Getattr { object: file }, &[Putfh, Getattr]),
        (Request::Lookup { dir, name }, &[Putfh, Lookup, Getfh, Getattr]),
        (Request::Access { object: file }, &[Putfh, Access]),
        (Request::Read { file, open, offset: 0, count: 4 }, &[Putfh, Read]),
        (Request::Commit { file }, &[Putfh, Commit]),
        (Request::Create { dir, name, mode: 0, exclusive: true }, &[Putfh, Open, Getfh, Access, Getattr]),
        (Request::Open { dir, name }, &[Putfh, Open, Getfh, Access, Getattr]),
        (Request::Close { file, open: OPEN }, &[Putfh, Close]),
        (Request::Mkdir { dir, name, mode: 0o700 }, &[Putfh, Create, Getfh, Getattr]),
        (Request::Remove { dir, name }, &[Putfh, Remove]),
        (Request::Rename { dir, from: name, to: b"other" }, &[Putfh, Savefh, Putfh, Rename]),
        (Request::List { dir, cookie: 0, verifier: [0; 8], count: 4096 }, &[Putfh, Readdir]),
        (Request::SetMode { object: file, mode: 0o600 }, &[Putfh, Setattr, Getattr]),
    ] {
        assert_eq!(operations(&request, b""), expected, "{request:?}");
    }
    let write = Request::Write { file, open, offset: 8, count: 5, stable };
    assert_eq!(operations(&write, b"hello\0\0\0"), [Putfh, Write]);
}

/// Returns a reply to SEQUENCE and PUTFH, followed by `results`.
fn reply(results: &[OpResult<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut reply = CompoundReply::begin(&mut out, 0, b"");
    let sequence = SequenceOk {
        sessionid: [1; 16],
        sequence: 6,
        slot: 3,
        highest_slot: 63,
        target_highest_slot: 63,
        status_flags: 0,
    };
    reply.push(&mut out, &OpResult::Sequence(Ok(sequence)));
    reply.push(&mut out, &OpResult::Putfh(Ok(())));
    results.iter().for_each(|result| reply.push(&mut out, result));
    out
}

fn answer(bytes: &[u8]) -> Answer<'_> {
    Answer::new(Version::V41, Operation::Read, Reader::new(bytes))
}

#[test]
fn results_are_found_behind_those_of_other_operations() {
    let opened = OpenOk {
        stateid: OPEN,
        cinfo: ChangeInfo::default(),
        rflags: 0,
        attrset: Bitmap::EMPTY,
        delegation: Delegation::None,
    };
    let handle = HandleArgs { object: Opaque(b"a handle") };
    let bytes = reply(&[OpResult::Open(Ok(opened)), OpResult::Getfh(Ok(handle))]);
    let made = answer(&bytes).made().unwrap();
    assert_eq!((made.open, made.handle), (Some(OPEN), Some(Handle::new(b"a handle"))));
    let bytes = reply(&[OpResult::Read(Ok(ReadOk { eof: true, data: b"data" }))]);
    assert_eq!(answer(&bytes).data().unwrap(), b"data");
    assert_eq!(answer(&bytes).committed(), Err(Fault::Missing));
}

#[test]
fn a_failure_is_that_of_the_last_operation_and_counts_for_its_slot_only_after_sequence() {
    let bytes = reply(&[OpResult::Read(Err(Nfsstat4::Delay))]);
    let failed = answer(&bytes).data().unwrap_err();
    assert!(matches!(failed, Fault::Status(status) if status.is_later()), "{failed:?}");
    assert!(v4::moves_slot(Reader::new(&bytes)), "SEQUENCE succeeded");
    let mut refused = Vec::new();
    let mut reply = CompoundReply::begin(&mut refused, 0, b"");
    reply.push(&mut refused, &OpResult::Sequence(Err(Nfsstat4::Badsession)));
    let failed = answer(&refused).done().unwrap_err();
    assert!(matches!(failed, Fault::Status(status) if status.is_session_lost()), "{failed:?}");
    assert!(!v4::moves_slot(Reader::new(&refused)), "the slot has not moved");
}

#[test]
fn a_slot_moves_on_with_each_accepted_request() {
    let mut session = Session4::of_test(5, 4);
    session.accepted(3);
    assert_eq!((session.sequence(3, false).sequence, session.sequence(2, true).sequence), (7, 6));
}

#[test]
fn opening_a_file_is_a_lookup_in_nfs_3() {
    let (mut connection, mut stream) = pair();
    let request = Request::Open { dir: Handle::new(b"directory"), name: b"name" };
    v3::encode(&mut connection, 9, &request);
    let record = sent(&mut connection, &mut stream);
    let mut reader = Reader::new(&record);
    assert_eq!(CallHeader::decode(&mut reader).unwrap().proc, nfs3::Procedure::Lookup as u32);
    let args = nfs3::DirOpArgs::decode(&mut reader).unwrap();
    assert_eq!((args.dir.as_bytes(), args.name), (&b"directory"[..], &b"name"[..]));
    let mut failed = Vec::new();
    (Nfsstat3::Noent as u32).encode(&mut failed);
    false.encode(&mut failed);
    let answer = Answer::new(Version::V3, Operation::Lookup, Reader::new(&failed));
    assert_eq!(answer.found().unwrap_err(), Fault::Status(Status::Nfs3(Nfsstat3::Noent)));
}
