//! `calibrate`: measures the block device with fio and compares the results with the model's predictions and goals.

use crate::cli::{note, print, print_json};
use crate::daemon::Status;
use crate::error::ArrayError;
use crate::host;
use crate::model::{CacheKind, Model};
use crate::power::{self, Plan};
use crate::state::{FileSystem, State};
use crate::workload::{self, Load, Order, Rate};
use clap::Args;
use std::path::{Path, PathBuf};

/// Largest factor by which a measured ratio may differ from the predicted ratio.
const TOLERANCE: f64 = 1.35;

/// Arguments of `calibrate`.
#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// A shipped model or a TOML file; may be repeated [default: all shipped models]
    #[arg(long)]
    model: Vec<String>,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 8)]
    seconds: u32,
    /// GiB of the block device
    #[arg(long, default_value_t = 8)]
    gib: u64,
    /// Directory for the sparse file with the data
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    image_dir: PathBuf,
    /// Fail if the ratios between the measured figures differ from the model's
    #[arg(long)]
    check: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One measured figure.
#[derive(Debug, serde::Serialize)]
struct Figure {
    model: String,
    name: &'static str,
    unit: &'static str,
    goal: f64,
    predicted: f64,
    measured: f64,
    /// 99th percentile of the latency, in milliseconds, as measured by fio.
    p99_ms: f64,
    /// Processor time of the daemon for each request, in microseconds.
    daemon_us_per_request: f64,
}

/// One measurement.
struct Case {
    name: &'static str,
    unit: &'static str,
    fio: &'static str,
    goal: f64,
    load: Load,
}

/// Measures all cases of the named models, or of all shipped models, and prints a table or JSON. With `--check`,
/// fails if a figure differs too much from the prediction.
pub(crate) fn run(base: &Path, args: &CalibrateArgs, invocation: &[&str]) -> Result<(), ArrayError> {
    host::program("fio", &["--version"])?;
    let mut names = args.model.clone();
    if names.is_empty() {
        names = crate::model::SHIPPED.iter().map(|(name, _)| (*name).to_owned()).collect();
    }
    let mut figures = Vec::new();
    for name in names {
        figures.extend(model(base, args, &Model::load(&name)?, invocation)?);
    }
    if args.json {
        print_json(&figures)?;
    } else {
        table(&figures)?;
    }
    if args.check { check(&figures) } else { Ok(()) }
}

/// Measures all cases of one model. `via` are the arguments that lead to the verbs of `array` in this program.
fn model(base: &Path, args: &CalibrateArgs, model: &Model, via: &[&str]) -> Result<Vec<Figure>, ArrayError> {
    let mut figures = Vec::new();
    for case in cases(model, f64::from(args.seconds)) {
        // Each case gets a new array, so that no dirty cache and no open stream of the previous case affects it.
        let name = format!("calibrate-{}", std::process::id());
        let plan = Plan {
            base: base.to_owned(),
            name: name.clone(),
            model: model.clone(),
            size: args.gib << 30,
            image_dir: args.image_dir.clone(),
            fs: FileSystem::None,
            mount: None,
        };
        let state = power::up(&plan, via)?;
        let figure = measure(base, &state, &case);
        power::down(base, &name, true)?;
        figures.push(figure?);
    }
    Ok(figures)
}

/// Returns the cases of a model: random and sequential, reads and writes, each with its goal and its load.
fn cases(model: &Model, seconds: f64) -> [Case; 4] {
    let goals = &model.goals;
    // Small writes are measured once the write cache is full.
    let fill = if model.cache.kind == CacheKind::None { 1.0 } else { 6.0 };
    let random = Load { write: false, order: Order::Random, length: 4096, depth: 0, warm_up: 1.0, seconds };
    let stream = Load { order: Order::Sequential(1), length: 1 << 20, depth: 8, ..random };
    [
        Case {
            name: "random read 4 KiB",
            unit: "IOPS",
            fio: "randread",
            goal: goals.random_read_iops,
            load: Load { depth: goals.random_read_depth.into(), ..random },
        },
        Case {
            name: "random write 4 KiB",
            unit: "IOPS",
            fio: "randwrite",
            goal: goals.random_write_iops,
            load: Load { depth: goals.random_write_depth.into(), write: true, warm_up: fill, ..random },
        },
        Case {
            name: "sequential read 1 MiB",
            unit: "MiB/s",
            fio: "read",
            goal: goals.sequential_read_mib_s,
            load: stream,
        },
        Case {
            name: "sequential write 1 MiB",
            unit: "MiB/s",
            fio: "write",
            goal: goals.sequential_write_mib_s,
            load: Load { write: true, ..stream },
        },
    ]
}

