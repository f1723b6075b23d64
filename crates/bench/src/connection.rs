//! A TCP connection that carries RPC records in both directions, without an allocation for each request.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use forebay_wire::Encode as _;
use forebay_wire::rpc::{AUTH_TLS, Auth, CallHeader, LAST_FRAGMENT, OpaqueAuth, encode_starttls};

use crate::tls::{Peer, Secured};

/// Most bytes read from the socket at once, unless one record is longer.
const READ_SIZE: usize = 256 << 10;
/// Length of a long record in bytes. A read stops at the end of a long record. So the next record starts at the front
/// of the buffer and need not be moved there.
const LONG_RECORD: usize = 32 << 10;
/// Longest record in bytes; a longer one is an error.
const MAX_RECORD: usize = 64 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Credential with which a client asks for TLS (RFC 9289, section 4.1).
const ASK_TLS: Auth<'_> = Auth::Other(OpaqueAuth { flavor: AUTH_TLS, body: &[] });

/// A non-blocking connection to an RPC program.
pub(crate) struct Connection {
    stream: TcpStream,
    /// The TLS session, if the connection is secured.
    secured: Option<Box<Secured>>,
    /// Requests to send. The bytes from `sent` on have not been sent.
    out: Vec<u8>,
    sent: usize,
    call_at: usize,
    /// A record mark and call header. Each call gets a copy with its transaction and procedure numbers.
    template: Vec<u8>,
    /// Received bytes. The bytes in `start..end` have not been returned.
    input: Vec<u8>,
    start: usize,
    end: usize,
}

