//! Boots a guest with real systemd and the shipped unit repeatedly. The array, the SSDs and the state directory
//! appear in any order or not at all. Each boot ends with a power cut while the cache has dirty data. At each boot
//! the server must serve every file that was acknowledged as durable, or refuse with a sentence and write nothing.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::Parser;

use crate::{
    process::{quoted, rigs_dir, root, run},
    server,
    suites::{Counts, asset},
    vm::{Booted, Disk, Machine},
};

/// The arguments of `cargo x boot`.
#[derive(Parser)]
pub(crate) struct Boot {
    /// Number of boots; in every second one no disk is missing or late
    #[arg(long, default_value_t = 20)]
    times: u32,
    /// Seed that decides which disks are missing or late in the other boots
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Binary to use in place of target/release/forebay
    #[arg(long, value_name = "PATH")]
    forebay: Option<PathBuf>,
    /// Seconds after which the guest is killed
    #[arg(long, default_value_t = 420, value_name = "SECONDS")]
    timeout: u64,
    /// Kind of machine [default: user-mode as root, if there are tap devices]
    #[arg(long)]
    machine: Option<Machine>,
    /// Show the server's log of every boot
    #[arg(long)]
    verbose: bool,
}

/// The disks, by serial number.
const DISKS: [&str; 4] = ["array", "ssd1", "ssd2", "state"];

/// The state of a disk in one boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Appears {
    There,
    /// The disk appears this many seconds after systemd has started.
    Late(u64),
    Missing,
    /// Another file system is under the disk's name.
    Other,
}

/// The plan of one boot.
#[derive(Debug)]
struct Plan {
    appears: BTreeMap<&'static str, Appears>,
    /// The order in which the guest finds the disks.
    order: Vec<&'static str>,
    /// True if the unit requires the array's mount (RequiresMountsFor=).
    requires_mount: bool,
}

/// The permitted contents of each file: generations, and `-` for an absent file.
type Ledger = BTreeMap<String, Vec<String>>;

/// The report of one boot.
#[derive(Default)]
struct Told {
    outcome: String,
    wrong: Vec<String>,
    log: Vec<String>,
    notes: Vec<String>,
    ended: bool,
}

/// Makes one boot with every disk, which checks that the unit permits the server's system calls. Further boots take a
/// minute each.
pub(crate) fn check() -> Result<Counts> {
    Boot::parse_from(["boot", "--times", "1"]).run()
}

impl Boot {
    /// Boots, prints the result of each boot, and counts the results.
    pub(crate) fn run(&self) -> Result<Counts> {
        let binary = server::binary(self.forebay.as_deref());
        ensure!(binary.is_file(), "{} is missing: build it with `cargo build --release`", binary.display());
        let work = tempfile::Builder::new().prefix("booted-").tempdir_in(rigs_dir()?)?;
        let copy = work.path().join("forebay");
        fs::copy(&binary, &copy)?;
        make_disks(work.path())?;
        let mut random = Random(self.seed);
        let mut ledger = Ledger::new();
        let mut counts = Counts::default();
        for number in 0..self.times {
            // The last boot has every disk, to show the remaining data.
            let whole = number % 2 == 0 || number + 1 == self.times;
            let plan = Plan::new(&mut random, whole);
            let begun = Instant::now();
            let failed = self.boot(number, &plan, work.path(), &mut ledger)?;
            eprintln!("  {} s", begun.elapsed().as_secs());
            match failed {
                false => counts.passed += 1,
                true => counts.failed += 1,
            }
        }
        println!("boots: {} passed, {} failed (seed {})", counts.passed, counts.failed, self.seed);
        Ok(counts)
    }

