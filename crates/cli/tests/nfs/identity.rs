//! Tests of the identity of an export's file system. A server never accepts another file system in its place. It
//! never drops cached data of the file system unless a client removed it.

use std::path::{Path, PathBuf};

use crate::harness::*;

/// Makes another file system of this kind in a file.
fn make(kind: &str, image: &Path) {
    std::fs::File::create(image).unwrap().set_len(SIZE).unwrap();
    let made = std::process::Command::new(format!("mkfs.{kind}")).arg("-q").arg(image).output().unwrap();
    assert!(made.status.success());
}

/// Returns the sorted paths of the entries of a directory.
fn contents(at: &Path) -> Vec<PathBuf> {
    let mut all: Vec<_> = std::fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

#[derive(Clone, Copy, Debug)]
enum End {
    Crash,
    Stop,
}

impl End {
    fn bring(self, server: &mut Server) {
        match self {
            End::Crash => server.kill(),
            End::Stop => server.stop(),
        }
    }
}

const SIZE: u64 = 320 << 20;

/// Covers all orders: crash or clean stop; unmounted, another file system, an older copy, mounted over while in
/// service.
fn only_the_file_system_that_was_served_is_served_again(kind: &str, end: End) {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), kind, SIZE) else { return };
    let [other, copy] = ["other", "copy"].map(|name| home.path().join(name));
    make(kind, &other);
    let mut server = disk.serve().cached().start();
    let root = server.connect().root();
    let file = server.connect().new_file(&root, b"f", 0o644);
    server.stop();
    disk.copy_to(&copy);
    server.start();
    let write = |server: &Server, at: u64, data: &[u8]| {
        server.connect().write(&file, at, data, StableHow::FileSync).unwrap();
    };
    write(&server, 0, b"acknowledged");

    // The file system is unmounted and mounted over while in service. The server reports that and continues with the
    // open one.
    disk.unmount();
    disk.mount_here(&other);
    let before = contents(&disk.at);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !server.ask(&["status"]).contains("leads to") {
        assert!(std::time::Instant::now() < until, "{}", server.ask(&["status"]));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    wait_for(|| server.ask(&["events", "-n", "100"]).contains("no longer to"));
    write(&server, 4096, b"meanwhile");
    server.connect().new_file(&root, b"g", 0o644);
    server.flush();
    write(&server, 8192, b"at last");
    assert_eq!(contents(&disk.at), before);
    end.bring(&mut server);

    let said = server.refusal();
    assert!(said.contains("another file system is at") && said.contains(" UUID="), "{said}");
    assert_eq!(contents(&disk.at), before, "nothing is written to another file system");
    disk.unmount();
    let said = server.refusal();
    assert!(said.contains("nothing is mounted at") && said.contains(" UUID="), "{said}");
    assert!(contents(&disk.at).is_empty(), "nothing is written to the empty mount point");
    disk.mount_here(&copy);
    let before = contents(&disk.at);
    let said = server.refusal();
    assert!(said.contains("an older copy"), "{said}");
    assert_eq!(contents(&disk.at), before, "nothing is written to an older copy");
    disk.unmount();

    disk.mount_here(&disk.image);
    server.start();
    let mut c = server.connect();
    for (at, data) in [(0, &b"acknowledged"[..]), (4096, b"meanwhile"), (8192, b"at last")] {
        assert_eq!(c.read(&file, at, data.len() as u32).unwrap().data, data, "{kind} {end:?}");
    }
    c.find(&root, b"g");
    server.flush();
    let written = std::fs::read(disk.at.join("f")).unwrap();
    assert_eq!((&written[..12], &written[8192..]), (&b"acknowledged"[..], &b"at last"[..]));
    assert_eq!(server.ask(&["lost", "list", "--json"]).trim(), "[]");
}

#[test]
fn an_ext4_is_known_again_after_a_crash() {
    only_the_file_system_that_was_served_is_served_again("ext4", End::Crash);
}

#[test]
fn an_ext4_is_known_again_after_a_stop() {
    only_the_file_system_that_was_served_is_served_again("ext4", End::Stop);
}

#[test]
fn an_xfs_is_known_again_after_a_crash() {
    only_the_file_system_that_was_served_is_served_again("xfs", End::Crash);
}

#[test]
fn an_xfs_is_known_again_after_a_stop() {
    only_the_file_system_that_was_served_is_served_again("xfs", End::Stop);
}

#[test]
fn a_btrfs_is_known_again_after_a_crash() {
    only_the_file_system_that_was_served_is_served_again("btrfs", End::Crash);
}

#[test]
fn a_btrfs_is_known_again_after_a_stop() {
    only_the_file_system_that_was_served_is_served_again("btrfs", End::Stop);
}

