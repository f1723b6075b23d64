//! A start: from the remaining privileges to service for clients.
//!
//! A start runs in a thread of its own. A served file system may not answer, and a thread that waits for the file
//! system cannot be interrupted. The thread that began the start goes on answering signals, and ends the process on
//! request.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};

use forebay_config::{Access, Export, Settings};
use forebay_control::{EventLog, HandleMode, SandboxStatus, Severity};
use forebay_nfs::{GssLimits, GssSettings, LockConfig, Nfs, NfsConfig, Ports};
use forebay_rpc::{Config, Contenders, Running, Server};
use forebay_tls::Keyring;
use forebay_vfs::{
    Budget, DirectoryLocks, ExportSpec, HandleKey, HostWatch, MountWatch, NotOwned, Ownership, Verifier, Vfs,
};
use signal_hook::consts::SIGXFSZ;

use crate::busy_retry::BusyRetry;
use crate::cache;
use crate::control::{Control, Parts};
use crate::error::Error;
use crate::event_report::tell_elsewhere;
use crate::front::ControlFront;
use crate::handle_key::HandleSecret;
use crate::health::Asker;
use crate::host::Host;
use crate::identity::Identities;
use crate::live_exports::LiveExports;
use crate::named_files::credentials;
use crate::notify::Notifier;
use crate::portmap::PortmapRole;
use crate::privileged::Watcher;
use crate::reload;
use crate::serve::{Ready, start_error};
use crate::state_dir::is_state_dir;
use crate::ublk_control::UblkDriver;
use crate::udp;
use crate::under_way::{Reports, UnderWay};
use crate::usual_reads::UsualReads;
use crate::volumes::{self, door::NbdDoor};

/// The watches for external changes in each export's file system, once they can be opened.
pub(crate) struct Watches(Receiver<Vec<Option<Arc<HostWatch>>>>);

impl Watches {
    /// Begins to open the watches in a thread of its own, which keeps the privileges of the calling thread. The kernel
    /// reports changes only to a thread with all of these privileges.
    pub(crate) fn begin(settings: &Settings, under_way: &Arc<UnderWay>) -> io::Result<Self> {
        let (done, opened) = channel();
        let paths: Vec<_> = settings.exports.iter().map(|export| export.path.clone()).collect();
        let under_way = under_way.clone();
        std::thread::Builder::new().name("forebay-watches".into()).spawn(move || {
            let watcher = Watcher::new();
            let open = |path: &std::path::PathBuf| {
                under_way.waits_for(path);
                watcher.open(path).map(Arc::new)
            };
            // The receiver is dropped if the start fails for another reason.
            let _ = done.send(paths.iter().map(open).collect());
        })?;
        Ok(Watches(opened))
    }

    /// Waits for the watches, one for each export in the order of the configuration. Fails if their thread has
    /// panicked.
    fn opened(self) -> Result<Vec<Option<Arc<HostWatch>>>, Error> {
        let ended = |_| io::Error::other("the thread that opens the exports has ended");
        Ok(self.0.recv().map_err(ended)?)
    }
}

/// A start that is about to begin.
pub(crate) struct Start {
    pub(crate) settings: Settings,
    /// The certificate of TLS, which the start reads.
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) events: Arc<EventLog>,
    pub(crate) under_way: Arc<UnderWay>,
    pub(crate) reports: Reports,
    pub(crate) front: Arc<ControlFront>,
    pub(crate) sandbox: SandboxStatus,
    /// The locks of the directories of this server.
    pub(crate) owner: DirectoryLocks,
    pub(crate) asker: Option<Asker>,
    pub(crate) ublk: Result<UblkDriver, String>,
    pub(crate) watches: Watches,
    pub(crate) retry: BusyRetry,
    /// The limit on open files.
    pub(crate) open_files: u64,
    pub(crate) notifier: Option<Arc<Notifier>>,
    /// True if clients are served; false if a signal ended the start before that.
    pub(crate) decided: Arc<OnceLock<bool>>,
}

