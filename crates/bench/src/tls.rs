//! RPC-with-TLS (RFC 9289) as a client: trust in the server's certificate, and the bytes of a secured connection.

use std::fmt;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

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

/// A TLS session over a socket.
pub(crate) struct Secured {
    session: ClientConnection,
    sealed: Vec<u8>,
}

impl Secured {
    /// Carries out the handshake on a blocking socket on which the server has agreed to TLS.
    pub(crate) fn begin(trust: &Trust, stream: &mut TcpStream) -> io::Result<Self> {
        let session = ClientConnection::new(Arc::clone(&trust.config), trust.server.clone());
        let mut session = session.map_err(io::Error::other)?;
        session.set_buffer_limit(Some(WRITE_SIZE));
        session.complete_io(stream)?;
        Ok(Self { session, sealed: vec![0; READ_SIZE] })
    }

    /// Seals bytes from the front of `plain`, and sends as many as the socket takes. Returns the number of bytes that
    /// the session has taken.
    pub(crate) fn send(&mut self, stream: &mut TcpStream, plain: &[u8]) -> io::Result<usize> {
        self.flush(stream)?;
        let taken = self.session.writer().write(plain)?;
        match self.flush(stream) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Sends all sealed bytes. Fails with `WouldBlock` if the socket takes no more.
    pub(crate) fn flush(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(stream)?;
        }
        Ok(())
    }

    /// Reads from the socket once, and adds the opened bytes behind the first `end` bytes of `plain`. Returns the new
    /// end, or `None` at the end of the stream.
    pub(crate) fn receive(
        &mut self,
        stream: &mut TcpStream,
        plain: &mut Vec<u8>,
        mut end: usize,
    ) -> io::Result<Option<usize>> {
        let count = stream.read(&mut self.sealed)?;
        if count == 0 {
            return Ok(None);
        }
        let mut sealed = &self.sealed[..count];
        while !sealed.is_empty() {
            self.session.read_tls(&mut sealed)?;
            let state = self.session.process_new_packets();
            let opened = state.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            let new_end = end + opened.plaintext_bytes_to_read();
            if plain.len() < new_end {
                plain.resize(new_end + READ_SIZE, 0);
            }
            self.session.reader().read_exact(&mut plain[end..new_end])?;
            end = new_end;
        }
        Ok(Some(end))
    }
}
