//! The complete and checked settings with which a server starts.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cache::CacheSettings;
use crate::export::Export;
use crate::http::Http;
use crate::nbd::Nbd;
use crate::notify::Notify;
use crate::path_policy::PathPolicy;
use crate::rate_limit::RateLimit;
use crate::sources::Sources;
use crate::volume::Volume;

/// The settings of one server.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Addresses for NFS and MOUNT; never empty. Port 0 asks the system for a free port. An IPv6 wildcard address is
    /// for IPv6 only, so that `0.0.0.0` and `[::]` can be used together.
    pub listen: Vec<SocketAddr>,
    /// Directory of this server's state: control socket, lock, keys, event files. Absolute; the server makes it if
    /// missing.
    pub state_dir: PathBuf,
    /// Configured mode: how writes reach the backing store.
    pub mode: Mode,
    /// The cache.
    pub cache: CacheSettings,
    /// Exports; never empty. Names, aliases and ids are unique; paths are absolute and without symbolic links.
    pub exports: Vec<Export>,
    /// Block volumes of the configuration; names and backing devices are unique.
    pub volumes: Vec<Volume>,
    /// The NBD door.
    pub nbd: Nbd,
    /// Answer to a client that asks port 111 for the port of NFS.
    pub portmap: Portmap,
    /// True if NFSv3 clients can lock files (NLM and NSM).
    pub locks: bool,
    /// True if NFSv4.1 and 4.2 are served beside NFSv3.
    pub nfs4: bool,
    /// True if clients of NFSv4 get delegations in exports that do not say otherwise.
    pub nfs4_delegations: bool,
    /// The domain of names of owners and groups in NFSv4; `None` for numbers.
    pub idmap_domain: Option<String>,
    /// True if the operations of clients are counted by client, export, user and file.
    pub profile: bool,
    /// Kerberos.
    pub kerberos: Kerberos,
    /// Filter for the process's own system calls.
    pub sandbox: Sandbox,
    /// Files of TLS; `None` serves no TLS.
    pub tls: Option<TlsFiles>,
    /// True if the kernel encrypts connections with TLS where it can.
    pub kernel_tls: bool,
    /// Metrics and the page; `None` serves neither.
    pub http: Option<Http>,
    /// Targets of notifications; names are unique.
    pub notify: Vec<Notify>,
    /// Limits on the rates of clients; the first one for a client's address counts. Names are unique.
    pub rate_limits: Vec<RateLimit>,
    /// Policies of paths below exports; paths are unique.
    pub policies: Vec<PathPolicy>,
    /// Bounds on threads, memory and time.
    pub limits: Limits,
    /// Level and format of the log.
    pub log: Log,
    /// Source of each setting, for people.
    pub sources: Sources,
}

/// The files that TLS needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate of the server and those of the authorities between it and the root, in PEM form.
    pub certificate: PathBuf,
    /// Private key of the certificate, in PEM form. Users other than its owner and its group must not have access.
    pub key: PathBuf,
    /// Certificates of the authorities that sign those of clients, in PEM form. Without them, clients are not asked for
    /// certificates.
    pub client_ca: Option<PathBuf>,
}

/// The settings of Kerberos, in force if an export has a rule that takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kerberos {
    /// File with the keys of `nfs/HOST@REALM`.
    pub keytab: PathBuf,
    /// Realms whose users are users of this host, besides the host's default realm.
    pub realms: Vec<String>,
}

impl Kerberos {
    /// The keytab of a host, unless another one is named.
    pub const KEYTAB: &str = "/etc/krb5.keytab";
}

impl Settings {
    /// Returns true if an export has a rule that takes Kerberos.
    pub fn takes_kerberos(&self) -> bool {
        let rules = self.exports.iter().flat_map(|export| &export.clients);
        rules.flat_map(|rule| &rule.sec).any(|flavor| *flavor != crate::Flavor::Sys)
    }
}

/// The way in which writes reach the backing store. A later mode uses the cache less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// A write is acknowledged when two cache devices have it, and destaged later.
    WriteBack,
    /// A write goes to the backing store before the acknowledgement, and is kept in the cache.
    WriteThrough,
    /// A write goes to the backing store only; reads are cached.
    WriteAround,
    /// There is no cache.
    PassThrough,
}

