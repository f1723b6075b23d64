//! Policies: what is cached how, by export and by directory.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::problem::Collector;
use crate::settings::{Mode, named};
use crate::table::TableReader;

/// The rule for keeping the data of files in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Keep {
    /// The data that is used most stays.
    Normal,
    /// The data stays once it is cached, within a limit on all pinned data.
    Pin,
    /// No data stays. Writes go through the log.
    Never,
}

/// The way of long sequential reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Streams {
    /// They go past the cache where the backing store is as fast.
    Past,
    /// They are cached as other requests are.
    Cache,
}

named!(Keep { Normal = "normal", Pin = "pin", Never = "never" });
named!(Streams { Past = "past", Cache = "cache" });

/// A policy for an export, a directory or a file. A part that is absent is inherited from the directory above.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The rule for keeping data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Keep>,
    /// The way of streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<Streams>,
    /// The mode, unless the server's or one above uses the cache less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
}

impl Policy {
    /// Returns true if every part is inherited.
    pub fn is_empty(&self) -> bool {
        *self == Policy::default()
    }

    /// Returns this policy with its absent parts from `other`.
    pub fn or(self, other: Policy) -> Policy {
        Policy {
            cache: self.cache.or(other.cache),
            streams: self.streams.or(other.streams),
            mode: self.mode.or(other.mode),
        }
    }
}

/// Reads the table `policy` of an export.
pub(crate) fn read_policy(mut table: TableReader<'_, '_>, problems: &mut Collector<'_>) -> Policy {
    let policy = Policy {
        cache: table.parsed("cache", problems, str::parse).map(|cache| cache.value),
        streams: table.parsed("streams", problems, str::parse).map(|streams| streams.value),
        mode: table.parsed("mode", problems, str::parse).map(|mode| mode.value),
    };
    table.finish(problems);
    policy
}
