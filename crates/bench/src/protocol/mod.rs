//! The versions of NFS that clients speak. A workload says what it wants as a `Request` and takes an `Answer`;
//! neither depends on the version.
//!
//! | file | contents |
//! |---|---|
//! | `request.rs` | requests, and the operations under which reports count them |
//! | `answer.rs` | answers and failures |
//! | `v3.rs`, `v4.rs` | the encoding of both in NFSv3, and as COMPOUNDs of NFSv4.1 |
//! | `link.rs` | a connection with its session |
//! | `session4.rs` | a session of NFSv4.1: its beginning, its slots, its end |

mod answer;
mod handle;
mod link;
mod request;
mod session4;
#[cfg(test)]
mod tests;
mod v3;
mod v4;

pub(crate) use answer::{Answer, Attributes, Fault, Made, Status};
pub(crate) use handle::Handle;
pub(crate) use link::Link;
pub(crate) use request::{Open, Operation, Request};
pub(crate) use session4::MIN_SLOTS;

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A version of NFS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Version {
    /// NFSv3 (RFC 1813).
    #[default]
    #[value(name = "3")]
    #[serde(rename = "3")]
    V3,
    /// NFSv4.1 (RFC 8881).
    #[value(name = "4.1")]
    #[serde(rename = "4.1")]
    V41,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Version::V3 => "NFSv3",
            Version::V41 => "NFSv4.1",
        })
    }
}
