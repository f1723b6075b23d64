//! The answers of the control socket from the first moment of a start. Before the exports are open, no other part of
//! the server can answer.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_config::{Entry, Export, Mode, Settings};
use forebay_control::{
    Activity, Advice, CachedFiles, Delivery, DurabilityStatus, EventLog, ExportStatus, FlushProgress,
    FlushReport, HandleMode, Handler, Health, MemoryStatus, MetadataStatus, PolicyReport, PolicyRequest,
    PoolRequest, PoolStatus, RefusedStatus, ReloadReport, ReplyCacheStatus, SandboxStatus, Starting,
    StatSample, Status, TraceBatch, VolumeRequest, VolumeStatus, WarmReport, WorkerStatus,
};

use forebay_http::{Format, Gathering, Web, render};

use crate::control::{Control, cpu_ns, resident_bytes};
use crate::devices::paths;
use crate::host::Host;
use crate::notify::Notifier;
use crate::space::export_troubles;
use crate::under_way::UnderWay;

/// The server as its control socket sees it: a start, and a [`Control`] from the moment that the exports are open.
pub(crate) struct ControlFront {
    settings: Settings,
    /// The time when the server started.
    pub(crate) started: Started,
    events: Arc<EventLog>,
    host: Arc<dyn Host>,
    under_way: Arc<UnderWay>,
    sandbox: SandboxStatus,
    pub(crate) web: Arc<Web>,
    notifier: Option<Arc<Notifier>>,
    control: OnceLock<Arc<Control>>,
}

/// The time when the server started, by two clocks that are read together, so that no two answers differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Started {
    at: Instant,
    /// The time in nanoseconds since 1970.
    pub(crate) ns: u64,
}

impl Started {
    /// Reads both clocks.
    pub(crate) fn now() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Started { at: Instant::now(), ns: now.as_nanos() as u64 }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }
}

impl ControlFront {
    /// Returns the front that answers on the control socket during the start, until the start hands over its
    /// `Control`.
    pub(crate) fn new(
        settings: &Settings,
        started: Started,
        events: &Arc<EventLog>,
        host: &Arc<dyn Host>,
        under_way: &Arc<UnderWay>,
        sandbox: SandboxStatus,
        web: Arc<Web>,
    ) -> Self {
        let (events, host, under_way) = (events.clone(), host.clone(), under_way.clone());
        let (settings, control) = (settings.clone(), OnceLock::new());
        ControlFront { settings, started, events, host, under_way, sandbox, web, notifier: None, control }
    }

    /// Answers for `notifier` as well.
    pub(crate) fn notifying(self, notifier: Option<Arc<Notifier>>) -> Self {
        ControlFront { notifier, ..self }
    }

    /// Has `control` answer from now on, because the exports are open.
    pub(crate) fn hand_over(&self, control: Arc<Control>) {
        let _ = self.control.set(control);
    }

    /// Returns the part that answers requests that need open exports, once the exports are open.
    pub(crate) fn control(&self) -> Option<&Arc<Control>> {
        self.control.get()
    }

    /// Returns the part that answers requests that need exports and a cache in service.
    ///
    /// # Errors
    /// Clients are not served yet. Some parts of the server could not be changed then, and others could.
    pub(crate) fn in_service(&self) -> Result<&Arc<Control>, String> {
        let control = self.control.get().filter(|control| control.is_serving());
        control.ok_or_else(|| refusal(&self.under_way.shown()))
    }

    /// Returns the status of an export that is not open yet.
    fn export(&self, export: &Export, starting: &Starting) -> ExportStatus {
        let awaited = starting.awaited.as_ref().filter(|awaited| awaited.path == export.path);
        ExportStatus {
            name: export.name.clone(),
            aliases: export.aliases.clone(),
            path: export.path.clone(),
            id: export.id,
            fs_type: "-".into(),
            ordered: false,
            total_bytes: 0,
            free_bytes: 0,
            total_inodes: 0,
            free_inodes: 0,
            // The wait for this export has just begun, so the export is not silent.
            silent_ns: awaited.map_or(0, |awaited| awaited.elapsed_ns).saturating_sub(ANSWERED),
        }
    }

    /// Returns the status of a server that is still starting.
    fn starting(&self) -> Status {
        let starting = self.under_way.shown();
        let exports: Vec<_> =
            self.settings.exports.iter().map(|export| self.export(export, &starting)).collect();
        let mut reasons: Vec<_> = exports.iter().flat_map(export_troubles).collect();
        reasons.push(still_starting(&starting));
        let limits = &self.settings.limits;
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            started_ns: self.started.ns,
            uptime_ns: self.started.elapsed().as_nanos() as u64,
            mode: self.settings.mode,
            effective_mode: self.settings.mode,
            starting: Some(starting),
            health: Health::Degraded { reasons },
            write_verifier: String::new(),
            listen: Vec::new(),
            state_dir: self.settings.state_dir.clone(),
            handles: HandleMode::Kernel,
            sandbox: self.sandbox,
            exports,
            clients: Vec::new(),
            procedures: Vec::new(),
            bytes_read: 0,
            bytes_written: 0,
            connections: 0,
            connections_limit: limits.connections as u64,
            encrypted: 0,
            encrypted_in_kernel: 0,
            inflight: 0,
            held_back: 0,
            memory: MemoryStatus {
                limit_bytes: limits.memory,
                resident_bytes: resident_bytes(),
                ..MemoryStatus::default()
            },
            workers: WorkerStatus::default(),
            durability: DurabilityStatus::default(),
            reply_cache: ReplyCacheStatus::default(),
            refused: RefusedStatus::default(),
            rate_limits: Vec::new(),
            metadata: MetadataStatus { limit_bytes: limits.metadata_memory, ..MetadataStatus::default() },
            client_state: None,
            log_lines_lost: self.host.log_lines_lost(),
            volumes: Vec::new(),
            pool: None,
        }
    }
}

