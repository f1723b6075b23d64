//! Tests of retransmissions: they get the first reply, byte for byte, and are never executed twice.

use crate::harness::*;

/// Sends a call, makes other changes, and sends the bytes again on a new connection. The reply must be the first one,
/// and nothing may change.
fn once<R>(
    server: &Server,
    c: &mut Client,
    record: &[u8],
    expected: Nfsstat3,
    between: impl FnOnce(&mut Client) -> R,
    check: impl FnOnce(&mut Client),
) {
    let first = c.exchange(record);
    assert_eq!(status_of(&first), expected);
    between(c);
    assert_eq!(server.connect().exchange(record), first, "on a new connection");
    assert_eq!(c.exchange(record), first, "on the same one");
    check(c);
}

#[test]
fn a_retransmission_gets_the_first_reply_and_changes_nothing() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let ok = Nfsstat3::Ok;
    let place = |child| name(&root, child);
    let there = |c: &mut Client, child: &[u8]| c.lookup(&root, child).is_ok();
    c.new_file(&root, b"f", 0o644);

    let record = call(&mut c, Procedure::Remove, &place(b"f"));
    once(&server, &mut c, &record, ok, |c| c.new_file(&root, b"f", 0o644), |c| assert!(there(c, b"f")));

    let record = call(&mut c, Procedure::Rename, &RenameArgs { from: place(b"f"), to: place(b"g") });
    once(&server, &mut c, &record, ok, |c| c.new_file(&root, b"f", 0o644), |c| assert!(there(c, b"f")));

    let how = CreateHow::Exclusive([3; 8]);
    let record = call(&mut c, Procedure::Create, &CreateArgs { target: place(b"x"), how });
    once(&server, &mut c, &record, ok, |c| c.remove(&root, b"x").unwrap(), |c| assert!(!there(c, b"x")));

    let how = CreateHow::Guarded(mode(0o644));
    let record = call(&mut c, Procedure::Create, &CreateArgs { target: place(b"y"), how });
    once(&server, &mut c, &record, ok, |_| {}, |c| assert!(there(c, b"y")));

    let record = call(&mut c, Procedure::Mkdir, &MkdirArgs { target: place(b"d"), attributes: mode(0o755) });
    once(&server, &mut c, &record, ok, |c| c.rmdir(&root, b"d").unwrap(), |c| assert!(!there(c, b"d")));
    c.new_dir(&root, b"d", 0o755);
    let record = call(&mut c, Procedure::Rmdir, &place(b"d"));
    once(&server, &mut c, &record, ok, |c| c.new_dir(&root, b"d", 0o755), |c| assert!(there(c, b"d")));

    let symlink = SymlinkArgs { target: place(b"l"), attributes: Sattr3::default(), path: b"to" };
    let record = call(&mut c, Procedure::Symlink, &symlink);
    once(&server, &mut c, &record, ok, |c| c.remove(&root, b"l").unwrap(), |c| assert!(!there(c, b"l")));

    let fifo = MknodArgs { target: place(b"p"), what: MknodData::Fifo(mode(0o644)) };
    let record = call(&mut c, Procedure::Mknod, &fifo);
    once(&server, &mut c, &record, ok, |c| c.remove(&root, b"p").unwrap(), |c| assert!(!there(c, b"p")));

    let file = c.find(&root, b"f");
    let record = call(&mut c, Procedure::Link, &LinkArgs { file, link: place(b"h") });
    once(&server, &mut c, &record, ok, |c| c.remove(&root, b"h").unwrap(), |c| assert!(!there(c, b"h")));

    let guard = Some(c.attr(&file).ctime);
    let args = SetattrArgs { object: file, new_attributes: mode(0o600), guard };
    let record = call(&mut c, Procedure::Setattr, &args);
    let between = |c: &mut Client| c.setattr(&file, mode(0o640)).unwrap();
    once(&server, &mut c, &record, ok, between, |c| assert_eq!(c.attr(&file).mode, 0o640));

    let write = WriteArgs { file, offset: 0, count: 3, stable: StableHow::FileSync, data: b"old" };
    let record = call(&mut c, Procedure::Write, &write);
    let between = |c: &mut Client| c.write(&file, 0, b"new", StableHow::FileSync).unwrap();
    once(&server, &mut c, &record, ok, between, |c| assert_eq!(c.read(&file, 0, 9).unwrap().data, b"new"));

    // A refusal is kept like any other reply.
    let record = call(&mut c, Procedure::Remove, &place(b"none"));
    let between = |c: &mut Client| c.new_file(&root, b"none", 0o644);
    once(&server, &mut c, &record, Nfsstat3::Noent, between, |c| assert!(there(c, b"none")));
    assert_eq!(server.status()["reply_cache"]["hits"], 24);
}

