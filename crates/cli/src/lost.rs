//! `forebay lost`: cached data of files that no longer exist.

use std::path::PathBuf;

use anyhow::Context;
use forebay_config::format_size;
use forebay_server::{LostFile, drop_lost, lost_file, lost_files, restore_lost};
use serde_json::{Value, json};

use crate::args::Target;
use crate::data_args::LostCommand;
use crate::output::{Align, Table};
use crate::{Exit, control, output};

/// Runs `forebay lost`.
pub(crate) fn lost(command: LostCommand) -> anyhow::Result<Exit> {
    match command {
        LostCommand::List { target, json } => list(&target, json)?,
        LostCommand::Show { id, target, json } => show(&id, &target, json)?,
        LostCommand::Restore { id, path, over, target } => {
            let copied = restore_lost(&state_dir(&target)?, &id, &path, over)
                .with_context(|| format!("cannot restore {id} to {}", path.display()))?;
            output::note(&format!(
                "Restored {} to {}; `forebay lost drop {id}` removes the data that was set aside.",
                format_size(copied),
                path.display()
            ));
        }
        LostCommand::Drop { id, target } => {
            drop_lost(&state_dir(&target)?, &id).with_context(|| format!("cannot drop {id}"))?;
            output::note(&format!("Dropped {id}."));
        }
    }
    Ok(Exit::Done)
}

/// Returns the state directory. Its files are read directly, because the server may be unable to start.
fn state_dir(target: &Target) -> anyhow::Result<PathBuf> {
    match &target.state_dir {
        Some(dir) => Ok(dir.clone()),
        None => Ok(control::find(target)?.state_dir().to_owned()),
    }
}

/// Prints the files whose data is set aside in the state directory, with the number of bytes and the reason.
fn list(target: &Target, json: bool) -> anyhow::Result<()> {
    let dir = state_dir(target)?;
    let files =
        lost_files(&dir).with_context(|| format!("cannot read the data set aside in {}", dir.display()))?;
    if json {
        return output::json(&files.iter().map(as_json).collect::<Vec<_>>());
    }
    let mut table = Table::new(&[
        ("ID", Align::Left),
        ("BYTES", Align::Right),
        ("WHY", Align::Left),
        ("PATH", Align::Left),
    ]);
    for file in &files {
        let bytes = file.ranges.iter().map(|(from, to)| to - from).sum();
        table.row([file.id.clone(), format_size(bytes), file.why.to_owned(), path(file)]);
    }
    if files.is_empty() {
        output::note("Nothing was set aside.");
    } else {
        output::result(&table.render(0))?;
    }
    Ok(())
}

/// Returns the last known path of a file, or the exports that it was in.
fn path(file: &LostFile) -> String {
    match &*file.path {
        "" => format!("not known, in {}", file.exports),
        path => output::printable(path),
    }
}

/// Prints one file whose data is set aside, with the byte ranges of that data.
fn show(id: &str, target: &Target, json: bool) -> anyhow::Result<()> {
    let file = lost_file(&state_dir(target)?, id).with_context(|| format!("cannot show {id}"))?;
    if json {
        return output::json(&as_json(&file));
    }
    let ranges: Vec<_> = file.ranges.iter().map(|(from, to)| format!("{from} to {to}")).collect();
    let lines = [
        ("id", file.id.clone()),
        ("path", path(&file)),
        ("exports", file.exports.clone()),
        ("handle", file.handle.clone()),
        ("why", file.why.to_owned()),
        ("bytes", ranges.join(", ")),
    ];
    let text: String = lines.iter().map(|(name, text)| format!("{name:<12} {text}\n")).collect();
    Ok(output::result(&text)?)
}

/// Returns a file whose data is set aside, for `--json`.
fn as_json(file: &LostFile) -> Value {
    let LostFile { id, path, exports, handle, why, since_ns, size, ranges } = file;
    let ranges: Vec<_> = ranges.iter().map(|(from, to)| json!({ "from": from, "to": to })).collect();
    json!({
        "id": id, "path": path, "exports": exports, "handle": handle, "why": why, "since_ns": since_ns, "size": size,
        "ranges": ranges,
    })
}
