//! Policies: what is cached how, by export and by directory.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::problem::Collector;
use crate::settings::{Mode, named};
use crate::table::{Located, TableReader};
use crate::units::{format_duration, format_size_exactly, parse_duration, parse_size};

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

/// The rank of the data of files when the cache devices need room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Priority {
    /// The data leaves first, even if it is used.
    Low,
    /// Data that is used stays.
    Normal,
    /// Data that is not used stays longer, within a limit.
    High,
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
named!(Priority { Low = "low", Normal = "normal", High = "high" });
named!(Streams { Past = "past", Cache = "cache" });

/// The time in seconds after which written data is destaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DirtyTime(u32);

impl DirtyTime {
    const RANGE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(7 * 24 * 60 * 60);

    /// Returns the dirty time of this number of seconds.
    pub fn from_seconds(seconds: u32) -> Self {
        DirtyTime(seconds)
    }

    /// Returns the number of seconds.
    pub fn seconds(self) -> u32 {
        self.0
    }
}

impl FromStr for DirtyTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (time, range) = (parse_duration(text)?, DirtyTime::RANGE);
        match u32::try_from(time.as_secs()) {
            Ok(seconds) if range.contains(&time) && time.subsec_nanos() == 0 => Ok(DirtyTime(seconds)),
            _ => Err(format!(
                "{} is no dirty time; write whole seconds from {} to {}",
                format_duration(time),
                format_duration(*range.start()),
                format_duration(*range.end())
            )),
        }
    }
}

impl fmt::Display for DirtyTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_duration(Duration::from_secs(self.0.into())))
    }
}

/// A size of the cache devices in bytes: the least or the most that a share has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShareSize(u64);

impl ShareSize {
    const RANGE: RangeInclusive<u64> = 1 << 20..=1 << 50;

    /// Returns the size in bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for ShareSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (size, range) = (parse_size(text)?, ShareSize::RANGE);
        match range.contains(&size) {
            true => Ok(ShareSize(size)),
            false => Err(format!(
                "{} is out of range; write a size from {} to {}",
                format_size_exactly(size),
                format_size_exactly(*range.start()),
                format_size_exactly(*range.end())
            )),
        }
    }
}

impl fmt::Display for ShareSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_size_exactly(self.0))
    }
}

/// A policy for an export, a directory or a file. A part that is absent is inherited from the directory above.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The rule for keeping data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Keep>,
    /// The rank of data when the cache devices need room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// The way of streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<Streams>,
    /// The mode, unless the server's or one above uses the cache less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// The time after which written data is destaged.
    #[serde(default, rename = "dirty_seconds", skip_serializing_if = "Option::is_none")]
    pub dirty_time: Option<DirtyTime>,
    /// The least of the cache devices that the files have together against others.
    #[serde(default, rename = "cache_min_bytes", skip_serializing_if = "Option::is_none")]
    pub cache_min: Option<ShareSize>,
    /// The most of the cache devices that the files have together.
    #[serde(default, rename = "cache_max_bytes", skip_serializing_if = "Option::is_none")]
    pub cache_max: Option<ShareSize>,
}

impl Policy {
    /// Returns true if every part is inherited.
    pub fn is_empty(&self) -> bool {
        *self == Policy::default()
    }

    /// Returns true if the files of the rule have a share of the cache together.
    pub fn has_share(&self) -> bool {
        self.cache_min.is_some() || self.cache_max.is_some()
    }

    /// Checks that the least of the share is not more than the most.
    ///
    /// # Errors
    /// A sentence.
    pub fn check_share(&self) -> Result<(), String> {
        match (self.cache_min, self.cache_max) {
            (Some(min), Some(max)) if min > max => {
                Err(format!("cache_min {min} is more than cache_max {max}; lower it, or raise cache_max"))
            }
            _ => Ok(()),
        }
    }

    /// Returns this policy with its absent parts from `other`.
    pub fn or(self, other: Policy) -> Policy {
        Policy {
            cache: self.cache.or(other.cache),
            priority: self.priority.or(other.priority),
            streams: self.streams.or(other.streams),
            mode: self.mode.or(other.mode),
            dirty_time: self.dirty_time.or(other.dirty_time),
            cache_min: self.cache_min.or(other.cache_min),
            cache_max: self.cache_max.or(other.cache_max),
        }
    }
}

/// Reads the table `policy` of an export.
pub(crate) fn read_policy(mut table: TableReader<'_, '_>, problems: &mut Collector<'_>) -> Policy {
    let policy = read_parts(&mut table, problems);
    table.finish(problems);
    policy
}

/// Reads the parts of a policy from a table that may have further keys.
pub(crate) fn read_parts(table: &mut TableReader<'_, '_>, problems: &mut Collector<'_>) -> Policy {
    let max = table.parsed("cache_max", problems, str::parse);
    let policy = Policy {
        cache: table.parsed("cache", problems, str::parse).map(|cache| cache.value),
        priority: table.parsed("priority", problems, str::parse).map(|priority| priority.value),
        streams: table.parsed("streams", problems, str::parse).map(|streams| streams.value),
        mode: table.parsed("mode", problems, str::parse).map(|mode| mode.value),
        dirty_time: table.parsed("dirty_time", problems, str::parse).map(|time| time.value),
        cache_min: table.parsed("cache_min", problems, str::parse).map(|size| size.value),
        cache_max: max.as_ref().map(|size: &Located<ShareSize>| size.value),
    };
    if let (Some(max), Err(message)) = (&max, policy.check_share()) {
        problems.add(&max.origin, message);
    }
    policy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dirty_time_is_whole_seconds_up_to_a_week() {
        for (text, seconds) in [("1s", 1), ("90s", 90), ("2m", 120), ("7d", 604_800), ("1000ms", 1)] {
            assert_eq!(text.parse(), Ok(DirtyTime(seconds)));
        }
        for text in ["0", "999ms", "1500ms", "169h", "soon"] {
            assert!(text.parse::<DirtyTime>().is_err(), "{text}");
        }
        assert_eq!(DirtyTime(90).to_string().parse(), Ok(DirtyTime(90)));
    }
}
