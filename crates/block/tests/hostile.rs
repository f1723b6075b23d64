//! Clients that take more than their part: connections, memory, and the time of devices.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic in a test is the assertion")]

mod common;

use std::net::{IpAddr, Shutdown};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::memory::{Memory, Set};
use common::*;
use forebay_block::{Config, Door, Refusal};
use forebay_wire::nbd::*;

const MIB: u64 = 1 << 20;
const STYLES: [Style; 3] = [Style::Simple, Style::Structured, Style::Extended];
const BUSY: [u8; 4] = [127, 0, 0, 2];

type Told = Arc<Mutex<Vec<(Refusal, Option<IpAddr>)>>>;

/// Returns a door with 128 places, and what it tells of refused clients.
fn small_house() -> (Rig, Told) {
    let told = Told::default();
    let tell = told.clone();
    let few = |config: &mut Config| config.max_connections = 128;
    let tell = Box::new(move |why, address| tell.lock().unwrap().push((why, address)));
    (Rig::telling(Memory::new(64 * MIB), few, tell), told)
}

#[test]
fn an_address_leaves_places_to_others_and_every_refusal_is_told_once() {
    let (rig, told) = small_house();
    let [mut busy, mut other] = [BUSY, [127, 0, 0, 1]].map(|from| {
        let clients: Vec<_> = std::iter::from_fn(|| rig.client_from(from)).take(128).collect();
        clients
    });
    assert_eq!((busy.len(), other.len()), (96, 32));
    assert!((0..9).all(|_| rig.client_from(BUSY).is_none() && Client::try_begin(rig.connect()).is_none()));
    busy.iter_mut().chain(&mut other).for_each(|client| assert_eq!(client.read(0, 1), [0]));
    let address = |from: [u8; 4]| Some(IpAddr::from(from));
    let expected =
        [(Refusal::Crowded, address(BUSY)), (Refusal::Full, address([127, 0, 0, 1])), (Refusal::Full, None)];
    assert_eq!(*told.lock().unwrap(), expected);
    rig.stop();
}

/// Every user of the host reaches the loopback address. Only the group of the server reaches the Unix socket.
#[test]
fn clients_of_the_loopback_address_take_no_places_from_those_of_the_unix_socket() {
    let (rig, told) = small_house();
    let busy: Vec<_> = std::iter::from_fn(|| rig.client_from([127, 0, 0, 1])).take(128).collect();
    assert_eq!(busy.len(), 96);
    assert_eq!(rig.client(Style::Simple).read(0, 1), [0]);
    assert_eq!(*told.lock().unwrap(), [(Refusal::Crowded, Some(IpAddr::from([127, 0, 0, 1])))]);
    rig.stop();
}

/// Another server has bound the path since.
#[test]
fn a_door_that_closes_leaves_the_socket_of_another_one() {
    let rig = Rig::new(Memory::new(MIB));
    let path = rig.socket();
    std::fs::remove_file(&path).unwrap();
    let config = Config { sockets: vec![path.clone()], ..Config::default() };
    let other = Door::start(&config, Set::one(&Memory::new(MIB)), Box::new(|_, _| {})).unwrap();
    let Rig { door, dir, .. } = rig;
    door.unwrap().stop(Duration::from_secs(30));
    drop(Client::begin(UnixStream::connect(&path).unwrap()));
    other.stop(Duration::from_secs(30));
    assert!(!path.exists());
    drop(dir);
}

/// A request goes on when its connection ends, and needs its memory until then.
#[test]
fn clients_that_connect_again_and_again_have_no_more_requests_in_flight_than_places() {
    let (rig, told) = small_house();
    rig.disk.gate.close();
    for count in 0..96 {
        let mut client = rig.client_from(BUSY).unwrap();
        let bytes = client.request(Command::Write, 0, 1, (0, 4));
        client.send(&[&bytes[..], b"data"].concat());
        until(|| rig.disk.gate.waiting() == count + 1);
        client.reset();
    }
    until(|| rig.door().counters().read().connections == 0);
    assert!(rig.client_from(BUSY).is_none());
    assert_eq!(*told.lock().unwrap(), [(Refusal::Crowded, Some(IpAddr::from(BUSY)))]);
    rig.disk.gate.open();
    until(|| rig.door().counters().read().memory == 0);
    until(|| rig.client_from(BUSY).is_some());
    rig.stop();
}

#[test]
fn requests_of_ended_connections_take_no_more_memory_than_allowed() {
    // The door has memory for four of the longest requests.
    let rig = Rig::with(Memory::new(64 * MIB), |config| config.memory = 0);
    for command in [Command::Cache, Command::BlockStatus, Command::Read] {
        rig.disk.is_slow.store(true, SeqCst);
        rig.disk.gate.close();
        for _ in 0..300 {
            let mut client = rig.negotiating();
            client.select_contexts();
            let bytes = client.request(command, 0, 1, (0, 16 * MIB));
            client.send(&bytes);
            // An answer says that the requests before it were taken.
            assert_ne!(client.call(Command::Read, 0, (u64::MAX, 1)), 0);
            client.reset();
        }
        let used = rig.door().counters().read().memory;
        assert!(used <= 130 * MIB, "{command:?}: {used} bytes");
        rig.disk.gate.open();
        until(|| rig.door().counters().read().memory == 0);
    }
    rig.stop();
}

