//! The sending side of a connection's TLS session. One thread at a time sends: the writer of the connection.

use std::cell::RefCell;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use forebay_common::lock::{Mutex, MutexGuard};
use forebay_tls::Session;
use rustix::io::Errno;

use crate::chunk::send;
use crate::pool::{Account, Charge};
use crate::splice::Spliced;

/// The largest number of plain bytes that are sealed at once. The session is locked meanwhile, for some ten
/// microseconds, and cannot open received bytes.
const PIECE: usize = 64 << 10;
/// The largest number of slices that are gathered. After a full socket, the next call has at least this many again.
const SLICES: usize = 16;
/// A slice of at least this many bytes is sealed as it is. Shorter slices are gathered first, so that a record is not
/// short without need.
const RECORD: usize = 16 << 10;

/// The TLS session of a connection after the handshake, and the sealed bytes that the socket has not taken yet.
pub(crate) struct Secured {
    session: Mutex<Session>,
    unsent: Mutex<Unsent>,
}

/// A sealed piece of output. The plain bytes of the piece stay in the connection's queue until the socket has taken the
/// whole piece.
#[derive(Default)]
struct Unsent {
    sealed: Vec<u8>,
    from: usize,
    to: usize,
    /// The number of plain bytes in the piece; 0 if there is no piece.
    plain: usize,
    _charge: Option<Charge>,
}

thread_local! {
    /// Buffers for sealed and for gathered bytes. A connection keeps one only while its socket is full.
    static BUFFERS: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

impl Secured {
    pub(crate) fn new(session: Session) -> Self {
        Self { session: Mutex::new(session), unsent: Mutex::default() }
    }

    /// Returns the session, locked.
    pub(crate) fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock()
    }

    /// Sends a piece of the bytes in `slices`, which are not empty. Returns the number of plain bytes that the socket
    /// has taken. After an error `AGAIN` the next call must begin with the bytes of this call. `more` = further bytes
    /// follow these at once.
    pub(crate) fn send(
        &self,
        fd: BorrowedFd<'_>,
        slices: &[IoSlice<'_>],
        more: bool,
        account: &Arc<Account>,
    ) -> Result<usize, Errno> {
        let mut unsent = self.unsent.lock();
        if unsent.plain == 0 {
            BUFFERS.with_borrow_mut(|(sealed, gathered)| {
                let plain = match slices.first() {
                    Some(first) if first.len() >= RECORD => &first[..first.len().min(PIECE)],
                    _ => {
                        gather(slices, gathered);
                        &gathered[..]
                    }
                };
                self.seal(plain, sealed, &mut unsent)
            })?;
        }
        let offered = slices.iter().map(|slice| slice.len()).sum();
        Self::send_sealed(&mut unsent, fd, offered, more, account)
    }

    /// Sends a piece of a payload in a pipe, which is not empty. Returns the number of plain bytes that the socket has
    /// taken. The bytes are copied out of the pipe when they are sealed, a piece at a time: such a copy stays in the
    /// processor's cache, and a copy of the whole payload does not.
    pub(crate) fn send_spliced(
        &self,
        fd: BorrowedFd<'_>,
        spliced: &mut Spliced,
        account: &Arc<Account>,
    ) -> Result<usize, Errno> {
        let mut unsent = self.unsent.lock();
        if unsent.plain == 0 {
            let len = spliced.len().min(PIECE);
            BUFFERS.with_borrow_mut(|(sealed, gathered)| {
                if gathered.len() < len {
                    gathered.resize(len, 0);
                }
                spliced.read(&mut gathered[..len])?;
                self.seal(&gathered[..len], sealed, &mut unsent)
            })?;
        }
        let sent = Self::send_sealed(&mut unsent, fd, spliced.len(), false, account)?;
        spliced.advance(sent);
        Ok(sent)
    }

    /// Sends the sealed piece, which has the first of `offered` plain bytes. Returns the number of its plain bytes.
    fn send_sealed(
        unsent: &mut Unsent,
        fd: BorrowedFd<'_>,
        offered: usize,
        more: bool,
        account: &Arc<Account>,
    ) -> Result<usize, Errno> {
        if offered < unsent.plain {
            // The bytes of the piece are not at the front of the queue: nothing sensible can follow.
            return Err(Errno::PROTO);
        }
        let more = more || offered > unsent.plain;
        while unsent.from < unsent.to {
            match send(fd, &[IoSlice::new(&unsent.sealed[unsent.from..unsent.to])], more) {
                Ok(n) => unsent.from += n,
                Err(error) => {
                    if unsent._charge.is_none() {
                        unsent._charge = Some(account.charge(unsent.sealed.len()));
                    }
                    return Err(error);
                }
            }
        }
        let Unsent { sealed, plain, .. } = std::mem::take(unsent);
        BUFFERS.with_borrow_mut(|buffers| buffers.0 = sealed);
        Ok(plain)
    }

    /// Seals `plain` as the next piece, in the buffer `sealed`. After a failure the connection is closed.
    fn seal(&self, plain: &[u8], sealed: &mut Vec<u8>, unsent: &mut Unsent) -> Result<(), Errno> {
        let to = self.session.lock().seal(plain, sealed).map_err(|_| Errno::PROTO)?;
        let sealed = std::mem::take(sealed);
        *unsent = Unsent { sealed, from: 0, to, plain: plain.len(), _charge: None };
        Ok(())
    }

    /// Tells the peer that nothing more is sent, if the socket takes it at once. For the writer of the connection, when
    /// nothing waits.
    pub(crate) fn say_farewell(&self, fd: BorrowedFd<'_>) {
        if let Some(farewell) = self.session.lock().farewell() {
            let _ = send(fd, &[IoSlice::new(&farewell)], false);
        }
    }
}

/// Fills `gathered` with the first bytes of `slices`.
fn gather(slices: &[IoSlice<'_>], gathered: &mut Vec<u8>) {
    gathered.clear();
    for slice in slices.iter().take(SLICES) {
        let room = PIECE - gathered.len();
        gathered.extend_from_slice(&slice[..slice.len().min(room)]);
    }
}
