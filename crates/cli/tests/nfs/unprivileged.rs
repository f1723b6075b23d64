//! Tests of a server without root: all clients act as one user, and handles are found through names.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use crate::harness::*;

const NOBODY: u32 = 65534;

#[test]
fn its_limits_are_said_at_the_start() {
    needs_root!();
    let mut server = Serve::new().run_as(NOBODY).start();
    assert_eq!(server.status()["handles"], "fallback");
    server.signal(rustix::process::Signal::TERM);
    let (_, said) = server.wait();
    assert!(said.contains("Not running as root"), "{said}");
    assert!(said.contains("files are found by inode number"), "{said}");
}

#[test]
fn everything_works_as_the_servers_own_user() {
    needs_root!();
    let server = Serve::new().run_as(NOBODY).start();
    let mut c = server.connect().acting_as(user(1000, 1000, &[]));
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o755);
    let file = c.new_file(&dir, b"f", 0o644);
    let attr = c.attr(&file);
    assert_eq!((attr.uid, attr.gid), (NOBODY, NOBODY));
    c.write(&file, 0, b"data", StableHow::FileSync).unwrap();
    c.write(&file, 4, b"more", StableHow::Unstable).unwrap();
    c.commit(&file, 0, 0).unwrap();
    c.link(&file, &root, b"g").unwrap();
    c.rename((&dir, b"f"), (&root, b"h")).unwrap();
    let link = c.symlink(&root, b"l", b"h").unwrap().object.unwrap();
    c.link(&link, &root, b"l2").unwrap();
    assert_eq!(c.readlink(&link).unwrap().0, b"h");
    let set = Sattr3 { atime: at(1, 2), mtime: at(3, 4), size: Some(6), ..mode(0o600) };
    c.setattr(&file, set).unwrap();
    assert_eq!(c.read(&file, 0, 10).unwrap().data, b"datamo");
    let names: Vec<_> = c.readdirplus(&root, START, 8192, 32_768).unwrap().entries;
    for entry in &names {
        if entry.name != b".." {
            let found = c.lookup(&root, &entry.name).unwrap();
            assert_eq!(
                (Some(found.object), found.obj_attributes.map(|attr| attr.fileid)),
                (entry.handle, Some(entry.fileid))
            );
        }
    }
    for child in [&b"g"[..], b"h", b"l", b"l2"] {
        c.remove(&root, child).unwrap();
    }
    assert_eq!(c.getattr(&file).status(), Nfsstat3::Stale);
    c.rmdir(&root, b"d").unwrap();
    assert_eq!(c.getattr(&dir).status(), Nfsstat3::Stale);
}

#[test]
fn what_needs_root_is_refused() {
    needs_root!();
    let server = Serve::new().run_as(NOBODY).flags(&["--squash", "none"]).start_on(|data| {
        std::fs::write(data.join("roots"), "secret").unwrap();
        std::fs::set_permissions(data.join("roots"), PermissionsExt::from_mode(0o600)).unwrap();
    });
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let owner = Sattr3 { uid: Some(1000), ..Sattr3::default() };
    assert_eq!(c.setattr(&file, owner).status(), Nfsstat3::Perm);
    let device = MknodData::Chr(mode(0o600), Specdata3 { major: 1, minor: 3 });
    assert_eq!(c.mknod(&root, b"null", device).status(), Nfsstat3::Perm);
    let roots = c.find(&root, b"roots");
    assert_eq!(c.read(&roots, 0, 10).status(), Nfsstat3::Acces);
    assert_eq!(c.write(&roots, 0, b"x", StableHow::FileSync).status(), Nfsstat3::Acces);
    assert_eq!(c.access(&roots, 0x3f).unwrap().access, 0);
}

