//! Locks and shares of NFSv3 clients: NLM and NSM, as a client sends them.

use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use forebay_wire::Opaque;
use forebay_wire::nfs4::{LockType, Nfsstat4, OpenHow};
use forebay_wire::nlm4::{self, LockArgs, Notify, Procedure, ShareAccess, ShareMode, Stats, TestReply};
use forebay_wire::nsm::{self, StatChange};
use forebay_wire::rpc::{ReplyHeader, ReplyStatus};
use forebay_wire::xdr::{Decode, Encode, Reader};

use crate::harness::*;
use crate::nfs4::Client4;

const ALL: Bytes = (0, 0);

/// Returns a new file.
fn file(server: &Server) -> FileHandle {
    let mut c = server.connect();
    let root = c.root();
    make(&mut c, &root, b"file", 0o666)
}

fn process(server: &Server, svid: i32) -> Process {
    Process::new(server.connect(), b"client", svid)
}

/// Returns a process of another host.
fn elsewhere(server: &Server) -> Process {
    Process::new(server.connect_from([127, 0, 0, 2]), b"elsewhere", 1)
}

#[test]
fn a_lock_excludes_other_processes_until_it_is_unlocked() {
    let server = Serve::unsquashed().start();
    let file = file(&server);
    let (mut one, mut two) = (process(&server, 1), process(&server, 2));
    assert_eq!(one.lock(&file, (10, 20), true), Stats::Granted);
    assert_eq!(one.lock(&file, (10, 20), true), Stats::Granted, "a repeated request");
    for other in [&mut two, &mut elsewhere(&server)] {
        assert_eq!(other.lock(&file, (29, 1), true), Stats::Denied);
        assert_eq!(other.lock(&file, (0, 11), false), Stats::Denied);
        assert_eq!(other.lock(&file, (30, 0), true), Stats::Granted, "behind the lock");
        other.test(&file, ALL, |res| match res.stat {
            TestReply::Denied(holder) => {
                assert_eq!((holder.exclusive, holder.svid, holder.oh.0), (true, 1, OWNER));
                assert_eq!((holder.offset, holder.length), (10, 20));
            }
            ref other => panic!("{other:?}"),
        });
        assert_eq!(other.unlock(&file, ALL), Stats::Granted);
    }
    assert_eq!(one.unlock(&file, (10, 10)), Stats::Granted);
    assert_eq!(two.lock(&file, (10, 10), false), Stats::Granted);
    assert_eq!(two.lock(&file, (10, 11), false), Stats::Denied, "a byte of the first lock is left");
    assert_eq!(one.lock(&file, (10, 10), false), Stats::Granted, "readers share");
    assert_eq!(one.lock(&file, (10, 10), true), Stats::Denied);
    two.test(&file, (100, 1), |res| assert_eq!(res.stat, TestReply::Granted));
    let args = one.args(&file, (1000, 1), true);
    assert_eq!(one.stat(Procedure::NmLock, &args), Stats::Granted);
    assert_eq!(two.lock(&file, (1000, 1), true), Stats::Denied);
}

#[test]
fn locks_of_nfsv3_and_nfsv4_conflict_both_ways() {
    let server = Serve::unsquashed().start();
    let file = file(&server);
    let (mut three, mut four) = (process(&server, 7), Client4::connect(&server, b"four"));
    let (open, handle) = four.open(b"file", OpenHow::NoCreate, 0).unwrap();
    assert_eq!(handle, file.as_bytes());
    assert_eq!(three.lock(&file, (0, 10), true), Stats::Granted);
    assert_eq!(four.lock(&handle, open, LockType::Write, 5, 1), Nfsstat4::Denied);
    assert_eq!(four.lock(&handle, open, LockType::Write, 10, 5), Nfsstat4::Ok);
    assert_eq!(three.lock(&file, (14, 1), false), Stats::Denied);
    three.test(&file, (10, 1), |res| match res.stat {
        TestReply::Denied(holder) => assert_eq!((holder.svid, holder.offset, holder.length), (0, 10, 5)),
        ref other => panic!("{other:?}"),
    });
    assert_eq!(three.lock(&file, (15, 0), true), Stats::Granted);
}

