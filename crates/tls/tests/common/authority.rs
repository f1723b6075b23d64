//! Certificates in a directory, and clients that trust them. The tests of other crates use this module as well.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedCipherSuite};
use tempfile::TempDir;

/// An authority with a directory for files.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: TempDir,
}

/// The files of a certificate and its key.
pub(crate) struct Pair {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) der: rustls::pki_types::CertificateDer<'static>,
    secret: Vec<u8>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // OpenSSL takes a certificate whose subject is its issuer as self-signed.
        params.distinguished_name.push(DnType::CommonName, "an authority of tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, dir }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Issues a certificate for host names and addresses.
    pub(crate) fn issue(&self, file: &str, names: &[&str]) -> Pair {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let issued = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        let path = |end: &str| self.dir.path().join(format!("{file}.{end}"));
        let (certificate, key_file) = (path("pem"), path("key"));
        std::fs::write(&certificate, issued.pem()).unwrap();
        std::fs::write(&key_file, key.serialize_pem()).unwrap();
        set_mode(&key_file, 0o600);
        Pair { certificate, key: key_file, der: issued.der().clone(), secret: key.serialize_der() }
    }

    /// Returns a client that trusts this authority, with a certificate if one is given.
    pub(crate) fn client(&self, identity: Option<&Pair>) -> ClientConnection {
        self.client_with(identity, ring::DEFAULT_CIPHER_SUITES)
    }

    /// Returns a client that offers only these ciphers.
    pub(crate) fn client_with(
        &self,
        identity: Option<&Pair>,
        suites: &[SupportedCipherSuite],
    ) -> ClientConnection {
        let config = self.client_config(identity, suites);
        ClientConnection::new(config, ServerName::try_from("server.example").unwrap()).unwrap()
    }

    /// Returns the configuration of a client that offers only these ciphers.
    pub(crate) fn client_config(
        &self,
        identity: Option<&Pair>,
        suites: &[SupportedCipherSuite],
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let mut provider = ring::default_provider();
        provider.cipher_suites = suites.to_vec();
        let builder = ClientConfig::builder_with_provider(Arc::new(provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        Arc::new(match identity {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let key = rustls::pki_types::PrivatePkcs8KeyDer::from(pair.secret.clone());
                builder.with_client_auth_cert(vec![pair.der.clone()], key.into()).unwrap()
            }
        })
    }
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}
