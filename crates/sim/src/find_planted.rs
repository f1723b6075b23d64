//! Planted bugs, one at a time: the worlds must find each of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use forebay_common::lock::Mutex;
use forebay_common::planted_bugs::plant;
use forebay_sim::hits::Worlds;
use forebay_sim::{joined, planted_bugs};

use crate::checked;

#[derive(Args)]
pub(crate) struct Planted {
    /// Plant deliberate bugs, one at a time, and show that each is found within the seeds; only bugs with this
    /// part in their name. With --seed: the first of these bugs, in that world
    #[arg(long, value_name = "PART", num_args = 0..=1, default_missing_value = "")]
    #[arg(conflicts_with_all = ["minutes", "exhaustive"])]
    pub(crate) plants: Option<String>,
    /// File with a seed that has found each bug before, to be run first; the other seeds follow if it does not find it
    #[arg(long, value_name = "FILE", requires = "plants")]
    known: Option<PathBuf>,
    /// Write the seeds that were found into that file
    #[arg(long, requires = "known")]
    update: bool,
}

/// The seed that has found each bug, a line each: the seed, a space, the bug.
type Known = BTreeMap<String, u64>;

/// Returns the bugs with `part` in their names.
pub(crate) fn named(worlds: Worlds, part: &str) -> Vec<&'static str> {
    let lists: &[&[&str]] = match worlds {
        Worlds::Engine => &[forebay_engine::planted_bugs::PLANTS, planted_bugs::PLANTS],
        Worlds::Names => &[forebay_oplog::planted_bugs::PLANTS],
        Worlds::Joined => &[joined::planted_bugs::PLANTS, forebay_metalog::planted_bugs::PLANTS],
    };
    lists.iter().flat_map(|list| list.iter().copied()).filter(|bug| bug.contains(part)).collect()
}

/// Plants each bug with `part` in its name and looks for a seed that finds it.
pub(crate) fn run(
    worlds: Worlds,
    part: &str,
    seeds: &[u64],
    threads: usize,
    arguments: &Planted,
) -> ExitCode {
    let known = match arguments.known.as_deref().map(read).transpose() {
        Ok(known) => known.unwrap_or_default(),
        Err(error) => {
            println!("FAILED: {error}");
            return ExitCode::FAILURE;
        }
    };
    let bugs = named(worlds, part);
    let next = AtomicU64::new(0);
    let found = Mutex::new(Known::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    if let Some(seed) = find(worlds, bug, seeds, known.get(*bug).copied()) {
                        found.lock().insert((*bug).to_owned(), seed);
                    }
                }
            });
        }
    });
    let found = std::mem::take(&mut *found.lock());
    println!("{} of {} planted bugs found", found.len(), bugs.len());
    let all = found.len() == bugs.len();
    match &arguments.known {
        Some(path) if arguments.update => update(path, known, found),
        Some(path) => {
            found.iter().filter(|(bug, seed)| known.get(*bug) != Some(seed)).for_each(|(bug, _)| {
                println!(
                    "{} has no seed that finds this bug first: {bug}; --update writes it",
                    path.display()
                );
            })
        }
        None => {}
    }
    if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the first seed that finds the bug. The known seed is run first, if it is one of the seeds.
fn find(worlds: Worlds, bug: &'static str, seeds: &[u64], known: Option<u64>) -> Option<u64> {
    let known = known.filter(|known| seeds.contains(known));
    let others = seeds.iter().copied().filter(|seed| Some(*seed) != known);
    plant(Some(bug));
    let found = known.into_iter().chain(others).find_map(|seed| Some((seed, checked(worlds, seed).err()?)));
    plant(None);
    match found {
        Some((seed, _)) if checked(worlds, seed).is_err() => {
            println!("FAILED seed {seed} without a bug, too");
            None
        }
        Some((seed, failure)) => {
            let short: String = failure.chars().take(100).collect();
            println!("found by seed {seed:>4}: {bug}: {short}");
            Some(seed)
        }
        None => {
            println!("MISSED: {bug}");
            None
        }
    }
}

/// Reads the file of known seeds: on each line a seed, a space, and the name of the planted bug that this seed finds.
/// Skips other lines.
fn read(path: &Path) -> Result<Known, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let parse = |line: &str| {
        let (seed, bug) = line.split_once(' ')?;
        Some((bug.to_owned(), seed.parse().ok()?))
    };
    Ok(text.lines().filter_map(parse).collect())
}

/// Replaces the seeds of the bugs that were found.
fn update(path: &Path, mut known: Known, found: Known) {
    known.extend(found);
    let text: String = known.iter().map(|(bug, seed)| format!("{seed} {bug}\n")).collect();
    if let Err(error) = std::fs::write(path, text) {
        println!("cannot write {}: {error}", path.display());
    }
}
