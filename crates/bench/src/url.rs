//! URLs of exports, `nfs://HOST[:PORT]/EXPORT[?OPTION&...]`: the form of RFC 2224 with options.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::tls::{Peer, Trust};

/// An export of an NFS server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Target {
    /// Name or address of the host; an IPv6 address has no brackets here.
    pub host: String,
    /// Port of NFS; with `None` the port mapper is asked.
    pub port: Option<u16>,
    /// Port of MOUNT; with `None` the port of NFS is tried, then the port mapper is asked.
    pub mount_port: Option<u16>,
    /// Path of the export, with its leading slash.
    pub export: String,
    /// Files with which connections are secured; with `None` they are plain.
    pub tls: Option<TlsFiles>,
}

/// The files with which connections are secured, in PEM form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities of which one has signed the server's certificate.
    pub authorities: PathBuf,
    /// The certificate and the private key that a client shows, if it shows one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl TryFrom<String> for Target {
    type Error = anyhow::Error;

    fn try_from(url: String) -> Result<Self> {
        url.parse()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> String {
        target.to_string()
    }
}

impl FromStr for Target {
    type Err = anyhow::Error;

    fn from_str(url: &str) -> Result<Self> {
        let rest = url.strip_prefix("nfs://").with_context(|| {
            format!("the URL {url} does not begin with nfs://; write nfs://HOST[:PORT]/EXPORT")
        })?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        let (host, port) = split_port(authority)?;
        if host.is_empty() {
            bail!("the URL {url} names no host; write nfs://HOST[:PORT]/EXPORT");
        }
        let (mut mount_port, mut authorities, mut certificate, mut key) = (None, None, None, None);
        for option in query.unwrap_or_default().split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                Some(("mountport", value)) => mount_port = Some(parse_port(value)?),
                Some(("tls", file)) => authorities = Some(PathBuf::from(file)),
                Some(("cert", file)) => certificate = Some(PathBuf::from(file)),
                Some(("key", file)) => key = Some(PathBuf::from(file)),
                _ => bail!(
                    "the URL {url} has an unknown option {option}; known are mountport=N, tls=FILE, cert=FILE and key=FILE"
                ),
            }
        }
        let tls = match (authorities, certificate, key) {
            (None, None, None) => None,
            (Some(authorities), None, None) => Some(TlsFiles { authorities, identity: None }),
            (Some(authorities), Some(certificate), Some(key)) => {
                Some(TlsFiles { authorities, identity: Some((certificate, key)) })
            }
            _ => bail!("the URL {url} is incomplete; cert=FILE and key=FILE go together, and with tls=FILE"),
        };
        let export = if path.is_empty() { "/".to_owned() } else { path.to_owned() };
        Ok(Self { host: host.to_owned(), port, mount_port, export, tls })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let brackets = self.host.contains(':');
        write!(
            f,
            "nfs://{}{}{}",
            if brackets { "[" } else { "" },
            self.host,
            if brackets { "]" } else { "" }
        )?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        f.write_str(&self.export)?;
        let mut options = Vec::new();
        options.extend(self.mount_port.map(|port| format!("mountport={port}")));
        if let Some(TlsFiles { authorities, identity }) = &self.tls {
            options.push(format!("tls={}", authorities.display()));
            if let Some((certificate, key)) = identity {
                options.push(format!("cert={}&key={}", certificate.display(), key.display()));
            }
        }
        match options.is_empty() {
            true => Ok(()),
            false => write!(f, "?{}", options.join("&")),
        }
    }
}

impl Target {
    /// Returns the first address of the host.
    ///
    /// # Errors
    /// The name cannot be resolved.
    pub fn address(&self) -> Result<IpAddr> {
        let resolved = (self.host.as_str(), 0).to_socket_addrs();
        let mut addresses =
            resolved.with_context(|| format!("the host {} cannot be resolved; check its name", self.host))?;
        let first = addresses.next().with_context(|| format!("the host {} has no address", self.host))?;
        Ok(first.ip())
    }

