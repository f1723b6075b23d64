//! The verbs of `array`: parses arguments and prints results to standard output.

use crate::calibrate;
use crate::daemon::{Fault, Hits, Status};
use crate::error::{ArrayError, Doing};
use crate::fiemap;
use crate::model::{CacheKind, Model, SHIPPED};
use crate::power::{self, Plan};
use crate::state::{self, FileSystem, Phase, State};
use clap::{Args, Subcommand};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// `array`: emulates a disk array that every process of this machine can use.
#[derive(Debug, Args)]
pub struct ArrayArgs {
    /// Directory that holds the state of all arrays
    #[arg(long, global = true, value_name = "DIR", default_value = "/run/forebay-array")]
    state_dir: PathBuf,
    /// Name of the array
    #[arg(long, global = true, default_value = "array")]
    name: String,
    #[command(subcommand)]
    command: ArrayCommand,
}

#[derive(Debug, Subcommand)]
enum ArrayCommand {
    /// Make an array with a file system on it, or power one on again after a cut
    Up(UpArgs),
    /// Remove an array and its data; succeeds if there is no such array
    Down {
        /// Remove the array even if files on it are open
        #[arg(long)]
        force: bool,
    },
    /// Show the state of an array
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List arrays and models
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Cut the power: unflushed writes are lost, except a random subset, and every request fails
    Cut {
        /// Seed that decides which unflushed blocks survive
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Inject a fault
    Inject {
        #[command(subcommand)]
        fault: FaultArgs,
    },
    /// Measure a model on this machine with fio and compare with its goals
    Calibrate(calibrate::CalibrateArgs),
    /// Run the process behind an array
    #[command(hide = true)]
    Daemon {
        /// The array's state directory
        directory: PathBuf,
    },
}

#[derive(Debug, Args)]
struct UpArgs {
    /// A shipped model (see `list`) or a TOML file
    #[arg(long)]
    model: String,
    /// Size of the block device; memory is used only for written blocks
    #[arg(long, default_value = "8G", value_parser = parse_size)]
    size: u64,
    /// Directory for the sparse file with the data
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    image_dir: PathBuf,
    /// Mount point of the file system [default: below the state directory]
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// File system to make
    #[arg(long, value_enum, default_value_t = FileSystem::Xfs)]
    fs: FileSystem,
    /// Use this write cache instead of the model's
    #[arg(long, value_enum)]
    write_cache: Option<CacheKind>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum FaultArgs {
    /// Make requests that touch a range, or the data of a file, fail with EIO
    Eio {
        /// First byte on the block device
        #[arg(long, value_parser = parse_size, requires = "length", conflicts_with = "file", required_unless_present = "file")]
        offset: Option<u64>,
        /// Number of bytes
        #[arg(long, value_parser = parse_size)]
        length: Option<u64>,
        /// Fail requests for the blocks of this file on the array
        #[arg(long)]
        file: Option<PathBuf>,
        /// Requests that fail
        #[arg(long, value_enum, default_value_t = Hits::Both)]
        hits: Hits,
        /// Number of requests that fail (for each extent of a file) before the range works again [default: all]
        #[arg(long)]
        count: Option<u64>,
    },
    /// Make disks slower
    Slow {
        /// Factor by which every service time is multiplied
        #[arg(long)]
        factor: f64,
        /// Number of the disk, from 0 [default: all]
        #[arg(long)]
        disk: Option<usize>,
    },
    /// Complete no further request
    Hang,
    /// Acknowledge flushes without doing them: the control that a crash test must catch
    FlushNoop,
    /// Complete requests at once, to fill the array with data quickly
    Instant,
    /// End all faults; requests that hung complete
    Clear,
}

/// Runs a verb. `invocation` is the list of arguments that lead to these verbs, such as `["bench", "array"]`.
///
/// # Errors
/// [`ArrayError`], one sentence.
pub fn run(args: &ArrayArgs, invocation: &[&str]) -> Result<(), ArrayError> {
    let (base, name) = (&args.state_dir, args.name.as_str());
    match &args.command {
        ArrayCommand::Up(up) => run_up(base, name, up, invocation),
        ArrayCommand::Down { force } => {
            let was_there = power::down(base, name, *force)?;
            let what = if was_there { "removed" } else { "is not there" };
            note(&format!("array {name} {what}"))
        }
        ArrayCommand::Status { json } => {
            let (state, status) = power::status(base, name)?;
            if *json {
                print_json(&(Described::new(&state, status.as_ref())))
            } else {
                print_status(&state, status)
            }
        }
        ArrayCommand::List { json } => list(base, *json),
        ArrayCommand::Cut { seed } => {
            let (lost, kept) = power::cut(base, name, *seed)?;
            print(&format!("{lost} unflushed blocks of 4 KiB lost, {kept} kept (seed {seed})"))
        }
        ArrayCommand::Inject { fault } => {
            for fault in faults(fault)? {
                power::inject(base, name, fault)?;
            }
            Ok(())
        }
        ArrayCommand::Calibrate(calibrate) => calibrate::run(base, calibrate, invocation),
        ArrayCommand::Daemon { directory } => power::serve(directory),
    }
}

/// Makes an array, or restores its power, and prints its device or mount point. Warns if the image may outgrow the
/// space of its directory.
fn run_up(base: &Path, name: &str, args: &UpArgs, invocation: &[&str]) -> Result<(), ArrayError> {
    let mut model = Model::load(&args.model)?;
    if let Some(kind) = args.write_cache {
        model.cache.kind = kind;
    }
    let plan = Plan {
        base: base.to_owned(),
        name: name.to_owned(),
        model,
        size: args.size,
        image_dir: args.image_dir.clone(),
        fs: args.fs,
        mount: args.mount.clone(),
    };
    let state = power::up(&plan, invocation)?;
    if let Ok(image) = rustix::fs::statvfs(&args.image_dir) {
        let free = image.f_bavail * image.f_frsize;
        if free < state.size {
            let (dir, free, size) = (args.image_dir.display(), free >> 20, state.size >> 20);
            note(&format!(
                "{dir} has {free} MiB free; writes beyond that fail, though the array has {size} MiB"
            ))?;
        }
    }
    if args.json {
        return print_json(&Described::new(&state, None));
    }
    let device = state.device.as_deref().unwrap_or_default();
    let size = state.size >> 20;
    match state.fs {
        FileSystem::None => print(&format!("{device} ({}, {size} MiB)", state.model.name)),
        _ => print(&format!("{} on {device} ({}, {size} MiB)", state.mount.display(), state.model.name)),
    }
}

/// Returns the faults that the arguments name. For a file, these are errors in its extents on the device. Fails if
/// the file has none.
fn faults(args: &FaultArgs) -> Result<Vec<Fault>, ArrayError> {
    Ok(match args {
        FaultArgs::Eio { file: Some(path), hits, count, .. } => {
            let ranges = fiemap::ranges(path).doing(|| format!("find the blocks of {}", path.display()))?;
            if ranges.is_empty() {
                let why = format!(
                    "{} has no blocks on a device, so no request for it can fail; write to the file first",
                    path.display()
                );
                return Err(ArrayError::Argument(why));
            }
            let fault = |(offset, length)| Fault::Eio { offset, length, hits: *hits, count: *count };
            ranges.into_iter().map(fault).collect()
        }
        FaultArgs::Eio { offset, length, hits, count, .. } => vec![Fault::Eio {
            offset: offset.unwrap_or_default(),
            length: length.unwrap_or_default(),
            hits: *hits,
            count: *count,
        }],
        FaultArgs::Slow { factor, disk } => vec![Fault::Slow { factor: *factor, disk: *disk }],
        FaultArgs::Hang => vec![Fault::Hang],
        FaultArgs::FlushNoop => vec![Fault::FlushNoop],
        FaultArgs::Instant => vec![Fault::Instant],
        FaultArgs::Clear => vec![Fault::Clear],
    })
}

/// An array in JSON output.
#[derive(Debug, serde::Serialize)]
struct Described<'a> {
    name: &'a str,
    model: &'a str,
    write_cache: CacheKind,
    size: u64,
    fs: FileSystem,
    mount: Option<&'a Path>,
    device: Option<&'a str>,
    image: &'a Path,
    pid: Option<i32>,
    phase: Phase,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a Status>,
}

impl<'a> Described<'a> {
    /// Describes an array for JSON. `status` is that of its daemon, if the daemon answers.
    fn new(state: &'a State, status: Option<&'a Status>) -> Self {
        Self {
            name: &state.name,
            model: &state.model.name,
            write_cache: state.model.cache.kind,
            size: state.size,
            fs: state.fs,
            mount: (state.fs != FileSystem::None).then_some(state.mount.as_path()),
            device: state.device.as_deref(),
            image: &state.image,
            pid: state.pid,
            phase: state.phase,
            status,
        }
    }
}

/// Prints the shipped models and all arrays, as lines or as JSON. An array without a living daemon is listed as dead.
fn list(base: &Path, json: bool) -> Result<(), ArrayError> {
    let mut states = Vec::new();
    for name in state::names(base)? {
        states.extend(state::load(&base.join(name))?);
    }
    let models: Vec<Model> = SHIPPED.iter().filter_map(|(name, _)| Model::load(name).ok()).collect();
    if json {
        let arrays: Vec<Described<'_>> = states.iter().map(|s| Described::new(s, None)).collect();
        return print_json(&serde_json::json!({ "arrays": arrays, "models": models }));
    }
    for m in &models {
        print(&format!("model {:<12} {}", m.name, m.description))?;
    }
    for s in &states {
        let phase =
            if s.phase == Phase::Up && !state::alive(&base.join(&s.name)) { "dead" } else { phase(s.phase) };
        let mount = s.mount.display();
        print(&format!("array {:<12} {}, {} MiB, {phase}, at {mount}", s.name, s.model.name, s.size >> 20))?;
    }
    Ok(())
}

/// Returns the word that people see for the phase of an array.
fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting => "starting",
        Phase::Up => "up",
        Phase::Cut => "without power",
    }
}

