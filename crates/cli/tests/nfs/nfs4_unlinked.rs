//! Files that lose their last name while an NFSv4 client has them open: they stay until the last CLOSE, also over
//! crashes of the server.

use forebay_wire::Opaque;
use forebay_wire::nfs3::{FileHandle, Nfsstat3};
use forebay_wire::nfs4::{
    Bitmap, CloseArgs, CreateHow, Fattr, GetattrArgs, NameArgs, Nfsstat4, Op, OpResult, OpenArgs, OpenClaim,
    OpenHow, ReadArgs, RenameArgs, StableHow4, StateOwner, Stateid, WriteArgs, attr, open_result, share,
};

use crate::harness::*;
use crate::nfs4::{Client4, putfh, remove};

/// A file that a client has open.
struct Open {
    stateid: Stateid,
    handle: Vec<u8>,
}

fn make(c: &mut Client4, name: &[u8], data: &[u8]) -> Open {
    let (stateid, handle) = c.open(name, OpenHow::Create(CreateHow::Guarded(Fattr::default())), 0).unwrap();
    let open = Open { stateid, handle };
    assert_eq!(open.write(c, 0, data), Nfsstat4::Ok);
    open
}

fn open(c: &mut Client4, name: &[u8]) -> Open {
    let (stateid, handle) = c.open(name, OpenHow::NoCreate, 0).unwrap();
    Open { stateid, handle }
}

impl Open {
    fn write(&self, c: &mut Client4, offset: u64, data: &[u8]) -> Nfsstat4 {
        let write = WriteArgs { stateid: self.stateid, offset, stable: StableHow4::FileSync, data };
        c.status(&[putfh(&self.handle), Op::Write(write)])
    }

    fn read(&self, c: &mut Client4) -> Result<Vec<u8>, Nfsstat4> {
        self.read_at(c, 0)
    }

    /// Reads at most 1,000 bytes.
    fn read_at(&self, c: &mut Client4, offset: u64) -> Result<Vec<u8>, Nfsstat4> {
        let read = Op::Read(ReadArgs { stateid: self.stateid, offset, count: 1000 });
        c.run(&[putfh(&self.handle), read], |status, results| match results.last() {
            Some(OpResult::Read(Ok(read))) => Ok(read.data.to_vec()),
            _ => Err(status),
        })
    }

    #[track_caller]
    fn close(&self, c: &mut Client4) {
        let close = Op::Close(CloseArgs { seqid: 0, open_stateid: self.stateid });
        assert_eq!(c.status(&[putfh(&self.handle), close]), Nfsstat4::Ok);
    }

    fn v3(&self) -> FileHandle {
        FileHandle::new(&self.handle).unwrap()
    }
}

/// Returns the number of links that a client sees, or the status.
fn links(c: &mut Client4, handle: &[u8]) -> Result<u32, Nfsstat4> {
    let get = Op::Getattr(GetattrArgs { request: Bitmap::of(&[attr::NUMLINKS]) });
    c.run(&[putfh(handle), get], |status, results| match results.last() {
        Some(OpResult::Getattr(Ok(got))) => Ok(got.attributes.attributes().unwrap().numlinks.unwrap()),
        _ => Err(status),
    })
}

/// Returns the number of names in the server's directory of kept files.
fn kept(server: &Server) -> usize {
    std::fs::read_dir(server.data.join(".forebay/unlinked")).map_or(0, Iterator::count)
}

fn rename<'a>(oldname: &'a [u8], newname: &'a [u8]) -> [Op<'a>; 3] {
    [Op::Putrootfh(()), Op::Savefh(()), Op::Rename(RenameArgs { oldname, newname })]
}

/// Removes the name `file` as one of several clients.
type Remove = fn(&Server, &mut Client4, &mut Client4);

