//! The receipt of bytes from the socket.

use std::io::IoSliceMut;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, recv, recvmsg};

use super::{Backlog, Conn, Io};
use crate::assemble::EARLY;
use crate::service::{Body, Service};
use crate::stats::CloseReason;

/// Bytes received after a large record, or as its start. No more of a large record is ever copied.
const TAIL: usize = 2 * EARLY;
/// The largest number of receives to empty a socket before it is closed.
const DISCARDS: usize = 64;

impl Conn {
    /// Empties the socket. A socket that is closed with unread input discards replies in flight (RFC 1122 section
    /// 4.2.2.13).
    pub(super) fn discard<S: Service>(&self, io: &mut Io<S>) {
        for _ in 0..DISCARDS {
            if !matches!(recv(self.link.fd(), &mut io.scratch[..], RecvFlags::DONTWAIT), Ok((1.., _))) {
                return;
            }
        }
    }

    /// Keeps the input that a limit left unhandled, or that belongs to a handshake.
    pub(super) fn keep(&mut self, rest: &[u8]) {
        if let Some(handshake) = &mut self.handshake {
            handshake.add(rest);
        } else if !rest.is_empty() {
            let charge = self.link.account().charge(rest.len());
            self.backlog = Some(Backlog { bytes: rest.to_vec(), done: 0, _charge: charge });
        }
    }

    /// Receives once from the socket, decrypts if the connection has TLS, and handles the records. Fails with the
    /// reason to close the connection.
    pub(super) fn receive<S: Service>(&mut self, io: &mut Io<S>) -> Result<(), CloseReason> {
        let mut scratch = std::mem::take(&mut io.scratch);
        let result = match self.link.secured() {
            None => self.receive_into(&mut scratch, io),
            Some(_) => self.receive_sealed(&mut scratch, io),
        };
        io.scratch = scratch;
        result
    }

    /// Receives plain bytes. The rest of a large record goes directly into its buffer, and only bytes after the
    /// record are copied.
    fn receive_into<S: Service>(&mut self, scratch: &mut [u8], io: &mut Io<S>) -> Result<(), CloseReason> {
        let direct = self.assembler.direct();
        let missing = direct.len();
        let (asked, received) = if missing > 0 {
            let slices = &mut [IoSliceMut::new(direct), IoSliceMut::new(&mut scratch[..TAIL])];
            let message =
                recvmsg(self.link.fd(), slices, &mut RecvAncillaryBuffer::default(), RecvFlags::DONTWAIT);
            (missing + TAIL, message.map(|message| message.bytes))
        } else {
            let size = if self.large || self.assembler.large() { TAIL } else { scratch.len() };
            (size, recv(self.link.fd(), &mut scratch[..size], RecvFlags::DONTWAIT).map(|(n, _)| n))
        };
        let Some(received) = self.received(received, asked, io)? else { return Ok(()) };
        let before = io.records;
        if missing > 0
            && let Some(record) = self.assembler.received(received.min(missing))
        {
            self.handle(Body::Assembled(record), io)?;
        }
        let mut input = &scratch[..received.saturating_sub(missing)];
        self.consume(&mut input, io)?;
        self.keep(input);
        self.note_received((received, asked), before, io);
        Ok(())
    }

    /// Returns the number of bytes that a receive of up to `asked` bytes has brought; none if it brought no bytes.
    pub(super) fn received<S: Service>(
        &mut self,
        received: Result<usize, Errno>,
        asked: usize,
        io: &Io<S>,
    ) -> Result<Option<usize>, CloseReason> {
        let received = match received {
            Ok(0) => {
                self.closing = Some(CloseReason::PeerClosed);
                return Ok(None);
            }
            Ok(n) => n,
            Err(Errno::AGAIN) => {
                self.readable = false;
                return Ok(None);
            }
            Err(Errno::INTR) => return Ok(None),
            // The next record of TLS has no data.
            Err(Errno::IO) if self.link.is_in_kernel() => {
                self.receive_control()?;
                return Ok(None);
            }
            Err(error) => return Err(self.refused(error)),
        };
        // A short receive has emptied the socket: edge-triggered readiness reports later input. Only an end of stream
        // that arrived before the receive is not reported again, nor a record without data behind those with data.
        self.readable = received == asked || self.ended || self.link.is_in_kernel();
        self.last_active = io.now;
        io.home.stats.bytes_in.fetch_add(received as u64, Relaxed);
        Ok(Some(received))
    }

    /// Notes the progress after the bytes of a receive are handled. `before` = the number of records before that.
    pub(super) fn note_received<S: Service>(
        &mut self,
        (received, asked): (usize, usize),
        before: u64,
        io: &mut Io<S>,
    ) {
        // The work includes bytes of incomplete records.
        io.work += received;
        if self.ended && received < asked && self.backlog.is_none() && !self.link.is_in_kernel() {
            self.closing.get_or_insert(CloseReason::PeerClosed);
        }
        self.input.moved(self.assembler.arrived() as u64, io.records > before, io.now);
        self.begun = match self.begun.filter(|_| io.records == before) {
            begun if self.is_within_record() => begun.or(Some(io.now)),
            _ => None,
        };
    }

    /// Returns true if the beginning of a record has arrived, and its end has not.
    pub(super) fn is_within_record(&self) -> bool {
        self.assembler.partial() || self.sealed.is_some()
    }
}
