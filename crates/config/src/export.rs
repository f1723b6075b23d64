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
}

impl Export {
    /// Returns the rule for a client at `address`; `None` means that the client may not use this export.
    pub fn rule_for(&self, address: IpAddr) -> Option<&ClientRule> {
        let address = address.to_canonical();
        self.clients.iter().find(|rule| rule.networks.iter().any(|network| network.contains(&address)))
    }

    /// Returns all names of the export, `name` first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.aliases.iter().map(String::as_str))
    }
}

/// The rights of the clients of some networks.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientRule {
    /// IPv4 and IPv6 networks of the rule. An IPv4 client on an IPv6 socket counts as an IPv4 client.
    pub networks: Vec<IpNet>,
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
    /// Returns true if every network of the rule is on this host.
    pub fn is_local(&self) -> bool {
        self.networks
            .iter()
            .all(|network| network.network().is_loopback() && network.broadcast().is_loopback())
    }
}

impl Default for ClientRule {
    fn default() -> Self {
        Self {
            networks: loopback(),
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
