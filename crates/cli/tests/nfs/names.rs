//! Tests of names: any bytes but '/' and NUL, up to 255 of them. `.` and `..` never lead out of the export, and links
//! are never followed.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::harness::*;

#[test]
fn names_of_any_bytes_up_to_255() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let every_byte: Vec<u8> = (1..=255u8).filter(|byte| *byte != b'/').collect();
    let longest = vec![0xff; 255];
    for child in [&b"a"[..], b" ", b"\xff\xfe", b"...", b"-rf", b"\n", &every_byte, &longest] {
        let file = c.new_file(&root, child, 0o644);
        assert_eq!(c.find(&root, child), file);
        assert!(server.data.join(OsStr::from_bytes(child)).exists());
        let page = c.readdir(&root, (0, [0; 8]), 65536).unwrap();
        assert!(page.entries.iter().any(|entry| entry.name == child));
        let renamed = [&b"r"[..], &child[..child.len() - 1]].concat();
        c.rename((&root, child), (&root, &renamed)).unwrap();
        c.link(&file, &root, child).unwrap();
        c.remove(&root, &renamed).unwrap();
        c.remove(&root, child).unwrap();
    }
}

/// Returns the status of every procedure that takes a name, for this name.
fn with_name(
    c: &mut Client,
    dir: &FileHandle,
    file: &FileHandle,
    child: &[u8],
) -> Vec<(&'static str, Nfsstat3)> {
    vec![
        ("LOOKUP", c.lookup(dir, child).status()),
        ("CREATE", c.create(dir, child, CreateHow::Guarded(mode(0o644))).status()),
        ("CREATE unchecked", c.create(dir, child, CreateHow::Unchecked(mode(0o644))).status()),
        ("CREATE exclusive", c.create(dir, child, CreateHow::Exclusive([7; 8])).status()),
        ("MKDIR", c.mkdir(dir, child, mode(0o755)).status()),
        ("SYMLINK", c.symlink(dir, child, b"to").status()),
        ("MKNOD", c.mknod(dir, child, MknodData::Fifo(mode(0o644))).status()),
        ("REMOVE", c.remove(dir, child).status()),
        ("RMDIR", c.rmdir(dir, child).status()),
        ("RENAME from", c.rename((dir, child), (dir, b"new")).status()),
        ("RENAME to", c.rename((dir, b"f"), (dir, child)).status()),
        ("LINK", c.link(file, dir, child).status()),
    ]
}

#[test]
fn names_that_cannot_be() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o777);
    let file = c.new_file(&dir, b"f", 0o644);
    let before = (c.attr(&dir), c.attr(&file));
    let too_long = vec![b'n'; 256];
    let far_too_long = vec![b'n'; 70_000];
    let cases: [(&[u8], Nfsstat3); 7] = [
        (&too_long, Nfsstat3::Nametoolong),
        (&far_too_long, Nfsstat3::Nametoolong),
        (b"", Nfsstat3::Inval),
        (b"a/b", Nfsstat3::Inval),
        (b"/", Nfsstat3::Inval),
        (b"nul\0", Nfsstat3::Inval),
        (b"../f", Nfsstat3::Inval),
    ];
    for (child, expected) in cases {
        for (procedure, status) in with_name(&mut c, &dir, &file, child) {
            assert_eq!(status, expected, "{procedure} of {:.20}", child.escape_ascii().to_string());
        }
    }
    assert_eq!((c.attr(&dir), c.attr(&file)), before);
}

/// RFC 1813 permits both names in LOOKUP. RMDIR answers INVAL and EXIST. RENAME answers INVAL for its source, and
/// EXIST or INVAL for its target. No answer may be JUKEBOX, which a client repeats forever.
#[test]
fn dot_and_dot_dot_cannot_be_changed() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o777);
    let file = c.new_file(&dir, b"f", 0o644);
    let before = (c.attr(&root), c.attr(&dir), c.attr(&file));
    for child in [&b"."[..], b".."] {
        for (procedure, status) in with_name(&mut c, &dir, &file, child) {
            let expected = match (procedure, child) {
                ("LOOKUP", _) => Nfsstat3::Ok,
                ("REMOVE", _) => Nfsstat3::Isdir,
                ("RMDIR" | "RENAME from" | "RENAME to", b".") => Nfsstat3::Inval,
                ("RENAME from" | "RENAME to", _) => Nfsstat3::Inval,
                _ => Nfsstat3::Exist,
            };
            assert_eq!(status, expected, "{procedure} of {}", child.escape_ascii());
        }
    }
    assert_eq!((c.attr(&root), c.attr(&dir), c.attr(&file)), before);
}

