//! The identity of a client, from its certificate.

use std::fmt;

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::ParsedCertificate;
use sha2::{Digest, Sha256};

/// The identity of a client whose certificate was verified in the handshake: an authority of the server has signed the
/// certificate, the certificate is valid now, and the client has its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    certificate: CertificateDer<'static>,
    fingerprint: [u8; 32],
}

impl Identity {
    /// Makes the identity of a client from its certificate, which the handshake has verified.
    pub(crate) fn new(certificate: CertificateDer<'static>) -> Self {
        let fingerprint = Sha256::digest(&certificate).into();
        Self { certificate, fingerprint }
    }

    /// Returns the SHA-256 digest of the certificate in DER form.
    pub fn fingerprint(&self) -> &[u8; 32] {
        &self.fingerprint
    }

    /// Returns true if the certificate's alternative names (RFC 5280 section 4.2.1.6) include this host name or IP
    /// address. A name `*.example.org` in the certificate includes every host of that domain.
    pub fn has_name(&self, name: &str) -> bool {
        let (Ok(name), Ok(parsed)) =
            (ServerName::try_from(name), ParsedCertificate::try_from(&self.certificate))
        else {
            return false;
        };
        verify_server_name(&parsed, &name).is_ok()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.fingerprint.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
