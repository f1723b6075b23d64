//! Tests of starts and stops: one clear sentence for each possible failure, and no loss at a stop.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;

use crate::harness::*;

/// Asserts that a command failed with this exit code, one sentence on stderr, and no output on stdout.
#[track_caller]
fn refused(output: &Output, code: i32, says: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(output.stdout.is_empty());
    let errors: Vec<&str> = stderr.lines().filter(|line| line.contains("error:")).collect();
    assert_eq!(errors.len(), 1, "{stderr}");
    for part in says {
        assert!(errors[0].contains(part), "`{part}` is missing in: {stderr}");
    }
    assert!(!stderr.contains("panicked"), "{stderr}");
}

/// Runs `forebay serve` with these words and a state directory. It is expected to fail.
fn serve(state: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--mode", "pass-through", "--state-dir"]);
    command.arg(state).args(args).output().unwrap()
}

#[test]
fn the_port_is_in_use() {
    let home = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["serve", "--mode", "pass-through", "--listen", &address]);
    let output = command.arg(home.path()).output().unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    refused(&output, 1, &["in use", &port, "--listen"]);
}

#[test]
fn directories_that_cannot_be_served() {
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("state");
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    refused(&serve(&state, &[&path("missing/dir")]), 2, &["missing"]);
    assert!(!home.path().join("missing").exists());
    std::fs::write(path("file"), "").unwrap();
    refused(&serve(&state, &[&path("file")]), 2, &["file", "directory"]);
    refused(&serve(&state, &[&path("file/below")]), 2, &["file"]);
    refused(&serve(&state, &[]), 2, &["required"]);
    refused(&serve(&state, &[&path("data"), "--no-such-flag"]), 2, &["--no-such-flag"]);
}

#[test]
fn only_the_last_component_is_made_and_it_is_said() {
    let server = Serve::new().start_on(|data| std::fs::remove_dir(data).unwrap());
    assert!(server.data.is_dir());
    let mut c = server.connect();
    let root = c.root();
    c.attr(&root);
    let mut server = server;
    server.signal(Signal::TERM);
    let (_, said) = server.wait();
    assert!(said.contains("Made the directory"), "{said}");
}

#[test]
fn a_read_only_directory_is_refused_unless_it_is_served_read_only() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext4", 16 << 20) else { return };
    std::fs::write(disk.at.join("f"), "text").unwrap();
    let remount = Command::new("mount").args(["-o", "remount,ro"]).arg(&disk.at).status().unwrap();
    assert!(remount.success());
    let (at, state) = (disk.at.to_str().unwrap(), home.path().join("state"));
    refused(&serve(&state, &[at]), 1, &[at, "--read-only"]);
    let server = Serve::new().data_at(&disk.at).flags(&["--read-only"]).start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.find(&root, b"f");
    assert_eq!(c.read(&file, 0, 10).unwrap().data, b"text");
    assert_eq!(c.create(&root, b"x", CreateHow::Guarded(mode(0o644))).status(), Nfsstat3::Rofs);
}

#[test]
fn a_second_server_on_the_same_directory_or_state() {
    let server = Serve::new().start();
    let other = server.home().join("other");
    let data = server.data.to_str().unwrap();
    refused(&serve(&other, &[data]), 1, &[data, "served by another"]);
    std::fs::create_dir(server.home().join("data2")).unwrap();
    let data2 = server.home().join("data2");
    let state = server.state.to_str().unwrap();
    refused(&serve(&server.state, &[data2.to_str().unwrap()]), 1, &["another forebay", state]);
    // The first server continues.
    let mut c = server.connect();
    let root = c.root();
    c.attr(&root);
}

#[test]
fn an_unusable_state_directory() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    let data = home.path().join("data");
    refused(&serve(&file.join("state"), &[data.to_str().unwrap()]), 1, &["state directory", "--state-dir"]);
}

#[test]
fn a_port_below_1024_without_the_privilege() {
    needs_root!();
    let server = Serve::new().run_as(65534).start();
    let unprivileged = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap();
    if unprivileged.trim().parse::<u32>().unwrap() < 1000 {
        eprintln!("not run: this host lets everybody use ports below 1024");
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let (data, state) = (server.home().join("data3"), server.home().join("state3"));
    for dir in [&data, &state] {
        std::fs::create_dir(dir).unwrap();
        std::os::unix::fs::chown(dir, Some(65534), Some(65534)).unwrap();
    }
    command.args(["serve", "--listen", "127.0.0.1:999", "--state-dir"]).arg(&state).arg(&data);
    refused(&command.uid(65534).gid(65534).output().unwrap(), 1, &["999", "root", "--listen"]);
}

#[test]
fn an_address_this_host_has_not() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["serve", "--listen", "192.0.2.1:0", "--allow", "*"]);
    command.arg("--state-dir").arg(home.path().join("state")).arg(home.path().join("data"));
    refused(&command.output().unwrap(), 1, &["192.0.2.1"]);
}

