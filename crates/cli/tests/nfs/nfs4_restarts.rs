//! NFSv4 clients over crashes of the server: what they hold is there again, without a grace period, and each request
//! happens once.

use std::os::unix::fs::FileExt;

use forebay_wire::Opaque;
use forebay_wire::nfs4::{
    Bitmap, CloseArgs, CreateArgs, CreateHow, CreateType, Fattr, GetattrArgs, LockType, NameArgs, Nfsstat4,
    Op, OpResult, OpenArgs, OpenClaim, OpenHow, RenameArgs, StableHow4, StateOwner, TO_END, WriteArgs, attr,
    share,
};

use crate::harness::*;
use crate::nfs4::{Client4, putfh, remove};

fn served() -> Server {
    Serve::unsquashed().flags(&["--mode", "write-back"]).start()
}

fn make() -> OpenHow<'static> {
    OpenHow::Create(CreateHow::Guarded(Fattr::default()))
}

#[test]
fn locks_opens_and_sessions_survive_a_kill() {
    let mut server = served();
    let (mut one, mut two) = (Client4::connect(&server, b"one"), Client4::connect(&server, b"two"));
    let (open, file) = one.open(b"file", make(), share::WRITE).unwrap();
    assert_eq!(one.lock(&file, open, LockType::Write, 0, 10), Nfsstat4::Ok);
    for _ in 0..3 {
        server.kill();
        server.start();
        one.reconnect(&server);
        two.reconnect(&server);
        // No grace period: an ordinary open is possible at once, and meets the share that was there before.
        assert_eq!(two.open(b"file", OpenHow::NoCreate, 0), Err(Nfsstat4::ShareDenied));
        let write = WriteArgs { stateid: open, offset: 0, stable: StableHow4::FileSync, data: b"on" };
        assert_eq!(one.status(&[putfh(&file), Op::Write(write)]), Nfsstat4::Ok);
        assert_eq!(one.lock(&file, open, LockType::Write, 20, 1), Nfsstat4::Ok);
    }
    let close = Op::Close(CloseArgs { seqid: 0, open_stateid: open });
    assert_eq!(one.status(&[putfh(&file), close]), Nfsstat4::Ok);
    let (open, _) = two.open(b"file", OpenHow::NoCreate, 0).unwrap();
    assert_eq!(two.lock(&file, open, LockType::Write, 0, TO_END), Nfsstat4::Ok, "CLOSE freed the locks");
    server.kill();
    server.start();
    two.reconnect(&server);
    one.reconnect(&server);
    let (open, _) = one.open(b"file", OpenHow::NoCreate, 0).unwrap();
    assert_eq!(one.lock(&file, open, LockType::Read, 100, 1), Nfsstat4::Denied);
}

#[test]
fn a_clean_stop_keeps_the_state_of_clients_as_well() {
    let mut server = served();
    let mut one = Client4::connect(&server, b"one");
    let (open, file) = one.open(b"file", make(), 0).unwrap();
    assert_eq!(one.lock(&file, open, LockType::Write, 0, 10), Nfsstat4::Ok);
    let mut two = Client4::connect(&server, b"two");
    server.flush();
    for _ in 0..2 {
        server.stop();
        server.start();
        one.reconnect(&server);
        two.reconnect(&server);
        let (other, _) = two.open(b"file", OpenHow::NoCreate, 0).unwrap();
        assert_eq!(two.lock(&file, other, LockType::Write, 9, 1), Nfsstat4::Denied);
        assert_eq!(one.lock(&file, open, LockType::Write, 9, 1), Nfsstat4::Ok);
    }
}

