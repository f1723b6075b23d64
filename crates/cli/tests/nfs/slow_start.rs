//! Tests of an array that answers slowly: a start reports its progress, and `forebay status` answers.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use serde_json::Value;

use crate::harness::*;

/// Returns the next notification to the service manager.
fn next(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 4096];
    let len = socket.recv(&mut buffer).expect("the server tells the service manager nothing");
    String::from_utf8(buffer[..len].to_vec()).unwrap()
}

/// Returns the socket of a service manager that the server notifies from the next start on.
fn manager_of(server: &mut Server) -> UnixDatagram {
    let path = server.home().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    server.notify(&path);
    manager
}

/// Starts a server while its array hangs. `meanwhile` gets the server's service manager, a client of the control
/// socket, and the first words to the service manager; the array works again after it.
fn start_hanging(
    server: &mut Server,
    array: &Array,
    meanwhile: impl FnOnce(&UnixDatagram, &Asker, &str) + Send,
) -> UnixDatagram {
    let manager = manager_of(server);
    let asker = server.asker();
    std::thread::scope(|scope| {
        let hanging = Hanging::begin(array);
        let manager = &manager;
        scope.spawn(move || {
            let _hanging = hanging;
            meanwhile(manager, &asker, &next(manager));
        });
        server.start();
    });
    manager
}

/// Returns the part of a notification that the service manager shows for a start.
fn shown(told: &str) -> &str {
    told.strip_prefix("EXTEND_TIMEOUT_USEC=30000000\nSTATUS=").expect(told)
}

fn status_of(asker: &Asker) -> Value {
    serde_json::from_str(&asker.ask(&["status", "--json"])).unwrap()
}

#[test]
fn a_long_recovery_is_told_to_the_service_manager_and_to_who_asks() {
    needs_root!();
    let Some(array) = Array::instant("ext4") else { return };
    // The cache files are on the hanging array, and recovery reads them.
    let [first, second] = ["a", "b"].map(|name| array.at.join(name).to_str().unwrap().to_owned());
    let flags = ["--mode", "write-back", "--cache-size", "64MiB", "--cache", &first, "--cache", &second];
    let mut server = Serve::unsquashed().flags(&flags).start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.write(&file, 0, b"acknowledged", StableHow::FileSync).unwrap();
    server.kill();
    let manager = start_hanging(&mut server, &array, |manager, asker, first| {
        // The steps before the recovery take longer on a busy machine.
        let mut told = first.to_owned();
        let hung = (0..30).find_map(|_| {
            let (step, status) = (shown(&told).to_owned(), status_of(asker));
            let here = step.contains("the cache") && status["starting"]["step"] == step.as_str();
            let found = here.then(|| (told.clone(), step, status));
            if found.is_none() {
                told = next(manager);
            }
            found
        });
        let (told, step, status) = hung.expect("the start does not recover the cache");
        let step = step.as_str();
        assert!(status["starting"]["elapsed_ns"].as_u64().unwrap() > 0);
        assert!(asker.ask(&["status"]).contains(step));
        // Nothing changes by halves: the cache is not open yet, and the exports do not serve.
        for asked in [
            &["volume", "list"][..],
            &["pool", "add", "/dev/null"],
            &["pool", "status"],
            &["advise"],
            &["reload"],
            &["mode", "pass-through"],
            &["mode", "write-through"],
            &["flush"],
            &["flush", "--wait"],
        ] {
            let said = String::from_utf8(asker.try_ask(asked).stderr).unwrap();
            assert!(said.contains("is still starting"), "{asked:?}: {said}");
        }
        // The notification is repeated before the timeout ends.
        assert_eq!(next(manager), told);
    });
    while next(&manager) != "READY=1\nSTATUS=serving" {}
    let mut c = server.connect();
    assert_eq!(c.read(&file, 0, 100).unwrap().data, b"acknowledged");
    assert_eq!(server.status()["starting"], Value::Null);
}

#[test]
fn a_server_answers_while_its_export_cannot_be_opened() {
    needs_root!();
    let Some(array) = Array::instant("ext4") else { return };
    let mut server = array.serve().plain().start();
    server.stop();
    start_hanging(&mut server, &array, |_, asker, told| {
        let status = status_of(asker);
        // If the kernel can open the export without its disks, another step waits.
        if shown(told).starts_with("opening: ") {
            assert_eq!(status["starting"]["awaited"]["path"], array.at.to_str().unwrap(), "{status}");
        }
        assert!(asker.ask(&["status"]).contains("STARTING"));
    });
    server.stop();
    let said = String::from_utf8(server.try_ask(&["status"]).stderr).unwrap();
    assert!(said.contains("no server runs"), "{said}");
}

