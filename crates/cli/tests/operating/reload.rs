//! Tests of reading the configuration again in service, by `forebay reload` and by SIGHUP.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::common::text;
use crate::unattended::Unattended;

/// Returns a server whose settings are in a file.
fn configured(dir: TempDir, more: &str) -> Unattended {
    write(dir.path(), more);
    let config = dir.path().join("forebay.toml");
    let flags = ["--config", config.to_str().unwrap(), "--mode", "pass-through"];
    std::fs::create_dir(dir.path().join("data")).unwrap();
    Unattended::start_configured(dir, &flags)
}

fn write(dir: &Path, more: &str) {
    let text = format!("{more}\n[[export]]\npath = {:?}\nname = \"/\"\n", dir.join("data"));
    std::fs::write(dir.join("forebay.toml"), text).unwrap();
}

#[test]
fn sighup_reads_the_configuration_anew_and_ends_nobody() {
    let server = configured(TempDir::new().unwrap(), "");
    write(server.dir(), "[log]\nlevel = \"debug\"\n");
    server.signal(Signal::HUP);
    let reloads = |server: &Unattended| {
        let output = server.ask(&["events"]);
        let events = text(&output.stdout);
        events.lines().filter(|line| line.contains(" reload ")).map(str::to_owned).collect::<Vec<_>>()
    };
    server.wait_for(|server| !reloads(server).is_empty());
    assert!(reloads(&server)[0].contains("[log] level: \"info\" -> \"debug\""), "{:?}", reloads(&server));

    // A mistake changes nothing and is reported.
    write(server.dir(), "mod = 1\n[log]\nlevel = \"info\"\n");
    server.signal(Signal::HUP);
    server.wait_for(|server| reloads(server).len() == 2);
    let told = &reloads(&server)[1];
    assert!(told.contains("nothing has changed") && told.contains("unknown key `mod`"), "{told}");
    let output = server.ask(&["reload"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert!(text(&output.stderr).contains("unknown key `mod`"), "{}", text(&output.stderr));
    server.stop();
}

#[test]
fn a_file_that_cannot_be_used_changes_nothing_and_says_why() {
    let server = configured(TempDir::new().unwrap(), "");
    let file = server.dir().join("forebay.toml");
    let refused = |says: &str| {
        let output = server.ask(&["reload"]);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(says) && told.ends_with("Nothing has changed.\n"), "{says}: {told}");
    };
    for (more, says) in [
        ("[limits]\nlease = \"90 parsecs\"\n", "`90 parsecs` is not a duration"),
        ("[limits]\nthreads = \"x\"\n", "`x` is not a whole number"),
        ("[limits]\nmemory = \"5 bananas\"\n", "`memory`: `5 bananas` is not a size"),
        ("[limits\n", "forebay.toml:"),
    ] {
        write(server.dir(), more);
        refused(says);
    }
    std::fs::write(&file, [0xff, 0xfe]).unwrap();
    refused("is not UTF-8 text");
    std::fs::remove_file(&file).unwrap();
    refused("cannot read the configuration: No such file or directory");
    assert_eq!(server.json(&["status"])["connections_limit"], 16384);
    server.stop();
}

#[test]
fn each_change_is_told_with_its_values_and_a_restart_is_named_where_it_is_needed() {
    let server = configured(TempDir::new().unwrap(), "");
    assert_eq!(server.json(&["reload"])["changed"].as_array().map(Vec::len), Some(0));
    let limits = "[limits]\nconnections = 77\nidle_timeout = \"2h\"\nlease = \"45s\"\n";
    write(server.dir(), &format!("listen = [\"127.0.0.1:1\"]\n{limits}"));
    let report = server.json(&["reload"]);
    let lines =
        |key: &str| report[key].as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned());
    let changed: Vec<_> = lines("changed").collect();
    assert_eq!(changed, ["[limits] connections: 16384 -> 77", "[limits] idle_timeout: \"1h\" -> \"2h\""]);
    // A flag of this server overrides the addresses of the file.
    assert_eq!(lines("at_next_start").collect::<Vec<_>>(), ["[limits] lease: \"90s\" -> \"45s\""]);
    assert_eq!(server.json(&["status"])["connections_limit"], 77, "the limit is in force");
    let output = server.ask(&["reload"]);
    let told = text(&output.stderr);
    assert_eq!(told, "At the next start: [limits] lease: \"90s\" -> \"45s\".\n");
    server.stop();
}