#[test]
fn the_pool_knows_where_the_state_directory_is_lost() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext4", SIZE) else { return };
    let mut server = disk.serve().cached().start();
    let root = server.connect().root();
    let file = server.connect().new_file(&root, b"f", 0o644);
    server.flush();
    server.connect().write(&file, 0, b"acknowledged", StableHow::FileSync).unwrap();
    server.kill();
    std::fs::remove_dir_all(&server.state).unwrap();
    disk.unmount();
    let said = server.refusal();
    assert!(said.contains("nothing is mounted at"), "{said}");
    assert!(contents(&disk.at).is_empty());
    disk.mount_here(&disk.image);
    server.start();
    server.flush();
    assert_eq!(std::fs::read(disk.at.join("f")).unwrap(), b"acknowledged");
}

/// In the past this start failed with the number of an I/O error.
#[test]
fn what_the_cache_has_of_an_export_that_is_taken_out_of_the_configuration_is_a_sentence() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext4", SIZE) else { return };
    let export = |path: &str, name: &str| {
        format!(
            "[[export]]\npath='{path}'\nname='{name}'\n[[export.client]]\nnetworks=['127.0.0.1']\nsquash='none'\n"
        )
    };
    let (first, second) = (export(disk.at.to_str().unwrap(), "/disk"), export("@/data", "/data"));
    let mut server = Serve::new().exports(&format!("{first}{second}")).cached().start();
    let mut c = server.connect();
    let root = c.mnt(b"/disk").unwrap().fhandle;
    let file = c.new_file(&root, b"f", 0o644);
    server.flush();
    c.write(&file, 0, b"acknowledged", StableHow::FileSync).unwrap();
    server.kill();
    let config = server.home().join("forebay.toml");
    let both = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, both.strip_prefix(&first).unwrap()).unwrap();
    let said = server.refusal();
    assert!(
        said.contains("data of 1 files of a directory that is not served now, on ext4 with UUID"),
        "{said}"
    );
    assert!(said.contains("serve it again"), "{said}");
    std::fs::write(&config, &both).unwrap();
    server.start();
    assert_eq!(server.connect().read(&file, 0, 100).unwrap().data, b"acknowledged");
    server.flush();
    assert_eq!(std::fs::read(disk.at.join("f")).unwrap(), b"acknowledged");
}

/// A copy that replaces a broken original gets the cached data of the original.
#[test]
fn a_copy_that_is_adopted_as_the_same_gets_what_the_cache_holds() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext4", SIZE) else { return };
    let copy = home.path().join("copy");
    let mut server = disk.serve().cached().start();
    let root = server.connect().root();
    let file = server.connect().new_file(&root, b"f", 0o644);
    server.stop();
    disk.copy_to(&copy);
    server.start();
    server.connect().write(&file, 4096, b"acknowledged", StableHow::FileSync).unwrap();
    server.kill();
    disk.unmount();
    disk.mount_here(&copy);
    assert!(server.refusal().contains("forebay adopt"));
    let at = disk.at.to_str().unwrap();
    server.ask(&["adopt", at, "--same"]);
    server.start();
    let mut c = server.connect();
    assert_eq!(c.root(), root, "handles stay");
    assert_eq!(c.read(&file, 4096, 100).unwrap().data, b"acknowledged");
    server.flush();
    assert_eq!(&std::fs::read(disk.at.join("f")).unwrap()[4096..], b"acknowledged");
    assert_eq!(server.ask(&["lost", "list", "--json"]).trim(), "[]");
    // The adoption applied once: now the original is the older copy.
    server.stop();
    disk.unmount();
    disk.mount_here(&disk.image);
    assert!(server.refusal().contains("forebay adopt"));
}

