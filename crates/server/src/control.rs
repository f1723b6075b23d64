//! The requests of the control socket: the state that the running server reports, and the commands that it carries out.

mod activity;
mod load;
mod report;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use forebay_common::lock::Mutex;
use forebay_config::{Entry, Limits, Mode, Settings};
use forebay_control::{
    Activity, Advice, CachedFiles, EventLog, FlushProgress, FlushReport, HandleMode, Handler, MOST_ACTIVE,
    Measured, MemoryStatus, PolicyReport, PolicyRequest, PoolRequest, PoolStatus, ReloadReport,
    ReplyCacheStatus, SandboxStatus, Severity, Starting, StatSample, Status, TraceBatch, VolumeRequest,
    VolumeStatus, WarmReport, WorkerStatus,
};
use forebay_engine::Usage;
use forebay_http::Web;
use forebay_nfs::Nfs;
use forebay_rpc::{Counters, Running};
use forebay_tls::{Credentials, Keyring};
use forebay_vfs::{MountWatch, Question, Vfs};
use forebay_wire::nfs3::Procedure;
use forebay_wire::nfs4::Opcode;

use activity::{activity, trace};
use report::{CHANGE_OPERATIONS, CHANGES, LOOK_OPERATIONS, LOOKS, cached_files, client_state, procedures};
pub(crate) use report::{cpu_ns, resident_bytes};

use crate::cache::{Cache, config_mode, engine_mode};
use crate::event_report::directories;
use crate::front::{Started, refusal};
use crate::host::Host;
use crate::in_time::{RELOAD_AGAIN, in_time, real, walk_in_time};
use crate::live_exports::LiveExports;
use crate::named_files::credentials;
use crate::notify::Notifier;
use crate::pool::{counters, destage};
use crate::rates::Rates;
use crate::reload::{Limited, described, lines, reloaded};
use crate::start::{kerberos_settings, transport_config};
use crate::under_way::UnderWay;
use crate::usual_reads::UsualReads;
use crate::warm::warm;

/// The server as its control socket sees it, from the start on.
pub(crate) struct Control {
    /// The settings at the start.
    settings: Settings,
    /// The settings with all later changes except the mode.
    now: Mutex<Settings>,
    started: Started,
    listen: Vec<SocketAddr>,
    parts: Parts,
    /// Held during a reload: there is one at a time.
    reloading: Mutex<()>,
    /// Set when clients are served.
    serving: OnceLock<Serving>,
    rates: Rates,
    state: Arc<Question<StateDir>>,
    index: Arc<Question<Usage>>,
}

/// The parts of the server that the control socket reports on.
pub(crate) struct Parts {
    pub(crate) nfs: Arc<Nfs>,
    pub(crate) vfs: Arc<Vfs>,
    pub(crate) events: Arc<EventLog>,
    pub(crate) keyring: Arc<Keyring>,
    pub(crate) sandbox: SandboxStatus,
    pub(crate) host: Arc<dyn Host>,
    pub(crate) under_way: Arc<UnderWay>,
    pub(crate) web: Arc<Web>,
    /// The process's limit on open files.
    pub(crate) open_files: u64,
    /// Present if the configuration had targets of notifications at the start.
    pub(crate) notifier: Option<Arc<Notifier>>,
}

/// The additional parts that exist once clients are served.
struct Serving {
    cache: Option<Cache>,
    transport: Counters,
    /// Reports where the exports' paths lead.
    mounts: MountWatch,
    exports: Arc<LiveExports>,
    /// Present with a cache.
    reads: Option<UsualReads>,
}

/// The state of the file system that holds the state directory.
#[derive(Clone, Copy, Debug, Default)]
struct StateDir {
    /// Free bytes and total bytes; `None` if the file system cannot be asked.
    space: Option<(u64, u64)>,
    /// Files that are set aside in it.
    lost: usize,
}

impl Control {
    /// Returns the control of a server that does not serve clients yet. `settings` are those of the start, and a
    /// reload changes only a copy.
    pub(crate) fn new(settings: Settings, started: Started, listen: Vec<SocketAddr>, parts: Parts) -> Self {
        Control {
            now: Mutex::new(settings.clone()),
            settings,
            started,
            listen,
            parts,
            reloading: Mutex::default(),
            serving: OnceLock::new(),
            rates: Rates::default(),
            state: Arc::default(),
            index: Arc::default(),
        }
    }

