//! The receiving side of TLS: the bytes of a handshake, and sealed records after it.

use std::sync::Arc;

use forebay_tls::Opened;
use rustix::net::{RecvFlags, recv};

use super::{Conn, Io, Turn};
use crate::handshake::{Handshake, LONGEST, MOST, Step, Stepped};
use crate::secured::Secured;
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

    /// Receives bytes of the handshake, and gives them to a worker unless one has the session.
    pub(super) fn shake_hands<S: Service>(&mut self, io: &mut Io<S>) -> Result<(), CloseReason> {
        let Some(handshake) = &mut self.handshake else { return Ok(()) };
        if self.readable && handshake.input.len() < MOST {
            let asked = io.scratch.len();
            let received = recv(self.link.fd(), &mut io.scratch[..], RecvFlags::DONTWAIT).map(|(n, _)| n);
            let Some(received) = self.received(received, asked, io)? else { return Ok(()) };
            io.work += received;
            let Some(handshake) = &mut self.handshake else { return Ok(()) };
            handshake.input.extend_from_slice(&io.scratch[..received]);
            handshake.received += received;
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
        if handshake.input.is_empty() {
            return;
        }
        let Some(session) = handshake.session.take() else { return };
        let step =
            Step { link: Arc::clone(&self.link), session, input: std::mem::take(&mut handshake.input) };
        let (address, bytes) = (self.link.peer().addr.ip(), step.input.len());
        if let Err(step) = tls.workers.submit(address, bytes, step) {
            handshake.session = Some(step.session);
            handshake.input = step.input;
            self.starved = true;
        }
    }

    /// Returns the next action of the loop during a handshake.
    pub(super) fn next_of_handshake(&self) -> Turn {
        match self.handshake.as_deref() {
            _ if self.starved => Turn::Starved,
            Some(Handshake { session, input, .. })
                if self.readable && input.len() < MOST || session.is_some() && !input.is_empty() =>
            {
                Turn::Again
            }
            _ => Turn::Wait,
        }
    }

    /// Continues after a worker's step. The caller gives the connection a turn.
    pub(crate) fn stepped<S: Service>(&mut self, stepped: Stepped, io: &Io<S>) -> Result<(), CloseReason> {
        let Some(mut handshake) = self.handshake.take() else { return Ok(()) };
        let Stepped { session, mut plain, fault } = stepped;
        if fault.is_some() {
            self.fault = fault;
            // The alert reaches the peer before the end of the connection.
            self.closing.get_or_insert(CloseReason::Tls);
            return Ok(());
        }
        if session.is_handshaking() {
            handshake.session = Some(session);
            self.handshake = Some(handshake);
            self.step(io);
            return Ok(());
        }
        let security = Security { client: session.identity() };
        // A connection has one handshake.
        let _ = self.link.peer().security.set(security);
        self.link.secure(Secured::new(*session));
        self.open(&mut handshake.input, &mut plain)?;
        self.keep(&plain);
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
