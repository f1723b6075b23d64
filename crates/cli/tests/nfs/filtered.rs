//! A filter of system calls around the server.

use crate::harness::*;

#[test]
fn a_call_that_the_service_manager_forbids_is_told_and_hides_no_quota() {
    needs_root!();
    let mut server = Serve::unsquashed().cached().forbid(&[libc::SYS_quotactl_fd, libc::SYS_mincore]).start();
    let told = server.ask(&["events", "--json"]);
    for call in ["quotactl_fd", "mincore"] {
        assert!(told.contains(&format!("SystemCallFilter={call} in the unit")), "{told}");
    }
    // Whether the user has room cannot be seen: nothing is accepted that the directory might refuse.
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
