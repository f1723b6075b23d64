//! The session of one connection, over bytes that the caller receives and sends.

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic,
};
use rustls::{ClientConfig, ServerConfig};

use crate::identity::Identity;
use crate::kernel::{Cipher, CryptoInfo, KernelKeys};
use crate::side::Side;

/// The size of what TLS adds to a record: its header, the content type, and the tag.
const OVERHEAD: usize = 5 + 1 + 16;
/// The largest number of plain bytes in a record (RFC 8446 section 5.1).
const RECORD: usize = 1 << 14;

/// A failure of a session. The connection has to be closed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The peer violates the protocol, or its certificate is not accepted.
    #[error("{0}")]
    Refused(rustls::Error),
    /// The session cannot seal any more bytes.
    #[error("the keys of the session are used up")]
    UsedUp,
    /// The session is in a state that does not allow the operation.
    #[error("the session does not allow this now")]
    State,
}

/// The result of opening received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// The number of received bytes that the session keeps, because the rest of their record has not arrived.
    pub kept: usize,
    /// True if the peer has announced that it sends no more (close_notify). Bytes behind that are dropped.
    pub is_closed: bool,
}

/// One TLS session, from its handshake on: the server's side of it, unless it is a [`ClientSession`].
pub struct Session<S = UnbufferedServerConnection> {
    inner: S,
    /// The beginning of an incomplete record or message. The library remembers places in these bytes, so it gets them
    /// in every call.
    kept: Vec<u8>,
    is_closed: bool,
}

/// The client's side of a session. The first call of [`open`](Session::open) has no bytes, and answers with the first
/// message of the handshake.
pub type ClientSession = Session<UnbufferedClientConnection>;

impl ClientSession {
    /// Begins the session of a new connection to the server of this name.
    ///
    /// # Errors
    /// [`SessionError::Refused`], if the configuration is unusable.
    pub fn connect(config: Arc<ClientConfig>, server: ServerName<'static>) -> Result<Self, SessionError> {
        let inner = UnbufferedClientConnection::new(config, server).map_err(SessionError::Refused)?;
        Ok(Self { inner, kept: Vec::new(), is_closed: false })
    }
}

impl Session {
    /// Begins the session of a new connection. `None` if the configuration is unusable.
    pub(crate) fn new(config: Arc<ServerConfig>) -> Option<Self> {
        let inner = UnbufferedServerConnection::new(config).ok()?;
        Some(Self { inner, kept: Vec::new(), is_closed: false })
    }

    /// Returns the identity of the client, if it has shown a certificate.
    pub fn identity(&self) -> Option<Identity> {
        let certificate = self.inner.peer_certificates()?.first()?;
        Some(Identity::new(certificate.clone().into_owned()))
    }

    /// Returns the cipher with which the kernel can continue the session. Returns none during the handshake, while the
    /// session keeps a part of a record, and after its end.
    pub fn cipher_for_kernel(&self) -> Option<Cipher> {
        if self.is_handshaking() || !self.kept.is_empty() || self.is_closed {
            return None;
        }
        Cipher::of(self.inner.negotiated_cipher_suite()?.suite())
    }

    /// Ends the session, and returns its keys. [`cipher_for_kernel`](Self::cipher_for_kernel) has returned the cipher,
    /// and the peer has got every byte that the session has made.
    ///
    /// # Errors
    /// [`SessionError`], if the keys cannot be had.
    pub fn into_keys(self) -> Result<KernelKeys, SessionError> {
        self.cipher_for_kernel().ok_or(SessionError::State)?;
        let (secrets, connection) =
            self.inner.dangerous_into_kernel_connection().map_err(SessionError::Refused)?;
        let ((sent, send), (received, receive)) = (secrets.tx, secrets.rx);
        let suite = connection.negotiated_cipher_suite().tls13().ok_or(SessionError::State)?;
        let limit = suite.common.confidentiality_limit;
        Ok(KernelKeys {
            send: CryptoInfo::of(&send, sent).ok_or(SessionError::State)?,
            receive: CryptoInfo::of(&receive, received).ok_or(SessionError::State)?,
            records: limit.saturating_sub(sent),
        })
    }
}

impl<S: Side> Session<S> {
    /// Returns true until the handshake is complete.
    pub fn is_handshaking(&self) -> bool {
        self.inner.common().is_handshaking()
    }

