//! Tests of creations: results, errors, and the attributes around every change.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use crate::harness::*;

/// Makes a change in one directory and checks the directory's attributes around the change.
pub(crate) fn around<T>(
    c: &mut Client,
    dir: &FileHandle,
    change: impl FnOnce(&mut Client) -> (T, WccData),
) -> T {
    let before = c.attr(dir);
    let (result, wcc) = change(c);
    let after = c.attr(dir);
    assert_wcc(&wcc, &before, &after);
    result
}

pub(crate) fn made(result: CreateRes) -> ((FileHandle, Fattr3), WccData) {
    let made = result.unwrap();
    ((made.object.unwrap(), made.obj_attributes.unwrap()), made.dir_wcc)
}

pub(crate) fn refused<T>(result: Result<T, Failed<WccData>>) -> (Nfsstat3, WccData) {
    let failed = result.err().unwrap();
    (failed.status, failed.attributes)
}

#[test]
fn create_guarded_and_unchecked() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o777);
    let guarded = |bits| CreateHow::Guarded(mode(bits));
    let (file, attr) = around(&mut c, &dir, |c| made(c.create(&dir, b"f", guarded(0o640))));
    assert_eq!((attr.ftype, attr.mode, attr.nlink, attr.size), (Ftype3::Reg, 0o640, 1, 0));
    assert_eq!(c.attr(&file), attr);
    assert_eq!(c.find(&dir, b"f"), file);
    assert_eq!(around(&mut c, &dir, |c| refused(c.create(&dir, b"f", guarded(0o600)))), Nfsstat3::Exist);

    // An UNCHECKED create takes the existing file and sets only its size.
    c.write(&file, 0, b"12345678", StableHow::FileSync).unwrap();
    let unchecked = |size| CreateHow::Unchecked(Sattr3 { mode: Some(0o777), size, ..Sattr3::default() });
    let (again, attr) = around(&mut c, &dir, |c| made(c.create(&dir, b"f", unchecked(None))));
    assert_eq!((again, attr.mode, attr.size), (file, 0o640, 8));
    let (again, attr) = around(&mut c, &dir, |c| made(c.create(&dir, b"f", unchecked(Some(0)))));
    assert_eq!((again, attr.mode, attr.size), (file, 0o640, 0));
    let (_, attr) = around(&mut c, &dir, |c| made(c.create(&dir, b"g", unchecked(Some(5)))));
    assert_eq!((attr.mode, attr.size), (0o777, 5), "of a new file it sets everything");
}

/// Opening with O_TRUNC must mark even an empty file as changed, because stamp files rely on that.
#[test]
fn cutting_an_empty_file_short_changes_its_times() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    for n in 0..2 {
        let before = c.attr(&file);
        match n {
            0 => drop(c.create(&root, b"f", CreateHow::Unchecked(size(0))).unwrap().object),
            _ => drop(c.setattr(&file, size(0)).unwrap().after),
        }
        let after = c.attr(&file);
        assert!(after.mtime > before.mtime && after.ctime > before.ctime);
    }
}

#[test]
fn create_errors() {
    needs_root!();
    let server = Serve::unsquashed().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o755);
    let file = c.new_file(&root, b"f", 0o644);
    let unchecked = CreateHow::Unchecked(mode(0o644));
    assert_eq!(c.create(&file, b"x", unchecked).status(), Nfsstat3::Notdir);
    for name in [&b"dir"[..], b"fifo", b"link"] {
        match name {
            b"dir" => drop(c.mkdir(&dir, name, mode(0o777))),
            b"fifo" => drop(c.mknod(&dir, name, MknodData::Fifo(mode(0o666)))),
            _ => drop(c.symlink(&dir, name, b"f")),
        }
        assert_eq!(c.create(&dir, name, unchecked).status(), Nfsstat3::Exist);
    }
    c.user = user(1000, 1000, &[]);
    assert_eq!(around(&mut c, &dir, |c| refused(c.create(&dir, b"x", unchecked))), Nfsstat3::Acces);
    // Taking an existing file needs no right to the directory. Truncating it needs a right to the file.
    assert_eq!(c.create(&root, b"f", unchecked).status(), Nfsstat3::Ok);
    c.user = user(0, 0, &[]);
    c.write(&file, 0, b"data", StableHow::FileSync).unwrap();
    c.user = user(1000, 1000, &[]);
    assert_eq!(c.create(&root, b"f", CreateHow::Unchecked(size(0))).status(), Nfsstat3::Acces);
    assert_eq!(c.attr(&file).size, 4);
}

