//! Limits on what each client does in a second, as the configuration has them.

use std::num::NonZeroU64;
use std::sync::Arc;

use forebay_common::lock::Mutex;
use forebay_config::RateLimit;
use forebay_control::RateLimitStatus;
use forebay_rpc::Counters;

/// The limits in force. A limit that a reload leaves as it was keeps its counts.
#[derive(Default)]
pub(crate) struct Rates {
    limits: Mutex<Vec<(RateLimit, Arc<forebay_rpc::RateLimit>)>>,
}

impl Rates {
    /// Puts `wanted` in force.
    pub(crate) fn set(&self, wanted: &[RateLimit], transport: &Counters) {
        let mut limits = self.limits.lock();
        let kept = |wanted: &RateLimit| limits.iter().find(|(limit, _)| limit == wanted).cloned();
        *limits =
            wanted.iter().map(|limit| kept(limit).unwrap_or_else(|| (limit.clone(), made(limit)))).collect();
        let found = limits.clone();
        transport.limit_rates(Box::new(move |address| {
            found.iter().find(|(limit, _)| limit.is_for(address)).map(|(_, limit)| limit.clone())
        }));
    }

    /// Returns the limits with their counts.
    pub(crate) fn status(&self) -> Vec<RateLimitStatus> {
        let status = |(limit, counts): &(RateLimit, Arc<forebay_rpc::RateLimit>)| RateLimitStatus {
            name: limit.name.clone(),
            networks: limit.networks.iter().map(ToString::to_string).collect(),
            requests_per_second: limit.requests,
            bytes_per_second: limit.bytes,
            delays: counts.delays(),
            delayed_ns: counts.delayed().as_nanos() as u64,
        };
        self.limits.lock().iter().map(status).collect()
    }
}

/// Returns a limit of the configuration as the transport enforces it. A rate that is not set has no limit.
fn made(limit: &RateLimit) -> Arc<forebay_rpc::RateLimit> {
    let rate = |rate: Option<u64>| rate.and_then(NonZeroU64::new);
    Arc::new(forebay_rpc::RateLimit::new(rate(limit.requests), rate(limit.bytes), limit.burst))
}
