//! A trace of the operations of clients, while somebody records it.

use std::net::IpAddr;
use std::time::Duration;

use forebay_profile::{Kind, Moved, Traced};
use serde::{Deserialize, Serialize};

/// Some operations of a trace, in the order in which they ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceBatch {
    /// The operations.
    pub operations: Vec<TracedOperation>,
    /// Operations that were lost since the batch before: the server keeps 131,072 that were not sent.
    pub lost: u64,
}

/// An operation of a trace. The names of its fields are short, since there are many of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedOperation {
    /// Time in microseconds since some moment.
    pub t: u64,
    /// Address of the client.
    pub c: IpAddr,
    /// The kind: its place in [`Kind::ALL`].
    pub k: u8,
    /// Key of the file; 0 if there is none.
    #[serde(default)]
    pub f: u64,
    /// Offset, length, and true for a synchronous WRITE; present for a READ or WRITE that succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub m: Option<(u64, u32, bool)>,
    /// True if the operation failed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub e: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl From<&Traced> for TracedOperation {
    fn from(traced: &Traced) -> Self {
        let Traced { at, client, kind, failed, file, moved } = *traced;
        let m = moved.map(|Moved { offset, len, stable }| (offset, len, stable));
        TracedOperation { t: at.as_micros() as u64, c: client, k: kind as u8, f: file, m, e: failed }
    }
}

impl From<&TracedOperation> for Traced {
    fn from(operation: &TracedOperation) -> Self {
        let TracedOperation { t, c, k, f, m, e } = *operation;
        // A kind that only a newer server knows counts as another operation.
        let kind = Kind::ALL.get(usize::from(k)).copied().unwrap_or(Kind::Other);
        let moved = m.map(|(offset, len, stable)| Moved { offset, len, stable });
        Traced { at: Duration::from_micros(t), client: c, kind, failed: e, file: f, moved }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_survives_the_protocol() {
        let moved = Some(Moved { offset: 1 << 40, len: 4096, stable: true });
        let traced = Traced {
            at: Duration::from_micros(77),
            client: "10.0.0.1".parse().unwrap(),
            kind: Kind::Write,
            failed: false,
            file: u64::MAX,
            moved,
        };
        for traced in [traced, Traced { failed: true, moved: None, file: 0, kind: Kind::Other, ..traced }] {
            let json = serde_json::to_string(&TracedOperation::from(&traced)).unwrap();
            let back: TracedOperation = serde_json::from_str(&json).unwrap();
            assert_eq!(Traced::from(&back), traced, "{json}");
        }
    }
}
