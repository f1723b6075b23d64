//! The settings that change when the configuration is read again (docs/operations.md says which). The other differences
//! take effect at the next start. A configuration with mistakes changes nothing.

use forebay_config::{Difference, Mode, Reloaded, Settings};
use forebay_control::ReloadReport;
use forebay_nfs::{CacheLimits, Nfs};
use forebay_rpc::{Bounds, Config};
use forebay_vfs::Vfs;

use crate::live_exports::Prepared;

/// The parts of a running server whose limits change in service.
pub(crate) struct Limited<'a> {
    pub(crate) nfs: &'a Nfs,
    pub(crate) vfs: &'a Vfs,
    /// `None` before clients are served.
    pub(crate) transport: Option<&'a Bounds>,
    /// The process's limit on open files.
    pub(crate) open_files: u64,
}

impl Limited<'_> {
    /// Puts the limits of the settings in force that change in service.
    pub(crate) fn set(&self, settings: &Settings, transport: &Config) {
        self.nfs.set_limits(settings.limits.worker_queue, reply_cache(settings));
        self.vfs.budget.set_limit(open_files(settings, self.open_files));
        if let Some(bounds) = self.transport {
            bounds.set(transport);
        }
    }
}

/// Returns the bounds of the reply cache.
pub(crate) fn reply_cache(settings: &Settings) -> CacheLimits {
    let limits = &settings.limits;
    CacheLimits { entries: limits.reply_cache_entries, bytes: limits.reply_cache_memory as usize }
}

/// Returns the number of descriptors that files of the exports may use. The rest is for connections and the server's
/// own files. `process` is the process's limit on open files.
pub(crate) fn open_files(settings: &Settings, process: u64) -> usize {
    let reserved = settings.limits.connections as u64 + 256;
    let files = settings.limits.open_files as u64;
    files.min(process.saturating_sub(reserved).max(process / 2)) as usize
}

/// Returns the result of reading `new` in a server with the settings `now`. Exports are added if they are `prepared`. A
/// server without a cache keeps its mode: it has no devices to cache on. A server without the process that sends
/// notifications keeps having no targets.
pub(crate) fn reloaded(
    now: &Settings,
    new: &Settings,
    prepared: &Prepared,
    has_cache: bool,
    has_notifier: bool,
) -> Reloaded {
    let mut found = now.reloaded(new, |export| prepared.has(export));
    if !has_cache && new.mode != Mode::PassThrough && new.mode != now.mode {
        found.settings.mode = now.mode;
        let is_mode = |difference: &mut Difference| {
            difference.table.name.is_empty() && difference.key.as_deref() == Some("mode")
        };
        found.at_next_start.extend(found.in_service.extract_if(.., is_mode));
    }
    if !has_notifier {
        found.settings.notify = now.notify.clone();
        let is_target = |difference: &mut Difference| difference.table.name == "notify";
        found.at_next_start.extend(found.in_service.extract_if(.., is_target));
    }
    found
}

/// Returns differences as lines of a report.
pub(crate) fn lines(differences: &[Difference]) -> Vec<String> {
    differences.iter().map(ToString::to_string).collect()
}

/// Returns a report as one sentence.
pub(crate) fn described(report: &ReloadReport) -> String {
    if !report.mistakes.is_empty() {
        return format!(
            "the configuration has mistakes, and nothing has changed: {}",
            report.mistakes.join("; ")
        );
    }
    let changed = match &report.changed[..] {
        [] => "nothing has changed".to_owned(),
        changed => format!("in force now: {}", changed.join("; ")),
    };
    match &report.at_next_start[..] {
        [] => format!("the configuration was read anew: {changed}"),
        later => {
            format!("the configuration was read anew: {changed}; at the next start: {}", later.join("; "))
        }
    }
}