#[test]
fn a_limit_read_anew_holds_for_the_connections_there_are() {
    let stall = "[limits]\nstall_timeout = \"1s\"\n";
    let server = configured(TempDir::new().unwrap(), stall);
    let address = server.json(&["status"])["listen"][0].as_str().unwrap().to_owned();
    let mut connection = TcpStream::connect(&address).unwrap();
    mount(&mut connection).unwrap();
    write(server.dir(), &format!("{stall}idle_timeout = \"1s\"\n"));
    assert_eq!(server.json(&["reload"])["changed"][0], "[limits] idle_timeout: \"1h\" -> \"1s\"");
    // Before, the connection would have lasted for an hour.
    connection.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    assert_eq!(connection.read(&mut [0]).unwrap(), 0, "the server has closed the idle connection");
    server.stop();
}

#[test]
fn a_client_beyond_its_rate_waits_until_the_limit_is_read_anew() {
    const CALLS: usize = 10_000;
    // The client could have all replies after hours.
    let limit =
        "[[rate_limit]]\nname = \"all\"\nnetworks = [\"*\"]\nrequests_per_second = 1\nburst = \"2s\"\n";
    let server = configured(TempDir::new().unwrap(), limit);
    let address = server.json(&["status"])["listen"][0].as_str().unwrap().to_owned();
    let mut connection = TcpStream::connect(&address).unwrap();
    let null = [1 << 31 | 40, 7, 0, 2, 100_003, 3, 0, 0, 0, 0, 0].map(u32::to_be_bytes);
    let mut sender = connection.try_clone().unwrap();
    let sender = std::thread::spawn(move || sender.write_all(&null.as_flattened().repeat(CALLS)).unwrap());
    server.wait_for(|server| server.json(&["status"])["rate_limits"][0]["delays"].as_u64().unwrap() > 0);
    let metrics = server.ask(&["status", "--prometheus"]);
    let metrics = text(&metrics.stdout);
    assert!(metrics.contains("forebay_rate_limit_delays_total{limit=\"all\"} "), "{metrics}");
    let status = server.ask(&["status"]);
    let told = "all for each client of 0.0.0.0/0, ::/0: 1 requests/s; ";
    assert!(text(&status.stdout).contains(told), "{}", text(&status.stdout));
    // Each reply has 28 bytes. Most of them are missing.
    let mut replies = vec![0; CALLS * 28];
    connection.set_nonblocking(true).unwrap();
    let received = connection.read(&mut replies).unwrap_or(0);
    assert!(received < replies.len() / 2, "{received} bytes of replies");
    write(server.dir(), "");
    assert_eq!(server.json(&["reload"])["changed"][0], "[[rate_limit]] all: removed, it had name = \"all\"");
    connection.set_nonblocking(false).unwrap();
    connection.read_exact(&mut replies[received..]).unwrap();
    sender.join().unwrap();
    assert_eq!(server.json(&["status"]).get("rate_limits"), None);
    server.stop();
}

#[test]
fn clients_of_an_export_beyond_its_rate_wait_and_those_of_other_exports_do_not() {
    const CALLS: usize = 10_000;
    let dir = TempDir::new().unwrap();
    let other = dir.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let other = format!("[[export]]\npath = {other:?}\nname = \"/other\"\n");
    let limit = "[[rate_limit]]\nname = \"slow\"\nexport = \"/\"\nrequests_per_second = 1\nburst = \"2s\"\n";
    let server = configured(dir, &(other.clone() + limit));
    let address = server.json(&["status"])["listen"][0].as_str().unwrap().to_owned();
    let connect = || TcpStream::connect(&address).unwrap();
    let mut connection = connect();
    let (_, handle) = mount(&mut connection).unwrap();
    let mut sender = connection.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        for _ in 0..CALLS {
            send(&mut sender, (100_003, 1), &handle).unwrap();
        }
    });
    server.wait_for(|server| server.json(&["status"])["rate_limits"][0]["delays"].as_u64().unwrap() > 0);
    let told = "slow for all clients of the export / together: 1 requests/s; ";
    let status = server.ask(&["status"]);
    assert!(text(&status.stdout).contains(told), "{}", text(&status.stdout));
    // A client of the other export waits for nothing: these calls would take a quarter of an hour.
    let mut third = connect();
    let (_, handle) = mount_of(&mut third, b"\0\0\0\x06/other\0\0").unwrap();
    (0..1000).for_each(|_| drop(call(&mut third, (100_003, 1), &handle).unwrap()));
    let mut replies = Vec::new();
    connection.set_nonblocking(true).unwrap();
    let _ = connection.read_to_end(&mut replies);
    assert!(whole_replies(&replies) < CALLS / 2, "{} bytes of replies", replies.len());
    write(server.dir(), &other);
    let changed = server.json(&["reload"])["changed"].to_string();
    assert!(changed.contains("[[rate_limit]] slow: removed"), "{changed}");
    connection.set_nonblocking(false).unwrap();
    let mut part = vec![0; 1 << 20];
    while whole_replies(&replies) < CALLS {
        let count = connection.read(&mut part).unwrap();
        assert!(count > 0, "the server has closed the connection");
        replies.extend_from_slice(&part[..count]);
    }
    sender.join().unwrap();
    server.stop();
}

