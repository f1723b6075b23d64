//! TLS handshakes (RFC 9289 section 4.1). A handshake takes milliseconds of processor time, so workers carry it out.
//!
//! The event loop receives a record of the peer and gives it to a worker with the session. The worker sends the answer,
//! and posts the session back to the loop. Until then nothing is received. So no byte behind the last record of the
//! handshake is in user space, and the worker can give the keys to the kernel. The time for the whole handshake is the
//! stall timeout.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_tls::{Identity, Keyring, Session};

use crate::config::Config;
use crate::drive::Wire;
use crate::home::Post;
use crate::kernel_tls::{self, Offered};
use crate::link::{Link, Protection};
use crate::outlet::Outlet;
use crate::pool::Charge;
use crate::secured::Secured;
use crate::workers::Workers;

/// Threads for handshakes.
const THREADS: usize = 2;
/// Steps of handshakes that may wait for a thread. If more are wanted, their connections try again later.
const QUEUE: usize = 1024;
/// Bytes of a whole handshake, after which the connection is closed.
pub(crate) const LONGEST: usize = 256 << 10;
/// Bytes of a record's header.
const HEADER: usize = 5;
/// The types of records: change_cipher_spec, alert, handshake, application_data.
const KINDS: std::ops::RangeInclusive<u8> = 20..=23;
/// The largest number of bytes behind the header of a sealed record (RFC 8446 section 5.2).
const LARGEST: usize = (1 << 14) + 256;
/// The memory in bytes that a handshake in progress is charged for.
const MEMORY: usize = 64 << 10;

/// The credentials of a server, and the threads for handshakes.
pub(crate) struct Tls {
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) workers: Workers<Step>,
    /// The most records that the kernel may send with one key; none if the kernel gets no keys.
    kernel_records: Option<u64>,
}

impl Tls {
    /// Starts the workers that carry out handshakes with the server's certificates. Returns none if the server is to
    /// have no TLS.
    pub(crate) fn new(config: &Config) -> std::io::Result<Option<Arc<Self>>> {
        let Some(keyring) = config.tls.clone() else { return Ok(None) };
        if config.kernel_tls && !keyring.is_empty() {
            kernel_tls::announce();
        }
        let workers = Workers::new(THREADS, QUEUE, Duration::ZERO, Step::run)?;
        let kernel_records = config.kernel_tls.then_some(config.kernel_tls_records);
        Ok(Some(Arc::new(Self { keyring, workers, kernel_records })))
    }
}

/// A handshake in progress, as the event loop has it.
pub(crate) struct Handshake {
    /// The session; none while a worker has it.
    pub(crate) session: Option<Box<Session>>,
    /// Bytes received and not given to a worker yet.
    pub(crate) input: Vec<u8>,
    framing: Framing,
    /// True if the input is worth a worker's time: it has a whole record, or is no record.
    is_ready: bool,
    /// The number of bytes received so far.
    pub(crate) received: usize,
    pub(crate) begun: Instant,
    _charge: Charge,
}

impl Handshake {
    /// Begins a handshake. Its memory counts for the address of the client until it ends.
    pub(crate) fn new(session: Session, link: &Link, now: Instant) -> Self {
        let charge = link.account().charge(MEMORY);
        let (session, input) = (Some(Box::new(session)), Vec::new());
        let (framing, is_ready, received) = (Framing::default(), false, 0);
        Self { session, input, framing, is_ready, received, begun: now, _charge: charge }
    }

    /// Returns the number of bytes that may be received now; 0 while a worker has the session, or should have it.
    pub(crate) fn wanted(&self) -> usize {
        if self.session.is_none() || self.is_ready { 0 } else { self.framing.missing() }
    }

    /// Returns true if the input should go to a worker.
    pub(crate) fn is_ready(&self) -> bool {
        self.session.is_some() && self.is_ready
    }

    /// Adds received bytes to the input.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        self.received += bytes.len();
        self.is_ready |= self.framing.advance(bytes);
    }

    /// Takes the session and the input for a worker.
    pub(crate) fn take(&mut self) -> Option<(Box<Session>, Vec<u8>)> {
        let session = self.session.take()?;
        self.is_ready = false;
        Some((session, std::mem::take(&mut self.input)))
    }

    /// Takes session and input back, because no worker has them.
    pub(crate) fn put_back(&mut self, session: Box<Session>, input: Vec<u8>) {
        (self.session, self.input, self.is_ready) = (Some(session), input, true);
    }
}

/// A place in a stream of records (RFC 8446 section 5.1).
#[derive(Debug, Default)]
struct Framing {
    header: [u8; HEADER],
    /// Bytes of the current record's header that have arrived.
    have: usize,
    /// Bytes that are missing behind the header.
    left: usize,
}

impl Framing {
    /// Returns the number of bytes up to the end of the record, or of its header.
    fn missing(&self) -> usize {
        if self.have < HEADER { HEADER - self.have } else { self.left }
    }

