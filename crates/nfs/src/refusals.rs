//! Refused clients: counted, and reported to the administrator at a limited rate.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;

/// The reason why a client was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Refusal {
    /// No export is open to its address: the connection was closed when it was accepted.
    Stranger,
    /// Its address has as many connections as one address may have.
    Crowded,
    /// The server has as many connections as it may have, and none of them is idle.
    Full,
    /// It asked for an export that is not open to its address.
    Export,
    /// Its requests come from a port above 1023, and the export asks for one below.
    Port,
    /// Its flavour of authentication is not accepted, by the server or by the export that it asked for.
    Auth,
    /// Its connection is not protected as the export asks: not by TLS, without a certificate, or by TLS although the
    /// export allows plain connections only.
    Tls,
}

impl Refusal {
    /// All reasons, in the order of [`Refusals::counts`].
    pub const ALL: [Self; 7] =
        [Self::Stranger, Self::Crowded, Self::Full, Self::Export, Self::Port, Self::Auth, Self::Tls];

    /// Returns the name for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stranger => "stranger",
            Self::Crowded => "crowded",
            Self::Full => "full",
            Self::Export => "export",
            Self::Port => "port",
            Self::Auth => "auth",
            Self::Tls => "tls",
        }
    }

    /// Returns the cause, and the administrator's possible actions.
    pub fn explain(self) -> &'static str {
        match self {
            Self::Stranger => {
                "no export is open to its address; to let it in, add its network to `networks` of a client rule, or to --allow"
            }
            Self::Crowded => {
                "its address has as many connections as one address may have; raise `connections`"
            }
            Self::Full => "the server has as many connections as it may have; raise `connections`",
            Self::Export => {
                "the export that it asked for is not open to its address; to let it in, add its network to `networks` of a \
                 client rule of that export"
            }
            Self::Port => {
                "it uses a port above 1023; mount it as root without `noresvport`, or set `privileged_port = false` in its \
                 client rule"
            }
            Self::Auth => {
                "it uses a flavour of authentication that is not accepted; mount with one of the flavours in `sec` of its client \
                 rule, which are sec=sys unless given"
            }
            Self::Tls => {
                "its connection is not protected as `tls` of the export asks; mount with xprtsec=tls, or with xprtsec=mtls and a \
                 certificate"
            }
        }
    }
}

/// A function called for a refusal that is worth an event, with the address and the reason.
pub type Tell = Box<dyn Fn(IpAddr, Refusal) + Send + Sync>;

/// The time in which an address is reported once, whatever it does.
const AGAIN: Duration = Duration::from_secs(600);
/// The number of addresses remembered as reported. While all of them are recent, further addresses are only counted.
const MOST: usize = 128;

/// The counters of refusals, with memory that is bounded whatever clients do.
pub struct Refusals {
    counts: [AtomicU64; Refusal::ALL.len()],
    told: Mutex<HashMap<IpAddr, Instant>>,
    tell: Tell,
}

impl Refusals {
    pub(crate) fn new(tell: Tell) -> Self {
        Self { counts: Default::default(), told: Mutex::default(), tell }
    }

    /// Returns the refusals since the start, in the order of [`Refusal::ALL`].
    pub fn counts(&self) -> [u64; Refusal::ALL.len()] {
        std::array::from_fn(|at| self.counts[at].load(Relaxed))
    }

    pub(crate) fn add(&self, address: IpAddr, why: Refusal) {
        self.add_at(address, why, Instant::now());
    }

    /// Counts a refusal at the time `now`. Calls `tell` unless the network of the address was reported in the last
    /// ten minutes, or too many networks were.
    fn add_at(&self, address: IpAddr, why: Refusal, now: Instant) {
        self.counts[why as usize].fetch_add(1, Relaxed);
        let mut told = self.told.lock();
        let network = network(address);
        if told.len() >= MOST {
            told.retain(|_, at| now.duration_since(*at) < AGAIN);
        }
        let recent = told.get(&network).is_some_and(|at| now.duration_since(*at) < AGAIN);
        if recent || told.len() >= MOST && !told.contains_key(&network) {
            return;
        }
        told.insert(network, now);
        drop(told);
        (self.tell)(address, why);
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
    use std::sync::Arc;

    use super::*;

    #[test]
    fn all_are_counted_and_few_are_told() {
        let told: Arc<Mutex<Vec<IpAddr>>> = Arc::default();
        let tell = Arc::clone(&told);
        let refusals = Refusals::new(Box::new(move |address, _| tell.lock().push(address)));
        let begun = Instant::now();
        let address = |n: u32| IpAddr::from(n.to_be_bytes());
        for _ in 0..100 {
            refusals.add_at(address(1), Refusal::Stranger, begun);
            refusals.add_at(address(1), Refusal::Port, begun);
        }
        assert_eq!(*told.lock(), [address(1)]);
        refusals.add_at(address(1), Refusal::Port, begun + AGAIN);
        assert_eq!(told.lock().len(), 2);
        for n in 0..10_000 {
            refusals.add_at(address(n), Refusal::Stranger, begun + AGAIN);
            assert!(refusals.told.lock().len() <= MOST);
        }
        assert_eq!(told.lock().len(), 1 + MOST);
        let counts = refusals.counts();
        assert_eq!((counts[Refusal::Stranger as usize], counts[Refusal::Port as usize]), (10_100, 101));
        refusals.add_at(address(77_777), Refusal::Auth, begun + 2 * AGAIN);
        assert_eq!(told.lock().len(), 2 + MOST);
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
