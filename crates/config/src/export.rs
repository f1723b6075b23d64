//! Exports: which directory is served under which name, with which protection of connections.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::client_rule::ClientRule;
use crate::clients::Certificate;
use crate::policy::Policy;
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
    /// True if clients of NFSv4 get delegations of files in the export.
    pub delegations: bool,
    /// The policy of the directory, unless a rule below it says otherwise.
    pub policy: Policy,
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

named!(TlsPolicy { Off = "off", Optional = "optional", Required = "required", Mutual = "mutual" });

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::loopback;

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
            delegations: true,
            policy: Policy::default(),
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
}
