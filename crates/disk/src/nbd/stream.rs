//! A connected socket of either kind.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_common::nbd_url::NbdServer;
use rustix::io::Errno;
use rustix::net::sockopt::{
    Timeout, set_socket_keepalive, set_socket_timeout, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl,
    set_tcp_user_timeout,
};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, sendmsg,
    socket_with,
};

/// The time after which a host that acknowledges nothing is given up, in milliseconds.
const SILENT_HOST: u32 = 20_000;
/// The time without traffic after which the kernel asks a host if it is there, and between the questions.
const ASK: Duration = Duration::from_secs(5);
/// The number of questions without an answer after which a host is given up.
const QUESTIONS: u32 = 3;

/// A connected socket.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Connects to a server within `limit`. The time for looking up a name comes on top.
    pub(super) fn connect(server: &NbdServer, limit: Duration) -> io::Result<Self> {
        match server {
            NbdServer::Tcp(host, port) => connect_tcp(host, *port, limit).map(Stream::Tcp),
            NbdServer::Unix(path) => connect_unix(path, limit).map(Stream::Unix),
        }
    }

    /// Removes the time limits of the handshake. From now on the kernel gives up a host that does not answer. It does
    /// not give up a process that does not.
    pub(super) fn settle(&self) -> io::Result<()> {
        let fd = self.as_fd();
        set_socket_timeout(fd, Timeout::Recv, None)?;
        set_socket_timeout(fd, Timeout::Send, None)?;
        if let Stream::Tcp(stream) = self {
            stream.set_nodelay(true)?;
            set_socket_keepalive(fd, true)?;
            set_tcp_keepidle(fd, ASK)?;
            set_tcp_keepintvl(fd, ASK)?;
            set_tcp_keepcnt(fd, QUESTIONS)?;
            set_tcp_user_timeout(fd, SILENT_HOST)?;
        }
        Ok(())
    }

    /// Receives some bytes, or waits for some; 0 at the end.
    pub(super) fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&mut &*stream).read(into),
            Stream::Unix(stream) => (&mut &*stream).read(into),
        }
    }

    /// Sends some bytes; waits for room in the socket only if `waits`.
    pub(super) fn send(&self, slices: &[IoSlice<'_>], waits: bool) -> Result<usize, Errno> {
        let flags = SendFlags::NOSIGNAL | if waits { SendFlags::empty() } else { SendFlags::DONTWAIT };
        sendmsg(self.as_fd(), slices, &mut SendAncillaryBuffer::default(), flags)
    }

    /// Ends the connection. Threads that wait for it go on.
    pub(super) fn shut(&self) {
        // The only failure is that the connection has ended already.
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

/// Connects to one of the addresses of a host, each for the time that is left of `limit`. The look-up of the name has
/// no limit of its own.
fn connect_tcp(host: &str, port: u16, limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    let addresses = (host, port).to_socket_addrs()?;
    let end = Instant::now() + limit;
    for address in addresses {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects to a local socket, and waits up to `limit` while the server accepts nobody.
fn connect_unix(path: &Path, limit: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // A server that accepts nobody leaves the caller waiting once its queue is full.
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// A socket during the handshake, which has to end at a fixed time.
pub(super) struct Timed<'a> {
    pub(super) stream: &'a Stream,
    pub(super) end: Instant,
}

impl Timed<'_> {
    /// Limits the next system call on the socket to the time that is left of the handshake. Fails if no time is left.
    fn limit(&self, timeout: Timeout) -> io::Result<()> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // A limit of less than a microsecond would be none.
        Ok(set_socket_timeout(self.stream.as_fd(), timeout, Some(left.max(Duration::from_millis(1))))?)
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.limit(Timeout::Recv)?;
        self.stream.receive(into)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.limit(Timeout::Send)?;
        Ok(self.stream.send(&[IoSlice::new(bytes)], true)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