#[test]
fn a_removed_file_lives_until_its_last_close() {
    let server = Serve::unsquashed().start();
    let removals: [Remove; 4] = [
        |_, one, _| assert_eq!(one.status(&remove(b"file")), Nfsstat4::Ok),
        |_, _, two| assert_eq!(two.status(&remove(b"file")), Nfsstat4::Ok),
        |server, _, _| {
            let mut c = server.connect();
            let root = c.root();
            c.remove(&root, b"file").unwrap();
        },
        |server, _, _| {
            let mut c = server.connect();
            let root = c.root();
            let other = c.new_file(&root, b"other", 0o600);
            c.rename((&root, b"other"), (&root, b"file")).unwrap();
            assert_eq!(c.attr(&other).nlink, 1);
            c.remove(&root, b"file").unwrap();
            assert_eq!(c.getattr(&other).status(), Nfsstat3::Stale, "nobody had it open");
        },
    ];
    for (case, removal) in removals.into_iter().enumerate() {
        let mut one = Client4::connect(&server, format!("one{case}").as_bytes());
        let mut two = Client4::connect(&server, format!("two{case}").as_bytes());
        let file = make(&mut one, b"file", b"text");
        let again = open(&mut two, b"file");
        removal(&server, &mut one, &mut two);
        assert_eq!(kept(&server), 1, "case {case}");
        assert_eq!(two.open(b"file", OpenHow::NoCreate, 0), Err(Nfsstat4::Noent));
        assert!(!server.data.join("file").exists());
        assert_eq!(links(&mut two, &file.handle), Ok(0));
        let mut v3 = server.connect();
        assert_eq!(v3.attr(&file.v3()).nlink, 0);
        let root = v3.root();
        assert_eq!(v3.link(&file.v3(), &root, b"back").status(), Nfsstat3::Noent, "it gets no name again");
        assert_eq!(file.read(&mut one).unwrap(), b"text");
        assert_eq!(again.write(&mut two, 4, b" more"), Nfsstat4::Ok);
        file.close(&mut one);
        assert_eq!(again.read(&mut two).unwrap(), b"text more");
        assert_eq!(kept(&server), 1);
        again.close(&mut two);
        wait_for(|| kept(&server) == 0);
        assert_eq!(links(&mut two, &file.handle), Err(Nfsstat4::Stale));
    }
}

#[test]
fn a_renamed_file_replaces_an_open_one() {
    let server = Serve::unsquashed().start();
    let mut c = Client4::connect(&server, b"one");
    let (old, new) = (make(&mut c, b"file", b"old"), make(&mut c, b"new", b"new"));
    assert_eq!(c.status(&rename(b"new", b"file")), Nfsstat4::Ok);
    assert_eq!(kept(&server), 1);
    assert_eq!((links(&mut c, &old.handle), links(&mut c, &new.handle)), (Ok(0), Ok(1)));
    assert_eq!((old.read(&mut c).unwrap(), new.read(&mut c).unwrap()), (b"old".to_vec(), b"new".to_vec()));
    let found = open(&mut c, b"file");
    assert_eq!(found.handle, new.handle);
    // A name of a file that replaces another name of it stays, and so does a file that a directory cannot replace.
    assert_eq!(c.status(&rename(b"file", b"file")), Nfsstat4::Ok);
    std::fs::create_dir(server.data.join("dir")).unwrap();
    assert_ne!(c.status(&rename(b"dir", b"file")), Nfsstat4::Ok);
    assert_eq!((kept(&server), links(&mut c, &new.handle)), (1, Ok(1)));
    old.close(&mut c);
    wait_for(|| kept(&server) == 0);
    assert_eq!(found.read(&mut c).unwrap(), b"new");
}

#[test]
fn only_the_last_name_of_an_open_file_leaves_something() {
    let server = Serve::unsquashed().start();
    let mut c = Client4::connect(&server, b"one");
    let file = make(&mut c, b"file", b"text");
    std::fs::hard_link(server.data.join("file"), server.data.join("link")).unwrap();
    assert_eq!(c.status(&remove(b"file")), Nfsstat4::Ok);
    assert_eq!((kept(&server), links(&mut c, &file.handle)), (0, Ok(1)));
    assert_eq!(c.status(&remove(b"link")), Nfsstat4::Ok);
    assert_eq!((kept(&server), links(&mut c, &file.handle)), (1, Ok(0)));
    file.close(&mut c);
    wait_for(|| kept(&server) == 0);
    let closed = make(&mut c, b"file", b"text");
    closed.close(&mut c);
    assert_eq!(c.status(&remove(b"file")), Nfsstat4::Ok);
    assert_eq!(links(&mut c, &closed.handle), Err(Nfsstat4::Stale));
    assert_eq!(kept(&server), 0);
}

#[test]
fn two_names_of_an_open_file_may_go_at_once() {
    let server = Serve::unsquashed().start();
    let mut c = Client4::connect(&server, b"one");
    for _ in 0..50 {
        let file = make(&mut c, b"file", b"text");
        std::fs::hard_link(server.data.join("file"), server.data.join("link")).unwrap();
        std::thread::scope(|scope| {
            for name in [b"file", b"link"] {
                let server = &server;
                scope.spawn(move || {
                    let mut c = server.connect();
                    let root = c.root();
                    c.remove(&root, name).unwrap();
                });
            }
        });
        assert_eq!(file.read(&mut c).unwrap(), b"text");
        file.close(&mut c);
    }
    wait_for(|| kept(&server) == 0);
}