/// Prints an array's state and its daemon's counters for people. Without `status`, says that the daemon does not
/// answer.
fn print_status(state: &State, status: Option<Status>) -> Result<(), ArrayError> {
    print(&format!("{}: {} ({})", state.name, phase(state.phase), state.model.description))?;
    let device = state.device.as_deref().unwrap_or("none");
    let cache = format!("{:?}", state.model.cache.kind).to_lowercase();
    print(&format!("  device {device}, mounted at {}, {} MiB", state.mount.display(), state.size >> 20))?;
    let Some(status) = status else { return print("  the daemon does not answer") };
    let c = &status.counters;
    let (read, written) = (c.read_bytes >> 20, c.written_bytes >> 20);
    print(&format!(
        "  {} reads ({read} MiB), {} writes ({written} MiB), {} flushes",
        c.reads, c.writes, c.flushes
    ))?;
    print(&format!(
        "  {} in flight, {} full and {} partial stripes written",
        c.in_flight, c.full_stripes, c.partial_stripes
    ))?;
    let used = c.cache_used_bytes >> 20;
    print(&format!("  write cache {cache}, {used} MiB in use, {} blocks at risk", status.blocks_at_risk))?;
    let busy: Vec<f64> =
        status.disks.iter().map(|d| d.busy_ns as f64 * 100.0 / status.uptime_ns.max(1) as f64).collect();
    let (low, high) = busy.iter().fold((f64::MAX, 0.0f64), |(l, h), b| (l.min(*b), h.max(*b)));
    print(&format!("  {} disks, busy {low:.0} to {high:.0} % of the time since the start", busy.len()))?;
    let requests = (c.reads + c.writes + c.flushes).max(1);
    let cost = status.cpu_ns as f64 / 1e3 / requests as f64;
    print(&format!(
        "  daemon: {:.2} s of processor time, {cost:.1} us a request",
        status.cpu_ns as f64 / 1e9
    ))?;
    let Status { error_ranges, hang, instant, .. } = status;
    if error_ranges > 0 || hang || instant {
        print(&format!("  faults: {error_ranges} error ranges, hang {hang}, instant {instant}"))?;
    }
    Ok(())
}

/// Prints a line to standard output.
pub(crate) fn print(line: &str) -> Result<(), ArrayError> {
    writeln!(io::stdout(), "{line}").doing(|| "write to standard output".to_owned())
}

/// Prints a value to standard output as JSON.
pub(crate) fn print_json<T: serde::Serialize>(value: &T) -> Result<(), ArrayError> {
    let text = serde_json::to_string_pretty(value).map_err(io::Error::other);
    print(&text.doing(|| "make JSON".to_owned())?)
}

/// Prints a remark to standard error.
pub(crate) fn note(line: &str) -> Result<(), ArrayError> {
    writeln!(io::stderr(), "{line}").doing(|| "write to standard error".to_owned())
}

/// Parses a size in bytes: `4096`, `512K`, `8G` or `8GiB`. The units are powers of 1024.
fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err("use a number and K, M, G or T".to_owned()),
    };
    let number: u64 = digits.parse().map_err(|_| "use a number and K, M, G or T".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "the size exceeds 16 EiB; name a smaller one".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("8G"), Ok(8 << 30));
        assert_eq!(parse_size("512KiB"), Ok(512 << 10));
        assert!(parse_size("8X").is_err() && parse_size("G").is_err() && parse_size("99999999T").is_err());
    }
}
