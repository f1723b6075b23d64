//! Cache devices and backing devices on NBD exports: of nbdkit, of qemu-nbd, and of a server whose faults
//! a test chooses.

#![allow(clippy::unwrap_used)]

mod nbd_server;

use std::sync::Arc;
use std::sync::mpsc::channel;

use forebay_common::nbd_url::NbdUrl;
use forebay_disk::{CacheDevice, KnownExport, LinkError, NbdDevice, NbdLink, OpenError};
use forebay_engine::buffer::{BLOCK, Buffer, Slice};
use forebay_engine::io::{Device, DeviceError, Durability};
use forebay_runtime::block_on;
use forebay_wire::nbd::{
    REPLY_DONE, Request, Style, chunk_type, command_flags, encode_data_head, encode_done, transmission,
};
use nbd_server::{Act, FLAGS, Fake, Real};

const SIZE: usize = 64 << 20;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const FUA: u16 = command_flags::FUA;

fn url(text: &str) -> NbdUrl {
    NbdUrl::parse(text).unwrap()
}

fn open(text: &str) -> NbdDevice {
    NbdDevice::open(&url(text)).unwrap()
}

fn refusal(text: &str) -> String {
    match CacheDevice::open_or_create(text.as_ref(), 0) {
        Ok(_) => panic!("{text} is taken"),
        Err(error) => {
            assert!(matches!(error, OpenError::Server { .. } | OpenError::TooSmall { .. }), "{error:?}");
            error.to_string()
        }
    }
}

fn data(blocks: usize, byte: u8) -> Slice {
    Buffer::from_bytes(&vec![byte; blocks * BLOCK]).into()
}

fn at(block: usize) -> u64 {
    (block * BLOCK) as u64
}

fn read(device: &NbdDevice, block: usize, blocks: usize) -> Result<Vec<u8>, DeviceError> {
    let (buffer, result) = block_on(device.read(at(block), Buffer::zeroed(blocks)));
    result.map(|()| buffer.to_vec())
}

fn write(device: &NbdDevice, block: usize, data: Slice, durability: Durability) -> Result<(), DeviceError> {
    block_on(device.write(at(block), data, durability))
}

/// Uses every operation, with many requests in flight, and requests longer than a server takes at once.
fn exercise(text: &str) {
    let device = open(text);
    assert_eq!((device.name(), device.size()), (text, SIZE as u64));
    let writes: Vec<_> = (0..256)
        .map(|n| {
            let durability = if n % 3 == 0 { Durability::Now } else { Durability::Later };
            device.write(at(2 * n), data(1, n as u8), durability)
        })
        .collect();
    block_on(async {
        for write in writes {
            write.await.unwrap();
        }
        device.flush().await.unwrap();
    });
    let long = (40 << 20) / BLOCK;
    let bytes: Vec<_> = (0..long * BLOCK).map(|at| (at / 777) as u8).collect();
    let start = SIZE / BLOCK - long;
    write(&device, start, Buffer::from_bytes(&bytes).into(), Durability::Now).unwrap();
    assert!(read(&device, start, long).unwrap() == bytes, "a long read brings other bytes");
    let reads: Vec<_> = (0..256).map(|n| device.read(at(2 * n), Buffer::zeroed(1))).collect();
    block_on(async {
        for (n, read) in reads.into_iter().enumerate() {
            let (buffer, result) = read.await;
            assert!(result.is_ok() && buffer.iter().all(|byte| *byte == n as u8), "block {n}");
        }
    });
    block_on(device.discard(at(0), at(1024))).unwrap();
    assert_eq!(read(&device, 1024, 1).map(|bytes| bytes.len()), Ok(BLOCK));
    write(&device, 0, data(2, 9), Durability::Now).unwrap();
    assert_eq!(read(&device, 0, 2).unwrap(), vec![9; 2 * BLOCK]);
    // Outside of the device, and parts of blocks.
    assert_eq!(read(&device, SIZE / BLOCK, 1), Err(DeviceError::Io));
    assert_eq!(block_on(device.write(1, data(1, 1), Durability::Later)), Err(DeviceError::Io));
    assert_eq!(read(&device, 0, 0), Ok(Vec::new()));
    drop(device);
    assert_eq!(read(&open(text), 0, 1).unwrap(), vec![9; BLOCK], "a later connection");
}

