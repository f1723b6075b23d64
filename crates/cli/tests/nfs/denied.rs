//! Tests that a denied request causes no durable work: no commit of the file system's journal, no checkpoint, no
//! record in the cache's log. Otherwise a client without rights could keep the disks busy.

use crate::harness::*;

/// A user without rights.
const STRANGER: u32 = 4001;
const TIMES: u32 = 20;

/// Returns the number of journal commits and checkpoints, and of frames of the log.
fn spent(server: &Server) -> [u64; 2] {
    let status = server.status();
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    [number(&status["durability"]["operations"]), number(&status["pool"]["counters"]["frames"])]
}

struct Scene<'a> {
    c: &'a mut Client,
    dir: FileHandle,
    file: FileHandle,
}

type Ask = fn(&mut Scene<'_>) -> Nfsstat3;

fn set(scene: &mut Scene<'_>, set: Sattr3) -> Nfsstat3 {
    scene.c.setattr(&scene.file, set).status()
}

fn create(scene: &mut Scene<'_>, name: &[u8], how: CreateHow) -> Nfsstat3 {
    scene.c.create(&scene.dir, name, how).status()
}

/// Every procedure that changes an object, in each of its forms.
const REQUESTS: [(&str, Ask); 23] = [
    ("SETATTR mode", |s| set(s, mode(0o777))),
    ("SETATTR owner", |s| set(s, Sattr3 { uid: Some(STRANGER), ..Sattr3::default() })),
    ("SETATTR group", |s| set(s, Sattr3 { gid: Some(STRANGER), ..Sattr3::default() })),
    ("SETATTR size, shorter", |s| set(s, size(0))),
    ("SETATTR size, longer", |s| set(s, size(1 << 20))),
    ("SETATTR time", |s| set(s, Sattr3 { mtime: at(1, 2), ..Sattr3::default() })),
    ("SETATTR time, now", |s| set(s, Sattr3 { mtime: SetTime::ServerTime, ..Sattr3::default() })),
    ("SETATTR size and mode", |s| set(s, Sattr3 { size: Some(5), ..mode(0o777) })),
    ("CREATE unchecked", |s| create(s, b"new", CreateHow::Unchecked(mode(0o644)))),
    ("CREATE unchecked, of a size", |s| create(s, b"new", CreateHow::Unchecked(size(7)))),
    ("CREATE unchecked, cutting what is there", |s| create(s, b"f", CreateHow::Unchecked(size(0)))),
    ("CREATE guarded", |s| create(s, b"new", CreateHow::Guarded(mode(0o644)))),
    ("CREATE exclusive", |s| create(s, b"new", CreateHow::Exclusive([7; 8]))),
    ("MKDIR", |s| s.c.mkdir(&s.dir, b"new", mode(0o755)).status()),
    ("SYMLINK", |s| s.c.symlink(&s.dir, b"new", b"text").status()),
    ("SYMLINK, text longer than a record", |s| s.c.symlink(&s.dir, b"new", &[b't'; 3000]).status()),
    ("MKNOD", |s| s.c.mknod(&s.dir, b"new", MknodData::Fifo(mode(0o644))).status()),
    ("REMOVE", |s| s.c.remove(&s.dir, b"f").status()),
    ("RMDIR", |s| s.c.rmdir(&s.dir, b"sub").status()),
    ("RENAME", |s| s.c.rename((&s.dir, b"f"), (&s.dir, b"new")).status()),
    ("LINK", |s| s.c.link(&s.file, &s.dir, b"new").status()),
    ("WRITE", |s| s.c.write(&s.file, 0, b"theirs", StableHow::FileSync).status()),
    ("COMMIT", |s| s.c.commit(&s.file, 0, 0).status()),
];

fn serve(kind: &'static str, cached: bool) {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), kind, 320 << 20) else { return };
    let serve = if cached { disk.serve().cached() } else { disk.serve().plain() };
    let server = serve.start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o755);
    let file = c.new_file(&dir, b"f", 0o600);
    c.write(&file, 0, b"contents", StableHow::FileSync).unwrap();
    c.new_dir(&dir, b"sub", 0o755);
    if cached {
        server.flush();
    }
    let before = c.attr(&file);
    let mut stranger = server.connect().acting_as(user(STRANGER, STRANGER, &[]));
    let mut scene = Scene { c: &mut stranger, dir, file };
    for (what, ask) in REQUESTS {
        let at_first = if cached { spent(&server) } else { [commits(&server), 0] };
        for _ in 0..TIMES {
            let status = ask(&mut scene);
            assert!(matches!(status, Nfsstat3::Acces | Nfsstat3::Perm), "{kind}: {what}: {status:?}");
        }
        let at_last = if cached { spent(&server) } else { [commits(&server), 0] };
        assert_eq!(at_last, at_first, "{kind}, cached {cached}: {what}: commits and frames after and before");
    }
    assert_eq!(c.attr(&file), before);
    assert_eq!(c.readdir(&dir, START, 1 << 20).unwrap().entries.len(), 4);
}

fn commits(server: &Server) -> u64 {
    server.status()["durability"]["operations"].as_u64().unwrap()
}

#[test]
fn what_is_denied_costs_neither_a_commit_nor_a_record() {
    for kind in ["ext4", "xfs"] {
        for cached in [true, false] {
            serve(kind, cached);
        }
    }
}

/// The record is too long for the log, so a checkpoint takes its place. The checkpoint must begin only when the link
/// is known to be possible.
#[test]
fn a_symbolic_link_that_cannot_be_made_costs_no_checkpoint() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "xfs", 320 << 20) else { return };
    let server = disk.serve().cached().start();
    let mut c = server.connect();
    let root = c.root();
    c.new_file(&root, b"taken", 0o644);
    let mut stranger = server.connect().acting_as(user(STRANGER, STRANGER, &[]));
    let before = commits(&server);
    for n in 0..TIMES {
        // Without a change since the last checkpoint, a further one would cost nothing.
        c.new_file(&root, format!("f{n}").as_bytes(), 0o644);
        assert_eq!(c.symlink(&root, b"taken", &[b't'; 3000]).status(), Nfsstat3::Exist);
        c.new_file(&root, format!("g{n}").as_bytes(), 0o644);
        assert_eq!(c.symlink(&root, b"new", &[b't'; 3000]).status(), Nfsstat3::Nametoolong);
        c.new_file(&root, format!("h{n}").as_bytes(), 0o644);
        assert_eq!(stranger.symlink(&root, b"new", &[b't'; 3000]).status(), Nfsstat3::Acces);
    }
    // The server makes a checkpoint every few seconds in any case.
    let spent = commits(&server) - before;
    assert!(spent < u64::from(TIMES), "{spent} commits");
}