/// The way in which GETPORT on port 111 (RFC 1833) is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Portmap {
    /// As `Register` if rpcbind runs, else as `Answer`; as `Off` if all addresses are loopback. A failure is an event,
    /// and the server serves without.
    Auto,
    /// No answer: clients name the port in their mount options.
    Off,
    /// The programs are registered with the rpcbind that runs on this host.
    Register,
    /// The server answers on port 111 itself, UDP and TCP, on the addresses it listens on.
    Answer,
}

/// The filter for the process's own system calls (seccomp(2)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandbox {
    /// A system call that is not on the server's list fails, and an event reports it.
    On,
    /// A system call that is not on the server's list ends the process.
    Strict,
    /// There is no filter.
    Off,
}

/// Bounds on threads, memory, connections and time. All of them apply at once.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// Event-loop threads that serve connections; 1 to 1024, default one per core.
    pub threads: usize,
    /// Threads for requests that wait for the disk; 1 to 4096, default 16 per core between 32 and 256.
    pub workers: usize,
    /// Requests that may wait for a worker before clients are told to try again later; 1 to 1,048,576.
    pub worker_queue: usize,
    /// Bytes of request and reply buffers in total.
    pub memory: u64,
    /// Bytes of request and reply buffers of one connection; at most `memory`.
    pub connection_memory: u64,
    /// Connections that may be open at once.
    pub connections: usize,
    /// Requests of one connection that are worked on at once.
    pub inflight: usize,
    /// The most requests that are worked on at once for all busy client addresses together, while a less busy one is
    /// active; zero means no bound.
    pub shared_inflight: usize,
    /// Replies kept to answer retransmissions.
    pub reply_cache_entries: usize,
    /// Most bytes that kept replies may use.
    pub reply_cache_memory: u64,
    /// Most bytes that names and attributes kept in memory may use. The default is an eighth of the host's memory,
    /// from 64 MiB to 16 GiB, rounded down to a power of two.
    pub metadata_memory: u64,
    /// Files and directories of the exports that are kept open between requests.
    pub open_files: usize,
    /// Time that a thread polls for more work before it sleeps, at most 10 ms; zero means no polling.
    pub busy_poll: Duration,
    /// Time without a request after which an NFSv4 client may lose its opens and locks; 10 seconds to an hour, default
    /// 90 seconds.
    pub lease: Duration,
    /// Time without a request after which a connection is closed; zero means never.
    pub idle_timeout: Duration,
    /// Time after which a connection is closed that stops within a request or does not read its replies.
    pub stall_timeout: Duration,
    /// Longest time that a stop waits for requests in flight.
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
            shared_inflight: 65_536,
            reply_cache_entries: 65_536,
            reply_cache_memory: 64 << 20,
            // The figure is rounded because it is shown to people as it is.
            metadata_memory: 1 << crate::cache::eighth_of_memory().ilog2(),
            open_files: 131_072,
            busy_poll: Duration::from_micros(50),
            lease: Duration::from_secs(90),
            idle_timeout: Duration::from_secs(3600),
            stall_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// The level and format of the log on stderr.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// The least severe level that is shown.
    pub level: LogLevel,
    /// Form of each message.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: LogLevel::Info, format: LogFormat::Text }
    }
}

/// The severity of a message. A level shows its own messages and those of all levels before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// A failure.
    Error,
    /// A condition that needs attention.
    Warn,
    /// A normal occurrence.
    Info,
    /// A detail that explains an occurrence.
    Debug,
    /// One request.
    Trace,
}

/// The form of a message of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One line of text per message.
    Text,
    /// One JSON object per line.
    Json,
}

/// Defines the names of an enum once, for `ALL`, `as_str`, `Display` and `FromStr`, so that flags, file and output
/// agree.
macro_rules! named {
    ($type:ident { $($variant:ident = $name:literal),+ $(,)? }) => {
        impl $type {
            /// Every value, in the order of the help.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the name in flags, configuration files and output.
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
named!(Portmap { Auto = "auto", Off = "off", Register = "register", Answer = "answer" });
named!(Sandbox { On = "on", Strict = "strict", Off = "off" });
named!(LogLevel { Error = "error", Warn = "warn", Info = "info", Debug = "debug", Trace = "trace" });
named!(LogFormat { Text = "text", Json = "json" });