#[test]
fn handles_survive_renames_restarts_and_changes_by_others() {
    needs_root!();
    let mut server = Serve::new().run_as(NOBODY).start();
    let mut c = server.connect();
    let root = c.root();
    let a = c.new_dir(&root, b"a", 0o755);
    let b = c.new_dir(&a, b"b", 0o755);
    let file = c.new_file(&b, b"f", 0o644);
    c.write(&file, 0, b"data", StableHow::FileSync).unwrap();
    c.rename((&root, b"a"), (&root, b"c")).unwrap();
    assert_eq!(c.read(&file, 0, 10).unwrap().data, b"data");
    for crash in [false, true] {
        if crash {
            server.kill()
        } else {
            server.stop()
        }
        server.start();
        let mut c = server.connect();
        assert_eq!(c.root(), root);
        assert_eq!(c.read(&file, 0, 10).unwrap().data, b"data", "crash {crash}");
        assert_eq!(c.find(&b, b".."), a);
        assert_eq!(c.find(&a, b".."), root);
        // The next request finds the file in another place.
        c.rename((&b, b"f"), (&b, b"f2")).unwrap();
        c.rename((&b, b"f2"), (&b, b"f")).unwrap();
    }
    server.stop();
    std::fs::rename(server.data.join("c/b"), server.data.join("b2")).unwrap();
    server.start();
    let mut c = server.connect();
    assert_eq!(c.read(&file, 0, 10).unwrap().data, b"data");
    assert_eq!(c.find(&b, b".."), root);
    std::fs::remove_file(server.data.join("b2/f")).unwrap();
    assert_eq!(c.getattr(&file).status(), Nfsstat3::Stale);
}

#[test]
fn a_second_name_keeps_the_handle() {
    needs_root!();
    let mut server = Serve::new().run_as(NOBODY).start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.link(&file, &root, b"g").unwrap();
    c.remove(&root, b"f").unwrap();
    assert_eq!(c.attr(&file).nlink, 1);
    server.restart();
    let mut c = server.connect();
    assert_eq!(c.attr(&file).nlink, 1);
}

/// Clients may create a file without any permission bits and write to it, because an exclusive create sets no mode.
#[test]
fn files_without_permissions_are_written_by_their_creator() {
    needs_root!();
    let server = Serve::new().run_as(NOBODY).start();
    let mut c = server.connect();
    let root = c.root();
    let made = c.create(&root, b"f", CreateHow::Exclusive([9; 8])).unwrap();
    let file = made.object.unwrap();
    c.write(&file, 0, b"data", StableHow::FileSync).unwrap();
    c.setattr(&file, mode(0o444)).unwrap();
    c.write(&file, 4, b"more", StableHow::FileSync).unwrap();
    c.commit(&file, 0, 0).unwrap();
    assert_eq!(c.read(&file, 0, 10).unwrap().data, b"datamore");
    let dir = c.new_dir(&root, b"d", 0o000);
    c.setattr(&dir, mode(0o700)).unwrap();
    let guarded = CreateHow::Guarded(mode(0o000));
    assert_eq!(c.create(&root, b"g", guarded).status(), Nfsstat3::Ok);
    let failures = &server.status()["durability"]["failures"];
    assert_eq!(*failures, 0, "nothing failed to become durable");
}

#[test]
fn a_directory_of_another_user_is_served_as_far_as_it_goes() {
    needs_root!();
    let server = Serve::new().run_as(NOBODY).start_on(|data| {
        std::fs::create_dir(data.join("closed")).unwrap();
        std::fs::write(data.join("closed/f"), "").unwrap();
        std::fs::set_permissions(data.join("closed"), PermissionsExt::from_mode(0o700)).unwrap();
        std::fs::write(data.join("open"), "text").unwrap();
        chown(data.join("open"), Some(0), Some(0)).unwrap();
    });
    let mut c = server.connect();
    let root = c.root();
    let closed = c.find(&root, b"closed");
    assert_eq!(c.lookup(&closed, b"f").status(), Nfsstat3::Acces);
    assert_eq!(c.readdir(&closed, START, 4096).status(), Nfsstat3::Acces);
    let open = c.find(&root, b"open");
    assert_eq!(c.read(&open, 0, 10).unwrap().data, b"text");
    assert_eq!(c.remove(&root, b"open").status(), Nfsstat3::Ok, "the directory is the server's");
    assert_eq!(std::fs::metadata(&server.data).unwrap().uid(), NOBODY);
}