#[test]
fn a_long_request_ends_with_its_connection() {
    // A disk of this size takes no memory: nothing of it is read or written.
    let rig = Rig::new(Memory::new(MIB));
    rig.disk.size.store(1 << 50, SeqCst);
    rig.disk.gate.close();
    let mut client = rig.client(Style::Extended);
    let bytes = client.request(Command::Cache, 0, 1, (0, 1 << 50));
    client.send(&bytes);
    rig.disk.gate.await_waiting(1);
    client.reset();
    until(|| rig.door().counters().read().connections == 0);
    rig.disk.gate.open();
    until(|| rig.door().counters().read().memory == 0);
    assert_eq!(rig.disk.prefetched.load(SeqCst), 1);
    rig.stop();
}

#[test]
fn a_client_that_sends_no_more_gets_its_answers() {
    let rig = Rig::new(Memory::new(MIB));
    let ended = |mut client: Client| {
        client.stream.shutdown(Shutdown::Write).unwrap();
        client.is_closed()
    };
    assert!(ended(Client { stream: rig.connect(), style: Style::Simple }), "before its flags");
    let mut client = rig.negotiating();
    assert_eq!(client.option(OptionId::List as u32, &[]), reply_type::ACK);
    client.send(&[0x49; 5]);
    assert!(ended(client), "in an option");
    let mut client = rig.client(Style::Simple);
    let bytes = client.request(Command::Write, 0, 1, (0, 4096));
    client.send(&[&bytes[..], &[1; 4095]].concat());
    assert!(ended(client), "in a payload");
    for is_slow in [false, true] {
        rig.disk.is_slow.store(is_slow, SeqCst);
        let mut client = rig.client(Style::Simple);
        let bytes = client.request(Command::Read, 0, 1, (0, 4096)).repeat(100);
        client.send(&bytes);
        client.stream.shutdown(Shutdown::Write).unwrap();
        (0..100).for_each(|_| assert_eq!(client.answer(4096).data, [0; 4096]));
        assert!(client.is_closed());
    }
    until(|| rig.door().counters().read().connections == 0);
    rig.stop();
}

#[test]
fn replies_keep_one_form_after_options_that_come_twice_or_too_late() {
    let rig = Rig::new(Memory::new(MIB));
    let mut client = rig.negotiating();
    let mut contexts = Vec::new();
    MetaRequest::encode("disk", &[BASE_ALLOCATION], &mut contexts);
    let (structured, extended) = (OptionId::StructuredReply as u32, OptionId::ExtendedHeaders as u32);
    for (option, data, reply) in [
        (structured, &[][..], reply_type::ACK),
        (structured, &[], reply_type::ACK),
        (OptionId::SetMetaContext as u32, &contexts, reply_type::ACK),
        (extended, &[], reply_type::ACK),
        (extended, &[], reply_type::ACK),
        (structured, &[], RefusalId::ExtHeaderReqd as u32),
    ] {
        assert_eq!(client.option(option, data), reply, "{option}");
    }
    client.go(Style::Extended);
    assert_eq!(client.read(0, 512), [0; 512]);
    let mut bytes = Vec::new();
    OptionHeader { option: extended, length: 0 }.encode(&mut bytes);
    bytes.resize(EXTENDED_REQUEST, 0);
    client.send(&bytes);
    assert!(client.is_closed(), "an option is no request");
    rig.stop();
}

#[test]
fn ten_thousand_requests_are_sent_at_once_and_each_gets_one_answer() {
    const COUNT: u64 = 10_000;
    let rig = Rig::new(Memory::new(64 * MIB));
    for style in STYLES {
        rig.disk.gate.close();
        let mut client = rig.client(style);
        let mut writer = Client { stream: client.stream.try_clone().unwrap(), style };
        let sending = std::thread::spawn(move || {
            for n in 0..COUNT {
                let bytes = writer.request(Command::Write, 0, n, (n * 4096, 4096));
                writer.send(&[bytes, n.to_be_bytes().repeat(512)].concat());
            }
        });
        until(|| rig.disk.gate.waiting() == Config::default().max_inflight);
        rig.disk.gate.open();
        let mut cookies: Vec<_> =
            (0..COUNT).map(|_| client.answer(0)).map(|it| (it.cookie, it.error)).collect();
        cookies.sort_unstable();
        assert!(cookies.into_iter().eq((0..COUNT).map(|n| (n, 0))));
        sending.join().unwrap();
        for n in [0, COUNT - 1] {
            assert!(client.read(n * 4096, 4096) == n.to_be_bytes().repeat(512));
        }
    }
    rig.stop();
}

#[test]
fn ranges_that_overflow_or_pass_the_end_change_nothing() {
    use Command::{BlockStatus, Cache, Flush, Read, Trim, WriteZeroes};
    let rig = Rig::new(Memory::new(MIB));
    rig.disk.store(0, &[7; MIB as usize]);
    for style in STYLES {
        let mut client = rig.client(style);
        let most = if style == Style::Extended { u64::MAX } else { u64::from(u32::MAX) };
        for command in [Read, Trim, WriteZeroes, Cache, BlockStatus, Flush] {
            for range in [
                (u64::MAX, 1),
                (u64::MAX, most),
                (u64::MAX - 4095, 4096),
                (0, most),
                (MIB - 1, 2),
                (0, MIB + 1),
                (MIB, 1),
                (MIB, 0),
            ] {
                assert_ne!(client.call(command, 0, range), 0, "{style:?} {command:?} {range:?}");
            }
        }
        for offset in [u64::MAX, u64::MAX - 3, MIB, MIB - 3] {
            assert_ne!(client.write(0, offset, b"data"), 0);
        }
        assert!(client.read(0, MIB as usize) == [7; MIB as usize]);
    }
    rig.stop();
}
