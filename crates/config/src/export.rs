//! Exports: which directory is served under which name, and to whom.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::settings::named;

/// One directory served to clients.
#[derive(Debug, Clone, PartialEq)]
pub struct Export {
    /// The directory: absolute, without symlinks.
    pub path: PathBuf,
    /// Name that clients mount, such as `/` or `/data`. Starts with a slash and ends with none (except `/`).
    pub name: String,
    /// Further names of the same export.
    pub aliases: Vec<String>,
    /// Number that file handles carry, never 0. From the configuration, or derived from the path, so that handles
    /// stay valid over restarts; unique among the exports of a server.
    pub id: u32,
    /// Who may do what: the first rule that holds for a client counts, and no such rule means no access.
    pub clients: Vec<ClientRule>,
}

impl Export {
    /// The rule that holds for a client at `address`; `None` means that it may not use this export.
    pub fn rule_for(&self, address: IpAddr) -> Option<&ClientRule> {
        let address = address.to_canonical();
        self.clients.iter().find(|rule| rule.networks.iter().any(|network| network.contains(&address)))
    }

    /// All names of the export, the first one first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.name.as_str()).chain(self.aliases.iter().map(String::as_str))
    }
}

/// What the clients of some networks may do.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientRule {
    /// IPv4 and IPv6 networks the rule is for. An IPv4 client on an IPv6 socket counts as an IPv4 client.
    pub networks: Vec<IpNet>,
    /// Whether they may change anything.
    pub access: Access,
    /// Whose identity is replaced by the anonymous one.
    pub squash: Squash,
    /// Anonymous user id.
    pub anonuid: u32,
    /// Anonymous group id.
    pub anongid: u32,
    /// Whose requests have to come from a port below 1024.
    pub privileged_port: PrivilegedPort,
    /// Whether supplementary groups come from the user database of the server's host, not from the request.
    pub manage_gids: bool,
}

impl ClientRule {
    /// User and group that stand for nobody: Linux's overflow ids.
    pub const NOBODY: u32 = 65_534;
}

impl ClientRule {
    /// Whether it is for clients on this host only.
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
        }
    }
}

/// Whose requests have to come from a port below 1024, which only root of the client's host can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrivilegedPort {
    /// Those of all clients.
    Always,
    /// Those of clients on other hosts.
    Remote,
    /// Nobody's.
    Never,
}

impl PrivilegedPort {
    /// What holds where nothing was said: a server that runs as root can act as any user, so it asks clients on other hosts
    /// for a port that their users cannot have. Any other server acts as one user.
    pub fn usual() -> Self {
        if rustix::process::geteuid().is_root() { Self::Remote } else { Self::Never }
    }

    /// What was said with true or false, if anything.
    pub fn said(said: Option<bool>) -> Self {
        match said {
            Some(true) => Self::Always,
            Some(false) => Self::Never,
            None => Self::usual(),
        }
    }

    /// Whether a request from here may pass.
    pub fn admits(self, from: SocketAddr) -> bool {
        match self {
            Self::Always => from.port() < 1024,
            Self::Remote => from.port() < 1024 || from.ip().to_canonical().is_loopback(),
            Self::Never => true,
        }
    }
}

/// Whether clients may change anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Every change is answered with NFS3ERR_ROFS.
    ReadOnly,
    /// Permissions of the file system decide.
    ReadWrite,
}

/// Whose user and group ids are replaced by the anonymous ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Squash {
    /// Those of root: uid 0 and gid 0 (`root_squash`).
    Root,
    /// Nobody's (`no_root_squash`).
    None,
    /// Everybody's (`all_squash`).
    All,
}

named!(Access { ReadOnly = "ro", ReadWrite = "rw" });
named!(Squash { Root = "root", None = "none", All = "all" });

/// The loopback networks, `127.0.0.0/8` and `::1`: who may use an export for which nothing was said.
pub fn loopback() -> Vec<IpNet> {
    vec![v4(Ipv4Addr::new(127, 0, 0, 0), 8), v6(Ipv6Addr::LOCALHOST, 128)]
}

/// Every address there is, written `*`.
pub fn anyone() -> Vec<IpNet> {
    vec![v4(Ipv4Addr::UNSPECIFIED, 0), v6(Ipv6Addr::UNSPECIFIED, 0)]
}

fn v4(address: Ipv4Addr, prefix: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(address, prefix))
}

fn v6(address: Ipv6Addr, prefix: u8) -> IpNet {
    IpNet::V6(Ipv6Net::new_assert(address, prefix))
}

/// Reads one network: `192.168.0.0/24`, `fd00::/8`, a single address, or `*` for every address.
///
/// # Errors
/// One sentence when the text is none of these, or when it has bits set right of the prefix (a likely mistake).
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
