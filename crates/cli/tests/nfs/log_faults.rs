//! What becomes of the log of changes when a file system's journal fails, or the log itself.

use crate::harness::*;

const JOURNAL_FAILS: &str = "the journal of a served file system fails";

fn commits(server: &Server) -> u64 {
    server.status()["durability"]["operations"].as_u64().unwrap()
}

fn events(server: &Server) -> String {
    server.ask(&["events", "-n", "100"])
}

#[test]
fn a_flush_ends_with_the_error_when_what_the_log_has_cannot_be_made_durable() {
    let Some(array) = Array::instant("ext4") else { return };
    let mut server = array.serve().cached().start();
    let mut c = server.connect();
    let root = c.root();
    c.new_file(&root, b"f", 0o644);
    array.cut_power("1");
    wait_for(|| events(&server).contains(JOURNAL_FAILS));
    let (send, ended) = std::sync::mpsc::channel();
    let output = std::thread::scope(|scope| {
        let server = &server;
        scope.spawn(move || send.send(server.try_ask(&["flush", "--wait"])).unwrap());
        ended.recv_timeout(std::time::Duration::from_secs(60)).unwrap_or_else(|_| {
            // The thread cannot be waited for.
            eprintln!("the flush does not end");
            std::process::abort()
        })
    });
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("not everything could be destaged: the backing store fails"), "{said}");
    server.kill();
}

#[test]
fn the_journal_of_one_file_system_fails_and_others_have_checkpoints() {
    let (Some(broken), Some(sound)) = (Array::instant("ext4"), Array::instant("xfs")) else { return };
    let export = |name: &str, array: &Array| {
        let at = array.at.display();
        format!(
            "[[export]]\npath='{at}'\nname='{name}'\n[[export.client]]\nnetworks=['127.0.0.1']\nsquash='none'\n"
        )
    };
    let exports = [export("/broken", &broken), export("/sound", &sound)].concat();
    let mut server = Serve::new().exports(&exports).cached().start();
    let mut c = server.connect();
    let [first, second] = [&b"/broken"[..], b"/sound"].map(|name| c.mnt(name).unwrap().fhandle);
    c.new_file(&first, b"f", 0o644);
    broken.cut_power("1");
    wait_for(|| events(&server).contains(JOURNAL_FAILS));
    let before = commits(&server);
    let made = c.new_file(&second, b"g", 0o644);
    wait_for(|| commits(&server) > before);
    assert_eq!(c.find(&second, b"g"), made);
    assert_ne!(c.create(&first, b"h", CreateHow::Guarded(mode(0o644))).status(), Nfsstat3::Ok);
    server.kill();
}

#[test]
fn without_cache_devices_every_change_waits_for_the_journal() {
    for fs in ["xfs", "ext4"] {
        let Some(array) = Array::new(fs) else { return };
        let mut server = array.serve().cached().start();
        let mut c = server.connect();
        let root = c.root();
        server.caches().iter().for_each(|cache| std::fs::remove_file(cache).unwrap());
        let lost = || events(&server).matches("device-lost").count() >= 2;
        let mut names = (0..).map(|n| format!("before{n}"));
        while !lost() {
            c.new_file(&root, names.next().unwrap().as_bytes(), 0o644);
        }
        let before = commits(&server);
        let names: Vec<_> = (0..20).map(|n| format!("after{n}")).collect();
        for name in &names {
            c.new_file(&root, name.as_bytes(), 0o644);
        }
        assert!(commits(&server) >= before + 20, "{fs}: answered before they were durable");
        array.cut_power("5");
        server.kill();
        assert!(array.power_on());
        for name in &names {
            assert!(array.at.join(name).exists(), "{fs}: {name} is lost");
        }
    }
}