/// A file system that answers within this time, in nanoseconds, is not called silent.
const ANSWERED: u64 = 1_000_000_000;

/// Returns the message for a start that is in progress.
pub(crate) fn still_starting(starting: &Starting) -> String {
    format!("the server is still starting ({starting}): clients wait")
}

/// Returns the reason why nothing can be changed while a start is in progress.
pub(crate) fn refusal(starting: &Starting) -> String {
    format!("the server is still starting ({starting}); `forebay status` shows when it serves")
}

impl Handler for ControlFront {
    fn status(&self) -> Status {
        let mut status = self.control().map_or_else(|| self.starting(), |control| control.status());
        let notifying = self.notifier.as_ref().and_then(|notifier| notifier.trouble());
        self.web.trouble().into_iter().chain(notifying).for_each(|trouble| status.health.degrade(trouble));
        status
    }

    fn advise(&self) -> Result<Advice, String> {
        self.in_service()?.advise()
    }

    fn metrics(&self) -> Result<String, String> {
        Ok(render(&Arc::new(Gathering::of(self)), Format::Text))
    }

    fn invite(&self, who: &str) -> Result<String, String> {
        self.web.invite(who)
    }

    fn test_notify(&self, target: Option<&str>) -> Result<Vec<Delivery>, String> {
        match &self.notifier {
            Some(notifier) => notifier.test(target),
            None => Err(
                "the server was started without targets of notifications; add [[notify]] to its configuration, and restart it"
                    .to_owned(),
            ),
        }
    }

    fn sample(&self) -> StatSample {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let starting = || StatSample {
            time_ns: now.as_nanos() as u64,
            started_ns: self.started.ns,
            uptime_ns: self.started.elapsed().as_nanos() as u64,
            cpu_ns: cpu_ns(),
            ..StatSample::default()
        };
        self.control().map_or_else(starting, |control| control.sample())
    }

    fn activity(&self, top: usize) -> Activity {
        // Before the exports are open, no client does anything.
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        let enabled = self.settings.profile;
        let nothing = || Activity { time_ns: now_ns, since_ns: now_ns, enabled, ..Activity::default() };
        self.control().map_or_else(nothing, |control| control.activity(top))
    }

    fn trace(&self, batch: &mut dyn FnMut(TraceBatch) -> bool) -> Result<(), String> {
        self.in_service()?.trace(batch)
    }

    fn reset_activity(&self) {
        self.control().into_iter().for_each(|control| control.reset_activity());
    }

    fn events(&self) -> &EventLog {
        &self.events
    }

    fn serving(&self) -> Result<(), String> {
        self.in_service()?.serving()
    }

    fn config(&self) -> Vec<Entry> {
        self.control().map_or_else(|| self.settings.entries(), |control| control.config())
    }

    fn mode(&self) -> Mode {
        self.control().map_or(self.settings.mode, |control| control.mode())
    }

    fn effective_mode(&self) -> Mode {
        self.control().map_or(self.settings.mode, |control| control.effective_mode())
    }

    fn set_mode(&self, mode: Mode) -> Result<(), String> {
        self.in_service()?.set_mode(mode)
    }

    fn flush(&self, progress: &mut dyn FnMut(FlushProgress)) -> Result<FlushReport, String> {
        self.in_service()?.flush(progress)
    }

    fn pool(&self, request: PoolRequest) -> Result<PoolStatus, String> {
        match (self.in_service(), request) {
            (Ok(control), request) => control.pool(request),
            // A server without a cache has no devices, during its start too.
            (Err(_), PoolRequest::Status) if paths(&self.settings).is_none() => Ok(PoolStatus::default()),
            (Err(starting), _) => Err(starting),
        }
    }

    fn reload(&self) -> Result<ReloadReport, String> {
        Ok(self.in_service()?.reload())
    }

    fn volume(&self, request: VolumeRequest) -> Result<Vec<VolumeStatus>, String> {
        self.in_service()?.volume(request)
    }

    fn warm(
        &self,
        path: Option<&Path>,
        progress: &mut dyn FnMut(WarmReport) -> bool,
    ) -> Result<WarmReport, String> {
        self.in_service()?.warm(path, progress)
    }

    fn policy(&self, request: PolicyRequest) -> Result<PolicyReport, String> {
        self.in_service()?.policy(request)
    }

    fn cached(&self, path: &Path, drop: bool) -> Result<CachedFiles, String> {
        self.in_service()?.cached(path, drop)
    }
}