#[test]
fn creation_sets_every_attribute_that_is_asked_for() {
    needs_root!();
    let server = Serve::unsquashed().start();
    let mut c = server.connect();
    let root = c.root();
    let set = Sattr3 {
        mode: Some(0o4751),
        uid: Some(12),
        gid: Some(34),
        size: Some(9),
        atime: at(1_000_000_000, 123_456_789),
        mtime: at(2_000_000_000, 987_654_321),
    };
    let check = |attr: Fattr3, bits: u32, size: Option<u64>| {
        assert_eq!((attr.mode, attr.uid, attr.gid), (bits, 12, 34));
        assert_eq!(attr.atime, Nfstime3 { seconds: 1_000_000_000, nseconds: 123_456_789 });
        assert_eq!(attr.mtime, Nfstime3 { seconds: 2_000_000_000, nseconds: 987_654_321 });
        assert!(size.is_none_or(|size| attr.size == size));
    };
    check(c.create(&root, b"f", CreateHow::Guarded(set)).unwrap().obj_attributes.unwrap(), 0o4751, Some(9));
    let set = Sattr3 { mode: Some(0o1751), size: None, ..set };
    check(c.mkdir(&root, b"d", set).unwrap().obj_attributes.unwrap(), 0o1751, None);
    check(c.mknod(&root, b"p", MknodData::Fifo(set)).unwrap().obj_attributes.unwrap(), 0o1751, None);
    let symlink = SymlinkArgs { target: name(&root, b"l"), attributes: set, path: b"to" };
    let made: SymlinkRes = c.nfs(Procedure::Symlink, &symlink);
    check(made.unwrap().obj_attributes.unwrap(), 0o777, Some(2));
}

/// As with every NFS server, a user other than root cannot give away a new object. The request to do so is not an
/// error.
#[test]
fn ids_asked_for_at_creation_count_only_for_root() {
    needs_root!();
    let server = Serve::unsquashed().start();
    let mut c = server.connect().acting_as(user(1000, 1000, &[]));
    let root = c.root();
    let set = Sattr3 { mode: Some(0o644), uid: Some(0), gid: Some(0), ..Sattr3::default() };
    let made = [
        c.create(&root, b"f", CreateHow::Guarded(set)),
        c.create(&root, b"u", CreateHow::Unchecked(set)),
        c.mkdir(&root, b"d", set),
        c.mknod(&root, b"p", MknodData::Fifo(set)),
        c.nfs(Procedure::Symlink, &SymlinkArgs { target: name(&root, b"l"), attributes: set, path: b"to" }),
    ];
    for made in made {
        let attr = made.unwrap().obj_attributes.unwrap();
        assert_eq!((attr.uid, attr.gid), (1000, 1000), "{:?}", attr.ftype);
    }
}

#[test]
fn the_umask_is_the_clients_affair() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o666);
    let dir = c.new_dir(&root, b"d", 0o777);
    let fifo = c.mknod(&root, b"p", MknodData::Fifo(mode(0o622))).unwrap().object.unwrap();
    assert_eq!([c.attr(&file).mode, c.attr(&dir).mode, c.attr(&fifo).mode], [0o666, 0o777, 0o622]);
}

