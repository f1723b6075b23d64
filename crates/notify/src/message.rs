//! The lines that the server and the process exchange.

use forebay_config::Notify;
use forebay_control::{Delivery, Event, Severity};
use serde::{Deserialize, Serialize};

/// A line from the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum Order {
    /// Names all targets from now on. A target that keeps its name keeps its queue.
    Targets {
        /// The targets.
        targets: Vec<Notify>,
    },
    /// Notifies the targets of an event.
    Event(Event),
    /// Says that events were lost before they could be sent.
    Missed {
        /// Number of events.
        count: u64,
    },
    /// Asks for one [`Report::Tested`] after a test of the targets.
    Test {
        /// Number that the answer repeats.
        number: u64,
        /// Name of the target; `None` means all.
        target: Option<String>,
    },
    /// Says that the server stops, and that no order follows.
    Stop,
}

/// A line to the server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "kebab-case")]
pub enum Report {
    /// Something happened that the server adds to its events.
    Happened {
        /// Importance.
        severity: Severity,
        /// Kind of the event.
        kind: String,
        /// One sentence.
        message: String,
        /// Name of the target.
        target: String,
    },
    /// The end of a test.
    Tested {
        /// Number of the order.
        number: u64,
        /// One result for each target; empty if there is no such target.
        deliveries: Vec<Delivery>,
    },
}

/// Returns true for events about notifications themselves. Nobody is notified of them, since a notification that fails
/// would cause another one.
pub fn is_own_kind(kind: &str) -> bool {
    kind.starts_with("notify-")
}