#[test]
fn exports_of_nbdkit_are_devices() {
    exercise(&Real::nbdkit(&["memory", "64M"]).url());
    // Simple replies only.
    exercise(&Real::nbdkit(&["--no-sr", "memory", "64M"]).url());
    let limits = ["blocksize-minimum=4096", "blocksize-preferred=4096", "blocksize-maximum=65536"];
    let policy = ["--filter=blocksize-policy", "memory", "64M", "blocksize-error-policy=error"];
    exercise(&Real::nbdkit(&[&policy[..], &limits].concat()).url());
}

#[test]
fn exports_of_qemu_are_devices() {
    let home = tempfile::tempdir_in(".").unwrap();
    let image = home.path().join("image");
    std::fs::File::create(&image).unwrap().set_len(SIZE as u64).unwrap();
    exercise(&Real::qemu(&[], &image).url());
}

#[test]
fn an_export_that_cannot_keep_data_is_refused() {
    let told = refusal(&Real::nbdkit(&["-r", "memory", "64M"]).url());
    assert!(told.contains("read-only"), "{told}");
    let told = refusal(&Real::nbdkit(&["memory", "8M"]).url());
    assert!(told.contains("too few"), "{told}");
    let fake = Fake::start(SIZE, transmission::HAS_FLAGS, Style::Simple, |_, _| Act::Serve);
    let told = refusal(&fake.url());
    assert!(told.contains("no FLUSH"), "{told}");
    let large =
        ["--filter=blocksize-policy", "memory", "64M", "blocksize-minimum=8192", "blocksize-preferred=8192"];
    let told = refusal(&Real::nbdkit(&large).url());
    assert!(told.contains("larger than 4096"), "{told}");
    let told = refusal(&Real::nbdkit(&["--tls=require", "--tls-psk=/dev/null", "memory", "64M"]).url());
    assert!(told.contains("TLS"), "{told}");
    let told = refusal("nbd+unix:///x?socket=/no/such/socket");
    assert!(told.contains("cannot be reached"), "{told}");
    let told = refusal("nbd://");
    assert!(told.contains("write nbd://HOST"), "{told}");
}

#[test]
fn an_error_of_the_server_fails_the_request_alone() {
    let server =
        Real::nbdkit(&["--filter=error", "memory", "64M", "error-pread=EIO", "error-pread-rate=100%"]);
    let device = open(&server.url());
    assert_eq!(read(&device, 0, 1), Err(DeviceError::Io));
    write(&device, 0, data(1, 1), Durability::Now).unwrap();
    assert_eq!(read(&device, 0, 1), Err(DeviceError::Io));
}

#[test]
fn a_server_that_dies_takes_everything_in_flight_with_it() {
    let mut server = Real::nbdkit(&["--filter=delay", "memory", "64M", "rdelay=60", "wdelay=60"]);
    let device = open(&server.url());
    let reads: Vec<_> = (0..10).map(|n| device.read(at(n), Buffer::zeroed(1))).collect();
    // Enough that the socket takes no more.
    let writes: Vec<_> =
        (0..64).map(|n| device.write(at(256 * n), data(256, 1), Durability::Later)).collect();
    server.kill();
    block_on(async {
        for read in reads {
            assert_eq!(read.await.1, Err(DeviceError::Gone));
        }
        for write in writes {
            assert_eq!(write.await, Err(DeviceError::Gone));
        }
    });
    assert_eq!(read(&device, 0, 1), Err(DeviceError::Gone));
    assert_eq!(write(&device, 0, data(1, 1), Durability::Now), Err(DeviceError::Gone));
    assert_eq!(block_on(device.flush()), Err(DeviceError::Gone));
}

#[test]
fn a_device_that_is_dropped_ends_its_requests() {
    let (sent, arrived) = channel();
    let sent = std::sync::Mutex::new(sent);
    let fake = Fake::start(SIZE, FLAGS, Style::Simple, move |_, _| {
        let _ = sent.lock().unwrap().send(());
        Act::Keep
    });
    let device = open(&fake.url());
    let read = device.read(0, Buffer::zeroed(1));
    arrived.recv().unwrap();
    drop(device);
    assert_eq!(block_on(read).1, Err(DeviceError::Gone));
}

