//! Tests of exports that are added and removed while clients work.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_wire::nfs4::{Bitmap, GetattrArgs, NameArgs, Nfsstat4, Op, attr};
use rustix::fs::FlockOperation;

use crate::harness::*;
use crate::nfs4::Client4;

/// Returns the table of an export below the served directory, which every client may change.
fn export(name: &str) -> String {
    format!(
        "[[export]]\npath = '@/data/{name}'\nname = '/{name}'\n[[export.client]]\nnetworks = ['127.0.0.0/8']\nsquash = 'none'\n"
    )
}

fn folder(path: &Path) {
    std::fs::create_dir(path).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
}

fn serving_a(serve: Serve) -> Server {
    serve.exports(&export("a")).start_on(|data| folder(&data.join("a")))
}

/// Has the server read another configuration. Returns the lines about changes in service, and those about the next
/// start.
#[track_caller]
fn reload(server: &Server, toml: &str) -> [Vec<String>; 2] {
    server.configure(toml);
    let report: serde_json::Value = serde_json::from_str(&server.ask(&["reload", "--json"])).unwrap();
    ["changed", "at_next_start"].map(|key| {
        let lines = report[key].as_array().unwrap().iter();
        // The lines about the rules of an export follow its own.
        lines
            .map(|line| line.as_str().unwrap().to_owned())
            .filter(|line| line.starts_with("[[export]] "))
            .collect()
    })
}

