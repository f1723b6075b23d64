//! The bytes of one connection: plain, or in TLS.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use forebay_tls::Session;

use crate::response::Response;

/// Longest time for a client to take a response.
const PATIENCE: Duration = Duration::from_secs(20);
/// Longest time of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The first byte of a handshake (RFC 8446 section 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// The bytes of a connection.
pub(crate) struct Channel<'a> {
    stream: &'a TcpStream,
    session: Option<Session>,
    /// Bytes that the session has opened, and that are not taken yet.
    opened: Vec<u8>,
}

impl<'a> Channel<'a> {
    /// Returns a channel without encryption.
    pub(crate) fn plain(stream: &'a TcpStream) -> Self {
        Channel { stream, session: None, opened: Vec::new() }
    }

    /// Returns a channel of TLS after its handshake. A client that sends plain HTTP gets an answer that says so.
    /// Returns `None` if there is no session.
    pub(crate) fn secured(stream: &'a TcpStream, session: Session) -> Option<Self> {
        let until = Instant::now() + HANDSHAKE;
        let mut channel = Channel { stream, session: Some(session), opened: Vec::new() };
        let mut is_first = true;
        while channel.session.as_ref().is_some_and(Session::is_handshaking) {
            let mut piece = [0; 4096];
            let count = receive(stream, until, &mut piece).ok().filter(|count| *count > 0)?;
            if std::mem::take(&mut is_first) && piece[0] != HANDSHAKE_RECORD {
                let refused =
                    Response::error(400, "this port serves HTTPS only; begin the URL with https://");
                let _ = refused.send(&mut Channel::plain(stream), true);
                return None;
            }
            channel.open(&mut piece[..count]).ok()?;
        }
        Some(channel)
    }

    /// Appends received bytes to `bytes`. Returns their number; 0 at the end.
    pub(crate) fn receive(&mut self, until: Instant, bytes: &mut Vec<u8>) -> io::Result<usize> {
        let mut piece = [0; 4096];
        if self.session.is_none() {
            let count = receive(self.stream, until, &mut piece)?;
            bytes.extend_from_slice(&piece[..count]);
            return Ok(count);
        }
        while self.opened.is_empty() {
            let count = receive(self.stream, until, &mut piece)?;
            if count == 0 || !self.open(&mut piece[..count])? && self.opened.is_empty() {
                return Ok(0);
            }
        }
        bytes.append(&mut self.opened);
        Ok(bytes.len())
    }

    /// Gives received bytes to the session. Returns false if the client sends no more.
    fn open(&mut self, received: &mut [u8]) -> io::Result<bool> {
        let Some(session) = &mut self.session else { return Ok(false) };
        let mut answer = Vec::new();
        let opened = session.open(received, &mut self.opened, &mut answer);
        // The alert of a failure is in the answer.
        send(self.stream, &answer)?;
        opened.map(|opened| !opened.is_closed).map_err(io::Error::other)
    }

    /// Sends all bytes, within a bounded time.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(session) = &mut self.session else { return send(self.stream, bytes) };
        let mut sealed = Vec::new();
        let length = session.seal(bytes, &mut sealed).map_err(io::Error::other)?;
        send(self.stream, &sealed[..length])
    }

    /// Tells the client that the server sends no more.
    pub(crate) fn end(mut self) {
        if let Some(farewell) = self.session.as_mut().and_then(Session::farewell) {
            // A client that has gone away is no fault.
            let _ = send(self.stream, &farewell);
        }
    }
}

/// Receives some bytes. An error of kind `TimedOut` says that the time is over.
fn receive(mut stream: &TcpStream, until: Instant, piece: &mut [u8]) -> io::Result<usize> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(piece) {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::TimedOut
                ) => {}
            received => return received,
        }
    }
}

fn send(mut stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
