//! Refused clients: counted, and reported to the administrator at a limited rate.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use forebay_rpc::Reported;

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

/// The counters of refusals, with memory that is bounded whatever clients do.
pub struct Refusals {
    counts: [AtomicU64; Refusal::ALL.len()],
    reported: Reported,
    tell: Tell,
}

impl Refusals {
    pub(crate) fn new(tell: Tell) -> Self {
        Self { counts: Default::default(), reported: Reported::default(), tell }
    }

    /// Returns the refusals since the start, in the order of [`Refusal::ALL`].
    pub fn counts(&self) -> [u64; Refusal::ALL.len()] {
        std::array::from_fn(|at| self.counts[at].load(Relaxed))
    }

    /// Counts a refusal, and tells of it unless the address was reported lately.
    pub(crate) fn add(&self, address: IpAddr, why: Refusal) {
        self.counts[why as usize].fetch_add(1, Relaxed);
        if self.reported.is_due(address, Instant::now()) {
            (self.tell)(address, why);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_common::lock::Mutex;

    use super::*;

    #[test]
    fn all_are_counted_and_few_are_told() {
        let told: Arc<Mutex<Vec<IpAddr>>> = Arc::default();
        let tell = Arc::clone(&told);
        let refusals = Refusals::new(Box::new(move |address, _| tell.lock().push(address)));
        let address = IpAddr::from([192, 0, 2, 1]);
        for _ in 0..100 {
            refusals.add(address, Refusal::Stranger);
            refusals.add(address, Refusal::Port);
        }
        assert_eq!(*told.lock(), [address]);
        let counts = refusals.counts();
        assert_eq!((counts[Refusal::Stranger as usize], counts[Refusal::Port as usize]), (100, 100));
    }
}
