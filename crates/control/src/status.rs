//! What `forebay status` shows.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use forebay_config::Mode;
use serde::{Deserialize, Serialize};

use crate::protocol::PoolStatus;
use forebay_common::metrics::LatencySummary;

/// A server at one moment. Times are nanoseconds since 1970 unless they are durations; sizes are bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the server.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// When it started.
    pub started_ns: u64,
    /// How long it has been running, in nanoseconds.
    pub uptime_ns: u64,
    /// How writes reach the backing store, as chosen.
    pub mode: Mode,
    /// The mode in force: write-back needs two cache devices.
    #[serde(default = "pass_through")]
    pub effective_mode: Mode,
    /// How far the start has come; absent once clients are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starting: Option<Starting>,
    /// Whether all is well.
    pub health: Health,
    /// The write verifier (RFC 1813 section 3.3.7) as 16 hexadecimal digits.
    pub write_verifier: String,
    /// Addresses it listens on, with the ports it got.
    pub listen: Vec<SocketAddr>,
    /// State directory.
    pub state_dir: PathBuf,
    /// What file handles are made of.
    pub handles: HandleMode,
    /// Whether the process filters its own system calls.
    #[serde(default)]
    pub sandbox: SandboxStatus,
    /// Exports, in the order of the configuration.
    pub exports: Vec<ExportStatus>,
    /// Clients, busiest first; at most 1000 of them.
    pub clients: Vec<ClientStatus>,
    /// NFS and MOUNT procedures that were called at least once, in the order of their numbers.
    pub procedures: Vec<ProcedureStatus>,
    /// Payload bytes read by clients since the start.
    pub bytes_read: u64,
    /// Payload bytes written by clients since the start.
    pub bytes_written: u64,
    /// Connections open now.
    pub connections: u64,
    /// Connections that may be open.
    pub connections_limit: u64,
    /// Requests in flight.
    pub inflight: u64,
    /// Buffers.
    pub memory: MemoryStatus,
    /// Threads that wait for the disk.
    pub workers: WorkerStatus,
    /// Synchronisations of the backing store.
    pub durability: DurabilityStatus,
    /// Replies kept for retransmissions.
    pub reply_cache: ReplyCacheStatus,
    /// Clients that were refused since the start.
    #[serde(default)]
    pub refused: RefusedStatus,
    /// Names and attributes kept in memory.
    #[serde(default)]
    pub metadata: MetadataStatus,
    /// Lines of the log that were lost since the start, because stderr took them not at all or too slowly.
    #[serde(default)]
    pub log_lines_lost: u64,
    /// The cache pool; absent when no cache is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolStatus>,
}

fn pass_through() -> Mode {
    Mode::PassThrough
}

/// A start that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Starting {
    /// What is being done, such as `recovering the cache`.
    pub step: String,
    /// Parts of this step that are done.
    pub done: u64,
    /// Parts that it has; 0 where they are not counted.
    pub total: u64,
    /// How long the start has taken so far, in nanoseconds.
    pub elapsed_ns: u64,
    /// The export that this step waits for; absent where it waits for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub awaited: Option<Awaited>,
}

/// An export that a start waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Awaited {
    /// Directory.
    pub path: PathBuf,
    /// How long it has been waited for, in nanoseconds.
    pub elapsed_ns: u64,
}

impl std::fmt::Display for Starting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.step)?;
        if let total @ 1.. = self.total {
            write!(f, ": {} of {total}", self.done)?;
        }
        let Some(awaited) = &self.awaited else { return Ok(()) };
        write!(f, ": {}", awaited.path.display())?;
        match Duration::from_nanos(awaited.elapsed_ns).as_secs() {
            0 => Ok(()),
            seconds => write!(f, " has not answered for {seconds} s"),
        }
    }
}

/// Whether all is well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "UPPERCASE")]
pub enum Health {
    /// All is well.
    Ok,
    /// Service goes on, but someone has to look.
    Degraded {
        /// One sentence for each reason.
        reasons: Vec<String>,
    },
}

/// What file handles are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HandleMode {
    /// The kernel's own handles (name_to_handle_at): valid as long as the file exists.
    Kernel,
    /// Inode numbers that the server finds again by walking the tree, where the privilege for kernel handles is missing.
    Fallback,
}

/// Whether the server filters its own system calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxStatus {
    /// It makes only those on its list.
    On,
    /// It was started without the filter.
    #[default]
    Off,
    /// The kernel has no filter, or the architecture no list.
    Unavailable,
}

