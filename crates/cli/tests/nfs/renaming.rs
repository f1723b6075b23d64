//! Tests of REMOVE, LINK and RENAME, and of the attributes around them.

use std::os::unix::fs::PermissionsExt;

use crate::harness::*;
use crate::objects::{around, refused};

#[test]
fn remove_takes_one_name() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.link(&file, &root, b"g").unwrap();
    around(&mut c, &root, |c| ((), c.remove(&root, b"f").unwrap()));
    assert_eq!(c.attr(&file).nlink, 1);
    assert_eq!(c.find(&root, b"g"), file);
    around(&mut c, &root, |c| ((), c.remove(&root, b"g").unwrap()));
    assert_eq!(around(&mut c, &root, |c| refused(c.remove(&root, b"g"))), Nfsstat3::Noent);
    for status in [
        c.getattr(&file).status(),
        c.read(&file, 0, 1).status(),
        c.write(&file, 0, b"x", StableHow::FileSync).status(),
        c.setattr(&file, mode(0o600)).status(),
        c.access(&file, 1).status(),
        c.commit(&file, 0, 0).status(),
        c.link(&file, &root, b"h").status(),
    ] {
        assert_eq!(status, Nfsstat3::Stale);
    }
    c.new_dir(&root, b"d", 0o755);
    assert_eq!(around(&mut c, &root, |c| refused(c.remove(&root, b"d"))), Nfsstat3::Isdir);
}

#[test]
fn link_adds_a_name() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o755);
    let file = c.new_file(&root, b"f", 0o644);
    let linked = around(&mut c, &dir, |c| {
        let linked = c.link(&file, &dir, b"g").unwrap();
        (linked, linked.linkdir_wcc)
    });
    assert_eq!(linked.file_attributes, Some(c.attr(&file)));
    assert_eq!(linked.file_attributes.unwrap().nlink, 2);
    assert_eq!(c.find(&dir, b"g"), file);
    let failed = c.link(&file, &dir, b"g").unwrap_err();
    assert_eq!(failed.status, Nfsstat3::Exist);
    assert_eq!(failed.attributes.file_attributes, Some(c.attr(&file)));
    assert_eq!(failed.attributes.linkdir_wcc.after, Some(c.attr(&dir)));
    assert_eq!(c.link(&file, &file, b"g").status(), Nfsstat3::Notdir);
    assert_eq!(c.link(&dir, &root, b"g").status(), Nfsstat3::Perm, "directories have one name");
    // A hard link to a symbolic link is a name of the symbolic link.
    let link = c.symlink(&root, b"l", b"f").unwrap().object.unwrap();
    c.link(&link, &dir, b"l").unwrap();
    assert_eq!(c.attr(&link).nlink, 2);
}

#[test]
fn link_needs_the_right_to_change_the_directory_only() {
    needs_root!();
    let server = Serve::unsquashed().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o755);
    let file = c.new_file(&root, b"f", 0o600);
    c.user = user(1000, 1000, &[]);
    assert_eq!(c.link(&file, &dir, b"g").status(), Nfsstat3::Acces);
    assert_eq!(c.link(&file, &root, b"g").status(), Nfsstat3::Ok);
}

/// Renames and checks the attributes of both directories around the change.
fn rename_around(
    c: &mut Client,
    from: (&FileHandle, &[u8]),
    to: (&FileHandle, &[u8]),
) -> Result<(), Nfsstat3> {
    let before = (c.attr(from.0), c.attr(to.0));
    let renamed = c.rename(from, to);
    let after = (c.attr(from.0), c.attr(to.0));
    let (wcc, result) = match renamed {
        Ok(wcc) => (wcc, Ok(())),
        Err(failed) => (failed.attributes, Err(failed.status)),
    };
    assert_wcc(&wcc.fromdir_wcc, &before.0, &after.0);
    assert_wcc(&wcc.todir_wcc, &before.1, &after.1);
    result
}

