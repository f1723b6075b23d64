//! Exports: which directory is served under which name, and which clients may use it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::settings::named;

/// One directory that is served to clients.
#[derive(Debug, Clone, PartialEq)]
pub struct Export {
    /// The directory: absolute, without symbolic links.
    pub path: PathBuf,
    /// Name under which clients mount the export, such as `/` or `/data`. A name starts with a slash and, except `/`,
    /// does not end with one.
    pub name: String,
    /// Further names of the export.
    pub aliases: Vec<String>,
    /// Number that file handles carry, never 0, unique among the exports of a server. It comes from the configuration
    /// or is derived from the path, so that handles stay valid over restarts.
    pub id: u32,
    /// Rules for clients. The first rule whose networks contain the client counts. A client without a rule has no
    /// access.
    pub clients: Vec<ClientRule>,
    /// Protection that the connections of clients must have.
    pub tls: TlsPolicy,
}

impl Export {
    /// Returns the rule for a client at `address`. `has` returns true for the certificates of rules that the client has
    /// shown. `None` means that the client may not use this export.
    pub fn rule_for(&self, address: IpAddr, has: impl Fn(&Certificate) -> bool) -> Option<&ClientRule> {
        let address = address.to_canonical();
        self.clients.iter().find(|rule| rule.is_at(address) || rule.certificates.iter().any(&has))
    }

    /// Returns true if a client at `address` may use the export, or may turn out to have a certificate of a rule.
    pub fn may_admit(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.clients.iter().any(|rule| rule.is_at(address) || !rule.certificates.is_empty())
    }

    /// Returns all names of the export, `name` first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.aliases.iter().map(String::as_str))
    }
}

/// The protection that an export asks of connections (RFC 9289).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsPolicy {
    /// Plain connections only.
    Off,
    /// Plain and encrypted connections.
    Optional,
    /// Encrypted connections only.
    Required,
    /// Encrypted connections of clients that have shown a certificate.
    Mutual,
}

impl TlsPolicy {
    /// Returns true if a connection may be used.
    pub fn admits(self, is_encrypted: bool, has_certificate: bool) -> bool {
        match self {
            Self::Off => !is_encrypted,
            Self::Optional => true,
            Self::Required => is_encrypted,
            Self::Mutual => has_certificate,
        }
    }
}

/// A certificate that a client may have shown. An authority of the server has signed it in every case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Certificate {
    /// Any certificate.
    Any,
    /// A certificate for this host name or IP address.
    Name(String),
    /// The certificate whose DER form has this SHA-256 digest.
    Fingerprint([u8; 32]),
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("tls:*"),
            Self::Name(name) => write!(f, "tls:{name}"),
            Self::Fingerprint(digest) => {
                f.write_str("tls:sha256:")?;
                digest.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// The clients that one entry of a rule names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Clients {
    /// The clients of networks.
    Networks(Vec<IpNet>),
    /// The clients with a certificate.
    Certificate(Certificate),
}

/// The rights of the clients of some networks, and of the clients with some certificates.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientRule {
    /// IPv4 and IPv6 networks of the rule. An IPv4 client on an IPv6 socket counts as an IPv4 client.
    pub networks: Vec<IpNet>,
    /// Certificates of the rule, whatever the client's address.
    pub certificates: Vec<Certificate>,
    /// Permission to change files and directories.
    pub access: Access,
    /// Users and groups whose ids are replaced by the anonymous ids.
    pub squash: Squash,
    /// Anonymous user id.
    pub anonuid: u32,
    /// Anonymous group id.
    pub anongid: u32,
    /// Clients whose requests have to come from a port below 1024.
    pub privileged_port: PrivilegedPort,
    /// True if supplementary groups come from the user database of the server's host instead of the request.
    pub manage_gids: bool,
    /// Flavours of authentication that requests may have, best first; never empty.
    pub sec: Vec<Flavor>,
}

impl ClientRule {
    /// User and group id of an unprivileged identity: Linux's overflow id.
    pub const NOBODY: u32 = 65_534;
}

impl ClientRule {
    /// Returns true if the rule is for clients of this host only.
    pub fn is_local(&self) -> bool {
        let is_local = |network: &IpNet| network.network().is_loopback() && network.broadcast().is_loopback();
        self.certificates.is_empty() && self.networks.iter().all(is_local)
    }

    /// Returns the networks and certificates as the configuration has them.
    pub fn clients(&self) -> impl Iterator<Item = String> {
        let networks = self.networks.iter().map(ToString::to_string);
        networks.chain(self.certificates.iter().map(ToString::to_string))
    }

    fn is_at(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&address))
    }
}

