//! The result of a test of notifications.

use serde::{Deserialize, Serialize};

/// One notification that was sent to one target as a test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Name of the target.
    pub target: String,
    /// Kind of the target, such as `slack`.
    pub kind: String,
    /// Time until the target took the notification, or until the error, in nanoseconds.
    pub elapsed_ns: u64,
    /// The reason why the target did not take the notification; absent if the target did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