#[test]
fn another_request_with_the_same_transaction_is_executed() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let xid = c.xid;
    for child in [&b"a"[..], b"b", b"c"] {
        c.xid = xid;
        c.new_file(&root, child, 0o644);
    }
    let file = c.find(&root, b"a");
    for (n, data) in [&b"12"[..], b"34", b"345"].into_iter().enumerate() {
        c.xid = xid;
        c.write(&file, 0, data, StableHow::FileSync).unwrap();
        assert_eq!(c.read(&file, 0, 9).unwrap().data, data, "write {n}");
    }
    c.xid = xid;
    c.remove(&root, b"a").unwrap();
    c.xid = xid;
    c.remove(&root, b"b").unwrap();
    // An equal procedure number of another program is another request.
    c.xid = xid;
    c.attr(&root);
}

/// Programs of one host, and hosts behind one address, may give different requests one transaction number. Such
/// requests may begin with equal bytes and have equal lengths.
#[test]
fn another_request_that_differs_in_its_last_bytes_only_is_executed() {
    let server = Serve::new().start();
    let (mut c, mut other) = (server.connect(), server.connect());
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let mut contents = vec![7; 8192];
    for last in [1, 2, 3] {
        contents[8191] = last;
        let one = if last % 2 == 0 { &mut other } else { &mut c };
        one.xid = 1000;
        one.write(&file, 0, &contents, StableHow::FileSync).unwrap();
        assert!(c.read(&file, 0, 9000).unwrap().data == contents, "write {last} was not executed");
    }
    let (long, short) = (vec![b'n'; 255], vec![b'n'; 254]);
    let names = [&long[..], &[&short[..], b"a"].concat(), &[&short[..], b"b"].concat()];
    c.new_file(&root, names[0], 0o644);
    for (from, to) in [(0, 1), (1, 0), (0, 2)] {
        let one = if to == 1 { &mut other } else { &mut c };
        one.xid = 2000;
        one.rename((&root, names[from]), (&root, names[to])).unwrap();
        assert!(c.lookup(&root, names[to]).is_ok(), "the rename to {to} was not executed");
    }
    for text in [[b't'; 1000], [b'u'; 1000]] {
        let text = [&[b't'; 999][..], &text[..1]].concat();
        let one = if text[999] == b't' { &mut c } else { &mut other };
        one.xid = 3000;
        one.symlink(&root, b"l", &text).unwrap();
        let link = c.find(&root, b"l");
        assert!(c.readlink(&link).unwrap().0 == text);
        c.remove(&root, b"l").unwrap();
    }
}