impl Default for ClientRule {
    fn default() -> Self {
        Self {
            networks: loopback(),
            certificates: Vec::new(),
            access: Access::ReadWrite,
            squash: Squash::Root,
            anonuid: Self::NOBODY,
            anongid: Self::NOBODY,
            privileged_port: PrivilegedPort::Never,
            manage_gids: false,
            sec: vec![Flavor::Sys],
        }
    }
}

/// The clients whose requests have to come from a port below 1024. Only root of the client's host can use such a
/// port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrivilegedPort {
    /// All clients.
    Always,
    /// Clients on other hosts.
    Remote,
    /// No client.
    Never,
}

impl PrivilegedPort {
    /// Returns the default. A server that runs as root can act as any user. So it asks clients on other hosts for a
    /// port that ordinary users cannot have. A server that does not run as root acts as one user only and asks for
    /// none.
    pub fn usual() -> Self {
        if rustix::process::geteuid().is_root() { Self::Remote } else { Self::Never }
    }

    /// Returns the value for a setting of true or false, or the default if the setting is absent.
    pub fn said(said: Option<bool>) -> Self {
        match said {
            Some(true) => Self::Always,
            Some(false) => Self::Never,
            None => Self::usual(),
        }
    }

    /// Returns true if a request from this address and port may pass.
    pub fn admits(self, from: SocketAddr) -> bool {
        match self {
            Self::Always => from.port() < 1024,
            Self::Remote => from.port() < 1024 || from.ip().to_canonical().is_loopback(),
            Self::Never => true,
        }
    }
}

/// Permission to change files and directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Every change is answered with NFS3ERR_ROFS.
    ReadOnly,
    /// The permissions of the file system decide.
    ReadWrite,
}

/// The users and groups whose ids are replaced by the anonymous ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Squash {
    /// Root: uid 0 and gid 0 (`root_squash`).
    Root,
    /// No user (`no_root_squash`).
    None,
    /// Every user (`all_squash`).
    All,
}

/// A flavour of authentication, by its name in mount options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavor {
    /// AUTH_SYS and AUTH_NONE: the client says who its users are.
    Sys,
    /// Kerberos: each request proves its user.
    Krb5,
    /// Kerberos with checksums over arguments and results.
    Krb5i,
    /// Kerberos with encrypted arguments and results.
    Krb5p,
}

named!(Flavor { Sys = "sys", Krb5 = "krb5", Krb5i = "krb5i", Krb5p = "krb5p" });
named!(Access { ReadOnly = "ro", ReadWrite = "rw" });
named!(TlsPolicy { Off = "off", Optional = "optional", Required = "required", Mutual = "mutual" });
named!(Squash { Root = "root", None = "none", All = "all" });

/// Returns the loopback networks, `127.0.0.0/8` and `::1`. They may use an export without client rules.
pub fn loopback() -> Vec<IpNet> {
    vec![v4(Ipv4Addr::new(127, 0, 0, 0), 8), v6(Ipv6Addr::LOCALHOST, 128)]
}

/// Returns the networks that contain every address, written `*`.
pub fn anyone() -> Vec<IpNet> {
    vec![v4(Ipv4Addr::UNSPECIFIED, 0), v6(Ipv6Addr::UNSPECIFIED, 0)]
}

fn v4(address: Ipv4Addr, prefix: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(address, prefix))
}

fn v6(address: Ipv6Addr, prefix: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(address, prefix))
}

/// Parses an entry of a client rule: a network as [`parse_networks`] takes it, or a certificate. A certificate is
/// `tls:NAME` for a host name or an address, `tls:sha256:HEX` for a fingerprint, or `tls:*` for every certificate.
///
/// # Errors
/// One sentence, if the text has none of these forms.
pub fn parse_clients(text: &str) -> Result<Clients, String> {
    let Some(certificate) = text.strip_prefix("tls:") else {
        return parse_networks(text).map(Clients::Networks);
    };
    let certificate = match certificate.strip_prefix("sha256:") {
        Some(hex) => Certificate::Fingerprint(parse_fingerprint(hex).ok_or_else(|| {
            format!("`{text}` has no SHA-256 fingerprint; write tls:sha256: and 64 hexadecimal digits")
        })?),
        None if certificate == "*" => Certificate::Any,
        None if is_host_name(certificate) || certificate.parse::<IpAddr>().is_ok() => {
            Certificate::Name(certificate.to_ascii_lowercase())
        }
        None => {
            return Err(format!(
                "`{text}` names no certificate; write tls:host.example.org, tls:sha256:..., or tls:* for every certificate"
            ));
        }
    };
    Ok(Clients::Certificate(certificate))
}

/// Parses 64 hexadecimal digits, with or without colons between the bytes, as openssl prints them.
fn parse_fingerprint(text: &str) -> Option<[u8; 32]> {
    let digits = text.bytes().filter(|byte| *byte != b':').map(|byte| (byte as char).to_digit(16));
    let digits: Vec<u8> = digits.map(|digit| digit.map(|digit| digit as u8)).collect::<Option<_>>()?;
    let bytes: Vec<u8> = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    if digits.len() == 64 { bytes.try_into().ok() } else { None }
}

fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let valid = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        valid && (1..=63).contains(&label.len())
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Parses a network: `192.168.0.0/24`, `fd00::/8`, a single address, or `*` for every address.
///
/// # Errors
/// One sentence, if the text has none of these forms or has bits set right of its prefix, which is likely a mistake.
pub fn parse_networks(text: &str) -> Result<Vec<IpNet>, String> {
    if text == "*" {
        return Ok(anyone());
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(vec![IpNet::from(address.to_canonical())]);
    }
    let network = text.parse::<IpNet>().map_err(|_| {
        format!("`{text}` is not a network; write 192.168.0.0/24, fd00::/8, a single address, or *")
    })?;
    if network.trunc() != network {
        return Err(format!("`{text}` has bits right of its prefix; write {}", network.trunc()));
    }
    Ok(vec![network])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_rules_are_networks_or_certificates() {
        let digest = "00:11".repeat(16);
        for (text, shown) in [
            ("tls:*", "tls:*".to_owned()),
            ("tls:Client.Example.org", "tls:client.example.org".to_owned()),
            ("tls:192.0.2.7", "tls:192.0.2.7".to_owned()),
            (&format!("tls:sha256:{digest}"), format!("tls:sha256:{}", "0011".repeat(16))),
        ] {
            match parse_clients(text).unwrap() {
                Clients::Certificate(certificate) => assert_eq!(certificate.to_string(), shown),
                clients => panic!("{clients:?}"),
            }
            assert_eq!(parse_clients(&shown), parse_clients(text), "what is shown can be written");
        }
        assert_eq!(parse_clients("192.0.2.0/24"), parse_networks("192.0.2.0/24").map(Clients::Networks));
        for text in ["tls:", "tls:*.example.org", "tls:a b", "tls:sha256:", "tls:sha256:00", "tls:sha256:zz"]
        {
            assert!(parse_clients(text).is_err(), "{text}");
        }
        assert!(parse_clients(&format!("tls:sha256:{}", "0".repeat(65))).is_err());
    }

    #[test]
    fn a_certificate_or_an_address_is_enough_for_a_rule() {
        let name = Certificate::Name("a.example".to_owned());
        let rule = |networks, certificates| ClientRule { networks, certificates, ..ClientRule::default() };
        let export = Export {
            path: PathBuf::from("/srv"),
            name: "/".to_owned(),
            aliases: Vec::new(),
            id: 1,
            clients: vec![rule(loopback(), vec![]), rule(vec![], vec![name.clone()])],
            tls: TlsPolicy::Optional,
        };
        let (here, there) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([192, 0, 2, 1]));
        let found = |address, has| export.rule_for(address, |asked| has && *asked == name);
        assert_eq!(found(here, true), Some(&export.clients[0]));
        assert_eq!(found(there, true), Some(&export.clients[1]));
        assert_eq!(found(there, false), None);
        assert!(export.may_admit(there), "the certificate is known after the handshake");
        assert!(export.clients[0].is_local() && !export.clients[1].is_local());
    }

    #[test]
    fn policies() {
        let admitted = |policy: TlsPolicy| {
            [(false, false), (true, false), (true, true)].map(|(e, c)| policy.admits(e, c))
        };
        assert_eq!(admitted(TlsPolicy::Off), [true, false, false]);
        assert_eq!(admitted(TlsPolicy::Optional), [true; 3]);
        assert_eq!(admitted(TlsPolicy::Required), [false, true, true]);
        assert_eq!(admitted(TlsPolicy::Mutual), [false, false, true]);
    }

    #[test]
    fn ports_of_other_hosts_have_to_be_privileged_unless_said_otherwise() {
        let from = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (low, high) = (from("192.0.2.1:1023"), from("192.0.2.1:1024"));
        let here = [from("127.0.0.2:40000"), from("[::1]:40000"), from("[::ffff:127.0.0.1]:40000")];
        assert!(PrivilegedPort::Remote.admits(low) && !PrivilegedPort::Remote.admits(high));
        assert!(here.iter().all(|from| PrivilegedPort::Remote.admits(*from)));
        assert!(
            PrivilegedPort::Always.admits(low)
                && !here.iter().any(|from| PrivilegedPort::Always.admits(*from))
        );
        assert!(PrivilegedPort::Never.admits(high));
        assert_eq!(PrivilegedPort::said(Some(true)), PrivilegedPort::Always);
        assert_eq!(PrivilegedPort::said(Some(false)), PrivilegedPort::Never);
        assert_eq!(PrivilegedPort::said(None), PrivilegedPort::usual());
    }
}
