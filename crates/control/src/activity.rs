//! The activity of clients: counters by client, export, user, file and device.

use forebay_profile::Counters;
use serde::{Deserialize, Serialize};

/// Most entries of each group that an answer has.
pub const MOST_ACTIVE: usize = 1000;

/// The activity of clients since the start of the server, or since the last reset.
///
/// All counters only grow. A client of the protocol subtracts two answers to get rates ([`Counters::since`]). A reset,
/// a restart, or an entry that was summed under `others` meanwhile makes a counter begin at 0 again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Activity {
    /// Time of the answer, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Time since which the counters count, in nanoseconds since 1970.
    pub since_ns: u64,
    /// False if the configuration has `profile = false`: then nothing is counted but devices.
    pub enabled: bool,
    /// The sum over all clients.
    pub total: Counters,
    /// Clients. The name of an entry is the address.
    pub clients: ActivityGroup,
    /// Exports. The name of an entry is that of the export, or `-` for operations outside of every export.
    pub exports: ActivityGroup,
    /// Users as whom the server acts. The name of an entry is the number, or `-` for operations without a user.
    pub users: ActivityGroup,
    /// Files and directories. The name of an entry is the path in the export, or `#` with a hexadecimal number if the
    /// server does not know the path. On a busy server the counters are estimates.
    pub files: ActivityGroup,
    /// Cache devices, in the order of the pool.
    pub devices: Vec<DeviceActivity>,
    /// Working sets of the last hours, oldest first. The last one goes on.
    pub working_sets: Vec<WorkingSetActivity>,
    /// Files that clients made.
    pub new_files: NewFilesActivity,
}

/// The busiest entries of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivityGroup {
    /// Entries, the ones with the most operations first.
    pub entries: Vec<ActivityEntry>,
    /// The sum over all entries that are not listed.
    pub others: Counters,
}

/// The counters of a client, an export, a user or a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivityEntry {
    /// Name, as the group says.
    pub name: String,
    /// The name of the export of a file; absent for other entries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// True for a file to which more than one client has written.
    #[serde(skip_serializing_if = "is_false")]
    pub shared: bool,
    /// Counters.
    #[serde(flatten)]
    pub counters: Counters,
}

/// The operations on a cache device since it was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceActivity {
    /// Path of the device, as the administrator named it.
    pub name: String,
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Flushes that the cache asked for. Some of them share one flush of the device.
    pub flushes: u64,
}

/// The distinct data that clients read or wrote in an hour. Sizes are estimates within about 5 %.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkingSetActivity {
    /// Begin of the hour, in nanoseconds since 1970.
    pub begin_ns: u64,
    /// False if the hour goes on.
    pub complete: bool,
    /// Bytes over all exports, in whole blocks of 4 KiB.
    pub bytes: u64,
    /// Name and bytes of each export.
    pub exports: Vec<(String, u64)>,
}

/// The files that clients made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NewFilesActivity {
    /// Files made.
    pub made: u64,
    /// Files by the size that they reached. A class has the largest size of its files in bytes; the last class has
    /// none.
    pub sizes: Vec<(Option<u64>, u64)>,
    /// Files made in the busiest minute.
    pub in_busiest_minute: u64,
    /// Begin of the busiest minute, in nanoseconds since 1970.
    pub busiest_minute_ns: u64,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl ActivityGroup {
    /// Returns the entries with what each did since an earlier answer, busiest first, and the sum of the others.
    #[must_use]
    pub fn since(&self, earlier: &ActivityGroup) -> ActivityGroup {
        let before = |entry: &ActivityEntry| {
            earlier.entries.iter().find(|other| (&other.name, &other.export) == (&entry.name, &entry.export))
        };
        let mut entries: Vec<_> = self.entries.clone();
        for entry in &mut entries {
            if let Some(before) = before(entry) {
                entry.counters = entry.counters.since(&before.counters);
            }
        }
        entries.retain(|entry| !entry.counters.is_empty());
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.counters.total()));
        ActivityGroup { entries, others: self.others.since(&earlier.others) }
    }
}

#[cfg(test)]
mod tests {
    use forebay_profile::Kind;

    use super::*;

    fn entry(name: &str, reads: u64) -> ActivityEntry {
        let mut counters = Counters::default();
        counters.operations[Kind::Read as usize] = reads;
        ActivityEntry { name: name.to_owned(), counters, ..ActivityEntry::default() }
    }

    #[test]
    fn differences_are_per_entry_and_busiest_first() {
        let group = |entries: Vec<ActivityEntry>| ActivityGroup { entries, others: entry("", 5).counters };
        let before = group(vec![entry("a", 100), entry("b", 10), entry("gone", 7)]);
        let after = group(vec![entry("a", 101), entry("b", 30), entry("new", 9), entry("gone", 7)]);
        let since = after.since(&before);
        let shown: Vec<_> =
            since.entries.iter().map(|entry| (&*entry.name, entry.counters.total())).collect();
        assert_eq!(shown, [("b", 20), ("new", 9), ("a", 1)]);
        assert!(since.others.is_empty());
    }

    #[test]
    fn answers_of_older_and_newer_servers_are_understood() {
        let activity: Activity = serde_json::from_str(r#"{"enabled": true, "later": [1]}"#).unwrap();
        assert!(activity.enabled && activity.clients.entries.is_empty());
        let mut activity = activity;
        activity.files.entries.push(ActivityEntry {
            export: Some("/".into()),
            shared: true,
            ..entry("a/b", 3)
        });
        let json = serde_json::to_string(&activity).unwrap();
        assert!(
            json.contains(r#""name":"a/b","export":"/","shared":true,"operations":{"read":3}"#),
            "{json}"
        );
        assert_eq!(serde_json::from_str::<Activity>(&json).unwrap(), activity);
    }
}
