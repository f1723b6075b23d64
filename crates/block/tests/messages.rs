//! The door over a real socket, message by message: data, errors, order, limits, and clients that lie.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic in a test is the assertion")]

mod common;

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::memory::Memory;
use common::*;
use forebay_block::{Config, Door, Error};
use forebay_rpc::CloseReason;
use forebay_volume::disk::DiskError;
use forebay_wire::nbd::*;

const MIB: u64 = 1 << 20;
const STYLES: [Style; 3] = [Style::Simple, Style::Structured, Style::Extended];

#[test]
fn data_passes_in_every_style_size_and_way() {
    let rig = Rig::new(Memory::new(64 * MIB));
    for style in STYLES {
        let mut client = rig.client(style);
        for is_slow in [false, true] {
            rig.disk.is_slow.store(is_slow, SeqCst);
            for len in [1, 511, 4096, 16_384, 16_385, 65_536, 1_000_001, 2 << 20, 32 << 20] {
                let data = pattern(len as u64, len);
                assert_eq!(client.write(0, 77, &data), 0);
                assert!(client.read(77, len) == data, "{style:?} {len}");
            }
        }
    }
    rig.stop();
}

#[test]
fn every_command_reaches_the_volume() {
    let rig = Rig::new(Memory::new(MIB));
    for style in STYLES {
        let mut client = rig.client(style);
        assert_eq!(client.write(command_flags::FUA, 0, &[7; 8192]), 0);
        assert_eq!(client.call(Command::Flush, 0, (0, 0)), 0);
        assert_eq!(client.call(Command::Trim, 0, (0, 4096)), 0);
        assert_eq!(client.read(4095, 2), [0, 7]);
        assert_eq!(client.call(Command::WriteZeroes, command_flags::FUA, (4096, 4096)), 0);
        assert_eq!(client.read(0, 8192), [0; 8192]);
        assert_eq!(client.call(Command::Cache, 0, (0, 4096)), 0);
        let noisy = command_flags::NO_HOLE | command_flags::FAST_ZERO;
        assert_eq!(client.call(Command::WriteZeroes, noisy, (0, 4096)), ErrorCode::NotSup as u32);
        for (is_slow, error) in [(true, ErrorCode::NotSup as u32), (false, 0)] {
            rig.disk.zeroes_slowly.store(is_slow, SeqCst);
            assert_eq!(client.write(0, 0, &[7; 4096]), 0);
            assert_eq!(client.call(Command::WriteZeroes, command_flags::FAST_ZERO, (0, 4096)), error);
            assert_eq!(client.read(0, 4096), [if is_slow { 7 } else { 0 }; 4096]);
        }
    }
    let disk = &rig.disk;
    let counted = [&disk.flushes, &disk.fua, &disk.prefetched].map(|count| count.load(SeqCst));
    assert_eq!(counted, [3, 6, 3]);
    rig.stop();
}

#[test]
fn the_errors_of_a_volume_have_their_numbers() {
    let rig = Rig::new(Memory::new(MIB));
    let errors = [
        (DiskError::Io, ErrorCode::Io),
        (DiskError::NoSpace, ErrorCode::NoSpc),
        (DiskError::Invalid, ErrorCode::Inval),
        (DiskError::ReadOnly, ErrorCode::Perm),
        (DiskError::Stopping, ErrorCode::Shutdown),
    ];
    rig.disk.is_slow.store(true, SeqCst);
    for style in STYLES {
        let mut client = rig.client(style);
        for (error, code) in errors {
            *rig.disk.fails.lock().unwrap() = Some(error);
            assert_eq!(client.write(0, 0, b"data"), code as u32);
            assert_eq!(client.call(Command::Read, 0, (0, 512)), code as u32);
            assert_eq!(client.call(Command::Flush, 0, (0, 0)), code as u32);
        }
        *rig.disk.fails.lock().unwrap() = None;
        assert_eq!(client.read(0, 4).len(), 4, "the connection goes on");
        assert_eq!(client.write(0, MIB - 1, b"12"), ErrorCode::NoSpc as u32);
        assert_eq!(client.call(Command::Read, 0, (MIB, 1)), ErrorCode::Inval as u32);
        assert_eq!(client.read(MIB - 1, 1).len(), 1);
    }
    rig.stop();
}