/// One export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportStatus {
    /// Name that clients mount.
    pub name: String,
    /// Further names.
    pub aliases: Vec<String>,
    /// Directory.
    pub path: PathBuf,
    /// Number in file handles.
    pub id: u32,
    /// Type of the file system, such as `xfs`.
    pub fs_type: String,
    /// Whether one journal orders all its changes, so that one commit carries many.
    #[serde(default)]
    pub ordered: bool,
    /// Size of the file system.
    pub total_bytes: u64,
    /// Free space that users other than root may fill, without what is promised to dirty data.
    pub free_bytes: u64,
    /// Inodes in total; 0 where the file system makes them as needed.
    pub total_inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// How long the file system has not answered, in nanoseconds; 0 if it does. Its figures are older than that.
    #[serde(default)]
    pub silent_ns: u64,
}

/// One client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientStatus {
    /// Its address.
    pub address: IpAddr,
    /// Its open connections.
    pub connections: u64,
    /// Requests answered.
    pub operations: u64,
    /// Payload bytes it read.
    pub bytes_read: u64,
    /// Payload bytes it wrote.
    pub bytes_written: u64,
    /// When it last connected or hung up.
    pub last_seen_ns: u64,
}

/// One procedure since the start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcedureStatus {
    /// Name as in RFC 1813, such as `READ`; MOUNT's start with `MOUNT.`.
    pub name: String,
    /// Calls answered.
    pub count: u64,
    /// Those answered with an error status.
    pub errors: u64,
    /// From the complete request to the reply handed to the socket.
    pub latency: LatencySummary,
}

/// Buffers of requests and replies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// In use.
    pub used_bytes: u64,
    /// The most that may be in use.
    pub limit_bytes: u64,
    /// Resident memory of the whole process.
    pub resident_bytes: u64,
}

/// Threads that wait for the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Threads.
    pub threads: u64,
    /// Busy ones.
    pub busy: u64,
    /// Requests waiting for one.
    pub queued: u64,
    /// Requests that may wait.
    pub queue_limit: u64,
    /// Requests turned away since the start because the queue was full.
    pub rejected: u64,
}

/// Synchronisations of the backing store since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurabilityStatus {
    /// Synchronisations made.
    pub batches: u64,
    /// Operations that waited for them: divided by `batches`, how many share one.
    pub operations: u64,
    /// Synchronisations that failed: acknowledged unstable data may be lost, the write verifier changed.
    pub failures: u64,
    /// Their latency.
    pub latency: LatencySummary,
}

/// Names and attributes kept in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataStatus {
    /// Entries of directories whose listings are kept.
    pub listed: u64,
    /// Files that are not open whose attributes are kept.
    pub files: u64,
    /// Names that open directories were asked for, also in vain.
    pub names: u64,
    /// Bytes that all of these use.
    pub bytes: u64,
    /// The most that may be used.
    pub limit_bytes: u64,
    /// READDIRPLUS answered from them alone since the start.
    pub listing_hits: u64,
    /// READDIRPLUS that asked the file system for entries.
    pub listing_misses: u64,
    /// GETATTR, LOOKUP and ACCESS of files that are not open, answered from memory.
    pub file_hits: u64,
    /// Those that had to open a file.
    pub file_misses: u64,
}

/// Clients that were refused since the start, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedStatus {
    /// Connections from addresses that no export is open to.
    pub strangers: u64,
    /// Connections of addresses that had as many as one address may have.
    pub crowded: u64,
    /// Connections while the server had as many as it may have.
    pub full: u64,
    /// Requests for an export that is not open to the client's address.
    pub exports: u64,
    /// Requests from ports above 1023 where the export asks for one below.
    pub ports: u64,
    /// Requests with a flavour of authentication that is not accepted.
    pub auth: u64,
}

/// Replies kept for retransmissions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyCacheStatus {
    /// Replies kept.
    pub entries: u64,
    /// Bytes they use.
    pub bytes: u64,
    /// Retransmissions answered from them.
    pub hits: u64,
    /// Retransmissions of requests that were still being worked on.
    pub in_progress_hits: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_names_the_export_that_it_waits_for() {
        let mut starting =
            Starting { step: "opening".into(), done: 0, total: 0, elapsed_ns: 0, awaited: None };
        assert_eq!(starting.to_string(), "opening");
        starting.total = 9;
        assert_eq!(starting.to_string(), "opening: 0 of 9");
        starting.total = 0;
        let awaited = |elapsed_ns| Some(Awaited { path: "/srv/a".into(), elapsed_ns });
        starting.awaited = awaited(999_999_999);
        assert_eq!(starting.to_string(), "opening: /srv/a");
        starting.awaited = awaited(12_500_000_000);
        assert_eq!(starting.to_string(), "opening: /srv/a has not answered for 12 s");
    }
}
