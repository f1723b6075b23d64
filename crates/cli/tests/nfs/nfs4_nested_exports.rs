//! One file that two exports reach, one directory below the other: its clients have handles of their own, and their
//! state conflicts.

use forebay_wire::Opaque;
use forebay_wire::nfs3::Nfsstat3;
use forebay_wire::nfs4::{
    Bitmap, CloseArgs, CreateHow, Delegation, Fattr, GetattrArgs, HandleArgs, LockArgs, LockRes, LockType,
    Locker, LockuArgs, NameArgs, Nfsstat4, Op, OpResult, OpenArgs, OpenClaim, OpenHow, OpenToLockOwner,
    StateOwner, Stateid, StateidArgs, attr, share,
};
use forebay_wire::nlm4::Stats;

use crate::harness::*;
use crate::nfs4_callbacks::{Backed, Seen};

/// The way to the file by each export.
const OUTER: &[&[u8]] = &[b"all", b"in"];
const INNER: &[&[u8]] = &[b"in"];
const WHOLE: Bytes = (0, 0);

fn export(path: &str, name: &str) -> String {
    format!(
        "[[export]]\npath = '@/data{path}'\nname = '/{name}'\n[[export.client]]\nnetworks = ['127.0.0.0/8']\nsquash = 'none'\n"
    )
}

fn both() -> String {
    export("", "all") + &export("/in", "in")
}

fn serving(serve: Serve) -> Server {
    serve.exports(&both()).start_on(|data| std::fs::create_dir(data.join("in")).unwrap())
}

/// An open file, as its client knows it.
struct Opened {
    stateid: Stateid,
    handle: Vec<u8>,
    delegation: Option<Stateid>,
}

