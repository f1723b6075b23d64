//! Owners and groups as `NAME@DOMAIN` in place of numbers (RFC 8881 section 5.9). Clients with Kerberos send them, and
//! with `idmap_domain` the server sends them.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use forebay_common::lock::RwLock;
use forebay_common::user_database::{group_called, group_numbered, user_called, user_numbered};
use forebay_vfs::Wait;

use crate::lookups::{Lookups, Unanswered};

/// The longest name of a user or group that is looked up, in bytes. Linux allows 32.
const LONGEST: usize = 256;

/// The kind of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Whose {
    User,
    Group,
}

/// The reason why a name has no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoNumber {
    /// The name or its domain is not known.
    Unknown,
    /// The database has not answered.
    Unanswered(Unanswered),
}

/// The domains whose users and groups are those of this host, with the names and numbers that were looked up lately.
pub(crate) struct Owners {
    /// The realms of Kerberos.
    realms: OnceLock<Vec<String>>,
    /// The domain of names in replies.
    domain: RwLock<Option<Arc<str>>>,
    has_domain: AtomicBool,
    names: Lookups<(Whose, u32), Option<Arc<str>>>,
    numbers: Lookups<(Whose, Box<str>), Option<u32>>,
}

impl Default for Owners {
    fn default() -> Self {
        Owners {
            realms: OnceLock::new(),
            domain: RwLock::new(None),
            has_domain: AtomicBool::new(false),
            names: Lookups::new(|(whose, number)| name_of(*whose, *number), "the name of a user or group"),
            numbers: Lookups::new(|(whose, name)| number_of(*whose, name), "the number of a user or group"),
        }
    }
}

impl Owners {
    /// Sets the realms of Kerberos, once. A client may send names of their users and groups.
    pub(crate) fn know(&self, realms: Vec<String>) {
        let _ = self.realms.set(realms);
    }

    /// Sets the domain of names in both directions. Without one, replies have numbers.
    pub(crate) fn set_domain(&self, domain: Option<&str>) {
        *self.domain.write() = domain.map(Arc::from);
        self.has_domain.store(domain.is_some(), Relaxed);
    }

    /// Returns the domain of names in replies.
    pub(crate) fn domain(&self) -> Option<Arc<str>> {
        if self.has_domain.load(Relaxed) { self.domain.read().clone() } else { None }
    }

    /// Returns the number of a user or group, for a client at an address.
    pub(crate) fn number(&self, name: &str, whose: Whose, by: IpAddr, wait: Wait) -> Result<u32, NoNumber> {
        let (name, domain) = name.rsplit_once('@').ok_or(NoNumber::Unknown)?;
        let is_meant = |known: &str| known.eq_ignore_ascii_case(domain);
        let is_known = self.domain().is_some_and(|known| is_meant(&known))
            || self.realms.get().is_some_and(|realms| realms.iter().any(|known| is_meant(known)));
        if !is_known || name.len() > LONGEST {
            return Err(NoNumber::Unknown);
        }
        match self.numbers.of(&(whose, name.into()), by, wait) {
            Ok((number, _)) => number.ok_or(NoNumber::Unknown),
            Err(why) => Err(NoNumber::Unanswered(why)),
        }
    }

    /// Returns the name of a user or group without its domain, for a client at an address. Returns `None` if the host
    /// does not know one.
    pub(crate) fn name(
        &self,
        number: u32,
        whose: Whose,
        by: IpAddr,
        wait: Wait,
    ) -> Result<Option<Arc<str>>, Unanswered> {
        self.names.of(&(whose, number), by, wait).map(|(name, _)| name)
    }

    /// Returns true if the database does not tell names in time.
    pub(crate) fn is_troubled(&self) -> bool {
        self.names.is_troubled()
    }
}

/// Asks the database for a number; may take long.
fn number_of(whose: Whose, name: &str) -> io::Result<Option<u32>> {
    match whose {
        Whose::User => Ok(user_called(name)?.map(|user| user.number)),
        Whose::Group => group_called(name),
    }
}

/// Asks the database for a name; may take long. A name that is not UTF-8 cannot be sent.
fn name_of(whose: Whose, number: u32) -> io::Result<Option<Arc<str>>> {
    let name = match whose {
        Whose::User => user_numbered(number)?.map(|user| user.name),
        Whose::Group => group_numbered(number)?,
    };
    let name = name.and_then(|name| name.into_string().ok());
    Ok(name.filter(|name| !name.is_empty() && name.len() <= LONGEST).map(Arc::from))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    const BOTH: [Whose; 2] = [Whose::User, Whose::Group];

    fn here() -> IpAddr {
        [127, 0, 0, 1].into()
    }

    #[test]
    fn names_of_known_domains_are_those_of_this_host() {
        let owners = Owners::default();
        let number = |name: &str, whose| owners.number(name, whose, here(), Wait::Yes);
        assert_eq!(number("root@example.org", Whose::User), Err(NoNumber::Unknown), "no domain is known");
        owners.know(vec!["REALM.ORG".into()]);
        owners.set_domain(Some("example.org"));
        for name in ["root@example.org", "root@EXAMPLE.ORG", "root@realm.org"] {
            assert_eq!(BOTH.map(|whose| number(name, whose)), [Ok(0); 2], "{name}");
        }
        let long = format!("{}@example.org", "r".repeat(LONGEST + 1));
        for name in [
            "root",
            "root@",
            "root@other.org",
            "@example.org",
            "no such user@example.org",
            "root\0@example.org",
            &long,
        ] {
            let found = BOTH.map(|whose| number(name, whose));
            assert_eq!(found, [Err(NoNumber::Unknown); 2], "{name}");
        }
        owners.set_domain(None);
        assert_eq!(number("root@example.org", Whose::User), Err(NoNumber::Unknown));
        assert_eq!(owners.domain(), None);
    }

    #[test]
    fn an_event_loop_and_a_busy_database_are_not_waited_for() {
        let owners = Owners::default();
        owners.set_domain(Some("example.org"));
        let number = |wait| owners.number("root@example.org", Whose::User, here(), wait);
        assert_eq!(number(Wait::No), Err(NoNumber::Unanswered(Unanswered::Later)));
        owners.numbers.ask([(Whose::User, "root".into())], here(), Instant::now());
        assert_eq!(number(Wait::Yes), Err(NoNumber::Unanswered(Unanswered::Busy)));
        let name = |number, wait| owners.name(number, Whose::Group, here(), wait);
        assert_eq!(name(0, Wait::No), Err(Unanswered::Later));
        assert_eq!(name(0, Wait::Yes), Ok(Some("root".into())));
        assert_eq!(name(0, Wait::No), Ok(Some("root".into())));
        assert_eq!(name(4_000_000_000, Wait::Yes), Ok(None));
    }
}