    /// Records that clients are served from now on.
    pub(crate) fn serve(
        &self,
        cache: Option<Cache>,
        mounts: MountWatch,
        exports: LiveExports,
        reads: Option<UsualReads>,
        running: &Running,
    ) {
        // A reload sets the limits either in the settings before this, or in the transport after it.
        let _one = self.reloading.lock();
        self.rates.set(&self.now.lock(), &self.parts.nfs, running.counters());
        let _ = self.serving.set(Serving {
            cache,
            transport: running.counters().clone(),
            mounts,
            exports: Arc::new(exports),
            reads,
        });
    }

    /// Writes the list of files that clients usually read a last time.
    pub(crate) fn end_reads(&self) {
        self.reads().into_iter().for_each(UsualReads::end);
    }

    fn reads(&self) -> Option<&UsualReads> {
        self.serving.get()?.reads.as_ref()
    }

    pub(crate) fn cache(&self) -> Option<&Cache> {
        self.serving.get()?.cache.as_ref()
    }

    /// Returns the cache.
    ///
    /// # Errors
    /// A sentence: there is no cache, or none yet.
    fn require_cache(&self) -> Result<&Cache, String> {
        self.cache().ok_or_else(|| self.no_cache())
    }

    /// Returns the reason why there is no cache.
    fn no_cache(&self) -> String {
        self.starting().map_or_else(
            || "this server has no cache: it was started in mode pass-through".to_owned(),
            |starting| refusal(&starting),
        )
    }

    /// Returns the mode in force: write-back needs two devices.
    pub(crate) fn effective_mode(&self) -> Mode {
        match self.cache() {
            Some(cache) => config_mode(cache.engine.effective_mode()),
            None => self.mode(),
        }
    }

    /// Returns true if clients are served.
    pub(crate) fn is_serving(&self) -> bool {
        self.serving.get().is_some()
    }

    /// Returns how far the start has come; `None` once clients are served.
    fn starting(&self) -> Option<Starting> {
        self.serving.get().is_none().then(|| self.parts.under_way.shown())
    }

    /// Reads the configuration again; an event reports the result too.
    pub(crate) fn reload(&self) -> ReloadReport {
        // The certificate and the token may be new ones under the names of the old ones.
        let (host, web) = (self.parts.host.clone(), self.parts.web.clone());
        let read = in_time("the paths of the configuration", RELOAD_AGAIN, move || {
            let new = host.settings()?;
            let credentials = credentials(&new).map_err(|error| vec![error.to_string()])?;
            let token = web.new_token(new.http.as_ref()).map_err(|error| vec![error])?;
            Ok((new, credentials, token))
        });
        let read = read.unwrap_or_else(|silent| Err(vec![silent]));
        let report = match read {
            Ok((new, credentials, token)) => self.put_in_force(&new, credentials, token),
            Err(mistakes) => ReloadReport { mistakes, ..ReloadReport::default() },
        };
        let severity = if report.mistakes.is_empty() { Severity::Info } else { Severity::Error };
        self.parts.events.add(severity, "reload", described(&report), &[]);
        report
    }

