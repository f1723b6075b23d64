//! Tests of external changes: clients see a direct change of the served directory at once.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::*;

#[test]
fn contents_and_attributes_changed_directly_show_at_once() {
    let server = Serve::new().plain().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o666);
    let path = server.data.join("f");
    for round in 0..50u32 {
        let text = "x".repeat(round as usize);
        std::fs::write(&path, &text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600 | round & 0o77)).unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        for attr in [c.attr(&file), c.lookup(&root, b"f").unwrap().obj_attributes.unwrap()] {
            assert_eq!((attr.size, attr.mode), (u64::from(round), meta.mode() & 0o7777));
            assert_eq!(i64::from(attr.mtime.seconds), meta.mtime());
            assert_eq!(i64::from(attr.ctime.nseconds), meta.ctime_nsec());
        }
        assert_eq!(c.read(&file, 0, 100).unwrap().data, text.as_bytes());
        c.write(&file, 0, b"y", StableHow::Unstable).unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[0], b'y', "and the other way round");
    }
}

/// Makes, moves, replaces and removes names directly, right after the server used the directory.
fn names_changed_directly(server: &Server) {
    let mut c = server.connect();
    let root = c.root();
    let path = |name: &str| server.data.join(name);
    for round in 0..100 {
        let a = c.new_file(&root, b"a", 0o644);
        assert_eq!(c.find(&root, b"a"), a);
        std::fs::rename(path("a"), path("z")).unwrap();
        assert_eq!(c.lookup(&root, b"a").status(), Nfsstat3::Noent, "round {round}: moved away");
        assert_eq!(c.find(&root, b"z"), a);
        std::fs::write(path("new"), "").unwrap();
        std::fs::rename(path("new"), path("z")).unwrap();
        assert_ne!(c.find(&root, b"z"), a, "round {round}: replaced");
        assert_eq!(c.getattr(&a).status(), Nfsstat3::Stale);
        std::fs::remove_file(path("z")).unwrap();
        assert_eq!(c.lookup(&root, b"z").status(), Nfsstat3::Noent, "round {round}: removed");
        // The name did not exist a moment ago.
        std::fs::write(path("z"), "").unwrap();
        assert_eq!(c.lookup(&root, b"z").status(), Nfsstat3::Ok, "round {round}: made");
        std::fs::remove_file(path("z")).unwrap();
    }
}

#[test]
fn names_changed_directly_show_at_once() {
    names_changed_directly(&Serve::new().start());
}

/// On ext2, and on every file system of kernels before 6.13, times are as coarse as the scheduler's tick.
#[test]
fn names_changed_directly_show_at_once_even_with_coarse_times() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext2", 64 << 20) else { return };
    names_changed_directly(&disk.serve().start());
}

/// A file that a client makes is replaced by another file at once. The handle must belong to one of the files, with
/// that file's attributes.
#[test]
fn a_created_file_that_is_replaced_at_once_is_not_mixed_up_with_the_other() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (new, other) = (server.data.join("new"), server.data.join("other"));
            let make_other = || {
                std::fs::write(&other, "other").unwrap();
                std::fs::set_permissions(&other, PermissionsExt::from_mode(0o666)).unwrap();
            };
            make_other();
            while !done.load(Ordering::Relaxed) {
                // The file is replaced as soon as it exists.
                if std::fs::metadata(&new).is_ok_and(|new| new.len() == 0) {
                    std::fs::rename(&other, &new).unwrap();
                    make_other();
                }
            }
        });
        let _done = DoneAtEnd(&done);
        for _ in 0..200 {
            let _ = c.remove(&root, b"new");
            let Ok(made) = c.create(&root, b"new", CreateHow::Guarded(mode(0o666))) else { continue };
            let file = made.object.unwrap();
            let Ok(wrote) = c.write(&file, 0, b"a client's", StableHow::Unstable) else { continue };
            let sound = wrote.file_wcc.after.is_none_or(|attr| attr.size == 10);
            assert!(sound, "the write went to another file");
        }
    });
}

