//! The connected addresses: the number of connections of each, and the memory that these hold together.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_common::lock::{Mutex, MutexGuard};

use crate::bounds::Bounds;
use crate::contenders::Contenders;
use crate::pool::{Account, Pool};
use crate::rate::FindLimit;

/// A server with fewer connections than this lets one address have all of them: idle connections make room for others.
const FEW: usize = 128;
/// The part of the stall timeout after which an address without any answer gets more requests in flight.
const STALLED: u32 = 8;
/// The number of known addresses from which accounts of addresses without connections are removed.
const MANY: usize = 256;

type Accounts = HashMap<IpAddr, Arc<Account>, foldhash::fast::RandomState>;

/// The accounts of all addresses of a server. The lock is taken when a connection is accepted and when it is closed.
pub(crate) struct Addresses {
    known: Mutex<Accounts>,
    /// The limits on rates. The lock is taken inside of that of the accounts.
    limits: Mutex<Option<FindLimit>>,
    pool: Arc<Pool>,
    bounds: Arc<Bounds>,
    contenders: Contenders,
}

impl Addresses {
    /// Returns the accounts for a server with these bounds, which joins `contenders`.
    pub(crate) fn new(bounds: Arc<Bounds>, contenders: Contenders) -> Arc<Self> {
        let (known, limits, pool) = (Mutex::default(), Mutex::default(), Arc::clone(bounds.pool()));
        let addresses = Arc::new(Self { known, limits, pool, bounds, contenders });
        addresses.contenders.join(&addresses);
        addresses
    }

    /// Returns the servers whose addresses are reviewed with these.
    pub(crate) fn contenders(&self) -> &Contenders {
        &self.contenders
    }

    /// Returns the accounts, locked.
    pub(crate) fn known(&self) -> MutexGuard<'_, Accounts> {
        self.known.lock()
    }

    /// Returns the number of connected addresses.
    pub(crate) fn connected(&self) -> usize {
        self.pool.addresses.load(Relaxed)
    }

    /// Returns the setting of the requests in flight that busy addresses share.
    pub(crate) fn shared_inflight(&self) -> usize {
        self.bounds.shared_inflight()
    }

    /// Returns the time after which an address without any answer gets more requests in flight.
    pub(crate) fn stalled_after(&self) -> Duration {
        self.bounds.stall_timeout() / STALLED
    }

    /// Returns the largest number of connections of one address: three quarters of all connections.
    fn most(&self) -> usize {
        let connections = self.bounds.max_connections();
        if connections < FEW { usize::MAX } else { connections / 4 * 3 }
    }

    /// Puts limits on rates in force. Connections that an earlier limit delays are looked at within a second.
    pub(crate) fn limit_rates(&self, find: FindLimit) {
        let known = self.known.lock();
        for (address, account) in &*known {
            account.rate.set(find(*address));
        }
        *self.limits.lock() = Some(find);
    }

    /// Returns the account of an address that is not known yet.
    fn account(&self, address: IpAddr) -> Arc<Account> {
        let account = Account::new(Arc::clone(&self.pool));
        let limit = self.limits.lock().as_ref().and_then(|find| find(address));
        account.rate.set(limit);
        account
    }

    /// Returns a place for a connection of `address`; none if the address has as many connections as it may have.
    pub(crate) fn seat(self: &Arc<Self>, address: IpAddr) -> Option<Seat> {
        let mut known = self.known.lock();
        if known.len() >= MANY.max(2 * self.pool.addresses.load(Relaxed)) {
            known.retain(|_, account| account.connections.load(Relaxed) > 0 || account.held() > 0);
        }
        // Replies of earlier connections may still be in flight: they count.
        let account = known.entry(address).or_insert_with(|| self.account(address));
        let connections = account.connections.load(Relaxed);
        if connections >= self.most() {
            return None;
        }
        account.connections.store(connections + 1, Relaxed);
        if connections == 0 {
            self.pool.addresses.fetch_add(1, Relaxed);
        }
        Some(Seat { account: Arc::clone(account), addresses: Arc::clone(self) })
    }
}

/// The place of one connection. Dropping the value gives the place back.
pub(crate) struct Seat {
    account: Arc<Account>,
    addresses: Arc<Addresses>,
}

impl Seat {
    /// Returns the account of the memory that the connections of this address hold.
    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Returns the number of connections of this address, this one included.
    pub(crate) fn connections(&self) -> usize {
        self.account.connections.load(Relaxed)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let _known = self.addresses.known.lock();
        if self.account.connections.fetch_sub(1, Relaxed) == 1 {
            self.addresses.pool.addresses.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn addresses() -> (Arc<Addresses>, Arc<Bounds>) {
        let bounds = Bounds::new(&Config { max_connections: 200, ..Config::default() });
        (Addresses::new(Arc::clone(&bounds), Contenders::default()), bounds)
    }

    #[test]
    fn an_address_has_three_quarters_of_the_places_and_gives_them_back() {
        let (addresses, bounds) = addresses();
        let pool = bounds.pool();
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
        let seats: Vec<_> = std::iter::from_fn(|| addresses.seat(one)).collect();
        assert_eq!((seats.len(), seats[0].connections()), (150, 150));
        assert_eq!(addresses.seat(other).unwrap().connections(), 1);
        assert_eq!(pool.addresses.load(Relaxed), 1);
        drop(seats);
        assert_eq!(pool.addresses.load(Relaxed), 0);
        assert_eq!(addresses.seat(one).unwrap().connections(), 1);
    }

    #[test]
    fn a_limit_changed_in_service_holds_for_the_next_connection() {
        let (addresses, bounds) = addresses();
        let one = IpAddr::from([192, 0, 2, 1]);
        let seats: Vec<_> = std::iter::from_fn(|| addresses.seat(one)).collect();
        bounds.set(&Config { max_connections: 400, ..Config::default() });
        let more: Vec<_> = std::iter::from_fn(|| addresses.seat(one)).collect();
        assert_eq!((seats.len(), more.len()), (150, 150));
        bounds.set(&Config { max_connections: 200, ..Config::default() });
        drop(more);
        assert!(addresses.seat(one).is_none(), "connections beyond a lower limit stay, and no more come");
    }

    #[test]
    fn addresses_that_hold_nothing_are_forgotten() {
        let (addresses, _) = addresses();
        let first = IpAddr::from([192, 0, 2, 1]);
        let charge = addresses.seat(first).unwrap().account().charge(10);
        for n in 0..10_000u32 {
            drop(addresses.seat(IpAddr::from(n.to_be_bytes())).unwrap());
            assert!(addresses.known.lock().len() <= MANY);
        }
        assert!(addresses.known.lock()[&first].held() > 0);
        drop(charge);
    }
}