/// The parts in service, which the stop needs.
pub(crate) struct Served {
    pub(crate) vfs: Arc<Vfs>,
    pub(crate) nfs: Arc<Nfs>,
    pub(crate) control: Arc<Control>,
    pub(crate) running: Running,
    /// The NBD door.
    pub(crate) door: Option<NbdDoor>,
    pub(crate) found: PortmapRole,
}

impl Start {
    /// Takes everything into service. Returns `None` if a signal ended the start.
    pub(crate) fn run(self) -> Result<Option<Served>, Error> {
        let Start { settings, keyring, host, events, under_way, front, retry, .. } = self;
        keyring.replace(credentials(&settings)?);
        volumes::door::check(&settings, &keyring)?;
        let watches = self.watches.opened()?;
        // The check comes before the directories are opened for writing, and before any write.
        let mut identities = Identities::check(&settings.state_dir, &settings.exports, &under_way)?;
        let own = |export: &Export| {
            under_way.waits_for(&export.path);
            Ok((export.path.clone(), own(&self.owner, export, retry)?))
        };
        let owned = settings.exports.iter().map(own).collect::<Result<Vec<_>, Error>>()?;
        let vfs = Arc::new(open_vfs(&settings, &mut identities, self.open_files, watches, &under_way)?);
        identities.check_opened(&settings, &vfs)?;
        under_way.waits_for_none();
        let nfs = Arc::new(Nfs::new(vfs.clone(), nfs_config(&settings, &events))?);
        if settings.takes_kerberos() {
            nfs.serve_kerberos(&kerberos_settings(&settings))?;
        }
        let inherited = host.inherited();
        let mut server = retry.take(
            "the port",
            |error| matches!(error, Error::PortInUse(_)),
            || {
                let config = transport_config(&settings, &keyring);
                let bound = Server::bind_or_take(&settings.listen, &inherited, config, nfs.clone());
                bound.map_err(start_error)
            },
        )?;
        drop(inherited);
        let contenders = Contenders::default();
        server.contend(&contenders);
        let (listen, sockets) = (server.local_addrs().to_vec(), server.sockets()?);
        let port = listen.first().map_or(0, std::net::SocketAddr::port);
        let ports = Ports { port, nfs4: settings.nfs4, locks: settings.locks };
        let parts = Parts {
            nfs: nfs.clone(),
            vfs: vfs.clone(),
            events: events.clone(),
            keyring: keyring.clone(),
            host: host.clone(),
            under_way: under_way.clone(),
            web: front.web.clone(),
            sandbox: self.sandbox,
            open_files: self.open_files,
            notifier: self.notifier,
        };
        let control = Arc::new(Control::new(settings.clone(), front.started, listen.clone(), parts));
        front.hand_over(control.clone());
        let found = PortmapRole::begin(settings.portmap, &listen, ports, &nfs, &events)?;
        if settings.locks {
            serve_nsm(&listen, &nfs, &events);
        }
        flush_after_crash(&vfs, &events, &under_way);
        // All other possible failures are excluded now. From here on there is something to stop cleanly.
        under_way.step("opening the cache");
        let opened = cache::open(
            &settings,
            (&vfs, &nfs),
            &mut identities,
            &events,
            (self.asker, self.ublk),
            (retry, &self.owner),
            &under_way,
        )?;
        let (cache, said) = opened.unzip();
        // With a cache this is a step of its start.
        if cache.is_none() {
            nfs.begin().map_err(|source| Error::StateDir { path: settings.state_dir.clone(), source })?;
        }
        nfs.remove_unopened_kept().map_err(|(path, error)| {
            let reason = format!("its removed files in .forebay/unlinked cannot be read: {error}");
            Error::Export { path, reason }
        })?;
        let recorded = identities.keep(&settings, &vfs)?;
        // A file that grows beyond RLIMIT_FSIZE is an error for the client (EFBIG), and must not end the process.
        signal_hook::flag::register(SIGXFSZ, Arc::default())?;
        // The decision precedes all messages: a signal from here on stops the server cleanly.
        if self.decided.set(true).is_err() {
            return Ok(None);
        }
        let running = server.spawn().map_err(start_error)?;
        let door = match &cache {
            Some(cache) => {
                cache.volumes.take_devices()?;
                NbdDoor::open(&settings, &keyring, &cache.volumes, &events, &contenders)?
            }
            None => {
                if volumes::door::is_wanted(&settings) {
                    let message = "NBD is not served: a volume needs a cache, and mode pass-through has none; set `cache`";
                    events.add(Severity::Warning, "nbd", message, &[]);
                }
                None
            }
        };
        nfs.notify_hosts();
        let log = events.clone();
        let mounts =
            MountWatch::start(&vfs, Box::new(move |export, there| tell_elsewhere(&log, export, there)))?;
        drop(self.reports);
        let pool = cache.as_ref().map_or(0, |cache| cache.pool);
        let exports =
            LiveExports::new((&vfs, &nfs), &settings.state_dir, (self.owner, owned), recorded, pool);
        let reads = cache.is_some().then(|| UsualReads::start(&settings.state_dir, &nfs)).transpose()?;
        control.serve(cache, mounts, exports, reads, &running);
        let names: Vec<_> = vfs.exports().iter().map(|export| export.path.display().to_string()).collect();
        events.add(Severity::Info, "started", format!("serving {}", names.join(", ")), &[]);
        let kernel_handles = vfs.exports().iter().all(|export| export.kernel_handles());
        host.ready(&Ready {
            listen,
            handles: if kernel_handles { HandleMode::Kernel } else { HandleMode::Fallback },
            cache: said.unwrap_or_default(),
            mode: control.effective_mode(),
            sockets,
        });
        Ok(Some(Served { vfs, nfs, control, running, door, found }))
    }
}

