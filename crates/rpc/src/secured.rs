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
            self.seal(slices, &mut unsent)?;
        }
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
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
        let Unsent { sealed, plain, .. } = std::mem::take(&mut *unsent);
        BUFFERS.with_borrow_mut(|buffers| buffers.0 = sealed);
        Ok(plain)
    }

    /// Seals the first bytes of `slices`.
    fn seal(&self, slices: &[IoSlice<'_>], unsent: &mut Unsent) -> Result<(), Errno> {
        BUFFERS.with_borrow_mut(|(sealed, gathered)| {
            let plain = match slices.first() {
                Some(first) if first.len() >= RECORD => &first[..first.len().min(PIECE)],
                _ => {
                    gather(slices, gathered);
                    &gathered[..]
                }
            };
            // After a failure the connection is closed.
            let to = self.session.lock().seal(plain, sealed).map_err(|_| Errno::PROTO)?;
            let sealed = std::mem::take(sealed);
            *unsent = Unsent { sealed, from: 0, to, plain: plain.len(), _charge: None };
            Ok(())
        })
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
