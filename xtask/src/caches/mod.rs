//! The table of what survives on XFS over caches of block devices, exported by the kernel's NFS server. bcache,
//! dm-cache, dm-writecache and a volume stand beside a plain disk, in one guest. The guest crashes, its power and that
//! of its disks is cut, a cache device fails, and the guest crashes again.

mod disks;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};
use clap::Parser;

use disks::Disks;

use crate::{
    process::rigs_dir,
    server,
    suites::{Case, Counts, Outcome, asset, count, reported, whole},
    vm::{Guest, Kernel, Machine, Release},
};

/// Disks behind whose writes the power is cut, in turn: a cache device, the backing disk and the state of Forebay.
const CUTS_BEHIND: [&str; 3] = ["forebay-ssd0", "forebay.disk", "own"];

/// The arguments of `cargo x caches`.
#[derive(Parser)]
pub(crate) struct Caches {
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
    /// Number of power cuts
    #[arg(long, default_value_t = 3, value_name = "CUTS", value_parser = clap::value_parser!(u8).range(1..))]
    cuts: u8,
    /// Chance in percent that a disk writes a block before it is told to. So this part of the unflushed blocks survives
    /// the power cut
    #[arg(long, default_value_t = 0, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(..=90))]
    early: u8,
    /// The control: from the first load on, flushes do nothing, and the run must fail
    #[arg(long)]
    lose_flushes: bool,
    /// Seconds after which a guest is killed
    #[arg(long, default_value_t = 900, value_name = "SECONDS")]
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
        let mut disks = Disks::new(share.path(), self.early)?;
        let (mut cells, mut cases) = (Vec::new(), Vec::new());
        for phase in self.phases() {
            disks.power_on()?;
            if self.lose_flushes && phase == "load1" {
                disks.forget_flushes()?;
            }
            let ended = self.phase(&phase, &binary, &mut disks, &mut cells, &mut cases)?;
            let is_whole = matches!(ended.outcome, Outcome::Passed);
            cases.push(ended);
            if !is_whole {
                break;
            }
        }
        print(&cells);
        Ok(count("caches", &cases))
    }

    /// Returns the phases, a boot of the guest each. The first and the last but one end in a crash, the loads in a
    /// power cut.
    fn phases(&self) -> Vec<String> {
        let loads = (1..=self.cuts).map(|number| format!("load{number}"));
        let last = [format!("fail{}", self.cuts), "missing".into()];
        ["make".into()].into_iter().chain(loads).chain(last).collect()
    }

    /// Boots the guest for a phase. Collects its cells of the table and its cases, and returns that of the whole phase.
    fn phase(
        &self,
        phase: &str,
        binary: &Path,
        disks: &mut Disks,
        cells: &mut Vec<Cell>,
        cases: &mut Vec<Case>,
    ) -> Result<Case> {
        let kernel = Kernel::ready(Release::V6_12, Machine::here())?;
        let modules = kernel.block_modules().chain(kernel.server_modules()).map(Path::to_path_buf);
        let words = ["/usr/bin/python3".into(), "-B".into(), asset("caches.py"), phase.into(), binary.into()];
        let disks_words = [disks.port.to_string(), self.early.to_string()].map(PathBuf::from);
        let words = words.into_iter().chain(disks_words).chain(modules);
        let words = words.map(|word: PathBuf| word.to_string_lossy().into_owned());
        let guest = Guest {
            nfs: None,
            shares: vec![(disks.directory.clone(), "/share".into())],
            command: words.collect(),
            limit: Duration::from_secs(self.timeout),
            memory: 2048,
            all_modules: true,
            machine: Machine::here(),
            kernel: Release::V6_12,
            network: None,
        };
        let (mut crashes, mut cut) = (false, Ok(()));
        let behind = CUTS_BEHIND[disks.cuts % CUTS_BEHIND.len()];
        let ended = guest.run(|line| {
            let line = String::from_utf8_lossy(line);
            eprint!("{line}");
            if line.starts_with("# cut") {
                cut = disks.cut_power(behind);
            }
            crashes |= line.starts_with("# crash") || line.starts_with("# cut");
            cells.extend(cell(&line));
            cases.extend(reported(&line));
        });
        cut?;
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
    use clap::Parser as _;

    use super::{Caches, cell};

    #[test]
    fn each_power_cut_has_a_load_before_it_and_a_check_after_it() {
        let phases = Caches::parse_from(["caches", "--cuts", "2"]).phases();
        assert_eq!(phases, ["make", "load1", "load2", "fail2", "missing"]);
    }

    #[test]
    fn a_line_of_the_table_has_three_parts() {
        assert_eq!(cell("= dm-cache | files | 3 of 4 | 5\n").unwrap(), ["dm-cache", "files", "3 of 4 | 5"]);
        assert!(cell("= dm-cache | files\n").is_none() && cell("# crash\n").is_none());
    }
}