#[test]
fn another_machine_behind_the_same_address_gets_its_own_reply() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let args = CreateArgs { target: name(&root, b"f"), how: CreateHow::Guarded(mode(0o644)) };
    let record = call(&mut c, Procedure::Create, &args);
    assert_eq!(status_of(&c.exchange(&record)), Nfsstat3::Ok);
    let at = record.windows(4).position(|bytes| bytes == b"test").unwrap();
    let mut theirs = record.clone();
    theirs[at..at + 4].copy_from_slice(b"host");
    assert_eq!(status_of(&server.connect().exchange(&theirs)), Nfsstat3::Exist);
    // The stamp of the credential comes before the machine name and its length, and may differ in each request.
    let mut again = record;
    again[at - 8..at - 4].copy_from_slice(&[1, 2, 3, 4]);
    assert_eq!(status_of(&server.connect().exchange(&again)), Nfsstat3::Ok);
}

#[test]
fn another_user_never_gets_the_first_ones_reply() {
    let server = Serve::unsquashed().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o700);
    let args = MkdirArgs { target: name(&dir, b"mine"), attributes: mode(0o700) };
    let record = call(&mut c, Procedure::Mkdir, &args);
    let first = c.exchange(&record);
    assert_eq!(status_of(&first), Nfsstat3::Ok);
    // The transaction and the arguments are equal, but the user has no right to the change.
    let xid = c.xid;
    let same = |who: User| {
        let mut other = server.connect().acting_as(who);
        other.xid = xid.wrapping_sub(1);
        let record = call(&mut other, Procedure::Mkdir, &args);
        status_of(&other.exchange(&record))
    };
    assert_eq!(same(user(4001, 4001, &[])), Nfsstat3::Acces);
    assert_eq!(same(User::None), Nfsstat3::Acces);
    assert_eq!(same(user(0, 4001, &[])), Nfsstat3::Exist, "executed for itself");
    assert_eq!(server.connect().exchange(&record), first, "the first one's own is still kept");
}

#[test]
fn a_retransmission_of_what_is_under_way_waits_for_it() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let mut others: Vec<Client> = (0..3).map(|_| server.connect()).collect();
    for round in 0..100u32 {
        let child = round.to_string();
        let how = CreateHow::Guarded(mode(0o644));
        let args = CreateArgs { target: name(&root, child.as_bytes()), how };
        let record = call(&mut c, Procedure::Create, &args);
        // All calls are sent before any client reads an answer.
        c.send(&record);
        others.iter_mut().for_each(|other| other.send(&record));
        c.send(&record);
        let first = c.receive().unwrap();
        assert_eq!(status_of(&first), Nfsstat3::Ok, "executed twice");
        assert_eq!(c.receive().unwrap(), first);
        for other in &mut others {
            assert_eq!(other.receive().unwrap(), first);
        }
    }
}

/// The end of a connection whose CREATE was answered.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// The client has read the reply and closes the connection.
    InOrder,
    /// The client resets the connection.
    Reset,
    /// The client closes without reading the reply.
    Unread,
    /// The client closes in the middle of another record.
    CutOff,
}

/// Sends a guarded CREATE, ends the connection, removes the file, and sends the bytes again on a new connection.
/// Returns true if the call was executed again.
fn executed_after(end: End) -> bool {
    let server = Serve::new().start();
    let mut other = server.connect();
    let root = other.root();
    let mut c = server.connect();
    let args = CreateArgs { target: name(&root, b"f"), how: CreateHow::Guarded(mode(0o644)) };
    let record = call(&mut c, Procedure::Create, &args);
    c.send(&record);
    if end == End::Unread {
        c.wait_for_reply();
    } else {
        assert_eq!(status_of(&c.receive().unwrap()), Nfsstat3::Ok);
    }
    match end {
        End::InOrder | End::Unread => {}
        End::Reset => c.reset_at_close(),
        End::CutOff => c.send_raw(&[0x80, 0, 0, 100, 1, 2, 3]),
    }
    drop(c);
    wait_for(|| server.status()["connections"] == 1);
    other.remove(&root, b"f").unwrap();
    assert_eq!(status_of(&server.connect().exchange(&record)), Nfsstat3::Ok);
    other.lookup(&root, b"f").is_ok()
}