fn try_open(client: &mut Backed, way: &[&'static [u8]], deny: u32, want: u32) -> Result<Opened, Nfsstat4> {
    let open = OpenArgs {
        seqid: 0,
        share_access: share::BOTH | want,
        share_deny: deny,
        owner: StateOwner { clientid: client.id, owner: Opaque(b"owner") },
        how: OpenHow::Create(CreateHow::Unchecked(Fattr::default())),
        claim: OpenClaim::Null(b"file"),
    };
    let steps = way.iter().map(|name| Op::Lookup(NameArgs { name }));
    let operations: Vec<_> =
        [Op::Putrootfh(())].into_iter().chain(steps).chain([Op::Open(open), Op::Getfh(())]).collect();
    client.run(&operations, |status, results| match results {
        [.., OpResult::Open(Ok(open)), OpResult::Getfh(Ok(handle))] => {
            let delegation = match open.delegation {
                Delegation::Write(write) => Some(write.stateid),
                Delegation::Read(read) => Some(read.stateid),
                _ => None,
            };
            Ok(Opened { stateid: open.stateid, handle: handle.object.0.to_vec(), delegation })
        }
        _ => Err(status),
    })
}

fn open(client: &mut Backed, way: &[&'static [u8]]) -> Opened {
    try_open(client, way, 0, share::WANT_NO_DELEG).unwrap()
}

/// Opens the file with a wish for a delegation, and returns the delegation with the file.
fn delegated(client: &mut Backed, way: &[&'static [u8]]) -> (Opened, Stateid) {
    let opened = try_open(client, way, 0, share::WANT_WRITE_DELEG).unwrap();
    let stateid = opened.delegation.expect("a delegation");
    (opened, stateid)
}

/// Asks for a lock of the whole file, and waits for it if that is refused.
fn lock(client: &mut Backed, file: &Opened, kind: LockType) -> Result<Stateid, Nfsstat4> {
    let lock_owner = StateOwner { clientid: client.id, owner: Opaque(b"locker") };
    let new = OpenToLockOwner { open_seqid: 0, open_stateid: file.stateid, lock_seqid: 0, lock_owner };
    let (reclaim, offset, length) = (false, 0, u64::MAX);
    let lock = Op::Lock(LockArgs { locktype: kind, reclaim, offset, length, locker: Locker::New(new) });
    client.run(&[putfh(&file.handle), lock], |status, results| match &results[1] {
        OpResult::Lock(LockRes::Ok(done)) => Ok(done.stateid),
        _ => Err(status),
    })
}

fn putfh(handle: &[u8]) -> Op<'_> {
    Op::Putfh(HandleArgs { object: Opaque(handle) })
}

fn give_back(client: &mut Backed, file: &Opened, stateid: Stateid) {
    let returned = client.status(&[putfh(&file.handle), Op::Delegreturn(StateidArgs { stateid })]);
    assert_eq!(returned, Nfsstat4::Ok);
}

/// Returns the file by an export, as a client of NFSv3 knows it.
fn file_of_v3(c: &mut Client, export: &[u8], way: &[&[u8]]) -> FileHandle {
    let root = c.mnt(export).unwrap().fhandle;
    way.iter().fold(root, |dir, name| c.find(&dir, name))
}

#[test]
fn locks_and_denials_of_both_exports_conflict() {
    let server = serving(Serve::new());
    let [mut outer, mut inner] = [b"outer", b"inner"].map(|name| Backed::connect_as(&server, name, 1, 1));
    let (above, below) = (open(&mut outer, OUTER), open(&mut inner, INNER));
    assert_ne!(above.handle, below.handle, "each export has its handles");
    let held = lock(&mut outer, &above, LockType::Write).unwrap();
    assert_eq!(lock(&mut inner, &below, LockType::WriteWait), Err(Nfsstat4::Denied));
    let close = Op::Close(CloseArgs { seqid: 0, open_stateid: above.stateid });
    let unlock = Op::Locku(LockuArgs {
        locktype: LockType::Write,
        seqid: 0,
        lock_stateid: held,
        offset: 0,
        length: u64::MAX,
    });
    assert_eq!(outer.status(&[putfh(&above.handle), unlock, close]), Nfsstat4::Ok);
    assert_eq!(inner.wait(), Seen::NotifyLock(b"locker".to_vec()));
    assert_eq!(inner.file, below.handle, "the waiting client gets its own handle");
    lock(&mut inner, &below, LockType::WriteWait).unwrap();

    assert_eq!(try_open(&mut outer, OUTER, share::WRITE, 0).err(), Some(Nfsstat4::ShareDenied));
}

#[test]
fn locks_of_nfsv3_conflict_with_those_of_the_other_export() {
    let server = serving(Serve::new());
    let mut outer = Backed::connect_as(&server, b"outer", 1, 1);
    let above = open(&mut outer, OUTER);
    lock(&mut outer, &above, LockType::Write).unwrap();
    let mut c = server.connect();
    let by_inner = file_of_v3(&mut c, b"/in", &[b"file"]);
    let by_outer = file_of_v3(&mut c, b"/all", &[b"in", b"file"]);
    assert_ne!(by_inner.as_bytes(), by_outer.as_bytes());
    let mut process = Process::new(server.connect(), b"host", 1);
    for file in [&by_inner, &by_outer] {
        assert_eq!(process.lock(file, WHOLE, true), Stats::Denied);
    }
}

#[test]
fn a_change_by_the_other_export_recalls_a_delegation() {
    let server = serving(Serve::new());
    let mut outer = Backed::connect_as(&server, b"outer", 1, 1);
    let (above, stateid) = delegated(&mut outer, OUTER);
    let mut c = server.connect();
    let file = file_of_v3(&mut c, b"/in", &[b"file"]);
    let write = c.answer_to_write(&file, 0, b"data").unwrap();
    assert_eq!(write.unwrap_err().status, Nfsstat3::Jukebox);
    assert_eq!(outer.wait(), Seen::Recall(stateid));
    assert_eq!(outer.file, above.handle, "the client knows this handle");
    give_back(&mut outer, &above, stateid);
    c.answer_to_write(&file, 0, b"data").unwrap().unwrap();

    // One client that comes by both exports takes the file for two.
    let (above, stateid) = delegated(&mut outer, OUTER);
    let second = try_open(&mut outer, INNER, 0, share::WANT_NO_DELEG);
    assert_eq!(second.err(), Some(Nfsstat4::Delay));
    assert_eq!(outer.wait(), Seen::Recall(stateid));
    give_back(&mut outer, &above, stateid);
    open(&mut outer, INNER);
    let third = try_open(&mut outer, OUTER, 0, share::WANT_WRITE_DELEG).unwrap();
    assert_eq!(third.delegation, None, "the file is known by two handles");
}

#[test]
fn state_of_both_exports_outlives_a_kill_and_an_export_that_comes_back() {
    let mut server = serving(Serve::new().cached());
    let [mut outer, mut inner] = [b"outer", b"inner"].map(|name| Backed::connect_as(&server, name, 1, 1));
    let below = open(&mut inner, INNER);
    lock(&mut inner, &below, LockType::Write).unwrap();
    open(&mut outer, OUTER);
    // The export is missing at the start, and is added in service.
    server.kill();
    server.configure(&export("", "all"));
    server.start();
    let refused = |server: &Server| {
        let mut outer = Backed::connect_as(server, b"outer", 1, 1);
        let above = open(&mut outer, OUTER);
        assert_eq!(lock(&mut outer, &above, LockType::Write), Err(Nfsstat4::Denied));
    };
    refused(&server);
    server.configure(&both());
    server.ask(&["reload"]);
    refused(&server);
    server.kill();
    server.start();
    refused(&server);
    let mut inner = Backed::connect_as(&server, b"inner", 1, 1);
    let again = open(&mut inner, INNER);
    lock(&mut inner, &again, LockType::Write).unwrap();
}

#[test]
fn an_open_file_outlives_its_removal_by_the_other_export() {
    needs_root!();
    let server = serving(Serve::new());
    let mut inner = Backed::connect_as(&server, b"inner", 1, 1);
    let below = open(&mut inner, INNER);
    let mut c = server.connect();
    let dir = file_of_v3(&mut c, b"/all", &[b"in"]);
    c.remove(&dir, b"file").unwrap();
    let getattr = |inner: &mut Backed| {
        let getattr = Op::Getattr(GetattrArgs { request: Bitmap::of(&[attr::SIZE]) });
        inner.status(&[putfh(&below.handle), getattr])
    };
    assert_eq!(getattr(&mut inner), Nfsstat4::Ok);
    let close = Op::Close(CloseArgs { seqid: 0, open_stateid: below.stateid });
    assert_eq!(inner.status(&[putfh(&below.handle), close]), Nfsstat4::Ok);
    wait_for(|| getattr(&mut inner) == Nfsstat4::Stale);
}
