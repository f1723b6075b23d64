//! An array that takes long to answer: a start says how far it is, and `forebay status` answers.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use serde_json::Value;

use crate::harness::*;

/// The next notification that the service manager gets.
fn next(socket: &UnixDatagram) -> String {
    let mut buffer = [0; 4096];
    let len = socket.recv(&mut buffer).expect("the server tells the service manager nothing");
    String::from_utf8(buffer[..len].to_vec()).unwrap()
}

/// The service manager of a server from now on.
fn manager_of(server: &mut Server) -> UnixDatagram {
    let path = server.home().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    server.notify(&path);
    manager
}

#[test]
fn a_long_recovery_is_told_to_the_service_manager_and_to_who_asks() {
    needs_root!();
    let Some(array) = Array::instant("ext4") else { return };
    // The cache files are on the array that hangs: recovery reads them.
    let [first, second] = ["a", "b"].map(|name| array.at.join(name).to_str().unwrap().to_owned());
    let flags = ["--mode", "write-back", "--cache-size", "64MiB", "--cache", &first, "--cache", &second];
    let mut server = Serve::unsquashed().flags(&flags).start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.write(&file, 0, b"acknowledged", StableHow::FileSync).unwrap();
    server.kill();
    let manager = manager_of(&mut server);
    let asker = server.asker();
    std::thread::scope(|scope| {
        let hanging = Hanging::begin(&array);
        let manager = &manager;
        scope.spawn(move || {
            let _hanging = hanging;
            // The steps before take as long as the machine is busy.
            let hung = (0..30).find_map(|_| {
                let told = next(manager);
                let step =
                    told.strip_prefix("EXTEND_TIMEOUT_USEC=30000000\nSTATUS=").expect(&told).to_owned();
                let status: Value = serde_json::from_str(&asker.ask(&["status", "--json"])).unwrap();
                let here = step.contains("the cache") && status["starting"]["step"] == step;
                here.then_some((told, step, status))
            });
            let (told, step, status) = hung.expect("it does not recover the cache");
            let step = &step[..];
            assert!(status["starting"]["elapsed_ns"].as_u64().unwrap() > 0);
            assert!(asker.ask(&["status"]).contains(step));
            // And again, before the time is over.
            assert_eq!(next(manager), told);
        });
        server.start();
    });
    while next(&manager) != "READY=1\nSTATUS=serving" {}
    let mut c = server.connect();
    assert_eq!(c.read(&file, 0, 100).unwrap().data, b"acknowledged");
    assert_eq!(server.status()["starting"], Value::Null);
}

/// A server opens its exports before the control socket listens.
#[test]
fn a_server_that_cannot_open_its_export_yet_is_not_taken_for_none() {
    needs_root!();
    let Some(array) = Array::instant("ext4") else { return };
    let mut server = array.serve().plain().start();
    server.stop();
    let manager = manager_of(&mut server);
    let asker = server.asker();
    std::thread::scope(|scope| {
        let hanging = Hanging::begin(&array);
        let manager = &manager;
        scope.spawn(move || {
            let _hanging = hanging;
            // The server may get further between the two.
            let agree = (0..30).any(|_| {
                let told = next(manager);
                let output = asker.try_ask(&["status"]);
                let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
                let opening = said.contains("is starting or stopping");
                assert!(opening || said.contains("STARTING"), "{told}: {said}");
                // Where the kernel can open the export without its disks, the server has got as far as to answer.
                opening == told.ends_with("STATUS=opening")
            });
            assert!(agree, "the service manager is told of another step");
        });
        server.start();
    });
    server.stop();
    let said = String::from_utf8(server.try_ask(&["status"]).stderr).unwrap();
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
