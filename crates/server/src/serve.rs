//! Start, run, stop.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use forebay_config::{Access, Export, Mode, Portmap, Settings, format_size};
use forebay_control::{EventLog, HandleMode, Severity};
use forebay_nfs::{CacheLimits, Nfs, NfsConfig, Ports};
use forebay_rpc::{Config, Server, StartError};
use forebay_vfs::{Budget, ExportSpec, HandleKey, HostWatch, MountWatch, Ownership, Verifier, Vfs};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

use crate::cache::{self, Cache, CacheReady};
use crate::control::{Control, Parts};
use crate::error::Error;
use crate::health::Asker;
use crate::host::Host;
use crate::identity::Identities;
use crate::linger::Linger;
use crate::tell::tell_elsewhere;
use crate::under_way::{Reports, UnderWay};
use crate::{portmap, privileges, sandbox, state_dir};

/// What there is to say once clients are accepted.
#[derive(Debug)]
pub struct Ready {
    /// The addresses listened on.
    pub listen: Vec<SocketAddr>,
    /// What file handles are made of.
    pub handles: HandleMode,
    /// The cache.
    pub cache: CacheReady,
    /// The mode in force.
    pub mode: Mode,
}

/// Serves until SIGTERM or SIGINT; SIGHUP has the configuration read anew.
///
/// # Errors
/// [`Error`]: nothing was served, unless it is [`Error::Unstable`].
pub fn run(settings: Settings, host: Arc<dyn Host>) -> Result<(), Error> {
    let started = Instant::now();
    // Until there is something to read anew, a terminal that is closed means nothing.
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP])?;
    let open_files = privileges::raise_open_files();
    let asker = Asker::start();
    // Only who has all privileges is told.
    let watches: Vec<_> =
        settings.exports.iter().map(|export| HostWatch::open(&export.path).map(Arc::new)).collect();
    let refused = sandbox::refused();
    privileges::drop_capabilities();
    let linger = Linger::new();
    let mut state = linger.take(
        "the state directory",
        |error| matches!(error, Error::StateDirInUse(_)),
        || state_dir::take(&settings.state_dir),
    )?;
    // Before anything is opened in the directories, or written.
    let mut identities = Identities::check(&settings)?;
    let _owned = settings.exports.iter().map(|export| own(export, linger)).collect::<Result<Vec<_>, _>>()?;
    let events = Arc::new(EventLog::kept_in(&settings.state_dir));
    sandbox::tell_refused(&refused, &events);
    let sandbox = sandbox::enter(settings.sandbox, &events);
    host.privileges_dropped();
    let under_way = Arc::new(UnderWay::default());
    let reports = Reports::start(&under_way, &host)?;
    let _writer = events.write_behind()?;
    let vfs = Arc::new(open_vfs(&settings, &mut identities, open_files, watches)?);
    identities.check_opened(&settings, &vfs)?;
    let nfs = Arc::new(Nfs::new(vfs.clone(), nfs_config(&settings, &events))?);
    let server = linger.take(
        "the port",
        |error| matches!(error, Error::PortInUse(_)),
        || {
            let bound = Server::bind(&settings.listen, transport_config(&settings), nfs.clone());
            bound.map_err(start_error)
        },
    )?;
    let listen = server.local_addrs().to_vec();
    let ports = Ports { port: listen.first().map_or(0, SocketAddr::port) };
    let parts = Parts {
        nfs: nfs.clone(),
        vfs: vfs.clone(),
        events: events.clone(),
        host: host.clone(),
        under_way: under_way.clone(),
        sandbox,
    };
    let control = Arc::new(Control::new(settings.clone(), started, listen.clone(), parts));
    let control_server = forebay_control::Server::start(control.state_dir(), control.clone())?;
    let answering = match settings.portmap {
        Portmap::Answer => Some(portmap::answer(&listen, ports)?),
        Portmap::Register => portmap::register(ports).map(|()| None)?,
        Portmap::Off => None,
    };
    under_way.step("syncing what the last server left in memory");
    for (export, error) in vfs.settle_after_crash() {
        let message = format!(
            "what the last server left in memory of {} may be lost in a power cut: syncfs fails: {error}",
            export.name
        );
        events.add(Severity::Error, "backing", message, &[("export", &export.name)]);
    }
    // Whatever can fail for other reasons has not: from here on there is something to stop well.
    under_way.step("opening the cache");
    let opened = cache::open(&settings, (&vfs, &nfs), &mut identities, &events, asker, linger, &under_way)?;
    let (cache, said) = opened.unzip();
    identities.keep(&settings, &vfs)?;
    // A file that grows beyond RLIMIT_FSIZE is the client's error (EFBIG), not the end of the process.
    signal_hook::flag::register(SIGXFSZ, Arc::default())?;
    // Added before anything is said: a signal from here on stops the server cleanly.
    signals.add_signal(SIGTERM)?;
    signals.add_signal(SIGINT)?;
    state.keep();
    let running = server.spawn().map_err(start_error)?;
    let log = events.clone();
    let mounts = MountWatch::start(&vfs, Box::new(move |export, there| tell_elsewhere(&log, export, there)))?;
    drop(reports);
    control.serve(cache, mounts, &running);
    let names: Vec<_> = vfs.exports().iter().map(|export| export.path.display().to_string()).collect();
    events.add(Severity::Info, "started", format!("serving {}", names.join(", ")), &[]);
    let kernel_handles = vfs.exports().iter().all(|export| export.kernel_handles());
    host.ready(&Ready {
        listen,
        handles: if kernel_handles { HandleMode::Kernel } else { HandleMode::Fallback },
        cache: said.unwrap_or_default(),
        mode: control.effective_mode(),
    });
    while signals.forever().next() == Some(SIGHUP) {
        // How it ends is an event.
        let _ = control.reload();
    }
    host.stopping();
    under_way.step("stopping");
    let _reports = Reports::start(&under_way, &host)?;
    events.add(Severity::Info, "stopping", "finishing the requests in flight", &[]);
    if let Some(answering) = answering {
        answering.stop();
    }
    if control.registered() {
        portmap::unregister(ports);
    }
    running.shutdown(settings.limits.drain_timeout);
    nfs.stop();
    // Nobody may ask for a flush or a device any more.
    drop(control_server);
    stop(&vfs, control.cache(), &events)
}

