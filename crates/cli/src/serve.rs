//! `forebay serve`: turns the command line into a running server.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use forebay_config::{
    Access, ClientRule, Export, Flags, LogLevel, Problems, Resolved, Settings, Squash, describe, resolve,
};
use forebay_server::{Host, Ready};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::serve_args::ServeArgs;
use crate::{Exit, announce, logging, output, service_manager};

/// Serves until the process is told to stop.
pub(crate) fn serve(args: ServeArgs) -> anyhow::Result<Exit> {
    let check_only = args.check_config;
    let flags = args.into_flags();
    let Resolved { settings, notices } = match resolve(&flags) {
        Ok(resolved) => resolved,
        Err(problems) => return Ok(refuse(&problems)),
    };
    notices.iter().for_each(|notice| output::note(&format!("Note: {notice}.")));
    if check_only {
        output::result(&describe(&settings.entries(), false))?;
        let mistakes = forebay_server::check_files(&settings);
        mistakes.iter().for_each(|mistake| output::error(mistake));
        if !mistakes.is_empty() {
            return Ok(Exit::Usage);
        }
        output::note("No mistakes found.");
        return Ok(Exit::Done);
    }
    logging::start(&settings.log);
    let made = make_directories(&settings)?;
    let served = AtomicBool::new(false);
    let inherited = Mutex::new(service_manager::inherited(&settings.listen));
    let host = Arc::new(Process { settings: settings.clone(), flags, served, inherited });
    let ended = forebay_server::run(settings, host.clone());
    if ended.is_err() && !host.served.load(Ordering::Relaxed) {
        // A failed start removes the directories that it made. A directory that is not empty stays. A start that a
        // signal ended removes nothing: it may have waited for the file system of such a directory.
        made.iter().for_each(|directory| drop(std::fs::remove_dir(directory)));
    }
    ended?;
    Ok(Exit::Done)
}

/// This process as the host of a server.
struct Process {
    /// Settings at the start.
    settings: Settings,
    flags: Flags,
    /// True once the server accepts clients.
    served: AtomicBool,
    /// Listening sockets from the service manager, until the server takes them.
    inherited: Mutex<Vec<service_manager::Inherited>>,
}

impl Host for Process {
    fn inherited(&self) -> Vec<service_manager::Inherited> {
        let mut sockets = self.inherited.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *sockets)
    }

    fn privileges_dropped(&self) {
        logging::start_thread();
    }

    fn under_way(&self, progress: &str) {
        service_manager::under_way(progress);
    }

    fn ready(&self, ready: &Ready) {
        announce::ready(&self.settings, ready);
        self.served.store(true, Ordering::Relaxed);
    }

    fn stopping(&self) {
        service_manager::stopping();
    }

    fn settings(&self) -> Result<Settings, Vec<String>> {
        let resolved = resolve(&self.flags);
        resolved
            .map(|resolved| resolved.settings)
            .map_err(|problems| problems.0.iter().map(ToString::to_string).collect())
    }

    fn set_log_level(&self, level: LogLevel) {
        logging::set_level(level);
    }

    fn log_lines_lost(&self) -> u64 {
        logging::lines_lost()
    }
}

/// Prints every mistake.
pub(crate) fn refuse(problems: &Problems) -> Exit {
    problems.0.iter().for_each(|problem| output::error(&problem.to_string()));
    Exit::Usage
}

/// Makes each served directory whose last component alone is missing, and prints that. Returns the directories made.
fn make_directories(settings: &Settings) -> anyhow::Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    for export in settings.exports.iter().filter(|export| is_missing(&export.path)) {
        let shown = export.path.display();
        std::fs::create_dir(&export.path)
            .with_context(|| format!("cannot make the directory {shown} to serve"))?;
        let owner = own(export).inspect_err(|_| drop(std::fs::remove_dir(&export.path)))?.unwrap_or_default();
        output::note(&format!("Made the directory {shown}: it did not exist.{owner}"));
        made.push(export.path.clone());
    }
    Ok(made)
}

/// Returns true if nothing is at `path`. The file system mounted there is not asked: it may not answer.
fn is_missing(path: &Path) -> bool {
    rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).err() == Some(Errno::NOENT)
}

/// Gives a directory that root made to the anonymous user as which clients' root acts, if there is one. Without that,
/// no client could write there. Returns the sentence that reports this.
fn own(export: &Export) -> anyhow::Result<Option<String>> {
    let squashed = |rule: &&ClientRule| rule.access == Access::ReadWrite && rule.squash != Squash::None;
    let rule = export.clients.iter().find(squashed).filter(|_| rustix::process::geteuid().is_root());
    let Some(rule) = rule else { return Ok(None) };
    let (user, group) = (rule.anonuid, rule.anongid);
    std::os::unix::fs::chown(&export.path, Some(user), Some(group))
        .with_context(|| format!("cannot give {} to user {user}", export.path.display()))?;
    Ok(Some(format!(" It belongs to {user}:{group}, whom clients' root acts as.")))
}