/// The pool has the key of file handles and the clients' state, so another host can go on with both.
#[test]
fn handles_locks_and_sessions_survive_the_loss_of_the_state_directory() {
    let mut server = served();
    let root = server.connect().root();
    let (mut one, mut two) = (Client4::connect(&server, b"one"), Client4::connect(&server, b"two"));
    let (open, file) = one.open(b"file", make(), 0).unwrap();
    assert_eq!(one.lock(&file, open, LockType::Write, 0, 10), Nfsstat4::Ok);
    for is_readable in [true, false] {
        server.kill();
        let key = std::fs::read(server.state.join("handle.key")).unwrap();
        std::fs::remove_dir_all(&server.state).unwrap();
        if !is_readable {
            // The start finds no key before it opens the pool, which needs one copy of the superblock only.
            for cache in server.caches() {
                let file = std::fs::File::options().write(true).open(cache).unwrap();
                file.write_all_at(b"rot", 700).unwrap();
            }
            let said = server.refusal();
            assert!(
                said.contains("has the key of the file handles") && said.contains("start again"),
                "{said}"
            );
        }
        server.start();
        assert_eq!(std::fs::read(server.state.join("handle.key")).unwrap(), key);
        server.connect().attr(&root);
        one.reconnect(&server);
        two.reconnect(&server);
        let (other, _) = two.open(b"file", OpenHow::NoCreate, 0).unwrap();
        assert_eq!(two.lock(&file, other, LockType::Write, 9, 1), Nfsstat4::Denied);
        assert_eq!(one.lock(&file, open, LockType::Write, 9, 1), Nfsstat4::Ok);
    }
}

/// With another key, every handle of the clients would be refused.
#[test]
fn a_key_of_handles_that_is_not_the_pool_s_is_refused_and_its_removal_brings_the_pool_s_back() {
    let mut server = served();
    let root = server.connect().root();
    server.stop();
    let path = server.state.join("handle.key");
    let key = std::fs::read(&path).unwrap();
    for _ in 0..2 {
        std::fs::write(&path, [7; 16]).unwrap();
        let said = server.refusal();
        assert!(said.contains(path.to_str().unwrap()) && said.contains("remove that file"), "{said}");
        assert_eq!(std::fs::read(&path).unwrap(), [7; 16], "a refused start changes nothing");
    }
    std::fs::remove_file(&path).unwrap();
    server.start();
    assert_eq!(std::fs::read(&path).unwrap(), key);
    server.connect().attr(&root);
}