#[test]
fn a_start_names_the_export_that_does_not_answer_and_ends_when_it_is_told_to() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(silent) = Silent::mount(home.path()) else { return };
    let at = silent.at.to_str().unwrap();
    let client = "[[export.client]]\nnetworks=['127.0.0.1']\nsquash='none'\n";
    let export = |path, name| format!("[[export]]\npath='{path}'\nname='{name}'\n{client}");
    let exports = [export("@/data", "/well"), export(at, "/silent")].concat();
    let mut server = Serve::new().exports(&exports).plain().prepared();
    let (manager, asker) = (manager_of(&mut server), server.asker());
    let starting = server.begin_to_start();
    // The notification repeats, with a longer time each time.
    let [first, second] = [next(&manager), next(&manager)];
    assert!(shown(&first).starts_with(&format!("opening: {at} has not answered for ")), "{first}");
    assert_ne!(first, second);
    let status = status_of(&asker);
    assert_eq!(status["starting"]["awaited"]["path"], at, "{status}");
    let silent_for = |place: usize| status["exports"][place]["silent_ns"].as_u64().unwrap();
    assert!(silent_for(1) > 0 && silent_for(0) == 0, "{status}");
    let said = asker.ask(&["status"]);
    assert!(
        said.contains("STARTING") && said.contains(&format!("file system of {at} has not answered")),
        "{said}"
    );
    for looks in [&["stat", "--json"][..], &["events"], &["pool", "status"], &["mode"]] {
        asker.ask(looks);
    }
    for changes in [&["flush", "--wait"][..], &["mode", "write-through"], &["reload"]] {
        let said = String::from_utf8(asker.try_ask(changes).stderr).unwrap();
        assert!(said.contains("is still starting"), "{changes:?}: {said}");
    }
    let (ended, said) = starting.end();
    assert!(ended.success(), "{ended}: {said}");
    while next(&manager) != "STOPPING=1\nSTATUS=stopping" {}
    let said = String::from_utf8(asker.try_ask(&["status"]).stderr).unwrap();
    assert!(said.contains("no server runs"), "{said}");
}

#[test]
fn a_long_sync_holds_up_nobody_who_asks_the_server() {
    needs_root!();
    let Some(array) = Array::instant("xfs") else { return };
    let server = array.serve().plain().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    std::thread::scope(|scope| {
        let hanging = Hanging::begin(&array);
        let (server, mut writer) = (&server, server.connect());
        let written = scope.spawn(move || writer.write(&file, 0, b"x", StableHow::FileSync).status());
        wait_for(|| server.status()["workers"]["busy"].as_u64().unwrap() > 0);
        for words in [&["status"][..], &["stat", "--json"], &["events"], &["pool", "status"]] {
            server.ask(words);
        }
        assert!(!written.is_finished());
        drop(hanging);
        assert_eq!(written.join().unwrap(), Nfsstat3::Ok);
    });
}

#[test]
fn a_stop_ends_though_a_request_waits_for_a_file_system_that_does_not_answer() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(silent) = Silent::mount_answering(home.path()) else { return };
    let at = &silent.at.to_str().unwrap().to_owned();
    let client = "[[export.client]]\nnetworks=['127.0.0.1']\nsquash='none'\n";
    let export = |path, name| format!("[[export]]\npath='{path}'\nname='{name}'\n{client}");
    let limits = "[limits]\ndrain_timeout='1s'\n".to_owned();
    let exports = [limits, export("@/data", "/well"), export(at, "/silent")].concat();
    let mut server = Serve::new().exports(&exports).cached().start();
    let mut c = server.connect();
    let roots = [&b"/well"[..], b"/silent"].map(|name| c.mnt(name).unwrap().fhandle);
    let file = c.new_file(&roots[0], b"file", 0o644);
    c.write(&file, 0, &[1; 4096], StableHow::FileSync).unwrap();
    silent.fall_silent();
    let mut waiting = server.connect();
    let lookup = call(&mut waiting, Procedure::Lookup, &name(&roots[1], b"name"));
    waiting.send(&lookup);
    wait_for(|| silent.is_awaited());
    server.signal(rustix::process::Signal::TERM);
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("the stop did not wait for {at}")), "{said}");
    drop(silent);
    server.configure(&export("@/data", "/well"));
    server.start();
    let mut c = server.connect();
    let root = c.mnt(b"/well").unwrap().fhandle;
    let file = c.lookup(&root, b"file").unwrap().object;
    assert_eq!(c.read(&file, 0, 4096).unwrap().data, [1; 4096]);
}

/// A request gets the file system's last answer, and no thread is started for each question.
#[test]
fn a_file_system_that_does_not_tell_its_free_space_holds_up_nobody() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(silent) = Silent::mount_answering(home.path()) else { return };
    let at = silent.at.to_str().unwrap();
    let client = "[[export.client]]\nnetworks=['127.0.0.1']\nsquash='none'\n";
    let export = |path, name| format!("[[export]]\npath='{path}'\nname='{name}'\n{client}");
    let exports = [export("@/data", "/well"), export(at, "/silent")].concat();
    let mut server = Serve::new().exports(&exports).plain().start();
    // Dropped before the server: that would wait for it.
    let silent = silent;
    let roots = [&b"/well"[..], b"/silent"].map(|name| server.connect().mnt(name).unwrap().fhandle);
    let before = server.connect().fsstat(&roots[1]).unwrap();
    assert_eq!((before.tbytes, before.fbytes), (1 << 32, 1 << 31));
    silent.fall_silent();
    // More than there are workers.
    std::thread::scope(|scope| {
        let askers: Vec<_> = (0..100)
            .map(|_| {
                let (server, root) = (&server, roots[1]);
                scope.spawn(move || server.connect().fsstat(&root).unwrap())
            })
            .collect();
        for asker in askers {
            assert_eq!(asker.join().unwrap().fbytes, before.fbytes);
        }
    });
    let mut c = server.connect();
    c.fsstat(&roots[0]).unwrap();
    c.new_file(&roots[0], b"f", 0o644);
    let status = server.status();
    let export = &status["exports"][1];
    assert!(
        export["silent_ns"].as_u64().unwrap() > 0 && export["free_bytes"].as_u64() == Some(before.fbytes),
        "{status}"
    );
    let asking = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
        let asks = tasks.filter(|task| {
            let name = std::fs::read_to_string(task.as_ref().unwrap().path().join("comm"));
            name.is_ok_and(|name| name.trim() == "forebay-ask")
        });
        asks.count()
    };
    // One for its free space, one for what its path leads to. Questions to other directories end by themselves.
    wait_for(|| asking() <= 2);
    // A process that ends waits for the file system, too.
    drop(silent);
    server.stop();
}
