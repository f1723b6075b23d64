//! Runs many worlds of the simulator side by side, and prints how to repeat those that fail.
#![allow(clippy::print_stdout, reason = "a command-line tool: results go to stdout")]

#[cfg(feature = "plant")]
mod find_planted;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use forebay_common::lock::Mutex;
use forebay_sim::exhaustive;
use forebay_sim::hits::{FAULTS, Hits, Worlds};
use forebay_sim::joined;
use forebay_sim::namespace::{self, exhaustive as small};
use forebay_sim::plan::Plan;
use forebay_sim::rng::Rng;
use forebay_sim::world::{self, Outcome};
use indicatif::{ProgressBar, ProgressStyle};

/// The number of seeds from which on a run must have hit every class of fault.
const ENOUGH: u64 = 500;

/// One world in this number is run twice: equal seeds must give equal digests.
const TWICE: u64 = 16;

#[derive(Parser)]
#[command(about = "Run the cache engine in simulated worlds: one seed is one world")]
struct Arguments {
    /// Number of seeds to run
    #[arg(long, default_value_t = 1000, conflicts_with_all = ["minutes", "seed"])]
    seeds: u64,
    /// Run seeds for this number of minutes
    #[arg(long, conflicts_with = "seed")]
    minutes: Option<u64>,
    /// Run this seed only, and tell everything that happens
    #[arg(long)]
    seed: Option<u64>,
    /// The first seed; of exhaustive crashes, the first workload, to go on where a run was stopped
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    first: u64,
    /// Threads [default: one for each processor]
    #[arg(long)]
    threads: Option<usize>,
    /// All workloads of this number of operations, with crashes everywhere
    #[arg(long, value_name = "OPERATIONS", conflicts_with_all = ["minutes", "seed"])]
    exhaustive: Option<u32>,
    /// Worlds of names, which is what the log of changes and recovery make of a tree, in place of worlds of the engine
    #[arg(long)]
    names: bool,
    /// Worlds of a server in which names and data share the log, in place of worlds of the engine
    #[arg(long, conflicts_with_all = ["names", "exhaustive"])]
    joined: bool,
    /// Of exhaustive crashes, one in this number; of names, one in this number of the longest sequences
    #[arg(long, default_value_t = 1)]
    stride: u64,
    #[cfg(feature = "plant")]
    #[command(flatten)]
    planted: find_planted::Planted,
    /// Only worlds of the engine whose plan has this in it, such as Turns or DeviceHang; the others count as run
    #[arg(long, value_name = "PART", conflicts_with_all = ["names", "joined", "seed", "exhaustive"])]
    with: Option<String>,
    /// Give up after this number of failures
    #[arg(long, default_value_t = 10)]
    failures: u64,
}

struct Run {
    worlds: Worlds,
    /// Text that the plan of a world must contain.
    with: Option<String>,
    next: AtomicU64,
    done: AtomicU64,
    steps: AtomicU64,
    failed: AtomicU64,
    stop: AtomicBool,
    hits: Hits,
}

/// Runs a world. A panic counts as a failure.
fn guarded(worlds: Worlds, seed: u64, keep_log: bool) -> Result<Outcome, String> {
    let run = match worlds {
        Worlds::Engine => world::run,
        Worlds::Names => namespace::world::run,
        Worlds::Joined => joined::run,
    };
    catch_unwind(AssertUnwindSafe(|| run(seed, keep_log))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("panicked: {}", text.unwrap_or("without a word"))
    })
}

/// Runs a world, now and then twice.
fn checked(worlds: Worlds, seed: u64) -> Result<Outcome, String> {
    let outcome = guarded(worlds, seed, false)?;
    if let Some(failure) = outcome.failure {
        return Err(failure);
    }
    if seed.is_multiple_of(TWICE) && guarded(worlds, seed, false)?.digest != outcome.digest {
        return Err("the second run of the same seed took another course (P21)".to_owned());
    }
    Ok(outcome)
}

/// Returns the arguments that choose these worlds.
fn arguments_of(worlds: Worlds) -> &'static str {
    match worlds {
        Worlds::Engine => "",
        Worlds::Names => "--names ",
        Worlds::Joined => "--joined ",
    }
}

