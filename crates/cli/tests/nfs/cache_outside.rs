//! Tests of external changes while a server with a cache runs.

use std::os::unix::fs::{FileExt, PermissionsExt};

use crate::harness::*;

fn cached() -> Server {
    Serve::unsquashed().cached().start()
}

/// Returns the number of files dropped from the cache because of external changes.
fn noticed(server: &Server) -> u64 {
    server.status()["pool"]["counters"]["changed_outside"].as_u64().unwrap()
}

#[test]
fn contents_of_the_same_size_show_at_once() {
    let server = cached();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.write(&file, 0, &[1; 20_000], StableHow::FileSync).unwrap();
    server.flush();
    let direct = std::fs::File::options().write(true).open(server.data.join("f")).unwrap();
    for round in 2..30 {
        assert_eq!(c.read(&file, 0, 20_000).unwrap().data, [round - 1; 20_000]);
        direct.write_all_at(&[round; 20_000], 0).unwrap();
    }
    assert_eq!(noticed(&server), 27);
}

#[test]
fn a_file_cut_short_by_others_keeps_its_new_size_when_a_client_writes() {
    let server = cached();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    for seen in [false, true] {
        c.write(&file, 0, &[1; 100_000], StableHow::FileSync).unwrap();
        server.flush();
        std::fs::write(server.data.join("f"), [2; 10_000]).unwrap();
        if seen {
            assert_eq!(c.read(&file, 0, 20_000).unwrap().data, [2; 10_000]);
        }
        c.write(&file, 4096, &[3; 100], StableHow::FileSync).unwrap();
        let expected = [vec![2; 4096], vec![3; 100], vec![2; 10_000 - 4196]].concat();
        for _ in 0..2 {
            assert_eq!(c.attr(&file).size, 10_000);
            assert!(c.read(&file, 0, 200_000).unwrap().data == expected);
            server.flush();
        }
        assert!(std::fs::read(server.data.join("f")).unwrap() == expected);
    }
}

#[test]
fn a_change_by_others_survives_a_crash_of_the_server() {
    let mut server = cached();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.write(&file, 0, &[1; 20_000], StableHow::FileSync).unwrap();
    wait_for(|| server.status()["pool"]["dirty_bytes"] == 0);
    std::fs::write(server.data.join("f"), [2; 20_000]).unwrap();
    // The server notices the change. From then on the old contents must not come back.
    assert_eq!(c.read(&file, 0, 20_000).unwrap().data, [2; 20_000]);
    server.kill();
    server.start();
    assert_eq!(server.connect().read(&file, 0, 20_000).unwrap().data, [2; 20_000]);
    server.flush();
    assert!(std::fs::read(server.data.join("f")).unwrap() == [2; 20_000]);
}

#[test]
fn what_only_the_cache_has_wins_and_the_rest_is_theirs() {
    let server = cached();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.write(&file, 0, &[1; 40_960], StableHow::FileSync).unwrap();
    server.flush();
    c.write(&file, 8192, &[2; 4096], StableHow::FileSync).unwrap();
    let direct = std::fs::File::options().write(true).open(server.data.join("f")).unwrap();
    direct.write_all_at(&[3; 40_960], 0).unwrap();
    server.flush();
    let expected = [vec![3; 8192], vec![2; 4096], vec![3; 40_960 - 12_288]].concat();
    assert!(c.read(&file, 0, 50_000).unwrap().data == expected);
    assert!(std::fs::read(server.data.join("f")).unwrap() == expected);
}

