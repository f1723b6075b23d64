//! The refused clients that were reported lately. Clients decide how often they are refused, and must not fill the
//! administrator's list of events.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;

/// The time in which an address is reported once, whatever its clients do.
const AGAIN: Duration = Duration::from_secs(600);
/// The number of addresses remembered as reported. While all of them are recent, no further address is reported.
const MOST: usize = 128;

/// The addresses that were reported lately, with memory that is bounded whatever clients do.
#[derive(Default)]
pub struct Reported(Mutex<HashMap<IpAddr, Instant>>);

impl Reported {
    /// Returns true if an address is to be reported at the time `now`, and notes that it is. Returns false if the
    /// network of the address was reported in the last ten minutes, or 128 other networks were.
    pub fn is_due(&self, address: IpAddr, now: Instant) -> bool {
        let mut told = self.0.lock();
        let network = network(address);
        if told.len() >= MOST {
            told.retain(|_, at| now.duration_since(*at) < AGAIN);
        }
        let recent = told.get(&network).is_some_and(|at| now.duration_since(*at) < AGAIN);
        if recent || told.len() >= MOST && !told.contains_key(&network) {
            return false;
        }
        told.insert(network, now);
        true
    }
}

/// Returns an IPv4 address, or the network of 64 bits from which one IPv6 host may take its addresses.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_addresses_are_due() {
        let (reported, begun) = (Reported::default(), Instant::now());
        let address = |n: u32| IpAddr::from(n.to_be_bytes());
        let due = |addresses: std::ops::Range<u32>, now| {
            addresses.filter(|n| reported.is_due(address(*n), now)).count()
        };
        assert!(reported.is_due(address(1), begun) && !reported.is_due(address(1), begun));
        assert!(reported.is_due(address(1), begun + AGAIN));
        assert_eq!(due(0..10_000, begun + AGAIN), MOST - 1);
        assert_eq!(reported.0.lock().len(), MOST);
        assert!(reported.is_due(address(77_777), begun + 2 * AGAIN));
    }

    #[test]
    fn a_host_with_many_addresses_is_one() {
        let [a, b, c] =
            ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"].map(|text| text.parse().unwrap());
        assert_eq!(network(a), network(b));
        assert_ne!(network(a), network(c));
        assert_eq!(network("::ffff:192.0.2.1".parse().unwrap()), IpAddr::from([192, 0, 2, 1]));
    }
}