#[test]
fn replies_leave_in_the_order_in_which_requests_end() {
    let rig = Rig::new(Memory::new(MIB));
    rig.disk.gate.close();
    let mut client = rig.client(Style::Structured);
    for cookie in 0..100 {
        let bytes =
            [client.request(Command::Write, 0, cookie, (4096 * cookie, 4)), vec![cookie as u8; 4]].concat();
        client.send(&bytes);
    }
    rig.disk.gate.await_waiting(100);
    // A read from memory passes the writes that wait.
    let bytes = client.request(Command::Read, 0, 1000, (0, 4));
    client.send(&bytes);
    assert_eq!(client.answer(0), Answer { cookie: 1000, error: 0, data: vec![0; 4] });
    rig.disk.gate.open();
    let mut cookies: Vec<u64> = (0..100).map(|_| client.answer(0).cookie).collect();
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(0..100));
    assert_eq!(client.read(4096 * 99, 4), [99; 4]);
    rig.stop();
}

#[test]
fn a_disconnect_waits_for_the_requests_in_flight_and_so_does_a_stop() {
    let rig = Rig::new(Memory::new(MIB));
    for is_stop in [false, true] {
        rig.disk.gate.close();
        let mut client = rig.client(Style::Simple);
        let bytes = [client.request(Command::Write, 0, 5, (0, 4)), b"data".to_vec()].concat();
        client.send(&bytes);
        rig.disk.gate.await_waiting(1);
        if is_stop {
            let disk = rig.disk.clone();
            let stopping = std::thread::spawn(move || rig.stop());
            disk.gate.open();
            assert_eq!(client.answer(0).cookie, 5);
            assert!(client.is_closed());
            stopping.join().unwrap();
            return;
        }
        let bytes = client.request(Command::Disc, 0, 6, (0, 0));
        client.send(&bytes);
        rig.disk.gate.open();
        assert_eq!(client.answer(0).cookie, 5);
        assert!(client.is_closed());
    }
}

#[test]
fn a_request_that_sleeps_in_the_engine_ends_without_another_one() {
    let rig = Rig::with(Memory::new(MIB), |config| {
        // Nothing else wakes the loops.
        config.stall_timeout = Duration::from_secs(100_000);
        config.busy_poll = Duration::ZERO;
    });
    let mut client = rig.client(Style::Simple);
    *rig.disk.delay.lock().unwrap() = Some(Duration::from_millis(20));
    for _ in 0..5 {
        assert_eq!(client.call(Command::Flush, 0, (0, 0)), 0);
    }
    rig.stop();
}

#[test]
fn long_reads_of_many_clients_wait_for_memory_and_then_succeed() {
    // The door has memory for four of the longest requests, and keeps a quarter of it for the shares of addresses.
    let rig = Rig::with(Memory::new(32 * MIB), |config| config.memory = 0);
    let data = pattern(3, 32 << 20);
    rig.disk.store(0, &data);
    let mut clients: Vec<_> = (0..8).map(|_| rig.client(Style::Structured)).collect();
    for client in &mut clients {
        let bytes = client.request(Command::Read, 0, 1, (0, 32 * MIB));
        client.send(&bytes);
    }
    std::thread::scope(|scope| {
        for client in &mut clients {
            let data = &data;
            scope.spawn(move || {
                let answer = client.answer(0);
                assert!(answer.error == 0 && answer.data == *data);
            });
        }
    });
    rig.stop();
}

#[test]
fn a_new_size_counts_at_once() {
    let rig = Rig::new(Memory::new(2 * MIB));
    rig.disk.size.store(MIB, SeqCst);
    let mut client = rig.client(Style::Simple);
    assert_eq!(client.write(0, MIB, b"data"), ErrorCode::NoSpc as u32);
    rig.disk.size.store(2 * MIB, SeqCst);
    assert_eq!(client.write(0, MIB, b"data"), 0);
    rig.stop();
}

/// Asserts that another client is served.
fn serves(rig: &Rig) {
    let mut client = rig.client(Style::Structured);
    assert_eq!(client.write(0, 512, b"others"), 0);
    assert_eq!(client.read(512, 6), b"others");
}