    /// Puts the parts of `new` in force that change in service. Everything that can fail comes first.
    fn put_in_force(
        &self,
        new: &Settings,
        credentials: Option<Credentials>,
        token: Option<String>,
    ) -> ReloadReport {
        let _one = self.reloading.lock();
        let mut report = ReloadReport::default();
        // The settings in force can be read meanwhile: a directory may take long to answer.
        let now = self.now.lock().clone();
        let exports = self.serving.get().map(|serving| &serving.exports);
        let prepared = match exports.map(|exports| exports.prepare(&now, new, self.cache())).transpose() {
            Ok(prepared) => prepared.unwrap_or_default(),
            Err(mistakes) => return ReloadReport { mistakes, ..report },
        };
        let found = reloaded(&now, new, &prepared, self.cache().is_some(), self.parts.notifier.is_some());
        if found.settings.takes_kerberos()
            && let Err(error) = self.serve_kerberos(new)
        {
            report.mistakes.push(error);
            return report;
        }
        // Last of all that can fail: the state directory remembers the identity of each export from then on.
        if let Some(Err(error)) = exports.map(|exports| exports.record(&prepared)) {
            report.mistakes.push(error.to_string());
            return report;
        }
        (report.changed, report.at_next_start) = (lines(&found.in_service), lines(&found.at_next_start));
        // A rule may need the new authorities, so these come first.
        if self.parts.keyring.replace(credentials) {
            report.changed.push("the certificate and the authorities of TLS for new connections".to_owned());
        }
        if token.is_some_and(|token| self.parts.web.set_token(token)) {
            report.changed.push("the token of [http]".to_owned());
        }
        match exports.filter(|_| found.settings.exports != now.exports) {
            Some(exports) => exports.put_in_force(prepared, &found.settings, self.cache()),
            None => self.cache().into_iter().for_each(|cache| cache.policies.reload(&found.settings)),
        }
        if found.settings.limits != now.limits {
            let transport = self.serving.get().map(|serving| serving.transport.bounds());
            let Parts { nfs, vfs, open_files, keyring, .. } = &self.parts;
            let limited = Limited { nfs, vfs, transport, open_files: *open_files };
            limited.set(&found.settings, &transport_config(&found.settings, keyring));
        }
        if let Some(serving) = self.serving.get() {
            self.rates.set(&found.settings, &self.parts.nfs, &serving.transport);
        }
        self.parts.nfs.set_profile(found.settings.profile);
        self.parts.nfs.set_idmap_domain(found.settings.idmap_domain.as_deref());
        if found.settings.log.level != now.log.level {
            self.parts.host.set_log_level(found.settings.log.level);
        }
        if let (Some(notifier), true) = (&self.parts.notifier, found.settings.notify != now.notify) {
            notifier.set(&found.settings.notify);
        }
        if found.settings.mode != now.mode {
            // It does not fail: `reloaded` keeps the mode of a server without a cache.
            let _ = self.set_mode(found.settings.mode);
        }
        *self.now.lock() = found.settings;
        report
    }

    /// Serves Kerberos with the keytab of `new`, unless it is served already.
    fn serve_kerberos(&self, new: &Settings) -> Result<(), String> {
        let (nfs, settings) = (self.parts.nfs.clone(), kerberos_settings(new));
        let place = settings.keytab.display().to_string();
        in_time(&place, RELOAD_AGAIN, move || {
            nfs.serve_kerberos(&settings).map_err(|error| crate::Error::from(error).to_string())
        })?
    }

    /// Returns the limits in force.
    pub(crate) fn limits(&self) -> Limits {
        self.now.lock().limits.clone()
    }
}