/// Runs the world of one seed and prints all its events, its number of steps, its digest, and its failure.
fn one(worlds: Worlds, seed: u64) -> ExitCode {
    match guarded(worlds, seed, true) {
        Ok(outcome) => {
            // A reader of stdout may close it early.
            let _ = outcome.log.iter().try_for_each(|line| writeln!(std::io::stdout(), "{line}"));
            println!("seed {seed}: {} steps, digest {:016x}", outcome.steps, outcome.digest);
            match outcome.failure {
                Some(failure) => {
                    println!("FAILED seed {seed}: {failure}");
                    ExitCode::FAILURE
                }
                None => ExitCode::SUCCESS,
            }
        }
        Err(failure) => {
            println!("FAILED seed {seed}: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Returns true if the plan of a world of the engine contains `part`.
fn is_planned(seed: u64, part: &str) -> bool {
    part.is_empty() || format!("{:?}", Plan::of_world(&mut Rng::new(seed))).contains(part)
}

/// Runs worlds on one thread until the last seed, the end of the time, or the most failures. Adds their faults to the
/// counts of the run.
fn worker(run: &Run, last: Option<u64>, end: Option<Instant>, failures: u64, bar: &ProgressBar) {
    while !run.stop.load(Ordering::Relaxed) {
        let seed = run.next.fetch_add(1, Ordering::Relaxed);
        if last.is_some_and(|last| seed > last) || end.is_some_and(|end| Instant::now() >= end) {
            return;
        }
        if run.with.as_ref().is_some_and(|part| !is_planned(seed, part)) {
            continue;
        }
        match checked(run.worlds, seed) {
            Ok(outcome) => {
                run.hits.add(&outcome.hits);
                run.steps.fetch_add(outcome.steps, Ordering::Relaxed);
            }
            Err(failure) => {
                let which = arguments_of(run.worlds);
                bar.suspend(|| {
                    println!("FAILED seed {seed}: {failure}\n    cargo x sim {which}--seed {seed}")
                });
                if run.failed.fetch_add(1, Ordering::Relaxed) + 1 >= failures {
                    run.stop.store(true, Ordering::Relaxed);
                }
            }
        }
        run.done.fetch_add(1, Ordering::Relaxed);
        bar.inc(1);
    }
}

/// Keeps the memory that a world frees for the next world. Getting megabytes from the kernel for every world would take
/// a third of the time.
fn keep_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: only sets limits of the allocator.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
    }
}

/// Makes a bar that shows, on a terminal, the progress of a run and the remaining time.
fn progress(of: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{pos} of {len} {msg}, {eta} left");
    let bar = ProgressBar::new(of).with_message(what);
    bar.enable_steady_tick(Duration::from_secs(1));
    style.map_or(bar.clone(), |style| bar.with_style(style))
}

/// Parses the command line and carries out one of its tasks: one seed, planted bugs, exhaustive cases, or a range of
/// seeds on all processors.
fn main() -> ExitCode {
    keep_memory();
    let arguments = Arguments::parse();
    let worlds = match (arguments.names, arguments.joined) {
        (true, _) => Worlds::Names,
        (_, true) => Worlds::Joined,
        _ => Worlds::Engine,
    };
    if let Some(seed) = arguments.seed {
        #[cfg(feature = "plant")]
        forebay_common::planted_bugs::plant(
            arguments.planted.plants.and_then(|part| find_planted::named(worlds, &part).first().copied()),
        );
        return one(worlds, seed);
    }
    // The failure's message is printed with the seed; the default hook would print it without.
    std::panic::set_hook(Box::new(|_| {}));
    let threads =
        arguments.threads.or(std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    #[cfg(feature = "plant")]
    if let Some(part) = &arguments.planted.plants {
        let seeds = arguments.first..arguments.first + arguments.seeds;
        let with = arguments.with.as_deref().unwrap_or("");
        let seeds: Vec<u64> = seeds.filter(|seed| is_planned(*seed, with)).collect();
        return find_planted::run(worlds, part, &seeds, threads, &arguments.planted);
    }
    if let (true, Some(most)) = (arguments.names, arguments.exhaustive) {
        return exhaustive_names(most as usize, arguments.stride.max(1), threads);
    }
    if let Some(most) = arguments.exhaustive {
        return exhaustive_cases(most, arguments.first, arguments.stride.max(1), threads);
    }
    let start = Instant::now();
    let end = arguments.minutes.map(|minutes| start + Duration::from_secs(60 * minutes));
    let last = end.is_none().then(|| arguments.first + arguments.seeds - 1);
    let run = Run {
        worlds,
        with: arguments.with,
        next: AtomicU64::new(arguments.first),
        done: AtomicU64::new(0),
        steps: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        hits: Hits::default(),
    };
    let threads =
        arguments.threads.or(std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    let bar = match last {
        Some(_) => progress(arguments.seeds, "worlds"),
        None => ProgressBar::hidden(),
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| worker(&run, last, end, arguments.failures, &bar));
        }
    });
    bar.finish_and_clear();
    report(&run, start.elapsed())
}

/// Runs every case of every workload.
fn exhaustive_cases(most: u32, first: u64, stride: u64, threads: usize) -> ExitCode {
    let workloads = exhaustive::workloads(most);
    let before = (first - 1).min(workloads.len() as u64);
    let (next, count, failed) = (AtomicU64::new(before), AtomicU64::new(0), AtomicU64::new(0));
    let bar = progress(workloads.len() as u64, "workloads").with_position(before);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed) as usize;
                    let Some(workload) = workloads.get(number) else { return };
                    if bar.is_hidden() && number.is_multiple_of(100) {
                        eprintln!("workload {number} of {}", workloads.len());
                    }
                    let result = catch_unwind(|| exhaustive::all_of(workload, stride as usize));
                    match result.unwrap_or_else(|_| Err(format!("{workload:?} panicked"))) {
                        Ok(cases) => count.fetch_add(cases, Ordering::Relaxed),
                        Err(failure) => {
                            bar.suspend(|| println!("FAILED {failure}"));
                            failed.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let (count, failed) = (count.into_inner(), failed.into_inner());
    let run = workloads.len() as u64 - before;
    println!("{run} workloads, {count} cases, {failed} workloads failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs every sequence of operations on a small tree, with every crash.
fn exhaustive_names(most: usize, stride: u64, threads: usize) -> ExitCode {
    let first = small::first_requests();
    let (next, failed, counts) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(small::Counts::default()));
    let bar = progress(first.len() as u64, "first operations");
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(first) = first.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let result = catch_unwind(|| small::all_from(first, most, stride));
                    match result.unwrap_or_else(|_| Err(format!("what begins with {first:?} panicked"))) {
                        Ok(more) => counts.lock().add(more),
                        Err(failure) => {
                            bar.suspend(|| println!("FAILED {failure}"));
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    bar.inc(1);
                }
            });
        }
    });
    bar.finish_and_clear();
    let small::Counts { sequences, crashes, again, meddled } = counts.into_inner();
    let failed = failed.into_inner();
    println!(
        "{sequences} sequences, {crashes} crashes, {again} more inside recovery, {meddled} with somebody else's file; \
         {failed} of {} failed",
        first.len()
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints how often each fault happened, and a summary. The run also fails if it had enough worlds and some fault
/// never happened.
fn report(run: &Run, time: Duration) -> ExitCode {
    let (done, failed) = (run.done.load(Ordering::Relaxed), run.failed.load(Ordering::Relaxed));
    let mut missing = 0;
    for (fault, text) in FAULTS.iter().filter(|(fault, _)| fault.worlds() == run.worlds) {
        let hits = run.hits.of(*fault);
        println!("{hits:>10}  {text}");
        if hits == 0 && done >= ENOUGH {
            println!("FAILED: no world had this: {text}");
            missing += 1;
        }
    }
    println!(
        "{done} worlds, {failed} failed; {} steps in {:.1} s",
        run.steps.load(Ordering::Relaxed),
        time.as_secs_f64()
    );
    if failed + missing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
