//! Binds the sockets, runs the threads of the loops, and shuts down.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_common::socket_file::SocketFile;

use crate::accept::{Acceptor, Listener, listen_at, listen_on, take_over};
use crate::addresses::Addresses;
use crate::bounds::Bounds;
use crate::config::Config;
use crate::conn::Io;
use crate::contenders::Contenders;
use crate::event_loop::EventLoop;
use crate::handshake::Tls;
use crate::home::{Home, Post};
use crate::rate::FindLimit;
use crate::service::Service;
use crate::stats::Stats;

/// A failure to start a server.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// The address asked for.
        addr: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// A Unix socket cannot be listened on.
    #[error("cannot listen on {}: {source}", path.display())]
    ListenAt {
        /// The path asked for.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// An event loop cannot be created.
    #[error("cannot start an event loop: {0}")]
    Loop(std::io::Error),
}

/// A bound server that does not serve yet.
pub struct Server<S> {
    sockets: Vec<Listener>,
    paths: Vec<SocketFile>,
    addrs: Vec<SocketAddr>,
    config: Arc<Config>,
    contenders: Contenders,
    service: Arc<S>,
}

impl<S: Service> Server<S> {
    /// Listens on all of `addrs`; port 0 picks a free one. IPv6 addresses take IPv6 connections only. Accepts nothing
    /// before [`spawn`](Self::spawn).
    ///
    /// # Errors
    /// An address cannot be listened on.
    pub fn bind(addrs: &[SocketAddr], config: Config, service: Arc<S>) -> Result<Self, StartError> {
        Self::bind_or_take(addrs, &[], config, service)
    }

    /// Listens as [`bind`](Self::bind) does. An address of `inherited`, which listens already, is not bound again: its
    /// socket is used, with the connections that wait in it.
    pub fn bind_or_take(
        addrs: &[SocketAddr],
        inherited: &[(SocketAddr, OwnedFd)],
        config: Config,
        service: Arc<S>,
    ) -> Result<Self, StartError> {
        let mut sockets = Vec::with_capacity(addrs.len());
        let mut bound = Vec::with_capacity(addrs.len());
        for &addr in addrs {
            let there = inherited.iter().find(|(there, _)| *there == addr);
            let opened = match there {
                Some((_, socket)) => take_over(socket).map(|socket| (socket, addr)),
                None => listen_on(addr),
            };
            let (socket, addr) = opened.map_err(|errno| StartError::Listen { addr, source: errno.into() })?;
            sockets.push(Listener { fd: socket, is_local: false });
            bound.push(addr);
        }
        let (config, contenders) = (Arc::new(config), Contenders::default());
        Ok(Self { sockets, paths: Vec::new(), addrs: bound, config, contenders, service })
    }

    /// Has the server share the bound on requests in flight with other servers of the process, whose requests wait for
    /// the same devices.
    pub fn contend(&mut self, contenders: &Contenders) {
        self.contenders = contenders.clone();
    }

    /// Listens on a Unix socket at `path` as well, with the permissions `mode`. A socket there on which no process
    /// listens is replaced. [`Running::shutdown`] removes the socket, unless another one has taken its place.
    pub fn bind_at(&mut self, path: &Path, mode: u32) -> Result<(), StartError> {
        let failed = |source| StartError::ListenAt { path: path.to_owned(), source };
        let fd = listen_at(path, mode).map_err(|errno| failed(errno.into()))?;
        self.paths.push(SocketFile::bound(path).map_err(failed)?);
        self.sockets.push(Listener { fd, is_local: true });
        Ok(())
    }

    /// Returns duplicates of the listening TCP sockets, in the order of the addresses.
    ///
    /// # Errors
    /// The process has no more descriptors.
    pub fn sockets(&self) -> std::io::Result<Vec<OwnedFd>> {
        self.sockets.iter().filter(|socket| !socket.is_local).map(|socket| socket.fd.try_clone()).collect()
    }

    /// Returns the addresses listened on, with the ports filled in.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Starts the event loops.
    pub fn spawn(self) -> Result<Running, StartError> {
        let tls = Tls::new(&self.config).map_err(StartError::Loop)?;
        let homes: Result<Vec<_>, _> =
            (0..self.config.loops().max(1)).map(|_| Home::new(tls.clone())).collect();
        let homes: Arc<[Arc<Home>]> = homes.map_err(|errno| StartError::Loop(errno.into()))?.into();
        let bounds = Bounds::new(&self.config);
        let addresses = Addresses::new(Arc::clone(&bounds), self.contenders);
        let mut acceptor = Some(Acceptor::new(
            self.sockets,
            Arc::clone(&homes),
            Arc::clone(&addresses),
            Arc::clone(&bounds),
        ));
        let mut running = Running {
            addrs: self.addrs,
            paths: self.paths,
            counters: Counters { homes, bounds, addresses },
            tls,
            threads: Vec::new(),
        };
        for (index, home) in running.counters.homes.iter().enumerate() {
            let (service, config) = (Arc::clone(&self.service), Arc::clone(&self.config));
            let counters = &running.counters;
            let limits = (Arc::clone(&counters.bounds), Arc::clone(&counters.addresses));
            let io = Io::new(service, config, limits, Arc::clone(home));
            let mut event_loop =
                EventLoop::new(io, acceptor.take()).map_err(|errno| StartError::Loop(errno.into()))?;
            let thread = std::thread::Builder::new().name(format!("rpc-loop-{index}"));
            let thread = thread.spawn(move || event_loop.run()).map_err(StartError::Loop)?;
            running.threads.push(thread);
        }
        Ok(running)
    }
}

/// A server at work. Dropping it leaves it running until the process ends; [`shutdown`](Self::shutdown) stops it.
pub struct Running {
    addrs: Vec<SocketAddr>,
    /// Unix sockets.
    paths: Vec<SocketFile>,
    counters: Counters,
    tls: Option<Arc<Tls>>,
    threads: Vec<JoinHandle<()>>,
}

impl Running {
    /// Returns the addresses listened on.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Returns the counters, which any thread may read.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Stops accepting and reading, then closes all connections and waits for the loops to end. Requests in flight may
    /// be answered, and their replies read, for at most `drain`.
    pub fn shutdown(self, drain: Duration) {
        let deadline = Instant::now() + drain;
        // The loops close the sockets.
        self.paths.iter().for_each(SocketFile::remove);
        for home in self.counters.homes.iter() {
            home.post(Post::Shutdown(deadline));
        }
        for thread in self.threads {
            // A loop that panicked has nothing left to drain.
            let _ = thread.join();
        }
        if let Some(tls) = self.tls {
            tls.workers.stop();
        }
    }
}

/// A reader of a server's counters, which also works after the server has ended.
#[derive(Clone)]
pub struct Counters {
    homes: Arc<[Arc<Home>]>,
    bounds: Arc<Bounds>,
    addresses: Arc<Addresses>,
}

impl Counters {
    /// Returns the limits, which any thread may change.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// Limits the rate of each address for which `find` returns a limit. Earlier limits are replaced.
    pub fn limit_rates(&self, find: FindLimit) {
        self.addresses.limit_rates(find);
    }

    /// Returns the sums over all loops now.
    pub fn read(&self) -> Stats {
        let mut stats = Stats { memory: self.bounds.pool().used() as u64, ..Stats::default() };
        for home in self.homes.iter() {
            stats.add(&home.stats);
        }
        stats
    }
}
