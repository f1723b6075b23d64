//! The answer that `forebay status` shows.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use forebay_config::Mode;
use serde::{Deserialize, Serialize};

use crate::protocol::PoolStatus;
use crate::rate::RateLimitStatus;
use crate::volume::VolumeStatus;
use forebay_common::metrics::{LatencySummary, Snapshot};

/// The state of a server at one moment. Times are in nanoseconds since 1970 unless they are durations; sizes are in
/// bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the server.
    pub version: String,
    /// Process id of the server.
    pub pid: u32,
    /// Time of the start.
    pub started_ns: u64,
    /// Time since the start, in nanoseconds.
    pub uptime_ns: u64,
    /// Configured mode: how writes reach the backing store.
    pub mode: Mode,
    /// Mode in force. It differs from `mode` when write-back lacks its two cache devices.
    #[serde(default = "pass_through")]
    pub effective_mode: Mode,
    /// Progress of the start; absent once NFS clients are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starting: Option<Starting>,
    /// Health of the server.
    pub health: Health,
    /// The write verifier (RFC 1813 section 3.3.7) as 16 hexadecimal digits.
    pub write_verifier: String,
    /// Addresses that the server listens on, with the ports in use.
    pub listen: Vec<SocketAddr>,
    /// State directory.
    pub state_dir: PathBuf,
    /// Kind of the file handles.
    pub handles: HandleMode,
    /// State of the filter for the process's own system calls.
    #[serde(default)]
    pub sandbox: SandboxStatus,
    /// Exports, in the order of the configuration.
    pub exports: Vec<ExportStatus>,
    /// Clients, busiest first; at most 1000, further clients are left out.
    pub clients: Vec<ClientStatus>,
    /// Procedures of NFSv3 and operations of NFSv4 that were called at least once, in the order of their numbers.
    pub procedures: Vec<ProcedureStatus>,
    /// Payload bytes read by clients since the start.
    pub bytes_read: u64,
    /// Payload bytes written by clients since the start.
    pub bytes_written: u64,
    /// Connections open now.
    pub connections: u64,
    /// Most connections that may be open at once.
    pub connections_limit: u64,
    /// Connections open now that are encrypted with TLS.
    #[serde(default)]
    pub encrypted: u64,
    /// Those of them that the kernel encrypts.
    #[serde(default)]
    pub encrypted_in_kernel: u64,
    /// Requests in flight.
    pub inflight: u64,
    /// How often a connection was not read since the start, because its address had too many requests in flight beside
    /// a less busy client of an export or of a volume.
    #[serde(default)]
    pub held_back: u64,
    /// Memory in use for requests and replies.
    pub memory: MemoryStatus,
    /// Threads for requests that wait for a disk.
    pub workers: WorkerStatus,
    /// Syncs of the backing store.
    pub durability: DurabilityStatus,
    /// Replies kept to answer retransmissions.
    pub reply_cache: ReplyCacheStatus,
    /// Clients that were refused since the start.
    #[serde(default)]
    pub refused: RefusedStatus,
    /// Limits on the rates of clients, in the order of the configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rate_limits: Vec<RateLimitStatus>,
    /// Names and attributes kept in memory.
    #[serde(default)]
    pub metadata: MetadataStatus,
    /// State of clients; absent if neither NFSv4 nor locks are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_state: Option<ClientStateStatus>,
    /// Lines of the log lost since the start, because stderr failed or was too slow.
    #[serde(default)]
    pub log_lines_lost: u64,
    /// Block volumes, in the order in which they were made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeStatus>,
    /// The cache pool; absent when no cache is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolStatus>,
}

fn pass_through() -> Mode {
    Mode::PassThrough
}

/// A start of the server in progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Starting {
    /// The current step, such as `recovering the cache`.
    pub step: String,
    /// Parts of this step that are done.
    pub done: u64,
    /// Parts of this step in total; 0 if they are not counted.
    pub total: u64,
    /// Time since the start began, in nanoseconds.
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

/// The health of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "UPPERCASE")]
pub enum Health {
    /// No problem is known.
    Ok,
    /// Service continues, but the administrator should act.
    Degraded {
        /// One sentence for each reason.
        reasons: Vec<String>,
    },
}

impl Health {
    /// Adds a reason why the administrator should act.
    pub fn degrade(&mut self, reason: String) {
        match self {
            Self::Ok => *self = Self::Degraded { reasons: vec![reason] },
            Self::Degraded { reasons } => reasons.push(reason),
        }
    }
}

/// The kind of a server's file handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HandleMode {
    /// The kernel's own handles (name_to_handle_at). They are valid as long as the file exists.
    Kernel,
    /// Inode numbers, which the server finds again by walking the tree. They are used without the privilege for
    /// kernel handles.
    Fallback,
}

/// The state of the filter for the server's own system calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxStatus {
    /// The filter permits only the system calls on the server's list.
    On,
    /// The server was started without the filter.
    #[default]
    Off,
    /// The kernel has no filter, or Forebay has no list for this architecture.
    Unavailable,
}

/// One export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportStatus {
    /// Name under which clients mount the export.
    pub name: String,
    /// Further names of the export.
    pub aliases: Vec<String>,
    /// Directory that is exported.
    pub path: PathBuf,
    /// Export number that file handles carry.
    pub id: u32,
    /// Type of the file system, such as `xfs`.
    pub fs_type: String,
    /// True if one journal orders all changes of the file system, so that one commit covers many changes.
    #[serde(default)]
    pub ordered: bool,
    /// Size of the file system.
    pub total_bytes: u64,
    /// Free space that users other than root may fill, less the space reserved for dirty data.
    pub free_bytes: u64,
    /// Inodes in total; 0 if the file system makes inodes as needed.
    pub total_inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Time that the file system has owed an answer, in nanoseconds; 0 if it answers. The figures of this export are
    /// older than that.
    #[serde(default)]
    pub silent_ns: u64,
}

