//! `forebay config`: shows, checks and changes settings.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::Context;
use forebay_config::{Flags, Settings, describe, resolve, resolve_text, set_in_text};
use serde_json::json;

use crate::args::Target;
use crate::config_args::ConfigCommand;
use crate::control_args::ReloadArgs;
use crate::{Exit, control, output, serve};

/// Runs `forebay config`.
pub(crate) fn config(command: ConfigCommand) -> anyhow::Result<Exit> {
    match command {
        ConfigCommand::Show { file, target, json } => show(file, &target, json),
        ConfigCommand::Check { file, json } => check(&file, json),
        ConfigCommand::Set { key, value, file, reload, target } => {
            let done = set(&file, &key, &value)?;
            match (done, reload) {
                (Exit::Done, true) => control::reload(&ReloadArgs { target, json: false }),
                (done, _) => Ok(done),
            }
        }
    }
}

/// Returns the flags of a server that has a configuration file and no other flag.
fn flags_of(file: &Path) -> Flags {
    Flags { config: Some(file.to_owned()), ..Flags::default() }
}

/// Prints the settings in force: those of the running server, or those that a file would give.
fn show(file: Option<PathBuf>, target: &Target, json: bool) -> anyhow::Result<Exit> {
    let entries = match file {
        None => control::find(target)?.config()?,
        Some(file) => match resolve(&flags_of(&file)) {
            Ok(resolved) => resolved.settings.entries(),
            Err(problems) => return Ok(serve::refuse(&problems)),
        },
    };
    match json {
        true => output::json(&entries)?,
        false => output::result(&describe(&entries, true))?,
    }
    Ok(Exit::Done)
}

/// Prints the mistakes in a configuration file and in the files that it names, with exit status 2 if there is one. Asks
/// no server.
fn check(file: &Path, json: bool) -> anyhow::Result<Exit> {
    let (notices, mistakes) = match resolve(&flags_of(file)) {
        Ok(resolved) => (resolved.notices, forebay_server::check_files(&resolved.settings)),
        Err(problems) => (Vec::new(), problems.0.iter().map(ToString::to_string).collect()),
    };
    if json {
        output::json(&json!({ "file": file, "mistakes": mistakes }))?;
    } else {
        notices.iter().for_each(|notice| output::note(&format!("Note: {notice}.")));
        mistakes.iter().for_each(|mistake| output::error(mistake));
        if mistakes.is_empty() {
            output::note(&format!("No mistakes found in {}.", file.display()));
        }
    }
    Ok(if mistakes.is_empty() { Exit::Done } else { Exit::Usage })
}

/// Changes one setting in a file, if the result has no mistakes. Tells the differences.
fn set(file: &Path, key: &str, value: &str) -> anyhow::Result<Exit> {
    let shown = file.display();
    // A symbolic link stays, and its target is replaced.
    let real = file.canonicalize().with_context(|| format!("cannot read {shown}"))?;
    let text = std::fs::read_to_string(&real).with_context(|| format!("cannot read {shown}"))?;
    let changed = match set_in_text(&text, key, value) {
        Ok(changed) => changed,
        Err(error) => {
            output::error(&format!("{shown}: {error}"));
            return Ok(Exit::Usage);
        }
    };
    let flags = flags_of(file);
    let new = match resolve_text(&flags, Some(&changed)) {
        Ok(resolved) => resolved.settings,
        Err(problems) => {
            let exit = serve::refuse(&problems);
            output::note("Nothing has changed.");
            return Ok(exit);
        }
    };
    if changed == text {
        output::note(&format!("{shown} has this value already."));
        return Ok(Exit::Done);
    }
    replace(&real, &changed).with_context(|| format!("cannot change {shown}; nothing has changed"))?;
    // The file may have had mistakes that this change has mended.
    let before = resolve_text(&flags, Some(&text)).ok().map(|resolved| resolved.settings);
    tell(before.as_ref(), &new, file);
    Ok(Exit::Done)
}

/// Tells the differences between the settings of the file before and after.
fn tell(before: Option<&Settings>, new: &Settings, file: &Path) {
    let Some(before) = before else {
        output::note(&format!("Changed {}.", file.display()));
        return;
    };
    let found = before.reloaded(new, |_| true);
    let (now, later) = (&found.in_service, &found.at_next_start);
    now.iter().for_each(|it| output::note(&format!("{it} (`forebay reload` puts it in force)")));
    later.iter().for_each(|it| output::note(&format!("{it} (from the next start on)")));
    if now.is_empty() && later.is_empty() {
        output::note(&format!("Changed {}; the settings that result are the same.", file.display()));
    }
}

/// Replaces a file in one step, durably. The new file has the mode, the owner and the group of the old one.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let old = path.metadata()?;
    let directory = path.parent().unwrap_or(Path::new("/"));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = directory.join(format!(".{name}.{}", std::process::id()));
    let write = || {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&beside)?;
        let own = file.metadata()?;
        if (own.uid(), own.gid()) != (old.uid(), old.gid()) {
            std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()))?;
        }
        file.set_permissions(std::fs::Permissions::from_mode(old.mode() & 0o7777))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        File::open(directory)?.sync_all()
    };
    // After the rename nothing is left to remove.
    write().inspect_err(|_| drop(std::fs::remove_file(&beside)))
}
