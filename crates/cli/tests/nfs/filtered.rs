//! Tests of a server with a filter of system calls around it.

use crate::harness::*;

#[test]
fn a_call_that_the_service_manager_forbids_is_told_and_hides_no_quota() {
    needs_root!();
    let mut server = Serve::unsquashed().cached().forbid(&[libc::SYS_quotactl_fd, libc::SYS_mincore]).start();
    let told = server.ask(&["events", "--json"]);
    for call in ["quotactl_fd", "mincore"] {
        assert!(told.contains(&format!("SystemCallFilter={call} in the unit")), "{told}");
    }
    // The server cannot see the user's quota, so it accepts no data that the directory might refuse.
    let mut joe = server.connect().acting_as(user(1000, 1000, &[]));
    let root = joe.root();
    let file = joe.new_file(&root, b"f", 0o644);
    joe.write(&file, 0, b"data", StableHow::FileSync).unwrap();
    assert_eq!(std::fs::read(server.data.join("f")).unwrap(), b"data");
    server.signal(rustix::process::Signal::TERM);
    let (_, said) = server.wait();
    assert!(said.contains("cannot ask for quotas"), "{said}");
}

#[test]
fn the_process_that_asks_disks_for_their_health_is_filtered_too() {
    needs_root!();
    let server = Serve::new().cached().start();
    let status =
        |process: &std::path::Path| std::fs::read_to_string(process.join("status")).unwrap_or_default();
    let parent = format!("PPid:\t{}\n", server.pid());
    let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
    let helper = processes.into_iter().find(|process| status(process).contains(&parent)).unwrap();
    // The helper installs its filter after its start.
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !status(&helper).contains("Seccomp:\t2") {
        assert!(status(&helper).contains(&parent), "it has ended");
        assert!(std::time::Instant::now() < end, "it runs without a filter");
        std::thread::yield_now();
    }
}

#[test]
fn without_a_filter_nothing_is_told_and_the_servers_own_is_in_force() {
    let server = Serve::new().start();
    assert!(!server.ask(&["events", "--json"]).contains("call-refused"));
    assert_eq!(server.status()["sandbox"], "on");
    let threads = std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    for thread in threads {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap_or_default();
        assert!(status.is_empty() || status.contains("Seccomp:\t2"), "{status}");
    }
}