/// A client that closes its connection in order has its replies. An equal call then comes from another program, which
/// must not get a success for a file that does not exist.
#[test]
fn an_equal_call_is_executed_once_the_first_client_has_closed_its_connection() {
    assert!(executed_after(End::InOrder), "the reply of another program");
}

/// A connection that ends in any other way may have lost the reply, so its client retransmits on another connection.
#[test]
fn replies_outlive_a_connection_that_does_not_end_in_order() {
    for end in [End::Reset, End::Unread, End::CutOff] {
        assert!(!executed_after(end), "{end:?}: executed twice");
    }
}

/// If two connections sent one request, its reply is kept as long as either may retransmit.
#[test]
fn a_reply_goes_with_the_last_connection_that_asked_for_it() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let args = MkdirArgs { target: name(&root, b"d"), attributes: mode(0o755) };
    let record = call(&mut c, Procedure::Mkdir, &args);
    let first = c.exchange(&record);
    let mut second = server.connect();
    assert_eq!(second.exchange(&record), first);
    drop(second);
    wait_for(|| server.status()["connections"] == 1);
    assert_eq!(server.status()["reply_cache"]["entries"], 1);
    assert_eq!(c.exchange(&record), first);
    drop(c);
    wait_for(|| server.status()["reply_cache"]["entries"] == 0);
}

#[test]
fn many_changes_of_others_do_not_push_a_reply_out() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let args = MkdirArgs { target: name(&root, b"d"), attributes: mode(0o755) };
    let record = call(&mut c, Procedure::Mkdir, &args);
    let first = c.exchange(&record);
    // The most requests that a client has in flight, all from this address.
    let file = c.new_file(&root, b"f", 0o644);
    for n in 0..1000u32 {
        c.write(&file, 0, &n.to_be_bytes(), StableHow::Unstable).unwrap();
    }
    assert_eq!(server.connect().exchange(&record), first);
}

#[test]
fn looking_is_never_answered_from_the_cache() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let getattr = call(&mut c, Procedure::Getattr, &file);
    let read = call(&mut c, Procedure::Read, &ReadArgs { file, offset: 0, count: 10 });
    let before = (c.exchange(&getattr), c.exchange(&read));
    c.write(&file, 0, b"data", StableHow::FileSync).unwrap();
    let after = (c.exchange(&getattr), c.exchange(&read));
    assert_ne!(before.0, after.0);
    assert_ne!(before.1, after.1);
}

/// Returns the calls of a client that has a file `f`, a file `f2` and a directory `old`, in this order. Each call
/// would fail or do more if it were executed twice.
fn changes(c: &mut Client, root: &FileHandle) -> Vec<Vec<u8>> {
    let place = |child| name(root, child);
    let file = c.find(root, b"f");
    let guard = Some(c.attr(&file).ctime);
    let create = |child, how| CreateArgs { target: place(child), how };
    vec![
        call(c, Procedure::Setattr, &SetattrArgs { object: file, new_attributes: mode(0o600), guard }),
        call(c, Procedure::Create, &create(b"new", CreateHow::Guarded(mode(0o640)))),
        call(c, Procedure::Create, &create(b"once", CreateHow::Exclusive([3; 8]))),
        call(c, Procedure::Mkdir, &MkdirArgs { target: place(b"d"), attributes: mode(0o750) }),
        call(
            c,
            Procedure::Symlink,
            &SymlinkArgs { target: place(b"l"), attributes: Sattr3::default(), path: b"to" },
        ),
        call(c, Procedure::Mknod, &MknodArgs { target: place(b"p"), what: MknodData::Fifo(mode(0o600)) }),
        call(c, Procedure::Link, &LinkArgs { file, link: place(b"h") }),
        call(c, Procedure::Rename, &RenameArgs { from: place(b"f"), to: place(b"g") }),
        call(c, Procedure::Rmdir, &place(b"old")),
        call(c, Procedure::Remove, &place(b"f2")),
    ]
}