    /// Boots once. Returns true if the boot failed.
    fn boot(&self, number: u32, plan: &Plan, work: &Path, ledger: &mut Ledger) -> Result<bool> {
        eprintln!("boot {number}: {plan}");
        let before = ssds(work)?;
        let booted = Booted {
            disks: plan.disks(work),
            prepare: prepare(number, plan, work, ledger),
            limit: Duration::from_secs(self.timeout),
            memory: 1024,
            machine: self.machine.unwrap_or_else(Machine::here),
        };
        let mut told = Told::default();
        let ended = booted.run(|line| told.take(line, ledger));
        if let Err(error) = ended {
            told.wrong.push(format!("{error:#}"));
        } else if !told.ended {
            told.wrong.push("the guest ended before the judge".into());
        }
        let changed = before != ssds(work)?;
        told.judge(plan, changed);
        eprintln!("  {}; {}", told.outcome, told.notes.join("; "));
        if self.verbose || !told.wrong.is_empty() {
            told.log.iter().for_each(|line| eprintln!("  | {line}"));
        }
        told.wrong.iter().for_each(|wrong| println!("FAILED boot {number} ({plan}): {wrong}"));
        Ok(!told.wrong.is_empty())
    }
}

impl Told {
    /// Takes a line of the guest into account. The lines TRY and DURABLE change the contents that the files may have
    /// at the next boot.
    fn take(&mut self, line: &str, ledger: &mut Ledger) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "SERVING" | "REFUSED" | "HANGS" => self.outcome = word.to_lowercase(),
            "WRONG" => self.wrong.push(rest.into()),
            "LOG" => self.log.push(rest.into()),
            "END" => self.ended = true,
            "TRY" | "DURABLE" => {
                let Some((name, generation)) = rest.split_once(' ') else { return };
                // Before this line, a file with a new name was absent.
                let may = ledger.entry(name.into()).or_insert_with(|| vec!["-".into()]);
                if word == "DURABLE" {
                    may.clear();
                }
                may.push(generation.into());
            }
            _ => self.notes.push(line.into()),
        }
    }

    /// Adds the violations that do not concern the contents of files.
    fn judge(&mut self, plan: &Plan, ssds_changed: bool) {
        let there = |disk: &str| !matches!(plan.appears[disk], Appears::Missing | Appears::Other);
        match self.outcome.as_str() {
            "serving" => {
                let stopped = self.notes.iter().find(|note| note.starts_with("STOPPED"));
                if let Some(stopped) = stopped.filter(|_| DISKS.iter().all(|disk| there(disk))) {
                    self.wrong.push(stopped.clone());
                }
            }
            "refused" => {
                if DISKS.iter().all(|disk| there(disk)) {
                    self.wrong.push("every disk appeared, but the server does not serve".into());
                }
                // A start that finds the right array may recover from the log before it fails for another reason.
                if ssds_changed && !there("array") {
                    self.wrong.push("the array was absent, but the SSDs were written".into());
                }
                // If the mount of the unit does not appear, systemd reports that and the server does not run.
                let ran = self.log.iter().any(|line| line.contains("rror"));
                let waited =
                    self.log.is_empty() || self.log.iter().any(|line| line.contains("Dependency failed for"));
                if !ran && !waited {
                    self.wrong.push("the server refused without a sentence".into());
                }
            }
            _ => self.wrong.push("the server neither serves nor refuses".into()),
        }
    }
}

impl Plan {
    /// Draws the plan of a boot: the state of each disk, their order, and the unit's dependency. In a `whole` boot
    /// all disks are there from the start.
    fn new(random: &mut Random, whole: bool) -> Self {
        let mut appears = BTreeMap::new();
        for disk in DISKS {
            let how = match random.below(10) {
                _ if whole => Appears::There,
                0..4 => Appears::There,
                4..6 => Appears::Late(1 + random.below(12)),
                6 if disk == "array" => Appears::Other,
                _ => Appears::Missing,
            };
            appears.insert(disk, how);
        }
        let mut order = DISKS.to_vec();
        for at in (1..order.len()).rev() {
            order.swap(at, random.below(at as u64 + 1) as usize);
        }
        Plan { appears, order, requires_mount: random.below(2) == 0 }
    }