#[test]
fn a_file_removed_directly_is_stale_and_let_go_of() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"removed-directly", 0o644);
    c.write(&file, 0, &[7; 100_000], StableHow::Unstable).unwrap();
    std::fs::remove_file(server.data.join("removed-directly")).unwrap();
    assert_eq!(c.getattr(&file).status(), Nfsstat3::Stale);
    assert_eq!(c.read(&file, 0, 1).status(), Nfsstat3::Stale);
    assert_eq!(c.write(&file, 0, b"x", StableHow::FileSync).status(), Nfsstat3::Stale);
    assert!(held_open(&server, "removed-directly").is_empty(), "its space is still in use");
    // A file with uncommitted data is removed through the server.
    let file = c.new_file(&root, b"removed-through", 0o644);
    c.write(&file, 0, &[7; 100_000], StableHow::Unstable).unwrap();
    c.remove(&root, b"removed-through").unwrap();
    assert!(held_open(&server, "removed-through").is_empty());
    let (old, new) = (c.new_file(&root, b"replaced", 0o644), c.new_file(&root, b"new", 0o644));
    c.write(&old, 0, &[7; 100_000], StableHow::Unstable).unwrap();
    c.rename((&root, b"new"), (&root, b"replaced")).unwrap();
    assert_eq!(c.getattr(&old).status(), Nfsstat3::Stale);
    assert!(held_open(&server, "replaced (deleted)").is_empty());
    c.attr(&new);
}

/// No client asks for the file any more, so the server must notice by itself.
#[test]
fn a_file_removed_directly_is_let_go_of_though_nobody_asks() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"forgotten", 0o644);
    c.write(&file, 0, &[7; 100_000], StableHow::Unstable).unwrap();
    std::fs::remove_file(server.data.join("forgotten")).unwrap();
    wait_for(|| held_open(&server, "forgotten").is_empty());
}

/// The number of files with uncommitted data is limited. Removed files must not count.
#[test]
fn removed_files_leave_room_for_unstable_data() {
    let server = Serve::new().flags(&["--open-files", "16"]).start();
    let mut c = server.connect();
    let root = c.root();
    for n in 0..40 {
        let file = c.new_file(&root, b"f", 0o644);
        let wrote = c.write(&file, 0, b"data", StableHow::Unstable).unwrap();
        assert_eq!(wrote.committed, StableHow::Unstable, "file {n}");
        std::fs::remove_file(server.data.join("f")).unwrap();
        assert_eq!(c.getattr(&file).status(), Nfsstat3::Stale);
    }
}

/// Returns descriptors of the server that lead to a path containing `part`.
fn held_open(server: &Server, part: &str) -> Vec<String> {
    let fds = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
    let paths = fds.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
    paths.map(|path| path.to_string_lossy().into_owned()).filter(|path| path.contains(part)).collect()
}

#[test]
fn directories_moved_and_removed_directly() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let a = c.new_dir(&root, b"a", 0o777);
    let b = c.new_dir(&a, b"b", 0o777);
    let file = c.new_file(&b, b"f", 0o644);
    std::fs::rename(server.data.join("a/b"), server.data.join("b")).unwrap();
    assert_eq!(c.lookup(&a, b"b").status(), Nfsstat3::Noent);
    assert_eq!(c.find(&root, b"b"), b);
    assert_eq!(c.find(&b, b".."), root);
    assert_eq!(c.find(&b, b"f"), file);
    std::fs::remove_dir_all(server.data.join("b")).unwrap();
    assert_eq!(c.getattr(&b).status(), Nfsstat3::Stale);
    assert_eq!(c.lookup(&b, b"f").status(), Nfsstat3::Stale);
    assert_eq!(c.readdir(&b, START, 4096).status(), Nfsstat3::Stale);
    assert_eq!(c.create(&b, b"x", CreateHow::Guarded(mode(0o644))).status(), Nfsstat3::Stale);
    assert_eq!(c.getattr(&file).status(), Nfsstat3::Stale);
}

/// A file system mounted below an export is not part of the export, and no request waits for it.
#[test]
fn a_mount_point_below_the_export_is_not_entered() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext2", 16 << 20) else { return };
    let server = Serve::new().flags(&["--squash", "none"]).start_on(|data| {
        std::fs::create_dir(data.join("mnt")).unwrap();
        disk.bind(&data.join("mnt"));
    });
    std::fs::write(disk.at.join("inside"), "").unwrap();
    let mut c = server.connect();
    let root = c.root();
    assert_eq!(c.lookup(&root, b"mnt").status(), Nfsstat3::Acces);
    assert_eq!(c.rmdir(&root, b"mnt").status(), Nfsstat3::Acces);
    assert_eq!(c.rename((&root, b"mnt"), (&root, b"x")).status(), Nfsstat3::Acces);
    let page = c.readdirplus(&root, START, 4096, 8192).unwrap();
    let entry = page.entries.iter().find(|entry| entry.name == b"mnt").unwrap();
    assert_eq!((entry.attributes, entry.handle), (None, None));
    disk.unbind(&server.data.join("mnt"));
    assert_eq!(c.rmdir(&root, b"mnt").status(), Nfsstat3::Ok);
}