#[test]
fn shares_of_nfsv3_and_opens_of_nfsv4_conflict_both_ways() {
    let server = Serve::unsquashed().start();
    let file = file(&server);
    let (mut one, mut two) = (process(&server, 0), elsewhere(&server));
    let (read, both) = (ShareAccess::Read, ShareAccess::ReadWrite);
    assert_eq!(one.share(Procedure::Share, &file, read, ShareMode::Write), Stats::Granted);
    assert_eq!(two.share(Procedure::Share, &file, both, ShareMode::None), Stats::Denied);
    assert_eq!(two.share(Procedure::Share, &file, read, ShareMode::Read), Stats::Denied);
    assert_eq!(two.share(Procedure::Share, &file, read, ShareMode::None), Stats::Granted);
    let mut four = Client4::connect(&server, b"four");
    let open = |four: &mut Client4, deny| four.open(b"file", OpenHow::NoCreate, deny).map(|_| ());
    assert_eq!(open(&mut four, 0), Err(Nfsstat4::ShareDenied), "the open writes");
    assert_eq!(one.share(Procedure::Unshare, &file, read, ShareMode::Write), Stats::Granted);
    assert_eq!(open(&mut four, 1), Err(Nfsstat4::ShareDenied), "another host reads");
    assert_eq!(two.share(Procedure::Unshare, &file, read, ShareMode::None), Stats::Granted);
    assert_eq!(open(&mut four, 1), Ok(()));
    assert_eq!(one.share(Procedure::Share, &file, read, ShareMode::None), Stats::Denied);
}

#[test]
fn handles_and_callers_are_checked_as_those_of_nfsv3() {
    needs_root!();
    let server = Serve::unsquashed().start();
    let mut c = server.connect();
    let root = c.root();
    let (file, private) = (make(&mut c, &root, b"file", 0o666), make(&mut c, &root, b"private", 0o600));
    let dir = c.mkdir(&root, b"dir", mode(0o755)).unwrap().object.unwrap();
    let mut one = process(&server, 1);
    assert_eq!(one.lock(&dir, ALL, false), Stats::Failed, "no regular file");
    let mut forged = file.as_bytes().to_vec();
    *forged.last_mut().unwrap() ^= 1;
    let forged = FileHandle::new(&forged).unwrap();
    assert_eq!(one.lock(&forged, ALL, false), Stats::StaleFh);
    let mut user = Process::new(server.connect().acting_as(user(1000, 1000, &[])), b"client", 2);
    assert_eq!(user.lock(&private, ALL, false), Stats::Failed, "the caller may not read it");
    assert_eq!(user.lock(&file, ALL, true), Stats::Granted);
    assert_eq!(c.remove(&root, b"file").status(), Nfsstat3::Ok);
    assert_eq!(one.lock(&file, ALL, false), Stats::StaleFh);
    assert_eq!(user.unlock(&file, ALL), Stats::StaleFh);
    one.test(&file, ALL, |res| assert_eq!(res.stat, TestReply::StaleFh));
}

#[test]
fn a_read_only_export_grants_shared_locks_only_and_a_closed_one_none() {
    let server = Serve::new().flags(&["--read-only"]).start_on(|data| {
        std::fs::write(data.join("file"), "text").unwrap();
        std::fs::set_permissions(data.join("file"), PermissionsExt::from_mode(0o644)).unwrap();
    });
    let mut c = server.connect();
    let root = c.root();
    let file = c.find(&root, b"file");
    let mut one = process(&server, 1);
    assert_eq!(one.lock(&file, ALL, true), Stats::Rofs);
    assert_eq!(one.lock(&file, ALL, false), Stats::Granted);
    let toml = "[[export]]\npath='@/data'\nname='/'\n[[export.client]]\nnetworks=['127.0.0.1']\nsquash='none'\n\
                [[export]]\npath='@/state'\nname='/other'\n[[export.client]]\nnetworks=['127.0.0.2']\n";
    let toml = toml.replace("@/state", "@/other");
    let server = Serve::new().exports(&toml).start_on(|data| {
        std::fs::create_dir(data.parent().unwrap().join("other")).unwrap();
    });
    let file = self::file(&server);
    assert_eq!(process(&server, 1).lock(&file, ALL, true), Stats::Granted);
    assert_eq!(elsewhere(&server).lock(&file, (5, 0), false), Stats::Failed, "the export is closed to it");
}

#[test]
fn a_forged_unlock_from_another_address_does_nothing() {
    let server = Serve::unsquashed().start();
    let file = file(&server);
    let mut one = process(&server, 1);
    assert_eq!(one.lock(&file, ALL, true), Stats::Granted);
    let mut forger = Process::new(server.connect_from([127, 0, 0, 2]), b"client", 1);
    assert_eq!(forger.unlock(&file, ALL), Stats::Granted, "it has no such lock");
    notify(&mut forger.connection, b"client", 99);
    assert_eq!(forger.call(Procedure::FreeAll, &Notify { name: Opaque(b"client"), state: 0 }), b"");
    assert_eq!(process(&server, 2).lock(&file, ALL, true), Stats::Denied);
}