/// Measures one case with fio on the device of the array, and predicts it with the model. Returns both, with the
/// daemon's processor time for each request.
fn measure(base: &Path, state: &State, case: &Case) -> Result<Figure, ArrayError> {
    note(&format!("{}: {} ...", state.model.name, case.name))?;
    let predicted = workload::run(&state.model, state.size, &case.load);
    let before = daemon(base, state)?;
    let (measured, p99_ms) = fio(state.device.as_deref().unwrap_or_default(), case)?;
    let after = daemon(base, state)?;
    let requests = |s: &Status| (s.counters.reads + s.counters.writes + s.counters.flushes) as f64;
    let spent = (after.cpu_ns - before.cpu_ns) as f64 / 1e3;
    let rate = |r: &Rate| if case.unit == "IOPS" { r.iops } else { r.mib_s };
    Ok(Figure {
        model: state.model.name.clone(),
        name: case.name,
        unit: case.unit,
        goal: case.goal,
        predicted: rate(&predicted),
        measured,
        p99_ms,
        daemon_us_per_request: spent / (requests(&after) - requests(&before)).max(1.0),
    })
}

/// Returns the counters of the array's daemon. Fails if the daemon does not answer.
fn daemon(base: &Path, state: &State) -> Result<Status, ArrayError> {
    let (_, status) = power::status(base, &state.name)?;
    let silent = || ArrayError::Dead(state.name.clone(), std::io::ErrorKind::TimedOut.into());
    status.ok_or_else(silent)
}

/// Runs fio. Returns the rate in the case's unit and the 99th percentile of the latency in milliseconds.
fn fio(device: &str, case: &Case) -> Result<(f64, f64), ArrayError> {
    let load = &case.load;
    let arguments = [
        "--name=calibrate".to_owned(),
        format!("--filename={device}"),
        format!("--rw={}", case.fio),
        format!("--bs={}", load.length),
        format!("--iodepth={}", load.depth),
        format!("--ramp_time={}", load.warm_up),
        format!("--runtime={}", load.seconds),
        "--time_based".to_owned(),
        "--direct=1".to_owned(),
        "--ioengine=libaio".to_owned(),
        "--norandommap".to_owned(),
        "--group_reporting".to_owned(),
        "--output-format=json".to_owned(),
    ];
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let text = host::program("fio", &arguments)?;
    let result: serde_json::Value = serde_json::from_str(&text)
        .map_err(|e| ArrayError::Program { command: "fio".to_owned(), output: e.to_string() })?;
    let side = &result["jobs"][0][if load.write { "write" } else { "read" }];
    let p99 = side["clat_ns"]["percentile"]["99.000000"].as_f64().unwrap_or_default() / 1e6;
    let rate = if case.unit == "IOPS" {
        side["iops"].as_f64()
    } else {
        side["bw_bytes"].as_f64().map(|b| b / f64::from(1 << 20))
    };
    Ok((rate.unwrap_or_default(), p99))
}

/// Prints the figures as a table for people, one line for each case.
fn table(figures: &[Figure]) -> Result<(), ArrayError> {
    print(&format!(
        "{:<12}{:<24}{:>8}{:>10}{:>10}{:>7}{:>10}{:>18}",
        "model", "figure", "goal", "predicted", "measured", "", "p99 ms", "daemon us/request"
    ))?;
    for f in figures {
        print(&format!(
            "{:<12}{:<24}{:>8.0}{:>10.0}{:>10.0} {:<6}{:>10.1}{:>18.1}",
            f.model, f.name, f.goal, f.predicted, f.measured, f.unit, f.p99_ms, f.daemon_us_per_request
        ))?;
    }
    Ok(())
}

/// Checks every figure relative to the model's random reads, measured against predicted. So a slow machine passes and
/// a wrong model fails.
fn check(figures: &[Figure]) -> Result<(), ArrayError> {
    for reads in figures.iter().filter(|f| f.name.starts_with("random read")) {
        for f in figures.iter().filter(|f| f.model == reads.model) {
            let (measured, predicted) = (f.measured / reads.measured, f.predicted / reads.predicted);
            let off = measured / predicted;
            // The copy speed of this machine may slow a stream down, so a stream may be below the range but not above
            // it.
            let low = if f.unit == "IOPS" { 1.0 / TOLERANCE } else { 0.0 };
            if !(low..TOLERANCE).contains(&off) {
                return Err(ArrayError::Argument(format!(
                    "model {}: {} is {measured:.3} of its random reads, and should be {predicted:.3}",
                    f.model, f.name
                )));
            }
        }
    }
    Ok(())
}
