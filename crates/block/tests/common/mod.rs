//! A door with a volume in memory, and a client of single messages.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic in a test is the assertion")]

pub(crate) mod memory;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{Config, Door, Tell};
use forebay_wire::nbd::*;
use memory::{Memory, Set};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use tempfile::TempDir;

/// A door with one volume, `disk`, on a Unix socket and a loopback port.
pub(crate) struct Rig {
    pub(crate) door: Option<Door>,
    pub(crate) disk: Arc<Memory>,
    pub(crate) dir: TempDir,
}

impl Rig {
    pub(crate) fn new(disk: Arc<Memory>) -> Self {
        Self::with(disk, |_| {})
    }

    pub(crate) fn with(disk: Arc<Memory>, change: impl FnOnce(&mut Config)) -> Self {
        Self::telling(disk, change, Box::new(|_, _| {}))
    }

    /// Returns a rig whose door tells of refused clients.
    pub(crate) fn telling(disk: Arc<Memory>, change: impl FnOnce(&mut Config), tell: Tell) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            sockets: vec![dir.path().join("nbd")],
            threads: 2,
            ..Config::default()
        };
        change(&mut config);
        let door = Door::start(&config, Set::one(&disk), tell).unwrap();
        Self { door: Some(door), disk, dir }
    }

    pub(crate) fn door(&self) -> &Door {
        self.door.as_ref().unwrap()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("nbd")
    }

    /// Returns the volume's address on the Unix socket.
    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.socket().display())
    }

    pub(crate) fn port(&self) -> u16 {
        self.door().local_addrs()[0].port()
    }

    pub(crate) fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.socket()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Returns a connection over TCP from a loopback address.
    pub(crate) fn connect_from(&self, from: [u8; 4]) -> UnixStream {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        bind(&socket, &SocketAddr::from((from, 0))).unwrap();
        connect(&socket, &self.door().local_addrs()[0]).unwrap();
        // The type for Unix sockets sends and receives on any stream.
        let stream = UnixStream::from(socket);
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Returns a client that may send requests.
    pub(crate) fn client(&self, style: Style) -> Client {
        let mut client = Client::begin(self.connect());
        client.go(style);
        client
    }

    /// Returns a client that may send requests, on TCP from a loopback address; `None` if it is refused.
    pub(crate) fn client_from(&self, from: [u8; 4]) -> Option<Client> {
        let mut client = Client::try_begin(self.connect_from(from))?;
        client.go(Style::Simple);
        Some(client)
    }

    /// Returns the connection after the client's flags.
    pub(crate) fn negotiating(&self) -> Client {
        Client::begin(self.connect())
    }

    pub(crate) fn stop(mut self) {
        self.door.take().unwrap().stop(Duration::from_secs(30));
    }
}

/// A client that sends single messages.
pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    pub(crate) style: Style,
}

/// The answer to one request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) cookie: u64,
    pub(crate) error: u32,
    pub(crate) data: Vec<u8>,
}

impl Client {
    pub(crate) fn begin(stream: UnixStream) -> Self {
        Self::try_begin(stream).unwrap()
    }

    /// Sends the client's flags. Returns `None` if the server closes the connection before that.
    pub(crate) fn try_begin(mut stream: UnixStream) -> Option<Self> {
        let mut greeting = [0; GREETING];
        stream.read_exact(&mut greeting).ok()?;
        assert_eq!(Greeting::decode(&greeting).unwrap().flags, 3);
        stream.write_all(&3u32.to_be_bytes()).unwrap();
        Some(Self { stream, style: Style::Simple })
    }

    pub(crate) fn go(&mut self, style: Style) {
        match style {
            Style::Simple => {}
            Style::Structured => assert_eq!(self.option(OptionId::StructuredReply as u32, &[]), 1),
            Style::Extended => assert_eq!(self.option(OptionId::ExtendedHeaders as u32, &[]), 1),
        }
        let mut data = Vec::new();
        InfoRequest { name: "disk", infos: InfoIds::new(&[]).unwrap() }.encode(&mut data);
        assert_eq!(self.option(OptionId::Go as u32, &data), reply_type::ACK);
        self.style = style;
    }

