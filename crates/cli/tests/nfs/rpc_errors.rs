//! Tests of RPC's answers to calls that are not for this server (RFC 5531 section 9), and of bytes that are not
//! calls.

use forebay_wire::xdr::Encode;

use crate::harness::rpc::{AuthStat, ReplyStatus};
use crate::harness::*;

const NULL: (u32, u32, u32) = (PROGRAM, VERSION, 0);

#[test]
fn programs_versions_and_procedures_that_are_not_served() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let cases = [
        ((PROGRAM, 5, 0), ReplyStatus::ProgMismatch { low: 3, high: 4 }),
        ((PROGRAM, 2, 0), ReplyStatus::ProgMismatch { low: 3, high: 4 }),
        ((PROGRAM, 4, 2), ReplyStatus::ProcUnavail),
        ((mount3::PROGRAM, 1, 1), ReplyStatus::ProgMismatch { low: 3, high: 3 }),
        ((100_021, 3, 0), ReplyStatus::ProgMismatch { low: 4, high: 4 }),
        ((100_022, 4, 0), ReplyStatus::ProgUnavail),
        ((PROGRAM, VERSION, 22), ReplyStatus::ProcUnavail),
        ((PROGRAM, VERSION, u32::MAX), ReplyStatus::ProcUnavail),
        ((mount3::PROGRAM, 3, 6), ReplyStatus::ProcUnavail),
        (NULL, ReplyStatus::Success),
        ((mount3::PROGRAM, 3, 0), ReplyStatus::Success),
    ];
    for (procedure, expected) in cases {
        assert_eq!(c.call(procedure, &[]), (expected, vec![]), "{procedure:?}");
    }
}

#[test]
fn rpc_versions_other_than_two_are_denied() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let mut call = c.call_bytes(NULL, &[]);
    call[11] = 3;
    let reply = c.exchange(&call);
    let denied = rpc::ReplyHeader { xid: c.xid, status: ReplyStatus::RpcMismatch { low: 2, high: 2 } };
    let mut expected = Vec::new();
    denied.encode(&mut expected);
    assert_eq!(reply, expected);
}

#[test]
fn unknown_flavours_are_too_weak_but_for_null() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    c.user = User::Flavor(6);
    assert_eq!(c.call(NULL, &[]).0, ReplyStatus::Success);
    let mut args = Vec::new();
    root.encode(&mut args);
    assert_eq!(c.call((PROGRAM, VERSION, 1), &args).0, ReplyStatus::AuthError(AuthStat::TooWeak));
    let mount = (mount3::PROGRAM, 3, mount3::Procedure::Export as u32);
    assert_eq!(c.call(mount, &[]).0, ReplyStatus::AuthError(AuthStat::TooWeak));
}

/// Sends a call of NULL with a credential of any bytes.
fn with_credential(c: &mut Client, flavor: u32, body: &[u8]) -> ReplyStatus {
    let mut call = Vec::new();
    c.xid += 1;
    for word in [c.xid, 0, 2, PROGRAM, VERSION, 0, flavor] {
        word.encode(&mut call);
    }
    body.encode(&mut call);
    rpc::OpaqueAuth::NONE.encode(&mut call);
    let reply = c.exchange(&call);
    let mut reader = forebay_wire::Reader::new(&reply);
    forebay_wire::Decode::decode(&mut reader).map(|header: rpc::ReplyHeader| header.status).unwrap()
}

#[test]
fn credentials_that_are_none() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<_>>();
    let bad = ReplyStatus::AuthError(AuthStat::BadCred);
    let seventeen: Vec<u32> = [0, 0, 1, 1, 17].into_iter().chain(0..17).collect();
    let sixteen: Vec<u32> = [0, 0, 1, 1, 16].into_iter().chain(0..16).collect();
    assert_eq!(with_credential(&mut c, 1, &words(&sixteen)), ReplyStatus::Success);
    assert_eq!(with_credential(&mut c, 1, &words(&seventeen)), bad);
    assert_eq!(with_credential(&mut c, 1, &words(&[0, 0, 1, 1, 9, 1])), bad, "fewer groups than said");
    assert_eq!(with_credential(&mut c, 1, &words(&[0, u32::MAX, 1, 1, 0])), bad, "a lying name length");
    assert_eq!(with_credential(&mut c, 1, &[]), bad);
    assert_eq!(with_credential(&mut c, 1, &[0; 404]), bad, "more than 400 bytes");
    assert_eq!(
        with_credential(&mut c, 0, &[1; 8]),
        ReplyStatus::Success,
        "AUTH_NONE has no body to be wrong"
    );
}