#[test]
fn exclusive_create_is_once_even_over_a_restart() {
    let mut server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let exclusive = |byte: u8| CreateHow::Exclusive([byte; 8]);
    let (file, attr) = around(&mut c, &root, |c| made(c.create(&root, b"f", exclusive(0xfe))));
    assert_eq!((attr.ftype, attr.size), (Ftype3::Reg, 0));
    for crash in [false, true] {
        // The connection and the transaction are new, so the reply cache has no reply.
        let (again, _) = around(&mut c, &root, |c| made(c.create(&root, b"f", exclusive(0xfe))));
        assert_eq!(again, file);
        assert_eq!(c.create(&root, b"f", exclusive(0xfd)).status(), Nfsstat3::Exist);
        if crash {
            server.kill()
        } else {
            server.stop()
        }
        server.start();
        c = server.connect();
    }
    assert_eq!(c.create(&root, b"f", exclusive(0xfe)).unwrap().object, Some(file));
    // The client sets the attributes next. This ends the exclusive create.
    let set = Sattr3 { atime: SetTime::ServerTime, mtime: SetTime::ServerTime, ..mode(0o644) };
    c.setattr(&file, set).unwrap();
    assert_eq!(c.create(&root, b"f", exclusive(0xfe)).status(), Nfsstat3::Exist);
}

/// A server that dies while it makes the file must not leave a file that the client could not recognise as its own.
#[test]
fn an_exclusively_created_file_has_its_verifier_as_soon_as_it_has_its_name() {
    const FILES: usize = 500;
    for serve in [Serve::new().plain(), Serve::new().cached()] {
        let server = serve.start();
        let mut c = server.connect();
        let root = c.root();
        std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                for number in 0..FILES {
                    let path = server.data.join(format!("f{number}"));
                    let seen = loop {
                        if let Ok(seen) = path.metadata() {
                            break seen;
                        }
                    };
                    assert_eq!((seen.atime(), seen.mtime()), (0x0707_0707, 0x0707_0707), "file {number}");
                }
            });
            for number in 0..FILES {
                let name = format!("f{number}");
                c.create(&root, name.as_bytes(), CreateHow::Exclusive([7; 8])).unwrap();
            }
            looking.join().unwrap();
        });
    }
}

#[test]
fn mkdir_and_rmdir() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let (dir, attr) = around(&mut c, &root, |c| made(c.mkdir(&root, b"d", mode(0o750))));
    assert_eq!((attr.ftype, attr.mode, attr.nlink), (Ftype3::Dir, 0o750, 2));
    assert_eq!(around(&mut c, &root, |c| refused(c.mkdir(&root, b"d", mode(0o750)))), Nfsstat3::Exist);
    let file = c.new_file(&dir, b"f", 0o644);
    assert_eq!(c.mkdir(&file, b"x", mode(0o755)).status(), Nfsstat3::Notdir);
    assert_eq!(around(&mut c, &root, |c| refused(c.rmdir(&root, b"d"))), Nfsstat3::Notempty);
    assert_eq!(around(&mut c, &dir, |c| refused(c.rmdir(&dir, b"f"))), Nfsstat3::Notdir);
    assert_eq!(around(&mut c, &dir, |c| refused(c.rmdir(&dir, b"none"))), Nfsstat3::Noent);
    c.remove(&dir, b"f").unwrap();
    around(&mut c, &root, |c| ((), c.rmdir(&root, b"d").unwrap()));
    assert_eq!(c.getattr(&dir).status(), Nfsstat3::Stale);
    assert_eq!(c.create(&dir, b"x", CreateHow::Guarded(mode(0o644))).status(), Nfsstat3::Stale);
    assert_eq!(c.rmdir(&root, b"d").status(), Nfsstat3::Noent);
}

