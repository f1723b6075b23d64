//! `forebay serve`: turns the command line into a running server.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use forebay_config::{
    Access, ClientRule, Export, Flags, LIMITS, LogLevel, PrivilegedPort, Problems, Resolved, Settings,
    Squash, resolve,
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
        output::result(&describe(&settings))?;
        output::note("No mistakes found.");
        return Ok(Exit::Done);
    }
    logging::start(&settings.log);
    let made = make_directories(&settings)?;
    let served = AtomicBool::new(false);
    let host = Arc::new(Process { settings: settings.clone(), flags, served });
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
}

impl Host for Process {
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

/// Returns the resulting settings, one per line, with the names of the file.
fn describe(settings: &Settings) -> String {
    let mut text = String::new();
    let listen: Vec<String> =
        settings.listen.iter().map(|address| format!("{:?}", address.to_string())).collect();
    let _ = writeln!(text, "listen = [{}]", listen.join(", "));
    let _ = writeln!(text, "state_dir = {:?}", settings.state_dir);
    let _ = writeln!(text, "mode = \"{}\"", settings.mode);
    if !settings.cache.devices.is_empty() {
        let _ = writeln!(text, "cache = {:?}", settings.cache.devices);
    }
    let _ = writeln!(text, "cache_size = {}\nram = {}", settings.cache.size, settings.cache.ram);
    let _ = writeln!(text, "portmap = \"{}\"\nsandbox = \"{}\"", settings.portmap, settings.sandbox);
    let _ = writeln!(text, "locks = {}\nnfs4 = {}", settings.locks, settings.nfs4);
    let _ = writeln!(text, "nfs4_delegations = {}", settings.nfs4_delegations);
    let _ = writeln!(text, "keytab = {:?}", settings.kerberos.keytab);
    if !settings.kerberos.realms.is_empty() {
        let _ = writeln!(text, "realms = {:?}", settings.kerberos.realms);
    }
    let _ = writeln!(text, "\n[limits]");
    for limit in LIMITS {
        let value = limit.show(&settings.limits);
        let quoted = if value.parse::<u64>().is_ok() { value } else { format!("\"{value}\"") };
        let _ = writeln!(text, "{} = {quoted}", limit.key);
    }
    let _ =
        writeln!(text, "\n[log]\nlevel = \"{}\"\nformat = \"{}\"", settings.log.level, settings.log.format);
    if let Some(tls) = &settings.tls {
        let _ = writeln!(text, "\n[tls]\ncertificate = {:?}\nkey = {:?}", tls.certificate, tls.key);
        if let Some(authorities) = &tls.client_ca {
            let _ = writeln!(text, "client_ca = {authorities:?}");
        }
    }
    if !settings.nbd.places().is_empty() {
        let _ = writeln!(text, "\n[nbd]\nlisten = {:?}", settings.nbd.places());
        let _ = writeln!(text, "insecure = {}", settings.nbd.insecure);
        let _ = writeln!(text, "client_certificate = {}", settings.nbd.client_certificate);
    }
    for volume in &settings.volumes {
        let _ = writeln!(text, "\n[[volume]]\nname = {:?}\nbacking = {:?}", volume.name, volume.backing);
        if let Some(mode) = volume.mode {
            let _ = writeln!(text, "mode = \"{mode}\"");
        }
        let _ = writeln!(text, "read_only = {}", volume.read_only);
    }
    for export in &settings.exports {
        let _ = writeln!(text, "\n[[export]]\npath = {:?}\nname = {:?}", export.path, export.name);
        if !export.aliases.is_empty() {
            let _ = writeln!(text, "aliases = {:?}", export.aliases);
        }
        let _ = writeln!(text, "id = {}\ntls = \"{}\"", export.id, export.tls);
        for rule in &export.clients {
            let networks: Vec<String> = rule.clients().collect();
            let _ = writeln!(text, "\n[[export.client]]\nnetworks = {networks:?}");
            let _ = writeln!(text, "access = \"{}\"\nsquash = \"{}\"", rule.access, rule.squash);
            let _ = writeln!(text, "anonuid = {}\nanongid = {}", rule.anonuid, rule.anongid);
            let _ = writeln!(text, "manage_gids = {}", rule.manage_gids);
            let sec: Vec<_> = rule.sec.iter().map(|flavor| flavor.as_str()).collect();
            let _ = writeln!(text, "sec = {sec:?}");
            let _ = match rule.privileged_port {
                PrivilegedPort::Always => writeln!(text, "privileged_port = true"),
                PrivilegedPort::Never => writeln!(text, "privileged_port = false"),
                PrivilegedPort::Remote => writeln!(text, "# privileged_port: for clients on other hosts"),
            };
        }
    }
    text
}