#[test]
fn writes_are_durable_by_fua_and_flush_where_they_must_be() {
    for flags in [FLAGS, FLAGS & !transmission::SEND_FUA] {
        let fake = Fake::start(SIZE, flags, Style::Simple, |_, _| Act::Serve);
        let device = open(&fake.url());
        write(&device, 0, data(1, 1), Durability::Later).unwrap();
        assert_eq!(fake.durable.lock().unwrap()[0], 0);
        write(&device, 1, data(1, 2), Durability::Now).unwrap();
        let durable = |block: usize| fake.durable.lock().unwrap()[block * BLOCK];
        assert_eq!([durable(0), durable(1)], [1, 2], "the earlier write as well");
        write(&device, 2, data(1, 3), Durability::Now).unwrap();
        assert_eq!(durable(2), 3);
        write(&device, 3, data(1, 4), Durability::Later).unwrap();
        block_on(device.flush()).unwrap();
        assert_eq!(durable(3), 4);
        let has_fua = flags & transmission::SEND_FUA != 0;
        let expected = match has_fua {
            true => vec![(WRITE, 0), (WRITE, FUA), (FLUSH, 0), (WRITE, FUA), (WRITE, 0), (FLUSH, 0)],
            false => vec![(WRITE, 0), (WRITE, 0), (FLUSH, 0), (WRITE, 0), (FLUSH, 0), (WRITE, 0), (FLUSH, 0)],
        };
        assert_eq!(fake.commands(), expected);
    }
}

#[test]
fn a_flush_that_failed_is_not_made_good_by_another() {
    let fake = Fake::start(SIZE, FLAGS, Style::Simple, |_, request| {
        let mut refused = 0x6744_6698_u32.to_be_bytes().to_vec();
        refused.extend(5_u32.to_be_bytes());
        refused.extend(request.cookie.to_be_bytes());
        if request.command == FLUSH { Act::Send(refused) } else { Act::Serve }
    });
    let device = open(&fake.url());
    write(&device, 0, data(1, 1), Durability::Later).unwrap();
    assert_eq!(block_on(device.flush()), Err(DeviceError::Io));
    assert_eq!(block_on(device.flush()), Err(DeviceError::Io));
    assert_eq!(write(&device, 0, data(1, 1), Durability::Now), Err(DeviceError::Io));
    assert_eq!(fake.commands(), [(WRITE, 0), (FLUSH, 0)]);
}

#[test]
fn a_discard_is_sent_if_the_server_has_it() {
    for (flags, expected) in [(FLAGS, vec![]), (FLAGS | transmission::SEND_TRIM, vec![(TRIM, 0)])] {
        let fake = Fake::start(SIZE, flags, Style::Simple, |_, _| Act::Serve);
        block_on(open(&fake.url()).discard(0, at(3))).unwrap();
        assert_eq!(fake.commands(), expected);
    }
}

