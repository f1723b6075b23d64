//! Requests in flight on a connection, and the end of the connection.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_common::lock::{Condvar, Mutex};
use forebay_common::nbd_url::NbdUrl;
use forebay_engine::buffer::{Buffer, Slice};
use forebay_runtime::Completion;
use forebay_wire::nbd::{Command, Request, Style, command_flags, transmission};

use super::handshake::{ENDS, Export, negotiate};
use super::pending::{Ended, Failure, Pending};
use super::receive;
use super::sending::{Piece, Sending};
use super::stream::{Stream, Timed};

/// The time for connecting, and the time for the negotiation after it.
const LIMIT: Duration = Duration::from_secs(5);
/// The most bytes that one TRIM or WRITE_ZEROES covers.
const LONGEST_RANGE: u64 = 1 << 30;

/// A connection to an export. It ends when the value is dropped.
pub(super) struct Connection(Arc<Shared>);

/// The right to flush a connection.
pub(super) struct Flusher(Arc<Shared>);

/// The part of a connection that its threads share.
pub(super) struct Shared {
    url: String,
    pub(super) stream: Stream,
    pub(super) export: Export,
    pub(super) state: Mutex<State>,
    /// Tells the sending thread that it is its turn.
    pub(super) handed: Condvar,
    /// Changes that completed without being durable. One counts from the start: an earlier connection's.
    written: AtomicU64,
    /// The number of those changes, the first ones, that a FLUSH has made durable.
    flushed: AtomicU64,
    on_lost: Box<dyn Fn() + Send + Sync>,
}

pub(super) struct State {
    pending: HashMap<u64, Pending>,
    /// Messages that are not sent yet, in order.
    pub(super) outbox: VecDeque<Piece>,
    pub(super) sending: Sending,
    /// The number of the last request.
    last: u64,
    pub(super) is_lost: bool,
}

/// Connects, and negotiates. A server that ends the connection is asked again for a while: it may still have the
/// connection of a client that was killed, perhaps of this server before its restart.
fn connect(url: &NbdUrl) -> Result<(Stream, Export), String> {
    let end = Instant::now() + LIMIT;
    loop {
        let stream = Stream::connect(url.server(), LIMIT).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "it does not answer".to_owned(),
            _ => format!("it cannot be reached: {error}"),
        })?;
        let mut timed = Timed { stream: &stream, end: Instant::now() + LIMIT };
        match negotiate(&mut timed, url.export()) {
            Ok(export) => return Ok((stream, export)),
            Err(reason) if reason == ENDS && Instant::now() < end => std::thread::sleep(LIMIT / 100),
            Err(reason) => return Err(reason),
        }
    }
}

impl Connection {
    /// Connects, and negotiates. `on_lost` is called once when the connection ends, before any request fails for that.
    ///
    /// # Errors
    /// The reason, as the end of a sentence about the server.
    pub(super) fn open(url: &NbdUrl, on_lost: impl Fn() + Send + Sync + 'static) -> Result<Self, String> {
        let (stream, export) = connect(url)?;
        stream.settle().map_err(|error| format!("its socket cannot be used: {error}"))?;
        let state = State {
            pending: HashMap::new(),
            outbox: VecDeque::new(),
            sending: Sending::Nobody,
            last: 0,
            is_lost: false,
        };
        let shared = Arc::new(Shared {
            url: url.as_str().to_owned(),
            stream,
            export,
            state: Mutex::new(state),
            handed: Condvar::new(),
            written: AtomicU64::new(1),
            flushed: AtomicU64::new(0),
            on_lost: Box::new(on_lost),
        });
        // From here on the threads end when the connection does.
        let connection = Connection(shared);
        connection.start("forebay-nbd-in", receive::run)?;
        connection.start("forebay-nbd-out", Shared::send_on)?;
        Ok(connection)
    }