/// Each OPEN either finds the file, which then stays, or does not find it.
#[test]
fn an_open_and_a_removal_at_once_agree() {
    let server = Serve::unsquashed().start();
    let mut c = Client4::connect(&server, b"one");
    let mut found = 0;
    for round in 0..100 {
        make(&mut c, b"file", b"text").close(&mut c);
        std::thread::scope(|scope| {
            let server = &server;
            scope.spawn(move || {
                let mut c = server.connect();
                let root = c.root();
                c.remove(&root, b"file").unwrap();
            });
            match c.open(b"file", OpenHow::NoCreate, 0) {
                Ok((stateid, handle)) => {
                    let file = Open { stateid, handle };
                    found += 1;
                    for _ in 0..3 {
                        assert_eq!(file.read(&mut c).unwrap(), b"text", "round {round}");
                    }
                    file.close(&mut c);
                }
                Err(status) => {
                    let allowed = [Nfsstat4::Noent, Nfsstat4::Stale, Nfsstat4::Delay];
                    assert!(allowed.contains(&status), "{status:?}");
                }
            }
        });
    }
    wait_for(|| kept(&server) == 0);
    eprintln!("{found} of 100 opens came first");
}

#[test]
fn a_client_may_open_a_kept_file_by_its_handle() {
    let server = Serve::unsquashed().start();
    let (mut one, mut two) = (Client4::connect(&server, b"one"), Client4::connect(&server, b"two"));
    let file = make(&mut one, b"file", b"text");
    assert_eq!(one.status(&remove(b"file")), Nfsstat4::Ok);
    let args = OpenArgs {
        seqid: 0,
        share_access: share::BOTH | share::WANT_NO_DELEG,
        share_deny: 0,
        owner: StateOwner { clientid: two.id, owner: Opaque(b"owner") },
        how: OpenHow::NoCreate,
        claim: OpenClaim::Fh,
    };
    let stateid = two.run(&[putfh(&file.handle), Op::Open(args)], |status, results| match results.last() {
        Some(OpResult::Open(Ok(open))) => {
            assert_ne!(open.rflags & open_result::PRESERVE_UNLINKED, 0);
            open.stateid
        }
        _ => panic!("{status:?}"),
    });
    file.close(&mut one);
    let again = Open { stateid, handle: file.handle };
    assert_eq!(again.read(&mut two).unwrap(), b"text");
    again.close(&mut two);
    wait_for(|| kept(&server) == 0);
}

#[test]
fn a_refused_removal_leaves_an_open_file_alone() {
    needs_root!();
    let server = Serve::unsquashed().start();
    let mut one = Client4::connect(&server, b"one");
    let file = make(&mut one, b"file", b"text");
    let mut own = server.connect();
    let root = own.root();
    let before = own.attr(&file.v3());
    let mut other = server.connect().acting_as(user(1000, 1000, &[]));
    for bits in [0o755, 0o1777] {
        own.setattr(&root, mode(bits)).unwrap();
        assert_ne!(other.remove(&root, b"file").status(), Nfsstat3::Ok);
        let mine = own.new_file(&root, b"mine", 0o666);
        own.setattr(&mine, mode(0o666)).unwrap();
        assert_ne!(other.rename((&root, b"mine"), (&root, b"file")).status(), Nfsstat3::Ok);
        own.remove(&root, b"mine").unwrap();
        let after = own.attr(&file.v3());
        assert_eq!((after.ctime, after.nlink, kept(&server)), (before.ctime, 1, 0), "mode {bits:o}");
    }
    assert_eq!(file.read(&mut one).unwrap(), b"text");
}