    /// Moves on by received bytes. Returns true if a record has ended, or has a header that no record has.
    fn advance(&mut self, mut bytes: &[u8]) -> bool {
        let mut is_ready = false;
        while !bytes.is_empty() {
            let (now, rest) = bytes.split_at(self.missing().min(bytes.len()));
            bytes = rest;
            if self.have < HEADER {
                self.header[self.have..self.have + now.len()].copy_from_slice(now);
                self.have += now.len();
                let [kind, _, _, high, low] = self.header;
                self.left = usize::from(u16::from_be_bytes([high, low]));
                is_ready |= self.have == HEADER && !(KINDS.contains(&kind) && self.left <= LARGEST);
            } else {
                self.left -= now.len();
            }
            if self.have == HEADER && self.left == 0 {
                (self.have, is_ready) = (0, true);
            }
        }
        is_ready
    }
}

/// Received bytes of a handshake, for a worker.
pub(crate) struct Step {
    pub(crate) link: Arc<Link>,
    pub(crate) session: Box<Session>,
    pub(crate) input: Vec<u8>,
}

/// The result of a step, which a worker returns to the event loop.
pub(crate) enum Stepped {
    /// The handshake waits for more bytes.
    Unfinished(Box<Session>),
    /// The handshake is complete.
    Complete {
        /// The identity of a client that has shown a certificate.
        client: Option<Identity>,
        protection: Protection,
        /// Plain text behind the handshake.
        plain: Vec<u8>,
    },
    /// The handshake has failed for this reason.
    Failed(String),
}

impl Step {
    /// Carries out a step of a TLS handshake on a worker, since signatures take too long for an event loop. Sends the
    /// answer, and posts the result to the connection's loop.
    fn run(self) {
        let Step { link, mut session, mut input } = self;
        let (mut plain, mut answer) = (Vec::new(), Vec::new());
        let opened = session.open(&mut input, &mut plain, &mut answer);
        if !answer.is_empty() {
            link.send_unsealed(answer);
        }
        let stepped = match opened {
            Ok(opened) if opened.is_closed => Stepped::Failed("the peer has ended the session".to_owned()),
            Ok(_) if session.is_handshaking() => Stepped::Unfinished(session),
            Ok(_) => {
                let client = session.identity();
                match protect(&link, session) {
                    Ok(protection) => Stepped::Complete { client, protection, plain },
                    Err(fault) => Stepped::Failed(fault),
                }
            }
            Err(error) => Stepped::Failed(error.to_string()),
        };
        link.post(|token| Post::Stepped(token, Box::new(stepped)));
    }
}

/// Gives the keys of a session to the kernel, or leaves the session in user space.
fn protect(link: &Link, session: Box<Session>) -> Result<Protection, String> {
    let records = link.home().tls.as_ref().and_then(|tls| tls.kernel_records);
    // The peer has read all output of the handshake, so nothing waits. The kernel would seal output that waits.
    let Some(records) = records.filter(|_| link.with_outlet(Outlet::begin)) else {
        return Ok(Protection::Session(Box::new(Secured::new(*session))));
    };
    let offered = kernel_tls::offer(link.fd(), session, records);
    link.write_out();
    Ok(match offered? {
        Offered::Taken(kernel) => Protection::Kernel(kernel),
        Offered::Declined(session) => Protection::Session(Box::new(Secured::new(*session))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a record with this payload.
    fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
        [&[kind, 3, 3][..], &(payload.len() as u16).to_be_bytes(), payload].concat()
    }

    #[test]
    fn nothing_behind_a_record_is_received() {
        let stream = [record(22, &[1; 300]), record(20, &[1]), record(23, &[7; 70])].concat();
        for most in [1, 2, 5, 64, 1000] {
            let (mut framing, mut at, mut ends) = (Framing::default(), 0, Vec::new());
            while at < stream.len() {
                let n = framing.missing().min(most);
                assert!(n > 0);
                if framing.advance(&stream[at..at + n]) {
                    ends.push(at + n);
                }
                at += n;
            }
            assert_eq!(ends, [305, 311, 386], "{most}");
        }
    }

    #[test]
    fn records_that_came_with_the_request_for_tls_are_found() {
        let mut framing = Framing::default();
        let stream = [record(22, &[1; 300]), record(20, &[1]), record(23, &[7; 70])].concat();
        assert!(framing.advance(&stream[..330]), "two records");
        assert_eq!(framing.missing(), 386 - 330);
        assert!(!framing.advance(&stream[330..385]) && framing.advance(&stream[385..]));
        assert_eq!(framing.missing(), HEADER);
    }

    #[test]
    fn a_header_that_no_record_has_is_not_waited_for() {
        for header in [[0x80, 0, 0, 1, b'e'], [22, 3, 1, 0xff, 0xff], [0; 5]] {
            assert!(Framing::default().advance(&header), "{header:?}");
        }
        assert!(!Framing::default().advance(&[22, 3, 1, 0x41, 0]));
    }
}