    /// Starts a thread of the connection, which ends when the connection does.
    fn start(&self, name: &str, run: fn(&Shared)) -> Result<(), String> {
        let shared = self.0.clone();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&shared));
        thread.map(drop).map_err(|error| format!("no thread can be started for it: {error}"))
    }

    pub(super) fn export(&self) -> &Export {
        &self.0.export
    }

    /// Ends the connection. Every request in flight fails.
    pub(super) fn leave(&self) {
        self.0.leave();
    }

    /// Returns true if the connection has ended.
    pub(super) fn is_lost(&self) -> bool {
        self.0.state.lock().is_lost
    }

    /// Returns true if a change has completed that no FLUSH has covered.
    pub(super) fn needs_flush(&self) -> bool {
        self.0.written.load(Ordering::SeqCst) > self.0.flushed.load(Ordering::SeqCst)
    }

    /// Begins to read `len` bytes, at most [`Export::maximum`], into the front of `buffer`.
    pub(super) fn read(&self, offset: u64, len: usize, buffer: Buffer) -> Completion<Ended> {
        let mut pending = Pending::new(Command::Read, offset, len);
        pending.buffer = Some(buffer);
        self.0.submit(pending, 0, None)
    }

    /// Begins to write the bytes `range` of `data`, at most [`Export::maximum`]. With `fua` the bytes are durable at
    /// the end. The server must have FUA then.
    pub(super) fn write(
        &self,
        offset: u64,
        data: &Slice,
        range: Range<usize>,
        fua: bool,
    ) -> Completion<Ended> {
        let mut pending = Pending::new(Command::Write, offset, range.len());
        pending.is_volatile = !fua;
        let flags = if fua { command_flags::FUA } else { 0 };
        self.0.submit(pending, flags, Some((data.clone(), range)))
    }

    /// Begins to make every change durable that has completed.
    pub(super) fn flush(&self) -> Completion<Ended> {
        self.0.flush()
    }

    /// Returns a value that begins a FLUSH later. It does not keep the connection open.
    pub(super) fn flusher(&self) -> Flusher {
        Flusher(self.0.clone())
    }

    /// Begins to discard a range, in whole units of the server. Returns one operation for each part of it, none if the
    /// server has no TRIM.
    pub(super) fn trim(&self, offset: u64, len: u64) -> Vec<Completion<Ended>> {
        if !self.0.export.has(transmission::SEND_TRIM) {
            return Vec::new();
        }
        let unit = u64::from(self.0.export.minimum);
        let (start, end) = (offset.next_multiple_of(unit), (offset + len) / unit * unit);
        self.0.on_range(Command::Trim, 0, start..end)
    }

    /// Begins to zero a range of whole units of the server. Returns one operation for each part of it; `None` if the
    /// server has no WRITE_ZEROES.
    pub(super) fn zero(&self, range: Range<u64>, keep: bool) -> Option<Vec<Completion<Ended>>> {
        let flags = if keep { command_flags::NO_HOLE } else { 0 };
        let is_possible = self.0.export.has(transmission::SEND_WRITE_ZEROES);
        is_possible.then(|| self.0.on_range(Command::WriteZeroes, flags, range))
    }

    /// Returns the parts of a payload of `len` bytes, each short enough for one request.
    pub(super) fn parts(&self, len: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let most = self.0.export.maximum as usize;
        (0..len).step_by(most).map(move |start| start..(start + most).min(len))
    }
}

