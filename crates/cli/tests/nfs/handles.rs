//! Tests of file handles: valid as long as the file exists, and invalid if a bit is changed.

use crate::harness::*;

fn of(bytes: &[u8]) -> FileHandle {
    FileHandle::new(bytes).unwrap()
}

#[test]
fn flipped_truncated_and_invented_handles_are_bad() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let bytes = file.as_bytes().to_vec();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(c.getattr(&of(&flipped)).status(), Nfsstat3::Badhandle, "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert_eq!(c.getattr(&of(&bytes[..len])).status(), Nfsstat3::Badhandle, "{len} bytes");
    }
    let longer = [&bytes[..], &[0]].concat();
    for invented in [&longer[..], &[0; 64], &[0xff; 64], &[1; 28]] {
        assert_eq!(c.getattr(&of(invented)).status(), Nfsstat3::Badhandle);
    }
}

#[test]
fn every_procedure_refuses_a_bad_handle() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let bad = of(&[7; 28]);
    let guarded = CreateHow::Guarded(mode(0o644));
    let statuses = [
        c.getattr(&bad).status(),
        c.setattr(&bad, mode(0o600)).status(),
        c.lookup(&bad, b"f").status(),
        c.access(&bad, 1).status(),
        c.readlink(&bad).status(),
        c.read(&bad, 0, 1).status(),
        c.write(&bad, 0, b"x", StableHow::FileSync).status(),
        c.create(&bad, b"x", guarded).status(),
        c.mkdir(&bad, b"x", mode(0o755)).status(),
        c.symlink(&bad, b"x", b"y").status(),
        c.mknod(&bad, b"x", MknodData::Fifo(mode(0o644))).status(),
        c.remove(&bad, b"f").status(),
        c.rmdir(&bad, b"f").status(),
        c.rename((&bad, b"f"), (&root, b"g")).status(),
        c.rename((&root, b"f"), (&bad, b"g")).status(),
        c.link(&bad, &root, b"g").status(),
        c.link(&file, &bad, b"g").status(),
        c.readdir(&bad, (0, [0; 8]), 4096).status(),
        c.readdirplus(&bad, (0, [0; 8]), 4096, 4096).status(),
        c.fsstat(&bad).status(),
        c.fsinfo(&bad).status(),
        c.pathconf(&bad).status(),
        c.commit(&bad, 0, 0).status(),
    ];
    assert_eq!(statuses, [Nfsstat3::Badhandle; 23]);
}

#[test]
fn handles_survive_renames_restarts_and_crashes() {
    let mut server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o755);
    let file = c.new_file(&dir, b"f", 0o644);
    let link = c.symlink(&dir, b"l", b"f").unwrap().object.unwrap();
    c.write(&file, 0, b"data", StableHow::FileSync).unwrap();
    c.rename((&dir, b"f"), (&root, b"g")).unwrap();
    c.rename((&root, b"d"), (&root, b"e")).unwrap();
    let attrs = [root, dir, file, link].map(|handle| c.attr(&handle));
    for crash in [false, true] {
        if crash {
            server.kill()
        } else {
            server.stop()
        }
        // The file system alone keeps track of the change while no server runs.
        let (from, to) = if crash { ("k", "m") } else { ("g", "k") };
        std::fs::rename(server.data.join(from), server.data.join(to)).unwrap();
        server.start();
        let mut c = server.connect();
        assert_eq!(c.root(), root);
        for (handle, before) in [root, dir, file, link].iter().zip(&attrs) {
            let after = c.attr(handle);
            assert_eq!((after.fileid, after.fsid), (before.fileid, before.fsid), "crash {crash}");
        }
        assert_eq!(c.read(&file, 0, 10).unwrap().data, b"data");
        assert_eq!(c.readlink(&link).unwrap().0, b"f");
        assert_eq!(c.find(&dir, b".."), root);
    }
}

#[test]
fn a_removed_file_is_stale_even_when_its_inode_lives_on() {
    let mut server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let mut stale = Vec::new();
    // File systems soon reuse an inode number. The generation tells the new file from the old one.
    for round in 0..50 {
        let file = c.new_file(&root, b"f", 0o644);
        for old in &stale {
            assert_ne!(file, *old);
        }
        if round % 2 == 0 {
            c.remove(&root, b"f").unwrap();
        } else {
            std::fs::remove_file(server.data.join("f")).unwrap();
        }
        stale.push(file);
    }
    let live = c.new_file(&root, b"f", 0o644);
    for _ in 0..2 {
        for old in &stale {
            assert_eq!(c.getattr(old).status(), Nfsstat3::Stale);
        }
        c.attr(&live);
        server.restart();
        c = server.connect();
    }
}

#[test]
fn without_a_cache_another_state_directory_has_other_handles() {
    let mut server = Serve::new().flags(&["--mode", "pass-through"]).start();
    let root = server.connect().root();
    server.stop();
    std::fs::remove_file(server.state.join("handle.key")).unwrap();
    server.start();
    let mut c = server.connect();
    assert_eq!(c.getattr(&root).status(), Nfsstat3::Badhandle);
    assert_ne!(c.root(), root);
}

#[test]
fn handles_of_an_export_that_is_gone_are_stale() {
    let export = |name: &str| format!("[[export]]\npath='@/data/{name}'\nname='/{name}'\n");
    let mut server = Serve::new().exports(&(export("a") + &export("b"))).start_on(|data| {
        for dir in ["a", "b"] {
            std::fs::create_dir(data.join(dir)).unwrap();
        }
    });
    let mut c = server.connect();
    let (a, b) = (c.mnt(b"/a").unwrap().fhandle, c.mnt(b"/b").unwrap().fhandle);
    server.stop();
    let toml = export("b").replace('@', server.home().to_str().unwrap());
    std::fs::write(server.home().join("forebay.toml"), toml).unwrap();
    server.start();
    let mut c = server.connect();
    assert_eq!(c.getattr(&a).status(), Nfsstat3::Stale);
    c.attr(&b);
}

#[test]
fn more_objects_than_may_be_kept_open() {
    let server = Serve::new().flags(&["--open-files", "32"]).start();
    let mut c = server.connect();
    let root = c.root();
    let mut files = Vec::new();
    for n in 0..300u32 {
        let file = c.new_file(&root, n.to_string().as_bytes(), 0o644);
        let stable = if n % 2 == 0 { StableHow::Unstable } else { StableHow::FileSync };
        c.write(&file, 0, &n.to_be_bytes(), stable).unwrap();
        files.push(file);
    }
    for (n, file) in files.iter().enumerate() {
        assert_eq!(c.read(file, 0, 4).unwrap().data, (n as u32).to_be_bytes());
        c.commit(file, 0, 0).unwrap();
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count();
    assert!(open < 300, "{open} descriptors are open");
}
