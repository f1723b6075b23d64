//! The clients seen, by address, as `forebay status` lists them.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_common::lock::Mutex;
use forebay_rpc::Peer;

/// Counters of one client address.
#[derive(Debug, Default)]
pub struct ClientStats {
    /// Connections open now.
    pub connections: AtomicU64,
    /// NFS requests.
    pub operations: AtomicU64,
    /// Bytes read by it.
    pub bytes_read: AtomicU64,
    /// Bytes written by it.
    pub bytes_written: AtomicU64,
    /// When it last connected or disconnected, in nanoseconds since 1970.
    pub last_seen_ns: AtomicU64,
}

/// The number of addresses beyond which addresses without a connection are forgotten.
const MAX_CLIENTS: usize = 4096;

/// Connections share slots by their number.
const SLOTS: usize = 256;

/// The connection last seen in each slot.
type Recent = Vec<Option<(u64, Arc<ClientStats>)>>;

thread_local! {
    static RECENT: RefCell<Recent> = RefCell::new(vec![None; SLOTS]);
}

#[derive(Default)]
pub(crate) struct Clients {
    known: Mutex<HashMap<IpAddr, Arc<ClientStats>, foldhash::fast::RandomState>>,
}

impl Clients {
    /// Returns the counters of an address. An IPv4 address and its form in IPv6 are one client.
    pub(crate) fn get(&self, address: IpAddr) -> Arc<ClientStats> {
        let address = address.to_canonical();
        let mut known = self.known.lock();
        if known.len() >= MAX_CLIENTS && !known.contains_key(&address) {
            known.retain(|_, client| client.connections.load(Ordering::Relaxed) > 0);
        }
        known.entry(address).or_default().clone()
    }

    /// Counts a request. A thread remembers the counters of the connections it serves.
    pub(crate) fn count_request(&self, peer: &Peer) {
        RECENT.with_borrow_mut(|recent| {
            let slot = &mut recent[peer.id as usize % SLOTS];
            if slot.as_ref().is_none_or(|(id, _)| *id != peer.id) {
                *slot = Some((peer.id, self.get(peer.addr.ip())));
            }
            if let Some((_, client)) = slot {
                client.operations.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// Counts a new connection of an address. An address with a connection is not forgotten when too many are known.
    pub(crate) fn connected(&self, address: IpAddr) {
        let client = self.get(address);
        client.connections.fetch_add(1, Ordering::Relaxed);
        client.seen();
    }

    /// Counts the end of a connection of an address, and records the time as the last at which the client was seen.
    pub(crate) fn disconnected(&self, address: IpAddr) {
        let client = self.get(address);
        // An address forgotten in between comes back with no connections.
        let _ = client.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        client.seen();
    }

    /// Returns all known addresses with their counters, in order of address.
    pub(crate) fn all(&self) -> Vec<(IpAddr, Arc<ClientStats>)> {
        let mut all: Vec<_> =
            self.known.lock().iter().map(|(address, client)| (*address, client.clone())).collect();
        all.sort_by_key(|(address, _)| *address);
        all
    }
}

impl ClientStats {
    /// Records the present time as the last at which the client was seen.
    fn seen(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_seen_ns.store(now.as_nanos() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_known_client_makes_a_full_table_forget_nobody() {
        let clients = Clients::default();
        let address = |number: usize| Ipv4Addr::from_bits(number as u32);
        for number in 0..MAX_CLIENTS {
            clients.get(address(number).into());
        }
        for known in [IpAddr::V4(address(7)), IpAddr::V6(address(7).to_ipv6_mapped())] {
            clients.get(known);
            assert_eq!(clients.all().len(), MAX_CLIENTS, "{known}");
        }
        clients.connected(address(7).to_ipv6_mapped().into());
        clients.get(address(MAX_CLIENTS).into());
        let left: Vec<IpAddr> = clients.all().into_iter().map(|(address, _)| address).collect();
        assert_eq!(left, [address(7).into(), IpAddr::V4(address(MAX_CLIENTS))]);
    }
}