impl Flusher {
    /// Begins to make every change durable that has completed.
    pub(super) fn flush(&self) -> Completion<Ended> {
        self.0.flush()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Shared {
    /// Begins a FLUSH. Its success makes every change durable that has completed by now.
    fn flush(&self) -> Completion<Ended> {
        let mut pending = Pending::new(Command::Flush, 0, 0);
        pending.covers = self.written.load(Ordering::SeqCst);
        self.submit(pending, 0, None)
    }

    /// Begins a request without payload for a range of bytes, in parts of at most `LONGEST_RANGE`. Returns one
    /// operation for each part.
    fn on_range(&self, command: Command, flags: u16, range: Range<u64>) -> Vec<Completion<Ended>> {
        let starts = range.clone().step_by(LONGEST_RANGE as usize);
        let begin = |start: u64| {
            let len = LONGEST_RANGE.min(range.end - start);
            let mut pending = Pending::new(command, start, len as usize);
            pending.is_volatile = true;
            self.submit(pending, flags, None)
        };
        starts.map(begin).collect()
    }

    /// Begins a request. It fails at once on a lost connection.
    fn submit(&self, pending: Pending, flags: u16, data: Option<(Slice, Range<usize>)>) -> Completion<Ended> {
        let completion = Completion::Waiting(pending.slot.clone());
        let mut state = self.state.lock();
        if state.is_lost {
            drop(state);
            pending.end(Err(Failure::Lost));
            return completion;
        }
        state.last += 1;
        let cookie = state.last;
        let header = self.header(&pending, flags, cookie);
        state.pending.insert(cookie, pending);
        state.outbox.push_back(Piece::header(header));
        state.outbox.extend(data.map(Piece::data));
        if state.sending == Sending::Nobody {
            state.sending = Sending::Requester;
            let batch = std::mem::take(&mut state.outbox);
            drop(state);
            self.send_at_once(batch);
        }
        completion
    }

    /// Returns the header of a request. `cookie` is the number that the reply repeats.
    fn header(&self, pending: &Pending, flags: u16, cookie: u64) -> Vec<u8> {
        let is_extended = self.export.style == Style::Extended;
        let has_payload = is_extended && pending.command == Command::Write;
        let flags = if has_payload { flags | command_flags::PAYLOAD_LEN } else { flags };
        let (command, offset, length) = (pending.command as u16, pending.offset, pending.len as u64);
        let mut header = Vec::with_capacity(32);
        Request { flags, command, cookie, offset, length }.encode(is_extended, &mut header);
        header
    }

    /// Takes a request out of those in flight, for as long as its reply is being received.
    pub(super) fn take(&self, cookie: u64) -> Option<Pending> {
        self.state.lock().pending.remove(&cookie)
    }

    /// Puts a request back whose reply has more chunks.
    pub(super) fn put_back(&self, cookie: u64, pending: Pending) {
        let mut state = self.state.lock();
        if !state.is_lost {
            state.pending.insert(cookie, pending);
            return;
        }
        drop(state);
        pending.end(Err(Failure::Lost));
    }

    /// Ends a request. A change that succeeds is counted before the connection can be lost: a thread that sees the loss
    /// sees that changes may be lost with it.
    pub(super) fn end(&self, pending: Pending, mut result: Result<(), Failure>) {
        let state = self.state.lock();
        if state.is_lost {
            result = Err(Failure::Lost);
        } else if result.is_ok() {
            if pending.command == Command::Flush {
                self.flushed.fetch_max(pending.covers, Ordering::SeqCst);
            }
            self.written.fetch_add(u64::from(pending.is_volatile), Ordering::SeqCst);
        }
        drop(state);
        pending.end(result);
    }

    /// Ends the connection because of a failure. Every request in flight fails.
    pub(super) fn lose(&self, reason: &str) {
        if let Some(failed) = self.close() {
            tracing::error!("{}: the connection is lost: {reason}", self.url);
            (self.on_lost)();
            failed.into_iter().for_each(|pending| pending.end(Err(Failure::Lost)));
        }
    }

    /// Ends the connection because it is not needed any more.
    fn leave(&self) {
        let mut state = self.state.lock();
        // A server that learns of the end may close the export at once. A request that is cut short must not follow.
        if !state.is_lost && state.pending.is_empty() && state.sending == Sending::Nobody {
            let header = self.header(&Pending::new(Command::Disc, 0, 0), 0, 0);
            state.sending = Sending::Requester;
            drop(state);
            // The server sees the end of the connection in any case.
            let _ = self.stream.send(&[IoSlice::new(&header)], false);
        } else {
            drop(state);
        }
        self.close().into_iter().flatten().for_each(|pending| pending.end(Err(Failure::Lost)));
    }

    /// Ends the connection. Returns the requests in flight; `None` if it has ended before.
    fn close(&self) -> Option<Vec<Pending>> {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.is_lost, true) {
            return None;
        }
        let failed = std::mem::take(&mut state.pending).into_values().collect();
        state.outbox.clear();
        drop(state);
        self.stream.shut();
        self.handed.notify_all();
        Some(failed)
    }
}
