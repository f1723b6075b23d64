//! The measurement of a restart under load (docs/measuring.md): the longest time that a client waits for a reply.
//!
//! Clients write to files in write-back mode until 1 GiB is dirty. Then the server is restarted as a service manager
//! does it, with its sockets kept, while the clients go on. The test judges no time.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::forebay;
use crate::handed_over::Manager;

const CLIENTS: u64 = 4;
/// Bytes of a WRITE.
const PIECE: usize = 128 << 10;
/// Bytes of the file of a client.
const FILE: u64 = 512 << 20;
/// Distance between a client's WRITEs, in WRITEs. A sequential stream would go past the cache. The number is odd, so
/// that every piece of the file is written before one is written again.
const STEP: u64 = 1597;
/// Dirty bytes at which the restart begins.
const DIRTY: u64 = 1 << 30;

/// Returns the words of a call of version 3 by root, without its record mark.
fn call_of(program: u32, procedure: u32, args: &[u8]) -> Vec<u8> {
    // AUTH_SYS: stamp, empty name, uid, gid, no groups.
    let head = [7, 0, 2, program, 3, procedure, 1, 20, 0, 0, 0, 0, 0, 0, 0].map(u32::to_be_bytes);
    [head.as_flattened(), args].concat()
}

/// Sends a call and returns its results.
fn exchange(stream: &mut TcpStream, call: &[u8]) -> std::io::Result<Vec<u8>> {
    stream.write_all(&[&(1 << 31 | call.len() as u32).to_be_bytes(), call].concat())?;
    let mut mark = [0; 4];
    stream.read_exact(&mut mark)?;
    let mut reply = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
    stream.read_exact(&mut reply)?;
    Ok(reply.split_off(24))
}

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut encoded = [&(bytes.len() as u32).to_be_bytes(), bytes].concat();
    encoded.resize(encoded.len().next_multiple_of(4), 0);
    encoded
}

/// Returns the handle behind `at` in results.
fn handle(results: &[u8], at: usize) -> Vec<u8> {
    assert_eq!(results[..4], [0; 4], "the call fails");
    let length = u32::from_be_bytes(results[at..at + 4].try_into().unwrap()) as usize;
    results[at + 4..at + 4 + length].to_vec()
}

/// The figures of all clients.
#[derive(Default)]
struct Seen {
    /// The longest time without a reply, in microseconds, since the last reset.
    longest: AtomicU64,
    replies: AtomicU64,
    refused: AtomicU64,
    stop: AtomicBool,
}

/// Makes a file and writes to it until the end, with one request in flight. Connects again when a connection ends.
fn client(address: &str, number: u64, seen: &Seen) {
    let mut stream = TcpStream::connect(address).unwrap();
    let root = handle(&exchange(&mut stream, &call_of(100_005, 1, &opaque(b"/"))).unwrap(), 4);
    let name = opaque(format!("file-{number}").as_bytes());
    let create = [opaque(&root), name, vec![0; 4 * 7]].concat();
    let file = opaque(&handle(&exchange(&mut stream, &call_of(100_003, 8, &create)).unwrap(), 8));
    let (data, mut piece) = (vec![number as u8; PIECE], 0_u64);
    let mut last = Instant::now();
    while !seen.stop.load(Relaxed) {
        let offset = piece * PIECE as u64;
        let about = [&offset.to_be_bytes()[..], &(PIECE as u32).to_be_bytes(), &2_u32.to_be_bytes()].concat();
        let call = call_of(100_003, 7, &[&file[..], &about, &opaque(&data)].concat());
        match exchange(&mut stream, &call) {
            Ok(results) => {
                assert_eq!(results[..4], [0; 4], "the write fails");
                seen.longest.fetch_max(last.elapsed().as_micros() as u64, Relaxed);
                seen.replies.fetch_add(1, Relaxed);
                last = Instant::now();
                piece = (piece + STEP) % (FILE / PIECE as u64);
            }
            // The request is sent again on a new connection.
            Err(_) => match TcpStream::connect(address) {
                Ok(connected) => stream = connected,
                Err(_) => drop(seen.refused.fetch_add(1, Relaxed)),
            },
        }
    }
}

#[test]
#[ignore = "a measurement: docs/measuring.md"]
fn the_pause_of_a_restart_under_load() {
    let program = std::env::var_os("FOREBAY").unwrap_or_else(|| env!("CARGO_BIN_EXE_forebay").into());
    let manager = Manager::new();
    let caches = match std::env::var_os("CACHES") {
        Some(dir) => tempfile::tempdir_in(dir).unwrap(),
        None => tempfile::tempdir().unwrap(),
    };
    let cache = |name: &str| caches.path().join(name).to_str().unwrap().to_owned();
    let (a, b) = (cache("a"), cache("b"));
    let flags =
        ["--squash", "none", "--cache", &a, "--cache", &b, "--cache-size", "2500MiB", "--ram", "64MiB"];
    let flags = [&flags[..], &["--cache-in-memory"]].concat();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let start = |socket| manager.start_with(Path::new(&program), &address, &flags, socket);
    let server = start(None);
    let kept = manager.wait_for("READY=1").unwrap();
    let dirty = || {
        let state = manager.path("state");
        let output = forebay(&["status", "--json", "--state-dir", state.to_str().unwrap()]);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        status["pool"]["dirty_bytes"].as_u64().unwrap()
    };
    let seen = Arc::new(Seen::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (address, seen) = (address.clone(), seen.clone());
            std::thread::spawn(move || client(&address, number, &seen))
        })
        .collect();
    let begun = Instant::now();
    let mut most = 0;
    while most < DIRTY {
        most = most.max(dirty());
        let late = begun.elapsed() > Duration::from_secs(120);
        assert!(!late, "the backing store is too fast: at most {} MiB were dirty", most >> 20);
        std::thread::sleep(Duration::from_millis(20));
    }
    let (before, usual) = (dirty(), seen.longest.swap(0, Relaxed));
    let replies = seen.replies.load(Relaxed);
    let begun = Instant::now();
    server.end(Signal::TERM);
    let stopped = begun.elapsed();
    let server = start(Some(kept));
    manager.wait_for("READY=1");
    let ready = begun.elapsed();
    // Replies of every client after the restart are in the figures.
    let then = seen.replies.load(Relaxed);
    while seen.replies.load(Relaxed) < then + 20 * CLIENTS {
        std::thread::sleep(Duration::from_millis(10));
    }
    seen.stop.store(true, Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(seen.refused.load(Relaxed), 0, "connections were refused");
    println!(
        "dirty {} MiB; stopped after {} ms, serving after {} ms; longest pause of a client {} ms, before the restart {} ms; {replies} \
         writes before",
        before >> 20,
        stopped.as_millis(),
        ready.as_millis(),
        seen.longest.load(Relaxed) / 1000,
        usual / 1000
    );
    server.end(Signal::KILL);
}
