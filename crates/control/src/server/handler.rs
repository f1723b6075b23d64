//! The operations of the server that clients of the control socket can ask for.

use std::path::Path;

use forebay_config::{Entry, Mode};

use crate::activity::Activity;
use crate::advice::Advice;
use crate::event::EventLog;
use crate::notify::Delivery;
use crate::policy::{PolicyReport, PolicyRequest};
use crate::protocol::{
    CachedFiles, FlushProgress, FlushReport, PoolRequest, PoolStatus, ReloadReport, WarmReport,
};
use crate::sample::StatSample;
use crate::status::Status;
use crate::trace::TraceBatch;
use crate::volume::{VolumeRequest, VolumeStatus};

/// The operations that a server offers to its control clients. Several threads call them at once. Each error is one
/// sentence.
pub trait Handler: Send + Sync + 'static {
    /// Returns the state of the server at this moment.
    fn status(&self) -> Status;
    /// Returns the server's counters since its start.
    fn sample(&self) -> StatSample;
    /// Returns the miss-ratio curve, and what follows from it.
    ///
    /// # Errors
    /// The server has no cache, or no curve is estimated; the error says how to have one.
    fn advise(&self) -> Result<Advice, String> {
        Err("this server estimates no miss-ratio curve".to_owned())
    }
    /// Returns what clients do, with the `top` busiest entries of each group. Waits for no file system.
    fn activity(&self, top: usize) -> Activity;
    /// Makes the counters of [`Handler::activity`] begin at 0, except those of devices.
    fn reset_activity(&self);
    /// Records the operations of clients: gives them to `batch` several times a second, until `batch` returns false.
    ///
    /// # Errors
    /// A trace is being recorded already, or nothing is counted.
    fn trace(&self, batch: &mut dyn FnMut(TraceBatch) -> bool) -> Result<(), String>;
    /// Returns every figure in the text format of Prometheus, version 0.0.4.
    ///
    /// # Errors
    /// This part of a server has no metrics.
    fn metrics(&self) -> Result<String, String> {
        Err("this server has no metrics; ask a whole server".to_owned())
    }
    /// Returns a URL that opens the page with the rights of an administrator, once. `who` is the administrator's name
    /// in later events.
    ///
    /// # Errors
    /// No page is served; the error says how to have one.
    fn invite(&self, who: &str) -> Result<String, String> {
        Err(format!(
            "this server has no page for {who}; add `[http]` to its configuration, and start it again"
        ))
    }
    /// Sends a test to the target of notifications with this name, or to all. Returns when each target has taken it or
    /// failed.
    ///
    /// # Errors
    /// There is no such target, or nothing sends notifications.
    fn test_notify(&self, target: Option<&str>) -> Result<Vec<Delivery>, String> {
        Err(format!("this server notifies no target {}; ask a whole server", target.unwrap_or_default()))
    }
    /// Returns the server's event log.
    fn events(&self) -> &EventLog;
    /// Succeeds if the server serves NFS clients. Before that, control clients may look at the server but not change
    /// anything.
    ///
    /// # Errors
    /// The error says how far the start has come.
    fn serving(&self) -> Result<(), String>;
    /// Returns the settings in force.
    fn config(&self) -> Vec<Entry>;
    /// Returns the configured mode.
    fn mode(&self) -> Mode;
    /// Returns the mode in force. It differs from the configured mode when cache devices are missing.
    fn effective_mode(&self) -> Mode;
    /// Changes the mode. Returns when every write acknowledged from now on follows the new mode.
    ///
    /// # Errors
    /// The error says why the mode cannot be changed.
    fn set_mode(&self, mode: Mode) -> Result<(), String>;
    /// Makes all changes that were acknowledged before the call durable on the backing store.
    ///
    /// # Errors
    /// The error names the data that could not be made durable.
    fn flush(&self, progress: &mut dyn FnMut(FlushProgress)) -> Result<FlushReport, String>;
    /// Shows or changes the pool of cache devices.
    ///
    /// # Errors
    /// The error says why the pool cannot be changed.
    fn pool(&self, request: PoolRequest) -> Result<PoolStatus, String>;
    /// Shows or changes what is cached how.
    ///
    /// # Errors
    /// The error says why the rule cannot be shown or changed.
    fn policy(&self, request: PolicyRequest) -> Result<PolicyReport, String> {
        Err(format!("this server has no policies, so it refuses {request:?}"))
    }
    /// Brings files to the cache devices: those at and below `path`, or else those that clients have read most. Calls
    /// `progress` several times a second, and ends when `progress` returns false.
    ///
    /// # Errors
    /// The error says why the files cannot be cached.
    fn warm(
        &self,
        path: Option<&Path>,
        progress: &mut dyn FnMut(WarmReport) -> bool,
    ) -> Result<WarmReport, String> {
        progress(WarmReport::default());
        Err(format!("this server has no cache for {}", path.unwrap_or(Path::new("files")).display()))
    }
    /// Shows or changes block volumes. Returns the volumes that the request was about, after the change.
    ///
    /// # Errors
    /// The error says why the volume cannot be changed.
    fn volume(&self, request: VolumeRequest) -> Result<Vec<VolumeStatus>, String>;
    /// Reads the configuration again and applies the settings that can change in service.
    ///
    /// # Errors
    /// The configuration cannot be read at this moment. Mistakes in it are in the report instead.
    fn reload(&self) -> Result<ReloadReport, String>;
    /// Returns how much is cached of the files at or below `path`. With `drop`, counts first, then destages and
    /// drops.
    ///
    /// # Errors
    /// The path is not served, or some of its dirty blocks could not be destaged.
    fn cached(&self, path: &Path, drop: bool) -> Result<CachedFiles, String>;
}