#[test]
fn dot_dot_climbs_to_the_root_of_the_export_and_stays_there() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let a = c.new_dir(&root, b"a", 0o777);
    let b = c.new_dir(&a, b"b", 0o777);
    assert_eq!(c.find(&b, b".."), a);
    assert_eq!(c.find(&a, b".."), root);
    assert_eq!(c.find(&root, b".."), root);
    assert_eq!(c.find(&b, b"."), b);
    let inside = c.attr(&root);
    for dir in [&root, &a] {
        for entry in c.readdir(dir, (0, [0; 8]), 4096).unwrap().entries {
            if entry.name == b".." {
                assert_eq!(entry.fileid, inside.fileid, "the parent of the root is the root");
            }
        }
        for entry in c.readdirplus(dir, (0, [0; 8]), 4096, 8192).unwrap().entries {
            if entry.name == b".." {
                assert_eq!(entry.fileid, inside.fileid);
                assert!(entry.handle.is_none_or(|handle| handle == root));
                assert!(entry.attributes.is_none_or(|attributes| attributes.fileid == inside.fileid));
            }
        }
    }
    c.rename((&a, b"b"), (&root, b"b")).unwrap();
    assert_eq!(c.find(&b, b".."), root, "a moved directory has a new parent");
}

#[test]
fn a_directory_moved_out_behind_the_back_does_not_lead_out() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let a = c.new_dir(&root, b"a", 0o777);
    let b = c.new_dir(&a, b"b", 0o777);
    std::fs::rename(server.data.join("a"), server.home().join("outside")).unwrap();
    assert_eq!(c.lookup(&a, b"..").status(), Nfsstat3::Acces);
    assert_eq!(c.lookup(&b, b"..").status(), Nfsstat3::Acces);
}

#[test]
fn the_server_follows_no_link() {
    let server = Serve::new().start_on(|data| {
        std::fs::write(data.join("../secret"), "secret").unwrap();
        std::fs::create_dir(data.join("../outside")).unwrap();
    });
    let mut c = server.connect();
    let root = c.root();
    let up = c.symlink(&root, b"up", b"../outside").unwrap().object.unwrap();
    let out = c.symlink(&root, b"out", b"../secret").unwrap().object.unwrap();
    assert_eq!(c.find(&root, b"up"), up);
    assert_eq!(c.attr(&up).ftype, Ftype3::Lnk);
    assert_eq!(c.lookup(&up, b"x").status(), Nfsstat3::Notdir);
    assert_eq!(c.create(&up, b"x", CreateHow::Guarded(mode(0o644))).status(), Nfsstat3::Notdir);
    assert_eq!(c.readdir(&up, (0, [0; 8]), 4096).status(), Nfsstat3::Notdir);
    assert_eq!(c.readdirplus(&up, (0, [0; 8]), 4096, 4096).status(), Nfsstat3::Notdir);
    assert_eq!(c.read(&out, 0, 10).status(), Nfsstat3::Inval);
    assert_eq!(c.write(&out, 0, b"x", StableHow::FileSync).status(), Nfsstat3::Inval);
    assert_eq!(c.setattr(&out, size(0)).status(), Nfsstat3::Inval);
    assert_eq!(c.commit(&out, 0, 0).status(), Nfsstat3::Inval);
    for how in [CreateHow::Unchecked(size(0)), CreateHow::Guarded(mode(0o644)), CreateHow::Exclusive([1; 8])]
    {
        assert_eq!(c.create(&root, b"out", how).status(), Nfsstat3::Exist);
    }
    // A request that names a link affects the link itself.
    c.link(&out, &root, b"again").unwrap();
    assert_eq!(c.readlink(&out).unwrap().0, b"../secret");
    c.rename((&root, b"again"), (&root, b"up")).unwrap();
    c.remove(&root, b"out").unwrap();
    assert_eq!(std::fs::read(server.home().join("secret")).unwrap(), b"secret");
    assert_eq!(std::fs::read_dir(server.home().join("outside")).unwrap().count(), 0);
}