/// The reply is in the log with the change. The client did not get it.
#[test]
fn a_change_is_not_repeated_after_a_crash() {
    let mut server = served();
    let mut c = Client4::connect(&server, b"one");
    let (_, file) = c.open(b"file", make(), 0).unwrap();
    let size = Op::Getattr(GetattrArgs { request: Bitmap::of(&[attr::SIZE]) });
    let made = CreateArgs { objtype: CreateType::Dir, name: b"dir", attributes: Fattr::default() };
    let rename = Op::Rename(RenameArgs { oldname: b"file", newname: b"new" });
    let link = Op::Link(NameArgs { name: b"link" });
    let changes: [&[Op<'_>]; 4] = [
        &[Op::Putrootfh(()), Op::Create(made), Op::Getfh(()), size],
        &[putfh(&file), Op::Savefh(()), Op::Putrootfh(()), link],
        &[Op::Putrootfh(()), Op::Savefh(()), rename],
        &remove(b"link"),
    ];
    for change in changes {
        assert_eq!(c.status(change), Nfsstat4::Ok);
        let replied = c.replied.clone();
        server.kill();
        server.start();
        c.reconnect(&server);
        assert_eq!(c.again(|status, _| status), Nfsstat4::Ok, "it is carried out a second time");
        assert_eq!(c.replied, replied, "the same reply");
    }
    // The record of a change has no room for a long reply. Then it says that the change was carried out.
    let look = Op::Getattr(GetattrArgs {
        request: Bitmap::of(&[
            attr::FILEHANDLE,
            attr::OWNER,
            attr::FSID,
            attr::TIME_ACCESS,
            attr::TIME_MODIFY,
            attr::TIME_METADATA,
            attr::OWNER_GROUP,
            attr::SUPPORTED_ATTRS,
        ]),
    });
    let create = [Op::Putrootfh(()), Op::Create(CreateArgs { name: b"long", ..made })];
    let long: Vec<_> = create.into_iter().chain(std::iter::repeat_n(look, 13)).collect();
    assert_eq!(c.status(&long), Nfsstat4::Ok);
    assert!((1700..4096).contains(&c.replied.len()), "{}", c.replied.len());
    server.kill();
    server.start();
    c.reconnect(&server);
    assert_eq!(c.again(|status, _| status), Nfsstat4::Ok, "it is carried out a second time");
    assert_eq!(c.status(&remove(b"link")), Nfsstat4::Noent);
    let (_, _) = c.open(b"other", make(), 0).unwrap();
    server.kill();
    server.start();
    c.reconnect(&server);
    c.again(|status, results| {
        assert_eq!(status, Nfsstat4::Ok);
        assert!(matches!(results[1], OpResult::Open(Ok(_))), "{results:?}");
    });
}

/// The client sends without waiting, and the server is killed at any moment.
#[test]
fn no_kill_makes_a_client_see_a_false_error() {
    let mut server = served();
    let mut c = Client4::connect(&server, b"one");
    let root = Op::Putrootfh(());
    for round in 0..20_u32 {
        let name = format!("f{round}");
        let open = OpenArgs {
            seqid: 0,
            share_access: share::BOTH | share::WANT_NO_DELEG,
            share_deny: 0,
            owner: StateOwner { clientid: c.id, owner: Opaque(b"owner") },
            how: make(),
            claim: OpenClaim::Null(name.as_bytes()),
        };
        c.send(&[root, Op::Open(open)]);
        std::thread::sleep(std::time::Duration::from_micros(u64::from(round) * 37));
        server.kill();
        server.start();
        c.reconnect(&server);
        assert_eq!(c.again(|status, _| status), Nfsstat4::Ok, "OPEN of {name}");
        c.send(&[root, Op::Remove(NameArgs { name: name.as_bytes() })]);
        std::thread::sleep(std::time::Duration::from_micros(u64::from(round) * 23));
        server.kill();
        server.start();
        c.reconnect(&server);
        assert_eq!(c.again(|status, _| status), Nfsstat4::Ok, "REMOVE of {name}");
    }
}

/// The log releases its records of clients while they live on.
#[test]
fn released_records_are_replaced() {
    let mut server = served();
    let (mut one, mut two) = (Client4::connect(&server, b"one"), Client4::connect(&server, b"two"));
    let (open, file) = one.open(b"file", make(), share::WRITE).unwrap();
    assert_eq!(one.lock(&file, open, LockType::Write, 0, 10), Nfsstat4::Ok);
    for _ in 0..3 {
        // The end of a flush is the release of all records.
        server.flush();
        server.kill();
        server.start();
        one.reconnect(&server);
        two.reconnect(&server);
        assert_eq!(two.open(b"file", OpenHow::NoCreate, 0), Err(Nfsstat4::ShareDenied));
        assert_eq!(one.lock(&file, open, LockType::Write, 5, 10), Nfsstat4::Ok);
    }
}

/// Without the log, a client may reclaim only if the list of clients names it.
#[test]
fn a_client_has_no_session_until_the_list_of_clients_names_it() {
    let mut server = Serve::unsquashed().plain().start();
    let list = server.state.join("nfs4-clients");
    let text = std::fs::read_to_string(&list).unwrap();
    std::fs::remove_file(&list).unwrap();
    std::fs::create_dir(&list).unwrap();
    for _ in 0..2 {
        let refused = Client4::try_connect(server.connect(), 1, b"one").err();
        assert_eq!(refused, Some(Nfsstat4::Serverfault), "the state directory cannot be written");
    }
    std::fs::remove_dir(&list).unwrap();
    std::fs::write(&list, text).unwrap();
    let mut one = Client4::connect(&server, b"one");
    one.open(b"file", make(), 0).unwrap();
    server.kill();
    server.start();
    let mut two = Client4::connect(&server, b"two");
    assert_eq!(two.open(b"file", OpenHow::NoCreate, 0), Err(Nfsstat4::Grace), "the client may reclaim");
}