    /// Takes received bytes. Appends their plain text to `plain`, and to `answer` the bytes that the peer must get
    /// next. During the handshake this takes milliseconds of processor time.
    ///
    /// # Errors
    /// [`SessionError`]. `answer` then has the alert for the peer, and the session is of no further use.
    pub fn open(
        &mut self,
        received: &mut [u8],
        plain: &mut Vec<u8>,
        answer: &mut Vec<u8>,
    ) -> Result<Opened, SessionError> {
        let mut kept = std::mem::take(&mut self.kept);
        let used = if kept.is_empty() {
            let used = self.process(received, plain, answer)?;
            kept.extend_from_slice(&received[used..]);
            0
        } else {
            kept.extend_from_slice(received);
            self.process(&mut kept, plain, answer)?
        };
        if !self.is_closed {
            kept.drain(..used);
            self.kept = kept;
        }
        Ok(Opened { kept: self.kept.len(), is_closed: self.is_closed })
    }

    /// Processes `bytes` up to the first incomplete record. Returns the number of bytes that are used up.
    fn process(
        &mut self,
        bytes: &mut [u8],
        plain: &mut Vec<u8>,
        answer: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        let mut used = 0;
        loop {
            let UnbufferedStatus { discard, state } = self.inner.process(&mut bytes[used..]);
            let mut at_end = false;
            match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        plain.extend_from_slice(record.map_err(SessionError::Refused)?.payload);
                    }
                }
                Ok(ConnectionState::EncodeTlsData(data)) => encode(data, answer)?,
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                Ok(ConnectionState::PeerClosed) => self.is_closed = true,
                Ok(
                    ConnectionState::WriteTraffic(_)
                    | ConnectionState::BlockedHandshake
                    | ConnectionState::Closed,
                ) => at_end = true,
                Ok(_) => return Err(SessionError::State),
                Err(error) => {
                    self.alert(&mut bytes[used + discard..], answer);
                    return Err(SessionError::Refused(error));
                }
            }
            used += discard;
            if at_end {
                return Ok(used);
            }
        }
    }

    /// Appends the alert that a failure has left. `bytes` are those that the failure has not used up.
    fn alert(&mut self, bytes: &mut [u8], answer: &mut Vec<u8>) {
        let UnbufferedStatus { state: Ok(ConnectionState::EncodeTlsData(data)), .. } =
            self.inner.process(bytes)
        else {
            return;
        };
        // Without an alert the peer sees the end of the connection.
        let _ = encode(data, answer);
    }

    /// Seals `plain` for the peer into the front of `out`, which grows as necessary. Returns the number of bytes.
    ///
    /// # Errors
    /// [`SessionError`] before the end of the handshake, and after too many bytes.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<usize, SessionError> {
        let size = plain.len() + plain.len().div_ceil(RECORD) * OVERHEAD;
        if out.len() < size {
            out.resize(size, 0);
        }
        let mut traffic = self.traffic()?;
        loop {
            match traffic.encrypt(plain, out) {
                Ok(sealed) => return Ok(sealed),
                // The peer has asked for new keys: the announcement of new keys goes first.
                Err(EncryptError::InsufficientSize(more)) => out.resize(more.required_size, 0),
                Err(EncryptError::EncryptExhausted) => return Err(SessionError::UsedUp),
            }
        }
    }

    /// Returns the message that the server sends no more (close_notify); none before the end of the handshake.
    pub fn farewell(&mut self) -> Option<Vec<u8>> {
        let mut out = vec![0; 64];
        let length = self.traffic().ok()?.queue_close_notify(&mut out).ok()?;
        out.truncate(length);
        Some(out)
    }

    /// Returns the library's state in which bytes can be sealed. A server that has sent its part of the handshake might
    /// send already; this one waits for the client's part, which has the client's certificate.
    fn traffic(&mut self) -> Result<WriteTraffic<'_, S::Data>, SessionError> {
        if self.is_handshaking() {
            return Err(SessionError::State);
        }
        match self.inner.process(&mut self.kept).state {
            Ok(ConnectionState::WriteTraffic(traffic)) => Ok(traffic),
            Ok(_) => Err(SessionError::State),
            Err(error) => Err(SessionError::Refused(error)),
        }
    }
}

/// Appends a record of TLS to the bytes that the caller sends. Asks first for the record's size, which only rustls
/// knows.
fn encode<Data>(mut data: EncodeTlsData<'_, Data>, out: &mut Vec<u8>) -> Result<(), SessionError> {
    let start = out.len();
    if let Err(EncodeError::InsufficientSize(more)) = data.encode(&mut []) {
        out.resize(start + more.required_size, 0);
        data.encode(&mut out[start..]).map_err(|_| SessionError::State)?;
    }
    Ok(())
}
