//! `forebay profile`: what the applications of clients do.

mod figures;
mod html;
mod record;
mod text;

use std::collections::HashMap;

use anyhow::Context;
use forebay_control::{Activity, ActivityEntry, ActivityGroup};

use crate::profile_args::{ProfileArgs, ProfileBy, ProfileCommand};
use crate::{Exit, control, output};

pub(crate) use text::name as entry_name;

/// A list of a report.
struct List<'a> {
    /// The heading of the first column.
    of: &'static str,
    entries: Vec<ActivityEntry>,
    /// The entries that are not listed, if there are any.
    others: Option<&'a forebay_control::Counters>,
}

/// Runs `forebay profile`.
pub(crate) fn profile(args: &ProfileArgs) -> anyhow::Result<Exit> {
    match &args.command {
        Some(ProfileCommand::Reset(reset)) => {
            control::find(&reset.target)?.reset_activity()?;
            return Ok(Exit::Done);
        }
        Some(ProfileCommand::Record(args)) => return record::record(args),
        None => {}
    }
    let client = control::find(&args.target)?;
    let activity = client.activity(wanted(args))?;
    if !activity.enabled {
        output::note("The server counts nothing now: its configuration has `profile = false`.");
    }
    if args.json {
        output::json(&activity)?;
    } else if let Some(path) = &args.html {
        let page = html::page(&activity, &lists(&activity, args));
        std::fs::write(path, page)
            .with_context(|| format!("cannot write the report to {}", path.display()))?;
        output::note(&format!("The report is in {}.", path.display()));
    } else {
        output::result(&text::report(&activity, &lists(&activity, args)))?;
    }
    Ok(Exit::Done)
}

/// Returns the number of entries to ask for. A directory is the sum of its files, so all files are needed.
fn wanted(args: &ProfileArgs) -> usize {
    match args.by {
        None | Some(ProfileBy::Directory) => forebay_control::MOST_ACTIVE,
        Some(_) => args.top,
    }
}

/// Returns the lists of a report.
fn lists<'a>(activity: &'a Activity, args: &ProfileArgs) -> Vec<List<'a>> {
    let all = [ProfileBy::Client, ProfileBy::Export, ProfileBy::User, ProfileBy::Directory, ProfileBy::File];
    let chosen = all.into_iter().filter(|by| args.by.is_none_or(|wanted| wanted == *by));
    chosen.map(|by| list(activity, by, args.top)).collect()
}

/// Returns the `top` busiest entries by the user's choice. The rest of a group is summed up, except for files, of
/// which only the busiest are known.
fn list(activity: &Activity, by: ProfileBy, top: usize) -> List<'_> {
    let of = |of, group: &'_ ActivityGroup| {
        let entries = group.entries.iter().take(top).cloned().collect();
        (of, entries)
    };
    let (of, entries) = match by {
        ProfileBy::Client => of("CLIENT", &activity.clients),
        ProfileBy::Export => of("EXPORT", &activity.exports),
        ProfileBy::User => of("USER", &activity.users),
        ProfileBy::File => of("FILE", &activity.files),
        ProfileBy::Directory => ("DIRECTORY", directories(&activity.files, top)),
    };
    let others = match by {
        ProfileBy::Client => Some(&activity.clients),
        ProfileBy::User => Some(&activity.users),
        ProfileBy::Export => Some(&activity.exports),
        ProfileBy::File | ProfileBy::Directory => None,
    };
    List { of, entries, others: others.map(|group| &group.others).filter(|others| !others.is_empty()) }
}

/// Sums files by their directory, busiest first. Files whose path is not known are left out.
fn directories(files: &ActivityGroup, top: usize) -> Vec<ActivityEntry> {
    let mut sums: HashMap<(Option<String>, String), ActivityEntry> = HashMap::new();
    for file in files.entries.iter().filter(|file| !file.name.starts_with('#')) {
        let name = file.name.rsplit_once('/').map_or("/", |(parent, _)| parent);
        let name = if name.is_empty() { "/" } else { name }.to_owned();
        let sum = sums.entry((file.export.clone(), name.clone())).or_insert_with(|| ActivityEntry {
            name,
            export: file.export.clone(),
            ..ActivityEntry::default()
        });
        sum.counters.add(&file.counters);
        sum.shared |= file.shared;
    }
    let mut sums: Vec<_> = sums.into_values().collect();
    sums.sort_by(|a, b| b.counters.total().cmp(&a.counters.total()).then_with(|| a.name.cmp(&b.name)));
    sums.truncate(top);
    sums
}

#[cfg(test)]
mod tests {
    use forebay_control::{Counters, Kind};

    use super::*;

    fn file(name: &str, reads: u64) -> ActivityEntry {
        let mut counters = Counters::default();
        counters.operations[Kind::Read as usize] = reads;
        ActivityEntry { name: name.into(), export: Some("/".into()), counters, ..ActivityEntry::default() }
    }

    #[test]
    fn a_directory_is_the_sum_of_its_files() {
        let entries =
            vec![file("a/b/one", 5), file("a/b/two", 7), file("top", 9), file("#00ff", 90), file("/", 1)];
        let found = directories(&ActivityGroup { entries, ..ActivityGroup::default() }, 10);
        let shown: Vec<_> = found.iter().map(|one| (&*one.name, one.counters.total())).collect();
        assert_eq!(shown, [("a/b", 12), ("/", 10)]);
    }
}