    /// Returns true if the server's address is a loopback address of this machine.
    ///
    /// # Errors
    /// The name cannot be resolved.
    pub fn is_loopback(&self) -> Result<bool> {
        Ok(self.address()?.is_loopback())
    }

    /// Returns the socket address of one of the server's ports.
    pub(crate) fn socket_address(&self, port: u16) -> Result<SocketAddr> {
        Ok(SocketAddr::new(self.address()?, port))
    }

    /// Returns one of the server's ports, with the trust for a secured connection.
    ///
    /// # Errors
    /// The name cannot be resolved, or a file of TLS cannot be used.
    pub(crate) fn peer(&self, port: u16) -> Result<Peer> {
        let trust = self.tls.as_ref().map(|files| Trust::load(files, &self.host)).transpose()?;
        Ok(Peer { address: self.socket_address(port)?, trust })
    }
}

/// Splits `HOST[:PORT]`. An IPv6 address is in brackets, which are not part of the result.
fn split_port(authority: &str) -> Result<(&str, Option<u16>)> {
    if let Some(bracketed) = authority.strip_prefix('[') {
        let (host, rest) = bracketed
            .split_once(']')
            .with_context(|| format!("the address {authority} has no closing bracket"))?;
        return Ok((host, rest.strip_prefix(':').map(parse_port).transpose()?));
    }
    match authority.split_once(':') {
        Some((host, port)) => Ok((host, Some(parse_port(port)?))),
        None => Ok((authority, None)),
    }
}

/// Parses a port from 1 to 65535.
fn parse_port(text: &str) -> Result<u16> {
    match text.parse() {
        Ok(0) | Err(_) => bail!("{text} is not a port; give a number from 1 to 65535"),
        Ok(port) => Ok(port),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(host: &str, port: Option<u16>, mount_port: Option<u16>, export: &str) -> Target {
        Target { host: host.to_owned(), port, mount_port, export: export.to_owned(), tls: None }
    }

    #[test]
    fn urls_are_parsed_and_printed() {
        let cases = [
            ("nfs://server/data", target("server", None, None, "/data")),
            ("nfs://10.0.0.1:12049/a/b", target("10.0.0.1", Some(12049), None, "/a/b")),
            ("nfs://[::1]:2049/?mountport=20048", target("::1", Some(2049), Some(20048), "/")),
        ];
        let secured = |identity: Option<(&str, &str)>| {
            let identity = identity.map(|(certificate, key)| (certificate.into(), key.into()));
            Some(TlsFiles { authorities: "/ca.pem".into(), identity })
        };
        let cases = cases.into_iter().chain([
            (
                "nfs://server/data?tls=/ca.pem",
                Target { tls: secured(None), ..target("server", None, None, "/data") },
            ),
            (
                "nfs://server/?mountport=7&tls=/ca.pem&cert=c.pem&key=c.key",
                Target { tls: secured(Some(("c.pem", "c.key"))), ..target("server", None, Some(7), "/") },
            ),
        ]);
        for (text, expected) in cases {
            let parsed: Target = text.parse().unwrap();
            assert_eq!(parsed, expected);
            assert_eq!(parsed.to_string(), text);
        }
        assert_eq!("nfs://server".parse::<Target>().unwrap().export, "/");
    }

    #[test]
    fn bad_urls_are_refused_with_a_reason() {
        for (text, reason) in [
            ("http://server/", "nfs://"),
            ("nfs:///data", "no host"),
            ("nfs://server:0/", "not a port"),
            ("nfs://server:99999/", "not a port"),
            ("nfs://[::1/", "bracket"),
            ("nfs://server/?vers=4", "unknown option"),
            ("nfs://server/?cert=c.pem&key=c.key", "with tls=FILE"),
            ("nfs://server/?tls=/ca.pem&key=c.key", "go together"),
        ] {
            let error = text.parse::<Target>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