/// Answers SM_NOTIFY over UDP, beside TCP, on the port of NFS: the status monitor of Linux uses UDP. Without it the
/// locks of a client that has restarted are freed when it locks a file again.
fn serve_nsm(listen: &[std::net::SocketAddr], nfs: &Arc<Nfs>, events: &EventLog) {
    for address in listen {
        let nfs = Arc::downgrade(nfs);
        let answer = move |call: &[u8], from, reply: &mut Vec<u8>| {
            let nfs = nfs.upgrade();
            nfs.iter().for_each(|nfs| nfs.answer_nsm(call, from, reply));
            nfs.is_some()
        };
        if let Err(error) = udp::bound(*address).and_then(|socket| udp::serve("nsm-udp", socket, answer)) {
            let message = format!(
                "clients cannot report over UDP that they have restarted: {address}: {error}; stop the program that uses \
                 the port, or serve with --locks=false"
            );
            events.add(Severity::Warning, "nsm", message, &[]);
        }
    }
}

/// Makes the data durable that a killed server left in the page cache.
fn flush_after_crash(vfs: &Vfs, events: &EventLog, under_way: &UnderWay) {
    under_way.step("syncing what the last server left in memory");
    for (export, error) in vfs.flush_after_crash(|export| under_way.waits_for(&export.path)) {
        let message = format!(
            "what the last server left in memory of {} may be lost in a power cut: syncfs fails: {error}",
            export.name
        );
        events.add(Severity::Error, "backing", message, &[("export", &export.name)]);
    }
}

/// Takes ownership of an export's directory, so that no second server writes to it. Tries again while a stopping
/// server may still have it. Fails if the export is writable and the process cannot change the directory.
fn own(owner: &DirectoryLocks, export: &Export, retry: BusyRetry) -> Result<Ownership, Error> {
    let path = &export.path;
    require_no_state(path)?;
    let busy = |error: &Error| matches!(error, Error::ExportInUse { .. });
    let owned = retry.take(&path.display().to_string(), busy, || take(owner, path))?;
    if export.clients.iter().any(|rule| rule.access == Access::ReadWrite) {
        require_writable(path)?;
    }
    Ok(owned)
}

/// Takes ownership of the directory of an export.
///
/// # Errors
/// [`Error::ExportInUse`]; the directory cannot be opened or locked.
pub(crate) fn take(owner: &DirectoryLocks, path: &Path) -> Result<Ownership, Error> {
    owner.take(path).map_err(|refused| match refused {
        NotOwned::Unusable(error) => Error::Export { path: path.to_owned(), reason: error.to_string() },
        refused => Error::ExportInUse { path: path.to_owned(), by: refused },
    })
}

