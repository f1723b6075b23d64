//! Hosts that restart, and the hosts that this server has to tell of its own restart.

use std::net::{IpAddr, SocketAddr};

use forebay_wire::Opaque;
use forebay_wire::nsm::{self, StatChange};

use super::calls::{Job, Purpose};
use super::convert::host;
use super::encoded;
use super::monitored::Added;
use crate::shared::Shared;

impl Shared {
    /// Keeps the name of a host that is about to get a lock or a share. Returns false if there are too many hosts.
    pub(super) fn knows_host(&self, address: IpAddr, name: &[u8], is_monitored: bool) -> bool {
        let Some(locks) = &self.locks else { return false };
        let (monitored, add) = (&locks.monitored, || locks.monitored.add(address, name, is_monitored));
        let added = add().and_then(|added| match added {
            Added::Full => {
                monitored.retain(|address, name| self.holds_something(address, name));
                add()
            }
            added => Ok(added),
        });
        match added {
            Ok(Added::Known) => true,
            Ok(Added::Full) => false,
            Err(error) => {
                tracing::warn!("cannot keep the list of hosts with locks: {error}; no lock is granted");
                false
            }
        }
    }

    /// Begins a start with the log that has the locks of the last one.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn keep_lock_hosts(&self) -> std::io::Result<()> {
        let Some(locks) = &self.locks else { return Ok(()) };
        locks.monitored.begin_with_log(|address, name| self.holds_something(address, name))
    }

    /// Begins a start without the locks of the last one. Their hosts may reclaim them.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn lose_locks(&self) -> std::io::Result<()> {
        let Some(locks) = &self.locks else { return Ok(()) };
        locks.monitored.begin_without_log(self.vfs.logs_state())
    }

    /// Returns true if the clients' state has locks, shares or blocked requests of a host.
    fn holds_something(&self, address: IpAddr, name: &[u8]) -> bool {
        let (Some(host), Some(server)) = (host(name, address), &self.nfs4) else { return false };
        server.state().has_host(&host)
    }

    /// Frees the locks of a host that has restarted, as its status monitor says.
    pub(crate) fn host_restarted(&self, from: SocketAddr, name: &[u8], state: i32) {
        self.each_host(from, name, |host| {
            let _ = self.change_state(|clients, now, fx| clients.nsm_notify(host, state, now, fx));
        });
    }

    /// Frees the locks of a host that says it has none.
    pub(super) fn host_freed(&self, from: SocketAddr, name: &[u8]) {
        self.each_host(from, name, |host| {
            let _ = self.change_state(|clients, now, fx| clients.nlm_free_all(host, now, fx));
        });
    }

    /// Returns true if some export is open to an address and its port. An ordinary user of a client has no port below
    /// 1024, and must not free the locks of other users.
    pub(super) fn admits_from(&self, from: SocketAddr) -> bool {
        let exports = self.rules.now();
        let mut rules = exports.iter().filter_map(|export| export.rule_for(from.ip(), |_| false));
        rules.any(|rule| rule.privileged_port.admits(from))
    }

    /// Calls `free` for the hosts at an address that a name means, if some export is open to the address and the port.
    fn each_host(&self, from: SocketAddr, name: &[u8], mut free: impl FnMut(&forebay_clientstate::HostKey)) {
        let Some(locks) = self.locks.as_ref().filter(|_| self.admits_from(from)) else { return };
        let address = from.ip().to_canonical();
        for known in locks.monitored.at(address) {
            if means(name, &known, address)
                && let Some(host) = host(&known, address)
            {
                free(&host);
            }
        }
    }

    /// Tells the hosts that had locks when the last server ended that this server has started.
    pub(crate) fn notify_hosts(&self) {
        let Some(locks) = &self.locks else { return };
        let state = locks.monitored.state();
        let change = StatChange { mon_name: Opaque(&locks.own_name), state };
        let Ok(args) = encoded(&change) else { return };
        for to in locks.monitored.to_notify() {
            locks.calls.add(Job {
                to,
                program: nsm::PROGRAM,
                version: nsm::VERSION,
                procedure: nsm::Procedure::Notify as u32,
                args: args.clone(),
                purpose: Purpose::Notify,
            });
        }
    }

    /// Forgets a host that was told, or never will be, and has had the grace period to reclaim its locks.
    pub(super) fn notified(&self, to: IpAddr) {
        if let Some(locks) = &self.locks
            && let Err(error) = locks.monitored.notified(to)
        {
            tracing::warn!("cannot keep the list of hosts with locks: {error}; {to} is told again");
        }
    }
}

/// Returns true if the name in a notification means the host that calls itself `known`.
///
/// A status monitor may say the full name of its host where the lock manager says the short one, or the address.
fn means(name: &[u8], known: &[u8], address: IpAddr) -> bool {
    let is_prefix = |short: &[u8], long: &[u8]| {
        long.len() > short.len()
            && long[short.len()] == b'.'
            && long[..short.len()].eq_ignore_ascii_case(short)
    };
    let says_address = || {
        let text = std::str::from_utf8(name).ok()?;
        Some(text.parse::<IpAddr>().ok()?.to_canonical() == address)
    };
    name.eq_ignore_ascii_case(known)
        || is_prefix(name, known)
        || is_prefix(known, name)
        || says_address() == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_mean_one_host() {
        let address = "192.0.2.7".parse().unwrap();
        for (name, known, is_meant) in [
            (&b"client"[..], &b"client"[..], true),
            (b"Client", b"client", true),
            (b"client.example", b"client", true),
            (b"client", b"client.example", true),
            (b"192.0.2.7", b"client", true),
            (b"192.0.2.8", b"client", false),
            (b"client2", b"client", false),
            (b"client", b"client2", false),
            (b"other", b"client", false),
            (b"", b"client", false),
        ] {
            assert_eq!(means(name, known, address), is_meant, "{name:?} {known:?}");
        }
    }
}
