//! Tests of missing and moved cache devices: starts that continue without a device, and starts that make one.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::harness::*;

fn cached() -> Server {
    Serve::unsquashed().cached().start()
}

fn health(server: &Server) -> String {
    server.status()["health"].to_string()
}

fn pool(server: &Server) -> serde_json::Value {
    serde_json::from_str(&server.ask(&["pool", "status", "--json"])).unwrap()
}

/// The directory of a start that may fail.
struct Rig(tempfile::TempDir);

impl Rig {
    fn new() -> Self {
        // The directory must not be in memory, even if TMPDIR is.
        let rig = Rig(tempfile::Builder::new().tempdir_in("/var/tmp").unwrap());
        std::fs::create_dir(rig.path("data")).unwrap();
        rig
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn serve(&self, dir: &str, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
        command.arg("serve").arg(self.path(dir)).args(["--listen", "127.0.0.1:0", "--state-dir"]);
        command.arg(self.path("state")).args(words).output().unwrap()
    }

    /// Returns the message of a start that is refused.
    #[track_caller]
    fn refusal(&self, words: &[&str]) -> String {
        let output = self.serve("data", words);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        said
    }

    /// Returns the names of all entries.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn a_missing_device_is_missed_and_nothing_is_made_in_its_place() {
    let mut server = cached();
    let mut copies = Copies::new(1);
    copies.change(&mut server.connect(), 60);
    let [first, second] = server.caches();
    let uuid = pool(&server)["devices"][1]["uuid"].as_str().unwrap().to_owned();
    server.kill();
    let aside = server.home().join("aside");
    std::fs::rename(&second, &aside).unwrap();
    for _ in 0..2 {
        server.start();
        assert!(!second.exists(), "a file takes the place of a device that is missed");
        assert_eq!(server.status()["effective_mode"], "write-through");
        assert!(
            health(&server).contains(&uuid) && health(&server).contains("DEGRADED"),
            "{}",
            health(&server)
        );
        let shown = pool(&server)["devices"].clone();
        assert_eq!(shown[1]["state"], "missing", "{shown}");
        assert_eq!((&shown[1]["path"], &shown[1]["uuid"]), (&second.to_str().into(), &uuid.clone().into()));
        assert!(server.ask(&["events"]).contains(&uuid));
        copies.check(&mut server.connect());
        copies.change(&mut server.connect(), 20);
        server.restart();
        server.stop();
    }
    // The administrator adds the device explicitly.
    server.start();
    server.ask(&["pool", "add", second.to_str().unwrap()]);
    copies.change(&mut server.connect(), 20);
    wait_for(|| server.status()["effective_mode"] == "write-back");
    assert!(!pool(&server).to_string().contains("missing"));
    assert!(first.exists() && second.exists());
    copies.check(&mut server.connect());
}

/// Device nodes may be numbered in another order after a reboot.
#[test]
fn a_member_is_known_again_under_another_name() {
    let mut server = cached();
    let root = server.connect().root();
    let file = server.connect().new_file(&root, b"f", 0o644);
    let write = |server: &Server, at: u64| {
        server.connect().write(&file, at, b"acknowledged", StableHow::FileSync).unwrap();
    };
    let is_whole = |server: &Server, at: u64| {
        assert_eq!(server.connect().read(&file, at, 12).unwrap().data, b"acknowledged");
        assert_eq!(health(server), r#"{"state":"OK"}"#);
    };
    write(&server, 0);
    server.kill();
    let ([first, second], third) = (server.caches(), server.home().join("caches/c"));
    std::fs::rename(&first, &third).unwrap();
    std::fs::rename(&second, &first).unwrap();
    std::fs::rename(&third, &second).unwrap();
    server.start();
    is_whole(&server, 0);
    write(&server, 4096);
    server.kill();
    // The pool never had a device of this name.
    std::fs::rename(&second, &third).unwrap();
    let flags = [&first, &third].map(|path| path.to_str().unwrap().to_owned());
    server.set_flags(&[
        "--squash",
        "none",
        "--mode",
        "write-back",
        "--cache",
        &flags[0],
        "--cache",
        &flags[1],
    ]);
    server.start();
    is_whole(&server, 4096);
    assert_eq!(pool(&server)["devices"].as_array().unwrap().len(), 2);
    write(&server, 8192);
    server.kill();
    // The configuration has the old name. The other copy serves, and the missing device is named.
    std::fs::rename(&third, &second).unwrap();
    server.start();
    assert_eq!(server.connect().read(&file, 8192, 12).unwrap().data, b"acknowledged");
    let said = health(&server);
    assert!(
        said.contains("is missing") && said.contains(&flags[1]) && said.contains("another name"),
        "{said}"
    );
    assert!(!third.exists());
    server.ask(&["pool", "add", second.to_str().unwrap()]);
    wait_for(|| health(&server) == r#"{"state":"OK"}"#);
    assert_eq!(server.connect().read(&file, 8192, 12).unwrap().data, b"acknowledged");
}

#[test]
fn a_missing_file_is_made_anew_where_that_is_asked_for() {
    let mut server = cached();
    let mut copies = Copies::new(2);
    copies.change(&mut server.connect(), 60);
    server.kill();
    std::fs::remove_file(&server.caches()[0]).unwrap();
    server.set_flags(&["--squash", "none", "--mode", "write-back", "--make-missing"]);
    server.start();
    assert!(server.caches()[0].exists());
    copies.change(&mut server.connect(), 20);
    wait_for(|| server.status()["effective_mode"] == "write-back");
    copies.check(&mut server.connect());
}

#[test]
fn a_device_that_is_not_there_never_becomes_a_file_in_dev() {
    needs_root!();
    let gone = "/dev/forebay-no-such-device";
    let other = "/dev/forebay-no-such-device-either";
    let rig = Rig::new();
    let said = rig.refusal(&["--cache", gone, "--cache", other]);
    assert!(said.contains("is not there; connect it"), "{said}");
    let server = cached();
    let refused = server.try_ask(&["pool", "add", gone]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && said.contains("is not there; connect it"), "{said}");
    // The member has another name now.
    let mut server = server;
    let first = server.caches()[0].clone();
    server.stop();
    for more in [&[][..], &["--make-missing"]] {
        let pool = ["--mode", "write-back", "--cache", first.to_str().unwrap(), "--cache", gone];
        server.set_flags(&[&pool, more].concat());
        server.start();
        assert!(health(&server).contains(gone), "{}", health(&server));
        assert!(!Path::new(gone).exists() && !Path::new(other).exists());
        server.stop();
    }
}

#[test]
fn a_pool_is_not_made_anew_since_all_of_its_devices_are_missing() {
    let mut server = cached();
    server.flush();
    server.stop();
    let caches = server.caches();
    let aside = caches.each_ref().map(|cache| cache.with_extension("aside"));
    caches.iter().zip(&aside).for_each(|(cache, aside)| std::fs::rename(cache, aside).unwrap());
    let said = server.refusal();
    assert!(said.contains("is missing") && said.contains("--make-missing"), "{said}");
    assert!(!caches[0].exists() && !caches[1].exists());
    caches.iter().zip(&aside).for_each(|(cache, aside)| std::fs::rename(aside, cache).unwrap());
    server.start();
    assert_eq!(server.status()["health"]["state"], "OK", "{}", health(&server));
}

#[test]
fn a_device_that_was_left_behind_is_not_believed_when_it_is_alone() {
    let mut server = cached();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.write(&file, 0, &[1; 40_000], StableHow::FileSync).unwrap();
    let [first, second] = server.caches();
    let aside = |path: &Path| path.with_extension("aside");
    server.kill();
    // The second device is lost while the old contents are dirty. The first device continues.
    std::fs::rename(&second, aside(&second)).unwrap();
    server.start();
    server.connect().write(&file, 0, &[2; 40_000], StableHow::FileSync).unwrap();
    server.flush();
    server.kill();
    // The first device is lost, and the second device is back.
    std::fs::rename(&first, aside(&first)).unwrap();
    std::fs::rename(aside(&second), &second).unwrap();
    for _ in 0..2 {
        let said = server.refusal();
        let [first, second] = [&first, &second].map(|path| path.to_str().unwrap());
        assert!(said.contains(second) && said.contains("is out of date"), "{said}");
        assert!(said.contains(&format!("on {first}")) && said.contains("UUID"), "{said}");
    }
    assert!(std::fs::read(server.data.join("f")).unwrap() == [2; 40_000]);
    std::fs::rename(aside(&first), &first).unwrap();
    server.start();
    assert!(server.connect().read(&file, 0, 40_000).unwrap().data == [2; 40_000]);
}

#[test]
fn pool_add_refuses_what_serve_refuses() {
    let server = cached();
    let refused = |path: &Path| {
        let refused = server.try_ask(&["pool", "add", path.to_str().unwrap()]);
        assert_eq!(refused.status.code(), Some(1), "{path:?}");
        String::from_utf8(refused.stderr).unwrap()
    };
    let inside = server.data.join("cache");
    assert!(refused(&inside).contains("inside the exported"));
    assert!(!inside.exists());
    assert!(refused(&server.caches()[0]).contains("already"));
    let second = server.home().join("second-name");
    std::fs::hard_link(&server.caches()[0], &second).unwrap();
    assert!(refused(&second).contains("the same cache device"));
    assert!(refused(&server.home().join("ssd9/cache")).contains("there is no directory"));
    let rig = Rig::new();
    std::fs::create_dir(rig.path("state")).unwrap();
    std::fs::write(rig.path("state/handle.key"), "").unwrap();
    assert!(refused(&rig.path("state/cache")).contains("state directory of another server"));
    // A file that is too small must not be left behind.
    assert!(pool(&server)["devices"].as_array().unwrap().len() == 2);
}

#[test]
fn cache_files_in_memory_have_to_be_accepted() {
    let Ok(memory) = tempfile::Builder::new().tempdir_in("/dev/shm") else {
        eprintln!("not run: needs /dev/shm");
        return;
    };
    let cache = memory.path().join("cache");
    let rig = Rig::new();
    let said = rig.refusal(&["--cache", cache.to_str().unwrap()]);
    assert!(said.contains("is in memory") && said.contains("--cache-in-memory"), "{said}");
    assert!(!cache.exists());
}

#[test]
fn devices_on_one_disk_are_named_as_long_as_they_are_and_nothing_is_degraded() {
    let mut server = cached();
    for _ in 0..2 {
        let shown = server.ask(&["status"]);
        assert!(shown.contains("are on the same disk"), "{shown}");
        assert!(server.ask(&["pool", "status"]).contains("are on the same disk"));
        assert!(server.ask(&["events"]).contains("are on the same disk"));
        assert_eq!(server.status()["health"]["state"], "OK");
        server.restart();
    }
    let [_, second] = server.caches();
    server.ask(&["pool", "remove", second.to_str().unwrap(), "--wait"]);
    assert!(!server.ask(&["pool", "status"]).contains("are on the same disk"));
    let third = server.home().join("third");
    let shown = server.ask(&["pool", "add", third.to_str().unwrap()]);
    assert!(shown.contains("are on the same disk"), "{shown}");
}

#[test]
fn a_start_that_fails_leaves_nothing_behind() {
    let rig = Rig::new();
    let (first, state) = (rig.path("a"), rig.path("state"));
    let first = first.to_str().unwrap();
    // The second cache file cannot be made.
    for second in ["/dev/null", rig.path("no/b").to_str().unwrap(), rig.path("data/b").to_str().unwrap()] {
        rig.serve("data", &["--cache", first, "--cache", second, "--cache-size", "64MiB"]);
        assert_eq!(rig.names(), ["data"], "{second}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.arg("serve").arg(rig.path("new")).args(["--listen", &port, "--state-dir"]).arg(&state);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(rig.names(), ["data"]);
    // There is no room for the second cache file.
    let said =
        rig.refusal(&["--cache", first, "--cache", rig.path("b").to_str().unwrap(), "--cache-size", "16TiB"]);
    assert!(said.contains("room") || said.contains("File too large"), "{said}");
    assert_eq!(rig.names(), ["data"]);
}

#[test]
fn a_size_that_an_existing_file_does_not_have_is_named() {
    let mut server = cached();
    server.stop();
    let [first, second] = server.caches().map(|path| path.to_str().unwrap().to_owned());
    let flags = ["--mode", "write-back", "--cache", &first, "--cache", &second, "--cache-size", "128MiB"];
    server.set_flags(&flags);
    server.start();
    let said = server.ask(&["events"]);
    assert!(said.contains("has 64 MiB, and stays so"), "{said}");
}

/// The locks of a killed server are free only after its end.
#[test]
fn a_start_waits_for_the_locks_of_a_server_that_was_killed() {
    let mut server = cached();
    server.kill();
    let paths = [server.state.join("lock"), server.caches()[0].clone(), server.data.clone()];
    let locks = paths.map(|path| {
        let file = std::fs::File::open(path).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        file
    });
    let end = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        drop(locks);
    });
    server.start();
    end.join().unwrap();
}