impl Handler for Control {
    fn status(&self) -> Status {
        let transport = self.transport();
        let (stats, cache, limits) = (self.parts.nfs.stats(), self.parts.nfs.reply_cache(), self.limits());
        let durability = self.durability();
        let uptime = self.started.elapsed();
        let exports = self.exports();
        let kernel_handles = self.parts.vfs.exports().iter().all(|export| export.kernel_handles());
        let verifier = self.parts.vfs.verifier.get();
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            started_ns: self.started.ns,
            uptime_ns: uptime.as_nanos() as u64,
            mode: self.mode(),
            effective_mode: self.effective_mode(),
            starting: self.starting(),
            health: self.health(&durability, &exports),
            write_verifier: format!("{:016x}", u64::from_be_bytes(verifier)),
            listen: self.listen.clone(),
            state_dir: self.settings.state_dir.clone(),
            handles: if kernel_handles { HandleMode::Kernel } else { HandleMode::Fallback },
            sandbox: self.parts.sandbox,
            exports,
            clients: self.clients(),
            procedures: procedures(&self.parts.nfs),
            bytes_read: stats.bytes_read.load(Relaxed),
            bytes_written: stats.bytes_written.load(Relaxed),
            connections: transport.connections,
            connections_limit: limits.connections as u64,
            encrypted: transport.encrypted,
            encrypted_in_kernel: transport.encrypted_in_kernel,
            inflight: stats.deferred.load(Relaxed),
            held_back: transport.held_back,
            memory: MemoryStatus {
                used_bytes: transport.memory,
                limit_bytes: limits.memory,
                resident_bytes: resident_bytes(),
            },
            workers: WorkerStatus {
                threads: 3 * limits.workers as u64,
                busy: stats.busy.load(Relaxed),
                queued: self.parts.nfs.queued() as u64,
                queue_limit: 3 * limits.worker_queue as u64,
                rejected: stats.rejected.load(Relaxed),
            },
            durability,
            reply_cache: ReplyCacheStatus {
                entries: cache.entries.load(Relaxed) as u64,
                bytes: cache.bytes.load(Relaxed) as u64,
                hits: cache.hits.load(Relaxed),
                in_progress_hits: cache.in_progress.load(Relaxed),
            },
            refused: self.refused(),
            rate_limits: self.rates.status(),
            metadata: self.metadata(),
            client_state: self.parts.nfs.state_numbers().map(client_state),
            log_lines_lost: self.parts.host.log_lines_lost(),
            volumes: self.cache().map(|cache| cache.volumes.statuses()).unwrap_or_default(),
            pool: self.cache().map(|cache| self.pool_status(cache)),
        }
    }

    fn sample(&self) -> StatSample {
        let stats = self.parts.nfs.stats();
        let durability = self.durability();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // The estimates of the work in progress need a look at its begin.
        self.cache().into_iter().for_each(|cache| drop(cache.progress.of(&cache.engine)));
        StatSample {
            time_ns: now.as_nanos() as u64,
            started_ns: self.started.ns,
            uptime_ns: self.started.elapsed().as_nanos() as u64,
            read: self.group(&[Procedure::Read], &[Opcode::Read], stats.bytes_read.load(Relaxed)),
            write: self.group(&[Procedure::Write], &[Opcode::Write], stats.bytes_written.load(Relaxed)),
            commit: self.group(&[Procedure::Commit], &[Opcode::Commit], 0),
            lookup: self.group(&LOOKS, &LOOK_OPERATIONS, 0),
            change: self.group(&CHANGES, &CHANGE_OPERATIONS, 0),
            sync_batches: durability.batches,
            sync_operations: durability.operations,
            sync_failures: durability.failures,
            reply_cache_hits: self.parts.nfs.reply_cache().hits.load(Relaxed),
            inflight: stats.deferred.load(Relaxed),
            connections: self.transport().connections,
            workers_busy: stats.busy.load(Relaxed),
            workers_queued: self.parts.nfs.queued() as u64,
            cpu_ns: cpu_ns(),
            cache: self.cache().map(counters),
            dirty_bytes: self.cache().map_or(0, |cache| cache.engine.dirty_bytes()),
        }
    }

    fn advise(&self) -> Result<Advice, String> {
        let cache = self.require_cache()?;
        let Some(curve) = &cache.curve else {
            return Err("the miss-ratio curve is switched off; set `miss_ratio_curve = true` in the configuration, and start the \
                        server again"
                .to_owned());
        };
        let stats = self.parts.nfs.stats();
        let writes = self.group(&[Procedure::Write], &[Opcode::Write], 0);
        let exports = load::exports(&activity(self, MOST_ACTIVE), &self.now.lock().clone(), cache);
        let measured = Measured {
            mode: self.effective_mode(),
            counters: &counters(cache),
            bytes_written: stats.bytes_written.load(Relaxed),
            bytes_read: stats.bytes_read.load(Relaxed),
            write_ns: writes.latency.summary().mean_ns,
            seconds: self.started.elapsed().as_secs_f64(),
            exports: &exports,
            links: &load::links(),
        };
        Ok(Advice::new(curve.curve(&cache.engine), measured))
    }

    fn activity(&self, top: usize) -> Activity {
        activity(self, top)
    }

    fn trace(&self, batch: &mut dyn FnMut(TraceBatch) -> bool) -> Result<(), String> {
        trace(self, batch)
    }

    fn reset_activity(&self) {
        self.parts.nfs.reset_profile();
    }

    fn events(&self) -> &EventLog {
        &self.parts.events
    }

    fn serving(&self) -> Result<(), String> {
        self.starting().map_or(Ok(()), |starting| Err(refusal(&starting)))
    }

    fn reload(&self) -> Result<ReloadReport, String> {
        Ok(self.reload())
    }

    fn config(&self) -> Vec<Entry> {
        self.now.lock().entries()
    }

    fn mode(&self) -> Mode {
        match (self.cache(), self.serving.get()) {
            (Some(cache), _) => config_mode(cache.engine.mode()),
            (None, Some(_)) => Mode::PassThrough,
            (None, None) => self.settings.mode,
        }
    }

    fn effective_mode(&self) -> Mode {
        self.effective_mode()
    }

    fn set_mode(&self, mode: Mode) -> Result<(), String> {
        match self.cache() {
            Some(cache) => {
                let before = self.mode();
                cache.engine.set_mode(engine_mode(mode));
                if before != mode {
                    let message = format!("the mode is {mode} now, before it was {before}");
                    self.parts.events.add(Severity::Info, "mode", message, &[("mode", &mode)]);
                }
                Ok(())
            }
            None if mode == Mode::PassThrough => Ok(()),
            None => Err(format!("mode {mode} needs a cache, and this server has none")),
        }
    }

    fn flush(&self, progress: &mut dyn FnMut(FlushProgress)) -> Result<FlushReport, String> {
        let begun = Instant::now();
        let destaged_bytes = self.cache().map_or(Ok(0), |cache| destage(cache, progress))?;
        let total = self.parts.vfs.served_filesystems().len() as u64;
        for (done, filesystem) in self.parts.vfs.served_filesystems().enumerate() {
            progress(FlushProgress { done: done as u64, total, bytes: false });
            filesystem.flush().map_err(|error| {
                format!("{} could not be made durable: {error}", directories(&filesystem))
            })?;
        }
        progress(FlushProgress { done: total, total, bytes: false });
        let elapsed_ns = begun.elapsed().as_nanos() as u64;
        let dirty_bytes = self.cache().map_or(0, |cache| cache.engine.dirty_bytes());
        Ok(FlushReport { filesystems: total, destaged_bytes, dirty_bytes, elapsed_ns })
    }

    fn pool(&self, request: PoolRequest) -> Result<PoolStatus, String> {
        let Some(cache) = self.cache() else {
            return match request {
                PoolRequest::Status => Ok(PoolStatus::default()),
                PoolRequest::Add { .. } | PoolRequest::Remove { .. } | PoolRequest::Scrub { .. } => {
                    Err(self.no_cache())
                }
            };
        };
        match request {
            PoolRequest::Status => {}
            PoolRequest::Add { path, force } => cache.add(&path, force)?,
            PoolRequest::Remove { path, wait: true } => cache.remove(&path)?,
            PoolRequest::Scrub { wait } => cache.scrub(wait)?,
            PoolRequest::Remove { path, wait: false } => cache.start_remove(path, &self.parts.events)?,
        }
        Ok(self.pool_status(cache))
    }

    fn volume(&self, request: VolumeRequest) -> Result<Vec<VolumeStatus>, String> {
        match (self.cache(), request) {
            (Some(cache), request) => cache.volumes.answer(request),
            (None, VolumeRequest::List { name: None }) if self.is_serving() => Ok(Vec::new()),
            (None, _) => Err(self.no_cache()),
        }
    }

    fn warm(
        &self,
        path: Option<&Path>,
        progress: &mut dyn FnMut(WarmReport) -> bool,
    ) -> Result<WarmReport, String> {
        let (nfs, vfs, cache) = (&self.parts.nfs, &self.parts.vfs, self.require_cache()?);
        warm((nfs, vfs, cache), self.reads(), path, progress)
    }

    fn policy(&self, request: PolicyRequest) -> Result<PolicyReport, String> {
        let policies = self.require_cache()?.policies.clone();
        policies.answer(request)
    }

    fn cached(&self, path: &Path, drop: bool) -> Result<CachedFiles, String> {
        let (vfs, asked) = (self.parts.vfs.clone(), path.to_owned());
        let policies = self.cache().filter(|_| !drop).map(|cache| cache.policies.clone());
        walk_in_time(
            &path.display().to_string(),
            |_| (),
            move |walk| {
                let path = real(&asked)?;
                let found = match drop {
                    true => vfs.drop_cached(&path, walk),
                    false => vfs.holdings(&path, walk),
                };
                let found = found.map(cached_files).map_err(|error| error.to_string())?;
                let policy = policies.map(|policies| policies.in_force(&path)).transpose()?;
                Ok(CachedFiles { policy, ..found })
            },
        )?
    }
}