/// Returns the number of whole records.
fn whole_replies(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Some((mark, rest)) = bytes.split_first_chunk::<4>() {
        let length = (u32::from_be_bytes(*mark) & !(1 << 31)) as usize;
        let Some(rest) = rest.get(length..) else { break };
        (bytes, count) = (rest, count + 1);
    }
    count
}

/// Calls a procedure of version 3 of a program with AUTH_NONE. Returns its results, or an error if the server closes
/// the connection.
fn call(
    connection: &mut TcpStream,
    (program, procedure): (u32, u32),
    args: &[u8],
) -> std::io::Result<Vec<u8>> {
    send(connection, (program, procedure), args)?;
    // The record mark with the length comes first.
    let mut length = [0; 4];
    connection.read_exact(&mut length)?;
    let mut reply = vec![0; (u32::from_be_bytes(length) & !(1 << 31)) as usize];
    connection.read_exact(&mut reply)?;
    // The results follow xid, reply, accepted, the verifier of two words, and success.
    Ok(reply.split_off(24))
}

/// Sends a call of a procedure of version 3 of a program with AUTH_NONE.
fn send(connection: &mut TcpStream, (program, procedure): (u32, u32), args: &[u8]) -> std::io::Result<()> {
    let record = 1 << 31 | (40 + args.len() as u32);
    let head = [record, 7, 0, 2, program, 3, procedure, 0, 0, 0, 0].map(u32::to_be_bytes);
    connection.write_all(&[head.as_flattened(), args].concat())
}

/// Mounts `/`. Returns the status, and the handle with its length.
fn mount(connection: &mut TcpStream) -> std::io::Result<(u8, Vec<u8>)> {
    mount_of(connection, b"\0\0\0\x01/\0\0\0")
}

/// Mounts the export of an encoded name. Returns the status, and the handle with its length.
fn mount_of(connection: &mut TcpStream, name: &[u8]) -> std::io::Result<(u8, Vec<u8>)> {
    let results = call(connection, (100_005, 1), name)?;
    let handle = results.get(4..8).map_or(0, |length| 4 + length[3].next_multiple_of(4) as usize);
    Ok((results[3], results[4..4 + handle].to_vec()))
}

#[test]
fn rules_read_anew_hold_for_new_connections_and_those_there_are() {
    let server = configured(TempDir::new().unwrap(), "");
    let address = server.json(&["status"])["listen"][0].as_str().unwrap().to_owned();
    let mut connection = TcpStream::connect(&address).unwrap();
    let (mounted, handle) = mount(&mut connection).unwrap();
    let getattr = |connection: &mut TcpStream| call(connection, (100_003, 1), &handle).unwrap()[3];
    assert_eq!((mounted, getattr(&mut connection)), (0, 0));

    let data = server.dir().join("data");
    let rule = "[[export.client]]\nnetworks = [\"192.0.2.0/24\"]\n";
    let text = format!("[[export]]\npath = {data:?}\nname = \"/\"\n{rule}");
    std::fs::write(server.dir().join("forebay.toml"), text).unwrap();
    let report = server.json(&["reload"]);
    let told = report["changed"][0].as_str().unwrap();
    assert!(told.starts_with("[[export.client]] / rule 1 networks: ["), "{told}");
    // MNT3ERR_ACCES and NFS3ERR_ACCES. A connection from an address without any rule is closed when it is accepted.
    assert_eq!((mount(&mut connection).unwrap().0, getattr(&mut connection)), (13, 13));
    assert!(mount(&mut TcpStream::connect(&address).unwrap()).is_err());
    server.stop();
}

#[test]
fn doctor_judges_the_host_by_the_settings_of_the_running_server() {
    let server =
        configured(TempDir::new().unwrap(), "[limits]\nmemory = \"1TiB\"\nreply_cache_memory = \"64MiB\"\n");
    let needed = |server: &Unattended| {
        let output = server.ask(&["doctor", "--json"]);
        let checks: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let memory = checks.as_array().unwrap().iter().find(|check| check["subject"] == "memory").unwrap();
        memory["finding"].as_str().unwrap().to_owned()
    };
    let told = needed(&server);
    assert!(told.contains("the server may use 1") && told.ends_with("TiB"), "{told}");
    // Limits of a reload count.
    write(server.dir(), "[limits]\nmemory = \"2TiB\"\n");
    server.json(&["reload"]);
    let told = needed(&server);
    assert!(told.contains("the server may use 2") && told.ends_with("TiB"), "{told}");
    server.stop();
}
