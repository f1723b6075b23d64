//! Limits on rates in the control protocol.

use serde::{Deserialize, Serialize};

/// A limit on what each client of some networks does in a second, or all clients of an export together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimitStatus {
    /// Name.
    pub name: String,
    /// Networks of the clients; empty for a limit of an export.
    pub networks: Vec<String>,
    /// Name of the export whose clients share the rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// Requests per second; absent where only bytes are limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_second: Option<u64>,
    /// Bytes per second of requests and replies; absent where only requests are limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// Delays of connections since the limit took effect. A delay that lasts for seconds counts once a second.
    pub delays: u64,
    /// Sum of the delays, in nanoseconds.
    pub delayed_ns: u64,
}