/// Makes the objects that [`changes`] needs, executes the calls, crashes, and sends all of them again.
fn crash_and_send_again(server: &mut Server, crash: impl FnOnce(&mut Server)) {
    let mut c = server.connect();
    let root = c.root();
    c.new_file(&root, b"f", 0o644);
    c.new_file(&root, b"f2", 0o644);
    c.new_dir(&root, b"old", 0o755);
    let records = changes(&mut c, &root);
    let replies: Vec<_> = records.iter().map(|record| c.exchange(record)).collect();
    for (n, reply) in replies.iter().enumerate() {
        assert_eq!(status_of(reply), Nfsstat3::Ok, "change {n}");
    }
    crash(server);
    let mut c = server.connect();
    for (n, (record, reply)) in records.iter().zip(&replies).enumerate() {
        assert_eq!(&c.exchange(record), reply, "change {n}");
    }
    // A new transaction number makes a new request.
    assert_eq!(c.remove(&root, b"f2").unwrap_err().status, Nfsstat3::Noent);
}

#[test]
fn over_a_crash_a_retransmission_gets_the_first_reply_and_changes_nothing() {
    let mut server = Serve::new().cached().start();
    crash_and_send_again(&mut server, |server| {
        server.kill();
        server.start();
    });
}

/// A flush releases the records of changes. Their replies must not go with them.
#[test]
fn over_a_flush_and_a_crash_a_retransmission_gets_the_first_reply() {
    let mut server = Serve::new().cached().start();
    crash_and_send_again(&mut server, |server| {
        server.ask(&["flush", "--wait"]);
        server.kill();
        server.start();
    });
}

/// The results of the first crash must be found after the second one as well.
#[test]
fn also_over_several_crashes_and_a_lost_cache_device() {
    let mut server = Serve::new().cached().flags(&["--make-missing"]).start();
    crash_and_send_again(&mut server, |server| {
        for n in 0..3 {
            server.kill();
            // The device is lost in the last round only. Without it, replies give way to data that must be on two
            // devices again.
            if n == 2 {
                std::fs::remove_file(&server.caches()[0]).unwrap();
            }
            server.start();
        }
    });
}

/// The log may have the record of a change that was never durable, or was undone by hand. The request is then
/// executed again. If the log itself makes changes durable, the change was durable, and recovery has repeated it.
#[test]
fn a_change_that_a_crash_took_back_is_executed_again() {
    let mut server = Serve::new().cached().start();
    let mut c = server.connect();
    let root = c.root();
    let how = CreateHow::Guarded(mode(0o644));
    let record = call(&mut c, Procedure::Create, &CreateArgs { target: name(&root, b"f"), how });
    let first = c.exchange(&record);
    server.kill();
    // A power cut can take away a change that the journal has not committed.
    std::fs::remove_file(server.data.join("f")).unwrap();
    server.start();
    let mut c = server.connect();
    let second = c.exchange(&record);
    assert_eq!(status_of(&second), Nfsstat3::Ok);
    let done_again = server.status()["exports"][0]["ordered"] == true;
    assert_eq!(second == first, done_again, "the answer to another file");
    assert!(c.lookup(&root, b"f").is_ok());
    server.kill();
    server.start();
    assert_eq!(server.connect().exchange(&record), second, "the first answer does not come back");
}

#[test]
fn answers_do_not_keep_a_flush_from_ending() {
    let server = Serve::new().cached().start();
    let mut c = server.connect();
    let root = c.root();
    for n in 0..50 {
        let file = c.new_file(&root, format!("f{n}").as_bytes(), 0o644);
        c.write(&file, 0, &[n; 4096], StableHow::FileSync).unwrap();
    }
    server.flush();
    for n in 0..50 {
        assert_eq!(std::fs::read(server.data.join(format!("f{n}"))).unwrap(), [n; 4096]);
    }
}