#[test]
fn sigterm_and_sigint_stop_with_idle_and_silent_connections_open() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Serve::new().start();
        let mut idle: Vec<Client> = (0..20).map(|_| server.connect()).collect();
        let silent = TcpStream::connect(server.address()).unwrap();
        idle[0].root();
        // The connection has sent a part of a record.
        idle[1].send_raw(&[0x80, 0, 0, 40, 1, 2, 3]);
        server.signal(signal);
        let (status, said) = server.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        assert!(!said.contains("error"), "{said}");
        drop(silent);
    }
}

#[test]
fn requests_in_flight_are_finished_at_a_stop() {
    let mut server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let mut senders: Vec<(Client, u32)> = (0..8).map(|_| (server.connect(), 0)).collect();
    for (n, (c, xid)) in senders.iter_mut().enumerate() {
        for k in 0..20u32 {
            let child = format!("{n}-{k}");
            let how = CreateHow::Guarded(mode(0o644));
            let args = CreateArgs { target: name(&root, child.as_bytes()), how };
            let mut bytes = Vec::new();
            forebay_wire::Encode::encode(&args, &mut bytes);
            let record = c.call_bytes((PROGRAM, VERSION, 8), &bytes);
            c.send(&record);
        }
        *xid = c.xid;
    }
    // The first answers show that the server has begun to work on the requests.
    let mut answered = vec![0; senders.len()];
    for (n, (c, _)) in senders.iter_mut().enumerate() {
        c.receive().unwrap();
        answered[n] += 1;
    }
    server.signal(Signal::TERM);
    for (n, (c, _)) in senders.iter_mut().enumerate() {
        while let Some(reply) = c.receive() {
            assert_eq!(reply[reply.len().min(24)..][..4], [0; 4], "refused at the stop");
            answered[n] += 1;
        }
    }
    let (status, said) = server.wait();
    assert_eq!(status.code(), Some(0), "{said}");
    // The number of executed requests equals the number of answered requests.
    let made = std::fs::read_dir(&server.data).unwrap().count();
    assert_eq!(made, answered.iter().sum::<usize>());
}

#[test]
fn unstable_data_is_durable_after_a_stop() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext4", 64 << 20) else { return };
    let mut server = disk.serve().plain().start();
    let mut c = server.connect();
    let root = c.root();
    for n in 0..20u8 {
        let file = c.new_file(&root, &[b'f', n + b'a'], 0o644);
        c.write(&file, 0, &[n; 5000], StableHow::Unstable).unwrap();
    }
    server.stop();
    let after = disk.after_power_cut(home.path());
    for n in 0..20u8 {
        let path = after.at.join(str::from_utf8(&[b'f', n + b'a']).unwrap());
        assert_eq!(std::fs::read(path).unwrap(), [n; 5000]);
    }
}

#[test]
fn a_stopped_server_refuses_connections_and_its_socket_is_gone() {
    let mut server = Serve::new().start();
    let address = server.address();
    server.stop();
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let mut status = Command::new(env!("CARGO_BIN_EXE_forebay"));
    let output = status.args(["status", "--state-dir"]).arg(&server.state).output().unwrap();
    refused(&output, 1, &[]);
}

/// A killed server leaves locks and sockets behind, which must not prevent a new start.
#[test]
fn a_killed_server_can_be_started_again() {
    let mut server = Serve::new().start();
    for _ in 0..3 {
        server.kill();
        server.start();
        server.status();
    }
}

#[test]
fn a_damaged_file_of_the_state_directory_is_named_and_no_data_is_given_up() {
    let mut server = Serve::new().cached().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"file", 0o644);
    c.write(&file, 0, &[1; 4096], StableHow::FileSync).unwrap();
    server.kill();
    let cut = |name: &str, len: usize| {
        let contents = std::fs::read(server.state.join(name)).unwrap();
        (name.to_owned(), contents[..contents.len() - len].to_vec())
    };
    let all = |name: &str, contents: &[u8]| (name.to_owned(), contents.to_vec());
    let cases = [
        cut("handle.key", 16),
        cut("handle.key", 1),
        all("handle.key", &[7; 17]),
        all("cache-in-use", b""),
        all("cache-in-use", &[0xff]),
        all("cache-last", b""),
        cut("cache-last", 1),
        all("cache-epochs", b""),
        cut("filesystems", 1),
        all("filesystems", &[0xff]),
        cut("identities", 20),
        all("policies.json", b""),
        all("volumes.json", b"{"),
        all("nfs4-clients", &[0xff]),
        all("nlm-hosts", &[0xff]),
    ];
    for (name, contents) in cases {
        let path = server.state.join(&name);
        let before = std::fs::read(&path).ok();
        std::fs::write(&path, &contents).unwrap();
        let said = server.refusal();
        assert!(said.contains(&format!("{} is damaged; ", path.display())), "{name} {contents:?}: {said}");
        assert!(!said.contains("the system refuses"), "{name}: {said}");
        let advice = ["--format-cache", "--state-dir"].iter().any(|flag| said.contains(flag));
        assert!(!advice && said.contains("restore it") | said.contains("remove it"), "{name}: {said}");
        match before {
            Some(before) => std::fs::write(&path, before).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
    }
    server.start();
    let mut c = server.connect();
    assert_eq!(c.read(&file, 0, 4096).unwrap().data, [1; 4096]);
}