#[test]
fn an_ordinary_user_of_a_client_frees_no_locks() {
    needs_root!();
    let server = Serve::unsquashed().flags(&["--privileged-port"]).start();
    let reserved = || {
        let port = (600..1024).find_map(|port| server.try_connect_from(([127, 0, 0, 1], port).into()));
        port.expect("a port below 1024 is free")
    };
    let mut c = reserved();
    let root = c.root();
    let file = make(&mut c, &root, b"file", 0o666);
    let mut one = Process::new(c, b"client", 1);
    assert_eq!(one.lock(&file, ALL, true), Stats::Granted);
    assert_eq!(one.share(Procedure::Share, &file, ShareAccess::Read, ShareMode::Read), Stats::Granted);
    let mut forger = Process::new(server.connect(), b"client", 1);
    assert_eq!(forger.lock(&file, ALL, true), Stats::Failed);
    assert_eq!(forger.unlock(&file, ALL), Stats::Failed);
    assert_eq!(forger.share(Procedure::Unshare, &file, ShareAccess::Read, ShareMode::Read), Stats::Failed);
    notify(&mut forger.connection, b"client", 99);
    assert_eq!(forger.call(Procedure::FreeAll, &Notify { name: Opaque(b"client"), state: 0 }), b"");
    let mut two = Process::new(reserved(), b"other", 1);
    assert_eq!(two.lock(&file, ALL, true), Stats::Denied);
    assert_eq!(two.share(Procedure::Share, &file, ShareAccess::Read, ShareMode::None), Stats::Denied);
    assert_eq!(one.unlock(&file, ALL), Stats::Granted);
    assert_eq!(two.lock(&file, ALL, true), Stats::Granted);
}

fn notify(connection: &mut Client, name: &[u8], state: i32) {
    let change = StatChange { mon_name: Opaque(name), state };
    let procedure = (nsm::PROGRAM, nsm::VERSION, nsm::Procedure::Notify as u32);
    assert_eq!(connection.result_bytes(procedure, &change), b"");
}

#[test]
fn the_locks_of_a_host_that_restarts_are_freed() {
    let server = Serve::unsquashed().start();
    let file = file(&server);
    let (mut one, mut two) = (process(&server, 1), elsewhere(&server));
    one.state = 5;
    assert_eq!(one.lock(&file, (0, 10), true), Stats::Granted);
    assert_eq!(one.share(Procedure::Share, &file, ShareAccess::Read, ShareMode::None), Stats::Granted);
    notify(&mut one.connection, b"client", 5);
    assert_eq!(
        two.lock(&file, (0, 10), true),
        Stats::Denied,
        "the number is known: the host did not restart"
    );
    notify(&mut one.connection, b"another", 7);
    assert_eq!(two.lock(&file, (0, 10), true), Stats::Denied, "another host");
    notify(&mut one.connection, b"client.example", 7);
    assert_eq!(two.lock(&file, (0, 10), true), Stats::Granted);
    assert_eq!(two.share(Procedure::Share, &file, ShareAccess::Read, ShareMode::Read), Stats::Granted);
}

#[test]
fn a_notification_over_udp_frees_locks() {
    let server = Serve::unsquashed().start();
    let file = file(&server);
    let mut one = process(&server, 1);
    one.state = 5;
    assert_eq!(one.lock(&file, ALL, true), Stats::Granted);
    let change = StatChange { mon_name: Opaque(b"client"), state: 7 };
    let mut args = Vec::new();
    change.encode(&mut args);
    let procedure = (nsm::PROGRAM, nsm::VERSION, nsm::Procedure::Notify as u32);
    let call = one.connection.call_bytes(procedure, &args);
    for (from, is_freed) in [("127.0.0.3:0", false), ("127.0.0.1:0", true)] {
        let socket = UdpSocket::bind(from).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket.send_to(&call, server.address()).unwrap();
        let mut reply = [0; 64];
        let len = socket.recv(&mut reply).unwrap();
        let header = ReplyHeader::decode(&mut Reader::new(&reply[..len])).unwrap();
        assert_eq!(header, ReplyHeader { xid: one.connection.xid, status: ReplyStatus::Success });
        let expected = if is_freed { Stats::Granted } else { Stats::Denied };
        assert_eq!(elsewhere(&server).lock(&file, ALL, true), expected, "from {from}");
    }
}

#[test]
fn free_all_frees_the_locks_and_shares_of_one_host() {
    let server = Serve::unsquashed().start();
    let file = file(&server);
    let (mut one, mut two) = (process(&server, 1), process(&server, 2));
    let mut other = Process::new(server.connect(), b"other", 1);
    let args = one.args(&file, (0, 10), true);
    assert_eq!(one.stat(Procedure::NmLock, &args), Stats::Granted);
    assert_eq!(two.lock(&file, (10, 10), true), Stats::Granted);
    assert_eq!(other.lock(&file, (20, 10), true), Stats::Granted);
    assert_eq!(one.call(Procedure::FreeAll, &Notify { name: Opaque(b"client"), state: 0 }), b"");
    let mut elsewhere = elsewhere(&server);
    assert_eq!(elsewhere.lock(&file, (0, 20), true), Stats::Granted);
    assert_eq!(elsewhere.lock(&file, (20, 1), true), Stats::Denied, "a host of another name");
}

