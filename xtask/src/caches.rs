//! The table of what survives on XFS over caches of block devices, exported by the kernel's NFS server. bcache,
//! dm-cache, dm-writecache and a volume stand beside a plain disk, in one guest. The guest crashes, a cache device
//! fails, and the guest crashes again.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::Parser;

use crate::{
    process::rigs_dir,
    server,
    suites::{Case, Counts, Outcome, asset, count, whole},
    vm::{Guest, Kernel, Machine, Release},
};

/// A boot of the guest each. The first two end in a crash.
const PHASES: [&str; 3] = ["make", "crashed", "missing"];

/// The arguments of `cargo x caches`.
#[derive(Parser)]
pub(crate) struct Caches {
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
    /// Seconds after which a guest is killed
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    timeout: u64,
}

/// A cell of the table: stack, column and result.
type Cell = [String; 3];

impl Caches {
    /// Runs the phases, prints the table, and counts. A phase that does not come to its end is a failed case.
    pub(crate) fn run(&self) -> Result<Counts> {
        let binary = std::path::absolute(server::binary(self.forebay.as_deref()))?;
        ensure!(binary.is_file(), "{} is missing: build it with `cargo build --release`", binary.display());
        let share = tempfile::Builder::new().prefix("caches-").tempdir_in(rigs_dir()?)?;
        let (mut cells, mut cases) = (Vec::new(), Vec::new());
        for phase in PHASES {
            cases.push(self.phase(phase, &binary, share.path(), &mut cells)?);
            if !cases.iter().all(|case| matches!(case.outcome, Outcome::Passed)) {
                break;
            }
        }
        print(&cells);
        Ok(count("caches", &cases))
    }

    /// Boots the guest for a phase, and collects its cells of the table.
    fn phase(&self, phase: &str, binary: &Path, share: &Path, cells: &mut Vec<Cell>) -> Result<Case> {
        let kernel = Kernel::ready(Release::V6_12, Machine::here())?;
        let modules = kernel.block_modules().chain(kernel.server_modules()).map(Path::to_path_buf);
        let words = ["/usr/bin/python3".into(), "-B".into(), asset("caches.py"), phase.into(), binary.into()];
        let words = words.into_iter().chain(modules).map(|word: PathBuf| word.to_string_lossy().into_owned());
        let guest = Guest {
            nfs: None,
            shares: vec![(share.to_owned(), "/share".into())],
            command: words.collect(),
            limit: Duration::from_secs(self.timeout),
            memory: 2048,
            all_modules: true,
            machine: Machine::here(),
            kernel: Release::V6_12,
            network: None,
        };
        let mut crashes = false;
        let ended = guest.run(|line| {
            let line = String::from_utf8_lossy(line);
            eprint!("{line}");
            crashes |= line.starts_with("# crash");
            cells.extend(cell(&line));
        });
        let problem = match ended {
            Ok(0) => None,
            // A guest that crashes has no exit status.
            Err(_) if crashes => None,
            Ok(status) => Some(format!("the guest ended with {status}")),
            Err(error) => Some(format!("{error:#}")),
        };
        Ok(whole(phase, problem))
    }
}

/// Returns the cell that a line of the script is.
fn cell(line: &str) -> Option<Cell> {
    let mut parts = line.strip_prefix("= ")?.trim_end().splitn(3, " | ").map(str::to_owned);
    Some([parts.next()?, parts.next()?, parts.next()?])
}

/// Prints the cells as a table, with a row for each stack.
fn print(cells: &[Cell]) {
    let distinct = |place: usize| {
        let mut all: Vec<&str> = Vec::new();
        for cell in cells {
            if !all.contains(&cell[place].as_str()) {
                all.push(&cell[place]);
            }
        }
        all
    };
    let (stacks, columns) = (distinct(0), distinct(1));
    println!("| | {} |\n|---|{}", columns.join(" | "), "---|".repeat(columns.len()));
    for stack in stacks {
        let result = |column: &&str| {
            let found = cells.iter().find(|[name, other, _]| name == stack && other == column);
            found.map_or("", |[_, _, result]| result)
        };
        println!("| {stack} | {} |", columns.iter().map(result).collect::<Vec<_>>().join(" | "));
    }
}

#[cfg(test)]
mod tests {
    use super::cell;

    #[test]
    fn a_line_of_the_table_has_three_parts() {
        assert_eq!(cell("= dm-cache | files | 3 of 4 | 5\n").unwrap(), ["dm-cache", "files", "3 of 4 | 5"]);
        assert!(cell("= dm-cache | files\n").is_none() && cell("# crash\n").is_none());
    }
}
