//! The reasons why a server does not start: one sentence each, with the remedy.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use forebay_vfs::NotOwned;

/// A failure of the server to start or to stop cleanly.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state directory cannot be created or used.
    #[error("{}", unusable(path, source))]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another server uses the state directory.
    #[error("another forebay uses the state directory {}; stop it, or name another with --state-dir", .0.display())]
    StateDirInUse(PathBuf),
    /// The directory to serve cannot be opened.
    #[error("cannot serve {}: {reason}", path.display())]
    Export {
        /// The directory.
        path: PathBuf,
        /// The system's message.
        reason: String,
    },
    /// A directory is not the one that was served before. Nothing was written.
    #[error("{0}")]
    OtherDirectory(String),
    /// Another server has the directory, one above it, or one in it.
    #[error("{}", in_use(path, by))]
    ExportInUse {
        /// The directory.
        path: PathBuf,
        /// The use.
        by: NotOwned,
    },
    /// A new state directory is in that of another server, or around it.
    #[error(
        "cannot use the state directory {}: {} is the state directory of another server; name one elsewhere with --state-dir",
        path.display(), other.display()
    )]
    StateDirNested {
        /// The state directory.
        path: PathBuf,
        /// The state directory of the other server.
        other: PathBuf,
    },
    /// The state directory lies in a directory that another server serves.
    #[error(
        "the state directory {} lies in {}, which another forebay serves to clients; name another with --state-dir",
        path.display(), served.display()
    )]
    StateDirServed {
        /// The state directory.
        path: PathBuf,
        /// The served directory.
        served: PathBuf,
    },
    /// The directory cannot be written to.
    #[error("cannot write to {}: {reason}; serve it read-only with --read-only, or let the unit write there (ReadWritePaths=)", path.display())]
    ReadOnlyDirectory {
        /// The directory.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// An address is in use.
    #[error("port {} on {} is in use; stop what uses it, or name another with --listen", .0.port(), .0.ip())]
    PortInUse(SocketAddr),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {reason}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's message, and the remedy.
        reason: String,
    },
    /// rpcbind did not accept the registration.
    #[error(
        "cannot register with rpcbind: {0}; is it running? Serve with --portmap=off, or answer port 111 with --portmap=answer"
    )]
    Rpcbind(String),
    /// Another program of this host is registered with rpcbind under a number that the server needs.
    #[error(
        "cannot register with rpcbind: {program} of this host holds the number, on port {port}; unmount NFS and stop it, or \
         serve with --portmap=off"
    )]
    RpcbindHeld {
        /// The program.
        program: &'static str,
        /// Its port.
        port: u32,
    },
    /// An export takes Kerberos, and Kerberos cannot be served.
    #[error("an export takes Kerberos (`sec`), but the server {0}")]
    Kerberos(#[from] forebay_nfs::KerberosError),
    /// The control socket cannot be served.
    #[error("cannot serve the control socket: {0}")]
    Control(#[from] forebay_control::ServerError),
    /// The certificate or the key of TLS cannot be used.
    #[error("cannot serve TLS: {0}")]
    Tls(#[from] forebay_tls::LoadError),
    /// The configuration names a device that must not be a volume's.
    #[error("volume {name} of the configuration cannot be served: {reason}")]
    Volume {
        /// Its name.
        name: String,
        /// The device and the remedy.
        reason: String,
    },
    /// NBD would be served without protection.
    #[error("{0}")]
    Nbd(String),
    /// The cache cannot be opened.
    #[error("no cache: {0}")]
    Cache(String),
    /// A pool that may hold data of the served directories is missing.
    #[error(
        "the cache on {devices} may hold data that the directory lacks; name it with --cache, or to give that data up \
         remove {}",
        note.display()
    )]
    CacheLeftBehind {
        /// Its devices.
        devices: String,
        /// The file in the state directory that names the pool.
        note: PathBuf,
    },
    /// The state directory was new, and the pool has the secret of the file handles that clients know.
    #[error(
        "the state directory {0} was new, and the pool has the key of the file handles that clients know: it is in the state \
         directory now; start again"
    )]
    HandleKeyRestored(PathBuf),
    /// The state directory has a secret of file handles, and the pool has the one that clients of its exports know.
    #[error(
        "{} is not the key of the file handles that clients have from the cache: they would all have to mount again; remove \
         that file, and the next start takes the key of the cache. To keep the file, flush and stop with the key of the cache, \
         and start with the file and --format-cache",
        .0.display()
    )]
    OtherHandleKey(PathBuf),
    /// A pool has changes that are older than the changes made without the pool.
    #[error(
        "the cache on {0} holds changes that were given up when the directory was served without it; overwrite it with \
         --format-cache, or name other devices with --cache"
    )]
    CacheOutdated(String),
    /// A pool has data of a file system that no export leads to.
    #[error(
        "the cache holds data of {files} files of a directory that is not served now, on {filesystem}; serve it again, and let \
         `forebay flush --wait` end before it is taken out of the configuration. To give up everything that only the cache has, use \
         --format-cache"
    )]
    NotServed {
        /// The number of files.
        files: usize,
        /// Type and UUID of the file system, as far as they are known.
        filesystem: String,
    },
    /// The cache was used without the present devices since they were last in use.
    #[error(
        "the cache device {devices} is out of date: since {since} the cache went on without it, on {expected}; connect that and \
         name it with --cache, or give up what only it holds with --format-cache"
    )]
    CacheOutOfDate {
        /// The devices that are present.
        devices: String,
        /// The devices that were in use last.
        expected: String,
        /// The time since when.
        since: String,
    },
    /// No member of the pool is present, and the server creates no replacement on its own.
    #[error(
        "the cache device {device} is missing, and no other device of its pool is there (it was in use last at {seen}); mount \
         or connect it, or make it anew with --make-missing"
    )]
    CacheMissing {
        /// The device.
        device: String,
        /// The time when the device was last in use.
        seen: String,
    },
    /// The cache could not be stopped cleanly.
    #[error("the cache did not stop well: {0}; what was acknowledged as stable is on its devices")]
    CacheStop(forebay_engine::Error),
    /// The system refuses a thread, a signal handler or memory.
    #[error("{}", refused(.0))]
    System(#[from] io::Error),
    /// The server ended without the last steps of a stop, which waited for file systems.
    #[error(
        "the stop did not wait for {exports}, which does not answer: {dirty} stay on the cache devices, and the next start is as \
         after a crash: clients write again what they have not committed"
    )]
    SilentAtStop {
        /// The served directories.
        exports: String,
        /// The size of the data that only the cache has, for people.
        dirty: String,
    },
    /// Data written unstable could not be made durable at the stop.
    #[error("{0} files could not be made durable at the stop; their clients will write them again")]
    Unstable(usize),
}

/// Returns the sentence about a directory to serve that another server uses.
fn in_use(path: &Path, by: &NotOwned) -> String {
    let path = path.display();
    match by {
        NotOwned::Inside(above) => format!(
            "{path} cannot be served: it lies in {}, which another forebay serves; stop that one first, or export both \
             directories with one server",
            above.display()
        ),
        NotOwned::Around => format!(
            "{path} cannot be served: another forebay serves a directory in it, or keeps its state or cache there; stop that one \
             first, or name another directory"
        ),
        NotOwned::Taken => format!("{path} is served by another forebay already; stop that one first"),
        NotOwned::Unusable(error) => format!("cannot serve {path}: {error}"),
    }
}

/// Returns the message about a state directory. The error about a damaged file says what to do by itself: another
/// state directory would lack the file as well.
fn unusable(path: &Path, source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::InvalidData => source.to_string(),
        _ => {
            format!(
                "cannot use the state directory {}: {source}; name another with --state-dir",
                path.display()
            )
        }
    }
}

/// Returns the message about a system that refuses something. The error about a damaged file is a sentence by itself.
fn refused(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::InvalidData => source.to_string(),
        _ => format!("the system refuses what the server needs: {source}"),
    }
}
