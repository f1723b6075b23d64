//! Tests of connections that misbehave, and of many connections: each is bounded, and other connections are served.

use std::io::Write;
use std::net::{TcpListener, TcpStream};

use forebay_wire::xdr::Encode;

use crate::harness::*;

/// Returns a record cut into fragments of these sizes. The last fragment has the remaining bytes.
fn fragmented(record: &[u8], sizes: impl Iterator<Item = usize>) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = record;
    for size in sizes {
        if size >= rest.len() {
            break;
        }
        let (part, more) = rest.split_at(size);
        out.extend_from_slice(&(part.len() as u32).to_be_bytes());
        out.extend_from_slice(part);
        rest = more;
    }
    out.extend_from_slice(&(rpc::LAST_FRAGMENT | rest.len() as u32).to_be_bytes());
    out.extend_from_slice(rest);
    out
}

#[test]
fn records_in_any_fragmentation() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let data: Vec<u8> = (0..10_000u32).map(|n| (n % 253) as u8).collect();
    for (n, size) in [3, 4, 7, 1000, 9999].into_iter().enumerate() {
        let offset = n as u64 * 10_000;
        let args = WriteArgs { file, offset, count: 10_000, stable: StableHow::FileSync, data: &data };
        let mut bytes = Vec::new();
        args.encode(&mut bytes);
        let record = c.call_bytes((PROGRAM, VERSION, 7), &bytes);
        // Empty fragments are permitted.
        let sizes = [0, 1, 0, 2].into_iter().chain(std::iter::repeat(size));
        c.send_raw(&fragmented(&record, sizes));
        c.receive().unwrap();
        assert_eq!(c.read(&file, offset, 10_000).unwrap().data, data, "fragments of {size}");
    }
    // Single bytes on the wire, and two records in one write.
    let null = c.call_bytes((PROGRAM, VERSION, 0), &[]);
    for byte in fragmented(&null, std::iter::empty()) {
        c.send_raw(&[byte]);
    }
    let first = c.receive().unwrap();
    let two = [fragmented(&null, std::iter::empty()), fragmented(&null, [5, 9].into_iter())].concat();
    c.send_raw(&two);
    assert_eq!([c.receive().unwrap(), c.receive().unwrap()], [first.clone(), first]);
}

#[test]
fn a_client_that_reads_no_replies_is_bounded_and_harms_nobody() {
    let server = Serve::new().flags(&["--memory", "64M", "--connection-memory", "8M"]).start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.setattr(&file, size(1 << 20)).unwrap();
    let mut bytes = Vec::new();
    ReadArgs { file, offset: 0, count: 1 << 20 }.encode(&mut bytes);
    let read = fragmented(&c.call_bytes((PROGRAM, VERSION, 6), &bytes), std::iter::empty());
    let mut deaf: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    for stream in &mut deaf {
        stream.set_nonblocking(true).unwrap();
        // The requests ask for 100,000 MiB of replies, or as many as the server accepts.
        for _ in 0..100_000 {
            if stream.write(&read).is_err() {
                break;
            }
        }
    }
    for _ in 0..50 {
        assert_eq!(c.read(&file, 0, 100).unwrap().data, [0; 100]);
        let n = server.status()["memory"]["used_bytes"].as_u64().unwrap();
        // The limit, one request above it, and the first bytes of each connection.
        assert!(n <= 70 << 20, "{n} bytes in use");
        c.create(&root, b"g", CreateHow::Unchecked(mode(0o644))).unwrap();
    }
}

#[test]
fn many_idle_connections_come_and_go() {
    let server = Serve::new().start();
    let mut idle: Vec<Client> = (0..400).map(|_| server.connect()).collect();
    let root = idle[0].root();
    for c in &mut idle {
        c.attr(&root);
    }
    assert_eq!(server.status()["connections"], 400);
    drop(idle);
    let mut c = server.connect();
    c.attr(&root);
}

#[test]
fn connections_beyond_the_limit_are_closed_and_others_served() {
    let server = Serve::new().flags(&["--connections", "10"]).start();
    let mut served: Vec<Client> = (0..10).map(|_| server.connect()).collect();
    let root = served[0].root();
    for c in &mut served {
        c.attr(&root);
    }
    let mut over = server.connect();
    let null = over.call_bytes((PROGRAM, VERSION, 0), &[]);
    // The server may have reset the connection, so an error is ignored.
    let _ = TcpStream::connect(server.address()).unwrap().write(&null);
    for c in &mut served {
        c.attr(&root);
    }
}

#[test]
fn clients_over_ipv6() {
    if TcpListener::bind("[::1]:0").is_err() {
        eprintln!("not run: this host has no IPv6");
        return;
    }
    let server = Serve::new().flags(&["--listen", "[::1]:0"]).start();
    let address = server.status()["listen"][1].as_str().unwrap().parse().unwrap();
    let mut c = Client::connect(address);
    let root = c.root();
    c.new_file(&root, b"f", 0o644);
    let mut other = server.connect();
    assert_eq!(other.root(), root);
    other.find(&root, b"f");
}