#[test]
fn what_is_cached_of_a_path_is_shown_and_dropped() {
    let server = cached();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"dir", 0o755);
    let inner = c.new_dir(&dir, b"inner", 0o755);
    let files = [c.new_file(&dir, b"a", 0o644), c.new_file(&inner, b"b", 0o644)];
    let other = c.new_file(&root, b"other", 0o644);
    let shown = |path: &str| -> serde_json::Value {
        let path = server.data.join(path);
        serde_json::from_str(&server.ask(&["cached", path.to_str().unwrap(), "--json"])).unwrap()
    };
    for file in files.iter().chain([&other]) {
        c.write(file, 0, &[1; 40_960], StableHow::FileSync).unwrap();
    }
    let before = shown("dir");
    assert_eq!((&before["files"], &before["cached_files"]), (&2.into(), &2.into()));
    assert_eq!(before["ram_bytes"], 81_920);
    assert_eq!(shown("dir/inner/b")["files"], 1);
    assert_eq!(shown("")["files"], 3);
    let path = server.data.join("dir");
    // Dirty data reaches the directory first.
    server.ask(&["invalidate", path.to_str().unwrap()]);
    assert!(std::fs::read(path.join("a")).unwrap() == [1; 40_960]);
    let after = shown("dir");
    assert_eq!(
        (&after["cached_files"], &after["ram_bytes"], &after["ssd_bytes"]),
        (&0.into(), &0.into(), &0.into())
    );
    assert_eq!(shown("other")["cached_files"], 1, "and nothing else was dropped");
    for file in files {
        assert!(c.read(&file, 0, 50_000).unwrap().data == [1; 40_960]);
    }
    let text = server.ask(&["cached", path.to_str().unwrap()]);
    assert!(text.contains("2, 2 of them at least partly cached"), "{text}");
    for verb in ["cached", "invalidate"] {
        let refused = server.try_ask(&[verb, "/etc"]);
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(
            refused.status.code() == Some(1) && said.contains("not in a directory that this server serves"),
            "{said}"
        );
        let refused = server.try_ask(&[verb, "/no/such/path"]);
        assert!(String::from_utf8(refused.stderr).unwrap().contains("No such file"));
    }
}

#[test]
fn dirty_data_that_cannot_be_destaged_is_not_dropped() {
    needs_root!();
    let Some(array) = Array::instant("ext4") else { return };
    let server = array.serve().cached().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.write(&file, 0, &[1; 40_960], StableHow::FileSync).unwrap();
    server.flush();
    c.write(&file, 0, &[2; 40_960], StableHow::FileSync).unwrap();
    let path = server.data.join("f");
    array.ask(&["inject", "eio", "--hits", "write", "--file", path.to_str().unwrap()]);
    let refused = server.try_ask(&["invalidate", path.to_str().unwrap()]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && said.contains("cannot be destaged"), "{said}");
    assert!(c.read(&file, 0, 50_000).unwrap().data == [2; 40_960]);
    array.ask(&["inject", "clear"]);
    // The kernel reports the earlier failure once more.
    wait_for(|| server.try_ask(&["invalidate", path.to_str().unwrap()]).status.success());
    assert!(c.read(&file, 0, 50_000).unwrap().data == [2; 40_960]);
    assert!(std::fs::read(&path).unwrap() == [2; 40_960]);
}

/// Every request that moves a file's change time.
#[test]
fn the_servers_own_changes_are_not_taken_for_those_of_others() {
    let server = cached();
    let mut c = server.connect();
    let root = c.root();
    let mut copies = Copies::new(31);
    for mode in ["write-back", "write-through", "write-around", "write-back"] {
        server.ask(&["mode", mode]);
        copies.change(&mut c, 150);
        copies.check(&mut c);
        server.flush();
        copies.check(&mut c);
    }
    let file = c.new_file(&root, b"f", 0o644);
    for round in 0..20u32 {
        let data = vec![round as u8; 30_000];
        c.write(&file, 0, &data, StableHow::FileSync).unwrap();
        c.setattr(&file, mode(0o600 | round)).unwrap();
        c.setattr(&file, Sattr3 { mtime: at(round, 5), ..Sattr3::default() }).unwrap();
        c.link(&file, &root, b"other name").unwrap();
        c.rename((&root, b"other name"), (&root, b"third name")).unwrap();
        c.read(&file, 0, 30_000).unwrap();
        server.flush();
        c.remove(&root, b"third name").unwrap();
        assert!(c.read(&file, 0, 30_000).unwrap().data == data);
        c.setattr(&file, size(10_000)).unwrap();
        assert!(c.read(&file, 0, 30_000).unwrap().data == data[..10_000]);
    }
    assert_eq!(noticed(&server), 0);
    // This change is external.
    std::fs::set_permissions(server.data.join("f"), PermissionsExt::from_mode(0o600)).unwrap();
    server.flush();
    c.read(&file, 0, 30_000).unwrap();
    assert_eq!(noticed(&server), 1);
}
