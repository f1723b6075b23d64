//! TLS handshakes (RFC 9289 section 4.1). A handshake takes milliseconds of processor time, so workers carry it out.
//!
//! The event loop receives the bytes of the peer and gives them to a worker with the session. The worker sends the
//! answer, and posts the session back to the loop. Meanwhile the loop may receive more bytes, up to [`MOST`]. The time
//! for the whole handshake is the stall timeout.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_tls::{Keyring, Session};

use crate::home::Post;
use crate::link::Link;
use crate::pool::Charge;
use crate::workers::Workers;

/// Threads for handshakes.
const THREADS: usize = 2;
/// Steps of handshakes that may wait for a thread. If more are wanted, their connections try again later.
const QUEUE: usize = 1024;
/// Bytes of a handshake that are received before the worker has taken the previous ones.
pub(crate) const MOST: usize = 64 << 10;
/// Bytes of a whole handshake, after which the connection is closed.
pub(crate) const LONGEST: usize = 256 << 10;
/// The memory in bytes that a handshake in progress is charged for.
const MEMORY: usize = 64 << 10;

/// The credentials of a server, and the threads for handshakes.
pub(crate) struct Tls {
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) workers: Workers<Step>,
}

impl Tls {
    /// Starts the workers that carry out handshakes with the server's certificates.
    pub(crate) fn new(keyring: Arc<Keyring>) -> std::io::Result<Arc<Self>> {
        let workers = Workers::new(THREADS, QUEUE, Duration::ZERO, Step::run)?;
        Ok(Arc::new(Self { keyring, workers }))
    }
}

/// A handshake in progress, as the event loop has it.
pub(crate) struct Handshake {
    /// The session; none while a worker has it.
    pub(crate) session: Option<Box<Session>>,
    /// Bytes received and not given to a worker yet.
    pub(crate) input: Vec<u8>,
    /// The number of bytes received so far.
    pub(crate) received: usize,
    pub(crate) begun: Instant,
    _charge: Charge,
}

impl Handshake {
    /// Begins a handshake. Its memory counts for the address of the client until it ends.
    pub(crate) fn new(session: Session, link: &Link, now: Instant) -> Self {
        let charge = link.account().charge(MEMORY);
        Self { session: Some(Box::new(session)), input: Vec::new(), received: 0, begun: now, _charge: charge }
    }
}

/// Received bytes of a handshake, for a worker.
pub(crate) struct Step {
    pub(crate) link: Arc<Link>,
    pub(crate) session: Box<Session>,
    pub(crate) input: Vec<u8>,
}

/// A session that a worker returns to the event loop.
pub(crate) struct Stepped {
    pub(crate) session: Box<Session>,
    /// Plain text behind the handshake.
    pub(crate) plain: Vec<u8>,
    /// The reason why the handshake has failed.
    pub(crate) fault: Option<String>,
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
        let fault = match opened {
            Ok(opened) if opened.is_closed => Some("the peer has ended the session".to_owned()),
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        };
        let stepped = Stepped { session, plain, fault };
        link.post(|token| Post::Stepped(token, Box::new(stepped)));
    }
}
