//! Owners and groups as `NAME@DOMAIN`, which clients with Kerberos send in place of numbers (RFC 8881 section 5.9).

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_common::user_database::{group_called, user_called};
use forebay_wire::nfs4::Nfsstat4;

/// Lookups in flight at once. A database that does not answer keeps at most as many workers.
const AT_ONCE: usize = 4;

/// The kind of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    User,
    Group,
}

/// The domains whose users and groups are those of this host.
#[derive(Default)]
pub(crate) struct Owners {
    domains: OnceLock<Vec<String>>,
    asking: AtomicUsize,
}

impl Owners {
    /// Sets the domains, once. Before that no name is known.
    pub(crate) fn know(&self, domains: Vec<String>) {
        let _ = self.domains.set(domains);
    }

    /// Returns the number of a user or group. May wait for the host's database. Fails with NFS4ERR_BADOWNER for names
    /// of other domains and unknown names, and with NFS4ERR_DELAY while the database fails or is slow.
    pub(crate) fn id(&self, name: &str, whose: Whose) -> Result<u32, Nfsstat4> {
        let (name, domain) = name.rsplit_once('@').ok_or(Nfsstat4::Badowner)?;
        let is_known = |known: &String| known.eq_ignore_ascii_case(domain);
        if !self.domains.get().is_some_and(|domains| domains.iter().any(is_known)) {
            return Err(Nfsstat4::Badowner);
        }
        let asks = self.asking.fetch_add(1, Relaxed) < AT_ONCE;
        let found = asks.then(|| match whose {
            Whose::User => Ok(user_called(name)?.map(|user| user.number)),
            Whose::Group => group_called(name),
        });
        self.asking.fetch_sub(1, Relaxed);
        match found {
            Some(Ok(id)) => id.ok_or(Nfsstat4::Badowner),
            Some(Err(_)) | None => Err(Nfsstat4::Delay),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_known_domains_are_those_of_this_host() {
        let owners = Owners::default();
        assert_eq!(owners.id("root@example.org", Whose::User), Err(Nfsstat4::Badowner), "no domain is known");
        owners.know(vec!["EXAMPLE.ORG".into()]);
        for name in ["root@example.org", "root@EXAMPLE.ORG"] {
            assert_eq!([Whose::User, Whose::Group].map(|whose| owners.id(name, whose)), [Ok(0); 2], "{name}");
        }
        for name in [
            "root",
            "root@",
            "root@other.org",
            "@example.org",
            "no such user@example.org",
            "root\0@example.org",
        ] {
            let found = [Whose::User, Whose::Group].map(|whose| owners.id(name, whose));
            assert_eq!(found, [Err(Nfsstat4::Badowner); 2], "{name}");
        }
        owners.asking.store(AT_ONCE, Relaxed);
        assert_eq!(owners.id("root@example.org", Whose::User), Err(Nfsstat4::Delay));
    }
}
