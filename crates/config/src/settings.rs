//! The settings themselves, complete and checked: what the server is started with.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cache::CacheSettings;
use crate::export::Export;

/// Everything a server needs to know before it starts.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Addresses that answer NFS and MOUNT; never empty. Port 0 asks the system for a free port. An IPv6 wildcard
    /// address is meant for IPv6 only, so that `0.0.0.0` and `[::]` can be listened on together.
    pub listen: Vec<SocketAddr>,
    /// Directory of this instance: control socket, lock, keys, reply log. Absolute; it may not exist yet.
    pub state_dir: PathBuf,
    /// How writes reach the backing store.
    pub mode: Mode,
    /// The cache.
    pub cache: CacheSettings,
    /// What is served; never empty. Names, aliases and ids are unique; paths are absolute and without symlinks.
    pub exports: Vec<Export>,
    /// What answers a client that asks port 111 where NFS is.
    pub portmap: Portmap,
    /// Whether the process filters its own system calls.
    pub sandbox: Sandbox,
    /// Bounds on threads, memory and time.
    pub limits: Limits,
    /// What is logged, and how.
    pub log: Log,
}

/// How writes reach the backing store (charter section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Acknowledged from the mirrored cache, destaged later.
    WriteBack,
    /// Written to the backing store before the acknowledgement, and kept in the cache.
    WriteThrough,
    /// Written to the backing store only; reads are cached.
    WriteAround,
    /// No cache at all.
    PassThrough,
}

/// What answers GETPORT on port 111 (RFC 1833).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Portmap {
    /// Nothing: clients name the port in their mount options.
    Off,
    /// NFS and MOUNT are registered with the rpcbind that runs on this host.
    Register,
    /// The server answers on port 111 itself, UDP and TCP, on the addresses it listens on.
    Answer,
}

/// Whether the process filters its own system calls (seccomp(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandbox {
    /// A call that the server is not known to make fails, and an event says so.
    On,
    /// Such a call ends the process.
    Strict,
    /// Every call is made.
    Off,
}

/// Bounds on threads, memory, connections and time. All of them hold at once.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Event-loop threads that serve connections; 1 to 1024, default one per core.
    pub threads: usize,
    /// Threads for requests that wait for the disk; 1 to 4096, default 16 per core between 32 and 256.
    pub workers: usize,
    /// Requests that may wait for a worker before clients are told to come back later; 1 to 1,048,576.
    pub worker_queue: usize,
    /// Bytes of request and reply buffers in total.
    pub memory: u64,
    /// Bytes of request and reply buffers of one connection; at most `memory`.
    pub connection_memory: u64,
    /// Connections that may be open at once.
    pub connections: usize,
    /// Requests of one connection that are worked on at once.
    pub inflight: usize,
    /// Replies kept to answer retransmissions.
    pub reply_cache_entries: usize,
    /// Bytes those kept replies may use.
    pub reply_cache_memory: u64,
    /// Bytes that names and attributes kept in memory may use; default an eighth of the host's, 64 MiB to 16 GiB,
    /// rounded down to a power of two.
    pub metadata_memory: u64,
    /// Files and directories of the exports that are kept open between requests.
    pub open_files: usize,
    /// How long a thread looks for more work before it sleeps; zero switches it off, at most 10 ms.
    pub busy_poll: Duration,
    /// A connection without any request for this long is closed; zero means never.
    pub idle_timeout: Duration,
    /// A connection that stops in the middle of a request, or does not read its replies, is closed after this.
    pub stall_timeout: Duration,
    /// How long a stop waits for the requests in flight.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        Self {
            threads: cores.min(1024),
            workers: (cores * 16).clamp(32, 256),
            worker_queue: 8192,
            memory: 512 << 20,
            connection_memory: 32 << 20,
            connections: 16_384,
            inflight: 256,
            reply_cache_entries: 65_536,
            reply_cache_memory: 64 << 20,
            // A round figure, which is shown as it is.
            metadata_memory: 1 << crate::cache::eighth_of_memory().ilog2(),
            open_files: 131_072,
            busy_poll: Duration::from_micros(50),
            idle_timeout: Duration::from_secs(3600),
            stall_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// What is logged to stderr.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// The least severe messages shown.
    pub level: LogLevel,
    /// One line for people or one JSON object per message.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: LogLevel::Info, format: LogFormat::Text }
    }
}

/// Severity from which on messages are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Only what failed.
    Error,
    /// Also what needs attention.
    Warn,
    /// Also what happened.
    Info,
    /// Also how it came about.
    Debug,
    /// Also every request.
    Trace,
}

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One line of text per message.
    Text,
    /// One JSON object per line.
    Json,
}

/// Gives an enum its names: `ALL`, `as_str`, `Display` and `FromStr`, so that flags, file and output agree.
macro_rules! named {
    ($type:ident { $($variant:ident = $name:literal),+ $(,)? }) => {
        impl $type {
            /// Every value, in the order in which help shows them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in flags, configuration files and output.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().copied().find(|value| value.as_str() == text);
                found.ok_or_else(|| format!("`{text}` is not one of {}", [$($name),+].join(", ")))
            }
        }
    };
}
pub(crate) use named;

named!(Mode {
    WriteBack = "write-back",
    WriteThrough = "write-through",
    WriteAround = "write-around",
    PassThrough = "pass-through",
});
named!(Portmap { Off = "off", Register = "register", Answer = "answer" });
named!(Sandbox { On = "on", Strict = "strict", Off = "off" });
named!(LogLevel { Error = "error", Warn = "warn", Info = "info", Debug = "debug", Trace = "trace" });
named!(LogFormat { Text = "text", Json = "json" });