/// Returns a chunk of a structured reply.
fn chunk(flags: u16, kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = 0x668e_33ef_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn data_chunk(flags: u16, cookie: u64, offset: u64, len: usize) -> Vec<u8> {
    let payload = [&offset.to_be_bytes()[..], &vec![7; len]].concat();
    chunk(flags, chunk_type::OFFSET_DATA, cookie, &payload)
}

fn hole_chunk(flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let payload = [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat();
    chunk(flags, chunk_type::OFFSET_HOLE, cookie, &payload)
}

/// Reads the second block alone from a server that sends `answer`.
fn read_from(style: Style, answer: fn(&Request) -> Vec<u8>) -> Result<Vec<u8>, DeviceError> {
    let fake = Fake::start(SIZE, FLAGS, style, move |_, request| match request.command {
        READ => Act::Send(answer(request)),
        _ => Act::Serve,
    });
    let device = open(&fake.url());
    let result = read(&device, 1, 1);
    let later = block_on(device.flush());
    assert_eq!(later.is_ok(), result.is_ok(), "the connection lives if the reply is right");
    result
}

#[test]
fn a_reply_in_pieces_is_put_together() {
    let pieces: fn(&Request) -> Vec<u8> = |request| {
        let (cookie, half) = (request.cookie, BLOCK / 2);
        [
            hole_chunk(0, cookie, at(1) + half as u64, half as u32),
            data_chunk(0, cookie, at(1), half),
            chunk(REPLY_DONE, chunk_type::NONE, cookie, &[]),
        ]
        .concat()
    };
    let read = read_from(Style::Structured, pieces).unwrap();
    assert!(read[..BLOCK / 2] == vec![7; BLOCK / 2] && read[BLOCK / 2..] == vec![0; BLOCK / 2]);
}

#[test]
fn a_server_that_breaks_the_protocol_fails_its_own_device_only() {
    type Answer = fn(&Request) -> Vec<u8>;
    let structured: [(&str, Answer); 13] = [
        ("no data", |it| chunk(REPLY_DONE, chunk_type::NONE, it.cookie, &[])),
        ("half of the data", |it| data_chunk(REPLY_DONE, it.cookie, at(1), BLOCK / 2)),
        ("too much data", |it| data_chunk(REPLY_DONE, it.cookie, at(1), BLOCK + 1)),
        ("data before the range", |it| data_chunk(REPLY_DONE, it.cookie, at(1) - 1, BLOCK)),
        ("data behind the range", |it| data_chunk(REPLY_DONE, it.cookie, at(1) + 1, BLOCK)),
        ("an offset beyond all numbers", |it| hole_chunk(REPLY_DONE, it.cookie, u64::MAX, 4096)),
        ("data twice", |it| {
            [data_chunk(0, it.cookie, at(1), BLOCK), data_chunk(REPLY_DONE, it.cookie, at(1), BLOCK)].concat()
        }),
        ("another request's reply", |it| data_chunk(REPLY_DONE, it.cookie + 7, at(1), BLOCK)),
        ("a simple reply", |it| {
            let mut bytes = Vec::new();
            encode_data_head(Style::Simple, (it.cookie, it.offset), it.length, &mut bytes);
            [bytes, vec![7; BLOCK]].concat()
        }),
        ("an extended reply", |it| {
            let mut bytes = Vec::new();
            encode_done(Style::Extended, it.cookie, it.offset, &mut bytes);
            bytes
        }),
        ("an endless error", |it| chunk(REPLY_DONE, chunk_type::ERROR, it.cookie, &vec![0; 1 << 20])),
        ("a status", |it| chunk(REPLY_DONE, chunk_type::BLOCK_STATUS, it.cookie, &[0; 12])),
        ("no reply at all", |_| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
    ];
    for (what, answer) in structured {
        assert_eq!(read_from(Style::Structured, answer), Err(DeviceError::Gone), "{what}");
    }
    let simple: [(&str, Answer); 2] = [
        ("a chunk", |it| data_chunk(REPLY_DONE, it.cookie, at(1), BLOCK)),
        ("a number that no request has", |it| {
            let mut bytes = Vec::new();
            encode_done(Style::Simple, it.cookie + 1, 0, &mut bytes);
            bytes
        }),
    ];
    for (what, answer) in simple {
        assert_eq!(read_from(Style::Simple, answer), Err(DeviceError::Gone), "{what}");
    }
}

fn link(fake: &Fake) -> NbdLink {
    NbdLink::open(&url(&fake.url()), false, None, |_| {}).unwrap()
}

fn contents(link: &NbdLink, block: usize) -> u8 {
    let (buffer, result) = block_on(link.read(at(block), Buffer::zeroed(1), BLOCK));
    result.unwrap();
    buffer[0]
}

#[test]
fn a_lost_connection_fails_the_next_sync_once() {
    let fake = Fake::start(SIZE, FLAGS, Style::Simple, |connection, request| {
        match (connection, request.command, request.offset) {
            (1, READ, 4096) => Act::End,
            _ => Act::Serve,
        }
    });
    let link = link(&fake);
    block_on(link.sync()).unwrap();
    block_on(link.write(0, data(1, 1))).unwrap();
    let before = link.losses();
    // The read ends the connection, and is answered on the next one.
    assert_eq!(contents(&link, 1), 0);
    assert_eq!((link.losses(), fake.connections()), (before + 1, 2));
    assert_eq!(contents(&link, 0), 0, "the server forgot what was not flushed");
    assert_eq!(block_on(link.sync()), Err(LinkError::Lost));
    block_on(link.write(0, data(1, 1))).unwrap();
    block_on(link.sync()).unwrap();
    assert_eq!(fake.durable.lock().unwrap()[0], 1);
    assert!(link.is_connected());
}

#[test]
fn a_change_in_flight_is_made_on_the_next_connection() {
    let fake = Fake::start(
        SIZE,
        FLAGS | transmission::SEND_WRITE_ZEROES,
        Style::Simple,
        |connection, request| match (connection, request.command) {
            (1, WRITE) => Act::End,
            _ => Act::Serve,
        },
    );
    let link = link(&fake);
    block_on(link.write(0, data(3, 5))).unwrap();
    let log = fake.log.lock().unwrap().clone();
    let flush = |connection| (connection, FLUSH, 0, 0, 0);
    assert_eq!(log, [flush(1), (1, WRITE, 0, 0, at(3)), flush(2), (2, WRITE, 0, 0, at(3))]);
    assert!(block_on(link.write_zeroes(at(1), at(1), true)).unwrap());
    block_on(link.discard(0, at(1))).unwrap();
    block_on(link.write(at(2), data(1, 6))).unwrap();
    // The lost connection had nothing that was not flushed.
    block_on(link.sync()).unwrap();
    assert_eq!([0, 1, 2].map(|block| contents(&link, block)), [5, 0, 6]);
    assert_eq!(fake.durable.lock().unwrap()[2 * BLOCK], 6);
}

#[test]
fn a_request_that_ends_every_connection_fails() {
    let fake = Fake::start(SIZE, FLAGS, Style::Simple, |_, request| match request.offset {
        4096 => Act::End,
        _ => Act::Serve,
    });
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let tell = told.clone();
    let link =
        NbdLink::open(&url(&fake.url()), false, None, move |there| tell.lock().unwrap().push(there)).unwrap();
    let (_, result) = block_on(link.read(at(1), Buffer::zeroed(1), BLOCK));
    assert_eq!(result, Err(LinkError::Lost));
    assert_eq!(contents(&link, 0), 0, "other requests go on");
    assert_eq!(told.lock().unwrap()[..2], [false, true]);
}

#[test]
fn another_export_in_place_of_a_backing_device_is_not_used() {
    let fake =
        Fake::start(SIZE, FLAGS, Style::Simple, |connection, request| match (connection, request.command) {
            (1, READ) => Act::End,
            _ => Act::Serve,
        });
    let link = link(&fake);
    fake.durable.lock().unwrap().truncate(SIZE / 2);
    let mut read = Box::pin(link.read(0, Buffer::zeroed(1), BLOCK));
    let ended = block_on(async {
        std::future::poll_fn(|context| match read.as_mut().poll(context) {
            std::task::Poll::Ready(_) => std::task::Poll::Ready(true),
            std::task::Poll::Pending if fake.connections() >= 2 => std::task::Poll::Ready(false),
            std::task::Poll::Pending => {
                context.waker().wake_by_ref();
                std::task::Poll::Pending
            }
        })
        .await
    });
    assert!(!ended && !link.is_connected());
    drop(read);
    assert!(fake.log.lock().unwrap().iter().all(|seen| seen.0 == 1), "nothing is sent to the other export");
}

#[test]
fn a_known_export_is_used_as_soon_as_its_server_is_there() {
    let known = KnownExport { size: SIZE as u64, unit: 512 };
    let home = tempfile::tempdir().unwrap();
    let text = format!("nbd+unix:///leg?socket={}", home.path().join("sock").display());
    let told = NbdLink::open(&url(&text), false, None, |_| {}).err().unwrap();
    assert!(told.contains("cannot be reached"), "{told}");
    let link = NbdLink::open(&url(&text), false, Some(known), |_| {}).unwrap();
    assert_eq!((link.size(), link.unit(), link.is_connected()), (SIZE as u64, 512, false));
    let server = Real::nbdkit_at(&home.path().join("sock"), &["memory", "64M"]);
    assert_eq!(contents(&link, 5), 0);
    assert!(link.is_connected());
    drop(server);
}