#[test]
fn a_removed_file_outlives_a_kill_and_a_stop_of_the_server() {
    let mut server = Serve::unsquashed().cached().start();
    let (mut one, mut two) = (Client4::connect(&server, b"one"), Client4::connect(&server, b"two"));
    for round in 0..6 {
        let file = make(&mut one, b"file", b"text");
        let replaced = make(&mut two, b"replaced", b"old");
        make(&mut one, b"new", b"new").close(&mut one);
        assert_eq!(two.status(&remove(b"file")), Nfsstat4::Ok);
        assert_eq!(one.status(&rename(b"new", b"replaced")), Nfsstat4::Ok);
        for ends in 0..2 {
            if (round + ends) % 3 == 0 {
                server.stop();
            } else {
                server.kill();
            }
            server.start();
            one.reconnect(&server);
            two.reconnect(&server);
            assert_eq!(kept(&server), 2, "round {round}");
            assert_eq!(links(&mut one, &file.handle), Ok(0));
            assert_eq!(file.read(&mut one).unwrap(), b"text");
            assert_eq!(replaced.read(&mut two).unwrap(), b"old");
            assert_eq!(file.write(&mut one, 0, b"text"), Nfsstat4::Ok);
            assert!(!server.data.join("file").exists());
        }
        file.close(&mut one);
        wait_for(|| kept(&server) == 1);
        replaced.close(&mut two);
        wait_for(|| kept(&server) == 0);
        if round % 2 == 0 {
            server.kill();
            server.start();
            one.reconnect(&server);
            two.reconnect(&server);
            assert_eq!(kept(&server), 0, "a closed file comes back");
        }
        assert_eq!(links(&mut one, &file.handle), Err(Nfsstat4::Stale));
        assert_eq!(two.status(&remove(b"replaced")), Nfsstat4::Ok);
    }
}

#[test]
fn without_the_log_a_removed_file_ends_with_the_server() {
    let mut server = Serve::unsquashed().plain().start();
    let mut c = Client4::connect(&server, b"one");
    let file = make(&mut c, b"file", b"text");
    assert_eq!(c.status(&remove(b"file")), Nfsstat4::Ok);
    assert_eq!(kept(&server), 1);
    server.kill();
    // Names that are not the server's stay.
    std::fs::write(server.data.join(".forebay/unlinked/note"), b"by hand").unwrap();
    server.start();
    assert_eq!(kept(&server), 1);
    let mut c = Client4::connect(&server, b"two");
    assert_eq!(links(&mut c, &file.handle), Err(Nfsstat4::Stale));
}

/// The client leaves its removed file behind. A lease time after the restart the file is gone.
#[test]
fn a_client_that_never_comes_back_keeps_nothing() {
    let mut server = Serve::unsquashed().flags(&["--lease", "10s"]).cached().start();
    let mut one = Client4::connect(&server, b"one");
    let file = make(&mut one, b"file", b"text");
    assert_eq!(one.status(&[Op::Putrootfh(()), Op::Remove(NameArgs { name: b"file" })]), Nfsstat4::Ok);
    server.kill();
    server.start();
    let mut two = Client4::connect(&server, b"two");
    assert_eq!(links(&mut two, &file.handle), Ok(0));
    let two = std::cell::RefCell::new(two);
    wait_for(|| links(&mut two.borrow_mut(), &file.handle) == Err(Nfsstat4::Stale));
    assert_eq!(kept(&server), 0);
}

#[test]
fn a_removed_file_outlives_a_power_cut() {
    needs_root!();
    for kind in ["xfs", "ext4"] {
        let Some(array) = Array::instant(kind) else { return };
        let mut server = array.serve().cached().start();
        let mut c = Client4::connect(&server, b"one");
        for round in 0..4 {
            let (file, replaced) = (make(&mut c, b"file", b"text"), make(&mut c, b"replaced", b"old"));
            let data = vec![round; 70_000];
            assert_eq!(file.write(&mut c, 4096, &data), Nfsstat4::Ok);
            if round % 2 == 1 {
                // Otherwise the files are only in the log.
                server.flush();
            }
            make(&mut c, b"new", b"new").close(&mut c);
            assert_eq!(c.status(&remove(b"file")), Nfsstat4::Ok);
            assert_eq!(c.status(&rename(b"new", b"replaced")), Nfsstat4::Ok);
            array.cut_power(&format!("{round}"));
            server.kill();
            assert!(array.power_on());
            array.ask(&["inject", "instant"]);
            server.start();
            c.reconnect(&server);
            assert_eq!(kept(&server), 2, "{kind}, round {round}");
            assert_eq!(links(&mut c, &file.handle), Ok(0));
            assert_eq!(&file.read(&mut c).unwrap()[..4], b"text");
            assert_eq!(file.read_at(&mut c, 70_000).unwrap(), [round; 1000]);
            assert_eq!(replaced.read(&mut c).unwrap(), b"old");
            assert_eq!(c.open(b"file", OpenHow::NoCreate, 0), Err(Nfsstat4::Noent));
            file.close(&mut c);
            replaced.close(&mut c);
            wait_for(|| kept(&server) == 0);
            assert_eq!(c.status(&remove(b"replaced")), Nfsstat4::Ok);
        }
        server.stop();
    }
}