    /// Returns the disks that the guest has, in the order in which it finds them. A missing disk is left out.
    fn disks(&self, work: &Path) -> Vec<Disk> {
        let disk = |serial: &str| {
            let image = match self.appears[serial] {
                Appears::Missing => return None,
                Appears::Other => "other",
                Appears::There | Appears::Late(_) => serial,
            };
            Some(Disk { image: work.join(image), serial: serial.into() })
        };
        self.order.iter().filter_map(|serial| disk(serial)).collect()
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for disk in &self.order {
            match self.appears[disk] {
                Appears::There => write!(f, "{disk} ")?,
                Appears::Late(seconds) => write!(f, "{disk}+{seconds}s ")?,
                Appears::Missing => write!(f, "no-{disk} ")?,
                Appears::Other => write!(f, "other-{disk} ")?,
            }
        }
        write!(f, "{}", if self.requires_mount { "RequiresMountsFor" } else { "no RequiresMountsFor" })
    }
}

/// Returns the script that runs before systemd.
fn prepare(number: u32, plan: &Plan, work: &Path, ledger: &Ledger) -> String {
    let late = plan.appears.iter().filter_map(|(disk, appears)| match appears {
        Appears::Late(seconds) => Some(format!("{disk}={seconds}")),
        _ => None,
    });
    let late = late.collect::<Vec<_>>().join(" ");
    let known: Vec<_> = ledger.iter().map(|(name, may)| format!("{name} {}", may.join(","))).collect();
    // The unit gets fewer and quicker attempts than shipped, so that a refused boot ends within a minute.
    let mut drop_in = String::from("[Unit]\nStartLimitBurst=6\n");
    if plan.requires_mount {
        drop_in.push_str("RequiresMountsFor=/srv/array\n");
    }
    // On a busy machine a disk may take long to appear.
    let wait = |disk: &str| if plan.appears[disk] == Appears::Missing { "5s" } else { "150s" };
    let value = |path: PathBuf| quoted(&path.to_string_lossy());
    format!(
        "BINARY={}\nUNITS={}\nJUDGE={}\nDROP_IN={}\nLATE={}\nLEDGER={}\nARRAY_WAIT={}\nSTATE_WAIT={}\necho {number} > /run/boot\n{}{}",
        value(work.join("forebay")),
        value(root().join("packaging")),
        value(asset("boot_judge.py")),
        quoted(&drop_in),
        quoted(&late),
        quoted(&known.join("\n")),
        wait("array"),
        wait("state"),
        include_str!("../assets/guest_units.sh"),
        include_str!("../assets/boot_prepare.sh"),
    )
}

/// Makes empty disks. `other` is a file system that differs from the array's.
fn make_disks(work: &Path) -> Result<()> {
    for (name, mebibytes) in [("array", 256), ("other", 256), ("state", 64), ("ssd1", 128), ("ssd2", 128)] {
        let path = work.join(name);
        File::create(&path)?.set_len(mebibytes << 20)?;
        if !name.starts_with("ssd") {
            run(Command::new("mkfs.ext4").args(["-q", "-F", "-L", name]).arg(&path))?;
        }
    }
    Ok(())
}

/// Returns a hash of the contents of the SSDs.
fn ssds(work: &Path) -> Result<u64> {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    let mut buffer = vec![0; 1 << 20];
    for ssd in ["ssd1", "ssd2"] {
        let mut file = File::open(work.join(ssd))?;
        loop {
            let len = file.read(&mut buffer)?;
            if len == 0 {
                break;
            }
            for word in buffer[..len].chunks_exact(8) {
                let word = word.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
                hash = (hash ^ word).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
    Ok(hash)
}

/// A random generator, splitmix64. Equal seeds give equal boots.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns the next number of the sequence, below `bound`. The generator is SplitMix64, so that a seed gives one
    /// plan on every machine.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }
}
