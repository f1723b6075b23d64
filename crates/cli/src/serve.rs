//! `forebay serve`: from the command line to a running server.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::Context;
use forebay_config::{LIMITS, PrivilegedPort, Problems, Resolved, Settings, resolve};

use crate::serve_args::ServeArgs;
use crate::{Exit, announce, logging, output};

/// Serves until the process is told to stop.
pub(crate) fn serve(args: ServeArgs) -> anyhow::Result<Exit> {
    let check_only = args.check_config;
    let Resolved { settings, notices } = match resolve(&args.into_flags()) {
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
    let mut made = make_directories(&settings)?;
    let shown = settings.clone();
    let (send, served) = std::sync::mpsc::channel();
    let ended = forebay_server::run(settings, move |ready| {
        announce::ready(&shown, &ready);
        // It is read after the end.
        let _ = send.send(());
    });
    if served.try_recv().is_ok() {
        made.clear();
    }
    // A failed start leaves nothing; a directory that holds something stays.
    made.iter().for_each(|directory| drop(std::fs::remove_dir(directory)));
    ended?;
    Ok(Exit::Done)
}

/// Says every mistake.
pub(crate) fn refuse(problems: &Problems) -> Exit {
    problems.0.iter().for_each(|problem| output::error(&problem.to_string()));
    Exit::Usage
}

/// Makes the served directory if only its last component is missing, and says so. Returns those made.
fn make_directories(settings: &Settings) -> anyhow::Result<Vec<PathBuf>> {
    let mut made = Vec::new();
    for export in settings.exports.iter().filter(|export| !export.path.exists()) {
        let shown = export.path.display();
        std::fs::create_dir(&export.path)
            .with_context(|| format!("cannot make the directory {shown} to serve"))?;
        output::note(&format!("Made the directory {shown}: it did not exist."));
        made.push(export.path.clone());
    }
    Ok(made)
}

/// The settings that result, one per line, named as in the file.
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
    let _ = writeln!(text, "\n[limits]");
    for limit in LIMITS {
        let value = limit.show(&settings.limits);
        let quoted = if value.parse::<u64>().is_ok() { value } else { format!("\"{value}\"") };
        let _ = writeln!(text, "{} = {quoted}", limit.key);
    }
    let _ =
        writeln!(text, "\n[log]\nlevel = \"{}\"\nformat = \"{}\"", settings.log.level, settings.log.format);
    for export in &settings.exports {
        let _ = writeln!(text, "\n[[export]]\npath = {:?}\nname = {:?}", export.path, export.name);
        if !export.aliases.is_empty() {
            let _ = writeln!(text, "aliases = {:?}", export.aliases);
        }
        let _ = writeln!(text, "id = {}", export.id);
        for rule in &export.clients {
            let networks: Vec<String> = rule.networks.iter().map(ToString::to_string).collect();
            let _ = writeln!(text, "\n[[export.client]]\nnetworks = {networks:?}");
            let _ = writeln!(text, "access = \"{}\"\nsquash = \"{}\"", rule.access, rule.squash);
            let _ = writeln!(text, "anonuid = {}\nanongid = {}", rule.anonuid, rule.anongid);
            let _ = writeln!(text, "manage_gids = {}", rule.manage_gids);
            let _ = match rule.privileged_port {
                PrivilegedPort::Always => writeln!(text, "privileged_port = true"),
                PrivilegedPort::Never => writeln!(text, "privileged_port = false"),
                PrivilegedPort::Remote => writeln!(text, "# privileged_port: for clients on other hosts"),
            };
        }
    }
    text
}