#[test]
fn arguments_that_cannot_be_decoded() {
    let server = Serve::new().start();
    let mut c = server.connect();
    for number in 1..Procedure::COUNT as u32 {
        let (status, result) = c.call((PROGRAM, VERSION, number), &[]);
        assert_eq!((status, result), (ReplyStatus::GarbageArgs, vec![]), "procedure {number}");
        // A handle of 65 bytes is one byte too long.
        let mut args = Vec::new();
        [0u8; 65].as_slice().encode(&mut args);
        args.extend_from_slice(&[0; 64]);
        assert_eq!(
            c.call((PROGRAM, VERSION, number), &args).0,
            ReplyStatus::GarbageArgs,
            "procedure {number}"
        );
        // The length exceeds the record.
        let mut args = u32::MAX.to_be_bytes().to_vec();
        args.extend_from_slice(&[0; 64]);
        assert_eq!(
            c.call((PROGRAM, VERSION, number), &args).0,
            ReplyStatus::GarbageArgs,
            "procedure {number}"
        );
    }
    for procedure in [mount3::Procedure::Mnt, mount3::Procedure::Umnt] {
        assert_eq!(c.call((mount3::PROGRAM, 3, procedure as u32), &[]).0, ReplyStatus::GarbageArgs);
    }
}

#[test]
fn a_write_whose_count_is_not_its_length_does_nothing() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    for (count, data) in [(3, &b"12345678"[..]), (9, b"12345678"), (u32::MAX, b""), (0, b"1")] {
        let args = WriteArgs { file, offset: 0, count, stable: StableHow::FileSync, data };
        let mut bytes = Vec::new();
        args.encode(&mut bytes);
        assert_eq!(c.call((PROGRAM, VERSION, 7), &bytes).0, ReplyStatus::GarbageArgs, "count {count}");
    }
    assert_eq!(c.attr(&file).size, 0);
}

#[test]
fn every_truncation_of_every_call_is_refused_and_changes_nothing() {
    let server = Serve::new().flags(&["--squash", "none"]).start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let before = (c.attr(&root), c.attr(&file));
    let mut calls: Vec<(Procedure, Vec<u8>)> = Vec::new();
    let mut add = |procedure, args: &dyn Encode| {
        let mut bytes = Vec::new();
        args.encode(&mut bytes);
        calls.push((procedure, bytes));
    };
    let place = |child| name(&root, child);
    add(Procedure::Setattr, &SetattrArgs { object: file, new_attributes: size(5), guard: None });
    add(
        Procedure::Write,
        &WriteArgs { file, offset: 0, count: 4, stable: StableHow::FileSync, data: b"data" },
    );
    add(Procedure::Create, &CreateArgs { target: place(b"new"), how: CreateHow::Guarded(mode(0o644)) });
    add(Procedure::Mkdir, &MkdirArgs { target: place(b"new"), attributes: mode(0o755) });
    let symlink = SymlinkArgs { target: place(b"new"), attributes: Sattr3::default(), path: b"to" };
    add(Procedure::Symlink, &symlink);
    add(Procedure::Mknod, &MknodArgs { target: place(b"new"), what: MknodData::Fifo(mode(0o644)) });
    add(Procedure::Remove, &place(b"f"));
    add(Procedure::Rename, &RenameArgs { from: place(b"f"), to: place(b"g") });
    add(Procedure::Link, &LinkArgs { file, link: place(b"g") });
    for (procedure, args) in calls {
        for len in 0..args.len() {
            let status = c.call((PROGRAM, VERSION, procedure as u32), &args[..len]).0;
            assert_eq!(status, ReplyStatus::GarbageArgs, "{procedure:?} cut to {len} bytes");
        }
    }
    assert_eq!((c.attr(&root), c.attr(&file)), before);
}

#[test]
fn bytes_that_are_no_calls_end_the_connection_and_nothing_else() {
    let server = Serve::new().start();
    let mut other = server.connect();
    let root = other.root();
    let reply = [0u8, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0];
    for record in [&b""[..], b"xyz", &reply, &[0xff; 40]] {
        let mut c = server.connect();
        c.send(record);
        assert_eq!(c.receive(), None, "{record:?}");
    }
    // The records claim to be larger than any record of this protocol.
    for mark in [0xffff_ffff_u32, 0x8fff_ffff, 0x7fff_ffff, 0x4000_0000] {
        let mut c = server.connect();
        c.send_raw(&mark.to_be_bytes());
        assert_eq!(c.receive(), None, "mark {mark:08x}");
    }
    other.attr(&root);
}

/// Returns the next number of xorshift; the sequence is equal in every run.
fn noise(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

#[test]
fn noise_behind_a_valid_header_never_kills_the_server() {
    let server = Serve::new().start();
    let mut other = server.connect();
    let root = other.root();
    let file = other.new_file(&root, b"f", 0o644);
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    let mut c = server.connect();
    for round in 0..3000 {
        let procedure = (noise(&mut seed) % 22) as u32;
        let mut args = Vec::new();
        if round % 2 == 0 {
            // After a valid handle the server also decodes the following arguments.
            if round % 4 == 0 { root } else { file }.encode(&mut args);
        }
        for _ in 0..noise(&mut seed) % 24 {
            let word = noise(&mut seed);
            // Small numbers are more likely to be accepted as lengths and flags.
            let word = if word & 1 == 0 { (word >> 8) as u32 % 5 } else { (word >> 8) as u32 };
            word.encode(&mut args);
        }
        c.call((PROGRAM, VERSION, procedure), &args);
    }
    other.attr(&root);
}
