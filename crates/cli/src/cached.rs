//! `forebay cached` and `forebay invalidate`: show and drop the cached data of a path.

use anyhow::bail;
use forebay_config::format_size;
use forebay_control::CachedFiles;

use crate::data_args::{InvalidateArgs, PathArgs, absolute};
use crate::{Exit, control, output, policy};

/// Runs `forebay cached`.
pub(crate) fn cached(args: &PathArgs) -> anyhow::Result<Exit> {
    let files = ask(args, false)?;
    match args.json {
        true => output::json(&files)?,
        false => output::result(&describe(&files))?,
    }
    Ok(Exit::Done)
}

/// Runs `forebay invalidate`.
pub(crate) fn invalidate(args: &InvalidateArgs) -> anyhow::Result<Exit> {
    let files = ask(&args.of, true)?;
    if args.of.json {
        output::json(&files)?;
    } else {
        output::note(&format!(
            "Dropped {} on the cache devices and {} in memory of {} files, {} of which were destaged first, and the cached \
             names and attributes of {} files.",
            format_size(files.ssd_bytes),
            format_size(files.ram_bytes),
            output::count(files.cached_files),
            output::count(files.dirty_files),
            output::count(files.files)
        ));
    }
    if files.kept_files > 0 {
        bail!(
            "clients are writing to {} files, so a part of these stays cached; try again when the clients have finished",
            output::count(files.kept_files)
        );
    }
    Ok(Exit::Done)
}

/// Asks the server about the cached data below a path. With `drop` the server destages and drops the data first.
fn ask(args: &PathArgs, drop: bool) -> anyhow::Result<CachedFiles> {
    let path = absolute(&args.path)?;
    Ok(control::find(&args.target)?.cached(&path, drop)?)
}

/// Returns the cached data of a path as text: the files, the bytes on SSDs and in memory, the dirty bytes, and the
/// policy.
fn describe(files: &CachedFiles) -> String {
    let CachedFiles { cached_files, dirty_files, ssd_bytes, dirty_bytes, ram_bytes, .. } = *files;
    let policy = files.policy.as_ref().map(policy::lines).unwrap_or_default();
    let dirty = match dirty_files {
        0 => "nothing: the directory has everything".to_owned(),
        _ => format!(
            "{} in {} files: the directory does not have it yet",
            format_size(dirty_bytes),
            output::count(dirty_files)
        ),
    };
    let lines = [
        (
            "files",
            format!(
                "{}, {} of them at least partly cached",
                output::count(files.files),
                output::count(cached_files)
            ),
        ),
        ("on SSDs", format_size(ssd_bytes)),
        ("in memory", format_size(ram_bytes)),
        ("dirty", dirty),
    ];
    lines.iter().map(|(name, text)| format!("{name:<12} {text}\n")).collect::<String>() + &policy
}