#[test]
fn a_client_that_lies_harms_only_itself() {
    let rig = Rig::new(Memory::new(64 * MIB));
    // Before transmission: unknown flags, no option, an option that is too long.
    let mut flags = rig.connect();
    flags.write_all(&u32::MAX.to_be_bytes()).unwrap();
    let mut option = rig.negotiating();
    option.send(&[0x55; OPTION_HEADER]);
    assert!(option.is_closed());
    let mut long = rig.negotiating();
    let mut header = Vec::new();
    OptionHeader { option: 99, length: u32::MAX }.encode(&mut header);
    long.send(&header);
    assert!(long.is_closed());
    // An unknown option is refused, and the negotiation goes on.
    let mut unknown = rig.negotiating();
    assert_eq!(unknown.option(99, &[1; 5000]), RefusalId::Unsup as u32);
    unknown.go(Style::Simple);
    for style in STYLES {
        let mut magic = rig.client(style);
        magic.send(&[0x55; EXTENDED_REQUEST]);
        assert!(magic.is_closed());
        let mut huge = rig.client(style);
        let bytes = huge.request(Command::Write, 0, 1, (0, u64::from(u32::MAX)));
        huge.send(&bytes);
        assert!(huge.is_closed(), "a payload beyond 32 MiB ends the connection");
        let mut wrong = rig.client(style);
        assert_eq!(wrong.call(Command::Read, 0, (0, u64::from(u32::MAX))), ErrorCode::Inval as u32);
        assert_eq!(wrong.call(Command::Read, 1 << 12, (0, 512)), ErrorCode::Inval as u32);
        assert_eq!(wrong.call(Command::BlockStatus, 0, (0, 512)), ErrorCode::Inval as u32);
        let mut bytes = wrong.request(Command::Trim, 0, 9, (0, 512));
        bytes[7] = 200;
        wrong.send(&bytes);
        assert_eq!(wrong.answer(0).error, ErrorCode::Inval as u32, "an unknown command");
        assert_eq!(wrong.read(0, 4).len(), 4);
    }
    serves(&rig);
    rig.stop();
}

#[test]
fn half_a_request_and_half_a_negotiation_end_after_the_stall_timeout() {
    let rig = Rig::with(Memory::new(MIB), |config| config.stall_timeout = Duration::from_millis(300));
    let mut half = rig.client(Style::Simple);
    let bytes = half.request(Command::Write, 0, 1, (0, 4096));
    half.send(&[&bytes[..], &[1; 100]].concat());
    let mut silent = rig.negotiating();
    // A silent client that uses a volume stays.
    let mut patient = rig.client(Style::Simple);
    assert!(half.is_closed() && silent.is_closed());
    assert_eq!(patient.read(0, 4), [0; 4]);
    let stats = rig.door().counters().read();
    assert_eq!(stats.closed_for(CloseReason::StalledInput), 1);
    assert_eq!(stats.closed_for(CloseReason::Idle), 1);
    rig.stop();
}