#[test]
fn what_the_cache_has_for_a_file_system_that_is_given_up_is_set_aside() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext4", SIZE) else { return };
    let other = home.path().join("other");
    make("ext4", &other);
    let mut server = disk.serve().cached().start();
    let root = server.connect().root();
    let file = server.connect().new_file(&root, b"f", 0o644);
    server.flush();
    server.connect().write(&file, 4096, b"acknowledged", StableHow::FileSync).unwrap();
    server.connect().new_dir(&root, b"d", 0o755);
    server.kill();
    disk.unmount();
    disk.mount_here(&other);
    std::fs::write(disk.at.join("private"), "of the other one").unwrap();
    assert!(server.refusal().contains("forebay adopt"));
    server.ask(&["adopt", disk.at.to_str().unwrap()]);
    server.start();
    let mut c = server.connect();
    let new_root = c.root();
    assert_ne!(new_root, root);
    for old in [&root, &file] {
        assert_eq!(
            c.getattr(old).status(),
            Nfsstat3::Stale,
            "it must not name anything of another file system"
        );
    }
    assert_eq!(c.lookup(&new_root, b"d").status(), Nfsstat3::Noent);
    server.flush();
    let list: serde_json::Value = serde_json::from_str(&server.ask(&["lost", "list", "--json"])).unwrap();
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), 2, "a file, and changes of names: {list:?}");
    let lost = list.iter().find(|lost| lost["why"] != "changes").unwrap();
    let to = home.path().join("restored");
    server.ask(&["lost", "restore", lost["id"].as_str().unwrap(), to.to_str().unwrap()]);
    assert_eq!(&std::fs::read(&to).unwrap()[4096..], b"acknowledged");
    let changes = list.iter().find(|lost| lost["why"] == "changes").unwrap();
    let text = home.path().join("changes");
    server.ask(&["lost", "restore", changes["id"].as_str().unwrap(), text.to_str().unwrap()]);
    assert!(std::fs::read_to_string(&text).unwrap().contains(" d in "));
    // The adoption applied once: from now on the new file system is the served one.
    server.kill();
    server.start();
    assert_eq!(server.connect().root(), new_root);
    let list: serde_json::Value = serde_json::from_str(&server.ask(&["lost", "list", "--json"])).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 2);
}

/// Makes a file with data that only the cache has.
fn dirty(server: &Server, name: &[u8]) -> FileHandle {
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, name, 0o644);
    server.flush();
    c.write(&file, 0, name, StableHow::FileSync).unwrap();
    file
}

fn lost(server: &Server) -> Vec<serde_json::Value> {
    serde_json::from_str(&server.ask(&["lost", "list", "--json"])).unwrap()
}

#[test]
fn what_was_written_to_a_file_that_somebody_else_removed_is_set_aside() {
    needs_root!();
    for kind in ["ext4", "xfs"] {
        let home = tempfile::tempdir().unwrap();
        let Some(disk) = LoopDisk::new(home.path(), kind, SIZE) else { return };
        let mut server = disk.serve().cached().start();
        dirty(&server, b"in service");
        std::fs::remove_file(disk.at.join("in service")).unwrap();
        server.flush();
        dirty(&server, b"after a crash");
        server.kill();
        std::fs::remove_file(disk.at.join("after a crash")).unwrap();
        server.start();
        server.flush();
        let lost = lost(&server);
        assert_eq!(lost.len(), 2, "{lost:?}");
        for (lost, name) in lost.iter().zip(["in service", "after a crash"]) {
            let to = home.path().join(name);
            server.ask(&["lost", "restore", lost["id"].as_str().unwrap(), to.to_str().unwrap()]);
            assert_eq!(std::fs::read_to_string(&to).unwrap(), name);
        }
        assert!(server.ask(&["events", "-n", "100"]).contains("forebay lost show"));
        assert!(server.ask(&["status"]).contains("2 files is set aside"));
        for lost in &lost {
            server.ask(&["lost", "drop", lost["id"].as_str().unwrap()]);
        }
        assert!(!server.ask(&["status"]).contains("set aside"));
    }
}

#[test]
fn what_a_client_removed_is_not_set_aside() {
    needs_root!();
    for kind in ["ext4", "btrfs"] {
        let home = tempfile::tempdir().unwrap();
        let Some(disk) = LoopDisk::new(home.path(), kind, SIZE) else { return };
        let mut server = disk.serve().cached().start();
        let mut c = server.connect();
        let root = c.root();
        for name in [&b"a"[..], b"b", b"c"] {
            dirty(&server, name);
        }
        c.remove(&root, b"a").unwrap();
        c.rename((&root, b"b"), (&root, b"c")).unwrap();
        server.kill();
        server.start();
        server.flush();
        assert_eq!(lost(&server), Vec::<serde_json::Value>::new(), "{kind}");
        assert_eq!(std::fs::read(disk.at.join("c")).unwrap(), b"b");
    }
}

#[test]
fn a_directory_that_was_moved_gets_what_the_cache_has_for_it() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext4", SIZE) else { return };
    let [before, after] = ["before", "after"].map(|name| disk.at.join(name));
    std::fs::create_dir(&before).unwrap();
    let mut server = serve_at(&before).cached().start();
    dirty(&server, b"f");
    server.kill();
    std::fs::rename(&before, &after).unwrap();
    let config = server.home().join("forebay.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace(before.to_str().unwrap(), after.to_str().unwrap())).unwrap();
    server.start();
    server.flush();
    assert_eq!(std::fs::read(after.join("f")).unwrap(), b"f");
    assert_eq!(lost(&server), Vec::<serde_json::Value>::new());
}