/// Returns an error if the directory is the state directory of a server, or lies in one: clients could read the secret
/// of file handles.
pub(crate) fn require_no_state(path: &Path) -> Result<(), Error> {
    match path.ancestors().find(|above| is_state_dir(above)) {
        Some(state) => {
            let reason =
                format!("{} is the state directory of a server; name a directory elsewhere", state.display());
            Err(Error::Export { path: path.to_owned(), reason })
        }
        None => Ok(()),
    }
}

/// Returns an error if the process cannot change the directory.
pub(crate) fn require_writable(path: &Path) -> Result<(), Error> {
    let writable = rustix::fs::accessat(
        rustix::fs::CWD,
        path,
        rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK,
        rustix::fs::AtFlags::empty(),
    );
    writable.map_err(|errno| Error::ReadOnlyDirectory { path: path.into(), reason: errno.to_string() })
}

/// Opens the exported directories. `watches` has the watch for external changes of each.
fn open_vfs(
    settings: &Settings,
    identities: &mut Identities,
    open_files: u64,
    watches: Vec<Option<Arc<HostWatch>>>,
    under_way: &UnderWay,
) -> Result<Vfs, Error> {
    let failed = |source: io::Error| Error::StateDir { path: settings.state_dir.clone(), source };
    let secret = HandleSecret::find(settings)?;
    let key = HandleKey::new(&secret.bytes);
    identities.take_secret(secret);
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
    let files = reload::open_files(settings, open_files);
    let budget = Budget::new(files, settings.limits.metadata_memory as usize);
    let begin = |spec: &ExportSpec| under_way.waits_for(&spec.path);
    let deliver = |answers: &mut dyn FnMut()| forebay_rpc::batch(answers);
    let opened = Vfs::open_telling(&specs, key, verifier, budget, deliver, begin);
    opened.map_err(|(place, error)| Error::Export {
        path: settings.exports[place].path.clone(),
        reason: error.to_string(),
    })
}

/// Returns the parameters of the NFS service. Clients that an export refuses become events.
fn nfs_config(settings: &Settings, events: &Arc<EventLog>) -> NfsConfig {
    let events = events.clone();
    let limits = &settings.limits;
    NfsConfig {
        exports: settings.exports.clone(),
        workers: limits.workers,
        worker_queue: limits.worker_queue,
        busy_poll: limits.busy_poll,
        nfs4: settings.nfs4,
        locks: settings.locks.then(|| LockConfig {
            state_dir: settings.state_dir.clone(),
            sources: settings.listen.iter().map(|address| address.ip().to_canonical()).collect(),
        }),
        lease: limits.lease,
        profile: settings.profile,
        idmap_domain: settings.idmap_domain.clone(),
        state_dir: Some(settings.state_dir.clone()),
        reply_cache: reload::reply_cache(settings),
        refused: Box::new(move |address, why| {
            let message = format!("client {address} was refused: {}", why.explain());
            let fields: [(&str, &dyn ToString); 2] = [("client", &address), ("reason", &why.name())];
            events.add(Severity::Warning, "client-refused", message, &fields);
        }),
    }
}

/// Returns the settings of RPCSEC_GSS.
pub(crate) fn kerberos_settings(settings: &Settings) -> GssSettings {
    let forebay_config::Kerberos { keytab, realms } = settings.kerberos.clone();
    GssSettings { keytab, realms, limits: GssLimits::default() }
}

/// Returns the limits of the transport.
pub(crate) fn transport_config(settings: &Settings, keyring: &Arc<Keyring>) -> Config {
    let limits = &settings.limits;
    Config {
        threads: limits.threads,
        max_connections: limits.connections,
        memory: limits.memory as usize,
        conn_memory: limits.connection_memory as usize,
        max_inflight: limits.inflight,
        shared_inflight: limits.shared_inflight,
        idle_timeout: (!limits.idle_timeout.is_zero()).then_some(limits.idle_timeout),
        stall_timeout: limits.stall_timeout,
        busy_poll: limits.busy_poll,
        // A certificate may be named in service.
        tls: Some(keyring.clone()),
        kernel_tls: settings.kernel_tls,
        ..Config::default()
    }
}