#[test]
fn symlink_and_readlink_keep_any_bytes() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    // XFS has room for 1,023 bytes, other file systems for 4,095.
    let longest = vec![b'x'; 1023];
    for (child, text) in [(&b"a"[..], &b"../../x"[..]), (b"b", b"\xff\n"), (b"c", &longest)] {
        let (link, attr) = around(&mut c, &root, |c| made(c.symlink(&root, child, text)));
        assert_eq!((attr.ftype, attr.size), (Ftype3::Lnk, text.len() as u64));
        let (read, attributes) = c.readlink(&link).unwrap();
        assert_eq!(read, text);
        assert_eq!(attributes.map(|attr| attr.fileid), Some(attr.fileid));
    }
    let too_long = vec![b'x'; 4096];
    assert_eq!(c.symlink(&root, b"d", &too_long).status(), Nfsstat3::Nametoolong);
    assert_eq!(c.symlink(&root, b"d", b"").status(), Nfsstat3::Inval);
    assert_eq!(c.symlink(&root, b"d", b"a\0b").status(), Nfsstat3::Inval);
    assert_eq!(around(&mut c, &root, |c| refused(c.symlink(&root, b"a", b"x"))), Nfsstat3::Exist);
    assert_eq!(c.readlink(&root).status(), Nfsstat3::Inval);
}

#[test]
fn fifos_sockets_and_devices() {
    needs_root!();
    let server = Serve::unsquashed().start();
    let mut c = server.connect();
    let root = c.root();
    let device = Specdata3 { major: 1, minor: 3 };
    let kinds = [
        (&b"fifo"[..], MknodData::Fifo(mode(0o640)), Ftype3::Fifo),
        (b"sock", MknodData::Sock(mode(0o640)), Ftype3::Sock),
        (b"chr", MknodData::Chr(mode(0o640), device), Ftype3::Chr),
        (b"blk", MknodData::Blk(mode(0o640), device), Ftype3::Blk),
    ];
    for (child, what, ftype) in kinds {
        let (node, attr) = around(&mut c, &root, |c| made(c.mknod(&root, child, what)));
        assert_eq!((attr.ftype, attr.mode), (ftype, 0o640));
        let rdev = if matches!(ftype, Ftype3::Chr | Ftype3::Blk) { device } else { Specdata3::default() };
        assert_eq!(attr.rdev, rdev);
        assert_eq!(c.mknod(&root, child, what).status(), Nfsstat3::Exist);
        // The server must not read or write the contents of special files.
        assert_eq!(c.read(&node, 0, 1).status(), Nfsstat3::Inval);
        assert_eq!(c.write(&node, 0, b"x", StableHow::FileSync).status(), Nfsstat3::Inval);
        assert_eq!(c.setattr(&node, size(0)).status(), Nfsstat3::Inval);
        c.setattr(&node, mode(0o600)).unwrap();
        assert_eq!(c.attr(&node).mode, 0o600);
        c.rename((&root, child), (&root, b"moved")).unwrap();
        c.link(&node, &root, child).unwrap();
        c.remove(&root, b"moved").unwrap();
    }
    let meta = |name: &str| std::fs::metadata(server.data.join(name)).unwrap();
    assert!(meta("fifo").file_type().is_fifo() && meta("sock").file_type().is_socket());
    assert_eq!(meta("chr").rdev(), rustix::fs::makedev(1, 3));
    for what in [MknodData::Reg, MknodData::Dir, MknodData::Lnk] {
        assert_eq!(c.mknod(&root, b"x", what).status(), Nfsstat3::Badtype);
    }
    c.user = user(1000, 1000, &[]);
    assert_eq!(c.mknod(&root, b"x", MknodData::Chr(mode(0o600), device)).status(), Nfsstat3::Perm);
    assert_eq!(c.mknod(&root, b"x", MknodData::Fifo(mode(0o600))).status(), Nfsstat3::Ok);
    // The owner of the directory may remove a name of any object.
    c.user = user(0, 0, &[]);
    for child in [&b"fifo"[..], b"sock", b"chr", b"blk"] {
        c.remove(&root, child).unwrap();
    }
}

