//! The door as the server has it: its settings, its start and its end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_rpc::{Contenders, Counters, Running, Server, StartError};
use forebay_tls::Keyring;
use forebay_volume::disk::Disks;

use crate::nbd::{Counts, Nbd, Policy};
use crate::refused::Tell;
use crate::session::LONGEST_REQUEST;

/// The permissions of a Unix socket: its owner and its group.
const SOCKET_MODE: u32 = 0o660;

/// The settings of a door.
#[derive(Debug, Clone)]
pub struct Config {
    /// Addresses to listen on; port 0 picks a free one.
    pub listen: Vec<SocketAddr>,
    /// Unix sockets to listen on, for the server's user and group (mode 0660).
    pub sockets: Vec<PathBuf>,
    /// True to serve clients on TCP without TLS at other addresses than loopback ones, and to leave TLS to the choice
    /// of clients.
    pub insecure: bool,
    /// The server's certificate, with the authorities for certificates of clients. With it, clients on TCP have to use
    /// TLS unless `insecure` is set.
    pub tls: Option<Arc<Keyring>>,
    /// True if the kernel gets the keys of TLS where it takes them.
    pub kernel_tls: bool,
    /// True if clients with TLS have to show a certificate.
    pub client_certificate: bool,
    /// Event-loop threads; 0 = one per core.
    pub threads: usize,
    /// Connections served at once. Connections that use a volume are never closed to make room.
    pub max_connections: usize,
    /// Bytes that the buffers of all connections may hold together. At least 128 MiB are allowed.
    pub memory: usize,
    /// Bytes that one connection may hold in requests and replies before it stops being read.
    pub conn_memory: usize,
    /// Requests that one connection may have in flight before it stops being read.
    pub max_inflight: usize,
    /// Requests that all busy addresses may have in flight together while a less busy one is active; 0 bounds nothing.
    pub shared_inflight: usize,
    /// Other servers of the process that wait for the same devices.
    pub contenders: Contenders,
    /// The time for the negotiation, and the time that an incomplete request or unread replies may make no progress.
    pub stall_timeout: Duration,
    /// The time that an event loop polls after work before it sleeps.
    pub busy_poll: Duration,
}

impl Default for Config {
    fn default() -> Self {
        let transport = forebay_rpc::Config::default();
        Self {
            listen: Vec::new(),
            sockets: Vec::new(),
            insecure: false,
            tls: None,
            kernel_tls: transport.kernel_tls,
            client_certificate: false,
            threads: 0,
            max_connections: 1024,
            memory: 512 << 20,
            conn_memory: transport.conn_memory,
            max_inflight: transport.max_inflight,
            shared_inflight: transport.shared_inflight,
            contenders: Contenders::default(),
            stall_timeout: transport.stall_timeout,
            busy_poll: transport.busy_poll,
        }
    }
}

/// A failure to start a door.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Plain TCP is not allowed at this address.
    #[error(
        "NBD is not served at {0} without TLS: every host that reaches the address could read and change the volumes. \
         Set a certificate, listen on a loopback address or a Unix socket, or set `insecure = true`"
    )]
    Insecure(SocketAddr),
    /// Certificates of clients are wanted, and there is no TLS.
    #[error("NBD cannot ask clients for certificates without TLS: set a certificate for the server")]
    NoTls,
    /// Certificates of clients are wanted, and clients may do without TLS.
    #[error(
        "NBD cannot ask clients for certificates with `insecure = true`: clients without TLS would need none. Remove \
         `insecure` or `client_certificate`"
    )]
    Anonymous,
    /// A socket or a thread cannot be made.
    #[error("NBD is not served: {0}")]
    Start(#[from] StartError),
}

/// An open door. Dropping it leaves it open until the process ends; [`stop`](Self::stop) closes it.
pub struct Door {
    running: Running,
    nbd: Arc<Nbd>,
}

impl Config {
    /// Checks that no client gets access without the protection that the settings promise.
    ///
    /// # Errors
    /// [`Error::Insecure`], [`Error::NoTls`] and [`Error::Anonymous`].
    pub fn check(&self) -> Result<(), Error> {
        if self.client_certificate && self.insecure {
            return Err(Error::Anonymous);
        }
        if self.tls.is_none() {
            if self.client_certificate {
                return Err(Error::NoTls);
            }
            let open = |addr: &&SocketAddr| !self.insecure && !addr.ip().to_canonical().is_loopback();
            if let Some(addr) = self.listen.iter().find(open) {
                return Err(Error::Insecure(*addr));
            }
        }
        Ok(())
    }

    /// Returns the parameters of the transport. Clients are never closed for silence, because a mounted volume may be
    /// idle.
    fn transport(&self) -> forebay_rpc::Config {
        forebay_rpc::Config {
            threads: self.threads,
            max_record: LONGEST_REQUEST,
            max_connections: self.max_connections,
            memory: self.memory,
            conn_memory: self.conn_memory,
            max_inflight: self.max_inflight,
            shared_inflight: self.shared_inflight,
            // A client that uses a volume may be silent for ever.
            idle_timeout: None,
            stall_timeout: self.stall_timeout,
            busy_poll: self.busy_poll,
            tls: self.tls.clone(),
            kernel_tls: self.kernel_tls,
            ..forebay_rpc::Config::default()
        }
    }
}

impl Door {
    /// Listens, and serves `disks` until [`stop`](Self::stop). Refused clients are told to `tell`.
    ///
    /// # Errors
    /// [`Error`]: no client was served.
    pub fn start(config: &Config, disks: Arc<dyn Disks>, tell: Tell) -> Result<Self, Error> {
        config.check()?;
        let policy = Policy {
            needs_tls: config.tls.is_some() && !config.insecure,
            needs_certificate: config.client_certificate,
        };
        let nbd = Nbd::new(disks, policy, tell).map_err(StartError::Loop)?;
        let mut server = Server::bind(&config.listen, config.transport(), nbd.clone())?;
        for path in &config.sockets {
            server.bind_at(path, SOCKET_MODE)?;
        }
        server.contend(&config.contenders);
        Ok(Self { running: server.spawn()?, nbd })
    }

    /// Returns the addresses listened on, with the ports filled in.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        self.running.local_addrs()
    }

    /// Returns the counters of the connections.
    pub fn counters(&self) -> &Counters {
        self.running.counters()
    }

    /// Returns the counters of the requests.
    pub fn counts(&self) -> &Arc<Counts> {
        self.nbd.counts()
    }

    /// Stops accepting and reading, answers the requests in flight for at most `drain`, and closes all connections.
    /// Afterwards no request uses a device.
    pub fn stop(self, drain: Duration) {
        self.running.shutdown(drain);
        self.nbd.stop();
    }
}