/// What clients were told is unstable is made durable, and the cache is stopped.
fn stop(vfs: &Vfs, cache: Option<&Cache>, events: &EventLog) -> Result<(), Error> {
    let stopped = vfs.stop()?;
    let dirty = stopped.dirty.map_err(Error::CacheStop)?;
    if let Some(cache) = cache {
        cache.stopped(dirty)?;
    }
    if dirty > 0 {
        let message = format!(
            "{} stay on the cache devices until the next start; `forebay flush --wait` before a stop empties them",
            format_size(dirty)
        );
        events.add(Severity::Info, "dirty", message, &[("bytes", &dirty)]);
    }
    if stopped.unstable == 0 { Ok(()) } else { Err(Error::Unstable(stopped.unstable)) }
}

fn own(export: &Export, linger: Linger) -> Result<Ownership, Error> {
    let path = &export.path;
    let take = || match Ownership::take(path) {
        Ok(Some(owned)) => Ok(owned),
        Ok(None) => Err(Error::ExportInUse(path.clone())),
        Err(error) => Err(Error::Export { path: path.clone(), reason: error.to_string() }),
    };
    let busy = |error: &Error| matches!(error, Error::ExportInUse(_));
    let owned = linger.take(&path.display().to_string(), busy, take)?;
    if export.clients.iter().any(|rule| rule.access == Access::ReadWrite) {
        require_writable(path)?;
    }
    Ok(owned)
}

fn require_writable(path: &Path) -> Result<(), Error> {
    let writable = rustix::fs::accessat(
        rustix::fs::CWD,
        path,
        rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
        rustix::fs::AtFlags::empty(),
    );
    writable.map_err(|errno| Error::ReadOnlyDirectory { path: path.into(), reason: errno.to_string() })
}

fn open_vfs(
    settings: &Settings,
    identities: &mut Identities,
    open_files: u64,
    watches: Vec<Option<Arc<HostWatch>>>,
) -> Result<Vfs, Error> {
    let failed = |source: io::Error| Error::StateDir { path: settings.state_dir.clone(), source };
    let key = HandleKey::new(&forebay_vfs::handle_secret(&settings.state_dir).map_err(failed)?);
    let key = key.salted(identities.salts(|| cache::random() as u64));
    let verifier = Arc::new(Verifier::open(&settings.state_dir).map_err(failed)?);
    let specs: Vec<_> = settings
        .exports
        .iter()
        .zip(watches)
        .map(|(export, watch)| {
            let (name, path) = (export.name.clone(), export.path.clone());
            ExportSpec { id: export.id, name, path, watch }
        })
        .collect();
    // Descriptors left over for connections and the server's own files.
    let reserved = settings.limits.connections as u64 + 256;
    let files =
        (settings.limits.open_files as u64).min(open_files.saturating_sub(reserved).max(open_files / 2));
    let budget = Budget::new(files as usize, settings.limits.metadata_memory as usize);
    let opened = Vfs::open(&specs, key, verifier, budget, |answers| forebay_rpc::batch(answers));
    opened.map_err(|(place, error)| Error::Export {
        path: settings.exports[place].path.clone(),
        reason: error.to_string(),
    })
}

fn nfs_config(settings: &Settings, events: &Arc<EventLog>) -> NfsConfig {
    let events = events.clone();
    let limits = &settings.limits;
    NfsConfig {
        exports: settings.exports.clone(),
        workers: limits.workers,
        worker_queue: limits.worker_queue,
        busy_poll: limits.busy_poll,
        reply_cache: CacheLimits {
            entries: limits.reply_cache_entries,
            bytes: limits.reply_cache_memory as usize,
        },
        refused: Box::new(move |address, why| {
            let message = format!("client {address} was refused: {}", why.explain());
            let fields: [(&str, &dyn ToString); 2] = [("client", &address), ("reason", &why.name())];
            events.add(Severity::Warning, "client-refused", message, &fields);
        }),
    }
}

fn transport_config(settings: &Settings) -> Config {
    let limits = &settings.limits;
    Config {
        threads: limits.threads,
        max_connections: limits.connections,
        memory: limits.memory as usize,
        conn_memory: limits.connection_memory as usize,
        max_inflight: limits.inflight,
        idle_timeout: (!limits.idle_timeout.is_zero()).then_some(limits.idle_timeout),
        stall_timeout: limits.stall_timeout,
        busy_poll: limits.busy_poll,
        ..Config::default()
    }
}

fn start_error(error: StartError) -> Error {
    match error {
        StartError::Listen { addr, source } => listen_error(addr, source),
        StartError::Loop(source) => Error::System(source),
    }
}

pub(crate) fn listen_error(address: SocketAddr, source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::AddrInUse => Error::PortInUse(address),
        io::ErrorKind::PermissionDenied => {
            Error::Listen { address, reason: "ports below 1024 need root; name another with --listen".into() }
        }
        io::ErrorKind::AddrNotAvailable => {
            Error::Listen { address, reason: "this host has no such address".into() }
        }
        _ => Error::Listen { address, reason: source.to_string() },
    }
}
