//! Limits on what each client, or all clients of an export, do in a second, as the configuration has them.

use std::num::NonZeroU64;
use std::sync::Arc;

use forebay_common::lock::Mutex;
use forebay_config::{RateLimit, Settings};
use forebay_control::RateLimitStatus;
use forebay_nfs::Nfs;
use forebay_rpc::{Counters, SharedRate};

/// The limits in force. A limit that a reload leaves as it was keeps its counts.
#[derive(Default)]
pub(crate) struct Rates {
    limits: Mutex<Vec<InForce>>,
}

/// A limit, its counts, and the rate that the clients of its export share.
#[derive(Clone)]
struct InForce {
    limit: RateLimit,
    counts: Arc<forebay_rpc::RateLimit>,
    shared: Arc<SharedRate>,
}

impl Rates {
    /// Puts the limits of the settings in force.
    pub(crate) fn set(&self, settings: &Settings, nfs: &Nfs, transport: &Counters) {
        let mut limits = self.limits.lock();
        let kept = |wanted: &RateLimit| limits.iter().find(|one| one.limit == *wanted).cloned();
        let wanted = &settings.rate_limits;
        *limits = wanted.iter().map(|limit| kept(limit).unwrap_or_else(|| made(limit))).collect();
        let found = limits.clone();
        transport.limit_rates(Box::new(move |address| {
            found.iter().find(|one| one.limit.is_for(address)).map(|one| one.counts.clone())
        }));
        let number = |name: &str| {
            let export = settings.exports.iter().find(|export| export.names().any(|other| other == name));
            export.map(|export| export.id)
        };
        let of_export = |one: &InForce| Some((number(one.limit.export.as_deref()?)?, one.shared.clone()));
        nfs.limit_exports(limits.iter().filter_map(of_export).collect());
    }

    /// Returns the limits with their counts.
    pub(crate) fn status(&self) -> Vec<RateLimitStatus> {
        let status = |InForce { limit, counts, .. }: &InForce| RateLimitStatus {
            name: limit.name.clone(),
            networks: limit.networks.iter().map(ToString::to_string).collect(),
            export: limit.export.clone(),
            requests_per_second: limit.requests,
            bytes_per_second: limit.bytes,
            delays: counts.delays(),
            delayed_ns: counts.delayed().as_nanos() as u64,
        };
        self.limits.lock().iter().map(status).collect()
    }
}

/// Returns a limit of the configuration as the transport enforces it. A rate that is not set has no limit.
fn made(limit: &RateLimit) -> InForce {
    let rate = |rate: Option<u64>| rate.and_then(NonZeroU64::new);
    let counts = Arc::new(forebay_rpc::RateLimit::new(rate(limit.requests), rate(limit.bytes), limit.burst));
    InForce { limit: limit.clone(), shared: SharedRate::new(counts.clone()), counts }
}