impl Connection {
    /// Connects, and secures the connection if the peer has a trust. Requests go to version `vers` of program `prog`
    /// with credential `cred`.
    pub(crate) fn open(peer: &Peer, prog: u32, vers: u32, cred: Auth<'_>) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&peer.address, CONNECT_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let template = |cred| {
            let mut template = vec![0; 4];
            CallHeader { xid: 0, prog, vers, proc: 0, cred, verf: OpaqueAuth::NONE }.encode(&mut template);
            template
        };
        let (out, input) = (Vec::new(), vec![0; READ_SIZE]);
        let mut connection = Self {
            stream,
            secured: None,
            out,
            sent: 0,
            call_at: 0,
            template: template(ASK_TLS),
            input,
            start: 0,
            end: 0,
        };
        if let Some(trust) = &peer.trust {
            connection.ask_for_tls()?;
            connection.stream.set_nonblocking(false)?;
            connection.secured = Some(Box::new(Secured::begin(trust, &mut connection.stream)?));
            connection.stream.set_nonblocking(true)?;
        }
        connection.template = template(cred);
        Ok(connection)
    }

    /// Asks the server to begin TLS, with the null procedure (RFC 9289, section 4.1).
    fn ask_for_tls(&mut self) -> io::Result<()> {
        let xid = rand::random();
        self.begin_call(xid, 0);
        self.end_call();
        let mut agreed = Vec::new();
        encode_starttls(xid, &mut agreed);
        match self.exchange(CONNECT_TIMEOUT)? == agreed {
            true => Ok(()),
            false => {
                Err(io::Error::other("the server offers no TLS; give it a certificate, or leave out tls="))
            }
        }
    }

    /// Starts a call and returns the buffer to which the caller appends the arguments. [`Self::end_call`] completes
    /// the call.
    #[inline]
    pub(crate) fn begin_call(&mut self, xid: u32, procedure: u32) -> &mut Vec<u8> {
        self.call_at = self.out.len();
        self.out.extend_from_slice(&self.template);
        self.patch(4, xid);
        self.patch(24, procedure);
        &mut self.out
    }

    /// Completes the call that was started last.
    #[inline]
    pub(crate) fn end_call(&mut self) {
        let length = self.out.len() - self.call_at - 4;
        self.patch(0, LAST_FRAGMENT | length as u32);
    }

    /// Replaces a word of the call that is being written, `at` bytes behind the call's start.
    #[inline]
    fn patch(&mut self, at: usize, word: u32) {
        let at = self.call_at + at;
        self.out[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }

    /// Sends as many bytes as the socket takes. Returns true if all bytes have been sent.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.out.len() {
            let sent = match &mut self.secured {
                None => self.stream.write(&self.out[self.sent..]),
                Some(secured) => secured.send(&mut self.stream, &self.out[self.sent..]),
            };
            match sent {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        self.sent = 0;
        match self.secured.as_mut().map(|secured| secured.flush(&mut self.stream)) {
            None | Some(Ok(())) => Ok(true),
            Some(Err(error)) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Some(Err(error)) => Err(error),
        }
    }

    /// Reads once. Returns false if the socket has no data. The end of the stream is an error.
    pub(crate) fn receive(&mut self) -> io::Result<bool> {
        let limit = self.make_room()?;
        loop {
            let end = match &mut self.secured {
                None => match self.stream.read(&mut self.input[self.end..limit]) {
                    Ok(0) => Ok(None),
                    read => read.map(|count| Some(self.end + count)),
                },
                Some(secured) => secured.receive(&mut self.stream, &mut self.input),
            };
            match end {
                Ok(None) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(Some(end)) => {
                    self.end = end;
                    return Ok(true);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Moves or grows the buffer so that the current record fits. Returns the buffer position up to which to read. With
    /// TLS, only the bytes received so far stay in the buffer.
    fn make_room(&mut self) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let wanted = match self.fragment_length() {
            Some((length, _)) => 4 + length,
            None => 4,
        };
        if wanted.max(self.end - self.start) > MAX_RECORD {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "the server sent a record of more than 64 MiB",
            ));
        }
        if self.secured.is_some() {
            // The session appends what it opens.
            self.input.truncate(self.end);
            self.input.drain(..self.start);
            (self.start, self.end) = (0, self.input.len());
            return Ok(self.end);
        }
        let long = wanted > LONG_RECORD;
        if self.start > 0
            && (self.start + wanted > self.input.len() || self.input.len() - self.end < READ_SIZE / 2)
        {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.start + wanted.max(self.end - self.start + 4) > self.input.len() {
            self.input.resize(self.start + wanted.max(self.end - self.start) + READ_SIZE, 0);
        }
        let record_end = self.start + wanted;
        Ok(if long && record_end > self.end {
            record_end
        } else {
            self.input.len().min(self.end + READ_SIZE)
        })
    }

    /// Returns the length of the fragment at `start`, and true if the fragment is the last of its record.
    fn fragment_length(&self) -> Option<(usize, bool)> {
        let mark = self.input[self.start..self.end].first_chunk::<4>()?;
        let mark = u32::from_be_bytes(*mark);
        Some(((mark & !LAST_FRAGMENT) as usize, mark & LAST_FRAGMENT != 0))
    }

    /// Returns the next complete record, without its mark.
    pub(crate) fn next_record(&mut self) -> Option<&[u8]> {
        let (length, last) = self.fragment_length()?;
        let begin = self.start + 4;
        let end = begin + length;
        if !last {
            return self.join_fragments();
        }
        if end > self.end {
            return None;
        }
        self.start = end;
        Some(&self.input[begin..end])
    }

    /// Returns the next record if it has several fragments. Their bytes are moved together.
    #[cold]
    fn join_fragments(&mut self) -> Option<&[u8]> {
        let record_end = self.record_end()?;
        let (begin, mut joined) = (self.start + 4, self.start + 4);
        while self.start < record_end {
            let (length, _) = self.fragment_length()?;
            self.input.copy_within(self.start + 4..self.start + 4 + length, joined);
            joined += length;
            self.start += 4 + length;
        }
        Some(&self.input[begin..joined])
    }

    /// Returns the end of the record at `start`, if the whole record has arrived.
    fn record_end(&self) -> Option<usize> {
        let mut at = self.start;
        loop {
            let mark = self.input[..self.end].get(at..)?.first_chunk::<4>()?;
            let mark = u32::from_be_bytes(*mark);
            at += 4 + (mark & !LAST_FRAGMENT) as usize;
            if mark & LAST_FRAGMENT != 0 {
                return (at <= self.end).then_some(at);
            }
        }
    }

    /// Sends `out` and waits for one whole record. The preparation of a run uses this, because it sends one call at a
    /// time.
    pub(crate) fn exchange(&mut self, timeout: Duration) -> io::Result<&[u8]> {
        self.stream.set_nonblocking(false)?;
        self.stream.set_read_timeout(Some(timeout))?;
        self.stream.set_write_timeout(Some(timeout))?;
        let before = |error: io::Error| match error.kind() {
            ErrorKind::WouldBlock => io::Error::new(ErrorKind::TimedOut, "the server did not answer in time"),
            _ => error,
        };
        if !self.flush().map_err(before)? {
            return Err(ErrorKind::TimedOut.into());
        }
        // This is not a loop over `next_record`, because the borrow checker rejects the early return.
        while self.record_end().is_none() {
            if !self.receive()? {
                return Err(io::Error::new(ErrorKind::TimedOut, "the server did not answer in time"));
            }
        }
        self.stream.set_nonblocking(true)?;
        self.next_record().ok_or_else(|| ErrorKind::InvalidData.into())
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = Connection::open(&listener.local_addr().unwrap().into(), 1, 2, Auth::None).unwrap();
        (connection, listener.accept().unwrap().0)
    }

    /// Sends `records`, cut into fragments of `size` bytes.
    fn send(stream: &mut TcpStream, records: &[Vec<u8>], size: usize) {
        for record in records {
            let count = record.chunks(size).count();
            for (number, fragment) in record.chunks(size).enumerate() {
                let last = if number + 1 == count { LAST_FRAGMENT } else { 0 };
                stream.write_all(&(last | fragment.len() as u32).to_be_bytes()).unwrap();
                stream.write_all(fragment).unwrap();
            }
        }
    }

    #[test]
    fn records_arrive_whole_however_they_are_cut() {
        let records: Vec<Vec<u8>> =
            [8, 40, 1 << 20, 12, 300 << 10, 4, 65536].iter().map(|len| vec![*len as u8 | 1; *len]).collect();
        for size in [3, 4, 1000, 40_000, 2 << 20] {
            let (mut connection, mut stream) = pair();
            let sent = records.clone();
            let sender = std::thread::spawn(move || send(&mut stream, &sent, size));
            for record in &records {
                assert_eq!(connection.exchange(Duration::from_secs(10)).unwrap(), record);
            }
            sender.join().unwrap();
        }
    }

    #[test]
    fn a_call_is_one_record_with_its_header() {
        let (mut connection, mut stream) = pair();
        7u32.encode(connection.begin_call(0x55, 4));
        connection.end_call();
        assert!(connection.flush().unwrap());
        let mut bytes = [0; 4 + 40 + 4];
        stream.read_exact(&mut bytes).unwrap();
        let mut expected = (LAST_FRAGMENT | 44).to_be_bytes().to_vec();
        CallHeader { xid: 0x55, prog: 1, vers: 2, proc: 4, cred: Auth::None, verf: OpaqueAuth::NONE }
            .encode(&mut expected);
        7u32.encode(&mut expected);
        assert_eq!(bytes.as_slice(), expected);
    }

    #[test]
    fn an_absurd_length_is_an_error() {
        let (mut connection, mut stream) = pair();
        stream.write_all(&u32::MAX.to_be_bytes()).unwrap();
        let error = connection.exchange(Duration::from_secs(10)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
}