#[test]
fn locks_of_before_a_restart_can_be_reclaimed_in_the_grace_period_only() {
    let mut server = Serve::unsquashed().flags(&["--lease", "10s"]).plain().start();
    let file = file(&server);
    let mut one = process(&server, 1);
    assert_eq!(one.lock(&file, ALL, true), Stats::Granted);
    assert_eq!(one.reclaim(&file, ALL), Stats::DeniedGracePeriod, "there is nothing to reclaim");
    server.kill();
    server.start();
    let (mut one, mut two) = (process(&server, 1), elsewhere(&server));
    assert_eq!(two.lock(&file, ALL, true), Stats::DeniedGracePeriod);
    two.test(&file, ALL, |res| assert_eq!(res.stat, TestReply::DeniedGracePeriod));
    assert_eq!(one.reclaim(&file, ALL), Stats::Granted);
    wait_for(|| elsewhere(&server).lock(&file, ALL, true) != Stats::DeniedGracePeriod);
    assert_eq!(two.lock(&file, ALL, true), Stats::Denied, "the lock was reclaimed");
}

/// The log has the locks, so there is nothing to reclaim and no grace period.
#[test]
fn locks_in_the_log_outlive_a_kill_and_a_stop() {
    let mut server = Serve::unsquashed().cached().start();
    let file = file(&server);
    let mut one = process(&server, 1);
    assert_eq!(one.lock(&file, (0, 10), true), Stats::Granted);
    assert_eq!(one.lock(&file, (20, 10), true), Stats::Granted);
    assert_eq!(one.unlock(&file, (20, 5)), Stats::Granted);
    for round in 0..3 {
        if round == 1 {
            server.stop()
        } else {
            server.kill()
        }
        server.start();
        let (mut one, mut two) = (process(&server, 1), elsewhere(&server));
        assert_eq!(two.lock(&file, (9, 1), true), Stats::Denied);
        assert_eq!(two.lock(&file, (25, 1), true), Stats::Denied);
        assert_eq!(two.lock(&file, (20, 5), true), Stats::Granted, "no grace period");
        assert_eq!(two.unlock(&file, (20, 5)), Stats::Granted);
        assert_eq!(one.lock(&file, (9, 1), true), Stats::Granted, "it is its own");
        assert_eq!(one.reclaim(&file, (0, 10)), Stats::DeniedGracePeriod);
    }
    let mut one = process(&server, 1);
    assert_eq!(one.unlock(&file, ALL), Stats::Granted);
    server.kill();
    server.start();
    assert_eq!(elsewhere(&server).lock(&file, ALL, true), Stats::Granted);
}

#[test]
fn a_server_without_locks_has_no_such_programs() {
    let server = Serve::unsquashed().flags(&["--locks=false"]).start();
    let mut c = server.connect();
    for (program, version) in [(nlm4::PROGRAM, nlm4::VERSION), (nsm::PROGRAM, nsm::VERSION)] {
        assert_eq!(c.call((program, version, 0), b"").0, ReplyStatus::ProgUnavail);
    }
    let server = Serve::unsquashed().start();
    let mut c = server.connect();
    assert_eq!(c.call((nlm4::PROGRAM, 4, 0), b"").0, ReplyStatus::Success);
    assert_eq!(c.call((nlm4::PROGRAM, 3, 0), b"").0, ReplyStatus::ProgMismatch { low: 4, high: 4 });
    assert_eq!(c.call((nlm4::PROGRAM, 4, 17), b"").0, ReplyStatus::ProcUnavail);
    assert_eq!(c.call((nlm4::PROGRAM, 4, 2), b"abc").0, ReplyStatus::GarbageArgs);
    assert_eq!(c.call((nsm::PROGRAM, 1, 2), b"").0, ReplyStatus::ProcUnavail, "no monitoring for others");
}

#[test]
fn a_client_with_too_many_names_gets_no_further_locks() {
    let server = Serve::unsquashed().start();
    let file = file(&server);
    let mut one = process(&server, 1);
    let names: Vec<[u8; 2]> = (0..65).map(|number| [b'a', number]).collect();
    let last = names.iter().map(|name| {
        let mut alock = one.alock(&file, ALL);
        alock.caller_name = Opaque(name);
        let args = LockArgs { alock, ..one.args(&file, ALL, false) };
        one.stat(Procedure::Lock, &args)
    });
    let stats: Vec<_> = last.collect();
    assert!(stats[..64].iter().all(|stat| *stat == Stats::Granted), "{stats:?}");
    assert_eq!(stats[64], Stats::DeniedNolocks);
    assert_eq!(elsewhere(&server).lock(&file, ALL, false), Stats::Granted);
}