#[test]
fn a_set_group_directory_gives_its_group_to_what_is_made_in_it() {
    needs_root!();
    let server = Serve::unsquashed().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o777);
    let set = Sattr3 { gid: Some(4242), ..mode(0o2777) };
    c.setattr(&dir, set).unwrap();
    c.user = user(1000, 1000, &[]);
    let file = c.new_file(&dir, b"f", 0o664);
    let sub = c.new_dir(&dir, b"sub", 0o775);
    assert_eq!((c.attr(&file).gid, c.attr(&file).mode), (4242, 0o664));
    assert_eq!((c.attr(&sub).gid, c.attr(&sub).mode), (4242, 0o2775), "directories hand the bit on");
    // Clients of some systems send their group. The directory's group takes precedence.
    let set = Sattr3 { uid: Some(1000), gid: Some(1000), ..mode(0o664) };
    let file = c.create(&dir, b"g", CreateHow::Guarded(set)).unwrap().object.unwrap();
    assert_eq!(c.attr(&file).gid, 4242);
}

#[test]
fn lookup_tells_of_directory_and_child() {
    needs_root!();
    let server = Serve::unsquashed().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o700);
    let file = c.new_file(&dir, b"f", 0o644);
    let found = c.lookup(&dir, b"f").unwrap();
    assert_eq!(
        found,
        LookupOk { object: file, obj_attributes: Some(c.attr(&file)), dir_attributes: Some(c.attr(&dir)) }
    );
    let failed = c.lookup(&dir, b"none").unwrap_err();
    assert_eq!((failed.status, failed.attributes), (Nfsstat3::Noent, Some(c.attr(&dir))));
    assert_eq!(c.lookup(&file, b"x").status(), Nfsstat3::Notdir);
    c.user = user(1000, 1000, &[]);
    let failed = c.lookup(&dir, b"f").unwrap_err();
    assert_eq!((failed.status, failed.attributes), (Nfsstat3::Acces, Some(c.attr(&dir))));
}

#[test]
fn fsstat_fsinfo_and_pathconf_tell_the_truth() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let attr = c.attr(&root);
    let truth = rustix::fs::statvfs(&server.data).unwrap();
    let stat = c.fsstat(&root).unwrap();
    assert_eq!(stat.obj_attributes, Some(attr));
    assert_eq!((stat.tbytes, stat.tfiles), (truth.f_blocks * truth.f_frsize, truth.f_files));
    assert!(stat.abytes <= stat.fbytes && stat.fbytes <= stat.tbytes);
    let info = c.fsinfo(&root).unwrap();
    assert_eq!(info.obj_attributes, Some(attr));
    assert_eq!([info.rtmax, info.wtmax, info.rtpref, info.wtpref, info.dtpref], [1 << 20; 5]);
    assert_eq!(info.time_delta, Nfstime3 { seconds: 0, nseconds: 1 });
    let properties = fsf::LINK | fsf::SYMLINK | fsf::HOMOGENEOUS | fsf::CANSETTIME;
    assert_eq!(info.properties, properties);
    let conf = c.pathconf(&root).unwrap();
    assert_eq!(conf.obj_attributes, Some(attr));
    assert_eq!(conf.name_max, 255);
    assert!(conf.no_trunc && conf.chown_restricted && conf.case_preserving && !conf.case_insensitive);
    let file = c.new_file(&root, b"f", 0o644);
    assert_eq!(c.fsstat(&file).status(), Nfsstat3::Ok);
    // A file of the largest size can be made.
    assert_eq!(c.setattr(&file, size(info.maxfilesize)).status(), Nfsstat3::Ok);
    assert_eq!(c.attr(&file).size, info.maxfilesize);
    if info.maxfilesize < i64::MAX as u64 {
        assert_eq!(c.setattr(&file, size(info.maxfilesize + 1)).status(), Nfsstat3::Fbig);
    }
    c.remove(&root, b"f").unwrap();
    for status in [c.fsstat(&file).status(), c.fsinfo(&file).status(), c.pathconf(&file).status()] {
        assert_eq!(status, Nfsstat3::Stale);
    }
}