/// Has the server read another configuration, which it must refuse. Returns its message.
#[track_caller]
fn refused(server: &Server, toml: &str) -> String {
    let before = server.status()["exports"].clone();
    server.configure(toml);
    let output = server.try_ask(&["reload"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(server.status()["exports"].as_array().map(Vec::len), before.as_array().map(Vec::len));
    String::from_utf8(output.stderr).unwrap()
}

fn is_added(lines: &[Vec<String>; 2], name: &str) -> bool {
    lines[1].is_empty()
        && lines[0].len() == 1
        && lines[0][0].starts_with(&format!("[[export]] /{name}: added"))
}

fn is_removed(lines: &[Vec<String>; 2], name: &str) -> bool {
    lines[1].is_empty()
        && lines[0].len() == 1
        && lines[0][0].starts_with(&format!("[[export]] /{name}: removed"))
}

/// Returns the status of looking up names from the root that clients of NFSv4 see.
fn look_up(client: &mut Client4, names: &[&[u8]]) -> Nfsstat4 {
    let looks = names.iter().map(|name| Op::Lookup(NameArgs { name }));
    client.status(&std::iter::once(Op::Putrootfh(())).chain(looks).collect::<Vec<_>>())
}

#[test]
fn exports_come_and_go_while_clients_work() {
    needs_root!();
    everywhere(Serve::plain, come_and_go);
    everywhere(Serve::cached, come_and_go);
}

/// Runs a test on a server of the given kind.
fn everywhere(kind: impl Fn(Serve) -> Serve, test: impl Fn(Server)) {
    test(serving_a(kind(Serve::new())));
}

fn come_and_go(mut server: Server) {
    let (mut c, mut c4) = (server.connect(), Client4::connect(&server, b"one"));
    assert_eq!(c.mnt(b"/b").unwrap_err(), mount3::Mountstat3::Noent);
    assert_eq!(look_up(&mut c4, &[b"b"]), Nfsstat4::Noent);
    let a = c.mnt(b"/a").unwrap().fhandle;
    let in_a = c.new_file(&a, b"f", 0o644);
    folder(&server.data.join("b"));
    let both = export("a") + &export("b");
    assert!(is_added(&reload(&server, &both), "b"));
    assert!(reload(&server, &both).concat().is_empty(), "nothing is new");

    let b = c.mnt(b"/b").unwrap().fhandle;
    let in_b = c.new_file(&b, b"f", 0o644);
    c.write(&in_b, 0, b"in b", StableHow::FileSync).unwrap();
    assert_eq!(look_up(&mut c4, &[b"b", b"f"]), Nfsstat4::Ok);
    assert_eq!(server.status()["exports"][1]["name"], "/b");
    server.kill();
    server.start();
    let (mut c, mut c4) = (server.connect(), Client4::connect(&server, b"two"));
    assert_eq!(c.read(&in_b, 0, 10).unwrap().data, b"in b", "handles stay valid over a crash");

    c.write(&in_a, 0, b"in a", StableHow::FileSync).unwrap();
    assert!(is_removed(&reload(&server, &export("b")), "a"));
    assert_eq!(c.getattr(&in_a).status(), Nfsstat3::Stale);
    assert_eq!(c.mnt(b"/a").unwrap_err(), mount3::Mountstat3::Noent);
    assert_eq!(look_up(&mut c4, &[b"a"]), Nfsstat4::Noent);
    assert_eq!(c.read(&in_b, 0, 10).unwrap().data, b"in b");
    server.flush();
    assert_eq!(
        std::fs::read(server.data.join("a/f")).unwrap(),
        b"in a",
        "dirty data of a removed export is written"
    );

    assert!(is_added(&reload(&server, &both), "a"));
    assert_eq!(c.read(&in_a, 0, 10).unwrap().data, b"in a", "handles are valid again");
    assert_eq!(look_up(&mut c4, &[b"a", b"f"]), Nfsstat4::Ok);
    server.restart();
    let mut c = server.connect();
    assert_eq!(c.read(&in_a, 0, 10).unwrap().data, b"in a");
    assert_eq!(c.read(&in_b, 0, 10).unwrap().data, b"in b");
}

#[test]
fn a_directory_that_cannot_be_served_is_a_mistake_and_changes_nothing() {
    needs_root!();
    let server = serving_a(Serve::new().cached());
    let missing = refused(&server, &(export("a") + &export("b")));
    assert!(missing.contains("data/b"), "{missing}");

    folder(&server.data.join("b"));
    let other = std::fs::File::open(server.data.join("b")).unwrap();
    rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
    let taken = refused(&server, &(export("a") + &export("b")));
    assert!(taken.contains("data/b is served by another forebay"), "{taken}");
    drop(other);

    let device = server.data.join("b/device");
    server.ask(&["pool", "add", device.to_str().unwrap()]);
    let holds = refused(&server, &(export("a") + &export("b")));
    assert!(holds.contains("b/device is in it, which the cache uses"), "{holds}");
    server.ask(&["pool", "remove", device.to_str().unwrap(), "--wait"]);
    assert!(is_added(&reload(&server, &(export("a") + &export("b"))), "b"));
    let output = server.try_ask(&["pool", "add", server.data.join("b/again").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "clients would see the device");
}

#[test]
fn another_file_system_is_served_from_the_next_start_on() {
    needs_root!();
    let mut server = serving_a(Serve::new().cached().flags(&["--cache-in-memory"]));
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let there = format!("[[export]]\npath = {:?}\nname = '/memory'\n", memory.path());
    let [now, later] = reload(&server, &(export("a") + &there));
    assert_eq!(now, Vec::<String>::new());
    assert!(later[0].starts_with("[[export]] /memory: added"), "{later:?}");
    assert_eq!(server.connect().mnt(b"/memory").unwrap_err(), mount3::Mountstat3::Noent);
    server.restart();
    server.connect().mnt(b"/memory").unwrap();

    // The file system of a removed export is flushed as before: it may have data that is not durable.
    let flushed = || -> serde_json::Value {
        serde_json::from_str(&server.ask(&["flush", "--wait", "--json"])).unwrap()
    };
    assert_eq!(flushed()["filesystems"], 2);
    assert!(is_removed(&reload(&server, &export("a")), "memory"));
    assert_eq!(flushed()["filesystems"], 2);
}

#[test]
fn another_directory_under_a_known_export_is_not_taken_for_it() {
    needs_root!();
    let server = serving_a(Serve::new().cached());
    folder(&server.data.join("b"));
    let both = export("a") + &export("b");
    assert!(is_added(&reload(&server, &both), "b"));
    assert!(is_removed(&reload(&server, &export("a")), "b"));
    std::fs::rename(server.data.join("b"), server.data.join("c")).unwrap();
    folder(&server.data.join("b"));
    let other = refused(&server, &both);
    assert!(other.contains("another directory of the file system is at"), "{other}");
    // A reload that fails for another reason does not make the directory of its export the known one.
    let with_kerberos = |name: &str| export(name) + "sec = ['krb5p']\n";
    folder(&server.data.join("k"));
    let keytab = refused(&server, &(export("a") + &with_kerberos("k")));
    assert!(keytab.contains("keytab") || keytab.contains("Kerberos"), "{keytab}");
    std::fs::rename(server.data.join("k"), server.data.join("l")).unwrap();
    folder(&server.data.join("k"));
    assert!(is_added(&reload(&server, &(export("a") + &export("k"))), "k"));
    assert!(is_removed(&reload(&server, &export("a")), "k"));
    std::fs::remove_dir(server.data.join("b")).unwrap();
    std::fs::rename(server.data.join("c"), server.data.join("b")).unwrap();
    assert!(is_added(&reload(&server, &both), "b"));
}

/// A directory of the new configuration does not answer, so the reload waits.
#[test]
fn a_reload_that_waits_for_a_file_system_leaves_signals_and_questions_alone() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(silent) = Silent::mount_answering(home.path()) else { return };
    let mut server = serving_a(Serve::new().plain());
    let there = format!("[[export]]\npath = {:?}\nname = '/silent'\n", silent.at.join("export"));
    server.configure(&(export("a") + &there));
    silent.fall_silent();
    server.signal(rustix::process::Signal::HUP);
    wait_for(|| silent.is_awaited());
    assert_eq!(server.status()["health"]["state"], "OK");
    server.connect().mnt(b"/a").unwrap();
    // The administrator names another directory. The next reload does not wait for the silent file system.
    folder(&server.data.join("b"));
    server.configure(&(export("a") + &export("b")));
    server.signal(rustix::process::Signal::HUP);
    wait_for(|| server.connect().mnt(b"/b").is_ok());
    let root = format!("[[export]]\npath = {:?}\nname = '/silent'\n", silent.at);
    let said = refused(&server, &(export("a") + &root));
    assert!(said.contains("the file system does not answer") && said.contains("/silent"), "{said}");
    assert!(is_removed(&reload(&server, &export("a")), "b"));
    server.stop();
}

#[test]
fn compounds_count_for_the_limit_of_their_export() {
    let export =
        "[[export]]\npath='@/data'\nname='/'\n[[export.client]]\nnetworks=['127.0.0.1']\nsquash='none'\n";
    let limit = "[[rate_limit]]\nname='slow'\nexport='/'\nrequests_per_second=1\nburst='2s'\n";
    let mut server = Serve::new().exports(&format!("{export}{limit}")).start();
    let mut c = Client4::connect(&server, b"fast");
    let request = Bitmap::of(&[attr::SIZE]);
    let answers = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while c.try_run(&[Op::Putrootfh(()), Op::Getattr(GetattrArgs { request })], |_, _| ()).is_some() {
                answers.fetch_add(1, Ordering::Relaxed);
            }
        });
        let is_limited = loop {
            if server.status()["rate_limits"][0]["delays"].as_u64().unwrap() > 0 {
                break true;
            }
            // At one request per second the client waits long before that.
            if answers.load(Ordering::Relaxed) > 1000 {
                break false;
            }
        };
        server.stop();
        assert!(is_limited, "nothing limits the client");
    });
}