    /// Ends the negotiation with structured replies and all metadata contexts.
    pub(crate) fn select_contexts(&mut self) {
        assert_eq!(self.option(OptionId::StructuredReply as u32, &[]), reply_type::ACK);
        let mut data = Vec::new();
        MetaRequest::encode("disk", &[BASE_ALLOCATION, forebay_block::CACHE_CONTEXT], &mut data);
        assert_eq!(self.option(OptionId::SetMetaContext as u32, &data), reply_type::ACK);
        self.go(Style::Structured);
    }

    /// Sends an option, and returns the type of the last reply.
    pub(crate) fn option(&mut self, option: u32, data: &[u8]) -> u32 {
        let mut bytes = Vec::new();
        OptionHeader { option, length: data.len() as u32 }.encode(&mut bytes);
        bytes.extend_from_slice(data);
        self.stream.write_all(&bytes).unwrap();
        loop {
            let header = OptionReplyHeader::decode(&self.take(OPTION_REPLY_HEADER)).unwrap();
            let data = self.take(header.length as usize);
            OptionReply::decode(header, &data).unwrap();
            if header.is_last() {
                return header.kind;
            }
        }
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Returns the bytes of a request.
    pub(crate) fn request(&self, command: Command, flags: u16, cookie: u64, range: (u64, u64)) -> Vec<u8> {
        let is_extended = self.style.is_extended();
        let payload = is_extended && command == Command::Write;
        let flags = flags | if payload { command_flags::PAYLOAD_LEN } else { 0 };
        let mut bytes = Vec::new();
        Request { flags, command: command as u16, cookie, offset: range.0, length: range.1 }
            .encode(is_extended, &mut bytes);
        bytes
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Receives an answer; one to a READ of `len` bytes has data.
    pub(crate) fn answer(&mut self, len: usize) -> Answer {
        let magic = self.take(4);
        let size = ReplyHeader::size(*magic.first_chunk().unwrap()).expect("a reply");
        let header = [magic, self.take(size - 4)].concat();
        match ReplyHeader::decode(&header).unwrap() {
            ReplyHeader::Simple { error, cookie } => {
                let data = if error == 0 { self.take(len) } else { Vec::new() };
                Answer { cookie, error, data }
            }
            ReplyHeader::Chunk { is_last, kind, cookie, length } => {
                let payload = self.take(length as usize);
                assert!(is_last || kind == chunk_type::BLOCK_STATUS);
                match Chunk::decode(kind, &payload).unwrap() {
                    Chunk::None => Answer { cookie, error: 0, data: Vec::new() },
                    Chunk::Data { data, .. } => Answer { cookie, error: 0, data: data.to_vec() },
                    Chunk::Error { error, .. } => Answer { cookie, error, data: Vec::new() },
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    /// Sends a request without data, and returns its error.
    pub(crate) fn call(&mut self, command: Command, flags: u16, range: (u64, u64)) -> u32 {
        let bytes = self.request(command, flags, 9, range);
        self.send(&bytes);
        let answer = self.answer(0);
        assert_eq!(answer.cookie, 9);
        answer.error
    }

    pub(crate) fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let bytes = [&self.request(Command::Write, flags, 9, (offset, data.len() as u64)), data].concat();
        self.send(&bytes);
        self.answer(0).error
    }

    pub(crate) fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let bytes = self.request(Command::Read, 0, 9, (offset, len as u64));
        self.send(&bytes);
        // In simple replies only the request tells the length.
        let expected = if self.style == Style::Simple { len } else { 0 };
        let answer = self.answer(expected);
        assert_eq!((answer.error, answer.cookie), (0, 9));
        answer.data
    }

    /// Ends the connection at once. The server learns that nobody waits for replies.
    pub(crate) fn reset(self) {
        set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }

    /// Returns true if the server closes the connection, after any bytes that it still sends.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        !matches!(self.stream.read_to_end(&mut rest), Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset)
    }
}

/// Waits until `ready`, and fails after a minute.
#[track_caller]
pub(crate) fn until(ready: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !ready() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns `len` bytes that depend on their place and on `seed`.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
