//! Policies in the control protocol: what is cached how.

use std::path::PathBuf;

use forebay_config::{DirtyTime, Keep, Mode, Policy, Priority, Streams};
use serde::{Deserialize, Serialize};

/// A request about policies. Paths are absolute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "policy", rename_all = "kebab-case")]
pub enum PolicyRequest {
    /// Shows all rules, or the rules that hold for a path and the policy that follows.
    Show {
        /// File or directory; absent means all rules.
        #[serde(default)]
        path: Option<PathBuf>,
    },
    /// Sets parts of the rule for a file, or for a directory and everything below it.
    Set {
        /// File or directory.
        path: PathBuf,
        /// The parts to set. An absent part stays as it is.
        rule: Policy,
    },
    /// Removes the rule for a file or directory, which may not exist any more.
    Unset {
        /// File or directory.
        path: PathBuf,
    },
}

/// The rules, after the change if the request made one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyReport {
    /// The rules that the request was about. For a path, the nearest rule comes first.
    pub rules: Vec<PolicyRule>,
    /// The policy of the path that the request was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<PolicyInForce>,
    /// Bytes on the cache devices of pinned files.
    pub pinned_bytes: u64,
    /// Bytes on the cache devices that can be pinned.
    pub pin_limit_bytes: u64,
    /// Bytes on the cache devices of files of high priority that are not pinned.
    #[serde(default)]
    pub high_bytes: u64,
    /// Bytes on the cache devices up to which files of high priority are preferred.
    #[serde(default)]
    pub high_limit_bytes: u64,
}

/// A rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRule {
    /// The file or directory, by its path now.
    pub path: PathBuf,
    /// The parts of the rule.
    #[serde(flatten)]
    pub rule: Policy,
    /// The place where the rule was made.
    pub source: PolicySource,
    /// False if the file or directory does not exist any more, or not yet.
    pub exists: bool,
}

/// The place where a part of a policy was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicySource {
    /// No rule says anything.
    Default,
    /// The mode of the server, which uses the cache less than any rule.
    Server,
    /// `policy` of an `[[export]]`, or a `[[policy]]`.
    Configuration,
    /// `forebay policy set`.
    Command,
}

/// The policy of a file or directory, with the reason for each part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyInForce {
    /// The rule for keeping data.
    pub cache: Chosen<Keep>,
    /// The rank of data when the cache devices need room.
    #[serde(default = "normal")]
    pub priority: Chosen<Priority>,
    /// The way of streams.
    pub streams: Chosen<Streams>,
    /// The mode in force: that of the server or of a rule, whichever uses the cache less.
    pub mode: Chosen<Mode>,
    /// The time after which written data is destaged.
    #[serde(rename = "dirty_seconds")]
    pub dirty_time: Chosen<DirtyTime>,
    /// The share of the cache devices that the file or directory is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<ShareInForce>,
}

/// Returns the priority that a server without priorities has.
fn normal() -> Chosen<Priority> {
    Chosen { value: Priority::Normal, source: PolicySource::Default, path: None }
}

/// The share of the cache devices that the files of a rule have together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareInForce {
    /// The bytes that other files cannot take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_bytes: Option<u64>,
    /// The bytes beyond which clean data is dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// The bytes on the cache devices now.
    pub held_bytes: u64,
    /// The place of the rule.
    pub source: PolicySource,
    /// File or directory of the rule.
    pub path: PathBuf,
}

/// A part of a policy, and where it was chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen<T> {
    /// The value in force.
    pub value: T,
    /// The place where it was chosen.
    pub source: PolicySource,
    /// File or directory of the rule; absent for a default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
}
