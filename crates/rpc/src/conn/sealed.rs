//! The receiving side of TLS: the bytes of a handshake, and sealed records after it.

use std::sync::Arc;

use forebay_tls::Opened;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::{Conn, Io, Turn};
use crate::handshake::{Handshake, LONGEST, Step, Stepped};
use crate::kernel_tls::{Control, is_refusal, receive_control};
use crate::service::{Security, Service};
use crate::stats::CloseReason;

/// The largest number of sealed bytes that a session keeps until more arrive. A record has at most 16,645 bytes (RFC
/// 8446 section 5.2). Only messages of the protocol itself may span records, and clients send none that are longer.
const LONGEST_RECORD: usize = 32 << 10;

impl Conn {
    /// Begins a handshake, because the peer has asked for one.
    pub(super) fn begin_handshake<S: Service>(&mut self, io: &Io<S>) -> Result<(), CloseReason> {
        let session = io.home.tls.as_ref().and_then(|tls| tls.keyring.session());
        let session = session.ok_or(CloseReason::Tls)?;
        self.handshake = Some(Box::new(Handshake::new(session, &self.link, io.now)));
        Ok(())
    }

    /// Receives a record of the handshake, and gives it to a worker. Receives nothing while a worker has the session.
    pub(super) fn shake_hands<S: Service>(&mut self, io: &mut Io<S>) -> Result<(), CloseReason> {
        while self.readable
            && let Some(handshake) = &mut self.handshake
        {
            let asked = handshake.wanted().min(io.scratch.len());
            if asked == 0 {
                break;
            }
            let received = recv(self.link.fd(), &mut io.scratch[..asked], RecvFlags::DONTWAIT);
            let Some(received) = self.received(received.map(|(n, _)| n), asked, io)? else { break };
            io.work += received;
            let Some(handshake) = &mut self.handshake else { break };
            handshake.add(&io.scratch[..received]);
            if handshake.received > LONGEST {
                self.fault = Some("the handshake is too long".to_owned());
                return Err(CloseReason::Tls);
            }
        }
        self.step(io);
        Ok(())
    }

    /// Gives the received bytes of the handshake to a worker.
    fn step<S: Service>(&mut self, io: &Io<S>) {
        let (Some(handshake), Some(tls)) = (&mut self.handshake, &io.home.tls) else { return };
        if !handshake.is_ready() {
            return;
        }
        let Some((session, input)) = handshake.take() else { return };
        let step = Step { link: Arc::clone(&self.link), session, input };
        let (address, bytes) = (self.link.peer().addr.ip(), step.input.len());
        if let Err(step) = tls.workers.submit(address, bytes, step) {
            handshake.put_back(step.session, step.input);
            self.starved = true;
        }
    }

    /// Returns the next action of the loop during a handshake.
    pub(super) fn next_of_handshake(&self) -> Turn {
        match self.handshake.as_deref() {
            _ if self.starved => Turn::Starved,
            Some(handshake) if handshake.is_ready() || self.readable && handshake.wanted() > 0 => Turn::Again,
            _ => Turn::Wait,
        }
    }

    /// Continues after a worker's step. The caller gives the connection a turn.
    pub(crate) fn stepped<S: Service>(&mut self, stepped: Stepped, io: &Io<S>) -> Result<(), CloseReason> {
        let Some(mut handshake) = self.handshake.take() else { return Ok(()) };
        match stepped {
            Stepped::Failed(fault) => {
                self.fault = Some(fault);
                // The alert reaches the peer before the end of the connection.
                self.closing.get_or_insert(CloseReason::Tls);
            }
            Stepped::Unfinished(session) => {
                handshake.session = Some(session);
                self.handshake = Some(handshake);
                self.step(io);
            }
            Stepped::Complete { client, protection, plain } => {
                // A connection has one handshake.
                let _ = self.link.peer().security.set(Security { client });
                self.link.secure(protection);
                self.keep(&plain);
            }
        }
        Ok(())
    }

    /// Receives sealed bytes once, and handles the records of RPC in them.
    pub(super) fn receive_sealed<S: Service>(
        &mut self,
        scratch: &mut [u8],
        io: &mut Io<S>,
    ) -> Result<(), CloseReason> {
        let asked = scratch.len();
        let received = recv(self.link.fd(), &mut *scratch, RecvFlags::DONTWAIT).map(|(n, _)| n);
        let Some(received) = self.received(received, asked, io)? else { return Ok(()) };
        let mut plain = std::mem::take(&mut io.plain);
        plain.clear();
        let before = io.records;
        let mut handled = self.open(&mut scratch[..received], &mut plain);
        if handled.is_ok() {
            let mut input = &plain[..];
            handled = self.consume(&mut input, io);
            self.keep(input);
        }
        io.plain = plain;
        handled?;
        self.note_received((received, asked), before, io);
        Ok(())
    }

    /// Receives the record without data that is next on a socket with the keys. Fails with the reason to close the
    /// connection.
    pub(super) fn receive_control(&mut self) -> Result<(), CloseReason> {
        match receive_control(self.link.fd()) {
            Ok(Control::Closed) => self.took_leave = true,
            Ok(Control::Nothing) => {}
            // The kernel cannot open the records behind this one. What was asked before is answered.
            Ok(Control::NewKeys) => {
                self.closing.get_or_insert(CloseReason::KeysUsedUp);
            }
            Ok(Control::Alert(number)) => {
                self.fault = Some(format!("the peer has failed with alert {number}"));
                return Err(CloseReason::Tls);
            }
            Ok(Control::Forbidden) => {
                self.fault = Some("the peer sends a record that it must not send".to_owned());
                return Err(CloseReason::Tls);
            }
            Err(error) => return Err(self.refused(error)),
        }
        Ok(())
    }

    /// Returns the reason to close a connection whose socket has failed.
    pub(super) fn refused(&mut self, error: Errno) -> CloseReason {
        if !self.link.is_in_kernel() || !is_refusal(error) {
            return CloseReason::SocketError;
        }
        self.fault = Some("a record was changed on its way, or is none".to_owned());
        CloseReason::Tls
    }

    /// Opens sealed bytes, and appends their plain text to `plain`.
    fn open(&mut self, bytes: &mut [u8], plain: &mut Vec<u8>) -> Result<(), CloseReason> {
        let Some(secured) = self.link.secured() else { return Ok(()) };
        let opened = secured.session().open(bytes, plain, &mut Vec::new());
        let Opened { kept, is_closed } = opened.map_err(|error| {
            self.fault = Some(error.to_string());
            CloseReason::Tls
        })?;
        if kept > LONGEST_RECORD {
            self.fault = Some("a message inside the session is too long".to_owned());
            return Err(CloseReason::Tls);
        }
        self.sealed = (kept > 0).then(|| self.link.account().charge(kept));
        self.took_leave |= is_closed;
        Ok(())
    }
}
