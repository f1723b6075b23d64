//! The rules of an export: what the clients of some networks and certificates may do.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;

use crate::clients::{Certificate, loopback};
use crate::settings::named;

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

    /// Returns true if a network of the rule contains `address`, which is canonical.
    pub(crate) fn is_at(&self, address: IpAddr) -> bool {
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
named!(Squash { Root = "root", None = "none", All = "all" });

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