/// An NFS client, identified by its address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientStatus {
    /// Address of the client.
    pub address: IpAddr,
    /// Open connections of the client.
    pub connections: u64,
    /// Requests answered.
    pub operations: u64,
    /// Payload bytes that the client has read.
    pub bytes_read: u64,
    /// Payload bytes that the client has written.
    pub bytes_written: u64,
    /// Time at which the client last connected or disconnected.
    pub last_seen_ns: u64,
}

/// The calls of one procedure since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcedureStatus {
    /// Name as in RFC 1813, such as `READ`. Names of operations of NFSv4 start with `NFS4.`.
    pub name: String,
    /// Calls answered.
    pub count: u64,
    /// Calls answered with an error status.
    pub errors: u64,
    /// Time from the complete request to the reply handed to the socket. An operation of NFSv4 begins when the one
    /// before it ends, and an operation that changes nothing ends with its result.
    pub latency: LatencySummary,
    /// The latencies behind the summary. They stay in the server, for its metrics.
    #[serde(skip)]
    pub latencies: Snapshot,
}

/// The state that clients hold at the server, and the call-backs to them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientStateStatus {
    /// Clients of NFSv4, also expired ones whose state is kept.
    pub clients: u64,
    /// Sessions.
    pub sessions: u64,
    /// Opens of NFSv4.
    pub opens: u64,
    /// Byte-range locks of NFSv4 and NLM.
    pub locks: u64,
    /// Delegations, also revoked ones that their clients have not freed.
    pub delegations: u64,
    /// Hosts with locks or shares of NLM.
    pub hosts: u64,
    /// Shares of NLM.
    pub shares: u64,
    /// Blocked requests for locks.
    pub blocked: u64,
    /// Copies of files that go on after the reply to their COPY.
    pub copies: u64,
    /// Delegations recalled since the start.
    pub recalls: u64,
    /// Delegations revoked since the start: their clients did not return them in time.
    pub revoked: u64,
    /// Call-backs of NFSv4 that succeeded since the start.
    pub callbacks: u64,
    /// Call-backs given up since the start.
    pub callbacks_given_up: u64,
    /// Call-backs that wait for a connection or a slot.
    pub callbacks_waiting: u64,
}

/// Memory for the buffers of requests and replies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Bytes in use.
    pub used_bytes: u64,
    /// Most bytes that may be in use.
    pub limit_bytes: u64,
    /// Resident memory of the whole process, in bytes.
    pub resident_bytes: u64,
}

/// The threads for requests that wait for a disk, called workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Workers.
    pub threads: u64,
    /// Workers that are busy.
    pub busy: u64,
    /// Requests that wait for a worker.
    pub queued: u64,
    /// Most requests that may wait for a worker.
    pub queue_limit: u64,
    /// Requests rejected since the start because the queue was full.
    pub rejected: u64,
}

/// Syncs of the backing store since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurabilityStatus {
    /// Syncs made.
    pub batches: u64,
    /// Operations that waited for a sync. Divided by `batches`, this is the mean number of operations that share one.
    pub operations: u64,
    /// Syncs that failed. Each may have lost acknowledged unstable data, so the write verifier changed.
    pub failures: u64,
    /// Latency of the syncs.
    pub latency: LatencySummary,
}

/// Names and attributes kept in memory, so that requests need not ask the file system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetadataStatus {
    /// Directory entries in listings that are kept.
    pub listed: u64,
    /// Files whose attributes are kept although they are not open.
    pub files: u64,
    /// Names looked up in open directories, including names that do not exist.
    pub names: u64,
    /// Bytes that names and attributes use.
    pub bytes: u64,
    /// Most bytes that names and attributes may use.
    pub limit_bytes: u64,
    /// READDIRPLUS requests answered from memory alone, since the start.
    pub listing_hits: u64,
    /// READDIRPLUS requests that asked the file system for entries, since the start.
    pub listing_misses: u64,
    /// GETATTR, LOOKUP and ACCESS requests for files that are not open, answered from memory since the start.
    pub file_hits: u64,
    /// GETATTR, LOOKUP and ACCESS requests that had to open a file, since the start.
    pub file_misses: u64,
}

/// The connections and requests that were refused since the start, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedStatus {
    /// Connections from addresses that no export admits.
    pub strangers: u64,
    /// Connections from an address that already had as many as one address may have.
    pub crowded: u64,
    /// Connections refused because the server had as many as it may have.
    pub full: u64,
    /// Requests for an export that does not admit the client's address.
    pub exports: u64,
    /// Requests from ports above 1023 to an export that requires a lower port.
    pub ports: u64,
    /// Requests with an authentication flavour that the export does not accept.
    pub auth: u64,
    /// Requests on connections without the protection by TLS that the export asks for.
    #[serde(default)]
    pub tls: u64,
}

/// Replies kept to answer retransmissions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyCacheStatus {
    /// Replies kept.
    pub entries: u64,
    /// Bytes that the kept replies use.
    pub bytes: u64,
    /// Retransmissions answered from a kept reply.
    pub hits: u64,
    /// Retransmissions of requests that were still in progress.
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
