//! RPC-with-TLS (RFC 9289) as a client: trust in the server's certificate, and the bytes of a secured connection.

use std::fmt;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use forebay_tls::{ClientSession, SessionError};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::url::TlsFiles;

/// The name of RPC in a handshake (RFC 9289 section 8.2).
const ALPN: &[u8] = b"sunrpc";
/// Most sealed bytes received at once.
const READ_SIZE: usize = 256 << 10;
/// Most sealed bytes that wait for the socket. A request of 1 MiB passes as a whole.
const WRITE_SIZE: usize = 2 << 20;

/// The address of an RPC program, and the trust in its certificate if connections are secured.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) trust: Option<Trust>,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Self { address, trust: None }
    }
}

/// The trust in a server's certificate.
#[derive(Clone)]
pub(crate) struct Trust {
    config: Arc<ClientConfig>,
    server: ServerName<'static>,
}

impl Trust {
    /// Reads the files for connections to `host`, a name or an address that the server's certificate must have.
    pub(crate) fn load(files: &TlsFiles, host: &str) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for authority in certificates(&files.authorities)? {
            let unusable = || format!("an authority in {} cannot be used", files.authorities.display());
            roots.add(authority).with_context(unusable)?;
        }
        let builder = ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS13]);
        let builder = builder.with_root_certificates(roots);
        let mut config = match &files.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let private = PrivateKeyDer::from_pem_file(key)
                    .with_context(|| format!("{} has no private key in PEM form", key.display()))?;
                builder.with_client_auth_cert(certificates(certificate)?, private).with_context(|| {
                    format!("{} cannot be used with {}", certificate.display(), key.display())
                })?
            }
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        let server = ServerName::try_from(host.to_owned())
            .with_context(|| format!("{host} cannot be the name of a certificate"))?;
        Ok(Self { config: Arc::new(config), server })
    }
}

/// Reads the certificates of a file in PEM form, of which there must be one at least.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let unusable = || format!("{} has no certificates in PEM form", path.display());
    let read = CertificateDer::pem_file_iter(path).with_context(unusable)?;
    let certificates: Vec<_> = read.collect::<Result<_, _>>().with_context(unusable)?;
    if certificates.is_empty() {
        bail!(unusable());
    }
    Ok(certificates)
}

/// A TLS session over a socket. Received bytes are opened where the socket has put them, as the kernel does it.
pub(crate) struct Secured {
    session: ClientSession,
    /// Received bytes, sealed.
    received: Vec<u8>,
    /// Sealed bytes for the socket, of which the first `sent` are gone.
    sealed: Vec<u8>,
    sent: usize,
    end: usize,
}

impl Secured {
    /// Carries out the handshake on a blocking socket on which the server has agreed to TLS.
    pub(crate) fn begin(trust: &Trust, stream: &mut TcpStream) -> io::Result<Self> {
        let session = ClientSession::connect(Arc::clone(&trust.config), trust.server.clone());
        let session = session.map_err(invalid)?;
        let received = vec![0; READ_SIZE];
        let mut secured = Self { session, received, sealed: Vec::new(), sent: 0, end: 0 };
        let mut count = 0;
        loop {
            let mut answer = Vec::new();
            let opened = secured.session.open(&mut secured.received[..count], &mut Vec::new(), &mut answer);
            stream.write_all(&answer)?;
            opened.map_err(invalid)?;
            if !secured.session.is_handshaking() {
                return Ok(secured);
            }
            count = stream.read(&mut secured.received)?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Seals bytes from the front of `plain`, and sends as many as the socket takes. Returns the number of bytes that
    /// the session has taken.
    pub(crate) fn send(&mut self, stream: &mut TcpStream, plain: &[u8]) -> io::Result<usize> {
        self.flush(stream)?;
        let plain = &plain[..plain.len().min(WRITE_SIZE)];
        self.end = self.session.seal(plain, &mut self.sealed).map_err(invalid)?;
        self.sent = 0;
        match self.flush(stream) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(plain.len()),
        }
    }

    /// Sends all sealed bytes. Fails with `WouldBlock` if the socket takes no more.
    pub(crate) fn flush(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        while self.sent < self.end {
            self.sent += stream.write(&self.sealed[self.sent..self.end])?;
        }
        Ok(())
    }

    /// Reads from the socket once, and appends the opened bytes to `plain`. Returns the new length of `plain`, or
    /// `None` at the end of the stream.
    pub(crate) fn receive(
        &mut self,
        stream: &mut TcpStream,
        plain: &mut Vec<u8>,
    ) -> io::Result<Option<usize>> {
        let count = stream.read(&mut self.received)?;
        if count == 0 {
            return Ok(None);
        }
        // An answer to new keys goes with the next call, and an alert is for a server that is given up.
        let opened = self.session.open(&mut self.received[..count], plain, &mut Vec::new());
        let is_closed = opened.map_err(invalid)?.is_closed;
        Ok((!is_closed).then_some(plain.len()))
    }
}

/// Returns the failure of a session as one of its socket.
fn invalid(error: SessionError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}