#[test]
fn a_client_that_reads_no_replies_is_not_read_and_then_closed() {
    let memory = 8 * MIB as usize;
    let rig = Rig::with(Memory::new(64 * MIB), |config| {
        config.conn_memory = memory;
        config.stall_timeout = Duration::from_secs(1);
    });
    for is_slow in [false, true] {
        rig.disk.is_slow.store(is_slow, SeqCst);
        let mut greedy = rig.client(Style::Structured);
        let bytes = greedy.request(Command::Read, 0, 1, (0, MIB)).repeat(4000);
        greedy.stream.set_write_timeout(Some(Duration::from_secs(60))).unwrap();
        // The server stops reading, so the write ends when the server closes the connection.
        let _ = greedy.stream.write_all(&bytes);
        serves(&rig);
        let used = rig.door().counters().read().memory;
        assert!(used < 4 * memory as u64, "{used} bytes");
        let stalled = || rig.door().counters().read().closed_for(CloseReason::StalledOutput);
        while stalled() < 1 + u64::from(is_slow) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    rig.stop();
}

/// A request of 28 bytes may need 1 MiB of memory, and a WRITE past the log its payload twice. That counts as the
/// connection's.
#[test]
fn requests_count_the_memory_that_they_need() {
    const SENT: usize = 200;
    let memory = 8 * MIB;
    let rig = Rig::with(Memory::new(64 * MIB), |config| config.conn_memory = memory as usize);
    for (command, len, most) in [
        (Command::Cache, 64 * MIB, 8),
        (Command::Cache, MIB / 4, 32),
        (Command::WriteZeroes, MIB / 4, 32),
        (Command::BlockStatus, 64 * MIB, 11),
        (Command::Write, MIB, 4),
    ] {
        rig.disk.gate.close();
        let pauses = || rig.door().counters().read().pauses;
        let before = pauses();
        let mut greedy = rig.negotiating();
        greedy.select_contexts();
        let mut bytes = greedy.request(command, 0, 1, (0, len));
        if command == Command::Write {
            bytes.resize(bytes.len() + len as usize, 7);
        }
        let mut socket = greedy.stream.try_clone().unwrap();
        // The server stops reading, so the send of payloads ends with the connection.
        let sending = std::thread::spawn(move || socket.write_all(&bytes.repeat(SENT)));
        until(|| pauses() > before || rig.disk.gate.waiting() == SENT);
        assert_eq!(rig.disk.gate.waiting(), most, "{command:?} of {len} bytes at once");
        let used = rig.door().counters().read().memory;
        assert!(used >= memory, "{command:?} of {len} bytes: {used} bytes are counted");
        greedy.stream.shutdown(Shutdown::Both).unwrap();
        let _ = sending.join().unwrap();
        rig.disk.gate.open();
        until(|| rig.door().counters().read().memory == 0);
    }
    rig.stop();
}

#[test]
fn connections_in_use_are_not_closed_for_new_ones() {
    let rig = Rig::with(Memory::new(MIB), |config| config.max_connections = 3);
    let mut clients: Vec<_> = (0..3).map(|_| rig.client(Style::Simple)).collect();
    let mut fourth = Client { stream: rig.connect(), style: Style::Simple };
    assert!(fourth.is_closed());
    clients.iter_mut().for_each(|client| assert_eq!(client.read(0, 1), [0]));
    rig.stop();
}

#[test]
fn sockets_are_private_to_the_group_and_taken_over_only_from_the_dead() {
    use std::os::unix::fs::PermissionsExt;
    let rig = Rig::new(Memory::new(MIB));
    let socket = rig.socket();
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o660);
    let config = |path: &std::path::Path| Config { sockets: vec![path.to_owned()], ..Config::default() };
    let set = || common::memory::Set::one(&rig.disk);
    assert!(
        matches!(Door::start(&config(&socket), set(), Box::new(|_, _| {})), Err(Error::Start(_))),
        "in use"
    );
    let file = rig.dir.path().join("file");
    std::fs::write(&file, "a file").unwrap();
    assert!(matches!(Door::start(&config(&file), set(), Box::new(|_, _| {})), Err(Error::Start(_))));
    assert_eq!(std::fs::read(&file).unwrap(), b"a file");
    let left = rig.dir.path().join("left");
    drop(std::os::unix::net::UnixListener::bind(&left).unwrap());
    let door = Door::start(&config(&left), set(), Box::new(|_, _| {})).unwrap();
    door.stop(Duration::ZERO);
    assert!(!left.exists());
    rig.stop();
    assert!(!socket.exists());
}

#[test]
fn plain_tcp_beyond_loopback_is_refused_unless_asked_for() {
    let config = |address: &str, insecure| Config {
        listen: vec![address.parse().unwrap()],
        insecure,
        ..Config::default()
    };
    assert!(matches!(config("0.0.0.0:0", false).check(), Err(Error::Insecure(_))));
    assert!(matches!(config("[::]:0", false).check(), Err(Error::Insecure(_))));
    for (address, insecure) in [("0.0.0.0:0", true), ("127.0.0.1:0", false), ("[::1]:0", false)] {
        config(address, insecure).check().unwrap();
    }
    let named = Config { client_certificate: true, ..Config::default() };
    assert!(matches!(named.check(), Err(Error::NoTls)));
    let tls = Some(Arc::new(forebay_tls::Keyring::new(None)));
    let either = Config { client_certificate: true, insecure: true, tls, ..Config::default() };
    assert!(
        matches!(either.check(), Err(Error::Anonymous)),
        "a client without TLS would need no certificate"
    );
}
