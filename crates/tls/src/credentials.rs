//! The server's certificate and key, and the authorities that sign the certificates of clients.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_common::lock::RwLock;
use forebay_common::named_file;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{CipherSuite, RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};

use crate::session::Session;

/// The name of RPC in a handshake (RFC 9289 section 8.2). A client that names no protocol is accepted as well.
const ALPN: &[u8] = b"sunrpc";
/// The name of HTTP in a handshake (RFC 7301 section 6).
const HTTP: &[u8] = b"http/1.1";
/// The largest accepted file in bytes.
const LARGEST: u64 = 1 << 20;
/// The permissions that a private key must not give: those of users who are neither its owner nor in its group.
const OTHERS: u32 = 0o007;

/// A failure to read the files of TLS. The text names the file and the remedy, and never a part of the key.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}; correct the path, or make the file readable for the server", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Every user of the host may use the private key.
    #[error("the private key {} is accessible to every user (mode {mode:03o}); run: chmod o= {}", path.display(), path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A file does not have the expected contents.
    #[error("{} has no {expected} in PEM form{}; name another file", path.display(), detail(reason))]
    Contents {
        /// The file.
        path: PathBuf,
        /// The expected contents.
        expected: &'static str,
        /// The parser's message; may be empty.
        reason: String,
    },
    /// The certificate and the key do not belong together, or cannot be used.
    #[error("the certificate {} cannot be used with the key {}: {reason}", certificate.display(), key.display())]
    Pair {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// The library's message.
        reason: String,
    },
    /// The authorities for clients cannot be used.
    #[error("the authorities of clients in {} cannot be used: {reason}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// The library's message.
        reason: String,
    },
}

fn detail(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(" ({reason})") }
}

/// A certificate with its key, ready for handshakes.
#[derive(Clone)]
pub struct Credentials {
    config: Arc<ServerConfig>,
    /// The configuration for HTTP, which asks no client for a certificate.
    http: Arc<ServerConfig>,
    /// The digest of all files.
    digest: [u8; 32],
}

impl Credentials {
    /// Reads the server's certificate chain, its private key, and the authorities for the certificates of clients.
    /// Without `client_ca`, clients are not asked for certificates. With it, a client may show a certificate of one of
    /// these authorities, or none.
    ///
    /// # Errors
    /// [`LoadError`], if a file is missing or unusable, or if every user of the host may use the key.
    pub fn load(certificate: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Self, LoadError> {
        let mut digest = Sha256::new();
        let chain = certificates(certificate, &mut digest)?;
        let private = private_key(key, &mut digest)?;
        let wrong_pair = |error: rustls::Error| LoadError::Pair {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            reason: error.to_string(),
        };
        let http =
            ServerConfig::builder_with_protocol_versions(&[&rustls::version::TLS13]).with_no_client_auth();
        let http = http.with_single_cert(chain.clone(), private.clone_key()).map_err(wrong_pair)?;
        let builder = ServerConfig::builder_with_provider(Arc::new(quickest_first()));
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).map_err(wrong_pair)?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let refused = |reason: String| LoadError::Authorities { path: path.to_owned(), reason };
                let mut roots = RootCertStore::empty();
                for authority in certificates(path, &mut digest)? {
                    roots.add(authority).map_err(|error| refused(error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder(roots.into()).allow_unauthenticated();
                builder
                    .with_client_cert_verifier(verifier.build().map_err(|error| refused(error.to_string()))?)
            }
        };
        let config = builder.with_single_cert(chain, private).map_err(wrong_pair)?;
        let [mut config, http] = [(config, ALPN), (http, HTTP)].map(|(config, name)| named(config, name));
        // The kernel may continue a session of RPC.
        config.enable_secret_extraction = true;
        config.ignore_client_order = true;
        let [config, http] = [config, http].map(Arc::new);
        Ok(Self { config, http, digest: digest.finalize().into() })
    }
}

/// Returns the ciphers in the order in which the server chooses: clients prefer AES-256, with four rounds more for each
/// block than AES-128. A client that insists on AES-256 offers nothing else.
fn quickest_first() -> CryptoProvider {
    let mut provider = ring::default_provider();
    provider.cipher_suites.sort_by_key(|suite| match suite.suite() {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => 0,
        CipherSuite::TLS13_AES_256_GCM_SHA384 => 1,
        _ => 2,
    });
    provider
}

/// Returns the configuration for a protocol with this name in handshakes.
fn named(mut config: ServerConfig, protocol: &[u8]) -> ServerConfig {
    config.alpn_protocols = vec![protocol.to_vec()];
    // No session is resumed: a client with a ticket would keep its access after its certificate has expired.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config
}

impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

/// The credentials in force, which may be replaced in service. Sessions that exist keep theirs.
#[derive(Debug, Default)]
pub struct Keyring {
    now: RwLock<Option<Credentials>>,
}

impl Keyring {
    /// Returns a keyring; without credentials it makes no sessions.
    pub fn new(credentials: Option<Credentials>) -> Self {
        Self { now: RwLock::new(credentials) }
    }

