//! Restarts of NFSv4.1 servers: a change happens once whenever the server is killed, and clients of a server without a
//! log reclaim their state in a grace period.

use forebay_wire::Opaque;
use forebay_wire::nfs4::{
    self, CloseArgs, CreateHow, Fattr, LockType, NameArgs, Nfsstat4, Op, OpResult, OpenArgs, OpenClaim,
    OpenHow, StateOwner, Stateid, share,
};

use crate::harness::*;
use crate::nfs4::{Client4, putfh};

fn cached() -> Server {
    Serve::unsquashed().cached().start()
}

fn restart(server: &mut Server, client: &mut Client4) {
    server.kill();
    server.start();
    client.reconnect(server);
}

fn creating() -> OpenHow<'static> {
    OpenHow::Create(CreateHow::Unchecked(Fattr::default()))
}

fn close(open: Stateid) -> Op<'static> {
    Op::Close(CloseArgs { seqid: 0, open_stateid: open })
}

fn make_dir(name: &[u8]) -> Op<'_> {
    Op::Create(nfs4::CreateArgs { objtype: nfs4::CreateType::Dir, name, attributes: Fattr::default() })
}

/// The moments at which a server is killed in the middle of a request.
const MOMENTS: usize = 4;

/// The log releases the records of the killed server before the client asks again.
#[test]
fn a_change_happens_once_though_the_log_released_its_record() {
    let mut server = cached();
    let mut c = Client4::connect(&server, b"one");
    for round in 0..12 {
        let (old, new) = (format!("old{round}"), format!("new{round}"));
        assert_eq!(c.status(&[Op::Putrootfh(()), make_dir(old.as_bytes())]), Nfsstat4::Ok);
        let rename = Op::Rename(nfs4::RenameArgs { oldname: old.as_bytes(), newname: new.as_bytes() });
        c.send(&[Op::Putrootfh(()), Op::Savefh(()), rename]);
        wait_for(|| server.data.join(&new).exists());
        for _ in 0..2 {
            server.kill();
            server.start();
            server.ask(&["flush", "--wait"]);
        }
        c.reconnect(&server);
        assert_eq!(c.again(|status, _| status), Nfsstat4::Ok, "round {round}");
        assert!(server.data.join(&new).exists());

        let made = format!("made{round}");
        c.send(&[Op::Putrootfh(()), make_dir(made.as_bytes()), Op::Getfh(())]);
        wait_for(|| server.data.join(&made).exists());
        for _ in 0..2 {
            server.kill();
            server.start();
        }
        c.reconnect(&server);
        assert_eq!(c.again(|status, _| status), Nfsstat4::Ok, "round {round}");
    }
}

#[test]
fn a_change_happens_once_whenever_the_server_is_killed() {
    let mut server = cached();
    let mut c = Client4::connect(&server, b"one");
    std::fs::create_dir(server.data.join("old")).unwrap();
    for round in 0..12 {
        let (made, old, new) = (format!("made{round}"), format!("old{round}"), format!("new{round}"));
        let dir = server.data.join(&old);
        assert_eq!(c.status(&[Op::Putrootfh(()), make_dir(old.as_bytes())]), Nfsstat4::Ok);
        let rename = Op::Rename(nfs4::RenameArgs { oldname: old.as_bytes(), newname: new.as_bytes() });
        let requests: [(&[Op<'_>], &dyn Fn() -> bool); 3] = [
            (&[Op::Putrootfh(()), make_dir(made.as_bytes()), Op::Getfh(())], &|| {
                server.data.join(&made).exists()
            }),
            (&[Op::Putrootfh(()), Op::Remove(NameArgs { name: old.as_bytes() })], &|| !dir.exists()),
            (&[Op::Putrootfh(()), Op::Savefh(()), rename], &|| !dir.exists()),
        ];
        let (operations, is_done) = requests[round % 3];
        c.send(operations);
        match round % MOMENTS {
            0 => c.connection.wait_for_reply(),
            1 => wait_for(is_done),
            _ => {}
        }
        restart(&mut server, &mut c);
        let first = c.again(|status, results| (status, format!("{results:?}")));
        assert_eq!(first.0, Nfsstat4::Ok, "round {round}");
        restart(&mut server, &mut c);
        let again = c.again(|status, results| (status, format!("{results:?}")));
        assert_eq!(again.0, Nfsstat4::Ok, "round {round}");
        if round % MOMENTS == 0 {
            // The reply was on its way, so it is durable. Else a change without a record gets a success.
            assert_eq!(again, first, "round {round}");
        }
        let there = [&made, &old, &new].map(|name| server.data.join(name).exists());
        assert_eq!(there, [[true, true, false], [false, false, false], [false, false, true]][round % 3]);
    }
}

#[test]
fn an_open_that_makes_a_file_is_carried_out_once() {
    let mut server = cached();
    let mut c = Client4::connect(&server, b"one");
    for round in 0..4 {
        let name = format!("file{round}");
        let open = Op::Open(OpenArgs {
            seqid: 0,
            share_access: share::BOTH | share::WANT_NO_DELEG,
            share_deny: 0,
            owner: StateOwner { clientid: c.id, owner: Opaque(b"owner") },
            how: OpenHow::Create(CreateHow::Guarded(Fattr::default())),
            claim: OpenClaim::Null(name.as_bytes()),
        });
        c.send(&[Op::Putrootfh(()), open, Op::Getfh(())]);
        if round % 2 == 0 {
            c.connection.wait_for_reply();
        }
        restart(&mut server, &mut c);
        let (open, file) = c.again(|status, results| match *results {
            [_, OpResult::Open(Ok(open)), OpResult::Getfh(Ok(file))] => {
                (open.stateid, file.object.0.to_vec())
            }
            _ => panic!("round {round}: {status:?} {results:?}"),
        });
        assert_eq!(c.lock(&file, open, LockType::Write, 0, 1), Nfsstat4::Ok);
        restart(&mut server, &mut c);
        assert_eq!(c.status(&[putfh(&file), close(open)]), Nfsstat4::Ok);
        assert_eq!(c.again(|status, _| status), Nfsstat4::Ok);
    }
}

#[test]
fn without_the_log_clients_reclaim_in_a_grace_period_that_ends_with_the_last() {
    let mut server = Serve::unsquashed().plain().start();
    let mut one = Client4::connect(&server, b"one");
    let (_, file) = one.open(b"file", creating(), 0).unwrap();
    server.kill();
    server.start();
    let mut two = Client4::connect(&server, b"two");
    assert_eq!(two.open(b"file", OpenHow::NoCreate, 0), Err(Nfsstat4::Grace));
    // The client says RECLAIM_COMPLETE at once.
    let mut one = Client4::connect(&server, b"one");
    let (open, _) = two.open(b"file", OpenHow::NoCreate, 0).unwrap();
    assert_eq!(two.lock(&file, open, LockType::Read, 15, 1), Nfsstat4::Ok);
    assert_eq!(one.status(&[putfh(&file)]), Nfsstat4::Ok);
}