#[test]
fn rename_moves_replaces_and_refuses() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let (a, b) = (c.new_dir(&root, b"a", 0o777), c.new_dir(&root, b"b", 0o777));
    let file = c.new_file(&a, b"f", 0o644);
    assert_eq!(rename_around(&mut c, (&a, b"f"), (&b, b"g")), Ok(()));
    assert_eq!(c.lookup(&a, b"f").status(), Nfsstat3::Noent);
    assert_eq!(c.find(&b, b"g"), file, "the handle stays");
    assert_eq!(rename_around(&mut c, (&b, b"g"), (&b, b"h")), Ok(()));
    assert_eq!(rename_around(&mut c, (&b, b"h"), (&b, b"h")), Ok(()), "to itself");

    let other = c.new_file(&a, b"other", 0o644);
    assert_eq!(rename_around(&mut c, (&a, b"other"), (&b, b"h")), Ok(()));
    assert_eq!(c.getattr(&file).status(), Nfsstat3::Stale, "replaced");
    assert_eq!(c.find(&b, b"h"), other);

    // For two names of one file, POSIX says that RENAME does nothing.
    c.link(&other, &a, b"twin").unwrap();
    assert_eq!(rename_around(&mut c, (&a, b"twin"), (&b, b"h")), Ok(()));
    assert_eq!((c.find(&a, b"twin"), c.find(&b, b"h")), (other, other));

    let full = c.new_dir(&a, b"full", 0o777);
    let empty = c.new_dir(&b, b"empty", 0o777);
    c.new_file(&full, b"x", 0o644);
    // POSIX permits both statuses, and file systems differ.
    let not_empty = rename_around(&mut c, (&b, b"empty"), (&a, b"full")).unwrap_err();
    assert!(matches!(not_empty, Nfsstat3::Notempty | Nfsstat3::Exist));
    assert_eq!(rename_around(&mut c, (&a, b"full"), (&b, b"empty")), Ok(()));
    assert_eq!(c.getattr(&empty).status(), Nfsstat3::Stale);
    assert_eq!(c.find(&full, b".."), b);
    assert_eq!(rename_around(&mut c, (&b, b"empty"), (&full, b"below")), Err(Nfsstat3::Inval));
    assert_eq!(rename_around(&mut c, (&root, b"b"), (&full, b"below")), Err(Nfsstat3::Inval));
    assert_eq!(rename_around(&mut c, (&b, b"h"), (&b, b"empty")), Err(Nfsstat3::Isdir));
    assert_eq!(rename_around(&mut c, (&b, b"empty"), (&b, b"h")), Err(Nfsstat3::Notdir));
    assert_eq!(rename_around(&mut c, (&b, b"none"), (&a, b"x")), Err(Nfsstat3::Noent));
    assert_eq!(c.rename((&other, b"x"), (&a, b"x")).status(), Nfsstat3::Notdir);
    assert_eq!(c.rename((&a, b"twin"), (&other, b"x")).status(), Nfsstat3::Notdir);
}

#[test]
fn a_rename_to_another_name_of_the_same_inode_changes_no_directory() {
    for way in [Serve::new().plain(), Serve::new().cached()] {
        let server = way.start();
        let mut c = server.connect();
        let root = c.root();
        let (a, b) = (c.new_dir(&root, b"a", 0o777), c.new_dir(&root, b"b", 0o777));
        let file = c.new_file(&a, b"f", 0o644);
        c.link(&file, &a, b"g").unwrap();
        c.link(&file, &b, b"h").unwrap();
        let all = [&root, &a, &b, &file];
        let before = all.map(|object| c.attr(object));
        for (from, to) in [
            ((&root, "a"), (&root, "a")),
            ((&a, "f"), (&a, "f")),
            ((&a, "f"), (&a, "g")),
            ((&a, "f"), (&b, "h")),
        ] {
            rename_around(&mut c, (from.0, from.1.as_bytes()), (to.0, to.1.as_bytes())).unwrap();
            assert_eq!(all.map(|object| c.attr(object)), before, "{} to {}", from.1, to.1);
        }
    }
}

#[test]
fn an_unwritable_directory_is_refused_by_the_kernel_for_everybody_else() {
    needs_root!();
    let server = Serve::unsquashed().start_on(|data| {
        std::fs::create_dir(data.join("d")).unwrap();
        std::fs::write(data.join("d/f"), "").unwrap();
        std::fs::create_dir(data.join("d/sub")).unwrap();
        std::fs::set_permissions(data.join("d"), PermissionsExt::from_mode(0o755)).unwrap();
    });
    let mut c = server.connect().acting_as(user(1000, 1000, &[]));
    let root = c.root();
    let dir = c.find(&root, b"d");
    assert_eq!(around(&mut c, &dir, |c| refused(c.mkdir(&dir, b"x", mode(0o755)))), Nfsstat3::Acces);
    assert_eq!(around(&mut c, &dir, |c| refused(c.symlink(&dir, b"x", b"y"))), Nfsstat3::Acces);
    let fifo = MknodData::Fifo(mode(0o644));
    assert_eq!(around(&mut c, &dir, |c| refused(c.mknod(&dir, b"x", fifo))), Nfsstat3::Acces);
    assert_eq!(around(&mut c, &dir, |c| refused(c.remove(&dir, b"f"))), Nfsstat3::Acces);
    assert_eq!(around(&mut c, &dir, |c| refused(c.rmdir(&dir, b"sub"))), Nfsstat3::Acces);
    assert_eq!(rename_around(&mut c, (&dir, b"f"), (&root, b"f")), Err(Nfsstat3::Acces));
}