    /// Replaces the credentials for the handshakes that begin from now on. Returns true if they differ from the
    /// previous ones.
    pub fn replace(&self, credentials: Option<Credentials>) -> bool {
        let mut now = self.now.write();
        let differ = *now != credentials;
        *now = credentials;
        differ
    }

    /// Returns true if there are no credentials.
    pub fn is_empty(&self) -> bool {
        self.now.read().is_none()
    }

    /// Returns a session for a new handshake; none without credentials.
    pub fn session(&self) -> Option<Session> {
        let config = Arc::clone(&self.now.read().as_ref()?.config);
        Session::new(config)
    }
}

impl Keyring {
    /// Returns a session of HTTP for a new handshake; none without credentials.
    pub fn http_session(&self) -> Option<Session> {
        let config = Arc::clone(&self.now.read().as_ref()?.http);
        Session::new(config)
    }
}

/// Reads a file of certificates or keys, at most `LARGEST` bytes of it. The path is only for the error.
fn read(file: &mut File, path: &Path) -> Result<Vec<u8>, LoadError> {
    let mut bytes = Vec::new();
    let read = file.take(LARGEST).read_to_end(&mut bytes);
    read.map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
    Ok(bytes)
}

fn open(path: &Path) -> Result<File, LoadError> {
    named_file::open(path).map_err(|source| LoadError::Read { path: path.to_owned(), source })
}

/// Returns the certificates of a file, at least one.
fn certificates(path: &Path, digest: &mut Sha256) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let bytes = read(&mut open(path)?, path)?;
    let wrong =
        |reason: String| LoadError::Contents { path: path.to_owned(), expected: "certificate", reason };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    // The parser's messages show bytes as numbers.
    let found = found.map_err(|_| wrong("damaged".into()))?;
    if found.is_empty() {
        return Err(wrong(String::new()));
    }
    found.iter().for_each(|certificate| digest.update(certificate));
    Ok(found)
}

/// Returns the private key of a file that other users of the host cannot use.
fn private_key(path: &Path, digest: &mut Sha256) -> Result<PrivateKeyDer<'static>, LoadError> {
    let mut file = open(path)?;
    let metadata = file.metadata().map_err(|source| LoadError::Read { path: path.to_owned(), source })?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & OTHERS != 0 {
        return Err(LoadError::Exposed { path: path.to_owned(), mode });
    }
    let bytes = read(&mut file, path)?;
    let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| LoadError::Contents {
        path: path.to_owned(),
        expected: "private key",
        // The parser's messages quote the file.
        reason: if matches!(error, pem::Error::NoItemsFound) { "" } else { "damaged" }.to_owned(),
    })?;
    digest.update(key.secret_der());
    Ok(key)
}
