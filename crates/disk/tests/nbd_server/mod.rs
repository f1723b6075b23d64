//! NBD servers for tests: one of this process whose faults a test chooses, and those of other projects.

#![allow(dead_code)]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_wire::nbd::{
    COMPACT_REQUEST, Greeting, OPTION_HEADER, OptionHeader, OptionId, OptionReply, RefusalId, Request, Style,
    encode_data_head, encode_done, server, transmission,
};

/// The usual transmission flags.
pub(crate) const FLAGS: u16 = transmission::HAS_FLAGS | transmission::SEND_FLUSH | transmission::SEND_FUA;

/// A request other than DISC as the server received it: the number of its connection, its command, flags, offset and
/// length.
pub(crate) type Seen = (usize, u16, u16, u64, u64);

/// The server's action on a request.
pub(crate) enum Act {
    /// Carries it out and answers.
    Serve,
    /// Sends these bytes instead.
    Send(Vec<u8>),
    /// Ends the connection.
    End,
    /// Does nothing.
    Keep,
}

type Judge = dyn Fn(usize, &Request) -> Act + Send + Sync;

/// A server of this process: simple or structured replies, and one connection at a time. Its contents are in memory.
/// The server forgets unflushed writes when a connection ends.
pub(crate) struct Fake {
    pub(crate) port: u16,
    pub(crate) log: Arc<Mutex<Vec<Seen>>>,
    pub(crate) durable: Arc<Mutex<Vec<u8>>>,
    connections: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Fake {
    /// Serves `size` bytes. `judge` gets the number of the connection, from 1 on, and the request.
    pub(crate) fn start(
        size: usize,
        flags: u16,
        style: Style,
        judge: impl Fn(usize, &Request) -> Act + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let log = Arc::new(Mutex::new(Vec::new()));
        let durable = Arc::new(Mutex::new(vec![0; size]));
        let (connections, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (log_of, durable_of, count, over) =
            (log.clone(), durable.clone(), connections.clone(), ended.clone());
        let thread = std::thread::spawn(move || {
            while over.load(Ordering::SeqCst) == 0 {
                let Ok((stream, _)) = listener.accept() else { return };
                let number = count.fetch_add(1, Ordering::SeqCst) + 1;
                // The end of a connection is an error here.
                let _ = serve(stream, number, flags, style, &judge, &log_of, &durable_of);
            }
        });
        Fake { port, log, durable, connections, ended, thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("nbd://127.0.0.1:{}/leg", self.port)
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Returns the commands so far with their flags.
    pub(crate) fn commands(&self) -> Vec<(u16, u16)> {
        self.log.lock().unwrap().iter().map(|seen| (seen.1, seen.2)).collect()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.ended.store(1, Ordering::SeqCst);
        // Wakes the listener.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        let _ = self.thread.take().unwrap().join();
    }
}

fn serve(
    mut stream: TcpStream,
    number: usize,
    flags: u16,
    style: Style,
    judge: &Judge,
    log: &Mutex<Vec<Seen>>,
    durable: &Mutex<Vec<u8>>,
) -> std::io::Result<()> {
    stream.write_all(&Greeting { flags: server::FIXED_NEWSTYLE | server::NO_ZEROES }.encode())?;
    stream.read_exact(&mut [0; 4])?;
    loop {
        let mut header = [0; OPTION_HEADER];
        stream.read_exact(&mut header)?;
        let OptionHeader { option, length } = OptionHeader::decode(&header).unwrap();
        stream.read_exact(&mut vec![0; length as usize])?;
        let mut out = Vec::new();
        let size = durable.lock().unwrap().len() as u64;
        if option == OptionId::Go as u32 {
            OptionReply::Export { size, flags }.encode(option, &mut out);
            OptionReply::BlockSize { minimum: 1, preferred: 4096, maximum: 1 << 20 }.encode(option, &mut out);
        }
        let has = option == OptionId::Go as u32
            || (option == OptionId::StructuredReply as u32 && style == Style::Structured);
        match has {
            true => OptionReply::Ack.encode(option, &mut out),
            false => OptionReply::refused(RefusalId::Unsup, "no").encode(option, &mut out),
        }
        stream.write_all(&out)?;
        if option == OptionId::Go as u32 {
            break;
        }
    }
    let mut volatile = durable.lock().unwrap().clone();
    loop {
        let mut header = [0; COMPACT_REQUEST];
        stream.read_exact(&mut header)?;
        let request = Request::decode(&header, false).unwrap();
        let mut payload = vec![0; request.payload(false) as usize];
        stream.read_exact(&mut payload)?;
        let Request { flags, command, offset, length, .. } = request;
        if command != 2 {
            log.lock().unwrap().push((number, command, flags, offset, length));
        }
        match judge(number, &request) {
            Act::Serve => {}
            Act::Send(bytes) => {
                stream.write_all(&bytes)?;
                continue;
            }
            Act::Keep => continue,
            Act::End => return Ok(()),
        }
        let range = offset as usize..(offset + length) as usize;
        let mut out = Vec::new();
        match command {
            0 => {
                encode_data_head(style, (request.cookie, offset), length, &mut out);
                out.extend_from_slice(&volatile[range]);
            }
            1 => {
                volatile[range.clone()].copy_from_slice(&payload);
                if flags & 1 != 0 {
                    durable.lock().unwrap()[range].copy_from_slice(&payload);
                }
            }
            2 => return Ok(()),
            3 => durable.lock().unwrap().copy_from_slice(&volatile),
            4 => {}
            6 => volatile[range].fill(0),
            _ => panic!("command {command}"),
        }
        if command != 0 {
            encode_done(style, request.cookie, offset, &mut out);
        }
        stream.write_all(&out)?;
    }
}

/// A server of another project, on a Unix socket.
pub(crate) struct Real {
    pub(crate) socket: PathBuf,
    child: Child,
    home: Option<tempfile::TempDir>,
}

impl Real {
    /// Starts nbdkit with these words.
    pub(crate) fn nbdkit(words: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("sock");
        let mut server = Self::nbdkit_at(&socket, words);
        server.home = Some(home);
        server
    }

    /// Starts nbdkit with these words on this socket.
    pub(crate) fn nbdkit_at(socket: &Path, words: &[&str]) -> Self {
        let mut command = Command::new("nbdkit");
        command.args(["-f", "--exit-with-parent", "-U"]).arg(socket).args(words);
        Self::start(command, socket)
    }

    /// Starts qemu-nbd with these words.
    pub(crate) fn qemu(words: &[&str], image: &Path) -> Self {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("sock");
        let mut command = Command::new("qemu-nbd");
        command.args(["-t", "-f", "raw", "-x", "leg", "-k"]).arg(&socket).args(words).arg(image);
        let mut server = Self::start(command, &socket);
        server.home = Some(home);
        server
    }

    fn start(mut command: Command, socket: &Path) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("{command:?} cannot be started: {error}; `cargo x setup` installs nbdkit and qemu-utils")
        });
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            match std::os::unix::net::UnixStream::connect(socket) {
                Ok(_) => break,
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
                Err(error) => panic!("{error}"),
            }
            assert!(Instant::now() < end, "{command:?} does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Real { socket: socket.to_owned(), child, home: None }
    }

    pub(crate) fn url(&self) -> String {
        format!("nbd+unix:///leg?socket={}", self.socket.display())
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
